"""What each call costs in messages: measured, and compared with the table of docs/messages.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import pytest

from radixtide import UnifiedRadixCache
from radixtide.actors.tier_face import TieredCache
from radixtide.components.api import AllocateParams, EvictParams, InsertParams
from radixtide.components.request import Request
from support.caches import key, match, open_cache, settled, store, take, tokens
from support.interceptors import Recorder
from support.message_tables import Call, Situation, ended, handled, names, table

SITUATIONS: Final[dict[tuple[str, str], Situation]] = {}


def situation(call: str, words: str) -> Callable[[Situation], Situation]:
    """Register a situation: a coroutine that prepares a cache and returns the call to measure."""

    def register(prepare: Situation) -> Situation:
        SITUATIONS[call, words] = prepare
        return prepare

    return register


async def running(cache: UnifiedRadixCache, count: int = 20) -> Request:
    """Return a request that matched with a lock, hit 8 units, and holds slots for the rest."""
    await store(cache, key(8))
    req = Request("r", tokens(count), req_pool_idx=cache.req_to_token_pool.alloc())
    await match(cache, req.key(), req=req, lock=True)
    await cache.allocate(AllocateParams(num_tokens=count - 8, req=req))
    return req


# -- match_prefix ------------------------------------------------------------------------------


@situation("match_prefix", "nothing of the key is cached")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    return lambda: match(cache, key(tokens(8, start=50)))


@situation("match_prefix", "a hit, whole or in part")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    return lambda: match(cache, key(12))


@situation("match_prefix", "a hit that ends inside a node, which is split")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    return lambda: match(cache, key(4))


@situation("match_prefix", "a hit with `lock=True`")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    return lambda: match(cache, key(8), req=Request("r", tokens(8)), lock=True)


@situation("match_prefix", "no hit with `lock=True`")
async def _(cache: UnifiedRadixCache) -> Call:
    return lambda: match(cache, key(8), req=Request("r", tokens(8)), lock=True)


# -- insert ------------------------------------------------------------------------------------


@situation("insert", "new, in part new, or all duplicate")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    given = await take(cache, 16)
    return lambda: cache.insert(InsertParams(key=key(16), value=given))


@situation("insert", "it splits a node")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    given = await take(cache, 8)
    return lambda: cache.insert(InsertParams(key=key([0, 1, 2, 3, 9, 9, 9, 9]), value=given))


@situation("insert", "shorter than a page")
async def _(cache: UnifiedRadixCache) -> Call:
    given = await take(cache, 4)
    return lambda: cache.insert(InsertParams(key=key(3), value=given))


@situation("insert", "refused: the slots are not the caller's")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    slots = (await match(cache, key(8))).device_indices
    return lambda: cache.insert(InsertParams(key=key(tokens(8, start=50)), value=slots))


# -- slots -------------------------------------------------------------------------------------


@situation("allocate", "enough slots are free")
async def _(cache: UnifiedRadixCache) -> Call:
    return lambda: take(cache, 8)


@situation("allocate", "something has to be evicted")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(60))
    return lambda: take(cache, 8)


@situation("allocate", "refused: out of slots")
async def _(cache: UnifiedRadixCache) -> Call:
    await take(cache, 60)
    return lambda: take(cache, 8)


@situation("free", "always")
async def _(cache: UnifiedRadixCache) -> Call:
    mine = await take(cache, 8)
    return lambda: cache.free(mine)


@situation("evict", "something is evictable, however much")
async def _(cache: UnifiedRadixCache) -> Call:
    for at in range(5):
        await store(cache, key(tokens(8, start=100 * at)))
    return lambda: cache.evict(EvictParams(num_tokens=64))


@situation("evict", "nothing is evictable")
async def _(cache: UnifiedRadixCache) -> Call:
    return lambda: cache.evict(EvictParams(num_tokens=8))


@situation("evict", "of nothing")
async def _(cache: UnifiedRadixCache) -> Call:
    return lambda: cache.evict(EvictParams())


@situation("evict", "a pin's time is over")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    await cache.pin(key(8), 1e-9)
    return lambda: cache.evict(EvictParams(num_tokens=8))


# -- locks -------------------------------------------------------------------------------------


@situation("inc_lock_ref", "of a node")
async def _(cache: UnifiedRadixCache) -> Call:
    node = (await store(cache, key(8))).last_device_node
    return lambda: cache.inc_lock_ref(node)


@situation("inc_lock_ref", "of the root")
async def _(cache: UnifiedRadixCache) -> Call:
    node = (await match(cache, key(8))).last_device_node
    return lambda: cache.inc_lock_ref(node)


@situation("dec_lock_ref", "always")
async def _(cache: UnifiedRadixCache) -> Call:
    receipt = await cache.inc_lock_ref((await store(cache, key(8))).last_device_node)
    return lambda: cache.dec_lock_ref(receipt)


@situation("hold", "the whole block")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    found = await match(cache, key(8))

    async def block() -> None:
        async with cache.hold(found):
            pass

    return block


@situation("device_indices", "always")
async def _(cache: UnifiedRadixCache) -> Call:
    node = (await store(cache, key(8))).last_device_node
    return lambda: cache.device_indices(node)


# -- requests ----------------------------------------------------------------------------------


@situation("cache_unfinished_req", "at least one new page")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    req.kv_committed_len = 16
    return lambda: cache.cache_unfinished_req(req, chunked=True)


@situation("cache_unfinished_req", "no new page, or `is_insert=False`")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    req.kv_committed_len = 10
    return lambda: cache.cache_unfinished_req(req, chunked=True)


@situation("cache_finished_req", "at least one new page")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    return lambda: cache.cache_finished_req(req)


@situation("cache_finished_req", "no new page, or `is_insert=False`")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    return lambda: cache.cache_finished_req(req, is_insert=False)


@situation("cache_finished_req", "the scheduler wrote the row itself")
async def _(cache: UnifiedRadixCache) -> Call:
    row = cache.req_to_token_pool.alloc()
    req = Request("r", tokens(10), req_pool_idx=row)
    mine = await take(cache, 10)
    cache.req_to_token_pool.rows[row, :12] = mine
    return lambda: cache.cache_finished_req(req)


@situation("abort_req", "it holds something")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    return lambda: cache.abort_req(req)


@situation("abort_req", "it holds nothing")
async def _(cache: UnifiedRadixCache) -> Call:
    req = Request("r", tokens(8))
    return lambda: cache.abort_req(req)


# -- the rest ----------------------------------------------------------------------------------


@situation("pin", "a cached key")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    return lambda: cache.pin(key(8), 1000.0)


@situation("pin", "it splits a node")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    return lambda: cache.pin(key(4), 1000.0)


@situation("pin", "of a pinned key")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    await cache.pin(key(8), 1000.0)
    return lambda: cache.pin(key(8), 2000.0)


@situation("pin", "refused")
async def _(cache: UnifiedRadixCache) -> Call:
    return lambda: cache.pin(key(8), 1000.0)


@situation("unpin", "of a pinned key")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    await cache.pin(key(8), 1000.0)
    return lambda: cache.unpin(key(8))


@situation("unpin", "of a key that is not pinned")
async def _(cache: UnifiedRadixCache) -> Call:
    return lambda: cache.unpin(key(8))


@situation("reset", "nothing is held")
async def _(cache: UnifiedRadixCache) -> Call:
    await store(cache, key(8))
    return cache.reset


@situation("reset", "refused")
async def _(cache: UnifiedRadixCache) -> Call:
    await take(cache, 8)
    return cache.reset


@situation("stats", "always")
async def _(cache: UnifiedRadixCache) -> Call:
    return cache.stats


@situation("audit", "always")
async def _(cache: UnifiedRadixCache) -> Call:
    return cache.audit


@situation("pretty_print", "always")
async def _(cache: UnifiedRadixCache) -> Call:
    return cache.pretty_print


@situation("picture", "always")
async def _(cache: UnifiedRadixCache) -> Call:
    return cache.picture


# -- the comparison ----------------------------------------------------------------------------


TABLE: Final = table(5)


def test_every_situation_is_in_the_document_and_the_other_way_round() -> None:
    assert list(TABLE) == list(SITUATIONS)


def test_every_public_call_is_in_the_document() -> None:
    lifecycle = {"from_toml", "close", "add_interceptor", "remove_interceptor"}
    lifecycle |= {"post_release", "is_fetched"}
    public = {
        name
        for name, member in {**vars(TieredCache), **vars(UnifiedRadixCache)}.items()
        if not name.startswith("_") and (callable(member) or isinstance(member, classmethod))
    }
    assert public - lifecycle == {call for call, _ in (*TABLE, *table(8), *table(11))}


@pytest.mark.parametrize("name", SITUATIONS, ids=": ".join)
async def test_a_call_costs_the_messages_that_the_document_says(name: tuple[str, str]) -> None:
    coordinator, starred, count = TABLE[name]
    component = starred.replace("*", "")
    async with open_cache(pin_budget=64, delivery="queued") as cache:
        call = await SITUATIONS[name](cache)
        record = Recorder()
        cache.add_interceptor(record)
        await ended(call)
        await settled(cache)
        cache.remove_interceptor(record)
        sent: dict[str, list[str]] = {"coordinator": [], "full": []}
        for message, actor in record.sent:
            sent[actor].append(message)
        assert (", ".join(sent["coordinator"]), ", ".join(sent["full"])) == (coordinator, component)
        assert str(len(record.sent)) == count
        assert record.handled == record.sent
        assert Counter(record.finished) == Counter(record.sent)


@pytest.mark.parametrize("name", SITUATIONS, ids=": ".join)
async def test_the_counters_of_a_direct_call_agree_with_the_document(
    name: tuple[str, str],
) -> None:
    coordinator, component, _ = TABLE[name]
    async with open_cache(pin_budget=64, delivery="direct") as cache:
        call = await SITUATIONS[name](cache)
        before = await handled(cache)
        await ended(call)
        after = await handled(cache)
    assert after["coordinator"] - before["coordinator"] == len(names(coordinator))
    at_once = [one for one in names(component) if not one.endswith("*")]
    assert after["full"] - before["full"] == len(at_once)


async def test_the_cost_of_a_match_and_of_an_insert_does_not_grow_with_the_path() -> None:
    async with open_cache(size=256) as cache:
        for length in range(4, 64, 4):
            await store(cache, key(length), prev=length - 4)
        given = await take(cache, 64)
        record = Recorder()
        cache.add_interceptor(record)
        assert len((await match(cache, key(60))).device_indices) == 60
        assert len(record.sent) == 3
        await cache.insert(InsertParams(key=key(64), value=given))
        assert len(record.sent) == 6
        cache.remove_interceptor(record)
