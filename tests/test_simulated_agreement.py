"""Ranks on one loop: the agreement of a group of processes, at drawn moments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

import pytest

from radixtide.actors.agreement import Agreement, AgreementFailed, RanksDiverged
from radixtide.configs.errors import InvalidInput
from radixtide.simulation.agreement import SimulatedAgreement, agreements
from radixtide.simulation.loop import SimulatedLoop
from radixtide.simulation.plan import Operation
from radixtide.tiers.copy_engine import CopyJob

T = TypeVar("T")
SEEDS = range(6)


class Late:
    """Says how late a rank is."""

    def __init__(self, *seconds: float) -> None:
        self.seconds = seconds

    def skew(self, rank: int) -> float:
        return self.seconds[rank]

    def copy(self, job: CopyJob) -> None:
        raise AssertionError("this is no engine")

    def storage(self, operation: Operation, count: int) -> None:
        raise AssertionError("this is no store")

    def refuses_host(self, component: str) -> bool:
        raise AssertionError("this has no host memory")


def with_ranks(
    seed: int,
    ranks: int,
    work: Callable[[SimulatedLoop, list[SimulatedAgreement]], Coroutine[Any, Any, T]],
    **options: Any,
) -> T:
    """Return what `work` came to with the agreements of a group."""
    loop = SimulatedLoop(seed)
    result = loop.run(work(loop, agreements(loop, ranks, **options)))
    assert loop.errors == []
    return result


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_hear_the_minimum_whatever_their_rhythm(seed: int, ranks: int) -> None:
    async def work(loop: SimulatedLoop, group: list[SimulatedAgreement]) -> None:
        shared = Random(seed)
        calls = [
            [[shared.randint(-(2**62), 2**62) for _ in range(width)] for _ in range(ranks)]
            for width in (shared.randrange(9) for _ in range(50))
        ]

        async def one(rank: int) -> list[list[int]]:
            own, agreement = Random(rank), group[rank]
            assert (agreement.rank, agreement.ranks) == (rank, ranks)
            heard = []
            for said in calls:
                await asyncio.sleep(own.choice((0.0, 0.0001, 0.1)))
                heard.append(await agreement.minimum(said[rank]))
            return heard

        heard = await asyncio.gather(*map(one, range(ranks)))
        wanted = [[min(column) for column in zip(*said, strict=True)] for said in calls]
        assert heard == [wanted] * ranks

    with_ranks(seed, ranks, work)


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_made_at_once_take_part_in_their_order(seed: int) -> None:
    async def work(loop: SimulatedLoop, group: list[SimulatedAgreement]) -> None:
        at_once = []
        for at in range(6):
            at_once.append(asyncio.ensure_future(group[0].minimum([10 * at] * at)))
            # Tasks that are made at once begin in a drawn order here.
            await asyncio.sleep(1e-3)
        assert group[0].waiting == 6
        one_by_one = [await group[1].minimum([10 * at + 1] * at) for at in range(6)]
        assert await asyncio.gather(*at_once) == one_by_one == [[10 * at] * at for at in range(6)]

    with_ranks(seed, 2, work)


def test_an_answer_is_a_list_of_its_own() -> None:
    async def work(loop: SimulatedLoop, group: list[SimulatedAgreement]) -> None:
        said = [3, -1]
        calls = [asyncio.ensure_future(one.minimum(said)) for one in group]
        await asyncio.sleep(0)
        said[0] = -5
        first, second = await asyncio.gather(*calls)
        assert first == second
        assert first is not second

    with_ranks(1, 2, work)


@pytest.mark.parametrize("seed", SEEDS)
def test_other_numbers_of_values_are_an_error_on_all_ranks_and_they_go_on(seed: int) -> None:
    async def work(loop: SimulatedLoop, group: list[SimulatedAgreement]) -> None:
        async def one(agreement: Agreement) -> None:
            with pytest.raises(RanksDiverged, match="one rank gave 2 values, another 3; rank") as e:
                await agreement.minimum([7] * (2 + agreement.rank))
            assert f"rank {agreement.rank} gave {2 + agreement.rank}" in str(e.value)
            assert await agreement.minimum([agreement.rank]) == [0]

        await asyncio.gather(*map(one, group))

    with_ranks(seed, 2, work)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cancelled_call_takes_part_and_ends_with_the_others(seed: int) -> None:
    async def work(loop: SimulatedLoop, group: list[SimulatedAgreement]) -> None:
        call = asyncio.ensure_future(group[0].minimum([5]))
        for _ in range(3):
            await asyncio.sleep(0.01)
            call.cancel()
        await asyncio.sleep(0.01)
        assert not call.done()
        other = asyncio.ensure_future(group[1].minimum([6]))
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await other == [5]
        both = await asyncio.gather(*(one.minimum([one.rank]) for one in group))
        assert both == [[0], [0]]

    with_ranks(seed, 2, work)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_rank_that_does_not_come_fails_the_agreement_for_good(seed: int) -> None:
    async def work(loop: SimulatedLoop, group: list[SimulatedAgreement]) -> None:
        begun = loop.time()
        waiting = [group[at].minimum([1]) for at in (0, 0, 2)]
        heard = await asyncio.gather(*waiting, return_exceptions=True)
        assert 4.9 < loop.time() - begun < 5.1
        for error in heard:
            assert isinstance(error, AgreementFailed)
            assert r"ranks [1] of 3 did not come to call 1 within 5 s" in str(error)
        for one in group:
            with pytest.raises(AgreementFailed, match="make a new group"):
                await one.minimum([1])

    with_ranks(seed, 3, work, timeout_s=5.0)


def test_a_rank_comes_as_late_as_faults_say() -> None:
    async def work(loop: SimulatedLoop, group: list[SimulatedAgreement]) -> float:
        begun = loop.time()
        answers = await asyncio.gather(*(one.minimum([one.rank]) for one in group))
        assert answers == [[0], [0]]
        return loop.time() - begun

    assert 3.0 < with_ranks(1, 2, work, faults=Late(0.0, 3.0)) < 3.1
    assert with_ranks(1, 2, work) < 0.1


def test_a_closed_agreement_ends_what_is_under_way_and_begins_nothing() -> None:
    async def work(loop: SimulatedLoop, group: list[SimulatedAgreement]) -> None:
        calls = [asyncio.ensure_future(one.minimum([one.rank])) for one in group]
        await asyncio.sleep(0)
        for one in group:
            one.close()
            one.close()
        assert await asyncio.gather(*calls) == [[0], [0]]
        with pytest.raises(AgreementFailed, match="closed"):
            await group[0].minimum([1])

    with_ranks(1, 2, work)


@pytest.mark.parametrize("values", [[2**63], [-(2**63) - 1], ["1"], [None]])
def test_what_can_not_be_sent_is_refused_and_costs_no_call(values: list[Any]) -> None:
    async def work(loop: SimulatedLoop, group: list[SimulatedAgreement]) -> None:
        with pytest.raises(InvalidInput, match="int64"):
            await group[0].minimum(values)
        assert await asyncio.gather(*(one.minimum([4]) for one in group)) == [[4], [4]]

    with_ranks(1, 2, work)


@pytest.mark.parametrize("fields", [{"ranks": 0}, {"ranks": 2, "timeout_s": 0.0}])
def test_groups_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        agreements(SimulatedLoop(1), **fields)


def test_one_seed_is_one_course_of_events() -> None:
    async def work(loop: SimulatedLoop, group: list[SimulatedAgreement]) -> list[float]:
        times = []

        async def one(agreement: Agreement) -> None:
            for _ in range(5):
                await agreement.minimum([1])
                times.append(loop.time())

        await asyncio.gather(*map(one, group))
        return times

    assert with_ranks(1, 2, work) == with_ranks(1, 2, work) != with_ranks(2, 2, work)
