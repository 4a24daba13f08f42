"""Long random walks of caches with tiers: every byte is read, every step audited, nothing is left.

``RADIXTIDE_WALK_SEED`` and ``RADIXTIDE_WALK_STEPS`` repeat or lengthen a walk. A failure prints its
setup, seed, step and last calls, and ends with one line, ``replay(...)`` of ``support.tier_walk``,
that repeats the shortest walk that was found to fail. Planted defects show what walks would notice.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec
import numpy as np
import pytest

from radixtide.actors import op_fetch, op_store, storage_jobs
from radixtide.actors.tier_messages import StartCopy
from radixtide.actors.tier_state import TierState
from radixtide.actors.tiering import TieringActor
from radixtide.components.full_host import FullHost
from radixtide.components.host_tier import HostTier
from radixtide.tiers.copy_engine import CopyResult, Direction
from radixtide.tiers.copy_lanes import PoolCopy
from radixtide.tree.node import Node
from support.tier_config import SETS
from support.tier_walk import TierWalk, replay, walk
from support.tier_walk_setup import TierSetup

STEPS = int(os.environ.get("RADIXTIDE_WALK_STEPS", "60"))
NIGHTLY_STEPS = int(os.environ.get("RADIXTIDE_WALK_STEPS", "4000"))
SEED = os.environ.get("RADIXTIDE_WALK_SEED")

POLICIES: Final = ("write_through", "write_through_selective", "write_back")


def setups() -> list[TierSetup]:
    """Return every set of components with every page size, and everything else in turn."""
    found: list[TierSetup] = []
    for components in SETS:
        for page in (1, 4, 16):
            at = len(found)
            found.append(
                TierSetup(
                    components,
                    page,
                    window=2 * page + at % 2,
                    policy=POLICIES[(at + at // 3) % 3],
                    layout=("layer_first", "page_first")[at % 2],
                    delivery=("direct", "queued")[at // 2 % 2],
                    prefetch=("wait_complete", "best_effort", "timeout")[at // 2 % 3],
                    host_pages=(60, 10, 30)[at // 2 % 3],
                    batch=(8192, 2 * page)[at % 2],
                    storage=at % 4 != 3,
                    damage=at % 3 == 1,
                )
            )
    found.append(TierSetup(page=4, bigram=True))
    found.append(TierSetup(("full", "swa"), 4, bigram=True, delivery="queued"))
    found.append(TierSetup(("full", "swa", "mamba"), 4, crashes=True, host_pages=20))
    found.append(TierSetup(page=1, crashes=True, policy="write_back", host_pages=12))
    return found


def name(setup: TierSetup) -> str:
    """Return the setup as a test's id."""
    words = ["+".join(setup.components), f"page{setup.page}", setup.policy, setup.delivery]
    flags = ("bigram", "storage", "damage", "crashes")
    return "-".join(words + [flag for flag in flags if getattr(setup, flag)])


def any_setup(dice: random.Random) -> TierSetup:
    """Return any configuration there is."""
    components = dice.choice(SETS)
    page = dice.choice((1, 4, 16))
    return TierSetup(
        components,
        page,
        window=dice.choice((max(page - 1, 1), 2 * page, 2 * page + 1, 3 * page)),
        pages=dice.choice((16, 24, 40)),
        swa_pages=dice.choice((10, 16, 30)),
        states=dice.choice((7, 9, 16)),
        host_pages=dice.choice((8, 20, 60, 120)),
        host_swa_pages=dice.choice((8, 24, 60)),
        host_states=dice.choice((3, 8, 30)),
        policy=dice.choice(POLICIES),
        layout=dice.choice(("layer_first", "page_first")),
        eviction=dice.choice(("lru", "lfu", "slru", "priority", "fifo")),
        delivery=dice.choice(("direct", "queued")),
        bigram="mamba" not in components and not dice.randrange(4),
        storage=bool(dice.randrange(4)),
        prefetch=dice.choice(("wait_complete", "best_effort", "timeout")),
        quota=dice.choice((0, 0, 3 * page)),
        batch=dice.choice((8192, 2 * page)),
        jobs=dice.choice((64, 2)),
        damage=not dice.randrange(3),
        crashes=not dice.randrange(4),
    )


