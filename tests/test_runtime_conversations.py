"""Conversations: handlers that ask others, park, resume, are set aside and given up."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from radixtide.actors.system import PendingReply
from radixtide.configs.errors import CallTimeout, InvalidInput
from support.actors import (
    Boss,
    Grab,
    Look,
    MakeStage,
    Note,
    Refuse,
    Relay,
    RelayAll,
    Stage,
    turns,
    until,
)
from support.interceptors import Delay, DropReply, Stall, StallReplies

PATIENT: Final[dict[str, Any]] = {"stall_after_s": 1000.0}
"""Limits under which no conversation is set aside."""
HASTY: Final[dict[str, Any]] = {"stall_after_s": 1e-6}
"""Limits under which one is set aside in the next turns of the loop."""


async def test_a_conversation_gets_its_answers_in_the_order_of_its_questions(
    make_stage: MakeStage, loops: None
) -> None:
    at = make_stage()
    assert await at.ask(at.boss, Relay((Note("a"), Look(), Note("b"), Look()))) == [
        1,
        ["a"],
        2,
        ["a", "b"],
    ]


async def test_a_conversation_gets_the_answers_of_several_actors_together(
    make_stage: MakeStage,
) -> None:
    at = make_stage(keepers=3)
    assert await at.ask(at.boss, RelayAll(Note("a"))) == [1, 1, 1]


async def test_answers_that_come_late_and_out_of_order_reach_their_questions() -> None:
    at = Stage(direct=False, keepers=3)
    await at.ask(at.cells[1], Note("x"))
    at.system.add_interceptor(Delay("Look", "keeper", turns=9))
    at.system.add_interceptor(Delay("Look", "keeper2", turns=4))
    assert await at.ask(at.boss, RelayAll(Look())) == [[], ["x"], []]


async def test_an_actor_in_a_conversation_takes_no_other_message_until_it_ends() -> None:
    at = Stage(direct=True, **PATIENT)
    stall = Stall("keeper")
    at.system.add_interceptor(stall)
    first = at.system.ask(at.boss, Relay((Note("first"),)), 20.0)
    second = at.system.ask(at.boss, Note("second"), 20.0)
    await turns(20)
    assert at.boss_actor.texts == []
    assert at.boss.busy
    stall.release()
    assert list(await asyncio.gather(first.wait(), second.wait())) == [[1], 2]
    assert at.boss_actor.texts == ["relayed", "second"]


async def test_a_direct_conversation_parks_when_the_other_actor_has_mail() -> None:
    at = Stage(direct=True)
    stall = Stall("nobody")
    at.system.add_interceptor(stall)
    at.system.tell(at.cell, Note("first"))
    at.system.remove_interceptor(stall)
    pending = at.system.ask(at.boss, Relay((Note("second"), Look())), 20.0)
    assert isinstance(pending, PendingReply)
    assert await pending.wait() == [2, ["first", "second"]]
    assert at.system.ask(at.boss, Relay((Note("third"),)), 20.0) == [3]


async def test_a_refusal_ends_a_conversation_and_reaches_the_caller(
    make_stage: MakeStage,
) -> None:
    at = make_stage()
    with pytest.raises(InvalidInput, match="refused on purpose"):
        await at.ask(at.boss, Relay((Look(), Refuse(), Note("never"))))
    assert at.keeper.texts == []
    assert at.boss_actor.texts == []
    assert await at.ask(at.boss, Relay((Note("next"),))) == [1]


async def test_a_refusal_by_one_of_several_reaches_the_caller(make_stage: MakeStage) -> None:
    at = make_stage(keepers=2)
    with pytest.raises(InvalidInput, match="refused on purpose"):
        await at.ask(at.boss, RelayAll(Refuse()))
    assert await at.ask(at.boss, RelayAll(Look())) == [[], []]


async def test_a_silent_actor_holds_up_only_the_conversations_that_need_it() -> None:
    at = Stage(direct=True, **HASTY)
    stall = Stall("keeper")
    at.system.add_interceptor(stall)
    needs = at.system.ask(at.boss, Relay((Look(),)), 20.0)
    needs_too = at.system.ask(at.boss, Relay((Look(),)), 20.0)
    assert await at.ask(at.boss, Note("meanwhile")) == 1
    stall.release()
    assert list(await asyncio.gather(needs.wait(), needs_too.wait())) == [[[]], [[]]]
    assert at.boss_actor.texts == ["meanwhile", "relayed", "relayed"]
    assert not at.boss.stalled


async def test_conversations_that_were_set_aside_run_in_their_old_order() -> None:
    at = Stage(direct=False, **HASTY)
    stall = Stall("keeper")
    at.system.add_interceptor(stall)
    asked = [
        at.system.ask(at.boss, Relay((Look(), Note(str(number)))), 20.0) for number in range(5)
    ]
    await at.ask(at.boss, Note("meanwhile"))
    stall.release()
    await asyncio.gather(*(reply.wait() for reply in asked))
    assert at.keeper.texts == ["0", "1", "2", "3", "4"]


async def test_a_conversation_that_has_applied_something_is_never_set_aside() -> None:
    at = Stage(direct=False, **HASTY)
    await at.ask(at.cell, Look())
    stall = Stall("keeper", kind="Look")
    at.system.add_interceptor(stall)
    needs = at.system.ask(at.boss, Relay((Note("applied"), Look())), 20.0)
    other = at.system.ask(at.boss, Note("behind"), 20.0)
    await turns(200)
    assert at.boss_actor.texts == []
    stall.release()
    assert await needs.wait() == [1, ["applied"]]
    assert await other.wait() == 2
    assert at.keeper.texts == ["applied"]


async def test_a_conversation_that_has_applied_nothing_is_given_up_with_its_caller() -> None:
    at = Stage(direct=False, **PATIENT)
    stall = Stall("keeper")
    at.system.add_interceptor(stall)
    with pytest.raises(CallTimeout, match="Relay was not answered by boss"):
        await at.ask(at.boss, Relay((Look(), Note("never"))), timeout=0.01)
    assert not at.boss.busy
    stall.release()
    await turns(20)
    assert at.keeper.texts == []
    assert await at.ask(at.boss, Relay((Note("next"),))) == [1]


async def test_a_conversation_that_gives_is_carried_out_without_its_caller() -> None:
    at = Stage(direct=False, **PATIENT)
    stall = Stall("keeper")
    at.system.add_interceptor(stall)
    with pytest.raises(CallTimeout, match="still carried out"):
        await at.ask(at.boss, Relay((Look(), Note("given"))), timeout=0.01, gives=True)
    stall.release()
    await until(lambda: at.system.quiet)
    assert at.keeper.texts == ["given"]
    assert at.system.unheard_errors == 0


async def test_what_a_given_up_conversation_was_given_goes_back() -> None:
    at = Stage(direct=False, keepers=2, **PATIENT)
    stall = Stall("keeper1")
    at.system.add_interceptor(stall)
    with pytest.raises(CallTimeout):
        await at.ask(at.boss, RelayAll(Grab()), timeout=0.01)
    await until(lambda: at.system.quiet)
    stall.release()
    await until(lambda: at.system.quiet)
    assert sorted(at.keepers[0].free) == [1, 2, 3]
    assert sorted(at.keepers[1].free) == [1, 2, 3]


async def test_what_comes_too_late_for_a_given_up_conversation_goes_back() -> None:
    at = Stage(direct=False, **PATIENT)
    stall = StallReplies("keeper", kind="Grab")
    at.system.add_interceptor(stall)
    with pytest.raises(CallTimeout):
        await at.ask(at.boss, Relay((Grab(),)), timeout=0.01)
    stall.release()
    await until(lambda: at.system.quiet)
    assert sorted(at.keeper.free) == [1, 2, 3]


async def test_what_was_lost_on_its_way_to_a_given_up_conversation_goes_back() -> None:
    at = Stage(direct=False, **PATIENT)
    at.system.add_interceptor(DropReply("Grab"))
    with pytest.raises(CallTimeout):
        await at.ask(at.boss, Relay((Grab(),)), timeout=0.01)
    await until(lambda: at.system.quiet)
    assert sorted(at.keeper.free) == [1, 2, 3]


async def test_a_direct_conversation_with_an_actor_that_converses_waits_for_it() -> None:
    at = Stage(direct=True)
    # The upper boss asks the lower one, which must wait for a keeper that has mail.
    upper = at.system.spawn(Boss([at.boss], name="upper"))
    stall = Stall("nobody")
    at.system.add_interceptor(stall)
    at.system.tell(at.cell, Note("first"))
    at.system.remove_interceptor(stall)
    pending = at.system.ask(upper, Relay((Relay((Note("second"),)),)), 20.0)
    assert isinstance(pending, PendingReply)
    assert await pending.wait() == [[2]]
