"""Delivery: order, mailboxes and their limits, batches, interceptors, statistics."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from radixtide.actors.envelope import Envelope, PassThrough
from radixtide.actors.system import PendingReply
from radixtide.configs.errors import ActorFailed, InvalidInput, MailboxFull
from support.actors import Boom, Look, MakeStage, Note, Refuse, Relay, Stage, turns, until
from support.interceptors import Recorder, Stall


async def test_messages_of_one_sender_are_handled_in_the_order_they_were_sent(
    make_stage: MakeStage, loops: None
) -> None:
    at = make_stage()
    waiting = []
    for number in range(200):
        if number % 3:
            at.system.tell(at.cell, Note(str(number)))
        else:
            reply = at.system.ask(at.cell, Note(str(number)), 20.0)
            if isinstance(reply, PendingReply):
                waiting.append(reply.wait())
    await asyncio.gather(*waiting)
    assert await at.ask(at.cell, Look()) == [str(number) for number in range(200)]


async def test_order_is_kept_when_an_interceptor_comes_and_goes(make_stage: MakeStage) -> None:
    at = make_stage()
    see = PassThrough()
    for number in range(60):
        if number == 20:
            at.system.add_interceptor(see)
        if number == 40:
            at.system.remove_interceptor(see)
        at.system.tell(at.cell, Note(str(number)))
    assert await at.ask(at.cell, Look()) == [str(number) for number in range(60)]


async def test_an_idle_actor_answers_in_the_stack_of_its_sender_when_delivery_is_direct() -> None:
    at = Stage(direct=True)
    assert at.system.ask(at.cell, Note("a"), 20.0) == 1
    assert at.system.ask(at.boss, Relay((Note("b"), Look())), 20.0) == [2, ["a", "b"]]


async def test_queued_delivery_never_answers_in_the_stack_of_its_sender() -> None:
    at = Stage(direct=False)
    reply = at.system.ask(at.cell, Note("a"), 20.0)
    assert isinstance(reply, PendingReply)
    assert at.keeper.texts == []
    assert await reply.wait() == 1


async def test_an_actor_with_mail_gets_new_mail_behind_it_even_when_delivery_is_direct() -> None:
    at = Stage(direct=True)
    see = PassThrough()
    at.system.add_interceptor(see)
    at.system.tell(at.cell, Note("first"))
    at.system.remove_interceptor(see)
    assert isinstance(at.system.ask(at.cell, Note("second"), 20.0), PendingReply)
    await until(lambda: len(at.keeper.texts) == 2)
    assert at.keeper.texts == ["first", "second"]
    assert at.system.ask(at.cell, Note("third"), 20.0) == 3


async def test_an_interceptor_forces_queues_and_its_removal_restores_direct_delivery() -> None:
    at = Stage(direct=True)
    record = Recorder()
    at.system.add_interceptor(record)
    reply = at.system.ask(at.boss, Relay((Note("a"),)), 20.0)
    assert isinstance(reply, PendingReply)
    assert await reply.wait() == [1]
    assert record.sent == [("Relay", "boss"), ("Note", "keeper")]
    assert record.handled == record.sent
    assert record.answered == [("Note", "keeper"), ("Relay", "boss")]
    at.system.remove_interceptor(record)
    assert at.system.ask(at.boss, Relay((Note("b"),)), 20.0) == [2]
    assert len(record.sent) == 2


async def test_interceptors_are_passed_in_the_order_in_which_they_were_added() -> None:
    at = Stage(direct=False)
    passed: list[str] = []

    class Named(PassThrough):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
            passed.append(self.name)
            deliver(envelope)

    for name in ("first", "second"):
        at.system.add_interceptor(Named(name))
    await at.ask(at.cell, Look())
    assert passed == ["first", "second"]


async def test_an_envelope_carries_sender_receiver_sequence_correlation_and_deadline() -> None:
    at = Stage(direct=False)
    record = Recorder()
    at.system.add_interceptor(record)
    now = at.system.loop.time()
    await at.ask(at.boss, Relay((Note("a"), Look())), timeout=7.0)
    call, note, look = record.envelopes
    assert (call.sender, call.receiver.name) == ("face", "boss")
    assert (note.sender, note.receiver.name) == ("boss", "keeper")
    assert call.sequence < note.sequence < look.sequence
    assert len({call.correlation, note.correlation, look.correlation}) == 3
    assert call.deadline is not None
    assert now + 7.0 <= call.deadline < now + 8.0


async def test_a_full_mailbox_refuses_calls_that_take_and_leaves_what_waits_alone() -> None:
    at = Stage(direct=False, mailbox_capacity=3)
    waiting = [at.system.ask(at.cell, Note(str(number)), 20.0) for number in range(3)]
    with pytest.raises(MailboxFull, match=r"3 messages wait for actor keeper"):
        at.system.ask(at.cell, Note("too many"), 20.0)
    assert await asyncio.gather(*(reply.wait() for reply in waiting)) == [1, 2, 3]
    assert at.keeper.texts == ["0", "1", "2"]
    assert await at.ask(at.cell, Note("later")) == 4


async def test_a_full_mailbox_has_room_for_calls_that_give_and_for_tells() -> None:
    at = Stage(direct=False, mailbox_capacity=2)
    for number in range(2):
        at.system.tell(at.cell, Note(str(number)))
    giving = at.system.ask(at.cell, Note("given"), 20.0, gives=True)
    at.system.tell(at.cell, Note("told"))
    assert await giving.wait() == 3
    await until(lambda: len(at.keeper.texts) == 4)
    assert at.keeper.texts == ["0", "1", "given", "told"]


async def test_a_long_mailbox_is_drained_in_batches_and_others_get_their_turn(
    loops: None,
) -> None:
    at = Stage(direct=False, batch=10)
    seen: list[int] = []
    for number in range(100):
        at.system.tell(at.cell, Note(str(number)))

    async def other() -> None:
        while len(at.keeper.texts) < 100:
            seen.append(len(at.keeper.texts))
            await asyncio.sleep(0)

    await other()
    # Between two turns of the other task at most one batch was handled.
    steps = [after - before for before, after in itertools.pairwise(seen)]
    assert steps
    assert max(steps) <= 10


async def test_actors_that_keep_each_other_busy_do_not_starve_a_task() -> None:
    at = Stage(direct=False, batch=4)
    alive = True

    def again(envelope: Envelope, reply: Any, error: BaseException | None) -> None:
        if alive:
            at.system.send(at.system.envelope("test", at.cell, Look(), gives=True, on_reply=again))

    for _ in range(8):
        at.system.send(at.system.envelope("test", at.cell, Look(), gives=True, on_reply=again))
    await turns(20)
    alive = False
    assert at.cell.handled >= 20


async def test_a_refusal_reaches_the_caller_and_harms_nobody(make_stage: MakeStage) -> None:
    at = make_stage()
    with pytest.raises(InvalidInput, match="refused on purpose"):
        await at.ask(at.cell, Refuse())
    assert await at.ask(at.cell, Note("a")) == 1
    assert at.cell.statistics().failures == 0


async def test_a_refusal_of_a_told_message_is_counted_and_logged(
    make_stage: MakeStage, caplog: pytest.LogCaptureFixture
) -> None:
    at = make_stage()
    at.system.tell(at.cell, Refuse())
    await until(lambda: at.system.unheard_errors == 1)
    assert "refused on purpose" in caplog.text


async def test_statistics_tell_what_was_handled_and_what_waits() -> None:
    at = Stage(direct=False, mailbox_capacity=9)
    stall = Stall("keeper", kind="Look")
    at.system.add_interceptor(stall)
    for number in range(5):
        at.system.tell(at.cell, Note(str(number)))
    stats = at.cell.statistics()
    assert (stats.name, stats.alive, stats.handled) == ("keeper", True, 0)
    assert (stats.mailbox_depth, stats.mailbox_depth_max, stats.mailbox_capacity) == (5, 5, 9)
    await until(lambda: at.cell.handled == 5)
    stats = at.cell.statistics()
    assert (stats.mailbox_depth, stats.mailbox_depth_max) == (0, 5)
    assert 0 < stats.wait_mean_s <= stats.wait_max_s
    assert 0 < stats.handling_mean_s <= stats.handling_max_s
    assert (stats.failures, stats.restarts) == (0, 0)
    assert list(at.system.statistics()) == ["keeper", "boss"]


async def test_statistics_sample_the_handling_time_of_direct_deliveries() -> None:
    at = Stage(direct=True)
    for number in range(200):
        at.system.tell(at.cell, Note(str(number)))
        at.system.tell(at.boss, Relay((Look(),)))
    for cell in (at.cell, at.boss):
        stats = cell.statistics()
        assert stats.handling_mean_s > 0
        assert stats.wait_max_s == 0
    assert at.cell.handled == 400


async def test_statistics_count_crashes_and_restarts(make_stage: MakeStage) -> None:
    at = make_stage()
    with pytest.raises(ActorFailed):
        await at.ask(at.cell, Boom())
    stats = at.cell.statistics()
    assert stats.failures == stats.restarts == 2
    assert stats.alive


async def test_a_quiet_system_says_so() -> None:
    at = Stage(direct=False)
    said = [at.system.quiet]
    at.system.tell(at.boss, Relay((Note("a"),)))
    said.append(at.system.quiet)
    await until(lambda: at.system.quiet)
    assert said == [True, False]
    assert at.keeper.texts == ["a"]
