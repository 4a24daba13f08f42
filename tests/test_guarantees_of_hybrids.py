"""One test a sentence of docs/guarantees.md: allocation, states and inserts of hybrid caches.

Those of windows, eviction and cancellation are in test_guarantees_of_windows.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from radixtide import AllocateParams, EvictParams, InsertParams, Request, UnifiedRadixCache
from radixtide.components.api import EvictResult
from radixtide.configs.errors import InvalidInput, OutOfSlots, SlotError
from support.caches import MakeCache, assert_nothing_held, key, match, slots, tokens
from support.hybrids import STATES, admit, chunk, hybrid, pool, put, windows


def contents(cache: UnifiedRadixCache, slot: int) -> float:
    """Return what stands in a state's slot, the same in every tensor of it."""
    conv, ssm = cache.memory["mamba"].views(0)
    assert float(conv[slot]) == float(ssm[slot])
    return float(conv[slot])


def write(cache: UnifiedRadixCache, slot: int, number: float) -> None:
    """Fill a state's slot."""
    for part in cache.memory["mamba"].views(0):
        part[slot].fill_(number)


# -- allocation --------------------------------------------------------------------------------


async def test_g66_an_allocation_takes_of_every_pool_or_of_none(make_cache: MakeCache) -> None:
    sizes = hybrid(page_size=4, window=8, size=32, swa_size=16, states=2)
    async with make_cache(**sizes) as cache:
        await put(cache, key(8), state=True)
        before = await cache.pretty_print(), (await cache.stats()).pools
        for params, asked in (
            (AllocateParams(num_tokens=20), {"full": 20, "swa": 20}),
            (AllocateParams(num_tokens=4, mamba_num=3), {"full": 4, "swa": 4, "mamba": 3}),
            (AllocateParams(num_tokens=36, swa_num_tokens=0), {"full": 36}),
            (AllocateParams(mamba_num=3, req=Request("r", tokens(4))), {"mamba": 3}),
        ):
            with pytest.raises(OutOfSlots) as refused:
                await cache.allocate(params)
            told = refused.value.pools
            assert {name: pool["wanted"] for name, pool in told.items()} == asked
            for name, numbers in told.items():
                parts = await pool(cache, name)
                for part in ("free", "evictable", "protected", "held", "size"):
                    assert numbers[part] == getattr(parts, part)
            assert (await cache.pretty_print(), (await cache.stats()).pools) == before
        await assert_nothing_held(cache)


