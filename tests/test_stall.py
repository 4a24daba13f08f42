"""A component that says nothing holds up the calls that need it, and no others.

Its mailbox is stalled by an interceptor. Calls that need it end at their deadline with CallTimeout;
after the release, calls that take had no effect and calls that give are carried out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.components.api import (
    AllocateParams,
    EvictParams,
    EvictResult,
    InsertParams,
    MatchPrefixParams,
)
from radixtide.components.request import Request
from radixtide.configs.errors import CacheClosed, CallTimeout, MailboxFull
from radixtide.configs.schema import LimitsConfig
from support.actors import until
from support.caches import (
    MakeCache,
    assert_nothing_held,
    assert_sound,
    checked,
    coordinator_of,
    key,
    make_config,
    match,
    settled,
    store,
    system_of,
    take,
    tokens,
)
from support.interceptors import Stall

LIMITS = LimitsConfig(call_timeout_s=0.05, stall_after_s=0.001)
"""Deadlines are short: every call here but the harmless ones is meant to meet its own."""
PATIENT = 20.0

Things = dict[str, Any]
Call = Callable[[UnifiedRadixCache, Things], Awaitable[Any]]

TAKES: dict[str, Call] = {
    "match_prefix": lambda cache, _: match(cache, key(16)),
    "match_prefix that would split": lambda cache, _: match(cache, key(8)),
    "match_prefix with a lock": lambda cache, _: match(cache, key(16), lock=True),
    "match_prefix for a request": lambda cache, at: match(
        cache, at["new"].key(), req=at["new"], lock=True
    ),
    "allocate": lambda cache, _: cache.allocate(AllocateParams(num_tokens=8)),
    "allocate for a request": lambda cache, at: cache.allocate(
        AllocateParams(num_tokens=4, req=at["req"])
    ),
    "inc_lock_ref": lambda cache, at: cache.inc_lock_ref(at["node"]),
    "device_indices": lambda cache, at: cache.device_indices(at["node"]),
}
GIVES: dict[str, Call] = {
    "insert": lambda cache, at: cache.insert(
        InsertParams(key=key(tokens(8, start=500)), value=at["given"])
    ),
    "free": lambda cache, at: cache.free(at["given"]),
    "dec_lock_ref": lambda cache, at: cache.dec_lock_ref(at["receipt"]),
    "cache_unfinished_req": lambda cache, at: cache.cache_unfinished_req(at["req"]),
    "cache_finished_req": lambda cache, at: cache.cache_finished_req(at["req"]),
    "cache_finished_req without insert": lambda cache, at: cache.cache_finished_req(
        at["req"], is_insert=False
    ),
    "abort_req": lambda cache, at: cache.abort_req(at["req"]),
    "evict": lambda cache, _: cache.evict(EvictParams(num_tokens=4)),
    "pin": lambda cache, _: cache.pin(key(4), 1000.0),
    "unpin": lambda cache, _: cache.unpin(key(16)),
    "audit": lambda cache, _: cache.audit(),
    "pretty_print": lambda cache, _: cache.pretty_print(),
}


async def prepare(cache: UnifiedRadixCache) -> Things:
    """Fill a cache with what the calls above work on; return those things by name."""
    patient = {"timeout": PATIENT}
    await store(cache, key(16))
    await store(cache, key(tokens(8, start=900)))
    found = await match(cache, key(16), lock=True)
    req = Request("r", tokens(12, start=300))
    await match(cache, req.key(), req=req, lock=True)
    await cache.allocate(AllocateParams(num_tokens=12, req=req), **patient)
    await cache.pin(key(16), 1000.0, **patient)
    return {
        "node": found.last_device_node,
        "receipt": found.receipt,
        "given": await take(cache, 8),
        "req": req,
        "new": Request("new", tokens(16)),
    }


async def picture(cache: UnifiedRadixCache) -> tuple[Any, ...]:
    """Return all that a call could have changed."""
    stats = await cache.stats()
    rows = cache.req_to_token_pool.available
    tree = await cache.pretty_print(timeout=PATIENT)
    return stats.pools, stats.nodes, stats.receipts, stats.requests, stats.pinned, rows, tree


@pytest.mark.parametrize("name", [*TAKES, *GIVES])
async def test_a_call_that_needs_a_silent_component_ends_at_its_deadline_and_alone(
    make_cache: MakeCache, name: str
) -> None:
    call = {**TAKES, **GIVES}[name]
    async with make_cache(limits=LIMITS, pin_budget=32) as cache:
        at = await prepare(cache)
        before = await picture(cache)
        stall = Stall("full")
        cache.add_interceptor(stall)
        with pytest.raises(CallTimeout):
            await call(cache, at)
        # These do not need the component, and so have their answers.
        assert (await cache.stats()).actors["full"].alive
        unknown = await match(cache, key(tokens(8, start=700)))
        assert len(unknown.device_indices) == 0
        assert await cache.evict(EvictParams()) == EvictResult()
        assert await cache.unpin(key(tokens(4, start=700))) is False
        stall.release()
        cache.remove_interceptor(stall)
        await settled(cache)
        await assert_sound(cache)
        after = await picture(cache)
        if name in TAKES:
            assert after == before
            assert at["new"].lock is None
        elif name not in ("audit", "pretty_print"):
            assert after != before


@pytest.mark.parametrize("name", list(GIVES))
async def test_a_call_that_gives_is_carried_out_after_the_silence_as_if_there_were_none(
    make_cache: MakeCache, name: str
) -> None:
    async def end_state(stalled: bool) -> tuple[Any, ...]:
        async with make_cache(limits=LIMITS, pin_budget=32) as cache:
            at = await prepare(cache)
            stall = Stall("full")
            if stalled:
                cache.add_interceptor(stall)
                with pytest.raises(CallTimeout):
                    await GIVES[name](cache, at)
                stall.release()
                cache.remove_interceptor(stall)
                await settled(cache)
            else:
                await GIVES[name](cache, at)
            return await picture(cache)

    assert await end_state(stalled=True) == await end_state(stalled=False)


async def test_a_reset_that_needs_a_silent_component_is_carried_out_after_the_silence(
    make_cache: MakeCache,
) -> None:
    async with make_cache(limits=LIMITS) as cache:
        await store(cache, key(16))
        stall = Stall("full")
        cache.add_interceptor(stall)
        with pytest.raises(CallTimeout):
            await cache.reset()
        assert len((await match(cache, key(tokens(8, start=700)))).device_indices) == 0
        stall.release()
        cache.remove_interceptor(stall)
        await settled(cache)
        assert (await cache.stats()).nodes == 0
        assert (await cache.stats()).pools["full"]["device"].free == 64


async def test_many_calls_wait_for_a_silent_component_and_nothing_leaks(
    make_cache: MakeCache, loops: None
) -> None:
    async with make_cache(limits=LIMITS, pin_budget=32) as cache:
        at = await prepare(cache)
        before = await picture(cache)
        stall = Stall("full")
        cache.add_interceptor(stall)
        results = await asyncio.gather(
            *(call(cache, at) for _ in range(5) for call in TAKES.values()),
            return_exceptions=True,
        )
        assert {type(result) for result in results} == {CallTimeout}
        stall.release()
        cache.remove_interceptor(stall)
        await settled(cache)
        assert await picture(cache) == before


async def test_calls_that_wait_for_a_silent_component_are_answered_when_it_is_back(
    make_cache: MakeCache,
) -> None:
    async with make_cache() as cache:
        await store(cache, key(16))
        stall = Stall("full")
        cache.add_interceptor(stall)
        first = asyncio.ensure_future(match(cache, key(16)))
        second = asyncio.ensure_future(take(cache, 8))
        assert len((await match(cache, key(tokens(8, start=700)))).device_indices) == 0
        assert not first.done()
        stall.release()
        cache.remove_interceptor(stall)
        assert len((await first).device_indices) == 16
        await cache.free(await second)
        await assert_nothing_held(cache)


async def test_calls_that_wait_for_a_silent_component_count_against_the_mailbox() -> None:
    limits = LimitsConfig(mailbox_capacity=4, stall_after_s=0.001)
    async with checked(make_config(limits=limits)) as cache:
        await store(cache, key(16))
        stall = Stall("full")
        cache.add_interceptor(stall)
        waiting = []
        for _ in range(20):
            waiting.append(asyncio.ensure_future(match(cache, key(16))))
            # This one does not need the component, so it is answered however many wait.
            await match(cache, key(tokens(8, start=700)))
        await until(lambda: sum(call.done() for call in waiting) >= 12)
        for call in waiting:
            assert not call.done() or isinstance(call.exception(), MailboxFull)
        stall.release()
        cache.remove_interceptor(stall)
        results = await asyncio.gather(*waiting, return_exceptions=True)
        answered = [result for result in results if not isinstance(result, BaseException)]
        assert len(answered) == sum(not isinstance(result, MailboxFull) for result in results)
        assert answered
        assert all(len(result.device_indices) == 16 for result in answered)


async def test_calls_whose_callers_left_do_not_pile_up_behind_a_silent_component() -> None:
    limits = LimitsConfig(mailbox_capacity=4, stall_after_s=0.001)
    async with checked(make_config(limits=limits)) as cache:
        await store(cache, key(16))
        stall = Stall("full")
        cache.add_interceptor(stall)
        for _ in range(12):
            with pytest.raises(CallTimeout):
                await cache.match_prefix(MatchPrefixParams(key(16)), timeout=0.005)
        assert sum(len(queue) for queue in coordinator_of(cache).stalled.values()) <= 4
        stall.release()
        cache.remove_interceptor(stall)


async def test_closing_with_a_silent_component_answers_what_waits_with_cache_closed() -> None:
    async with checked(make_config(), audit=False) as cache:
        await store(cache, key(16))
        cache.add_interceptor(Stall("full"))
        waiting = asyncio.ensure_future(match(cache, key(16)))
        await until(lambda: not system_of(cache).quiet)
        await cache.close(timeout=0.0)
        with pytest.raises(CacheClosed):
            await waiting


async def test_a_stalled_coordinator_ends_every_call_at_its_deadline_and_leaves_nothing(
    make_cache: MakeCache,
) -> None:
    async with make_cache(limits=LIMITS, pin_budget=32) as cache:
        at = await prepare(cache)
        before = await picture(cache)
        stall = Stall("coordinator")
        cache.add_interceptor(stall)
        for call in TAKES.values():
            with pytest.raises(CallTimeout):
                await call(cache, at)
        assert (await cache.stats()).actors["coordinator"].alive
        stall.release()
        cache.remove_interceptor(stall)
        await settled(cache)
        assert await picture(cache) == before
