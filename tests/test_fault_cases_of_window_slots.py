"""Faults that users of other caches reported: slots and sizes with windows (kinds K5, K6).

The table in test_fault_cases_of_windows.py says which case is where.
"""

from __future__ import annotations

import pytest
import torch

from radixtide import (
    AllocateParams,
    EvictParams,
    InvalidRequest,
    OutOfSlots,
    RadixtideError,
    ReceiptReleased,
    Request,
    SlotError,
)
from radixtide.components.swa import SwaComponent
from support.caches import Delivery, checked, key, make_config, match, tokens
from support.hybrids import (
    ALL,
    BOTH,
    admit,
    assert_conserved,
    audited,
    chunk,
    decode,
    drain,
    free,
    has,
    hybrid,
    lock_counts,
    pool,
    put,
    windows,
)

sets = pytest.mark.parametrize("components", [BOTH, ALL], ids=["swa", "swa+mamba"])
pages = pytest.mark.parametrize("page_size", [1, 4])
Components = tuple[str, ...]


@sets
@pages
async def test_k5_1_the_last_decode_slot_is_released_once_in_every_pool(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """One slot too many was taken: finishing frees it with its pair, and nobody can do it again."""
    async with audited(delivery, components, page_size=page_size) as cache:
        req = Request("r", tokens(3))
        await match(cache, req.key(), req=req, lock=True)
        given = await cache.allocate(AllocateParams(num_tokens=3, req=req))
        for _ in range(2):
            await decode(cache, req)
        await cache.allocate(AllocateParams(num_tokens=1, req=req))
        req.kv_committed_len = 5
        held = (await pool(cache, "swa")).held
        assert held == -(-6 // page_size) * page_size
        whole = 5 - 5 % page_size
        done = await cache.cache_finished_req(req)
        assert (done.inserted_len, done.freed) == (whole, held - whole)
        swa = await pool(cache, "swa")
        assert (swa.held, swa.evictable, swa.free) == (0, whole, 64 - whole)
        with pytest.raises(InvalidRequest, match="finished already"):
            await cache.cache_finished_req(req)
        for component in ("full", "swa"):
            with pytest.raises(SlotError):
                await cache.free(given.indices, component)
        assert (await cache.abort_req(req)).freed == 0
        await drain(cache)


@sets
@pytest.mark.parametrize("page_size", [4, 16])
async def test_k5_3_a_page_of_swa_that_is_touched_is_given_back_whole_and_once(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Its mapping is cleared for the whole page: a free of the neighbours finds nothing to free."""
    async with audited(delivery, components, page_size=page_size) as cache:
        mine = (await cache.allocate(AllocateParams(num_tokens=2 * page_size))).indices
        assert (await free(cache))["swa"] == 64 - 2 * page_size
        await cache.free(mine[2:3], "swa")
        half = [False] * page_size + [True] * page_size
        for _ in range(2):
            assert (await free(cache))["swa"] == 64 - page_size
            assert ((await cache.component_slots("swa", mine)) >= 0).tolist() == half
            assert_conserved(cache)
            await cache.free(mine[3:4], "swa")
        # What is free is handed out, and the old owner's Full slots do not lead there.
        other = await cache.allocate(AllocateParams(num_tokens=page_size))
        await cache.free(mine[:page_size], "swa")
        assert ((await cache.component_slots("swa", other.indices)) >= 0).all()
        await cache.free(mine[page_size - 1 : page_size + 1], "swa")
        assert (await cache.component_slots("swa", mine) == -1).all()
        await cache.free(mine)
        with pytest.raises(SlotError, match="is free"):
            await cache.free(mine)
        await cache.free(other.indices)
        await drain(cache)


@sets
@pages
async def test_k5_3_freeing_full_frees_its_pair_and_once(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Full and SWA of a token end together, whether or not SWA went before."""
    async with audited(delivery, components, page_size=page_size) as cache:
        before = await free(cache)
        mine = (await cache.allocate(AllocateParams(num_tokens=12))).indices
        await cache.free(mine[4:8], "swa")
        await cache.free(mine)
        assert await free(cache) == before
        for component in ("full", "swa"):
            if component == "full":
                with pytest.raises(SlotError):
                    await cache.free(mine, component)
            else:
                await cache.free(mine, component)
        assert await free(cache) == before
        assert_conserved(cache)


@sets
@pages
async def test_k5_3_swa_of_the_tree_or_of_a_request_is_not_the_callers_to_free(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Refused whole, also where a part of it is the caller's own."""
    async with audited(delivery, components, page_size=page_size) as cache:
        stored = await put(cache, key(8))
        req = await admit(cache, "r", tokens(8, 100))
        mine = (await cache.allocate(AllocateParams(num_tokens=4))).indices
        theirs = (await cache.allocate(AllocateParams(num_tokens=4, req=req))).indices[:4]
        before = await free(cache)
        for others in (stored.slots, theirs):
            for slots in (others, others[:1], mine.new_tensor([*mine.tolist(), int(others[0])])):
                with pytest.raises(SlotError):
                    await cache.free(slots, "swa")
        assert await free(cache) == before
        assert await windows(cache, stored.node) == "#" * (8 // page_size)
        await cache.free(mine, "swa")
        await cache.free(mine)
        await cache.abort_req(req)
        await drain(cache)


@sets
@pages
@pytest.mark.parametrize("row", [False, True], ids=["no row", "row"])
async def test_k5_5_a_row_names_the_trees_pages_and_these_have_swa_before_duplicates_are_freed(
    delivery: Delivery, components: Components, page_size: int, row: bool
) -> None:
    """Two compute one prompt: what the second reads from then on is nobody else's, in each pool."""
    async with audited(delivery, components, page_size=page_size) as cache:
        first = await admit(cache, "a", tokens(8))
        second = await admit(cache, "b", tokens(8), row=row)
        await chunk(cache, first, 8)
        assert first.prefix_indices is not None
        canonical = first.prefix_indices.tolist()
        await cache.cache_finished_req(first)
        swa = (await cache.component_slots("swa", torch.tensor(canonical))).tolist()
        assert await chunk(cache, second, 8) == 8
        spare = await free(cache)
        later = await cache.allocate(
            AllocateParams(num_tokens=spare["full"], swa_num_tokens=spare["swa"])
        )
        assert later.evicted.num_tokens_evicted == 0
        assert second.prefix_indices is not None
        assert second.prefix_indices.tolist() == canonical
        if row:
            rows = cache.req_to_token_pool.rows
            assert rows[second.req_pool_idx, :8].tolist() == canonical
        paired = (await cache.component_slots("swa", second.prefix_indices)).tolist()
        assert paired == swa
        assert min(paired) >= 0
        assert later.swa_indices is not None
        assert not set(paired) & set(later.swa_indices.tolist())
        assert not set(canonical) & set(later.indices.tolist())
        await cache.free(later.indices)
        await cache.cache_finished_req(second)
        await drain(cache)


@sets
@pages
async def test_k5_5_the_second_brings_the_window_that_the_tree_lost_meanwhile(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """The duplicates' SWA moves to the tree's Full pages; the rest of them is free at once."""
    async with audited(delivery, components, page_size=page_size) as cache:
        first = await admit(cache, "a", tokens(8))
        second = await admit(cache, "b", tokens(8), row=True)
        own = cache.req_to_token_pool.rows[second.req_pool_idx, :8].clone()
        swa = (await cache.component_slots("swa", own)).tolist()
        await chunk(cache, first, 8)
        await cache.dec_swa_lock_only(first.lock)
        await cache.evict(EvictParams(swa_num_tokens=64))
        assert await windows(cache, first.last_node) == "." * (8 // page_size)
        assert await chunk(cache, second, 8) == 8
        assert second.prefix_indices is not None
        assert (await cache.component_slots("swa", second.prefix_indices)).tolist() == swa
        assert (await cache.component_slots("swa", own) == -1).all()
        assert (await pool(cache, "full")).held == (await pool(cache, "swa")).held == 0
        await cache.cache_finished_req(first)
        await cache.cache_finished_req(second)
        assert len((await match(cache, key(8))).device_indices) == 8
        await drain(cache)


@sets
@pages
async def test_k6_1_every_slot_of_every_pool_has_one_owner_at_each_step(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Equal prompts with duplicates, windows given back on the way, then a drain."""
    async with audited(
        delivery, components, page_size=page_size, size=96, swa_size=64, states=12
    ) as cache:
        running = [await admit(cache, f"r{turn}", [*tokens(16), turn]) for turn in range(3)]
        for length in (8, 12, 16):
            for req in running:
                await cache.release_window(req, length)
                assert_conserved(cache)
                await chunk(cache, req, length)
                assert_conserved(cache)
        for req in running:
            req.kv_committed_len = 17
            await cache.cache_finished_req(req)
            assert_conserved(cache)
        assert len((await match(cache, key(16))).device_indices) == 16
        await drain(cache)


@sets
@pages
async def test_k6_3_a_split_and_a_release_too_many_leave_the_sizes_of_windows_right(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Siblings of a split: evictable and protected are the tokens in the tree, never below 0."""
    unit = page_size
    async with audited(delivery, components, page_size=unit, window=2 * unit) as cache:
        state = has(cache, "mamba")
        stem = tokens(2 * unit)
        keys = [key([*stem, *tokens(unit, start)]) for start in (100, 200)]
        for one in keys:
            await put(cache, one, state=state)
        receipts = [(await match(cache, one, lock=True)).receipt for one in keys]
        swa = await pool(cache, "swa")
        # Of the stem one page is in both windows, the other in none.
        assert (swa.protected, swa.evictable) == (3 * unit, unit)
        for receipt in receipts:
            assert receipt is not None
            await cache.dec_lock_ref(receipt)
        for receipt in receipts:
            assert receipt is not None
            for call in (cache.dec_lock_ref, cache.dec_swa_lock_only):
                with pytest.raises(ReceiptReleased):
                    await call(receipt)
        swa = await pool(cache, "swa")
        assert (swa.protected, swa.evictable) == (0, 4 * unit)
        assert set(lock_counts(cache).values()) == {0}
        await drain(cache)


@sets
async def test_k6_5_room_in_the_last_page_evicts_no_page_of_any_pool(
    delivery: Delivery, components: Components
) -> None:
    """Three requests need one token each, and have room for it, in Full and in SWA."""
    async with audited(delivery, components, page_size=16, window=20, size=128, states=16) as cache:
        await put(cache, key(tokens(80, 1000)), state=has(cache, "mamba"))
        requests = [await admit(cache, f"r{n}", tokens(10, 100 * n)) for n in range(3)]
        spare = await free(cache)
        assert (spare["full"], spare["swa"]) == (0, 0)
        for req in requests:
            given = await cache.allocate(AllocateParams(num_tokens=1, req=req))
            assert given.evicted.num_tokens_evicted == 0
            assert given.evicted.swa_num_tokens_evicted == 0
            assert given.swa_indices is not None
            assert int(given.swa_indices[0]) >= 0
        assert len((await match(cache, key(tokens(80, 1000)))).device_indices) == 80
        for req in requests:
            await cache.abort_req(req)
        await drain(cache)


@sets
async def test_k6_5_a_new_page_evicts_one_page_of_swa_where_only_swa_is_full(
    delivery: Delivery, components: Components
) -> None:
    """What is short is evicted for, no more: Full keeps its nodes, one tombstone is made."""
    async with audited(delivery, components, page_size=4, window=4, size=64, swa_size=32) as cache:
        await put(cache, key(tokens(4, 1000)), state=has(cache, "mamba"))
        await put(cache, key(tokens(24, 1000)), prev=4)
        req = await admit(cache, "r", tokens(8))
        assert (await free(cache))["swa"] == 0
        given = await cache.allocate(AllocateParams(num_tokens=1, req=req))
        assert given.evicted.num_tokens_evicted == 0
        assert given.evicted.swa_num_tokens_evicted == 4
        assert (await pool(cache, "full")).evictable == 24
        with pytest.raises(OutOfSlots) as refused:
            await cache.allocate(AllocateParams(num_tokens=40, req=req))
        assert refused.value.pools["swa"]["size"] == 32
        assert (await pool(cache, "full")).evictable == 24
        await cache.abort_req(req)
        await drain(cache)


@pytest.mark.parametrize("component", ["swa", "mamba"])
async def test_k6_6_a_leak_of_any_pool_is_told_with_its_slots(
    delivery: Delivery, component: str
) -> None:
    """When a sum is wrong the audit names the pool and the slots that are missing."""
    config = make_config(**hybrid(page_size=4, delivery=delivery))
    async with checked(config, audit=False) as cache:
        await put(cache, key(8), state=True)
        part = cache._components[1 if component == "swa" else 2]
        lost = int(part.allocator.free_pages()[-1]) * part.allocator.page_size
        part.allocator._top -= 1
        messages = [one.message for one in (await cache.audit()).violations]
        assert f"pool {component}: slots lost: pages at {lost} belong to nobody" in messages


async def test_k6_6_a_pair_that_is_not_mutual_is_told(delivery: Delivery) -> None:
    """A Full page that names a pair in vain would hand out somebody else's window."""
    config = make_config(**hybrid(BOTH, page_size=4, delivery=delivery))
    async with checked(config, audit=False) as cache:
        stored = await put(cache, key(8))
        assert stored.swa is not None
        part = cache._components[1]
        assert isinstance(part, SwaComponent)
        part.pairing._to_pair[int(stored.slots[0]) // 4] = -1
        assert "pairs" in {one.clause for one in (await cache.audit()).violations}


@sets
@pytest.mark.parametrize(("tokens_wanted", "swa"), [(4, 8), (4, 100), (0, 4)])
async def test_more_swa_than_tokens_is_refused(
    delivery: Delivery, components: Components, tokens_wanted: int, swa: int
) -> None:
    """All or nothing: SWA slots belong to tokens, so that more of them than tokens is a mistake."""
    async with audited(delivery, components, page_size=4) as cache:
        with pytest.raises(RadixtideError, match="swa_num_tokens"):
            await cache.allocate(AllocateParams(num_tokens=tokens_wanted, swa_num_tokens=swa))
