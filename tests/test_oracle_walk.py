"""Long random walks over hybrid caches, each step decided by a brute-force oracle and audited.

``RADIXTIDE_WALK_SEED`` and ``RADIXTIDE_WALK_STEPS`` repeat or lengthen a walk. A failure prints its
setup, seed and step, and ends with one line, ``replay(...)`` of ``support.oracle_replay``, that
repeats the shortest walk that was found to fail.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from radixtide.components.auxiliary import AuxiliaryComponent
from radixtide.components.mamba import MambaComponent
from radixtide.components.request import Request
from radixtide.components.swa import SwaComponent
from radixtide.tiers.pairing import Pairing
from radixtide.tiers.state_pool import StatePool
from radixtide.tree.node import Node
from support.oracle import FULL, MAMBA, SWA
from support.oracle_replay import walk
from support.oracle_setup import HybridSetup
from support.oracle_walk import OracleWalk

STEPS = int(os.environ.get("RADIXTIDE_WALK_STEPS", "160"))
NIGHTLY_STEPS = int(os.environ.get("RADIXTIDE_WALK_STEPS", "4000"))
SEED = os.environ.get("RADIXTIDE_WALK_SEED")

WITH_SWA = HybridSetup((FULL, SWA), 4, 9)
WITH_MAMBA = HybridSetup((FULL, MAMBA), 4, 0, extra_buffer=True)
WITH_BOTH = HybridSetup((FULL, SWA, MAMBA), 4, 9, extra_buffer=True)
WITHOUT_BUFFER = HybridSetup((FULL, MAMBA), 1, 0)


def windows(page: int) -> list[int]:
    """Return windows within a page, of a page, and of some pages and a bit."""
    return sorted({1, max(page - 1, 1), page, 3 * page + 1})


def setups() -> list[HybridSetup]:
    """Return every set of components with every page size, window and way to keep states."""
    found = [HybridSetup(page=page) for page in (1, 16, 64)]
    found.append(HybridSetup(page=16, bigram=True))
    for page in (1, 16, 64):
        swa = [HybridSetup((FULL, SWA), page, window) for window in windows(page)]
        found += [*swa, replace(swa[-1], bigram=True)]
        # Without a buffer states are kept at any length, and pages are single tokens.
        ways = [(True, 0), (True, 2 * page)] + ([(False, 0)] if page == 1 else [])
        for buffer, chunk in ways:
            plain = HybridSetup((FULL, MAMBA), page, 0, extra_buffer=buffer, chunk=chunk)
            chosen = windows(page)[-1:] if chunk else windows(page)
            both = replace(plain, components=(FULL, SWA, MAMBA))
            found += [plain, *(replace(both, window=window) for window in chosen)]
    found.append(HybridSetup((FULL, MAMBA), 1, 0, cap=2))
    found.append(HybridSetup((FULL, SWA, MAMBA), 16, 17, extra_buffer=True, cap=1))
    tight = HybridSetup((FULL, SWA, MAMBA), 1, 4, pages=12, swa_pages=4, states=3)
    found += [tight, replace(tight, page=16, window=33, extra_buffer=True)]
    few = HybridSetup((FULL, MAMBA), 1, 0, states=4)
    found += [few, replace(few, states=7, extra_buffer=True)]
    return found


def name(setup: HybridSetup) -> str:
    """Return the setup as a test's id."""
    parts = ["+".join(setup.components), f"page{setup.page}"]
    parts += [f"window{setup.window}"] if SWA in setup.components else []
    parts += ["buffer"] if setup.extra_buffer else []
    parts += [f"chunk{setup.chunk}"] if setup.chunk else []
    parts += [f"cap{setup.cap}"] if setup.cap else []
    parts += ["bigram"] if setup.bigram else []
    parts += ["tight"] if setup.pages < HybridSetup.pages else []
    parts += [f"states{setup.states}"] if setup.states != HybridSetup.states else []
    return "-".join(parts)


def both_deliveries_agree(setup: HybridSetup, seed: int, steps: int, longest: int = 6) -> None:
    """Take the same walk under both deliveries; every answer must be the same, letter by letter.

    So what was compared after each step under the one need not be at each under the other.
    """
    direct = walk(setup, seed, steps, longest)
    queued = walk(replace(setup, delivery="queued", audit_every=7), seed, steps, longest)
    for at, (one, other) in enumerate(zip(direct, queued, strict=True)):
        assert one == other, f"{setup}, seed {seed}: answer {at} depends on the delivery"


@pytest.mark.slow
@pytest.mark.parametrize("setup", setups(), ids=name)
def test_a_walk_agrees_with_the_oracle_and_does_not_depend_on_delivery(setup: HybridSetup) -> None:
    both_deliveries_agree(setup, int(SEED or crc32(name(setup).encode())), STEPS)


