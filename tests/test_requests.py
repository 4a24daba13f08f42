"""The life of a request: admission, chunks, decoding, retraction, abort; rows and ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import torch

from radixtide import (
    AllocateParams,
    CacheReqResult,
    EvictParams,
    OutOfSlots,
    Request,
    UnifiedRadixCache,
)
from support.caches import (
    MakeCache,
    assert_nothing_held,
    assert_sound,
    key,
    match,
    state_of,
    store,
    take,
    tokens,
)
from support.interceptors import Recorder

ROWS = pytest.mark.parametrize("row", [False, True], ids=["no row", "row"])


async def admit(
    cache: UnifiedRadixCache,
    prompt: list[int],
    rid: str = "r",
    row: bool = False,
    take_now: int | None = None,
) -> Request:
    """Match with a lock, and allocate for the rest of the prompt (or `take_now` tokens of it)."""
    req = Request(rid=rid, origin_input_ids=prompt)
    if row:
        req.req_pool_idx = cache.req_to_token_pool.alloc()
    found = await match(cache, req.key(), req=req, lock=True)
    rest = len(prompt) - len(found.device_indices) if take_now is None else take_now
    await cache.allocate(AllocateParams(num_tokens=rest, req=req))
    return req


async def chunk(cache: UnifiedRadixCache, req: Request, done: int) -> CacheReqResult:
    """Cache a request as far as `done` tokens."""
    req.kv_committed_len = done
    return await cache.cache_unfinished_req(req, chunked=True)


def row_of(cache: UnifiedRadixCache, req: Request, length: int) -> list[int]:
    """Return the first slots of a request's row."""
    assert req.req_pool_idx is not None
    slots: list[int] = cache.req_to_token_pool.rows[req.req_pool_idx, :length].tolist()
    return slots


async def pool(cache: UnifiedRadixCache) -> tuple[int, int, int, int]:
    """Return (free, evictable, protected, held)."""
    one = (await cache.stats()).pools["full"]["device"]
    return one.free, one.evictable, one.protected, one.held


# -- admission -----------------------------------------------------------------------------------


@ROWS
async def test_a_locked_match_gives_the_request_its_lock_and_prefix(
    cache: UnifiedRadixCache, row: bool
) -> None:
    await store(cache, key(8))
    req = Request(rid="r", origin_input_ids=tokens(12))
    if row:
        req.req_pool_idx = cache.req_to_token_pool.alloc()
    found = await match(cache, req.key(), req=req, lock=True)
    assert found.receipt is not None
    assert req.lock == found.receipt
    assert (req.last_node, req.cache_protected_len) == (found.last_device_node, 8)
    assert req.prefix_indices is not None
    assert req.prefix_indices.tolist() == found.device_indices.tolist() == list(range(8))
    if row:
        assert row_of(cache, req, 8) == list(range(8))
    assert await pool(cache) == (56, 0, 8, 0)
    await cache.abort_req(req)
    await assert_nothing_held(cache)


