"""What ranks do in the tests of their agreement; each function runs on every rank."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from radixtide import InvalidInput
from radixtide.actors.agreement import AgreementFailed, RanksDiverged
from support.actors import turns
from support.ranks import Rank

DEATH = 3


async def minima(rank: Rank) -> None:
    """Agree many times, each rank in a rhythm of its own."""
    agreement = rank.agreement()
    assert (agreement.rank, agreement.ranks) == (rank.rank, rank.ranks)
    shared, own = random.Random(5), random.Random(rank.rank)
    for _ in range(200):
        width, most = shared.randrange(9), shared.choice((1, 2**62))
        everybody = [[shared.randint(-most, most) for _ in range(width)] for _ in range(rank.ranks)]
        await turns(own.randrange(20))
        agreed = await agreement.minimum(everybody[rank.rank])
        assert agreed == [min(column) for column in zip(*everybody, strict=True)]
        rank.report(agreed)


async def at_once(rank: Rank) -> None:
    """One rank makes all its calls at once, the others one after the other."""
    agreement = rank.agreement()
    calls = [agreement.minimum([10 * at + rank.rank] * at) for at in range(6)]
    if rank.rank == 0:
        answers = await asyncio.gather(*calls)
    else:
        answers = [await call for call in calls]
    rank.report(answers)


async def other_lengths(rank: Rank) -> None:
    """One rank gives one value more; then all go on."""
    agreement = rank.agreement()
    await agreement.minimum([1, 2])
    with pytest.raises(RanksDiverged, match="one rank gave 2 values, another 3; rank") as error:
        await agreement.minimum([7] * (2 + rank.rank))
    assert f"rank {rank.rank} gave {2 + rank.rank}" in str(error.value)
    rank.report(await agreement.minimum([rank.rank]))


async def other_calls(rank: Rank) -> None:
    """One rank begins anew alone: what it says then is not taken for the same call."""
    agreement = rank.agreement()
    await agreement.minimum([1])
    if rank.rank == 0:
        agreement = rank.agreement()
    with pytest.raises(RanksDiverged, match="at its call 1, another at its call 2"):
        await agreement.minimum([1])
    rank.report("told")


async def not_blocked(rank: Rank) -> None:
    """Wait with a loop that goes on, or the other rank would never come."""
    agreement = rank.agreement()
    if rank.rank == 0:
        waiting = asyncio.ensure_future(agreement.minimum([4]))
        await turns(200)
        assert not waiting.done()
        rank.signal("alive")
        rank.report(await waiting)
    else:
        await rank.wait_for("alive")
        rank.report(await agreement.minimum([5]))


async def cancelled(rank: Rank) -> None:
    """Leave one call: the rank takes part all the same, and the caller hears of it then."""
    agreement = rank.agreement()
    if rank.rank == 0:
        leaving = asyncio.ensure_future(agreement.minimum([4]))
        waiting = asyncio.ensure_future(agreement.minimum([6]))
        await turns(3)
        for _ in range(3):
            leaving.cancel("left")
            await turns(50)
            assert not leaving.done()
        rank.signal("left")
        with pytest.raises(asyncio.CancelledError):
            await leaving
        # It is over on the other rank too, since that made its call.
        await rank.wait_for("agreed")
        rank.report([*await waiting, *await agreement.minimum([1])])
    else:
        await rank.wait_for("left")
        assert await agreement.minimum([3]) == [3]
        rank.signal("agreed")
        rank.report([*await agreement.minimum([5]), *await agreement.minimum([2])])


async def cancelled_and_failed(rank: Rank) -> None:
    """Leave a call that fails: its error is not lost in the loop's log."""
    agreement = rank.agreement(timeout_s=0.3)
    heard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: heard.append(said))
    if rank.rank == 0:
        leaving = asyncio.ensure_future(agreement.minimum([4]))
        await turns(3)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        del leaving
        await turns(3)
        assert heard == []
        with pytest.raises(AgreementFailed, match=r"within 0\.3 s"):
            await agreement.minimum([4])
        rank.signal("failed")
    else:
        await rank.wait_for("failed")
    rank.report("told")


async def late(rank: Rank) -> None:
    """Come after the deadline: nobody hangs, and both are told, then and later."""
    agreement = rank.agreement(timeout_s=0.5)
    await agreement.minimum([0])
    if rank.rank == 1:
        await rank.wait_for("given up")
    began = asyncio.get_running_loop().time()
    for _ in range(3):
        with pytest.raises(
            AgreementFailed, match=f"rank {rank.rank} of 2 could not agree"
        ) as error:
            await agreement.minimum([1])
        assert not isinstance(error.value, RanksDiverged)
    assert asyncio.get_running_loop().time() - began < 10
    rank.signal("given up")
    rank.report("told")


async def gone_between(rank: Rank) -> None:
    """Let a rank die between two agreements: the other hears at once, not at its deadline."""
    agreement = rank.agreement(timeout_s=60.0)
    await agreement.minimum([0])
    if rank.rank == 1:
        await rank.wait_for("agreed")
        os._exit(DEATH)
    rank.signal("agreed")
    for _ in range(2):
        with pytest.raises(AgreementFailed, match="one is gone"):
            await asyncio.wait_for(agreement.minimum([1]), 30)
    rank.report("told")


async def gone_meanwhile(rank: Rank) -> None:
    """Let a rank die while the other waits for it."""
    agreement = rank.agreement(timeout_s=60.0)
    if rank.rank == 1:
        await rank.wait_for("waiting")
        os._exit(DEATH)
    waiting = asyncio.ensure_future(agreement.minimum([1]))
    await turns(20)
    rank.signal("waiting")
    with pytest.raises(AgreementFailed, match="one is gone"):
        await asyncio.wait_for(waiting, 30)
    rank.report("told")


async def bad_values(rank: Rank) -> None:
    """Give what is no int64, or too much: it is refused here, and costs no call."""
    agreement = rank.agreement(width=3)
    for bad in ([2**63], [-(2**63) - 1], ["1"], [None], [1, 2, 3, 4]):
        with pytest.raises(InvalidInput):
            await agreement.minimum(bad)  # type: ignore[arg-type]  # wrong on purpose
    ends = [2**63 - 1, -(2**63), 0]
    assert await agreement.minimum(ends) == ends
    assert await agreement.minimum([]) == []
    agreement.close()
    agreement.close()
    with pytest.raises(AgreementFailed, match="closed"):
        await agreement.minimum([1])
    rank.report("told")


async def closed_while_waiting(rank: Rank) -> None:
    """Close while a call is under way: that comes to its end."""
    agreement = rank.agreement()
    if rank.rank == 0:
        waiting = asyncio.ensure_future(agreement.minimum([1]))
        await turns(3)
        agreement.close()
        rank.signal("closed")
        assert await waiting == [1]
    else:
        await rank.wait_for("closed")
        assert await agreement.minimum([2]) == [1]
    rank.report("told")
