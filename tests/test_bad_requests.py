"""Requests used in a way that contradicts the ledger: refused, and nothing changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from radixtide import (
    AllocateParams,
    InsertParams,
    InvalidInput,
    InvalidRequest,
    MatchPrefixParams,
    OutOfSlots,
    RadixKey,
    Request,
    SlotError,
    UnifiedRadixCache,
)
from support.caches import MakeCache, assert_nothing_held, key, match, store, take, tokens
from support.snapshots import refused_and_unchanged

Ending = Callable[[UnifiedRadixCache, Request], Awaitable[Any]]
ENDINGS: dict[str, Ending] = {
    "unfinished": lambda cache, req: cache.cache_unfinished_req(req),
    "unfinished without insert": lambda cache, req: cache.cache_unfinished_req(
        req, is_insert=False
    ),
    "finished": lambda cache, req: cache.cache_finished_req(req),
    "finished without insert": lambda cache, req: cache.cache_finished_req(req, is_insert=False),
}
EVERY_ENDING = pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)


async def admit(
    cache: UnifiedRadixCache, rid: str = "r", length: int = 12, row: bool = False, **fields: Any
) -> Request:
    """Match with a lock and allocate for the rest of a prompt of `length` tokens."""
    req = Request(rid=rid, origin_input_ids=tokens(length), **fields)
    if row:
        req.req_pool_idx = cache.req_to_token_pool.alloc()
    found = await match(cache, req.key(), req=req, lock=True)
    rest = length - len(found.device_indices)
    await cache.allocate(AllocateParams(num_tokens=rest, req=req))
    return req


async def test_a_request_locks_once(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    req = Request(rid="r", origin_input_ids=tokens(12))
    await match(cache, req.key(), req=req, lock=True)
    async with refused_and_unchanged(cache, InvalidRequest, "holds a lock already", req):
        await match(cache, req.key(), req=req, lock=True)
    await cache.abort_req(req)
    await assert_nothing_held(cache)


async def test_a_request_that_allocated_can_not_lock_any_more(cache: UnifiedRadixCache) -> None:
    req = Request(rid="r", origin_input_ids=tokens(12))
    await cache.allocate(AllocateParams(num_tokens=4, req=req))
    async with refused_and_unchanged(cache, InvalidRequest, "match before you allocate", req):
        await match(cache, req.key(), req=req, lock=True)
    await cache.abort_req(req)
    await assert_nothing_held(cache)


@EVERY_ENDING
async def test_a_request_that_holds_nothing_can_not_be_cached(
    cache: UnifiedRadixCache, end: Ending
) -> None:
    req = Request(rid="r", origin_input_ids=tokens(12))
    async with refused_and_unchanged(cache, InvalidRequest, "holds nothing in this cache", req):
        await end(cache, req)


@EVERY_ENDING
@pytest.mark.parametrize("row", [False, True], ids=["no row", "row"])
async def test_a_request_ends_once(cache: UnifiedRadixCache, end: Ending, row: bool) -> None:
    req = await admit(cache, row=row)
    await cache.cache_finished_req(req)
    async with refused_and_unchanged(cache, InvalidRequest, "finished already", req):
        await end(cache, req)
    assert (await cache.abort_req(req)).freed == 0
    await assert_nothing_held(cache)


@EVERY_ENDING
async def test_an_aborted_request_can_not_be_cached(cache: UnifiedRadixCache, end: Ending) -> None:
    req = await admit(cache, row=True)
    await cache.abort_req(req)
    async with refused_and_unchanged(cache, InvalidRequest, "holds nothing in this cache", req):
        await end(cache, req)


async def test_a_second_abort_frees_nothing(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, row=True)
    assert (await cache.abort_req(req)).freed == 12
    assert (await cache.abort_req(req)).freed == 0
    await assert_nothing_held(cache)
    assert cache.req_to_token_pool.available == 16


@EVERY_ENDING
@pytest.mark.parametrize("committed", [-1, -(2**40), 0, 7, 13, 16, 2**40])
async def test_a_committed_length_outside_of_what_is_held_is_refused(
    cache: UnifiedRadixCache, end: Ending, committed: int
) -> None:
    await store(cache, key(8))
    req = await admit(cache)
    req.kv_committed_len = committed
    says = rf"kv_committed_len {committed} is not between .* \(8\) .* \(12\)"
    async with refused_and_unchanged(cache, InvalidRequest, says, req):
        await end(cache, req)
    req.kv_committed_len = 12
    await cache.cache_finished_req(req)
    await assert_nothing_held(cache)


async def test_a_committed_length_beyond_the_slots_is_refused(cache: UnifiedRadixCache) -> None:
    req = Request(rid="r", origin_input_ids=tokens(12))
    await match(cache, req.key(), req=req, lock=True)
    await cache.allocate(AllocateParams(num_tokens=6, req=req))
    req.kv_committed_len = 8
    async with refused_and_unchanged(cache, InvalidRequest, r"tokens \(12\) and slots \(6\)", req):
        await cache.cache_finished_req(req)
    await cache.abort_req(req)


async def test_two_running_requests_can_not_have_one_name(cache: UnifiedRadixCache) -> None:
    req = await admit(cache)
    twin = Request(rid="r", origin_input_ids=tokens(12))
    says = "request id 'r' is in use"
    async with refused_and_unchanged(cache, InvalidRequest, says, req, twin):
        await match(cache, twin.key(), req=twin, lock=True)
    async with refused_and_unchanged(cache, InvalidRequest, says, req, twin):
        await cache.allocate(AllocateParams(num_tokens=4, req=twin))
    for end in ENDINGS.values():
        async with refused_and_unchanged(cache, InvalidRequest, says, req, twin):
            await end(cache, twin)
    assert (await cache.abort_req(twin)).freed == 0
    assert (await cache.stats()).requests == 1
    await cache.cache_finished_req(req)
    again = await admit(cache)
    await cache.cache_finished_req(again)
    await assert_nothing_held(cache)


@pytest.mark.parametrize("change", [{"extra_key": "adapter"}, {"cache_salt": "tenant"}], ids=repr)
async def test_a_key_of_another_namespace_is_not_the_requests(
    cache: UnifiedRadixCache, change: dict[str, str]
) -> None:
    req = Request(rid="r", origin_input_ids=tokens(12))
    async with refused_and_unchanged(cache, InvalidRequest, "different namespaces", req):
        await match(cache, key(12, **change), req=req, lock=True)


@EVERY_ENDING
@pytest.mark.parametrize("change", [{"extra_key": "adapter"}, {"cache_salt": "tenant"}], ids=repr)
async def test_a_request_that_changes_its_namespace_is_not_cached(
    cache: UnifiedRadixCache, end: Ending, change: dict[str, str]
) -> None:
    await store(cache, key(8))
    req = await admit(cache)
    for name, value in change.items():
        setattr(req, name, value)
    async with refused_and_unchanged(cache, InvalidRequest, "namespace", req):
        await end(cache, req)
    await cache.abort_req(req)
    await assert_nothing_held(cache)


@EVERY_ENDING
async def test_a_request_that_changes_its_name_is_not_cached(
    cache: UnifiedRadixCache, end: Ending
) -> None:
    req = await admit(cache)
    req.rid = "another"
    async with refused_and_unchanged(cache, InvalidRequest, "another", req):
        await end(cache, req)
    req.rid = "r"
    await cache.cache_finished_req(req)
    await assert_nothing_held(cache)


# -- rows ----------------------------------------------------------------------------------------


async def test_a_row_that_is_too_short_is_refused_before_anything_is_taken(
    make_cache: MakeCache,
) -> None:
    async with make_cache(max_context=8) as cache:
        req = Request(rid="r", origin_input_ids=tokens(12))
        req.req_pool_idx = cache.req_to_token_pool.alloc()
        async with refused_and_unchanged(cache, InvalidRequest, r"12 units, its row only 8", req):
            await match(cache, req.key(), req=req, lock=True)
        async with refused_and_unchanged(cache, InvalidRequest, "9 tokens, its row only 8", req):
            await cache.allocate(AllocateParams(num_tokens=9, req=req))
        await cache.allocate(AllocateParams(num_tokens=8, req=req))
        async with refused_and_unchanged(cache, InvalidRequest, "9 tokens, its row only 8", req):
            await cache.allocate(AllocateParams(num_tokens=1, req=req))
        await cache.abort_req(req)
        await assert_nothing_held(cache)


@pytest.mark.parametrize("row", [-1, 3, 16, 10**9])
async def test_a_row_that_was_not_taken_is_refused(cache: UnifiedRadixCache, row: int) -> None:
    req = Request(rid="r", origin_input_ids=tokens(12), req_pool_idx=row)
    says = f"row {row} of the request table is not taken"
    async with refused_and_unchanged(cache, InvalidInput, says, req):
        await match(cache, req.key(), req=req, lock=True)
    async with refused_and_unchanged(cache, InvalidInput, says, req):
        await cache.allocate(AllocateParams(num_tokens=4, req=req))
    for end in ENDINGS.values():
        async with refused_and_unchanged(cache, InvalidInput, says, req):
            await end(cache, req)


@EVERY_ENDING
async def test_a_row_that_was_freed_under_a_request_is_refused(
    cache: UnifiedRadixCache, end: Ending
) -> None:
    req = await admit(cache, row=True)
    assert req.req_pool_idx is not None
    cache.req_to_token_pool.free(req.req_pool_idx)
    async with refused_and_unchanged(cache, InvalidInput, "is not taken", req):
        await end(cache, req)
    await cache.abort_req(req)
    await assert_nothing_held(cache)


async def test_a_row_of_another_running_request_is_refused(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, "owner", row=True)
    thief = Request(rid="thief", origin_input_ids=tokens(8, 50), req_pool_idx=req.req_pool_idx)
    async with refused_and_unchanged(cache, InvalidRequest, "owner", req, thief):
        await match(cache, thief.key(), req=thief, lock=True)
    async with refused_and_unchanged(cache, InvalidRequest, "owner", req, thief):
        await cache.allocate(AllocateParams(num_tokens=4, req=thief))
    await cache.cache_finished_req(req)
    await assert_nothing_held(cache)


async def test_an_abort_never_frees_the_row_of_another(cache: UnifiedRadixCache) -> None:
    pool = cache.req_to_token_pool
    req = await admit(cache, "owner", row=True)
    row = req.req_pool_idx
    assert row is not None
    thief = Request(rid="thief", origin_input_ids=tokens(8, 50), req_pool_idx=row)
    await cache.abort_req(thief)
    assert pool.is_taken(row)
    assert req.prefix_indices is not None
    await cache.cache_finished_req(req)
    await assert_nothing_held(cache)


async def test_an_abort_frees_the_row_that_the_request_came_with(cache: UnifiedRadixCache) -> None:
    pool = cache.req_to_token_pool
    req = await admit(cache, row=True)
    row, other = req.req_pool_idx, pool.alloc()
    assert row is not None
    req.req_pool_idx = other
    await cache.abort_req(req)
    assert (pool.is_taken(row), pool.is_taken(other)) == (False, True)
    await assert_nothing_held(cache)


async def test_a_row_that_names_slots_of_others_is_refused(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    other = await admit(cache, "other", length=8 + 4)
    pool = cache.req_to_token_pool
    req = Request(rid="r", origin_input_ids=tokens(8, 50), req_pool_idx=pool.alloc())
    assert req.req_pool_idx is not None
    row = pool.rows[req.req_pool_idx]
    mine = await take(cache, 8)
    for foreign in ((await match(cache, key(8))).device_indices, other.prefix_indices):
        assert foreign is not None
        row[:8] = foreign
        for name in ("unfinished", "finished", "finished without insert"):
            async with refused_and_unchanged(cache, SlotError, "the tree's", req):
                await ENDINGS[name](cache, req)
    row[:8] = mine
    assert (await cache.cache_finished_req(req)).inserted_len == 8
    await cache.cache_finished_req(other)
    await assert_nothing_held(cache)


async def test_a_request_table_without_a_free_row_says_so(make_cache: MakeCache) -> None:
    async with make_cache(max_requests=2) as cache:
        pool = cache.req_to_token_pool
        rows = [pool.alloc(), pool.alloc()]
        with pytest.raises(OutOfSlots, match="requests: wanted 1, free 0"):
            pool.alloc()
        pool.free(rows[0])
        with pytest.raises(InvalidInput, match="is not taken"):
            pool.free(rows[0])
        assert pool.alloc() == rows[0]


# -- allocation ----------------------------------------------------------------------------------


async def test_a_refused_allocation_leaves_no_trace_of_the_request(
    cache: UnifiedRadixCache,
) -> None:
    req = Request(rid="r", origin_input_ids=tokens(100))
    async with refused_and_unchanged(cache, OutOfSlots, "wanted 100, free 64", req):
        await cache.allocate(AllocateParams(num_tokens=100, req=req))
    await assert_nothing_held(cache)


async def test_a_refused_allocation_keeps_what_the_request_has(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    req = await admit(cache)
    async with refused_and_unchanged(cache, OutOfSlots, "wanted 56, free 52", req):
        await cache.allocate(AllocateParams(num_tokens=53, req=req))
    assert (await cache.cache_finished_req(req)).inserted_len == 12
    await assert_nothing_held(cache)


async def test_an_allocation_of_nothing_holds_nothing(cache: UnifiedRadixCache) -> None:
    req = Request(rid="r", origin_input_ids=tokens(8))
    given = await cache.allocate(AllocateParams(num_tokens=0, req=req))
    assert given.indices.tolist() == []
    await assert_nothing_held(cache)
    await cache.reset()


async def test_a_locking_match_with_a_key_of_other_tokens_is_refused(make_cache: MakeCache) -> None:
    async with make_cache(page_size=4) as cache:
        slots = (await cache.allocate(AllocateParams(num_tokens=8))).indices
        await cache.insert(InsertParams(RadixKey([*range(8)]), slots))
        req = Request("r", [*range(4), 50, 51, 52, 53, 54, 55])
        with pytest.raises(InvalidRequest, match="not made of its own tokens"):
            await cache.match_prefix(MatchPrefixParams(RadixKey([*range(8)]), req=req, lock=True))
        assert (await cache.stats()).receipts == 0
        match = await cache.match_prefix(MatchPrefixParams(req.key(), req=req, lock=True))
        assert len(match.device_indices) == 4
        await cache.abort_req(req)
