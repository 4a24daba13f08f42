"""Long random walks over hybrid caches, each step decided by a brute-force oracle and audited.

``RADIXTIDE_WALK_SEED`` and ``RADIXTIDE_WALK_STEPS`` repeat or lengthen a walk. A failure prints its
setup, seed and step, and ends with one line, ``replay(...)`` of ``support.oracle_replay``, that
repeats the shortest walk that was found to fail.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from zlib import crc32

import pytest

from support.oracle import FULL, MAMBA, SWA
from support.oracle_replay import walk
from support.oracle_setup import HybridSetup
from support.oracle_walk import OracleWalk

STEPS = int(os.environ.get("RADIXTIDE_WALK_STEPS", "120"))
NIGHTLY_STEPS = int(os.environ.get("RADIXTIDE_WALK_STEPS", "4000"))
SEED = os.environ.get("RADIXTIDE_WALK_SEED")


OUTCOMES = {
    "chunk repaired a window",
    "chunk was there in part",
    "copy",
    "donation skipped",
    "evicted for a copy",
    "evicted for a donation",
    "inner node lost its state",
    "inner node lost its window",
    "leaf went whole",
    "match beyond a gap",
    "match cut by a window",
    "match cut to a state",
    "no slot for a copy",
    "state of a finished request",
    "state of a running request",
    "state was there",
    "states capped",
    "window given up",
    "window released",
    "window repaired",
    "window repaired under a lock",
}


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


def test_walks_meet_every_outcome_that_is_not_to_be_missed() -> None:
    met: Counter[str] = Counter()
    tight = HybridSetup((FULL, SWA, MAMBA), 1, 2, pages=24, swa_pages=10, states=4, cap=2)
    buffer = replace(tight, page=4, window=7, states=7, extra_buffer=True)
    for setup in (tight, buffer, HybridSetup((FULL, MAMBA), 1, 0, states=2)):
        made = OracleWalk(replace(setup, audit_every=10), int(SEED or 5))
        made.run(range(800))
        made.close()
        met += made.steps.met
    assert set(met) == OUTCOMES


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