async def test_g67_the_last_tokens_get_window_slots(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        given = await cache.allocate(AllocateParams(num_tokens=12, swa_num_tokens=5))
        assert given.swa_indices is not None
        paired = given.swa_indices.tolist()
        assert paired[:4] == [-1] * 4
        assert min(paired[4:]) >= 0
        assert len(set(paired[4:])) == 8
        assert (await pool(cache, "swa")).held == 8
        assert (await cache.component_slots("swa", given.indices)).tolist() == paired
        whole = await cache.allocate(AllocateParams(num_tokens=8))
        none = await cache.allocate(AllocateParams(num_tokens=8, swa_num_tokens=0))
        assert whole.swa_indices is not None
        assert none.swa_indices is not None
        assert int(whole.swa_indices.min()) >= 0
        assert none.swa_indices.tolist() == [-1] * 8
        for one in (given, whole, none):
            await cache.free(one.indices)
        await assert_nothing_held(cache)


async def test_g68_what_is_freed_for_one_pool_counts_for_the_others(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(page_size=4, window=8, size=16, states=2)) as cache:
        await put(cache, key(8), state=True)
        await put(cache, key(tokens(8, 50)), state=True)
        given = await cache.allocate(AllocateParams(num_tokens=8, mamba_num=1))
        assert given.evicted == EvictResult(8, 8, 1)
        assert (await cache.stats()).nodes == 1
        assert given.mamba_indices is not None
        await cache.free(given.indices)
        await cache.free(given.mamba_indices, "mamba")
        await put(cache, key(8), state=True)
        freed = await cache.evict(EvictParams(num_tokens=8, swa_num_tokens=8, mamba_num=1))
        assert freed == EvictResult(8, 8, 1)
        assert (await cache.stats()).nodes == 1


async def test_g69_states_allocated_for_a_request_are_its_own(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        req = Request("r", tokens(8))
        given = await cache.allocate(AllocateParams(num_tokens=8, mamba_num=3, req=req))
        assert given.mamba_indices is not None
        states = given.mamba_indices.tolist()
        assert len(set(states)) == 3
        assert (req.mamba_pool_idx, req.mamba_ping_pong) == (states[0], states[1:])
        with pytest.raises(SlotError):
            await cache.free(given.mamba_indices[:1], "mamba")
        assert (await pool(cache, "mamba")).held == 3
        await cache.abort_req(req)
        assert (req.mamba_pool_idx, req.mamba_ping_pong) == (None, None)
        await assert_nothing_held(cache)
        await cache.abort_req(req)
        await assert_nothing_held(cache)


async def test_g70_window_slots_follow_their_full_slots(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        mine = (await cache.allocate(AllocateParams(num_tokens=16))).indices
        await cache.free(mine[:2], "swa")
        assert (await cache.component_slots("swa", mine)).tolist()[:4] == [-1] * 4
        assert [(await pool(cache, name)).held for name in ("full", "swa")] == [16, 12]
        await cache.free(mine[:4], "swa")
        assert (await pool(cache, "swa")).held == 12
        await cache.free(mine[:8])
        assert [(await pool(cache, name)).held for name in ("full", "swa")] == [8, 8]
        await cache.free(mine[8:])
        await assert_nothing_held(cache)


# -- states ------------------------------------------------------------------------------------


@pytest.mark.parametrize("lock", [False, True])
async def test_g71_a_copy_of_the_matched_state_is_the_requests(
    make_cache: MakeCache, lock: bool
) -> None:
    async with make_cache(**hybrid(page_size=4, window=8, holds_states=True)) as cache:
        stored = await put(cache, key(8), state=True)
        assert stored.state is not None
        write(cache, stored.state, 7.0)
        req = Request("r", tokens(12))
        found = await match(cache, req.key(), req=req, cow_mamba=True, lock=lock)
        assert len(found.device_indices) == 8
        working = req.mamba_pool_idx
        assert working not in (None, stored.state)
        assert working is not None
        assert contents(cache, working) == 7.0
        write(cache, working, 8.0)
        assert contents(cache, stored.state) == 7.0
        assert (await pool(cache, "mamba")).held == 1
        await cache.abort_req(req)
        assert req.mamba_pool_idx is None
        await assert_nothing_held(cache)


@pytest.mark.parametrize("states", [1, 3])
async def test_g72_a_working_slot_takes_the_copy(make_cache: MakeCache, states: int) -> None:
    async with make_cache(**hybrid(page_size=4, window=8, holds_states=True)) as cache:
        stored = await put(cache, key(8), state=True)
        assert stored.state is not None
        write(cache, stored.state, 7.0)
        req = Request("r", tokens(12))
        await cache.allocate(AllocateParams(mamba_num=states, req=req))
        working, ring = req.mamba_pool_idx, req.mamba_ping_pong
        await match(cache, req.key(), req=req, cow_mamba=True, lock=True)
        assert (req.mamba_pool_idx, req.mamba_ping_pong) == (working, ring)
        assert working is not None
        assert contents(cache, working) == 7.0
        assert (await pool(cache, "mamba")).held == states
        await cache.abort_req(req)


@pytest.mark.parametrize("lock", [False, True])
async def test_g73_without_a_slot_for_the_copy_a_match_is_empty(
    make_cache: MakeCache, lock: bool
) -> None:
    async with make_cache(**hybrid(page_size=4, window=8, states=2)) as cache:
        await put(cache, key(8), state=True)
        taken = (await cache.allocate(AllocateParams(mamba_num=1))).mamba_indices
        assert taken is not None
        req = Request("r", tokens(12))
        found = await match(cache, req.key(), req=req, cow_mamba=True, lock=lock)
        assert (len(found.device_indices), found.miss_reason) == (0, "no_slot")
        assert found.full_kv_hit_length == 8
        assert req.mamba_pool_idx is None
        stats = await cache.stats()
        assert (stats.nodes, stats.requests) == (1, int(lock))
        assert stats.pools["mamba"]["device"].held == 1
        await cache.abort_req(req)
        await cache.free(taken, "mamba")
        # With another state to evict there is a slot.
        await put(cache, key(tokens(8, 50)), state=True)
        found = await match(cache, req.key(), req=req, cow_mamba=True, lock=lock)
        assert len(found.device_indices) == 8
        assert (await cache.stats()).nodes == 1
        await cache.abort_req(req)


async def test_g74_a_state_that_comes_with_an_insert_is_never_the_callers_again(
    make_cache: MakeCache,
) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        first = await put(cache, key(8), state=True)
        assert not first.result.mamba_exist
        assert first.result.component_adopted["mamba"] == ((7, 8),)
        again = await put(cache, key(8), state=True)
        assert again.result.mamba_exist
        assert "mamba" not in again.result.component_adopted
        assert first.state != again.state
        parts = await pool(cache, "mamba")
        assert (parts.evictable, parts.held) == (1, 0)
        for state in (first.state, again.state):
            with pytest.raises(SlotError):
                await cache.free(slots([state or 0]), "mamba")


async def test_g75_a_state_is_good_for_exactly_one_length(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(STATES, page_size=4)) as cache:
        given = await cache.allocate(AllocateParams(num_tokens=12, mamba_num=1))
        with pytest.raises(InvalidInput, match="valid at exactly its own length"):
            await cache.insert(
                InsertParams(key=key(10), value=given.indices, mamba_value=given.mamba_indices)
            )
        assert (await pool(cache, "mamba")).held == 1
        await cache.insert(
            InsertParams(key=key(12), value=given.indices, mamba_value=given.mamba_indices)
        )
        for length, matched, reason in ((12, 12, "complete"), (14, 12, "unaligned_tail")):
            found = await match(cache, key(length))
            assert (len(found.device_indices), found.miss_reason) == (matched, reason)
        shorter = await match(cache, key(8))
        assert (len(shorter.device_indices), shorter.miss_reason) == (0, "no_state")
        assert shorter.full_kv_hit_length == 8
        assert shorter.mamba_branching_seqlen == 8


async def test_g76_a_finished_request_donates_its_state_and_keeps_none(
    make_cache: MakeCache,
) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        req = await admit(cache, "r", tokens(16))
        assert (await pool(cache, "mamba")).held == 3
        req.note_state(8)
        req.note_state(12)
        result = await cache.cache_finished_req(req)
        assert result.inserted_len == 12
        parts = await pool(cache, "mamba")
        assert (parts.evictable, parts.held) == (1, 0)
        assert (req.mamba_pool_idx, req.mamba_ping_pong) == (None, None)
        assert len((await match(cache, key(16))).device_indices) == 12
        # The newest of what was committed: here the one before the last.
        late = await admit(cache, "late", tokens(16, 50))
        late.note_state(8)
        late.note_state(12)
        late.kv_committed_len = 10
        assert (await cache.cache_finished_req(late)).inserted_len == 8
        parts = await pool(cache, "mamba")
        assert (parts.evictable, parts.held) == (2, 0)
        # Without a state all is cached, and it is good for Full alone.
        bare = await admit(cache, "bare", tokens(16, 100))
        assert (await cache.cache_finished_req(bare)).inserted_len == 16
        assert (await pool(cache, "mamba")).evictable == 2
        await assert_nothing_held(cache)


async def test_g77_a_running_request_has_another_slot_for_the_state_it_donates(
    make_cache: MakeCache,
) -> None:
    async with make_cache(**hybrid(page_size=4, window=8, holds_states=True)) as cache:
        req = await admit(cache, "r", tokens(16))
        working, ring = req.mamba_pool_idx, list(req.mamba_ping_pong or [])
        write(cache, ring[0], 8.0)
        assert await chunk(cache, req, 8) == 8
        assert req.mamba_pool_idx == working
        assert req.mamba_ping_pong is not None
        assert req.mamba_ping_pong[1] == ring[1]
        assert req.mamba_ping_pong[0] not in ring
        parts = await pool(cache, "mamba")
        assert (parts.protected, parts.held) == (1, 3)
        other = Request("o", tokens(12))
        await match(cache, other.key(), req=other, cow_mamba=True)
        assert other.mamba_pool_idx is not None
        assert contents(cache, other.mamba_pool_idx) == 8.0
        await cache.abort_req(other)
        await cache.abort_req(req)
        await assert_nothing_held(cache)
    # Without a ring it goes on in its working slot, and the tree gets a copy.
    async with make_cache(**hybrid(STATES, page_size=1, holds_states=True)) as cache:
        req = await admit(cache, "r", tokens(6))
        working = req.mamba_pool_idx
        assert working is not None
        write(cache, working, 4.0)
        assert await chunk(cache, req, 4) == 4
        assert req.mamba_pool_idx == working
        write(cache, working, 6.0)
        other = Request("o", tokens(5))
        await match(cache, other.key(), req=other, cow_mamba=True)
        assert other.mamba_pool_idx is not None
        assert contents(cache, other.mamba_pool_idx) == 4.0
        await cache.abort_req(other)
        await cache.cache_finished_req(req)
        await assert_nothing_held(cache)


async def test_g78_without_a_slot_in_its_place_a_state_is_not_donated(
    make_cache: MakeCache,
) -> None:
    async with make_cache(**hybrid(page_size=4, window=8, states=3)) as cache:
        req = await admit(cache, "r", tokens(16))
        own = [req.mamba_pool_idx, *(req.mamba_ping_pong or [])]
        assert await chunk(cache, req, 8) == 8
        assert (await cache.stats()).counters["donations_skipped"] == 1
        assert [req.mamba_pool_idx, *(req.mamba_ping_pong or [])] == own
        assert (await pool(cache, "mamba")).held == 3
        found = await match(cache, key(8))
        assert (found.full_kv_hit_length, found.miss_reason) == (8, "no_state")
        # It is not lost: the finished request has it still.
        req.kv_committed_len = 8
        await cache.abort_req(req)
        await assert_nothing_held(cache)


# -- inserts -----------------------------------------------------------------------------------


async def test_g79_an_insert_tells_what_each_component_adopted(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        half = await put(cache, key(16), live=8, state=True)
        assert half.result.adopted == ((0, 16),)
        assert half.result.component_adopted == {"swa": ((8, 16),), "mamba": ((15, 16),)}
        given = await cache.allocate(AllocateParams(num_tokens=24))
        told = await cache.insert(
            InsertParams(key=key(24), value=given.indices, component_evicted_seqlens={"swa": 4})
        )
        # What was a tombstone and is live now, and what is new; the rest is free.
        assert told.duplicate == ((0, 16),)
        assert told.component_adopted == {"swa": ((4, 8), (16, 24))}
        assert await windows(cache, told.last_device_node) == ".#####"
        parts = await pool(cache, "swa")
        assert (parts.evictable, parts.held, parts.free) == (20, 0, parts.size - 20)
        # The calls that cache a request tell it too.
        req = await admit(cache, "r", tokens(12, 50), live=4)
        req.kv_committed_len = 8
        running = await cache.cache_unfinished_req(req)
        assert running.component_adopted == {}
        req.kv_committed_len = 12
        req.note_state(12)
        done = await cache.cache_finished_req(req)
        assert done.component_adopted == {"swa": ((8, 12),), "mamba": ((11, 12),)}
        await assert_nothing_held(cache)


async def test_g80_full_slots_of_the_tree_are_never_replaced(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        bare = await put(cache, key(16), live=0)
        held = await cache.inc_lock_ref(bare.node)
        before = (await cache.device_indices(bare.node)).tolist()
        assert await windows(cache, bare.node) == "...."
        again = await put(cache, key(16))
        assert again.result.duplicate == ((0, 16),)
        assert again.result.component_adopted["swa"] == ((0, 16),)
        assert again.swa is not None
        assert (await cache.device_indices(bare.node)).tolist() == before
        # The window's slots are the caller's, under the tree's Full slots.
        moved = await cache.component_slots("swa", slots(before))
        assert np.array_equal(moved, again.swa)
        await cache.dec_lock_ref(held)
        await assert_nothing_held(cache)


async def test_g81_a_node_is_made_even_where_a_component_has_nothing_for_it(
    make_cache: MakeCache,
) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        bare = await put(cache, key(8), live=0)
        assert bare.result.inserted_len == 8
        assert bare.result.component_adopted == {}
        assert (await cache.device_indices(bare.node)).tolist() == bare.slots.tolist()
        assert (await match(cache, key(8))).full_kv_hit_length == 8
        assert (await pool(cache, "swa")).held == 0
