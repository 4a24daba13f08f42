"""One test a sentence of docs/guarantees.md: order, delivery, start and stop.

The other sentences have theirs in test_guarantees_of_faults.py and test_guarantees_of_ownership.py.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.actors import system as system_module
from radixtide.actors.envelope import PassThrough
from radixtide.components.api import InsertParams
from radixtide.configs.errors import CacheClosed, MailboxFull
from radixtide.configs.schema import LimitsConfig
from support.actors import Look, MakeStage, Note, Relay, Stage, turns, until
from support.caches import (
    MakeCache,
    assert_nothing_held,
    coordinator_of,
    key,
    make_config,
    match,
    open_cache,
    slots,
    state_of,
    store,
    take,
    tokens,
)
from support.interceptors import (
    DropFirst,
    DropReply,
    Duplicate,
    Recorder,
    Stall,
)
from support.rooms import ROOT
from support.scenario import scenario

DOC = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")


def test_document_and_tests_have_the_same_numbers() -> None:
    stated = re.findall(r"^(?:- |\| )\[(G\d+)\]", DOC, flags=re.MULTILINE)
    assert len(stated) == len(set(stated)) > 50
    named: Counter[str] = Counter()
    for path in sorted((ROOT / "tests").glob("test_guarantees*.py")):
        text = path.read_text(encoding="utf-8")
        named.update(
            f"G{number}"
            for number in re.findall(r"^(?:async )?def test_g(\d+)_", text, re.MULTILINE)
        )
        named.update(re.findall(r'^    "(G\d+)": ', text, flags=re.MULTILINE))
    assert dict.fromkeys(stated, 1) == dict(named)


# -- order -------------------------------------------------------------------------------------


async def test_g1_messages_of_one_sender_are_handled_in_order(make_stage: MakeStage) -> None:
    at = make_stage()
    for number in range(100):
        at.system.tell(at.cell, Note(str(number)))
    assert await at.ask(at.cell, Look()) == [str(number) for number in range(100)]


async def test_g2_order_is_the_same_in_both_modes_and_while_interceptors_come_and_go() -> None:
    async def order(direct: bool, disturbed: bool) -> list[str]:
        at = Stage(direct)
        see = PassThrough()
        for number in range(90):
            if disturbed and number % 30 == 10:
                at.system.add_interceptor(see)
            if disturbed and number % 30 == 20:
                at.system.remove_interceptor(see)
            message = Relay((Note(str(number)),)) if number % 4 else Note(str(number))
            at.system.tell(at.boss, message)
        await until(lambda: at.system.quiet)
        return at.keeper.texts + at.boss_actor.texts

    wanted = await order(direct=True, disturbed=False)
    assert len(wanted) == 67 + 90
    assert await order(direct=False, disturbed=False) == wanted
    assert await order(direct=True, disturbed=True) == wanted


async def test_g3_an_operation_that_waits_is_one_message() -> None:
    async with open_cache() as cache:
        record = Recorder()
        cache.add_interceptor(record)
        await asyncio.gather(*(store(cache, key(tokens(8, start=100 * at))) for at in range(4)))
        cache.remove_interceptor(record)
        open_now = ""
        for name, actor in record.handled:
            # Messages to the component always belong to the one operation that runs.
            if actor == "coordinator":
                open_now = name
            assert (
                name
                in {
                    "AllocateParams": ("AllocateParams", "Reserve"),
                    "InsertParams": ("InsertParams", "CheckInsert", "CommitInsert"),
                }[open_now]
            )


async def test_g4_calls_that_waited_for_a_silent_component_run_in_order() -> None:
    async with open_cache(limits=LimitsConfig(stall_after_s=1e-4)) as cache:
        await store(cache, key(8))
        stall, record = Stall("full"), Recorder()
        cache.add_interceptor(stall)
        cache.add_interceptor(record)
        ended: list[int] = []

        async def call(number: int) -> None:
            await match(cache, key(8))
            ended.append(number)

        calls = [asyncio.ensure_future(call(number)) for number in range(6)]
        await match(cache, key(tokens(8, start=50)))
        stall.release()
        await asyncio.gather(*calls)
        cache.remove_interceptor(stall)
        cache.remove_interceptor(record)
        assert ended == list(range(6))


# -- delivery ----------------------------------------------------------------------------------


async def test_g5_a_direct_message_to_an_idle_actor_is_handled_before_its_sender_goes_on() -> None:
    at = Stage(direct=True)
    at.system.tell(at.boss, Relay((Note("a"),)))
    assert at.keeper.texts == ["a"]


async def test_g6_with_an_interceptor_every_message_goes_through_a_mailbox() -> None:
    at = Stage(direct=True)
    at.system.add_interceptor(PassThrough())
    at.system.tell(at.boss, Relay((Note("a"),)))
    assert at.keeper.texts == []
    await until(lambda: at.keeper.texts == ["a"])
    for stats in at.system.statistics().values():
        assert stats.mailbox_depth_max == 1


async def test_g7_a_message_that_is_delivered_twice_acts_once(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=16) as cache:
        twice = Duplicate(count=None)
        cache.add_interceptor(twice)
        await scenario(cache)
        cache.remove_interceptor(twice)
        assert twice.hits > 10
        await assert_nothing_held(cache)


@pytest.mark.parametrize("fault", [DropFirst, DropReply])
@pytest.mark.parametrize("actor", ["coordinator", "full"])
async def test_g8_what_was_lost_is_asked_for_again_and_acts_once(
    monkeypatch: pytest.MonkeyPatch, fault: type[DropFirst | DropReply], actor: str
) -> None:
    monkeypatch.setattr(system_module.ActorSystem, "resend_after_s", 0.001)
    for skip in range(8):
        async with open_cache(pin_budget=16) as cache:
            loss = fault(actor=actor, skip=skip)
            cache.add_interceptor(loss)
            await scenario(cache)
            cache.remove_interceptor(loss)
            assert loss.hits == 1
            await assert_nothing_held(cache)
            assert (await cache.stats()).pools["full"]["device"].evictable == 8


async def test_g9_a_full_mailbox_refuses_calls_that_take_and_nothing_changes() -> None:
    limits = LimitsConfig(mailbox_capacity=2)
    async with open_cache(delivery="queued", limits=limits) as cache:
        calls = [asyncio.ensure_future(take(cache, 4)) for _ in range(5)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers[2:]] == [MailboxFull] * 3
        assert (await cache.stats()).pools["full"]["device"].held == 8
        for taken in answers[:2]:
            assert not isinstance(taken, BaseException)
            await cache.free(taken)


async def test_g10_a_full_mailbox_refuses_no_call_that_gives() -> None:
    async with open_cache(delivery="queued", limits=LimitsConfig(mailbox_capacity=1)) as cache:
        taken = [await take(cache, 4) for _ in range(8)]
        await asyncio.gather(*(cache.free(one) for one in taken))
        await assert_nothing_held(cache)


async def test_g11_an_actor_handles_a_batch_before_others_get_a_turn() -> None:
    at = Stage(direct=False, batch=8)
    for number in range(64):
        at.system.tell(at.cell, Note(str(number)))
    most = before = 0
    while at.system.statistics()["keeper"].mailbox_depth:
        await asyncio.sleep(0)
        most, before = max(most, len(at.keeper.texts) - before), len(at.keeper.texts)
    assert most == 8


async def test_g12_a_caller_of_immediate_calls_gives_up_its_turn(make_cache: MakeCache) -> None:
    async with make_cache(limits=LimitsConfig(immediate_calls=16)) as cache:
        await store(cache, key(8))
        turns_of_other = 0

        async def other() -> None:
            nonlocal turns_of_other
            while True:
                turns_of_other += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        for _ in range(160):
            await match(cache, key(8))
        task.cancel()
        assert turns_of_other >= 9


async def test_g13_a_silent_component_holds_up_only_the_calls_that_need_it(
    make_cache: MakeCache,
) -> None:
    async with make_cache(limits=LimitsConfig(stall_after_s=0.001)) as cache:
        found = await store(cache, key(8))
        stall = Stall("full")
        cache.add_interceptor(stall)
        needs: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(match(cache, key(8))),
            asyncio.ensure_future(cache.inc_lock_ref(found.last_device_node)),
        ]
        assert len((await match(cache, key(tokens(8, start=50)))).device_indices) == 0
        assert (await cache.stats()).nodes == 1
        assert not any(call.done() for call in needs)
        stall.release()
        cache.remove_interceptor(stall)
        receipt = (await asyncio.gather(*needs))[1]
        await cache.dec_lock_ref(receipt)


# -- start and stop ----------------------------------------------------------------------------


async def test_g14_components_start_before_the_coordinator_and_stop_after_it(
    make_cache: MakeCache,
) -> None:
    async with make_cache(audit=False) as cache:
        assert list((await cache.stats()).actors) == ["full", "coordinator"]
        stopped: list[str] = []
        for cell in (coordinator_of(cache), *state_of(cache).cells):
            cell.actor.on_stop = lambda name=cell.name: stopped.append(name)  # type: ignore[misc,method-assign]  # to watch the order
        await cache.close()
        assert stopped == ["coordinator", "full"]


async def test_g15_close_carries_out_what_waits() -> None:
    async with open_cache(delivery="queued", audit=False) as cache:
        calls = [asyncio.ensure_future(store(cache, key(tokens(4, 9 * at)))) for at in range(4)]
        await turns(1)
        await cache.close()
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert state_of(cache).counters.allocations == 4
        assert all(isinstance(end, CacheClosed) or end.inserted_len == 4 for end in ends)  # type: ignore[union-attr]  # an error else


async def test_g16_what_waits_past_the_timeout_of_close_is_answered_with_cache_closed() -> None:
    async with open_cache(audit=False) as cache:
        cache.add_interceptor(Stall("full"))
        call = asyncio.ensure_future(take(cache, 4))
        await turns(3)
        await cache.close(timeout=0.0)
        with pytest.raises(CacheClosed):
            await call


async def test_g17_a_cache_that_is_not_open_refuses_calls_with_cache_closed() -> None:
    cache = UnifiedRadixCache(make_config())
    for _ in ("before", "after"):
        with pytest.raises(CacheClosed):
            await match(cache, key(8))
        with pytest.raises(CacheClosed):
            await cache.insert(InsertParams(key=key(4), value=slots(range(4))))
        if cache._system is None:
            async with cache:
                await match(cache, key(8))


async def test_g18_closing_a_closed_cache_does_nothing(make_cache: MakeCache) -> None:
    async with make_cache(audit=False) as cache:
        await cache.close()
        await cache.close()
