"""Faults that users of other caches reported, where there are recurrent states: kind K4.

Which case of the kinds K1, K4, K5 and K8 is tested where, as far as states go (S: this file; L:
test_fault_cases_of_state_lengths.py; R: test_fault_cases_of_state_requests.py). Most cases of
windows run with states beside them too, see test_fault_cases_of_windows.py.

| case | where | what is left for later |
| --- | --- | --- |
| K1-1, K1-4 | test_fault_cases_of_window_locks.py | |
| K1-6, K1-7 | R | |
| K1-3, K1-9 | | a load, a write-back: they need a host tier |
| K4-1, K4-5 | S | |
| K4-8, K4-9, K4-10 | L | |
| K4-4 | S: states locked by receipts | locked by backups: that needs a host tier |
| K4-6 | | the host copy needs a host tier |
| K5-1, K5-3, K5-5 | R | |
| K5-7, K5-8, K5-9 | | transfers need a host tier |
| K8-1, K8-3, K8-8, K8-9, K8-10, K8-12 | R | transfers in flight need a host tier |
| K8-4, K8-6, K8-7 | | sessions, remote look-ups: they are not there |
"""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest

from radixtide import AllocateParams, MissReason, OutOfSlots, Request
from support.caches import (
    Delivery,
    assert_nothing_held,
    checked,
    key,
    make_config,
    match,
    settled,
    tokens,
)
from support.hybrids import (
    ALL,
    STATES,
    admit,
    assert_conserved,
    audited,
    chunk,
    drain,
    free,
    grid_of,
    hybrid,
    pool,
    put,
    read_state,
)

sets = pytest.mark.parametrize("components", [STATES, ALL], ids=["mamba", "swa+mamba"])
pages = pytest.mark.parametrize("page_size", [1, 2, 4])
Components = tuple[str, ...]
End = Literal["abort", "refused", "finish without insert"]


@sets
@pages
@pytest.mark.parametrize("lock", [False, True], ids=["no lock", "lock"])
@pytest.mark.parametrize("end", ["abort", "refused", "finish without insert"])
async def test_k4_1_a_private_copy_of_a_request_that_is_never_admitted_is_given_back(
    delivery: Delivery, components: Components, page_size: int, lock: bool, end: End
) -> None:
    """More often than there are slots: each time the copy is freed, once, and the sum is exact."""
    async with audited(delivery, components, page_size=page_size, states=3) as cache:
        await put(cache, key(8), state=True)
        before = (await cache.stats()).pools
        for turn in range(9):
            req = Request(f"r{turn}", tokens(12))
            found = await match(cache, req.key(), req=req, lock=lock, cow_mamba=True)
            assert len(found.device_indices) == 8
            assert req.mamba_pool_idx is not None
            states = await pool(cache, "mamba")
            assert (states.held, states.evictable + states.protected) == (1, 1)
            if end == "refused":
                with pytest.raises(OutOfSlots):
                    await cache.allocate(AllocateParams(num_tokens=100, req=req))
                assert (await pool(cache, "mamba")).held == 1
            if end == "finish without insert" and lock:
                await cache.cache_finished_req(req, is_insert=False)
            else:
                await cache.abort_req(req)
            assert (await cache.stats()).pools == before
        await drain(cache)


