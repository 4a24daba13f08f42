"""Defects that are planted in the components of a hybrid cache: the oracle alone must notice each.

The cache's own audit is off here, so that what finds a defect is the comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pytest

from radixtide.components.auxiliary import AuxiliaryComponent
from radixtide.components.insertion import InsertCheck, Insertion
from radixtide.components.mamba import MambaComponent
from radixtide.components.request import Request
from radixtide.components.swa import SwaComponent
from radixtide.tiers.pairing import Pairing
from radixtide.tiers.state_pool import StatePool
from radixtide.tree.lru import LruList
from radixtide.tree.node import Node
from support.oracle import FULL, MAMBA, SWA
from support.oracle_replay import replay, walk
from support.oracle_setup import HybridSetup
from support.oracle_walk import OracleWalk

WITH_SWA: Final = HybridSetup((FULL, SWA), 4, 9)
WITH_STATES: Final = HybridSetup((FULL, MAMBA), 4, 0, extra_buffer=True)
WITHOUT_BUFFER: Final = HybridSetup((FULL, MAMBA), 1, 0)
WITH_BOTH: Final = HybridSetup((FULL, SWA, MAMBA), 4, 9, extra_buffer=True)


class Planted(NamedTuple):
    """A defect: what it is, and the attribute that is replaced for it."""

    what: str
    owner: type
    name: str
    broken: Any
    setup: HybridSetup


def accepts_always(
    component: AuxiliaryComponent,
    path: Sequence[Node],
    inside: Node | None,
    inside_units: int,
    match_device_only: bool,
) -> list[int]:
    return list(range(1, len(path) + 1 + (inside is not None)))


def to_the_root(component: SwaComponent, node: Node) -> Iterator[Node]:
    while node.parent is not None:
        yield node
        node = node.parent


def skips_tombstones(component: SwaComponent, node: Node) -> Iterator[Node]:
    return (one for one in COVERED(component, node) if component.data(one).value is not None)


def one_node(component: SwaComponent, node: Node) -> Iterator[Node]:
    return iter([node] if node.parent is not None else [])


def releases_to_the_root(component: SwaComponent, node: Node, record: Any) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SwaComponent, "covered", to_the_root)
        return int(RELEASE(component, node, record))


def keeps_the_pairs(pairing: Pairing, pages: Any) -> None:
    return None


def keeps_its_value(component: SwaComponent, nodes: Sequence[Node]) -> int:
    kept = [component.data(node).value for node in nodes]
    freed = EVICT_SWA(component, nodes)
    for node, value in zip(nodes, kept, strict=True):
        component.data(node).value = value
    return int(freed)


def to_the_prefix(component: MambaComponent, prefix: Node, suffix: Node) -> None:
    if (value := component.detach(suffix)) is not None:
        component.attach(prefix, value)


def one_node_higher(component: MambaComponent, node: Node, value: Any) -> None:
    above = node.parent
    if above is not None and above.parent is not None and component.data(above).value is None:
        node = above
    ATTACH(component, node, value)


def rank_of_nothing(component: SwaComponent, is_leaf: bool) -> int:
    return -1


def locks_nothing(component: MambaComponent, node: Node) -> None:
    return None


def copies_nothing(pool: StatePool, source: int, target: int) -> None:
    return None


def all_of_it(component: MambaComponent, req: Request, start: int, length: int) -> int:
    return length


def live_from_the_start(component: SwaComponent, job: Insertion) -> InsertCheck:
    evicted, job.evicted = job.evicted, None
    try:
        return CHECK_INSERT(component, job)
    finally:
        job.evicted = evicted


def a_page_too_many(component: SwaComponent, holder: int, begin: int, end: int) -> int:
    return int(RELEASE_PAIRED(component, holder, begin, end + component.page_size))


def stays_where_it_is(order: LruList[Any], entry: Any) -> None:
    return None


COVERED = AuxiliaryComponent.covered
RELEASE = AuxiliaryComponent.release_component_lock
ATTACH = AuxiliaryComponent.attach
EVICT_SWA = SwaComponent.evict_nodes
CHECK_INSERT = SwaComponent.check_insert
RELEASE_PAIRED = SwaComponent.release_paired

SPLIT, UNLOCK = "redistribute_on_node_split", "release_component_lock"
PREPARE = "prepare_for_caching_req"

PLANTED: Final = (
    Planted("any window is whole", SwaComponent, "validate_path", accepts_always, WITH_SWA),
    Planted("a state serves anywhere", MambaComponent, "validate_path", accepts_always, WITH_BOTH),
    Planted("release without boundary", SwaComponent, UNLOCK, releases_to_the_root, WITH_SWA),
    Planted("tombstones do not count", SwaComponent, "covered", skips_tombstones, WITH_SWA),
    Planted("a lock covers one node", SwaComponent, "covered", one_node, WITH_SWA),
    Planted("pairs are not cleared", Pairing, "clear", keeps_the_pairs, WITH_SWA),
    Planted("tombstones are not cleared", SwaComponent, "evict_nodes", keeps_its_value, WITH_SWA),
    Planted(
        "evicted lengths are ignored", SwaComponent, "check_insert", live_from_the_start, WITH_SWA
    ),
    Planted(
        "one page too many is released", SwaComponent, "release_paired", a_page_too_many, WITH_SWA
    ),
    Planted("use does not count", LruList, "promote", stays_where_it_is, WITH_SWA),
    Planted(
        "SWA takes no state along", SwaComponent, "eviction_priority", rank_of_nothing, WITH_BOTH
    ),
    Planted("states go up at a split", MambaComponent, SPLIT, to_the_prefix, WITH_STATES),
    Planted(
        "states come to a shorter length", MambaComponent, "attach", one_node_higher, WITH_STATES
    ),
    Planted(
        "states are not locked",
        MambaComponent,
        "acquire_component_lock",
        locks_nothing,
        WITH_STATES,
    ),
    Planted("copies are empty", StatePool, "copy", copies_nothing, WITH_STATES),
    Planted("forks are empty", StatePool, "copy", copies_nothing, WITHOUT_BUFFER),
    Planted("inserts go beyond the state", MambaComponent, PREPARE, all_of_it, WITH_BOTH),
)


@pytest.mark.parametrize("defect", PLANTED, ids=lambda defect: defect.what.replace(" ", "-"))
def test_the_oracle_alone_notices_a_planted_defect(
    monkeypatch: pytest.MonkeyPatch, defect: Planted
) -> None:
    monkeypatch.setattr(defect.owner, defect.name, defect.broken)
    walked = OracleWalk(defect.setup, 1)
    walked.steps.audits = False
    with pytest.raises(AssertionError) as caught:
        walked.run(range(2000))
    assert "seed 1, step" in "".join(caught.value.__notes__)


def test_a_failure_tells_the_shortest_walk_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SwaComponent, "validate_path", accepts_always)
    with pytest.raises(AssertionError) as caught:
        walk(WITH_SWA, 1, 400, shrink=3)
    line = caught.value.__notes__[-1]
    setup, seed, numbers, longest = eval(line.removeprefix("replay"), {"HybridSetup": HybridSetup})
    assert (setup, seed) == (WITH_SWA, 1)
    assert len(numbers) < 100
    with pytest.raises(AssertionError):
        replay(setup, seed, numbers, longest)
    monkeypatch.undo()
    replay(setup, seed, numbers, longest)
