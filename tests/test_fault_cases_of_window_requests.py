"""Faults that users of other caches reported: bigrams and life with windows (kinds K7, K8).

The table in test_fault_cases_of_windows.py says which case is where.
"""

from __future__ import annotations

import asyncio

import pytest

from radixtide import (
    AllocateParams,
    Busy,
    EvictParams,
    InvalidRequest,
    MissReason,
    OutOfSlots,
    PinRefused,
    RadixKey,
    Request,
)
from support.caches import Delivery, assert_nothing_held, key, match, state_of, tokens
from support.hybrids import (
    ALL,
    BOTH,
    admit,
    assert_window_whole,
    audited,
    build,
    chunk,
    decode,
    drain,
    free,
    has,
    pool,
    protected,
    put,
    windows,
)

sets = pytest.mark.parametrize("components", [BOTH, ALL], ids=["swa", "swa+mamba"])
pages = pytest.mark.parametrize("page_size", [1, 4])
Components = tuple[str, ...]


def bigram(token_ids: list[int]) -> RadixKey:
    """Return the bigram view of tokens."""
    return RadixKey(token_ids, is_bigram=True)


@pytest.mark.parametrize(("page_size", "window"), [(4, 7), (4, 4), (4, 9), (2, 3), (1, 5), (8, 3)])
@pytest.mark.parametrize("length", [16, 17])
@pytest.mark.parametrize("eager", [False, True], ids=["kept", "given back"])
async def test_k7_1_after_a_stash_of_bigrams_the_match_covers_what_was_inserted(
    delivery: Delivery, page_size: int, window: int, length: int, eager: bool
) -> None:
    """The frontier is in the tree's units: 16 tokens are 15 pairs, the leaf keeps its window."""
    async with audited(delivery, BOTH, page_size=page_size, window=window, bigram=True) as cache:
        whole = (length - 1) - (length - 1) % page_size
        req = await admit(cache, "r", tokens(length))
        if eager:
            await cache.release_window(req, length)
            assert req.swa_evicted_seqlen <= max(length - 1 - max(window, page_size), 0)
        first = await cache.cache_unfinished_req(req, chunked=True)
        assert (first.inserted_len, first.freed) == (whole, 0)
        found = await match(cache, bigram(tokens(length)))
        assert len(found.device_indices) == whole
        await assert_window_whole(cache, found)
        await cache.release_window(req, length)
        second = await cache.cache_unfinished_req(req, chunked=True)
        assert (second.inserted_len, second.freed) == (whole, 0)
        assert req.cache_protected_len == whole
        assert len((await match(cache, bigram(tokens(length)))).device_indices) == whole
        await cache.cache_finished_req(req)
        await drain(cache)


@pytest.mark.parametrize(("page_size", "window"), [(4, 7), (2, 3), (1, 4), (8, 3)])
async def test_k7_1_bigrams_decoded_one_by_one_keep_their_window_at_every_stash(
    delivery: Delivery, page_size: int, window: int
) -> None:
    """The same at every length around several page multiples, with a release at each."""
    async with audited(delivery, BOTH, page_size=page_size, window=window, bigram=True) as cache:
        req = await admit(cache, "r", tokens(page_size + 1))
        for length in range(page_size + 1, 36):
            await cache.release_window(req, length)
            done = await chunk(cache, req, length)
            assert done == (length - 1) - (length - 1) % page_size
            found = await match(cache, bigram(tokens(length)))
            assert len(found.device_indices) == done
            await assert_window_whole(cache, found)
            await decode(cache, req)
        await cache.cache_finished_req(req)
        await drain(cache)


@pages
async def test_k7_3_a_rest_shorter_than_a_page_of_pairs_finds_no_page_and_no_window(
    delivery: Delivery, page_size: int
) -> None:
    """A page of pairs needs a token more than a page, below a tombstone and below a window too."""
    async with audited(delivery, BOTH, page_size=page_size, window=page_size, bigram=True) as cache:
        length = 4 * page_size + 1
        first = await put(cache, bigram(tokens(length)), evicted=2 * page_size)
        assert await windows(cache, first.node) == "..##"
        for count in range(2, length + 1):
            found = await match(cache, bigram(tokens(count)))
            stored = (count - 1) - (count - 1) % page_size
            assert found.full_kv_hit_length == stored
            hit = stored if stored > 2 * page_size else 0
            assert len(found.device_indices) == hit, count
        await drain(cache)


