"""Each kind of fault does what it says to a message, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixtide.actors.envelope import Envelope
from radixtide.configs.errors import ActorFailed, CallTimeout, MailboxFull
from radixtide.configs.schema import LimitsConfig
from radixtide.simulation.injector import CANCELLED, InjectedCrash, InjectedError, Subject
from radixtide.simulation.plan import Fault
from support.actors import Boom, Grab, Look, Note, Relay, Stage, turns
from support.virtual import injector, now, pass_time, virtual

SOON_S = 0.01
"""Longer than what is not held back takes, in virtual seconds."""

RESEND_AFTER_S = LimitsConfig().resend_after_s


class FaultyStage(Stage):
    """A stage to which faults happen."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(direct=True)
        self.faults = injector(*faults)
        self.system.add_interceptor(self.faults)


async def note_all(at: Stage, *texts: str) -> list[int]:
    """Ask for all these notes at once."""
    answers: list[int] = await asyncio.gather(*(at.ask(at.cell, Note(text)) for text in texts))
    return answers


@virtual
async def test_a_dropped_message_is_sent_again_and_acts_once() -> None:
    at = FaultyStage(Fault(kind="drop", message="Note", count=1))
    began = now()
    assert await at.ask(at.cell, Note("once")) == 1
    assert at.keeper.texts == ["once"]
    assert now() - began >= RESEND_AFTER_S


@virtual
async def test_a_dropped_reply_is_given_again_and_the_message_acts_once() -> None:
    at = FaultyStage(Fault(kind="drop", message="Note", where="reply", count=1))
    began = now()
    assert await at.ask(at.cell, Note("once")) == 1
    assert at.keeper.texts == ["once"]
    assert now() - began >= RESEND_AFTER_S


@virtual
async def test_a_message_that_is_always_dropped_times_out() -> None:
    at = FaultyStage(Fault(kind="drop", message="Note"))
    with pytest.raises(CallTimeout):
        await at.ask(at.cell, Note("never"), timeout=5.0)
    assert at.keeper.texts == []


@virtual
async def test_a_delayed_message_is_overtaken() -> None:
    at = FaultyStage(Fault(kind="delay", message="Note", count=1, seconds=0.3))
    began = now()
    assert await note_all(at, "late", "early") == [2, 1]
    assert at.keeper.texts == ["early", "late"]
    assert 0.3 <= now() - began < 0.3 + SOON_S


@virtual
async def test_a_delayed_reply_comes_later_to_a_message_that_was_handled_at_once() -> None:
    at = FaultyStage(Fault(kind="delay", message="Note", where="reply", count=1, seconds=0.3))
    began = now()
    asked = asyncio.ensure_future(at.ask(at.cell, Note("one")))
    await pass_time(SOON_S)
    assert at.keeper.texts == ["one"]
    assert not asked.done()
    assert await asked == 1
    assert 0.3 <= now() - began < 0.3 + SOON_S


@virtual
async def test_a_delay_is_drawn_between_two_bounds() -> None:
    at = FaultyStage(Fault(kind="delay", message="Look", seconds=0.1, seconds_max=0.5))
    took = []
    for _ in range(50):
        began = now()
        await at.ask(at.cell, Look())
        took.append(now() - began)
    assert 0.1 <= min(took) < 0.15
    assert 0.45 < max(took) < 0.5 + SOON_S


@virtual
@pytest.mark.parametrize("where", ["request", "reply", "both"])
@pytest.mark.parametrize("seconds", [None, 0.2])
async def test_a_duplicate_acts_once(where: Any, seconds: float | None) -> None:
    at = FaultyStage(Fault(kind="duplicate", message="Note", where=where, seconds=seconds))
    assert await at.ask(at.cell, Note("once")) == 1
    await pass_time(1)
    assert at.keeper.texts == ["once"]
    assert await at.ask(at.cell, Note("twice")) == 2


@virtual
async def test_the_second_of_a_duplicate_may_come_later() -> None:
    at = FaultyStage(Fault(kind="duplicate", message="Look", seconds=0.5, count=1))
    await at.ask(at.cell, Look())
    assert at.faults.held == 1
    await pass_time(0.5 + SOON_S)
    assert at.faults.held == 0