@sets
@pages
async def test_k4_1_a_request_that_matches_again_goes_on_with_the_slot_it_has(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Matched again and again while it waits for admission: one slot, with the newest copy."""
    async with audited(
        delivery, components, page_size=page_size, states=4, holds_states=True
    ) as cache:
        first = await admit(cache, "first", tokens(8)) if page_size == 1 else None
        if first is not None:
            await chunk(cache, first, 4)
            await chunk(cache, first, 8)
            await cache.cache_finished_req(first)
        else:
            await put(cache, key(4), state=True)
            await put(cache, key(8), prev=4, state=True)
        req = Request("r", tokens(12))
        slots = set()
        for length in (4, 8, 12, 4):
            found = await match(cache, req.key(length), req=req, cow_mamba=True)
            assert len(found.device_indices) == min(length, 8)
            slots.add(req.mamba_pool_idx)
            if first is not None:
                assert read_state(cache, req.mamba_pool_idx) == min(length, 8)
        assert len(slots) == 1
        assert (await pool(cache, "mamba")).held == 1
        await cache.abort_req(req)
        await drain(cache)


@sets
@pytest.mark.parametrize("lock", [False, True], ids=["no lock", "lock"])
@pytest.mark.parametrize("turns", range(8))
async def test_k4_1_a_match_whose_caller_leaves_at_any_time_gives_its_copy_back(
    delivery: Delivery, components: Components, lock: bool, turns: int
) -> None:
    """The caller is cancelled between look-up, slot, copy and answer: no slot stays with it."""
    # Audited at the end only: a cancelled caller must not meet its audit.
    config = make_config(**hybrid(components, states=2, delivery=delivery))
    async with checked(config) as cache:
        await put(cache, key(8), state=True)
        before = (await cache.stats()).pools
        req = Request("r", tokens(12))
        call = asyncio.ensure_future(match(cache, req.key(), req=req, lock=lock, cow_mamba=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        answered = not isinstance(
            (await asyncio.gather(call, return_exceptions=True))[0], BaseException
        )
        await settled(cache)
        if answered:
            await cache.abort_req(req)
        assert (await cache.stats()).pools == before
        await assert_nothing_held(cache)
        await drain(cache)


@sets
@pages
async def test_k4_1_without_a_slot_the_match_gets_shorter_and_does_not_fail(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """The only state is the one that matches: it is not evicted for its own copy."""
    async with audited(delivery, components, page_size=page_size, states=1) as cache:
        await put(cache, key(8), state=True)
        for lock in (False, True):
            req = Request("r", tokens(12))
            found = await match(cache, req.key(), req=req, lock=lock, cow_mamba=True)
            assert (len(found.device_indices), found.full_kv_hit_length) == (0, 8)
            assert found.miss_reason is MissReason.NO_SLOT
            assert req.mamba_pool_idx is None
            await cache.abort_req(req)
        assert (await cache.stats()).counters["miss.no_slot"] == 2
        assert len((await match(cache, key(8))).device_indices) == 8
        await drain(cache)


@sets
@pages
async def test_k4_1_a_request_with_a_working_slot_needs_no_other(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """All other states are locked or its own: the slot that it allocated takes the copy."""
    async with audited(delivery, components, page_size=page_size, states=2) as cache:
        await put(cache, key(8), state=True)
        req = Request("r", tokens(12))
        await cache.allocate(AllocateParams(mamba_num=1, req=req))
        own = req.mamba_pool_idx
        assert own is not None
        found = await match(cache, req.key(), req=req, lock=True, cow_mamba=True)
        assert len(found.device_indices) == 8
        assert req.mamba_pool_idx == own
        assert (await pool(cache, "mamba")).held == 1
        await cache.abort_req(req)
        await drain(cache)


@sets
@pages
async def test_k4_4_with_every_state_locked_a_donation_is_skipped_and_counted(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """A stash with no slot for its state goes on without; once there is one, it donates again."""
    ring = 0 if page_size == 1 else 2
    async with audited(delivery, components, page_size=page_size, states=3 + ring) as cache:
        receipts = []
        for start in (500, 600):
            await put(cache, key(tokens(4, start)), state=True)
            receipts.append((await match(cache, key(tokens(4, start)), lock=True)).receipt)
        assert (await pool(cache, "mamba")).protected == 2
        req = await admit(cache, "r", tokens(16))
        states = (req.mamba_pool_idx, req.mamba_ping_pong)
        assert (await free(cache))["mamba"] == 0
        for turn, length in enumerate((4, 8), 1):
            assert await chunk(cache, req, length) == length
            assert (await cache.stats()).counters["donations_skipped"] == turn
            assert (req.mamba_pool_idx, req.mamba_ping_pong) == states
            assert len((await match(cache, key(length))).device_indices) == 0
            assert_conserved(cache)
        for receipt in receipts:
            assert receipt is not None
            await cache.dec_lock_ref(receipt)
        assert await chunk(cache, req, 12) == 12
        assert (await cache.stats()).counters["donations_skipped"] == 2
        assert len((await match(cache, key(12))).device_indices) == 12
        await cache.cache_finished_req(req)
        await drain(cache)


@sets
@pages
async def test_k4_4_a_finished_request_donates_its_own_slot_when_there_is_no_other(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Finishing needs no slot: what it has becomes the tree's."""
    ring = 0 if page_size == 1 else 2
    async with audited(delivery, components, page_size=page_size, states=2 + ring) as cache:
        await put(cache, key(tokens(4, 500)), state=True)
        receipt = (await match(cache, key(tokens(4, 500)), lock=True)).receipt
        assert receipt is not None
        req = await admit(cache, "r", tokens(8))
        assert (await free(cache))["mamba"] == 0
        if req.mamba_ping_pong is not None:
            req.note_state(8)
        await cache.cache_finished_req(req)
        assert (await cache.stats()).counters["donations_skipped"] == 0
        assert len((await match(cache, key(8))).device_indices) == 8
        assert (await pool(cache, "mamba")).free == ring
        await cache.dec_lock_ref(receipt)
        await drain(cache)


@sets
@pytest.mark.parametrize(("page_size", "chunk_size"), [(1, None), (1, 2), (2, 2), (2, 4), (4, 4)])
async def test_k4_5_a_state_behind_a_branch_is_no_hit_but_the_branch_gets_one(
    delivery: Delivery, components: Components, page_size: int, chunk_size: int | None
) -> None:
    """State only at the end: the branch is a miss that names its length, the next one hits."""
    fields = {} if chunk_size is None else {"chunk": chunk_size, "extra_buffer": True}
    async with audited(
        delivery, components, page_size=page_size, window=4, states=12, **fields
    ) as cache:
        stem = tokens(8)
        await put(cache, key([*stem, *tokens(4, 100)]), state=True)
        second = await admit(cache, "second", [*stem, *tokens(4, 200)])
        assert second.cache_protected_len == 0
        found = await match(cache, key([*stem, 9]))
        assert (len(found.device_indices), found.full_kv_hit_length) == (0, 8)
        assert found.mamba_branching_seqlen == 8
        assert found.miss_reason is MissReason.NO_STATE
        # The engine makes a checkpoint where it is told to.
        assert await chunk(cache, second, found.mamba_branching_seqlen) == 8
        await chunk(cache, second, 12)
        await cache.cache_finished_req(second)
        third = await admit(cache, "third", [*stem, *tokens(4, 300)])
        assert third.cache_protected_len == 8
        assert third.mamba_pool_idx is not None
        await cache.abort_req(third)
        first = await match(cache, key([*stem, *tokens(4, 100)]))
        assert len(first.device_indices) == 12
        await drain(cache)


@sets
async def test_k4_5_a_branch_length_is_on_the_grid_and_beyond_what_is_usable(
    delivery: Delivery, components: Components
) -> None:
    """Pages of 2, states every 8: what is told is a length at which a state can be kept."""
    async with audited(delivery, components, page_size=2, chunk=8, states=12) as cache:
        assert grid_of(cache) == 8
        await put(cache, key(8), state=True)
        await put(cache, key(30), prev=8)
        told = {
            length: (await match(cache, key(length))).mamba_branching_seqlen
            for length in (8, 10, 14, 16, 22, 24, 30)
        }
        assert told == {8: None, 10: None, 14: None, 16: 16, 22: 16, 24: 24, 30: 24}
        await drain(cache)