@pages
async def test_k7_6_prompts_that_part_at_a_token_share_one_pair_less_in_every_pool(
    delivery: Delivery, page_size: int
) -> None:
    """The last common token's pair differs, so neither Full nor SWA of it is shared."""
    async with audited(delivery, BOTH, page_size=page_size, window=4, bigram=True) as cache:
        first, second = [*tokens(9), 100, 101, 102, 103], [*tokens(9), 200, 201, 202, 203]
        one = await put(cache, bigram(first))
        shared = 8
        assert len((await match(cache, bigram(second))).device_indices) == shared
        other = await put(cache, bigram(second))
        assert other.result.prefix_len == shared
        assert other.result.component_adopted["swa"] == ((shared, 12),)
        swa = [
            (await cache.component_slots("swa", await cache.device_indices(at.node))).tolist()
            for at in (one, other)
        ]
        assert swa[0][:shared] == swa[1][:shared]
        assert not set(swa[0][shared:]) & set(swa[1][shared:])
        await drain(cache)


@sets
@pages
@pytest.mark.parametrize("pattern", ["#...", "....", ".#..", "##.."])
@pytest.mark.parametrize("chunked", [True, False])
async def test_k8_1_a_stash_over_a_tombstoned_path_costs_the_request_nothing(
    delivery: Delivery, components: Components, page_size: int, pattern: str, chunked: bool
) -> None:
    """The match of others ends before the gap; the request keeps lock, row and all its length."""
    async with audited(delivery, components, page_size=page_size, window=3) as cache:
        await build(cache, pattern)
        end = 4 * page_size
        # It computed without SWA what the tree has without.
        req = await admit(cache, "r", [*tokens(end), 7], live=1, row=True)
        if chunked:
            await chunk(cache, req, 2 * page_size)
        assert await chunk(cache, req, end) == end
        usable = len((await match(cache, key(end))).device_indices)
        assert usable < end
        assert req.cache_protected_len == end
        assert req.prefix_indices is not None
        canonical = (await cache.device_indices(req.last_node)).tolist()
        assert req.prefix_indices.tolist() == canonical
        rows = cache.req_to_token_pool.rows
        assert rows[req.req_pool_idx, :end].tolist() == canonical
        assert (await protected(cache, "full")) == (end,)
        await cache.evict(EvictParams(num_tokens=64))
        assert (await cache.device_indices(req.last_node)).tolist() == canonical
        await cache.cache_finished_req(req)
        await drain(cache)


