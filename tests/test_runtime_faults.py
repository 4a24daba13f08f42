"""Faults in the runtime: crashes, restarts, lost and repeated messages."""

from __future__ import annotations

import asyncio

import pytest

from radixtide.actors import system as system_module
from radixtide.configs.errors import ActorFailed, CacheClosed, CallTimeout
from support.actors import (
    Boom,
    CrashOnReply,
    Grab,
    Look,
    MakeStage,
    Note,
    Planted,
    Relay,
    RelayAll,
    Stage,
    turns,
    until,
)
from support.interceptors import (
    Crash,
    CrashAfter,
    CrashBefore,
    Delay,
    DropFirst,
    DropReply,
    Duplicate,
    DuplicateReply,
)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for missing answers again after a moment, not after a second."""
    monkeypatch.setattr(system_module.ActorSystem, "resend_after_s", 0.001)


async def test_a_crashed_handler_is_restarted_and_gets_its_message_again(
    make_stage: MakeStage, loops: None
) -> None:
    at = make_stage()
    assert await at.ask(at.cell, Boom("survived", times=1)) == "survived"
    assert at.keeper.texts == ["survived"]
    assert [str(error) for error in at.keeper.restarted_with] == ["survived"]
    assert at.cell.statistics().restarts == 1


async def test_the_state_of_an_actor_survives_its_restart(make_stage: MakeStage) -> None:
    at = make_stage()
    await at.ask(at.cell, Note("before"))
    await at.ask(at.cell, Boom("again", times=1))
    assert await at.ask(at.cell, Look()) == ["before", "again"]


async def test_mail_that_waits_survives_a_restart_in_its_order() -> None:
    at = Stage(direct=False)
    boom = at.system.ask(at.cell, Boom("first", times=1), 20.0)
    notes = [at.system.ask(at.cell, Note(str(number)), 20.0) for number in range(3)]
    assert await boom.wait() == "first"
    assert await asyncio.gather(*(note.wait() for note in notes)) == [2, 3, 4]
    assert at.keeper.texts == ["first", "0", "1", "2"]


async def test_a_crash_before_the_handler_has_one_effect() -> None:
    at = Stage(direct=True)
    at.system.add_interceptor(CrashBefore("Note"))
    assert await at.ask(at.cell, Note("once")) == 1
    assert at.keeper.texts == ["once"]
    assert isinstance(at.keeper.restarted_with[0], Crash)


async def test_a_crash_after_the_handler_has_one_effect() -> None:
    at = Stage(direct=True)
    at.system.add_interceptor(CrashAfter("Note"))
    assert await at.ask(at.cell, Note("once")) == 1
    assert at.keeper.texts == ["once"]
    assert isinstance(at.keeper.restarted_with[0], Crash)


async def test_a_crash_after_a_told_message_has_one_effect() -> None:
    at = Stage(direct=True)
    crash = CrashAfter("Note")
    at.system.add_interceptor(crash)
    at.system.tell(at.cell, Note("once"))
    await until(lambda: crash.hits == 1 and at.system.quiet)
    assert at.keeper.texts == ["once"]


@pytest.mark.parametrize("plant", [CrashBefore, CrashAfter])
async def test_a_crash_of_the_asked_actor_does_not_disturb_a_conversation(
    plant: type[CrashBefore | CrashAfter],
) -> None:
    at = Stage(direct=False, keepers=2)
    at.system.add_interceptor(plant("Note", "keeper1"))
    assert await at.ask(at.boss, RelayAll(Note("once"))) == [1, 1]
    assert at.keepers[1].texts == ["once"]


async def test_a_crash_after_a_conversation_has_one_effect() -> None:
    at = Stage(direct=False)
    at.system.add_interceptor(CrashAfter("Relay"))
    assert await at.ask(at.boss, Relay((Note("once"),))) == [1]
    assert at.keeper.texts == ["once"]
    assert at.boss.statistics().restarts == 1


async def test_a_conversation_that_crashed_before_it_applied_anything_runs_anew(
    make_stage: MakeStage,
) -> None:
    at = make_stage()
    assert await at.ask(at.boss, CrashOnReply(Look(), times=1)) == "recovered"
    assert at.boss.statistics().restarts == 1


async def test_a_conversation_that_crashed_halfway_is_failed_and_does_not_run_again(
    make_stage: MakeStage,
) -> None:
    at = make_stage()
    restarted: list[str] = []
    at.system.on_restarted = lambda cell: restarted.append(cell.name)
    with pytest.raises(ActorFailed, match="CrashOnReply crashed actor boss") as failed:
        await at.ask(at.boss, CrashOnReply(Note("once")))
    assert isinstance(failed.value.__cause__, Planted)
    assert at.keeper.texts == ["once"]
    assert restarted == ["boss"]
    assert await at.ask(at.boss, Relay((Look(),))) == [["once"]]


async def test_a_message_that_keeps_crashing_its_actor_is_failed_to_its_sender(
    make_stage: MakeStage,
) -> None:
    at = make_stage(deliveries_max=3)
    with pytest.raises(ActorFailed, match="Boom crashed actor keeper") as failed:
        await at.ask(at.cell, Boom())
    assert isinstance(failed.value.__cause__, Planted)
    assert at.keeper.booms == 3
    assert await at.ask(at.cell, Note("fine")) == 1


async def test_a_poisonous_message_of_a_conversation_is_failed_to_the_conversation(
    make_stage: MakeStage,
) -> None:
    at = make_stage()
    with pytest.raises(ActorFailed, match="Boom crashed actor keeper"):
        await at.ask(at.boss, Relay((Boom(), Note("never"))))
    assert at.keeper.texts == []
    assert at.boss.statistics().failures == 0
    assert await at.ask(at.boss, Relay((Note("fine"),))) == [1]


async def test_a_poisonous_message_that_was_told_is_dropped_and_counted(
    make_stage: MakeStage,
) -> None:
    at = make_stage()
    at.system.tell(at.cell, Boom())
    await until(lambda: at.system.unheard_errors == 1)
    assert await at.ask(at.cell, Note("fine")) == 1


async def test_an_actor_that_crashes_too_often_stays_down_and_says_so(
    make_stage: MakeStage,
) -> None:
    at = make_stage(restarts_max=3, restart_window_s=1000.0, deliveries_max=1)
    for _ in range(3):
        with pytest.raises(ActorFailed, match="Boom crashed"):
            await at.ask(at.cell, Boom())
    with pytest.raises(ActorFailed):
        await at.ask(at.cell, Boom())
    stats = at.cell.statistics()
    assert (stats.alive, stats.failures, stats.restarts) == (False, 4, 3)
    with pytest.raises(ActorFailed, match="stays down: open a new cache"):
        await at.ask(at.cell, Note("too late"))
    assert at.log[-1] == "keeper stops"


async def test_mail_that_waits_for_an_actor_that_goes_down_is_failed() -> None:
    at = Stage(direct=False, restarts_max=0)
    boom = at.system.ask(at.cell, Boom(), 20.0)
    waiting = at.system.ask(at.cell, Note("behind"), 20.0)
    for pending in (boom, waiting):
        with pytest.raises(ActorFailed):
            await pending.wait()
    assert at.keeper.texts == []


async def test_a_conversation_that_needs_an_actor_that_is_down_fails_with_actor_failed(
    make_stage: MakeStage,
) -> None:
    at = make_stage(restarts_max=0)
    with pytest.raises(ActorFailed):
        await at.ask(at.cell, Boom())
    for _ in range(3):
        with pytest.raises(ActorFailed, match="actor keeper"):
            await at.ask(at.boss, Relay((Look(),)))
    assert await at.ask(at.boss, Note("alive")) == 1
    assert at.system.unheard_errors == 0


async def test_crashes_that_are_far_apart_do_not_add_up(make_stage: MakeStage) -> None:
    at = make_stage(restarts_max=1, restart_window_s=1e-9, deliveries_max=1)
    for _ in range(10):
        with pytest.raises(ActorFailed):
            await at.ask(at.cell, Boom())
    assert at.cell.statistics().alive
    assert at.cell.statistics().restarts == 10


async def test_the_owner_hears_of_every_restart(make_stage: MakeStage) -> None:
    at = make_stage()
    restarted: list[str] = []
    at.system.on_restarted = lambda cell: restarted.append(cell.name)
    await at.ask(at.cell, Boom(times=1))
    assert restarted == ["keeper"]


async def test_a_message_delivered_twice_acts_once_and_is_answered() -> None:
    at = Stage(direct=False)
    at.system.add_interceptor(Duplicate("Note", count=None))
    assert await at.ask(at.cell, Note("a")) == 1
    assert await at.ask(at.boss, Relay((Note("b"), Note("c")))) == [2, 3]
    at.system.tell(at.cell, Note("d"))
    await until(lambda: at.system.quiet)
    assert at.keeper.texts == ["a", "b", "c", "d"]


async def test_a_conversation_delivered_twice_runs_once() -> None:
    at = Stage(direct=False)
    at.system.add_interceptor(Duplicate("Relay"))
    assert await at.ask(at.boss, Relay((Note("a"),))) == [1]
    await until(lambda: at.system.quiet)
    assert at.keeper.texts == ["a"]
    assert at.boss_actor.texts == ["relayed"]


async def test_a_reply_delivered_twice_is_taken_once() -> None:
    at = Stage(direct=False)
    at.system.add_interceptor(DuplicateReply(count=None))
    assert await at.ask(at.boss, Relay((Grab(), Note("a")))) == [1, 1]
    await until(lambda: at.system.quiet)
    assert at.keeper.free == [3, 2]


async def test_a_lost_message_of_a_conversation_is_sent_again(soon: None, loops: None) -> None:
    at = Stage(direct=False, stall_after_s=1000.0)
    at.system.add_interceptor(DropFirst("Note", count=2))
    assert await at.ask(at.boss, Relay((Note("a"),))) == [1]
    assert at.keeper.texts == ["a"]


async def test_a_lost_reply_to_a_conversation_is_asked_for_again_and_acts_once(
    soon: None,
) -> None:
    at = Stage(direct=False, stall_after_s=1000.0)
    at.system.add_interceptor(DropReply("Note", count=2))
    assert await at.ask(at.boss, Relay((Note("a"),))) == [1]
    assert at.keeper.texts == ["a"]


async def test_a_lost_message_of_a_conversation_that_was_set_aside_is_sent_again(
    soon: None,
) -> None:
    at = Stage(direct=False, stall_after_s=1e-6)
    at.system.add_interceptor(DropFirst("Look"))
    assert await at.ask(at.boss, Relay((Look(), Note("a")))) == [[], 1]
    assert at.keeper.texts == ["a"]


async def test_a_lost_call_is_asked_for_again(soon: None) -> None:
    at = Stage(direct=False)
    at.system.add_interceptor(DropFirst("Note", count=2))
    assert await at.ask(at.cell, Note("a"), timeout=5.0) == 1
    assert at.keeper.texts == ["a"]


async def test_a_lost_answer_to_a_call_is_asked_for_again_and_acts_once(soon: None) -> None:
    at = Stage(direct=False)
    at.system.add_interceptor(DropReply("Note", count=2))
    assert await at.ask(at.cell, Note("a"), timeout=5.0) == 1
    assert at.keeper.texts == ["a"]


async def test_a_message_that_was_delayed_and_sent_again_acts_once(soon: None) -> None:
    at = Stage(direct=False, stall_after_s=1000.0)
    delay = Delay("Note", turns=500)
    at.system.add_interceptor(delay)
    assert await at.ask(at.boss, Relay((Note("a"),))) == [1]
    await until(lambda: delay.hits == 1 and at.system.quiet)
    assert at.keeper.texts == ["a"]


async def test_what_was_told_and_never_came_is_failed_when_the_actors_stop() -> None:
    at = Stage(direct=True)
    lost = DropFirst("Note")
    at.system.add_interceptor(lost)
    failed: list[str] = []
    for number in range(3):
        at.system.tell(at.cell, Note(str(number)), on_error=lambda m, _: failed.append(m.text))
    await turns(3)
    at.system.stop()
    await turns(2)
    assert failed == ["1", "2"]
    assert at.keeper.texts == []


async def test_no_answer_is_kept_once_everybody_has_it() -> None:
    at = Stage(direct=False)
    at.system.add_interceptor(Duplicate(count=None))
    at.system.add_interceptor(DuplicateReply(count=None))
    for number in range(20):
        await at.ask(at.boss, Relay((Note(str(number)), Look())))
        await at.ask(at.cell, Look())
    await until(lambda: at.system.quiet)
    assert at.cell.answered == {}
    assert at.boss.answered == {}


async def test_a_message_that_was_handled_in_its_last_delivery_is_answered() -> None:
    at = Stage(direct=False, deliveries_max=2)
    at.system.add_interceptor(CrashBefore("Grab"))
    at.system.add_interceptor(CrashAfter("Grab"))
    token = await at.ask(at.cell, Grab())
    assert sorted([*at.keeper.free, token]) == [1, 2, 3]
    assert at.cell.statistics().failures == 2


async def test_a_conversation_that_ended_in_its_last_delivery_is_answered() -> None:
    at = Stage(direct=False, deliveries_max=2)
    at.system.add_interceptor(CrashBefore("Relay"))
    at.system.add_interceptor(CrashAfter("Relay"))
    assert await at.ask(at.boss, Relay((Note("once"),))) == [1]
    assert at.keeper.texts == ["once"]


async def test_what_was_lost_on_its_way_to_an_actor_that_goes_down_fails(soon: None) -> None:
    at = Stage(direct=False, restarts_max=0, stall_after_s=1000.0)
    drop = DropFirst("Note", count=3)
    at.system.add_interceptor(drop)
    failed: list[BaseException] = []
    at.system.tell(at.cell, Note("told"), on_error=lambda _, error: failed.append(error))
    asked = at.system.ask(at.cell, Note("asked"), 20.0)
    relayed = at.system.ask(at.boss, Relay((Note("relayed"),)), 20.0)
    await until(lambda: drop.hits == 3)
    at.system.kill("keeper", Planted("for good"))
    for pending in (asked, relayed):
        with pytest.raises(ActorFailed, match="stays down"):
            await pending.wait()
    assert [type(error) for error in failed] == [ActorFailed]
    assert at.keeper.texts == []


async def test_a_lost_answer_of_an_actor_that_goes_down_is_given_all_the_same(soon: None) -> None:
    at = Stage(direct=False, restarts_max=0, stall_after_s=1000.0)
    drop = DropReply("Note")
    at.system.add_interceptor(drop)
    relayed = at.system.ask(at.boss, Relay((Note("a"),)), 20.0)
    await until(lambda: drop.hits == 1)
    at.system.kill("keeper", Planted("for good"))
    assert await relayed.wait() == [1]
    assert at.keeper.texts == ["a"]


async def test_what_was_lost_when_the_system_stops_is_refused(soon: None) -> None:
    at = Stage(direct=False)
    at.system.add_interceptor(DropFirst("Note"))
    asked = at.system.ask(at.cell, Note("a"), 20.0, gives=True)
    at.system.stop()
    with pytest.raises(CacheClosed):
        await asked.wait()


@pytest.mark.parametrize("leave", ["cancelled", "late", "cancelled as it fails"])
async def test_an_error_that_nobody_waits_for_any_more_is_logged(
    leave: str, caplog: pytest.LogCaptureFixture
) -> None:
    at = Stage(direct=True)
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        raise Planted("too late")

    task = at.system.own(work())
    limit = 0.001 if leave == "late" else None
    waiting = asyncio.ensure_future(at.system.attend(task, "work", limit))
    await turns(2)
    if leave == "late":
        with pytest.raises(CallTimeout, match="work was not over within"):
            await waiting
    elif leave == "cancelled as it fails":
        go.set()
        await until(task.done)
    waiting.cancel()
    go.set()
    await until(lambda: at.system.unheard_errors == 1)
    assert waiting.cancelled() or leave == "late"
    assert "work failed unheard: too late" in caplog.text


async def test_an_error_that_somebody_waits_for_is_not_logged() -> None:
    at = Stage(direct=True)

    async def work() -> None:
        raise Planted("in time")

    with pytest.raises(Planted):
        await at.system.attend(at.system.own(work()), "work", 20.0)
    await turns(3)
    assert at.system.unheard_errors == 0
