"""One test a sentence of docs/guarantees.md: order, delivery, stop, restart, timeout, cancellation.

The sentences on ownership and on the audit are in test_guarantees_of_ownership.py.
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
from radixtide.components.api import AllocateParams, EvictParams, InsertParams, MatchPrefixParams
from radixtide.components.request import Request
from radixtide.configs.errors import ActorFailed, CacheClosed, CallTimeout, MailboxFull
from radixtide.configs.schema import LimitsConfig
from support.actors import Boom, Look, MakeStage, Note, Relay, Stage, turns, until
from support.caches import (
    MakeCache,
    assert_nothing_held,
    key,
    make_config,
    match,
    open_cache,
    state_of,
    store,
    system_of,
    take,
    tokens,
)
from support.interceptors import (
    CrashAfter,
    CrashBefore,
    DropFirst,
    DropReply,
    Duplicate,
    Recorder,
    Stall,
    StallReplies,
)
from support.rooms import ROOT

DOC = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")


def test_document_and_tests_have_the_same_numbers() -> None:
    stated = re.findall(r"^(?:- |\| )\[(G\d+)\]", DOC, flags=re.MULTILINE)
    assert len(stated) == len(set(stated)) > 50
    named: Counter[str] = Counter()
    for path in sorted((ROOT / "tests").glob("test_guarantees*.py")):
        text = path.read_text(encoding="utf-8")
        named.update(f"G{number}" for number in re.findall(r"^(?:async )?def test_g(\d+)_", text, re.M))
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
            assert name in {
                "AllocateParams": ("AllocateParams", "Reserve"),
                "InsertParams": ("InsertParams", "CheckInsert", "CommitInsert"),
            }[open_now]


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
    async with make_cache() as cache:
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
    monkeypatch.setattr(system_module, "RESEND_AFTER_S", 0.001)
    for skip in range(8):
        async with open_cache() as cache:
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
        for slots in answers[:2]:
            assert not isinstance(slots, BaseException)
            await cache.free(slots)


async def test_g10_a_full_mailbox_refuses_no_call_that_gives() -> None:
    async with open_cache(delivery="queued", limits=LimitsConfig(mailbox_capacity=1)) as cache:
        slots = [await take(cache, 4) for _ in range(8)]
        await asyncio.gather(*(cache.free(one) for one in slots))
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
        needs = [
            asyncio.ensure_future(match(cache, key(8))),
            asyncio.ensure_future(cache.inc_lock_ref(found.last_device_node)),
        ]
        assert len((await match(cache, key(tokens(8, start=50)))).device_indices) == 0
        assert (await cache.stats()).nodes == 1
        assert not any(call.done() for call in needs)
        stall.release()
        cache.remove_interceptor(stall)
        _, receipt = await asyncio.gather(*needs)
        await cache.dec_lock_ref(receipt)


# -- start and stop ----------------------------------------------------------------------------


async def test_g14_components_start_before_the_coordinator_and_stop_after_it(
    make_cache: MakeCache,
) -> None:
    async with make_cache(audit=False) as cache:
        assert list((await cache.stats()).actors) == ["full", "coordinator"]
        stopped: list[str] = []
        for cell in (cache._coordinator, *state_of(cache).cells):
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
            await cache.insert(InsertParams(key=key(4), value=state_free_slots()))
        if cache._system is None:
            async with cache:
                await match(cache, key(8))


async def test_g18_closing_a_closed_cache_does_nothing(make_cache: MakeCache) -> None:
    async with make_cache(audit=False) as cache:
        await cache.close()
        await cache.close()


# -- crashes and restarts ----------------------------------------------------------------------


async def test_g19_a_crashed_actor_keeps_its_state_and_its_mail() -> None:
    at = Stage(direct=False)
    at.system.tell(at.cell, Note("before"))
    at.system.tell(at.cell, Boom("again", times=1))
    at.system.tell(at.cell, Note("after"))
    await until(lambda: at.system.quiet)
    assert at.keeper.texts == ["before", "again", "after"]
    assert at.system.statistics()["keeper"].restarts == 1


async def test_g20_a_message_that_crashed_its_handler_comes_again(make_stage: MakeStage) -> None:
    at = make_stage(deliveries_max=3)
    assert await at.ask(at.cell, Boom("third time", times=2)) == "third time"
    at.keeper.booms = 0
    with pytest.raises(ActorFailed):
        await at.ask(at.cell, Boom("never", times=3))
    assert at.keeper.booms == 3


async def test_g21_a_message_that_always_crashes_is_failed_to_its_sender(
    make_stage: MakeStage,
) -> None:
    at = make_stage()
    with pytest.raises(ActorFailed, match="Boom crashed actor keeper"):
        await at.ask(at.cell, Boom())
    assert await at.ask(at.cell, Note("goes on")) == 1


async def test_g22_a_crash_after_the_handler_does_not_act_again(make_cache: MakeCache) -> None:
    for actor in ("coordinator", "full"):
        async with make_cache(limits=LimitsConfig(restarts_max=1000)) as cache:
            crash = CrashAfter(actor=actor, count=None)
            cache.add_interceptor(crash)
            await scenario(cache)
            cache.remove_interceptor(crash)
            assert crash.hits >= 8
            assert (await cache.stats()).pools["full"]["device"].evictable == 8
            await assert_nothing_held(cache)


async def test_g23_after_a_crash_records_are_repaired_and_what_is_held_stays(
    make_cache: MakeCache,
) -> None:
    for actor in ("coordinator", "full"):
        async with make_cache() as cache:
            await store(cache, key(8))
            held = await match(cache, key(8), lock=True)
            mine = await take(cache, 4)
            req = Request("r", tokens(12))
            await cache.allocate(AllocateParams(num_tokens=12, req=req))
            crash = CrashBefore(actor=actor)
            cache.add_interceptor(crash)
            await cache.evict(EvictParams(num_tokens=64))
            cache.remove_interceptor(crash)
            assert crash.hits == 1
            await until(lambda cache=cache: system_of(cache).quiet)  # type: ignore[misc]  # now
            stats = await cache.stats()
            assert stats.counters["repairs"] == 1
            assert (stats.receipts, stats.requests) == (1, 1)
            assert stats.pools["full"]["device"].held == 16
            assert stats.pools["full"]["device"].protected == 8
            assert (await cache.audit()).ok
            assert held.receipt is not None
            await cache.dec_lock_ref(held.receipt)
            await cache.free(mine)
            await cache.cache_finished_req(req)
            await assert_nothing_held(cache)


async def test_g24_an_actor_that_crashes_too_often_stays_down(make_cache: MakeCache) -> None:
    limits = LimitsConfig(restarts_max=2, restart_window_s=1000.0)
    async with make_cache(limits=limits, audit=False) as cache:
        crash = CrashBefore("Reserve", count=None)
        cache.add_interceptor(crash)
        for _ in range(3):
            with pytest.raises(ActorFailed):
                await take(cache, 4)
        cache.remove_interceptor(crash)
        assert not (await cache.stats()).actors["full"].alive
        with pytest.raises(ActorFailed, match="stays down"):
            await take(cache, 4)
        assert (await cache.stats()).actors["coordinator"].alive


# -- timeouts ----------------------------------------------------------------------------------


async def test_g25_a_call_without_an_answer_ends_with_call_timeout(make_cache: MakeCache) -> None:
    async with make_cache(limits=LimitsConfig(call_timeout_s=0.02)) as cache:
        stall = Stall()
        cache.add_interceptor(stall)
        with pytest.raises(CallTimeout, match=r"within 0\.02 s"):
            await match(cache, key(8))
        with pytest.raises(CallTimeout, match=r"within 0\.01 s"):
            await cache.match_prefix(MatchPrefixParams(key=key(8)), timeout=0.01)
        stall.release()
        cache.remove_interceptor(stall)


@pytest.mark.parametrize("actor", ["coordinator", "full"])
@pytest.mark.parametrize("hold_back", [Stall, StallReplies])
async def test_g26_a_call_that_takes_has_no_effect_when_it_timed_out(
    make_cache: MakeCache, actor: str, hold_back: type[Stall | StallReplies]
) -> None:
    async with make_cache() as cache:
        found = await store(cache, key(8))
        late = hold_back(actor)
        cache.add_interceptor(late)
        for call in (
            cache.allocate(AllocateParams(num_tokens=8), timeout=0.01),
            cache.match_prefix(MatchPrefixParams(key=key(8), lock=True), timeout=0.01),
            cache.inc_lock_ref(found.last_device_node, timeout=0.01),
        ):
            with pytest.raises(CallTimeout):
                await call
        late.release()
        cache.remove_interceptor(late)
        await until(lambda: system_of(cache).quiet)
        await assert_nothing_held(cache)


async def test_g27_a_call_that_gives_is_carried_out_when_it_timed_out(
    make_cache: MakeCache,
) -> None:
    async with make_cache() as cache:
        mine, given = await take(cache, 4), await take(cache, 8)
        stall = Stall("full")
        cache.add_interceptor(stall)
        for call in (
            cache.free(mine, timeout=0.01),
            cache.insert(InsertParams(key=key(8), value=given), timeout=0.01),
        ):
            with pytest.raises(CallTimeout):
                await call
        stall.release()
        cache.remove_interceptor(stall)
        await until(lambda: system_of(cache).quiet)
        await assert_nothing_held(cache)
        assert len((await match(cache, key(8))).device_indices) == 8


# -- cancellation ------------------------------------------------------------------------------


async def test_g28_a_call_that_takes_leaves_nothing_held_when_it_is_cancelled() -> None:
    for steps in range(10):
        async with open_cache(delivery="queued") as cache:
            found = await store(cache, key(8))
            calls: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(take(cache, 8)),
                asyncio.ensure_future(match(cache, key(8), lock=True)),
                asyncio.ensure_future(cache.inc_lock_ref(found.last_device_node)),
            ]
            await turns(steps)
            for call in calls:
                call.cancel()
            slots, matched, receipt = await asyncio.gather(*calls, return_exceptions=True)
            if not isinstance(slots, BaseException):
                await cache.free(slots)
            if not isinstance(matched, BaseException):
                await cache.dec_lock_ref(matched.receipt)
            if not isinstance(receipt, BaseException):
                await cache.dec_lock_ref(receipt)
            await until(lambda cache=cache: system_of(cache).quiet)  # type: ignore[misc]  # now
            await assert_nothing_held(cache)


async def test_g29_a_call_that_gives_is_carried_out_when_it_is_cancelled() -> None:
    for steps in range(1, 8):
        async with open_cache(delivery="queued") as cache:
            given = await take(cache, 8)
            call = asyncio.ensure_future(cache.insert(InsertParams(key=key(8), value=given)))
            await turns(steps)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await until(lambda cache=cache: system_of(cache).quiet)  # type: ignore[misc]  # now
            assert len((await match(cache, key(8))).device_indices) == 8
            await assert_nothing_held(cache)


@pytest.mark.parametrize("end", ["end", "raise", "cancel"])
async def test_g30_hold_releases_its_lock(cache: UnifiedRadixCache, end: str) -> None:
    await store(cache, key(8))
    found = await match(cache, key(8))

    async def scope() -> None:
        async with cache.hold(found):
            assert len(state_of(cache).receipts) == 1
            if end == "raise":
                raise ZeroDivisionError
            if end == "cancel":
                await asyncio.Event().wait()

    task = asyncio.ensure_future(scope())
    await turns(20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: system_of(cache).quiet)
    await assert_nothing_held(cache)


async def test_g31_a_cancelled_call_can_be_made_again_at_once() -> None:
    for steps in range(10):
        async with open_cache(delivery="queued") as cache:
            await store(cache, key(8))
            req = Request("r", tokens(16))
            first = asyncio.ensure_future(match(cache, req.key(), req=req, lock=True))
            await turns(steps)
            if first.cancel():
                await match(cache, req.key(), req=req, lock=True)
            await asyncio.gather(first, return_exceptions=True)
            second = asyncio.ensure_future(cache.allocate(AllocateParams(num_tokens=4, req=req)))
            await turns(steps)
            if second.cancel():
                await cache.allocate(AllocateParams(num_tokens=4, req=req))
            await asyncio.gather(second, return_exceptions=True)
            await until(lambda cache=cache: system_of(cache).quiet)  # type: ignore[misc]  # now
            assert (await cache.stats()).pools["full"]["device"].held == 4
            await cache.abort_req(req)
            await assert_nothing_held(cache)