@virtual
async def test_reordered_mail_lets_the_next_one_pass() -> None:
    at = FaultyStage(Fault(kind="reorder", message="Note", count=1, seconds=60.0))
    began = now()
    assert await note_all(at, "first", "second", "third") == [2, 1, 3]
    assert at.keeper.texts == ["second", "first", "third"]
    assert now() - began < SOON_S


@virtual
async def test_reordered_mail_that_nothing_follows_comes_in_time() -> None:
    at = FaultyStage(Fault(kind="reorder", message="Note", count=1, seconds=0.4))
    began = now()
    assert await note_all(at, "alone") == [1]
    assert 0.4 <= now() - began < 0.4 + SOON_S


@virtual
async def test_a_reordered_reply_lets_the_next_one_pass() -> None:
    at = FaultyStage(Fault(kind="reorder", message="Note", where="reply", count=1, seconds=60.0))
    order: list[str] = []

    async def ask(text: str) -> None:
        await at.ask(at.cell, Note(text))
        order.append(text)

    await asyncio.gather(ask("first"), ask("second"), ask("third"))
    assert at.keeper.texts == ["first", "second", "third"]
    assert order == ["second", "first", "third"]


@virtual
async def test_a_stall_holds_all_mail_of_its_receiver_in_order() -> None:
    at = FaultyStage(Fault(kind="stall", message="Look", count=1, seconds=2.5))
    began = now()
    looked = asyncio.ensure_future(at.ask(at.cell, Look()))
    await turns(1)
    assert await note_all(at, "a", "b", "c") == [1, 2, 3]
    assert await looked == []
    assert at.keeper.texts == ["a", "b", "c"]
    assert 2.5 <= now() - began < 2.5 + SOON_S


@virtual
async def test_a_stall_of_a_stalled_actor_loses_nothing_and_makes_it_no_longer() -> None:
    at = FaultyStage(Fault(kind="stall", message="Note", count=2, seconds=0.5))
    began = now()
    assert await note_all(at, "a", "b", "c") == [1, 2, 3]
    assert 0.5 <= now() - began < 0.5 + SOON_S
    assert at.faults.counts == {"stall": 2}


@virtual
async def test_a_stall_holds_nobody_elses_mail() -> None:
    at = FaultyStage(Fault(kind="stall", receiver="keeper", count=1, seconds=2.5))
    asked = asyncio.ensure_future(at.ask(at.cell, Note("slow")))
    await turns(1)
    began = now()
    assert await at.ask(at.boss, Note("quick")) == 1
    assert now() - began < SOON_S
    assert await asked == 1


@virtual
async def test_a_crash_before_the_handler_restarts_and_acts_once() -> None:
    at = FaultyStage(Fault(kind="crash_before", message="Note", count=1))
    assert await at.ask(at.cell, Note("once")) == 1
    assert at.keeper.texts == ["once"]
    assert [type(one) for one in at.keeper.restarted_with] == [InjectedCrash]


@virtual
async def test_a_crash_after_the_handler_restarts_and_acts_once() -> None:
    at = FaultyStage(Fault(kind="crash_after", message="Note", count=1))
    assert await at.ask(at.cell, Note("once")) == 1
    assert at.keeper.texts == ["once"]
    assert [type(one) for one in at.keeper.restarted_with] == [InjectedCrash]


@virtual
async def test_a_message_that_keeps_crashing_its_receiver_is_failed() -> None:
    at = FaultyStage(Fault(kind="crash_before", message="Look"))
    with pytest.raises(ActorFailed):
        await at.ask(at.cell, Look())
    assert await at.ask(at.cell, Note("goes on")) == 1


@virtual
async def test_a_killed_actor_is_restarted_with_its_mail() -> None:
    at = FaultyStage(Fault(kind="kill", message="Note", count=1))
    assert await note_all(at, "a", "b") == [1, 2]
    assert at.keeper.texts == ["a", "b"]
    assert [str(one) for one in at.keeper.restarted_with] == ["keeper was killed"]


@virtual
async def test_nobody_is_killed_after_healing() -> None:
    at = FaultyStage(Fault(kind="kill", message="Note"))
    asked = asyncio.ensure_future(at.ask(at.cell, Note("a")))
    await turns(1)
    assert at.faults.counts == {"kill": 1}
    at.faults.heal()
    assert await asked == 1
    assert at.keeper.restarted_with == []


