"""The life of an actor system: start, stop, and what becomes of mail that waits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixtide.actors.cell import DEAD_MAX
from radixtide.configs.errors import CacheClosed, CallTimeout
from support.actors import Grab, Look, MakeStage, Note, Relay, Stage, turns, until
from support.interceptors import Stall


async def test_actors_start_in_order_and_stop_in_reverse(
    make_stage: MakeStage, loops: None
) -> None:
    at = make_stage(keepers=2)
    at.system.stop()
    assert at.log == [
        "keeper starts",
        "keeper1 starts",
        "boss starts",
        "boss stops",
        "keeper1 stops",
        "keeper stops",
    ]


async def test_stopping_twice_stops_once(make_stage: MakeStage) -> None:
    at = make_stage()
    at.system.stop()
    at.system.stop()
    assert at.log.count("keeper stops") == 1


async def test_mail_that_waits_at_the_stop_is_answered_with_cache_closed() -> None:
    at = Stage(direct=False)
    waiting = [
        at.system.ask(at.cell, Note("a"), 20.0),
        at.system.ask(at.cell, Note("b"), 20.0, gives=True),
        at.system.ask(at.boss, Relay((Look(),)), 20.0),
    ]
    at.system.stop()
    for reply in waiting:
        with pytest.raises(CacheClosed, match="closed before the call was handled"):
            await reply.wait()
    await turns(10)
    assert at.keeper.texts == []


async def test_a_conversation_that_waits_at_the_stop_is_answered_with_cache_closed() -> None:
    at = Stage(direct=False)
    stall = Stall("keeper")
    at.system.add_interceptor(stall)
    reply = at.system.ask(at.boss, Relay((Look(), Note("never"))), 20.0)
    await until(lambda: at.boss.exchange is not None)
    at.system.stop()
    with pytest.raises(CacheClosed):
        await reply.wait()
    stall.release()
    await turns(10)
    assert at.keeper.texts == []


async def test_conversations_that_were_set_aside_are_answered_with_cache_closed() -> None:
    at = Stage(direct=False, stall_after_s=1e-6)
    at.system.add_interceptor(Stall("keeper"))
    reply = at.system.ask(at.boss, Relay((Look(),)), 20.0)
    await until(lambda: bool(at.boss.stalled))
    at.system.stop()
    with pytest.raises(CacheClosed):
        await reply.wait()


async def test_a_stopped_actor_refuses_mail_at_once(make_stage: MakeStage) -> None:
    at = make_stage()
    at.system.stop()
    with pytest.raises(CacheClosed):
        at.system.ask(at.cell, Note("late"), 20.0)
    with pytest.raises(CacheClosed):
        at.system.ask(at.boss, Note("late"), 20.0, gives=True)
    assert not at.cell.statistics().alive


async def test_each_refusal_of_a_stopped_actor_is_an_error_of_its_own(
    make_stage: MakeStage,
) -> None:
    at = make_stage()
    at.system.stop()

    def refused() -> BaseException:
        with pytest.raises(CacheClosed) as caught:
            at.system.ask(at.cell, Look(), 20.0)
        return caught.value

    # An error raised twice would carry the traceback of everybody who ever got it.
    assert refused() is not refused()


async def test_the_deadline_of_a_call_that_takes_withdraws_it() -> None:
    at = Stage(direct=False)
    stall = Stall("keeper")
    at.system.add_interceptor(stall)
    with pytest.raises(CallTimeout, match=r"Note was not answered by keeper within 0\.01 s; it"):
        await at.ask(at.cell, Note("never"), timeout=0.01)
    stall.release()
    await turns(10)
    assert at.keeper.texts == []


async def test_the_deadline_of_a_call_that_gives_leaves_it_to_be_carried_out() -> None:
    at = Stage(direct=False)
    stall = Stall("keeper")
    at.system.add_interceptor(stall)
    with pytest.raises(CallTimeout, match="do not give again"):
        await at.ask(at.cell, Note("given"), timeout=0.01, gives=True)
    stall.release()
    await until(lambda: at.keeper.texts == ["given"])


async def test_calls_given_up_leave_the_mailbox_of_an_actor_that_handles_nothing() -> None:
    at = Stage(direct=False)
    stall = Stall("keeper")
    at.system.add_interceptor(stall)
    waiting = [asyncio.ensure_future(at.ask(at.boss, Relay((Note("first"),)), gives=True))]
    await until(lambda: at.boss.busy)
    for text in ("second", "third", "fourth"):
        lost = [asyncio.ensure_future(at.ask(at.boss, Relay((Look(),)))) for _ in range(200)]
        waiting.append(asyncio.ensure_future(at.ask(at.boss, Relay((Note(text),)), gives=True)))
        await turns(3)
        for one in lost:
            one.cancel()
        await asyncio.gather(*lost, return_exceptions=True)
        assert at.boss.waiting <= len(waiting) + DEAD_MAX
    stall.release()
    await asyncio.gather(*waiting)
    await at.settled()
    assert at.keeper.texts == ["first", "second", "third", "fourth"]
    assert not at.boss.waiting


async def test_cancelling_a_call_that_takes_undoes_it_at_every_turn(loops: None) -> None:
    for steps in range(8):
        at = Stage(direct=False)
        task = asyncio.ensure_future(at.ask(at.cell, Grab()))
        await turns(steps)
        task.cancel()
        result: Any = (await asyncio.gather(task, return_exceptions=True))[0]
        await at.settled()
        kept = [] if isinstance(result, asyncio.CancelledError) else [result]
        assert sorted(at.keeper.free + kept) == [1, 2, 3]


async def test_cancelling_a_call_that_gives_carries_it_out_at_every_turn() -> None:
    for steps in range(1, 8):
        at = Stage(direct=False)
        task = asyncio.ensure_future(at.ask(at.boss, Relay((Note("given"),)), gives=True))
        await turns(steps)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await at.settled()
        assert at.keeper.texts == ["given"]


async def test_the_mode_of_asyncio_that_looks_for_mistakes_finds_none(
    make_stage: MakeStage, no_blocking: None
) -> None:
    asyncio.get_running_loop().set_debug(True)
    at = make_stage(keepers=2)
    assert await at.ask(at.boss, Relay((Note("a"), Look()))) == [1, ["a"]]
    at.system.stop()
