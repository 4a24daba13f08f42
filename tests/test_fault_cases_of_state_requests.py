"""Faults that users of other caches reported: who has a state, and until when (kinds K1, K5, K8).

The table in test_fault_cases_of_states.py says which case is where.
"""

from __future__ import annotations

import pytest
import torch

from radixtide import (
    AllocateParams,
    Busy,
    DoubleFree,
    EvictParams,
    ForeignReceipt,
    InsertParams,
    InvalidInput,
    InvalidRequest,
    Request,
    SlotError,
    UnifiedRadixCache,
)
from support.caches import Delivery, assert_nothing_held, key, match, tokens
from support.hybrids import (
    ALL,
    STATES,
    admit,
    assert_conserved,
    audited,
    build,
    chunk,
    compute,
    drain,
    free,
    has,
    lock_counts,
    pool,
    protected,
    put,
    read_state,
    squeeze,
    write_state,
)

sets = pytest.mark.parametrize("components", [STATES, ALL], ids=["mamba", "swa+mamba"])
pages = pytest.mark.parametrize("page_size", [1, 4])
Components = tuple[str, ...]


async def take_state(cache: UnifiedRadixCache) -> torch.Tensor:
    """Allocate one loose state."""
    given = (await cache.allocate(AllocateParams(mamba_num=1))).mamba_indices
    assert given is not None
    return given


@pages
@pytest.mark.parametrize("is_insert", [False, True])
async def test_k1_6_a_finish_of_a_request_that_never_matched_frees_its_states(
    delivery: Delivery, page_size: int, is_insert: bool
) -> None:
    """A profiling request has states and no lock; what it does not give to the tree is free."""
    async with audited(delivery, STATES, page_size=page_size) as cache:
        await put(cache, key(8), state=True)
        before = lock_counts(cache)
        ring = 0 if page_size == 1 else 2
        req = Request("probe", tokens(8, 50))
        await cache.allocate(AllocateParams(num_tokens=8, mamba_num=1 + ring, req=req))
        compute(cache, req, 8)
        await cache.cache_finished_req(req, is_insert=is_insert)
        counts = lock_counts(cache)
        assert {one: counts[one] for one in before} == before
        states = await pool(cache, "mamba")
        assert (states.held, states.evictable) == (0, 2 if is_insert else 1)
        assert (req.mamba_pool_idx, req.mamba_ping_pong) == (None, None)
        found = await match(cache, key(tokens(8, 50)))
        assert len(found.device_indices) == (8 if is_insert else 0)
        await drain(cache)