@virtual
async def test_a_handler_error_is_the_answer_and_nothing_has_happened() -> None:
    at = FaultyStage(Fault(kind="handler_error", message="Grab", count=1))
    with pytest.raises(InjectedError, match="keeper refused Grab"):
        await at.ask(at.cell, Grab())
    assert at.keeper.free == [3, 2, 1]
    assert at.keeper.restarted_with == []
    assert await at.ask(at.cell, Grab()) == 1


@virtual
async def test_a_handler_error_of_a_plan_reaches_the_caller_who_takes() -> None:
    at = FaultyStage(Fault(kind="handler_error", message="Look", receiver="keeper"))
    with pytest.raises(InjectedError):
        await at.ask(at.boss, Relay((Look(), Note("not applied"))))
    assert at.keeper.texts == []


@virtual
async def test_what_an_operation_asks_after_it_has_changed_something_is_not_refused() -> None:
    at = FaultyStage(Fault(kind="handler_error", message="Look", receiver="keeper"))
    await at.ask(at.boss, Relay((Note("applied"), Look())))
    assert at.keeper.texts == ["applied"]


@virtual
async def test_nothing_that_applies_or_gives_is_refused() -> None:
    at = FaultyStage(Fault(kind="handler_error"))
    assert await at.ask(at.cell, Note("applies")) == 1
    assert await at.ask(at.cell, Look(), gives=True) == ["applies"]
    # Also not what a call asks for that gives: nobody might hear of it.
    assert await at.ask(at.boss, Relay((Look(),)), gives=True) == [["applies"]]
    at.system.tell(at.cell, Boom("told", times=0))
    await at.settled()
    assert at.keeper.texts == ["applies", "told"]


@virtual
async def test_a_cancelled_caller_leaves_a_call_that_takes_undone() -> None:
    at = FaultyStage(Fault(kind="cancel_caller", message="Grab", count=1))
    with pytest.raises(asyncio.CancelledError, match=CANCELLED):
        await at.ask(at.cell, Grab())
    await at.settled()
    assert sorted(at.keeper.free) == [1, 2, 3]
    assert await at.ask(at.cell, Grab()) in {1, 2, 3}


@virtual
async def test_a_cancelled_caller_leaves_a_call_that_gives_to_be_carried_out() -> None:
    at = FaultyStage(Fault(kind="cancel_caller", message="Note", count=1))
    with pytest.raises(asyncio.CancelledError, match=CANCELLED):
        await at.ask(at.cell, Note("given"), gives=True)
    await at.settled()
    assert at.keeper.texts == ["given"]


@virtual
async def test_a_caller_who_is_cancelled_as_its_answer_comes_leaves_nothing_taken() -> None:
    at = FaultyStage(Fault(kind="cancel_caller", message="Grab", where="reply", count=1))
    with pytest.raises(asyncio.CancelledError, match=CANCELLED):
        await at.ask(at.cell, Grab())
    assert sorted(at.keeper.free) == [2, 3]
    await at.settled()
    assert sorted(at.keeper.free) == [1, 2, 3]


@virtual
async def test_a_caller_who_has_its_answer_is_not_cancelled() -> None:
    at = FaultyStage(Fault(kind="cancel_caller", seconds=0.5))
    assert await at.ask(at.cell, Note("a")) == 1
    await pass_time(2.0)


@virtual
async def test_a_caller_who_has_given_up_is_not_cancelled() -> None:
    at = FaultyStage(
        Fault(kind="drop", message="Note", where="reply"),
        Fault(kind="cancel_caller", seconds=0.5),
    )
    with pytest.raises(CallTimeout):
        await at.ask(at.cell, Note("a"), timeout=0.3, gives=True)
    await pass_time(2.0)


@virtual
async def test_what_is_told_cancels_nobody() -> None:
    at = FaultyStage(Fault(kind="cancel_caller"))
    at.system.tell(at.cell, Note("told"))
    await pass_time(1.0)
    assert at.keeper.texts == ["told"]


