"""Faults that users of other caches reported, where there is a sliding window: kind K3.

Which case of the kinds K1, K3, K5, K6, K7 and K8 is tested where, as far as windows go (W: this
file; G: test_fault_cases_of_window_gaps.py; L: test_fault_cases_of_window_locks.py; S:
test_fault_cases_of_window_slots.py; R: test_fault_cases_of_window_requests.py). States are in
test_fault_cases_of_states.py, Full alone is in test_fault_cases.py and test_fault_cases_of_life.py.

| case | where | what is left for later |
| --- | --- | --- |
| K1-1, K1-4, K1-6, K1-7 | L | |
| K1-3 | L, with an insert in the place of the load | the load itself needs a host tier |
| K1-9 | | write-back needs a host tier |
| K3-2, K3-3, K3-5 | W | |
| K3-7, K3-8 | G | |
| K3-9 | G: no hole after an eviction | the backup before it needs a host tier |
| K5-1, K5-3, K5-5 | S | |
| K5-7, K5-8, K5-9 | | transfers need a host tier |
| K6-1, K6-3, K6-5, K6-6 | S | |
| K7-1, K7-3, K7-6 | R | |
| K7-5 | | an external store needs storage |
| K8-1, K8-3, K8-8, K8-9, K8-10, K8-12 | R | transfers in flight need a host tier |
| K8-4, K8-6 | | sessions are not there |
| K8-7 | | a remote look-up needs storage |
"""

from __future__ import annotations

from typing import Literal

import pytest

from radixtide import EvictParams, MissReason
from support.caches import Delivery, key, match, tokens
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
    put,
    windows,
)

sets = pytest.mark.parametrize("components", [BOTH, ALL], ids=["swa", "swa+mamba"])
pages = pytest.mark.parametrize("page_size", [1, 2, 4])
Components = tuple[str, ...]


