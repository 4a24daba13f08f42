"""Faults that users of other caches reported: ranks that differ (kind K12).

The table in test_fault_cases_of_backup.py says which case is where; random walks of two ranks are
in test_ranks.py, and what becomes of a rank that dies in test_agreement.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.ranks import difference, run_ranks

PLACE = "support.rank_scenarios"
CASES = ("less_memory", "nothing_pending", "less_fetched", "other_calls")

Told = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Return a function that tells what both ranks reported of a case, which is the same."""
    ranks = run_ranks([f"{PLACE}:{name}" for name in CASES], tmp_path_factory.mktemp("ranks"))

    def of(name: str) -> list[Any]:
        first, second = (reports[f"{PLACE}:{name}"] for reports in ranks)
        assert not difference(first, second)
        return first

    return of


@pytest.mark.slow
def test_k12_1_what_one_rank_has_no_room_for_is_backed_up_on_none(told: Told) -> None:
    """Eight pages of host memory on one rank, four on the other: the same tree on both."""
    reports = told("less_memory")
    assert len(reports) == 13
    assert all(report[3]["full host"]["size"] == 4 * 4 for report in reports)
    assert reports[-1][1] == "(0, 4)"


@pytest.mark.slow
def test_k12_2_a_step_is_one_collective_of_fixed_size_whatever_is_pending_where(
    told: Told,
) -> None:
    """One rank has a copy to report, the other has none yet: both agree as often, nothing ends."""
    reports = told("nothing_pending")
    assert [what for what, *_ in reports] == ["waits"] * 5 + ["done"]
    assert all("H" not in "".join(bits for _, _, bits in report[2]) for report in reports[:5])
    assert {bits for _, _, bits in reports[-1][2]} == {"DH"}


@pytest.mark.slow
def test_k12_3_of_what_arrived_on_the_ranks_all_use_the_least_and_give_the_rest_back(
    told: Told,
) -> None:
    """Eight pages here, five there: five are published on both, and no slot is lost."""
    reports = told("less_fetched")
    assert reports[-1][1] == str((5 * 4, (0, 5)))


@pytest.mark.slow
def test_k12_2_ranks_that_make_other_calls_are_told(told: Told) -> None:
    """A rank that is one call ahead is no silent divergence, and no hang."""
    assert told("other_calls") == ["told"]
