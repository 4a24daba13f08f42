"""Agreement of ranks: real gloo between real processes, and what each hears when one fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixtide import InvalidInput
from radixtide.actors.agreement import Agreement, Alone, GlooAgreement
from support.agreement_scenarios import DEATH
from support.ranks import run_ranks

PLACE = "support.agreement_scenarios"

CALM = (
    "minima",
    "at_once",
    "other_lengths",
    "other_calls",
    "not_blocked",
    "cancelled",
    "cancelled_and_failed",
    "late",
    "bad_values",
    "closed_while_waiting",
)
"""What both ranks survive, so that one pair of processes does it all."""

Told = Callable[[str], list[list[Any]]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """Return a function that tells what two ranks reported of a calm scenario."""
    scenarios = [f"{PLACE}:{name}" for name in CALM]
    ranks = run_ranks(scenarios, tmp_path_factory.mktemp("ranks"))
    return lambda name: [reports[f"{PLACE}:{name}"] for reports in ranks]


async def test_one_rank_agrees_with_itself_and_keeps_nothing_of_the_callers() -> None:
    alone: Agreement = Alone()
    said = [3, -1]
    agreed = await alone.minimum(said)
    assert agreed == said
    assert agreed is not said
    assert (alone.rank, alone.ranks) == (0, 1)
    alone.close()


def test_without_a_group_there_is_no_agreement() -> None:
    with pytest.raises(InvalidInput, match="init_process_group"):
        GlooAgreement()


@pytest.mark.parametrize("fields", [{"timeout_s": 0}, {"timeout_s": float("nan")}, {"width": 0}])
def test_limits_that_are_not_positive_are_refused(fields: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match="must be positive"):
        GlooAgreement(**fields)  # type: ignore[arg-type]  # some of them are whole


@pytest.mark.slow
def test_two_ranks_hear_the_minimum_whatever_their_rhythm(told: Told) -> None:
    first, second = told("minima")
    assert first == second
    assert len(first) == 200


@pytest.mark.nightly
def test_three_ranks_hear_the_minimum(tmp_path: Path) -> None:
    first, second, third = run_ranks([f"{PLACE}:minima"], tmp_path, ranks=3)
    assert first == second == third
    assert len(first[f"{PLACE}:minima"]) == 200


@pytest.mark.slow
def test_calls_made_at_once_run_in_their_order(told: Told) -> None:
    assert told("at_once") == [[[[10 * at] * at for at in range(6)]]] * 2


@pytest.mark.slow
def test_other_numbers_of_values_are_an_error_on_all_ranks_and_no_hang(told: Told) -> None:
    assert told("other_lengths") == [[[0]], [[0]]]


@pytest.mark.slow
def test_answers_of_different_calls_are_not_mixed(told: Told) -> None:
    assert told("other_calls") == [["told"], ["told"]]


@pytest.mark.slow
def test_the_loop_goes_on_while_a_rank_waits(told: Told) -> None:
    assert told("not_blocked") == [[[4]], [[4]]]


@pytest.mark.slow
def test_a_cancelled_call_takes_part_and_ends_with_the_collective(told: Told) -> None:
    assert told("cancelled") == [[[5, 1]], [[5, 1]]]


@pytest.mark.slow
def test_the_error_of_a_cancelled_call_is_heard_of_by_the_next(told: Told) -> None:
    assert told("cancelled_and_failed") == [["told"], ["told"]]


@pytest.mark.slow
def test_a_rank_that_is_late_fails_the_agreement_on_both_for_good(told: Told) -> None:
    assert told("late") == [["told"], ["told"]]


@pytest.mark.slow
def test_what_can_not_be_sent_is_refused_and_costs_no_call(told: Told) -> None:
    assert told("bad_values") == [["told"], ["told"]]


@pytest.mark.slow
def test_closing_lets_what_is_under_way_come_to_its_end(told: Told) -> None:
    assert told("closed_while_waiting") == [["told"], ["told"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "when", ["gone_meanwhile", pytest.param("gone_between", marks=pytest.mark.nightly)]
)
def test_a_rank_that_dies_is_noticed_before_the_deadline(tmp_path: Path, when: str) -> None:
    survivor, _ = run_ranks([f"{PLACE}:{when}"], tmp_path, dying={1: DEATH}, survivor=True)
    assert survivor[f"{PLACE}:{when}"] == ["told"]
