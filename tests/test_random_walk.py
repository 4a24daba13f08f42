"""Long random walks over every call, each step compared with a plain model and audited.

``RADIXTIDE_WALK_SEED`` and ``RADIXTIDE_WALK_STEPS`` repeat or lengthen a walk: a failure prints its
setup, seed and step.
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from radixtide.actors.state import State
from radixtide.components.full import FullComponent
from radixtide.components.policies import Lru
from radixtide.tree.ghosts import GhostList
from radixtide.tree.radix_tree import RadixTree
from support.driver import Setup
from support.walk import Walk

POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")
SHAPES = list(itertools.product((1, 4, 16), (False, True)))
STEPS = int(os.environ.get("RADIXTIDE_WALK_STEPS", "1100"))
SEED = os.environ.get("RADIXTIDE_WALK_SEED")


def walk(setup: Setup, seed: int, steps: int, longest: int = 6) -> list[str]:
    """Walk, give everything back, and return the transcript of all answers."""
    walked = Walk(setup, seed, longest)
    walked.run(steps)
    walked.close()
    return walked.steps.transcript


def both_deliveries_agree(setup: Setup, seed: int, steps: int, longest: int = 6) -> None:
    """Take the same walk under both deliveries; every answer must be the same, letter by letter."""
    direct = walk(replace(setup, delivery="direct"), seed, steps, longest)
    queued = walk(replace(setup, delivery="queued"), seed, steps, longest)
    for at, (one, other) in enumerate(zip(direct, queued, strict=True)):
        assert one == other, f"{setup}, seed {seed}: answer {at} depends on the delivery"


@pytest.mark.slow
@pytest.mark.parametrize(("page", "bigram"), SHAPES)
def test_a_walk_agrees_with_the_model_and_does_not_depend_on_delivery(
    page: int, bigram: bool
) -> None:
    both_deliveries_agree(Setup(page=page, bigram=bigram), int(SEED or 1), STEPS)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_walk_agrees_with_the_model_under_every_policy(policy: str) -> None:
    walk(Setup(page=2, pages=12, policy=policy, budget_pages=2), int(SEED or 3), STEPS // 4)


@pytest.mark.parametrize("pages", [1, 2, 3])
def test_a_walk_in_a_pool_of_a_few_pages_agrees_with_the_model(pages: int) -> None:
    setup = Setup(page=2, pages=pages, budget_pages=1)
    both_deliveries_agree(setup, int(SEED or 2), STEPS // 4, longest=3)


def test_a_walk_makes_every_call_and_meets_every_outcome() -> None:
    seen = Counter(line.split("(")[0].strip() for line in walk(Setup(), int(SEED or 1), 3000))
    for call in ("match", "insert", "allocate", "free", "evict", "lock", "unlock", "hold", "pin"):
        assert any(line.startswith(call) for line in seen), call
    for refused in (
        "allocate OutOfSlots",
        "free DoubleFree",
        "free SlotError",
        "insert SlotError",
        "insert InvalidInput",
        "lock StaleNode",
        "unlock ReceiptReleased",
        "pin PinRefused",
        "start InvalidRequest",
        "finish InvalidRequest",
        "reset Busy",
    ):
        assert seen[refused], refused


def _created(policy: Lru, node: Any) -> int:
    return int(node.created)


def _no_lock(component: FullComponent, node: Any) -> None:
    return None


def _knows_nothing(ghosts: GhostList, parent: Any, edge: bytes) -> bool:
    return False


def _split_late(tree: RadixTree, node: Any, units: int) -> Any:
    prefix = _SPLIT(tree, node, units)
    node.touch = prefix.touch = tree.clock + 1
    return prefix


def _hit_twice(state: State, path: list[Any], hits_beyond: int) -> int:
    return _TOUCH(state, path, hits_beyond=0)


_SPLIT, _TOUCH = RadixTree.split, State.touch


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Lru, "key", _created),
        (FullComponent, "acquire_component_lock", _no_lock),
        (GhostList, "knows", _knows_nothing),
        (RadixTree, "split", _split_late),
        (State, "touch", _hit_twice),
    ],
    ids=["eviction-order", "locks", "miss-reasons", "access-times", "hit-counts"],
)
def test_a_walk_notices_a_planted_defect(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Any
) -> None:
    monkeypatch.setattr(owner, name, broken)
    walked = Walk(Setup(), seed=1)
    with pytest.raises(AssertionError) as caught:
        walked.run(2000)
    assert "seed 1, step" in "".join(caught.value.__notes__)


NIGHTLY_STEPS = int(os.environ.get("RADIXTIDE_WALK_STEPS", "5300"))
"""Times 56 setups and two deliveries: 600 thousand steps."""


@pytest.mark.nightly
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("page", "bigram"), SHAPES)
def test_a_long_walk_agrees_with_the_model_under_every_policy(
    page: int, bigram: bool, policy: str
) -> None:
    seed = int(SEED) if SEED else random.SystemRandom().randrange(2**32)
    setup = Setup(page=page, bigram=bigram, policy=policy, budget_pages=3)
    both_deliveries_agree(setup, seed, NIGHTLY_STEPS)


@pytest.mark.nightly
@pytest.mark.parametrize("policy", POLICIES)
def test_a_long_walk_in_a_large_pool_agrees_with_the_model(policy: str) -> None:
    seed = int(SEED) if SEED else random.SystemRandom().randrange(2**32)
    setup = Setup(page=4, pages=400, policy=policy, budget_pages=40, settle_every=25)
    both_deliveries_agree(setup, seed, NIGHTLY_STEPS, longest=14)
