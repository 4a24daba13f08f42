"""Caches on two ranks, each in its own rhythm: the same tree, sizes and answers after each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.ranks import difference, run_ranks

PLACE = "support.rank_scenarios"


def same_on_both(scenario: str, folder: Path, **options: Any) -> list[Any]:
    """Run a scenario on two ranks; they must report the same, which is returned."""
    name = f"{PLACE}:{scenario}"
    first, second = run_ranks([name], folder, timeout_s=110.0, **options)
    reports: list[Any] = first[name]
    assert not difference(reports, second[name])
    return reports


WALKS = [
    (("full",), "write_through", True, False),
    (("full", "swa"), "write_back", False, True),
    (("full", "mamba"), "write_through_selective", True, True),
    (("full", "swa", "mamba"), "write_through", True, True),
    (("full", "swa", "mamba"), "write_back", True, False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("components", "policy", "stored", "failing"), WALKS, ids=str)
def test_two_ranks_with_different_timing_have_the_same_tree_after_every_step(
    tmp_path: Path, components: tuple[str, ...], policy: str, stored: bool, failing: bool
) -> None:
    reports = same_on_both(
        "many_calls",
        tmp_path,
        components=list(components),
        policy=policy,
        stored=stored,
        failing=failing,
        seed=len(policy) + len(components),
        steps=40,
    )
    assert len(reports) == 41
    counters = reports[-1][-1]
    assert counters["backup_units"] > 0
    assert counters["load_units"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("components", "policy", "stored", "failing"), WALKS, ids=str)
def test_two_ranks_on_longer_walks(
    tmp_path: Path, components: tuple[str, ...], policy: str, stored: bool, failing: bool, seed: int
) -> None:
    options = {"policy": policy, "stored": stored, "failing": failing, "seed": seed, "steps": 150}
    same_on_both("many_calls", tmp_path, components=list(components), **options)
