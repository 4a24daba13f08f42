"""Unusable handles and receipts, and caches that are not open: refused, and nothing changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import torch

from radixtide import (
    AllocateParams,
    Busy,
    CacheClosed,
    EvictParams,
    ForeignReceipt,
    InsertParams,
    LockReceipt,
    MatchPrefixParams,
    MatchResult,
    MissReason,
    NodeHandle,
    ReceiptError,
    ReceiptReleased,
    Request,
    StaleNode,
    UnifiedRadixCache,
    UnknownNode,
)
from radixtide.configs.schema import StorageConfig
from support.caches import Delivery, MakeCache, key, make_config, match, store, take, tokens
from support.lively import full_of_life as full_of_life
from support.snapshots import as_int64, refused_and_unchanged

Call = Callable[[UnifiedRadixCache], Awaitable[Any]]


# -- handles and receipts ------------------------------------------------------------------------


async def test_a_receipt_is_released_once(full_of_life: UnifiedRadixCache) -> None:
    cache = full_of_life
    receipt = (await match(cache, key(8), lock=True)).receipt
    assert receipt is not None
    await cache.dec_lock_ref(receipt)
    async with refused_and_unchanged(cache, ReceiptReleased, "released before"):
        await cache.dec_lock_ref(receipt)


async def test_a_receipt_of_another_cache_is_refused(
    full_of_life: UnifiedRadixCache, make_cache: MakeCache
) -> None:
    async with make_cache() as other:
        await store(other, key(8))
        receipt = (await match(other, key(8), lock=True)).receipt
        assert receipt is not None
        async with refused_and_unchanged(full_of_life, ForeignReceipt, "of another cache"):
            await full_of_life.dec_lock_ref(receipt)
        await other.dec_lock_ref(receipt)


async def test_a_receipt_from_before_a_reset_is_refused(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        receipt = (await match(cache, key(8), lock=True)).receipt
        assert receipt is not None
        await cache.dec_lock_ref(receipt)
        await cache.reset()
        await store(cache, key(8))
        await match(cache, key(8), lock=True)
        async with refused_and_unchanged(cache, ForeignReceipt, "before the tree was reset"):
            await cache.dec_lock_ref(receipt)


@pytest.mark.parametrize(
    "change",
    [
        {"id": 10**6},
        {"id": 0},
        {"id": -1},
        {"id": 1},
        {"node": NodeHandle(0, 0, 0)},
        {"node": NodeHandle(10**6, 0, 0)},
        {"generation": 1},
        {"epoch": 1},
    ],
    ids=repr,
)
async def test_an_altered_receipt_is_refused(
    full_of_life: UnifiedRadixCache, change: dict[str, Any]
) -> None:
    cache = full_of_life
    receipt = (await match(cache, key(8), lock=True)).receipt
    assert receipt is not None
    inside = {name: change[name] for name in ("generation", "epoch") if name in change}
    if inside:
        change = {"node": msgspec.structs.replace(receipt.node, **inside)}
    altered = msgspec.structs.replace(receipt, **change)
    async with refused_and_unchanged(cache, ReceiptError, "receipt"):
        await cache.dec_lock_ref(altered)
    await cache.dec_lock_ref(receipt)


async def test_a_receipt_of_a_request_is_released_by_the_request_only(
    full_of_life: UnifiedRadixCache,
) -> None:
    cache = full_of_life
    req = Request(rid="other", origin_input_ids=tokens(8))
    receipt = (await match(cache, req.key(), req=req, lock=True)).receipt
    assert receipt is not None
    async with refused_and_unchanged(cache, ReceiptError, "belongs to request 'other'", req):
        await cache.dec_lock_ref(receipt)
    await cache.abort_req(req)
    async with refused_and_unchanged(cache, ReceiptReleased, "released before"):
        await cache.dec_lock_ref(receipt)


NODE_CALLS: dict[str, Callable[[UnifiedRadixCache, NodeHandle], Awaitable[Any]]] = {
    "inc_lock_ref": lambda cache, node: cache.inc_lock_ref(node),
    "device_indices": lambda cache, node: cache.device_indices(node),
}


@pytest.mark.parametrize("call", NODE_CALLS.values(), ids=NODE_CALLS)
@pytest.mark.parametrize(
    "node",
    [
        NodeHandle(10**6, 0, 0),
        NodeHandle(-1, 0, 0),
        NodeHandle(10**6, 7, 0),
        NodeHandle(1, -1, 0),
    ],
    ids=repr,
)
async def test_a_node_that_was_never_given_out_is_unknown(
    full_of_life: UnifiedRadixCache, node: NodeHandle, call: Callable[..., Awaitable[Any]]
) -> None:
    async with refused_and_unchanged(full_of_life, UnknownNode, "never given out by this cache"):
        await call(full_of_life, node)


@pytest.mark.parametrize("call", NODE_CALLS.values(), ids=NODE_CALLS)
async def test_a_node_that_was_evicted_or_is_of_an_older_tree_is_stale(
    make_cache: MakeCache, call: Callable[..., Awaitable[Any]]
) -> None:
    async with make_cache() as cache:
        first = (await store(cache, key(8))).last_device_node
        await cache.evict(EvictParams(num_tokens=8))
        async with refused_and_unchanged(cache, StaleNode, "match again"):
            await call(cache, first)
        second = (await store(cache, key(8))).last_device_node
        async with refused_and_unchanged(cache, StaleNode, "match again"):
            await call(cache, first)
        await cache.reset()
        await store(cache, key(8))
        async with refused_and_unchanged(cache, StaleNode, "match again"):
            await call(cache, second)


async def test_a_hold_of_a_stale_match_locks_nothing(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        found = await match(cache, key(8))
        await cache.evict(EvictParams(num_tokens=8))
        hold = cache.hold(found)
        async with refused_and_unchanged(cache, StaleNode, "match again"), hold:
            pytest.fail("a stale match was locked")


# -- life of the cache ---------------------------------------------------------------------------

ANY_RECEIPT = LockReceipt(1, NodeHandle(1, 0, 0), 1)
ANY_MATCH = MatchResult(
    torch.empty(0, dtype=torch.int64),
    NodeHandle(0, 0, 0),
    NodeHandle(0, 0, 0),
    NodeHandle(0, 0, 0),
    miss_reason=MissReason.COMPLETE,
    full_kv_hit_length=0,
    key=key(8),
)


def _request(rid: str = "r") -> Request:
    return Request(rid=rid, origin_input_ids=tokens(8))


EVERY_CALL: dict[str, Call] = {
    "match_prefix": lambda c: c.match_prefix(MatchPrefixParams(key=key(8))),
    "insert": lambda c: c.insert(InsertParams(key=key(8), value=as_int64(*range(8)))),
    "allocate": lambda c: c.allocate(AllocateParams(num_tokens=4)),
    "free": lambda c: c.free(as_int64(0, 1, 2, 3)),
    "evict": lambda c: c.evict(EvictParams(num_tokens=4)),
    "inc_lock_ref": lambda c: c.inc_lock_ref(NodeHandle(1, 0, 0)),
    "dec_lock_ref": lambda c: c.dec_lock_ref(ANY_RECEIPT),
    "dec_swa_lock_only": lambda c: c.dec_swa_lock_only(ANY_RECEIPT),
    "release_window": lambda c: c.release_window(_request(), 8),
    "component_slots": lambda c: c.component_slots("full", as_int64(0)),
    "device_indices": lambda c: c.device_indices(NodeHandle(1, 0, 0)),
    "hold": lambda c: c.hold(ANY_MATCH).__aenter__(),
    "cache_unfinished_req": lambda c: c.cache_unfinished_req(_request()),
    "cache_finished_req": lambda c: c.cache_finished_req(_request()),
    "abort_req": lambda c: c.abort_req(_request()),
    "pin": lambda c: c.pin(key(8), 1.0),
    "unpin": lambda c: c.unpin(key(8)),
    "reset": lambda c: c.reset(),
    "stats": lambda c: c.stats(),
    "audit": lambda c: c.audit(),
    "pretty_print": lambda c: c.pretty_print(),
    "picture": lambda c: c.picture(),
    "load_back": lambda c: c.load_back(ANY_MATCH),
    "prefetch": lambda c: c.prefetch(key(8)),
    "drain": lambda c: c.drain(),
    "flush": lambda c: c.flush("host", 1.0),
    "step": lambda c: c.step(),
    "attach_storage": lambda c: c.attach_storage(StorageConfig(url="memory:")),
    "detach_storage": lambda c: c.detach_storage(),
}


def test_every_public_coroutine_is_in_the_table() -> None:
    public = {
        name
        for name in dir(UnifiedRadixCache)
        if not name.startswith("_") and callable(getattr(UnifiedRadixCache, name))
    }
    own = {"close", "from_toml", "add_interceptor", "remove_interceptor", "kill"}
    # For the handles that calls return.
    own |= {"post_release", "post", "now", "is_fetched"}
    assert public - own == set(EVERY_CALL)


@pytest.mark.parametrize("call", EVERY_CALL.values(), ids=EVERY_CALL)
async def test_a_cache_that_is_not_open_yet_answers_nothing(call: Call, delivery: Delivery) -> None:
    cache = UnifiedRadixCache(make_config(delivery=delivery))
    with pytest.raises(CacheClosed, match="async with"):
        await call(cache)


@pytest.mark.parametrize("call", EVERY_CALL.values(), ids=EVERY_CALL)
async def test_a_cache_that_is_closed_answers_nothing(call: Call, delivery: Delivery) -> None:
    async with UnifiedRadixCache(make_config(delivery=delivery)) as cache:
        await store(cache, key(8))
    with pytest.raises(CacheClosed, match="closed"):
        await call(cache)


async def test_a_cache_is_entered_once(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        with pytest.raises(CacheClosed, match="make a new one"):
            await cache.__aenter__()
        await store(cache, key(8))
    with pytest.raises(CacheClosed, match="make a new one"):
        await cache.__aenter__()


async def test_a_reset_while_something_is_held_names_the_holders(
    full_of_life: UnifiedRadixCache,
) -> None:
    async with refused_and_unchanged(full_of_life, Busy, r"request 'runs', receipt \d+ on node"):
        await full_of_life.reset()


async def test_a_reset_names_slots_that_are_held_without_a_request(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        mine = await take(cache, 8)
        async with refused_and_unchanged(cache, Busy, "8 slots of pool full allocated without"):
            await cache.reset()
        await cache.free(mine)
        await cache.reset()
