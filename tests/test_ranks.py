"""Caches on two ranks, each in its own rhythm: the same tree, sizes and answers after each step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.ranks import difference, run_ranks

PLACE = "support.rank_scenarios"


def same_on_both(
    scenario: str, folder: Path, *, timeout_s: float = 110.0, **options: Any
) -> list[Any]:
    """Run a scenario on two ranks; they must report the same, which is returned."""
    name = f"{PLACE}:{scenario}"
    first, second = run_ranks(
        [name], folder, timeout_s=1000.0 if options["walks"][0]["steps"] > 50 else 110.0, **options
    )
    reports: list[Any] = first[name]
    assert not difference(reports, second[name])
    return reports


def walks(*, steps: int) -> list[dict[str, Any]]:
    """Return what is walked: each set of components that has one more thing that can differ."""
    kinds = [
        (("full", "mamba"), "write_back", False),
        (("full", "swa", "mamba"), "write_through", True),
        (("full", "swa"), "write_through_selective", True),
    ]
    return [
        {"components": list(components), "policy": policy, "stored": stored, "steps": steps}
        for components, policy, stored in kinds
    ]


@pytest.mark.slow
def test_two_ranks_with_different_timing_have_the_same_tree_after_every_step(
    tmp_path: Path,
) -> None:
    told = walks(steps=16)[:2]
    reports = same_on_both("many_calls", tmp_path, seed=7, failing=True, walks=told)
    assert len(reports) == 17 * len(told)
    for at in range(len(told)):
        counters = reports[17 * at + 16][-1]
        assert counters["backup_units"] > 0
        assert counters["load_units"] > 0


@pytest.mark.nightly
@pytest.mark.parametrize("failing", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_two_ranks_on_longer_walks(tmp_path: Path, seed: int, failing: bool) -> None:
    told = walks(steps=100)
    same_on_both("many_calls", tmp_path, timeout_s=1000.0, seed=seed, failing=failing, walks=told)