async def test_a_match_without_a_lock_gives_the_request_nothing(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    req = Request(rid="r", origin_input_ids=tokens(12))
    found = await match(cache, req.key(), req=req)
    assert (found.receipt, req.lock, req.prefix_indices, req.cache_protected_len) == (None,) * 3 + (
        0,
    )
    await assert_nothing_held(cache)


async def test_a_miss_locks_nothing_but_opens_the_request(cache: UnifiedRadixCache) -> None:
    req = Request(rid="r", origin_input_ids=tokens(12))
    found = await match(cache, req.key(), req=req, lock=True)
    assert found.receipt is not None
    assert found.device_indices.tolist() == []
    assert req.prefix_indices is not None
    assert len(req.prefix_indices) == 0
    assert (await cache.stats()).requests == 1
    await cache.abort_req(req)
    await assert_nothing_held(cache)


async def test_what_a_match_hands_out_is_the_callers_to_write(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    req = await admit(cache, tokens(8), take_now=0)
    found = await match(cache, key(8))
    found.device_indices.fill_(-5)
    assert req.prefix_indices is not None
    assert req.prefix_indices.tolist() == list(range(8))
    assert (await match(cache, key(8))).device_indices.tolist() == list(range(8))
    await cache.abort_req(req)


# -- chunks --------------------------------------------------------------------------------------


@ROWS
async def test_a_prompt_is_cached_chunk_by_chunk(cache: UnifiedRadixCache, row: bool) -> None:
    await store(cache, key(4))
    req = await admit(cache, tokens(19), row=row)
    expected = [(7, 4), (12, 12), (18, 16)]
    for done, inserted in expected:
        result = await chunk(cache, req, done)
        assert (result.inserted_len, result.freed) == (inserted, 0)
        assert req.cache_protected_len == inserted
        assert req.prefix_indices is not None
        canonical = (await match(cache, key(19))).device_indices
        assert req.prefix_indices.tolist() == canonical.tolist()
        assert len(canonical) == inserted
        if row:
            assert row_of(cache, req, inserted) == canonical.tolist()
        free, evictable, protected, held = await pool(cache)
        assert (free, evictable, protected, held) == (44, 0, inserted, 20 - inserted)
        await assert_sound(cache)
    req.kv_committed_len = 19
    assert (await cache.cache_finished_req(req)).freed == 4
    await assert_nothing_held(cache)


async def test_a_chunk_shorter_than_a_page_changes_nothing(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(12))
    before = req.lock
    result = await chunk(cache, req, 3)
    assert result == CacheReqResult(0, 0, 0)
    assert req.lock == before
    assert await pool(cache) == (52, 0, 0, 12)
    await cache.abort_req(req)


async def test_a_chunk_that_is_cached_twice_is_cached_once(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(12))
    assert (await chunk(cache, req, 8)).inserted_len == 8
    lock = req.lock
    assert await chunk(cache, req, 8) == CacheReqResult(8, 8, 0)
    assert req.lock == lock
    await cache.abort_req(req)
    await assert_nothing_held(cache)


async def test_a_new_lock_is_taken_before_the_old_one_goes(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(16))
    receipts = []
    for done in (4, 8, 16):
        await chunk(cache, req, done)
        receipts.append(req.lock)
        assert (await cache.evict(EvictParams(num_tokens=64))).num_tokens_evicted == 0
        assert (await cache.stats()).receipts == 1
    assert len({receipt.id for receipt in receipts}) == 3
    assert (await pool(cache))[2] == 16
    await cache.cache_finished_req(req)


async def test_a_row_is_written_before_the_duplicates_are_freed(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(12), row=True)
    mine = row_of(cache, req, 12)
    await store(cache, key(12))
    canonical = (await match(cache, key(12))).device_indices.tolist()
    seen: list[list[int]] = []

    class AtSettle(Recorder):
        def before_handle(self, envelope: Any) -> None:
            if type(envelope.message).__name__ == "Settle":
                seen.append(row_of(cache, req, 12))
                assert envelope.message.free.tolist() == mine[:8]
                owners = cache._components[0].allocator.owners()
                assert owners[mine[0] // 4] >= 3, "the duplicates are still the request's"

    watch = AtSettle()
    cache.add_interceptor(watch)
    result = await chunk(cache, req, 9)
    cache.remove_interceptor(watch)
    assert result == CacheReqResult(inserted_len=8, prefix_len=8, freed=8)
    assert seen == [[*canonical[:8], *mine[8:]]]
    await cache.cache_finished_req(req)
    await assert_nothing_held(cache)


async def test_a_request_that_meets_a_longer_prompt_of_another_ends_inside_it(
    cache: UnifiedRadixCache,
) -> None:
    req = await admit(cache, [*tokens(8), 70, 71, 72, 73])
    await store(cache, key(16))
    result = await chunk(cache, req, 12)
    assert (result.inserted_len, result.prefix_len, result.freed) == (12, 8, 8)
    canonical = (await match(cache, req.key())).device_indices
    assert req.prefix_indices is not None
    assert req.prefix_indices.tolist() == canonical.tolist()
    await cache.cache_finished_req(req)
    await assert_nothing_held(cache)


async def test_without_insert_a_running_request_keeps_its_slots(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(12), row=True)
    mine = row_of(cache, req, 12)
    req.kv_committed_len = 8
    result = await cache.cache_unfinished_req(req, is_insert=False)
    assert result == CacheReqResult(0, 0, 0)
    assert (await cache.stats()).nodes == 0
    assert req.prefix_indices is not None
    assert req.prefix_indices.tolist() == mine[:8]
    assert (await cache.cache_finished_req(req, is_insert=False)).freed == 12
    await assert_nothing_held(cache)


async def test_the_prefix_of_a_request_is_a_view_of_its_row(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(12), row=True)
    await chunk(cache, req, 12)
    assert req.prefix_indices is not None
    assert req.req_pool_idx is not None
    row = cache.req_to_token_pool.rows[req.req_pool_idx]
    assert req.prefix_indices.data_ptr() == row.data_ptr()
    assert req.prefix_indices.dtype == torch.int64
    await cache.cache_finished_req(req)


async def test_a_row_may_be_taken_after_the_first_chunk(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(12))
    await chunk(cache, req, 8)
    assert req.prefix_indices is not None
    before = req.prefix_indices.tolist()
    req.req_pool_idx = cache.req_to_token_pool.alloc()
    await cache.allocate(AllocateParams(num_tokens=1, req=req))
    assert row_of(cache, req, 8) == before
    await cache.cache_finished_req(req)
    assert cache.req_to_token_pool.available == 16


# -- decoding ------------------------------------------------------------------------------------


@ROWS
async def test_decoding_uses_the_room_in_the_last_page(cache: UnifiedRadixCache, row: bool) -> None:
    req = await admit(cache, tokens(6), row=row)
    held = [(await pool(cache))[3]]
    last = []
    for token in range(100, 107):
        given = await cache.allocate(AllocateParams(num_tokens=1, req=req))
        last.append(int(given.indices[0]))
        req.output_ids.append(token)
        held.append((await pool(cache))[3])
    assert held == [8, 8, 8, 12, 12, 12, 12, 16]
    if row:
        assert row_of(cache, req, 13)[6:] == last
    result = await cache.cache_finished_req(req)
    assert (result.inserted_len, result.freed) == (12, 4)
    found = await match(cache, key([*tokens(6), *tokens(7, 100)]))
    assert found.device_indices[6:].tolist() == last[:6]
    await assert_nothing_held(cache)


async def test_tokens_without_slots_are_not_cached(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(8))
    req.output_ids.extend(tokens(8, 100))
    assert (await cache.cache_finished_req(req)).inserted_len == 8
    await assert_nothing_held(cache)


async def test_slots_without_tokens_are_given_back(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(8))
    await cache.allocate(AllocateParams(num_tokens=20, req=req))
    result = await cache.cache_finished_req(req)
    assert (result.inserted_len, result.freed) == (8, 20)
    await assert_nothing_held(cache)


# -- scheduler-written rows ----------------------------------------------------------------------


async def test_a_scheduler_may_allocate_without_the_request_and_write_the_row(
    cache: UnifiedRadixCache,
) -> None:
    await store(cache, key(4))
    rows = cache.req_to_token_pool
    req = Request(rid="r", origin_input_ids=tokens(11), req_pool_idx=rows.alloc())
    await match(cache, req.key(), req=req, lock=True)
    mine = await take(cache, 7)
    rows.rows[req.req_pool_idx, 4:12] = mine
    assert (await chunk(cache, req, 9)).inserted_len == 8
    req.kv_committed_len = 11
    result = await cache.cache_finished_req(req)
    assert (result.inserted_len, result.freed) == (8, 4)
    assert (await match(cache, key(11))).device_indices[4:].tolist() == mine[:4].tolist()
    assert rows.available == 16
    await assert_nothing_held(cache)


# -- the end -------------------------------------------------------------------------------------


async def test_a_finished_request_forgets_what_it_had(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(12), row=True)
    await chunk(cache, req, 8)
    await cache.cache_finished_req(req)
    assert (req.req_pool_idx, req.prefix_indices, req.last_node, req.lock) == (None,) * 4
    assert (req.cache_protected_len, req.counted_len) == (0, 0)


async def test_duplicates_of_a_finished_request_are_freed(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(14))
    await store(cache, key(8))
    result = await cache.cache_finished_req(req)
    assert (result.inserted_len, result.prefix_len, result.freed) == (12, 8, 8 + 4)
    await assert_nothing_held(cache)


async def test_a_finished_request_is_the_most_recent_use(cache: UnifiedRadixCache) -> None:
    req = await admit(cache, tokens(16))
    await chunk(cache, req, 16)
    await store(cache, key(tokens(8, 100)))
    await cache.cache_finished_req(req)
    await cache.evict(EvictParams(num_tokens=4))
    assert len((await match(cache, key(16))).device_indices) == 16
    assert len((await match(cache, key(tokens(8, 100)))).device_indices) == 0


async def test_a_retracted_request_keeps_its_work_and_gives_back_the_rest(
    make_cache: MakeCache,
) -> None:
    async with make_cache(size=32) as cache:
        small = await admit(cache, tokens(12), "small")
        large = await admit(cache, tokens(16, 100), "large")
        with pytest.raises(OutOfSlots):
            await cache.allocate(AllocateParams(num_tokens=8, req=small))
        large.kv_committed_len = 9
        assert (await cache.cache_finished_req(large)).inserted_len == 8
        await cache.allocate(AllocateParams(num_tokens=8, req=small))
        assert len((await match(cache, key(tokens(16, 100)))).device_indices) == 8
        await cache.cache_finished_req(small)
        again = await admit(cache, tokens(16, 100), "large")
        assert again.cache_protected_len == 8
        await cache.cache_finished_req(again)
        await assert_nothing_held(cache)


async def _nothing(cache: UnifiedRadixCache, req: Request) -> None:
    """Only made."""


async def _matched(cache: UnifiedRadixCache, req: Request) -> None:
    await match(cache, req.key(), req=req, lock=True)


async def _allocated(cache: UnifiedRadixCache, req: Request) -> None:
    await _matched(cache, req)
    await cache.allocate(AllocateParams(num_tokens=11, req=req))


async def _unmatched(cache: UnifiedRadixCache, req: Request) -> None:
    await cache.allocate(AllocateParams(num_tokens=7, req=req))


async def _chunked(cache: UnifiedRadixCache, req: Request) -> None:
    await _allocated(cache, req)
    await chunk(cache, req, 9)


async def _decoded(cache: UnifiedRadixCache, req: Request) -> None:
    await _chunked(cache, req)
    for token in range(3):
        await cache.allocate(AllocateParams(num_tokens=1, req=req))
        req.output_ids.append(token)


STAGES: dict[str, Callable[[UnifiedRadixCache, Request], Awaitable[None]]] = {
    "made": _nothing,
    "matched": _matched,
    "allocated": _allocated,
    "allocated without a match": _unmatched,
    "chunked": _chunked,
    "decoding": _decoded,
}


@ROWS
@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES)
async def test_an_abort_at_any_stage_frees_all_once(
    cache: UnifiedRadixCache, stage: Callable[..., Awaitable[None]], row: bool
) -> None:
    await store(cache, key(4))
    req = Request(rid="r", origin_input_ids=tokens(15))
    if row:
        req.req_pool_idx = cache.req_to_token_pool.alloc()
    await stage(cache, req)
    held = (await pool(cache))[3]
    assert (await cache.abort_req(req)).freed == held
    assert cache.req_to_token_pool.available == 16
    await assert_nothing_held(cache)
    assert (await cache.abort_req(req)).freed == 0
    again = await admit(cache, tokens(15), row=row)
    await cache.cache_finished_req(again)
    await assert_nothing_held(cache)


async def test_an_abort_does_not_take_what_others_share(cache: UnifiedRadixCache) -> None:
    first = await admit(cache, tokens(12), "first")
    second = await admit(cache, tokens(12), "second")
    await chunk(cache, first, 12)
    await chunk(cache, second, 12)
    assert (await pool(cache))[2] == 12
    await cache.abort_req(first)
    assert (await cache.evict(EvictParams(num_tokens=64))).num_tokens_evicted == 0
    await cache.cache_finished_req(second)
    await assert_nothing_held(cache)


# -- cost ----------------------------------------------------------------------------------------


async def test_what_is_sent_for_a_chunk_is_as_large_as_the_chunk(make_cache: MakeCache) -> None:
    async with make_cache(size=1024, max_context=1024) as cache:
        req = await admit(cache, list(range(800)), take_now=0)
        watch = Recorder()
        for turn in range(20):
            await cache.allocate(AllocateParams(num_tokens=40, req=req))
            cache.add_interceptor(watch)
            watch.clear()
            await chunk(cache, req, 40 * (turn + 1))
            cache.remove_interceptor(watch)
            messages = [envelope.message for envelope in watch.envelopes]
            inserts = [one for one in messages if type(one).__name__ == "CommitInsert"]
            walks = [
                (len(one.job.walk.path), one.job.walk.limit, one.job.walk.base) for one in inserts
            ]
            assert walks == [(0, 40, 40 * turn)]
            kinds = sorted(type(one).__name__ for one in messages)
            assert len(kinds) <= 4, kinds
            (leaf,) = inserts[0].job.leaves
            assert len(leaf.piece) == 40 * 8
        await cache.cache_finished_req(req)


async def test_a_walk_of_a_chunk_starts_where_the_lock_is(make_cache: MakeCache) -> None:
    async with make_cache(size=1024, max_context=1024) as cache:
        req = await admit(cache, list(range(400)))
        for done in range(40, 401, 40):
            await chunk(cache, req, done)
            entry = state_of(cache).ledger.get(req)
            assert entry is not None
            assert entry.node is not None
            assert entry.node.end == done
        await cache.cache_finished_req(req)