@sets
@pages
async def test_k1_7_a_locked_state_can_not_be_removed_and_an_old_receipt_frees_none(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Neither by its own eviction nor by another's; after a reset the receipt is a stranger's."""
    async with audited(delivery, components, page_size=page_size, states=2) as cache:
        for _ in range(2):
            await put(cache, key(8), state=True)
            receipt = (await match(cache, key(8), lock=True)).receipt
            assert receipt is not None
            await squeeze(cache)
            assert (await protected(cache, "mamba")) == (1,)
            # Others' states go instead, and in the end there is no slot.
            loose = [await take_state(cache)]
            assert len((await match(cache, key(8))).device_indices) == 8
            await cache.free(loose[0], "mamba")
            assert (await cache.dec_lock_ref(receipt)).unprotected["mamba"] == 1
            await cache.reset()
            with pytest.raises(ForeignReceipt):
                await cache.dec_lock_ref(receipt)
        await drain(cache)


@pages
async def test_k5_1_states_of_a_request_are_released_once(
    delivery: Delivery, page_size: int
) -> None:
    """Finished: one state is the tree's, the others are free, and none is anybody's to free."""
    async with audited(delivery, STATES, page_size=page_size) as cache:
        req = await admit(cache, "r", tokens(8))
        compute(cache, req, 8)
        mine = [
            slot for slot in (req.mamba_pool_idx, *(req.mamba_ping_pong or [])) if slot is not None
        ]
        for slot in mine:
            with pytest.raises(SlotError):
                await cache.free(torch.tensor([slot]), "mamba")
        await cache.cache_finished_req(req)
        for slot in mine:
            with pytest.raises(SlotError):
                await cache.free(torch.tensor([slot]), "mamba")
        with pytest.raises(InvalidRequest, match="finished already"):
            await cache.cache_finished_req(req)
        assert (await cache.abort_req(req)).freed == 0
        states = await pool(cache, "mamba")
        assert (states.held, states.evictable, states.free) == (0, 1, 7)
        await drain(cache)


@sets
@pages
async def test_k5_3_a_loose_state_is_freed_once(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """The second free is refused, and so is one of several of which one is free."""
    async with audited(delivery, components, page_size=page_size, states=4) as cache:
        given = (await cache.allocate(AllocateParams(mamba_num=3))).mamba_indices
        assert given is not None
        await cache.free(given[1:2], "mamba")
        for again in (given[1:2], given, torch.cat((given[:1], given[:1]))):
            with pytest.raises(SlotError):
                await cache.free(again, "mamba")
        assert (await free(cache))["mamba"] == 2
        other = await take_state(cache)
        await cache.free(torch.cat((given[:1], given[2:])), "mamba")
        await cache.free(other, "mamba")
        with pytest.raises(DoubleFree):
            await cache.free(other, "mamba")
        await drain(cache)


@sets
@pages
async def test_k5_5_of_two_that_compute_one_prompt_the_second_keeps_its_states(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """The tree has the first's state; the second's stay its own, and it goes on with them."""
    async with audited(
        delivery, components, page_size=page_size, states=12, holds_states=True
    ) as cache:
        first, second = await admit(cache, "a", tokens(12)), await admit(cache, "b", tokens(12))
        await chunk(cache, first, 8)
        await cache.cache_finished_req(first)
        states = (second.mamba_pool_idx, second.mamba_ping_pong)
        held = (await pool(cache, "mamba")).held
        assert await chunk(cache, second, 8) == 8
        assert (second.mamba_pool_idx, second.mamba_ping_pong) == states
        assert (await pool(cache, "mamba")).held == held
        assert read_state(cache, second.mamba_pool_idx) == 8
        assert_conserved(cache)
        await chunk(cache, second, 12)
        await cache.cache_finished_req(second)
        third = await admit(cache, "c", tokens(13))
        assert (third.cache_protected_len, read_state(cache, third.mamba_pool_idx)) == (12, 12)
        await cache.abort_req(third)
        await drain(cache)


@sets
@pages
async def test_k5_5_a_state_that_comes_where_one_is_is_the_trees_to_free(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """An insert with a state that exists says so, and frees it; the caller never does."""
    async with audited(delivery, components, page_size=page_size, states=4) as cache:
        first = await put(cache, key(8), state=True)
        assert not first.result.mamba_exist
        assert first.result.component_adopted["mamba"] == ((7, 8),)
        for _ in range(6):
            again = await put(cache, key(8), state=True)
            assert again.result.mamba_exist
            assert again.result.component_adopted.get("mamba", ()) == ()
            assert again.state is not None
            with pytest.raises(SlotError):
                await cache.free(torch.tensor([again.state]), "mamba")
            states = await pool(cache, "mamba")
            assert (states.free, states.held) == (3, 0)
        await drain(cache)


@sets
@pages
@pytest.mark.parametrize("pattern", ["#.#.", "....", "s...", ".:.."])
async def test_k8_1_a_stash_over_a_path_without_states_costs_the_request_nothing(
    delivery: Delivery, components: Components, page_size: int, pattern: str
) -> None:
    """Others match up to a state only; the request keeps lock, row, and what is its own."""
    async with audited(delivery, components, page_size=page_size, window=2, states=12) as cache:
        await build(cache, pattern)
        end = 4 * page_size
        req = await admit(cache, "r", [*tokens(end), 7], row=True)
        working = req.mamba_pool_idx
        assert await chunk(cache, req, end) == end
        assert req.cache_protected_len == end
        assert req.prefix_indices is not None
        canonical = (await cache.device_indices(req.last_node)).tolist()
        assert req.prefix_indices.tolist() == canonical
        assert cache.req_to_token_pool.rows[req.req_pool_idx, :end].tolist() == canonical
        assert req.mamba_pool_idx == working
        assert (await protected(cache, "full", "mamba")) == (end, 1)
        assert len((await match(cache, key(end))).device_indices) == end
        await cache.cache_finished_req(req)
        await drain(cache)


@sets
@pages
async def test_k8_1_an_insert_that_is_refused_leaves_the_state_with_its_caller(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Whatever is wrong with an insert: no node, no value, and the state is the caller's still."""
    async with audited(delivery, components, page_size=page_size) as cache:
        theirs = await put(cache, key(tokens(8, 500)), state=True)
        state = await take_state(cache)
        mine = (await cache.allocate(AllocateParams(num_tokens=8))).indices
        before = (await cache.stats()).pools
        nodes = (await cache.stats()).nodes
        assert theirs.state is not None
        bad: list[tuple[type[Exception], InsertParams]] = [
            (SlotError, InsertParams(key(8), theirs.slots, mamba_value=state)),
            (SlotError, InsertParams(key(8), mine, mamba_value=torch.tensor([theirs.state]))),
            (SlotError, InsertParams(key(8), mine, mamba_value=torch.tensor([99]))),
            (InvalidInput, InsertParams(key(8), mine, mamba_value=torch.tensor([0, 1]))),
            (InvalidInput, InsertParams(key(8), mine[:4], mamba_value=state)),
            (InvalidInput, InsertParams(key(8), mine, mamba_value=state, prev_prefix_len=8)),
        ]
        if page_size > 1:
            bad.append((InvalidInput, InsertParams(key(7), mine, mamba_value=state)))
        for kind, params in bad:
            with pytest.raises(kind):
                await cache.insert(params)
            assert (await cache.stats()).pools == before
            assert (await cache.stats()).nodes == nodes
        await cache.insert(InsertParams(key(8), mine, mamba_value=state))
        assert len((await match(cache, key(8))).device_indices) == 8
        await drain(cache)


@pages
async def test_k8_3_what_a_request_is_told_after_its_abort_touches_no_state(
    delivery: Delivery, page_size: int
) -> None:
    """A late chunk, a late tracking point, a late finish: refused, and every state is free."""
    async with audited(delivery, STATES, page_size=page_size) as cache:
        req = await admit(cache, "r", tokens(12))
        await chunk(cache, req, 4)
        compute(cache, req, 8)
        await cache.abort_req(req)
        states = await pool(cache, "mamba")
        assert (states.held, states.evictable) == (0, 1)
        assert (req.mamba_last_track_seqlen, req.mamba_prev_track_seqlen) == (None, None)
        with pytest.raises(InvalidRequest):
            req.note_state(12)
        for call in (cache.cache_unfinished_req, cache.cache_finished_req):
            with pytest.raises(InvalidRequest):
                await call(req)
        assert await pool(cache, "mamba") == states
        await drain(cache)


@sets
@pages
async def test_k8_8_look_ups_with_a_copy_leave_nothing_behind_however_many_there_are(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """One id after the other, and the same again: the pool of states never runs dry."""
    async with audited(delivery, components, page_size=page_size, states=3) as cache:
        for turn in range(12):
            wanted = tokens(8, 100 * turn)
            await put(cache, key(wanted), state=True)
            for rid in ("same", f"r{turn}"):
                req = Request(rid, wanted)
                found = await match(cache, req.key(), req=req, cow_mamba=True)
                assert len(found.device_indices) == 8
                assert (await pool(cache, "mamba")).held == 1
                await cache.abort_req(req)
        await assert_nothing_held(cache)
        await drain(cache)


@sets
@pages
async def test_k8_10_a_retracted_request_gets_the_state_that_it_left(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """In its second life it goes on from a copy of the state at the very length it had."""
    async with audited(delivery, components, page_size=page_size, holds_states=True) as cache:
        req = await admit(cache, "r", tokens(16))
        compute(cache, req, 8)
        await cache.cache_finished_req(req)
        await assert_nothing_held(cache)
        again = await admit(cache, "r", tokens(16))
        assert again.cache_protected_len == 8
        assert read_state(cache, again.mamba_pool_idx) == 8
        # It writes its own copy, never what it came from.
        assert again.mamba_pool_idx is not None
        write_state(cache, again.mamba_pool_idx, 9)
        third = await admit(cache, "third", tokens(9))
        assert read_state(cache, third.mamba_pool_idx) == 8
        for one in (again, third):
            await cache.abort_req(one)
        await drain(cache)


@sets
async def test_k8_12_a_reset_is_refused_while_a_state_is_held(
    delivery: Delivery, components: Components
) -> None:
    """A loose state by its pool, a private copy by its request."""
    async with audited(delivery, components) as cache:
        await put(cache, key(8), state=True)
        state = await take_state(cache)
        with pytest.raises(Busy, match="1 slots of pool mamba"):
            await cache.reset()
        await cache.free(state, "mamba")
        req = Request("copy", tokens(12))
        await match(cache, req.key(), req=req, cow_mamba=True)
        with pytest.raises(Busy, match="'copy'"):
            await cache.reset()
        await cache.abort_req(req)
        await cache.reset()
        assert (await cache.stats()).nodes == 0
        await drain(cache)


@sets
@pages
async def test_k8_1_a_state_that_leaves_under_a_request_costs_it_nothing(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """It has its own copy: the tree's may go (early release, eviction), and it still finishes."""
    async with audited(delivery, components, page_size=page_size) as cache:
        await put(cache, key(8), state=True)
        req = await admit(cache, "r", tokens(16))
        await cache.dec_swa_lock_only(req.lock)
        if has(cache, "swa"):
            assert (await protected(cache, "mamba")) == (0,)
        await cache.evict(EvictParams(mamba_num=8))
        await chunk(cache, req, 12)
        await cache.cache_finished_req(req)
        assert len((await match(cache, key(16))).device_indices) >= 12
        await drain(cache)