@sets
@pages
async def test_k8_3_the_result_of_a_chunk_after_an_abort_is_refused_in_every_pool(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Abort gives back Full, SWA and states, once; what comes later changes nothing."""
    async with audited(delivery, components, page_size=page_size) as cache:
        req = await admit(cache, "r", tokens(12))
        await chunk(cache, req, 4)
        await cache.release_window(req, 8)
        await cache.abort_req(req)
        before = await free(cache)
        assert before["swa"] == 64 - 4
        req.kv_committed_len = 8
        with pytest.raises(InvalidRequest, match="holds nothing"):
            await cache.cache_unfinished_req(req, chunked=True)
        with pytest.raises(InvalidRequest, match="holds nothing"):
            await cache.release_window(req, 12)
        assert (await cache.abort_req(req)).freed == 0
        assert await free(cache) == before
        assert req.swa_evicted_seqlen == 0
        assert len((await match(cache, key(12))).device_indices) == 4
        await drain(cache)


@sets
@pages
async def test_k8_8_look_ups_never_pin_a_window_and_pins_of_windows_end(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Prompts looked up twice and never used, pins within a budget: the pools never fill up."""
    async with audited(delivery, components, page_size=page_size, pin_budget=16, window=4) as cache:
        now = 0.0
        state_of(cache).clock = lambda: now
        for turn in range(12):
            wanted = key(tokens(8, 100 * turn))
            await put(cache, wanted, state=has(cache, "mamba"))
            assert len((await match(cache, wanted)).device_indices) == 8
            await match(cache, wanted)
            try:
                await cache.pin(wanted, ttl=1.5)
            except PinRefused:
                assert (await cache.stats()).pinned == 16
            assert (await pool(cache, "swa")).protected == (await cache.stats()).pinned // 2
            now += 1.0
        now += 10.0
        await cache.evict(EvictParams(num_tokens=64))
        await drain(cache)


@sets
@pages
async def test_k8_8_a_request_id_can_be_used_again_after_the_end_in_every_pool(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """The same id, many times, the windows given back at each: no life counts in the next."""
    async with audited(delivery, components, page_size=page_size) as cache:
        for turn in range(8):
            req = await admit(cache, "same", [*tokens(8), *tokens(4, 100 * turn)])
            assert req.swa_evicted_seqlen == 0
            await cache.release_window(req, 12)
            await chunk(cache, req, 12)
            if turn % 3 == 2:
                await cache.abort_req(req)
            else:
                await cache.cache_finished_req(req)
            await assert_nothing_held(cache)
        await drain(cache)


@sets
@pages
async def test_k8_9_an_abort_of_a_request_that_was_never_scheduled_leaves_every_pool(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Aborted while it waits: before a match, after one with a copy, after one with a lock."""
    async with audited(delivery, components, page_size=page_size) as cache:
        state = has(cache, "mamba")
        await put(cache, key(8), state=state)
        before = (await cache.stats()).pools
        for fields in (
            {},
            {"lock": True},
            {"cow_mamba": state},
            {"lock": True, "cow_mamba": state},
        ):
            req = Request("queued", tokens(12))
            req.req_pool_idx = cache.req_to_token_pool.alloc()
            if fields:
                await match(cache, req.key(), req=req, **fields)
            await cache.abort_req(req)
            assert cache.req_to_token_pool.available == 16
            assert (await cache.stats()).pools == before
            await assert_nothing_held(cache)


@sets
@pages
async def test_k8_10_a_retracted_request_finds_its_work_and_its_window_again(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Retraction caches what is computed; the new life goes on from the very end of it."""
    async with audited(delivery, components, page_size=page_size) as cache:
        req = await admit(cache, "r", tokens(16))
        await cache.release_window(req, 8)
        await chunk(cache, req, 8)
        await cache.cache_finished_req(req)
        await assert_nothing_held(cache)
        again = await admit(cache, "r", tokens(16))
        assert again.cache_protected_len == 8
        assert (await protected(cache, "full", "swa")) == (8, 4)
        await chunk(cache, again, 16)
        await cache.cache_finished_req(again)
        assert len((await match(cache, key(16))).device_indices) == 16
        await drain(cache)


@sets
async def test_k8_12_a_reset_is_refused_while_slots_of_any_pool_are_held(
    delivery: Delivery, components: Components
) -> None:
    """A request by its name, loose slots by their pool; then it waits, and says the truth."""
    async with audited(delivery, components, page_size=2) as cache:
        await put(cache, key(8), state=has(cache, "mamba"))
        req = await admit(cache, "busy", tokens(8))
        with pytest.raises(Busy, match="'busy'"):
            await cache.reset()
        await cache.abort_req(req)
        loose = await cache.allocate(AllocateParams(num_tokens=4))
        with pytest.raises(Busy, match="4 slots of pool swa"):
            await cache.reset()
        waiting = asyncio.ensure_future(cache.reset(timeout=20))
        await asyncio.sleep(0)
        with pytest.raises(Busy, match="another reset"):
            await cache.reset()
        assert not waiting.done()
        await cache.free(loose.indices, "swa")
        await cache.free(loose.indices)
        await waiting
        stats = await cache.stats()
        assert (stats.generation, stats.nodes) == (1, 0)
        assert {name: tiers["device"].free for name, tiers in stats.pools.items()} == {
            name: tiers["device"].size for name, tiers in stats.pools.items()
        }
        found = await match(cache, key(8))
        assert (len(found.device_indices), found.miss_reason) == (0, MissReason.NEVER_STORED)
        with pytest.raises(OutOfSlots):
            await cache.allocate(AllocateParams(num_tokens=66))
