"""Faults that users of other caches reported: gaps in windows (kinds K3-7, K3-8, K3-9).

The table in test_fault_cases_of_windows.py says which case is where.
"""

from __future__ import annotations

import pytest

from radixtide import AllocateParams, EvictParams, InvalidInput, MissReason
from support.caches import Delivery, key, match, tokens
from support.hybrids import (
    ALL,
    BOTH,
    admit,
    assert_conserved,
    assert_window_whole,
    audited,
    build,
    chunk,
    drain,
    has,
    pool,
    put,
    windows,
)

sets = pytest.mark.parametrize("components", [BOTH, ALL], ids=["swa", "swa+mamba"])
pages = pytest.mark.parametrize("page_size", [1, 2, 4])
Components = tuple[str, ...]


@sets
@pages
@pytest.mark.parametrize("known", [False, True], ids=["new", "stored before"])
async def test_k3_7_a_stash_of_tokens_without_swa_makes_tombstones_and_rewrites_the_row(
    delivery: Delivery, components: Components, page_size: int, known: bool
) -> None:
    """A decode-side request got its prefix without SWA: no live SWA, and the row is the tree's."""
    async with audited(delivery, components, page_size=page_size, window=4) as cache:
        if known:
            await put(cache, key(8), evicted=8)
        req = await admit(cache, "r", tokens(12), live=4, row=True)
        assert req.cache_protected_len == 0
        row = cache.req_to_token_pool.rows[req.req_pool_idx]
        own = row[:8].tolist()
        assert await chunk(cache, req, 8) == 8
        node = req.last_node
        canonical = await cache.device_indices(node)
        assert await windows(cache, node) == "." * (8 // page_size)
        assert len((await match(cache, key(8))).device_indices) == 0
        assert row[:8].tolist() == canonical.tolist()
        assert req.prefix_indices is not None
        assert req.prefix_indices.tolist() == canonical.tolist()
        assert (canonical.tolist() == own) is not known
        swa = await pool(cache, "swa")
        assert (swa.evictable, swa.protected, swa.held, swa.free) == (0, 0, 4, 60)
        assert (await pool(cache, "full")).free == 64 - 12
        assert_conserved(cache)
        assert await chunk(cache, req, 12) == 12
        assert await windows(cache, req.last_node) == "." * (8 // page_size) + "#" * (
            4 // page_size
        )
        await cache.cache_finished_req(req)
        found = await match(cache, key(12))
        assert len(found.device_indices) == 12
        await assert_window_whole(cache, found)
        await drain(cache)


@sets
@pages
async def test_k3_7_a_stash_over_a_reused_prefix_whose_window_is_gone_since(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """The prefix that a request stands on lost its SWA before the lock's window: it keeps all."""
    async with audited(delivery, components, page_size=page_size, window=4) as cache:
        await put(cache, key(12), state=has(cache, "mamba"))
        req = await admit(cache, "r", tokens(16), row=True)
        assert req.cache_protected_len == 12
        await cache.evict(EvictParams(swa_num_tokens=64))
        await cache.dec_swa_lock_only(req.lock)
        await cache.evict(EvictParams(swa_num_tokens=64))
        assert await windows(cache, req.last_node) == "." * (12 // page_size)
        before = cache.req_to_token_pool.rows[req.req_pool_idx, :16].tolist()
        assert await chunk(cache, req, 16) == 16
        assert req.prefix_indices is not None
        assert req.prefix_indices.tolist() == before
        assert await windows(cache, req.last_node) == "." * (12 // page_size) + "#" * (
            4 // page_size
        )
        await cache.cache_finished_req(req)
        assert len((await match(cache, key(16))).device_indices) == 16
        await drain(cache)


@sets
async def test_k3_8_a_branch_shortly_before_the_end_has_its_window_while_nothing_is_evicted(
    delivery: Delivery, components: Components
) -> None:
    """What a request did not give back itself stays: finishing makes no tombstone."""
    async with audited(delivery, components, page_size=2, window=4) as cache:
        req = await admit(cache, "r", tokens(16))
        await chunk(cache, req, 14)
        await chunk(cache, req, 16)
        await cache.cache_finished_req(req)
        found = await match(cache, key([*tokens(14), 99, 98]))
        assert len(found.device_indices) == 14
        await assert_window_whole(cache, found)


@sets
@pages
async def test_k3_8_a_branch_whose_window_was_given_back_is_a_loss_that_is_named_and_repaired(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Full is there, the window is not: the reason is counted, and one new computation mends it."""
    branch = [*tokens(12), 99, 98, 97, 96]
    async with audited(delivery, components, page_size=page_size, window=4) as cache:
        req = await admit(cache, "r", tokens(16))
        await cache.release_window(req, 16)
        await chunk(cache, req, 16)
        await cache.cache_finished_req(req)
        before = (await cache.stats()).counters
        found = await match(cache, key(branch))
        assert (len(found.device_indices), found.full_kv_hit_length) == (0, 12)
        assert found.miss_reason is MissReason.WINDOW_GAP
        assert found.swa_branching_seqlen == 12
        after = (await cache.stats()).counters
        assert after["miss.window_gap"] == before["miss.window_gap"] + 1
        assert after["miss.no_state"] == before["miss.no_state"]
        second = await admit(cache, "second", branch)
        assert second.cache_protected_len == 0
        await chunk(cache, second, 12)
        await chunk(cache, second, 16)
        await cache.cache_finished_req(second)
        third = await match(cache, key([*tokens(12), 7, 7, 7, 7]))
        assert len(third.device_indices) == 12
        await drain(cache)


@sets
@pages
async def test_k3_8_under_pressure_the_window_before_the_end_goes_last(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Eviction of SWA takes the pages farthest from the end first; the hit stays whole."""
    async with audited(delivery, components, page_size=page_size, window=4) as cache:
        pattern = "#" * (16 // page_size)
        await build(cache, pattern[:-1] + ("s" if has(cache, "mamba") else "#"))
        while (await pool(cache, "swa")).evictable > 4:
            gone = await cache.evict(EvictParams(swa_num_tokens=1))
            assert gone.swa_num_tokens_evicted == page_size
            assert gone.num_tokens_evicted == 0
            found = await match(cache, key(16))
            assert len(found.device_indices) == 16
            await assert_window_whole(cache, found)
        await drain(cache)


@sets
@pages
@pytest.mark.parametrize("order", [(4, 8), (8, 4)])
async def test_k3_9_after_any_eviction_the_window_is_whole_or_the_hit_is_shorter(
    delivery: Delivery, components: Components, page_size: int, order: tuple[int, int]
) -> None:
    """Parent and child within one window: what is evicted leaves a shorter hit, never a hole."""
    async with audited(delivery, components, page_size=page_size, window=8) as cache:
        state = has(cache, "mamba")
        await put(cache, key(4), state=state)
        await put(cache, key(8), prev=4, state=state)
        for length in order:
            await match(cache, key(length))
        seen = []
        for _ in range(4):
            await cache.evict(EvictParams(swa_num_tokens=4))
            for length in (8, 4):
                found = await match(cache, key(length))
                seen.append(len(found.device_indices))
                await assert_window_whole(cache, found)
        assert seen[-2:] == [0, 0]
        assert (await pool(cache, "swa")).free == 64
        await drain(cache)


@sets
async def test_k3_7_a_token_decoded_into_a_page_without_swa_is_not_handed_minus_one(
    delivery: Delivery, components: Components
) -> None:
    """Its page was taken without SWA: the allocation says so, or the page has SWA after all."""
    async with audited(delivery, components, page_size=4) as cache:
        req = await admit(cache, "r", tokens(6), live=0)
        try:
            given = await cache.allocate(AllocateParams(num_tokens=1, req=req))
        except InvalidInput:
            await cache.abort_req(req)
            return
        assert given.swa_indices is not None
        assert int(given.swa_indices[0]) >= 0