@virtual
async def test_a_corrupt_message_is_lost_and_sent_again() -> None:
    at = FaultyStage(Fault(kind="corrupt", message="Note", where="both", count=2))
    began = now()
    assert await at.ask(at.cell, Note("once")) == 1
    assert at.keeper.texts == ["once"]
    assert now() - began >= 2 * RESEND_AFTER_S


@virtual
async def test_every_altered_byte_of_a_message_is_found() -> None:
    at = FaultyStage(Fault(kind="corrupt", message="Note", count=15))
    assert await at.ask(at.cell, Note("x" * 100)) == 1
    assert at.faults.counts == {"corrupt": 15}


@virtual
async def test_a_full_mailbox_refuses_calls_that_take_for_a_time() -> None:
    at = FaultyStage(Fault(kind="mailbox_full", message="Look", count=1, seconds=0.2))
    with pytest.raises(MailboxFull):
        await at.ask(at.cell, Look())
    with pytest.raises(MailboxFull):
        await at.ask(at.cell, Grab())
    assert at.keeper.free == [3, 2, 1]
    await pass_time(0.2 + SOON_S)
    assert await at.ask(at.cell, Grab()) == 1


@virtual
async def test_a_full_mailbox_has_room_for_what_gives() -> None:
    at = FaultyStage(Fault(kind="mailbox_full", seconds=0.2))
    assert await at.ask(at.cell, Note("given"), gives=True) == 1


@virtual
async def test_a_refused_call_leaves_no_timer_behind() -> None:
    at = FaultyStage(Fault(kind="mailbox_full", message="Look", seconds=0.0))
    for _ in range(3):
        with pytest.raises(MailboxFull):
            await at.ask(at.cell, Look(), timeout=0.5)
    # An answer, a second sending or a timeout of a refused call would be an error of the loop.
    await pass_time(5.0)
    assert at.cell.handled == 0


@virtual
async def test_the_first_fault_that_chooses_a_message_is_the_one_that_happens() -> None:
    seen: list[tuple[str, Subject]] = []
    at = Stage(direct=True)
    faults = injector(
        Fault(kind="delay", message="Look", seconds=0.2, count=1),
        Fault(kind="drop", message="Look", count=1),
        note=lambda fault, subject: seen.append((fault.kind, subject)),
    )
    at.system.add_interceptor(faults)
    await at.ask(at.cell, Look())
    await at.ask(at.cell, Look())
    assert [kind for kind, _ in seen] == ["delay", "drop"]
    assert all(isinstance(subject, Envelope) for _, subject in seen)
    assert faults.counts == {"delay": 1, "drop": 1}
    assert faults.fired == (1, 1)


@virtual
async def test_healing_lets_go_all_that_is_held_in_order_and_injects_nothing_more() -> None:
    at = Stage(direct=True, keepers=2)
    faults = injector(
        Fault(kind="delay", receiver="keeper", message="Note", count=2, seconds=500.0),
        Fault(kind="stall", receiver="keeper1", count=1, seconds=500.0),
        Fault(kind="reorder", receiver="boss", count=1, seconds=500.0),
        Fault(kind="mailbox_full", receiver="boss", message="Grab", seconds=500.0),
    )
    at.system.add_interceptor(faults)
    notes = asyncio.ensure_future(note_all(at, "a", "b", "c", "d"))
    boss = asyncio.ensure_future(at.ask(at.boss, Note("swapped")))
    looking = asyncio.ensure_future(at.ask(at.cells[1], Look()))
    await turns(3)
    with pytest.raises(MailboxFull):
        await at.ask(at.boss, Grab())
    assert faults.held >= 5
    began = now()
    faults.heal()
    assert faults.held == 0
    assert await notes == [3, 4, 1, 2]
    assert at.keeper.texts == ["c", "d", "a", "b"]
    assert await boss == 1
    assert await looking == []
    assert await at.ask(at.boss, Grab()) == 1
    assert now() - began < SOON_S
    assert faults.counts == {
        "delay": 2,
        "stall": 1,
        "reorder": 1,
        "mailbox_full": 1,
    }


@virtual
async def test_an_injector_that_is_not_active_lets_all_pass() -> None:
    at = Stage(direct=True)
    faults = injector(Fault(kind="drop"))
    faults.active = False
    at.system.add_interceptor(faults)
    assert await at.ask(at.cell, Note("a")) == 1
    assert faults.messages == 1
    assert not faults.counts