@pytest.mark.slow
@pytest.mark.parametrize("setup", setups(), ids=name)
def test_a_walk_reads_what_was_written_and_leaves_nothing(setup: TierSetup) -> None:
    walk(setup, int(SEED or crc32(name(setup).encode())), STEPS)


def test_walks_meet_what_is_not_to_be_missed() -> None:
    met: Counter[str] = Counter()
    for seed in range(3):
        tight = TierSetup(("full", "swa", "mamba"), 4, damage=seed == 1, audit_every=5)
        met += replay(replace(tight, host_pages=14 if seed == 2 else 40), seed, range(220))
    for wanted in ("load", "load failed", "host hit", "left", "fetched", "layer read", "damage"):
        assert met[wanted], f"no {wanted} in {dict(met)}"


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(60))
def test_a_long_walk_reads_what_was_written_and_leaves_nothing(number: int) -> None:
    seed = int(SEED) if SEED else random.SystemRandom().randrange(2**32)
    setup = any_setup(random.Random(seed + number))
    walk(replace(setup, audit_every=3), seed, NIGHTLY_STEPS, shrink=120)


# -- planted defects -------------------------------------------------------------------------------

PLAIN: Final = TierSetup(page=4, storage=False, host_pages=24)
WITH_STORAGE: Final = TierSetup(page=4, host_pages=24)
DAMAGED: Final = TierSetup(page=4, storage=False, damage=True)
SEEDS: Final = 12
PLANTED_STEPS: Final = 200


class Planted(NamedTuple):
    """A defect: attributes that are replaced, and where walks notice it."""

    what: str
    replaced: Sequence[tuple[Any, str, Any]]
    setup: TierSetup = PLAIN


def swapped(component: HostTier, nodes: Sequence[Node], digests: Any = None) -> None:
    links = [node.component_data[component.index].host_link for node in nodes]
    for one, other in itertools.pairwise(links):
        if one is None or other is None or one.arriving is None or other.arriving is None:
            continue
        if len(one.arriving) == len(other.arriving):
            one.arriving, other.arriving = other.arriving, one.arriving
            break
    COMMIT_BACKUP(component, nodes, digests)


def nothing(component: HostTier, node: Node) -> None:
    return None


def nothing_pinned(component: HostTier, nodes: Sequence[Node]) -> None:
    return None


def arriving_stays_below(component: HostTier, prefix: Node, suffix: Node) -> Any:
    below = suffix.component_data[component.index].host_link
    assert below is not None
    arriving, below.arriving = below.arriving, None
    links = CUT_LINK(component, prefix, suffix)
    below.arriving = arriving
    return links


def believes(copy: PoolCopy, found: Any, first: int, direction: Direction, into: Any) -> None:
    if direction == "backup":
        SETTLE(copy, found, first, direction, into)


def no_seed(extra_key: str | None, cache_salt: str | None) -> None:
    return None


def one_page_too_few(component: HostTier, nodes: Sequence[Node], job: int | None = None) -> None:
    before = component.device_arriving
    COMMIT_LOAD(component, nodes, job)
    if component.device_arriving < before:
        component.device_arriving += component.page_size


def all_stored(done: Sequence[bool], owner: Sequence[int], pages: int) -> int:
    return pages


def gives_them_away(component: HostTier, nodes: Sequence[Node], job: int, *rest: Any) -> Any:
    moving = BEGIN_LOAD(component, nodes, job, *rest)
    component.allocator.release(moving.device)
    return moving


def always_well(actor: TieringActor, m: StartCopy, result: CopyResult) -> None:
    COPIED(actor, m, msgspec.structs.replace(result, ok=True, error=None, bad={}))


def shifted(component: FullHost, nodes: Sequence[Node], slots: Any, digests: Any = None) -> None:
    COMMIT_FETCH(component, nodes, np.roll(slots, component.page_size), digests)


