"""One test a sentence of docs/guarantees.md: crashes and restarts, timeouts, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.actors.envelope import Envelope
from radixtide.components.api import AllocateParams, EvictParams, InsertParams, MatchPrefixParams
from radixtide.components.request import Request
from radixtide.configs.errors import ActorFailed, CallTimeout
from radixtide.configs.schema import LimitsConfig
from support.actors import Boom, MakeStage, Note, Stage, turns, until
from support.caches import (
    MakeCache,
    assert_nothing_held,
    key,
    match,
    open_cache,
    settled,
    state_of,
    store,
    take,
    tokens,
)
from support.interceptors import (
    CrashAfter,
    CrashBefore,
    Stall,
    StallReplies,
)
from support.scenario import scenario

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


async def test_g44_a_message_that_applies_something_is_delivered_until_it_is_handled(
    make_cache: MakeCache,
) -> None:
    async with make_cache(limits=LimitsConfig(restarts_max=100, deliveries_max=2)) as cache:
        crash = CrashBefore("CommitInsert", count=9)
        cache.add_interceptor(crash)
        assert (await store(cache, key(8))).inserted_len == 8
        cache.remove_interceptor(crash)
        assert crash.hits == 9
        await assert_nothing_held(cache)
    limits = LimitsConfig(restarts_max=3, restart_window_s=1000.0)
    async with make_cache(limits=limits, audit=False) as cache:
        cache.add_interceptor(CrashBefore("CommitInsert", count=None))
        with pytest.raises(ActorFailed):
            await store(cache, key(8))
        assert not (await cache.stats()).actors["full"].alive


async def test_g21_a_message_that_always_crashes_is_failed_to_its_sender(
    make_stage: MakeStage,
) -> None:
    at = make_stage()
    with pytest.raises(ActorFailed, match="Boom crashed actor keeper"):
        await at.ask(at.cell, Boom())
    assert await at.ask(at.cell, Note("goes on")) == 1


class CrashAfterCalls(CrashAfter):
    """Crashes after every message but the repairs that its crashes cause."""

    def concerns(self, envelope: Envelope) -> bool:
        repairs = type(envelope.message).__name__ in ("Repair", "Rebuild")
        return not repairs and super().concerns(envelope)


async def test_g22_a_crash_after_the_handler_does_not_act_again(make_cache: MakeCache) -> None:
    for actor in ("coordinator", "full"):
        async with make_cache(limits=LimitsConfig(restarts_max=1000), pin_budget=16) as cache:
            crash = CrashAfterCalls(actor=actor, count=None)
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
            await settled(cache)
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
        await settled(cache)
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
        await settled(cache)
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
            taken, matched, receipt = await asyncio.gather(*calls, return_exceptions=True)
            if not isinstance(taken, BaseException):
                await cache.free(taken)
            if not isinstance(matched, BaseException):
                await cache.dec_lock_ref(matched.receipt)
            if not isinstance(receipt, BaseException):
                await cache.dec_lock_ref(receipt)
            await settled(cache)
            await assert_nothing_held(cache)


async def test_g29_a_call_that_gives_is_carried_out_when_it_is_cancelled() -> None:
    for steps in range(1, 8):
        async with open_cache(delivery="queued") as cache:
            given = await take(cache, 8)
            call = asyncio.ensure_future(cache.insert(InsertParams(key=key(8), value=given)))
            await turns(steps)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await settled(cache)
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
    await settled(cache)
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
            await settled(cache)
            assert (await cache.stats()).pools["full"]["device"].held == 4
            await cache.abort_req(req)
            await assert_nothing_held(cache)