@sets
@pages
@pytest.mark.parametrize("how", ["given back", "never had", "by a request"])
async def test_k3_2_a_leaf_wholly_outside_the_window_is_made_all_the_same(
    delivery: Delivery,
    components: Components,
    page_size: int,
    how: Literal["given back", "never had", "by a request"],
) -> None:
    """SWA has nothing for a new leaf: Full is kept all the same, with a tombstone beside it."""
    async with audited(delivery, components, page_size=page_size, window=2) as cache:
        state = has(cache, "mamba")
        if how == "by a request":
            req = await admit(cache, "r", tokens(8), live=0)
            await chunk(cache, req, 8)
            assert req.last_node is not None
            node = req.last_node
            await cache.cache_finished_req(req)
        else:
            gone = {"evicted": 8} if how == "given back" else {"live": 0}
            done = await put(cache, key(8), state=state, **gone)
            assert done.result.adopted == ((0, 8),)
            assert done.result.component_adopted.get("swa", ()) == ()
            node = done.node
        assert await windows(cache, node) == "." * (8 // page_size)
        assert (await pool(cache, "swa")).free == 64
        found = await match(cache, key(8))
        assert len(found.device_indices) == 0
        assert (found.full_kv_hit_length, found.swa_branching_seqlen) == (8, 8)
        assert found.miss_reason is MissReason.WINDOW_GAP
        # Full was not lost: whoever brings SWA for the last window gets all of it.
        again = await put(cache, key(8), evicted=4)
        assert again.result.duplicate == ((0, 8),)
        assert len((await match(cache, key(8))).device_indices) == 8
        await drain(cache)


@sets
@pytest.mark.parametrize(("page_size", "evicted", "live"), [(1, 4, 4), (2, 3, 4), (4, 5, 8)])
async def test_k3_2_a_leaf_partly_outside_the_window_serves_from_one_window_on(
    delivery: Delivery, components: Components, page_size: int, evicted: int, live: int
) -> None:
    """What was given back is rounded up to whole pages; lengths with a whole window are found."""
    async with audited(delivery, components, page_size=page_size, window=2) as cache:
        done = await put(cache, key(12), evicted=evicted, state=has(cache, "mamba"))
        dead = live // page_size
        assert await windows(cache, done.node) == "." * dead + "#" * (12 // page_size - dead)
        assert done.result.component_adopted["swa"] == ((live, 12),)
        for length in range(page_size, 13, page_size):
            found = await match(cache, key(length))
            usable = length == 12 or (not has(cache, "mamba") and length >= live + 2)
            assert len(found.device_indices) == (length if usable else 0), length
        await drain(cache)


@sets
@pages
async def test_k3_2_an_insert_that_gave_back_more_than_it_has(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """A length given back beyond the insert's end is all of it: a tombstone, no error."""
    async with audited(delivery, components, page_size=page_size) as cache:
        done = await put(cache, key(8), evicted=100)
        assert await windows(cache, done.node) == "." * (8 // page_size)
        more = await put(cache, key(16), prev=8, evicted=100)
        assert await windows(cache, more.node) == "." * (16 // page_size)
        assert (await pool(cache, "swa")).free == 64
        await drain(cache)


@sets
@pages
async def test_k3_3_full_slots_of_a_locked_node_never_change(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """B brings SWA for what A reads without it: it is mapped to the Full slots that A has."""
    async with audited(delivery, components, page_size=page_size, window=4) as cache:
        first = await put(cache, key(16), state=has(cache, "mamba"))
        held = await match(cache, key(16), lock=True)
        assert held.receipt is not None
        await cache.evict(EvictParams(swa_num_tokens=64))
        assert await windows(cache, first.node) == "." * (12 // page_size) + "#" * (4 // page_size)
        before = await free(cache)
        second = await put(cache, key(16))
        assert second.result.duplicate == ((0, 16),)
        assert second.result.component_adopted["swa"] == ((0, 12),)
        found = await match(cache, key(16))
        assert found.device_indices.tolist() == held.device_indices.tolist()
        paired = await cache.component_slots("swa", found.device_indices)
        assert second.swa is not None
        assert first.swa is not None
        assert paired.tolist() == [*second.swa[:12].tolist(), *first.swa[12:].tolist()]
        assert await free(cache) == {**before, "swa": before["swa"] - 12}
        assert (await cache.component_slots("swa", second.slots) == -1).all()
        await cache.dec_lock_ref(held.receipt)
        await drain(cache)


@sets
@pages
@pytest.mark.parametrize("finished", [False, True])
async def test_k3_3_a_request_that_ends_inside_a_locked_tombstone_repairs_its_part(
    delivery: Delivery, components: Components, page_size: int, finished: bool
) -> None:
    """The repaired part is split off; the reader's slots stay, and the writer gets the same."""
    async with audited(delivery, components, page_size=page_size, window=4) as cache:
        first = await put(cache, key(16), state=has(cache, "mamba"))
        held = await match(cache, key(16), lock=True)
        assert held.receipt is not None
        await cache.evict(EvictParams(swa_num_tokens=64))
        req = await admit(cache, "b", tokens(8), row=True)
        assert req.cache_protected_len == 0
        own = cache.req_to_token_pool.rows[req.req_pool_idx, :8].clone()
        await chunk(cache, req, 8)
        assert req.prefix_indices is not None
        assert req.prefix_indices.tolist() == held.device_indices[:8].tolist()
        rows = cache.req_to_token_pool.rows
        assert rows[req.req_pool_idx, :8].tolist() == held.device_indices[:8].tolist()
        assert not set(own.tolist()) & set(held.device_indices.tolist())
        if finished:
            await cache.cache_finished_req(req)
        alive = "#" * (8 // page_size) + "." * (4 // page_size) + "#" * (4 // page_size)
        assert await windows(cache, first.node) == alive
        assert len((await match(cache, key(8))).device_indices) == 8
        again = await match(cache, key(16))
        assert again.device_indices.tolist() == held.device_indices.tolist()
        await cache.dec_lock_ref(held.receipt)
        if not finished:
            await cache.cache_finished_req(req)
        await drain(cache)


@sets
@pages
@pytest.mark.parametrize("pattern", ["#..#", "..##", "#.#.", "....", ".#.#", "###."])
async def test_k3_3_tombstones_anywhere_are_repaired_and_nothing_else_is_taken(
    delivery: Delivery, components: Components, page_size: int, pattern: str
) -> None:
    """Exactly the tombstones take SWA of a new insert; Full slots and live pairs stay."""
    async with audited(delivery, components, page_size=page_size, window=3) as cache:
        first = await build(cache, pattern)
        full = await cache.device_indices(first.node)
        before = await cache.component_slots("swa", full)
        end = 4 * page_size
        second = await put(cache, key(end), state=has(cache, "mamba"))
        after = await cache.component_slots("swa", full)
        assert second.swa is not None
        for at, was, now in zip(range(end), before.tolist(), after.tolist(), strict=True):
            given = int(second.swa[at])
            assert now == (given if was < 0 else was), at
        taken = {
            at
            for begin, stop in second.result.component_adopted.get("swa", ())
            for at in range(begin, stop)
        }
        assert taken == {at for at in range(end) if pattern[at // page_size] == "."}
        found = await match(cache, key(end))
        assert found.device_indices.tolist() == full.tolist()
        await drain(cache)


@sets
@pytest.mark.parametrize(("page_size", "evicted", "begin"), [(1, 5, 5), (2, 5, 6), (4, 5, 8)])
async def test_k3_3_a_tombstone_across_the_frontier_is_repaired_behind_it_only(
    delivery: Delivery, components: Components, page_size: int, evicted: int, begin: int
) -> None:
    """One long tombstone, and SWA from its middle on: it is split there, and half repaired."""
    async with audited(delivery, components, page_size=page_size, window=4) as cache:
        first = await put(cache, key(16), evicted=12)
        second = await put(cache, key(16), evicted=evicted)
        assert second.result.component_adopted["swa"] == ((begin, 12),)
        dead = begin // page_size
        assert await windows(cache, first.node) == "." * dead + "#" * (16 // page_size - dead)
        assert (await pool(cache, "swa")).free == 64 - (16 - begin)
        await drain(cache)


FRONTIERS = [(4, 2), (4, 5), (1, 1), (1, 3), (2, 3), (16, 3), (16, 17)]


@sets
@pytest.mark.parametrize(("page_size", "window"), [(4, 2), (4, 1), (8, 3), (16, 2)])
async def test_k3_5_a_stash_after_an_eager_release_keeps_a_page_where_pages_exceed_the_window(
    delivery: Delivery, components: Components, page_size: int, window: int
) -> None:
    """The frontier stays a whole page behind: the leaf is never wholly out of the window."""
    end = 2 * page_size
    async with audited(delivery, components, page_size=page_size, window=window) as cache:
        req = await admit(cache, "r", tokens(end))
        assert await cache.release_window(req, end) == page_size
        assert req.swa_evicted_seqlen == page_size
        assert await chunk(cache, req, end) == end
        assert await windows(cache, req.last_node) == ".#"
        assert len((await match(cache, key(end))).device_indices) == end
        assert await cache.release_window(req, end) == 0
        await cache.cache_finished_req(req)
        await drain(cache)


@sets
@pytest.mark.parametrize(("page_size", "window"), FRONTIERS)
async def test_k3_5_the_frontier_stays_a_window_and_a_page_behind_at_every_step(
    delivery: Delivery, components: Components, page_size: int, window: int
) -> None:
    """Decoding token by token, a release at each, a stash at some: no match is ever lost."""
    start, end = 3 * page_size, 3 * page_size + 40
    async with audited(delivery, components, page_size=page_size, window=window, size=128) as cache:
        req = await admit(cache, "r", tokens(start))
        reach = max(window, page_size)
        for length in range(start, end):
            await cache.release_window(req, length)
            assert req.swa_evicted_seqlen <= max(length - reach, 0)
            assert req.swa_evicted_seqlen % page_size == 0
            if length % 5 == 0:
                done = await chunk(cache, req, length)
                found = await match(cache, key(tokens(done)))
                assert len(found.device_indices) == done == length - length % page_size
                await assert_window_whole(cache, found)
            await decode(cache, req)
        await cache.cache_finished_req(req)
        await drain(cache)
