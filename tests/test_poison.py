"""A component that crashes again and again on a message that applies something.

Whatever the caller hears, the cache is sound afterwards, what others hold is untouched, and a
request that was in the middle of it can be aborted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest

from radixtide import UnifiedRadixCache
from radixtide.components.api import AllocateParams, EvictParams, InsertParams
from radixtide.components.request import Request
from radixtide.configs.errors import ActorFailed
from radixtide.configs.schema import LimitsConfig
from support.caches import (
    assert_sound,
    key,
    match,
    open_cache,
    settled,
    state_of,
    store,
    take,
    tokens,
)
from support.interceptors import CrashAfter, CrashBefore

LIMITS = LimitsConfig(restarts_max=1000)


class World(NamedTuple):
    """What the cases work on: a locked prompt, a request in the middle of its life, loose slots."""

    cache: UnifiedRadixCache
    receipt: Any
    req: Request
    given: Any


class Case(NamedTuple):
    """A call, and the message of it that crashes its receiver."""

    name: str
    message: str
    call: Callable[[World], Awaitable[Any]]


CASES = [
    Case(
        "insert",
        "CommitInsert",
        lambda at: at.cache.insert(InsertParams(key(tokens(8, 500)), at.given)),
    ),
    Case(
        "insert that splits what is locked",
        "CommitInsert",
        lambda at: at.cache.insert(InsertParams(key([0, 1, 2, 3, 9, 9, 9, 9]), at.given)),
    ),
    Case("match", "CommitMatch", lambda at: match(at.cache, key(16))),
    Case("match that splits what is locked", "CommitMatch", lambda at: match(at.cache, key(8))),
    Case("match with a lock", "CommitMatch", lambda at: match(at.cache, key(12), lock=True)),
    Case("lock", "Lock", lambda at: at.cache.inc_lock_ref(at.receipt.node)),
    Case("unlock", "Unlock", lambda at: at.cache.dec_lock_ref(at.receipt)),
    Case("unfinished, insert", "CommitInsert", lambda at: at.cache.cache_unfinished_req(at.req)),
    Case("unfinished, settle", "Settle", lambda at: at.cache.cache_unfinished_req(at.req)),
    Case("finished, insert", "CommitInsert", lambda at: at.cache.cache_finished_req(at.req)),
    Case("finished, let go", "LetGo", lambda at: at.cache.cache_finished_req(at.req)),
    Case("abort", "LetGo", lambda at: at.cache.abort_req(at.req)),
    Case("evict", "EvictNodes", lambda at: at.cache.evict(EvictParams(num_tokens=4))),
    Case("allocate that evicts", "EvictNodes", lambda at: take(at.cache, 24)),
    Case("free", "Release", lambda at: at.cache.free(at.given)),
    Case("pin", "Lock", lambda at: at.cache.pin(key(tokens(8, 900)), 1000.0)),
    Case("pin that splits what is locked", "LockSplit", lambda at: at.cache.pin(key(8), 1000.0)),
    Case("unpin", "Unlock", lambda at: at.cache.unpin(key(tokens(4, 700)))),
]


async def prepare(cache: UnifiedRadixCache) -> World:
    """Fill a cache of 64 slots in pages of 4."""
    await store(cache, key(16))
    await store(cache, key(tokens(8, 900)))
    await store(cache, key(tokens(4, 700)))
    await cache.pin(key(tokens(4, 700)), 1000.0)
    receipt = (await match(cache, key(16), lock=True)).receipt
    req = Request("r", tokens(12, 300), req_pool_idx=cache.req_to_token_pool.alloc())
    await match(cache, req.key(), req=req, lock=True)
    await cache.allocate(AllocateParams(num_tokens=12, req=req))
    return World(cache, receipt, req, await take(cache, 8))


@pytest.mark.parametrize("plant", [CrashBefore, CrashAfter])
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_the_cache_is_sound_after_any_crash_and_what_is_held_can_be_let_go(
    case: Case, times: int, plant: type[CrashBefore | CrashAfter]
) -> None:
    async with open_cache(limits=LIMITS, pin_budget=32) as cache:
        at = await prepare(cache)
        crash = plant(case.message, "full", count=times)
        cache.add_interceptor(crash)
        done: Any = None
        try:
            done = await case.call(at)
        except ActorFailed:
            assert times > 1
        cache.remove_interceptor(crash)
        assert crash.hits >= 1
        await settled(cache)
        await assert_sound(cache)

        # What others hold is untouched.
        if case.name != "unlock":
            assert len((await match(cache, key(16))).device_indices) == 16
        # All of it can be let go.
        await cache.abort_req(at.req)
        assert cache.req_to_token_pool.available == 16
        for number, held in list(state_of(cache).receipts.items()):
            assert held.rid is None, number
        if at.receipt.id in state_of(cache).receipts:
            await cache.dec_lock_ref(at.receipt)
        if case.name == "match with a lock" and done is not None:
            await cache.dec_lock_ref(done.receipt)
        if case.name == "lock" and done is not None:
            await cache.dec_lock_ref(done)
        for pinned in (key(tokens(4, 700)), key(tokens(8, 900)), key(8)):
            await cache.unpin(pinned)
        stats = await cache.stats()
        pool = stats.pools["full"]["device"]
        assert (stats.receipts, stats.requests, stats.pinned, pool.protected) == (0, 0, 0, 0)
        loose = 8 + (24 if case.name == "allocate that evicts" and done is not None else 0)
        gone = case.name == "free" or case.name.startswith("insert")
        assert pool.held in ((0, 8) if gone else (loose,))
        await assert_sound(cache)