@pytest.mark.nightly
@pytest.mark.parametrize("setup", setups(), ids=name)
def test_a_long_walk_agrees_with_the_oracle(setup: HybridSetup) -> None:
    seed = int(SEED) if SEED else random.SystemRandom().randrange(2**32)
    both_deliveries_agree(setup, seed, NIGHTLY_STEPS)


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "tlru", "fifo"])
def test_a_long_walk_in_large_pools_agrees_with_the_oracle(policy: str) -> None:
    seed = int(SEED) if SEED else random.SystemRandom().randrange(2**32)
    setup = HybridSetup(
        (FULL, SWA, MAMBA), 4, 9, 120, 60, 24, extra_buffer=True, chunk=8, policy=policy
    )
    both_deliveries_agree(setup, seed, NIGHTLY_STEPS // 2, longest=14)


# -- planted defects ---------------------------------------------------------------------


def _accepts_always(
    component: SwaComponent | MambaComponent,
    path: Sequence[Node],
    inside: Node | None,
    inside_units: int,
    match_device_only: bool,
) -> list[int]:
    return list(range(1, len(path) + 1 + (inside is not None)))


def _to_the_root(component: SwaComponent, node: Node) -> Iterator[Node]:
    while node.parent is not None:
        yield node
        node = node.parent


def _skips_tombstones(component: SwaComponent, node: Node) -> Iterator[Node]:
    return (one for one in _COVERED(component, node) if component.data(one).value is not None)


def _releases_to_the_root(component: SwaComponent, node: Node, record: Any) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SwaComponent, "covered", _to_the_root)
        return int(_RELEASE(component, node, record))


def _keeps_the_pairs(pairing: Pairing, pages: Any) -> None:
    return None


def _keeps_tombstones(component: SwaComponent, nodes: Sequence[Node]) -> int:
    kept = [component.data(node).value for node in nodes]
    freed = _EVICT_SWA(component, nodes)
    for node, value in zip(nodes, kept, strict=True):
        component.data(node).value = value
    return int(freed)


def _state_to_the_prefix(component: MambaComponent, prefix: Node, suffix: Node) -> None:
    if (value := component.detach(suffix)) is not None:
        component.attach(prefix, value)


def _state_stays_alone(component: SwaComponent, is_leaf: bool) -> int:
    return -1


def _locks_nothing(component: MambaComponent, node: Node) -> None:
    return None


def _copies_nothing(pool: StatePool, source: int, target: int) -> None:
    return None


def _window_of_a_token(component: SwaComponent, node: Node) -> Iterator[Node]:
    return iter([node] if node.parent is not None else [])


def _any_tracked_length(component: MambaComponent, req: Request, start: int, length: int) -> int:
    return length


_COVERED = AuxiliaryComponent.covered
_RELEASE = AuxiliaryComponent.release_component_lock
_EVICT_SWA = SwaComponent.evict_nodes

PLANTED: list[tuple[str, type, str, Any, HybridSetup]] = [
    ("swa accepts always", SwaComponent, "validate_path", _accepts_always, WITH_SWA),
    ("a state serves anywhere", MambaComponent, "validate_path", _accepts_always, WITH_MAMBA),
    (
        "release without boundary",
        SwaComponent,
        "release_component_lock",
        _releases_to_the_root,
        WITH_SWA,
    ),
    ("tombstones are not counted", SwaComponent, "covered", _skips_tombstones, WITH_SWA),
    ("a lock covers one node", SwaComponent, "covered", _window_of_a_token, WITH_SWA),
    ("pairs stay", Pairing, "clear", _keeps_the_pairs, WITH_SWA),
    ("tombstones keep their slots", SwaComponent, "evict_nodes", _keeps_tombstones, WITH_SWA),
    (
        "states go up at a split",
        MambaComponent,
        "redistribute_on_node_split",
        _state_to_the_prefix,
        WITH_MAMBA,
    ),
    ("no cascade", SwaComponent, "eviction_priority", _state_stays_alone, WITH_BOTH),
    ("states are not locked", MambaComponent, "acquire_component_lock", _locks_nothing, WITH_MAMBA),
    ("copies are empty", StatePool, "copy", _copies_nothing, WITH_MAMBA),
    (
        "a state at any length",
        MambaComponent,
        "prepare_for_caching_req",
        _any_tracked_length,
        WITH_BOTH,
    ),
]


@pytest.mark.parametrize(
    ("owner", "name", "broken", "setup"),
    [pytest.param(*planted[1:], id=planted[0]) for planted in PLANTED],
)
def test_a_walk_notices_a_planted_defect(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Any, setup: HybridSetup
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError) as caught:
        OracleWalk(setup, 1).run(range(2000))
    assert "seed 1, step" in "".join(caught.value.__notes__)