def never_waits(tiers: TierState, node: Node, ready: Any) -> None:
    return None


def no_reload(component: FullHost, path: Sequence[Node], first: int) -> Any:
    need = LOAD_NEED(component, path, first)
    nodes = need.nodes[:1]
    return msgspec.structs.replace(need, nodes=nodes, slots=sum(node.length for node in nodes))


COMMIT_BACKUP = HostTier.commit_backup
CUT_LINK = HostTier.cut_link
SETTLE = PoolCopy.settle
COMMIT_LOAD = HostTier.commit_load
BEGIN_LOAD = HostTier.begin_load
COPIED = TieringActor._copied
COMMIT_FETCH = FullHost.commit_fetch
LOAD_NEED = FullHost.load_need

PLANTED: Final = (
    Planted("backups are attached to other nodes", [(HostTier, "commit_backup", swapped)]),
    Planted(
        "evictions ignore pins on the host",
        [(FullHost, "protect_host", nothing), (FullHost, "unprotect_host", nothing)],
    ),
    Planted(
        "loads pin nothing",
        [(HostTier, "pin_host", nothing_pinned), (HostTier, "unpin_host", nothing_pinned)],
    ),
    Planted(
        "backups do not lock the device",
        [(FullHost, "pin_device", nothing), (FullHost, "unpin_device", nothing)],
    ),
    Planted("splits lose what arrives", [(HostTier, "cut_link", arriving_stays_below)]),
    Planted("digests are not checked", [(PoolCopy, "settle", believes)], DAMAGED),
    Planted(
        "namespaces share a storage",
        [(op_fetch, "namespace_seed", no_seed), (op_store, "namespace_seed", no_seed)],
        WITH_STORAGE,
    ),
    Planted("arriving slots are miscounted", [(HostTier, "commit_load", one_page_too_few)]),
    Planted("a failed store counts", [(storage_jobs, "_leading", all_stored)], WITH_STORAGE),
    Planted("slots of loads are free", [(HostTier, "begin_load", gives_them_away)]),
    Planted("failed copies are served", [(TieringActor, "_copied", always_well)]),
    Planted("fetched pages go to other slots", [(FullHost, "commit_fetch", shifted)], WITH_STORAGE),
    Planted("backups do not wait for the device", [(TierState, "note_ready", never_waits)]),
    Planted("loads bring the first node alone", [(FullHost, "load_need", no_reload)]),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("defect", PLANTED, ids=lambda defect: defect.what.replace(" ", "-"))
def test_a_walk_notices_a_planted_defect(
    monkeypatch: pytest.MonkeyPatch, defect: Planted, loop_errors: list[str]
) -> None:
    for owner, attribute, broken in defect.replaced:
        monkeypatch.setattr(owner, attribute, broken)
    for seed in range(SEEDS):
        walked = TierWalk(defect.setup, seed)
        steps = range(PLANTED_STEPS)
        try:
            for at in steps:
                walked.run((at,))
            walked.close()
        except Exception as error:  # noqa: BLE001 - however it shows
            told = "".join(error.__notes__)
            break
    else:
        raise AssertionError(f"{SEEDS} walks of {PLANTED_STEPS} steps met nothing")
    assert f"seed {seed}, " in told
    loop_errors.clear()
    # It is the defect that was met: without it the same walk ends well.
    monkeypatch.undo()
    replay(defect.setup, seed, steps[: at + 1])


def test_a_failure_tells_the_shortest_walk_that_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TieringActor, "_copied", always_well)
    with pytest.raises(AssertionError) as caught:
        walk(PLAIN, 2, PLANTED_STEPS, shrink=3)
    line = caught.value.__notes__[-1]
    setup, seed, numbers = eval(line.removeprefix("replay"), {"TierSetup": TierSetup})
    assert setup == PLAIN
    assert len(numbers) < PLANTED_STEPS
    with pytest.raises(AssertionError):
        replay(setup, seed, numbers)
    monkeypatch.undo()
    replay(setup, seed, numbers)
