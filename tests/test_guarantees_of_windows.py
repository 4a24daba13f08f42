"""One test a sentence of docs/guarantees.md: windows, eviction and cancellation in hybrids."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from radixtide import AllocateParams, EvictParams, Request, UnifiedRadixCache
from radixtide.components.api import EvictResult
from radixtide.configs.errors import ReceiptReleased
from support.actors import turns
from support.caches import (
    MakeCache,
    assert_nothing_held,
    key,
    match,
    open_cache,
    settled,
    slots,
    tokens,
)
from support.hybrids import (
    BOTH,
    STATES,
    admit,
    assert_conserved,
    chunk,
    hybrid,
    pool,
    protected,
    put,
    windows,
)
from support.interceptors import CrashBefore
from support.world_hybrid import HYBRID_WORLD, populate_hybrid

# -- windows -----------------------------------------------------------------------------------


async def test_g82_window_slots_that_no_window_needs_are_given_back(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(page_size=4, window=6, size=96)) as cache:
        await put(cache, key(8), state=True)
        req = await admit(cache, "r", tokens(40))
        assert (await pool(cache, "swa")).held == 32
        # A window of six is two pages; what the tree owns is not the request's to give.
        for length, freed, up_to in (
            (15, 0, 0),
            (21, 4, 12),
            (21, 0, 12),
            (40, 20, 32),
            (30, 0, 32),
        ):
            assert await cache.release_window(req, length) == freed
            assert req.swa_evicted_seqlen == up_to
        assert (await pool(cache, "swa")).held == 8
        assert (await pool(cache, "full")).held == 32
        told = await cache.cache_finished_req(req)
        assert told.inserted_len == 40
        found = await match(cache, key(40))
        assert (found.full_kv_hit_length, found.miss_reason) == (40, "no_state")
        assert await windows(cache, await deepest(cache, key(40))) == "##......##"
        await assert_nothing_held(cache)


async def deepest(cache: UnifiedRadixCache, wanted: Any) -> Any:
    """Return the node at the end of a key that is cached, by an insert that adds nothing."""
    return (await put(cache, wanted, live=0)).node


async def test_g83_a_lock_protects_one_window_and_no_more(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(page_size=4, window=6)) as cache:
        await put(cache, key(24), state=True)
        found = await match(cache, key(24), lock=True)
        assert found.receipt is not None
        assert await protected(cache) == (24, 8, 1)
        await cache.dec_lock_ref(found.receipt)
        # Here the window begins inside of a node, which is cut.
        await put(cache, key(tokens(8, 100)))
        twig = await put(cache, key(tokens(12, 100)), prev=8)
        nodes = (await cache.stats()).nodes
        receipt = await cache.inc_lock_ref(twig.node)
        assert await protected(cache) == (12, 8, 0)
        assert (await cache.stats()).nodes == nodes + 1
        await cache.dec_lock_ref(receipt)
        await assert_nothing_held(cache)


async def test_g84_what_appears_under_a_lock_is_protected_at_once(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        bare = await put(cache, key(16), live=0)
        receipt = await cache.inc_lock_ref(bare.node)
        assert await protected(cache) == (16, 0, 0)
        await put(cache, key(16), state=True)
        assert await protected(cache) == (16, 8, 1)
        assert (await pool(cache, "swa")).evictable == 8
        unlocked = await cache.dec_lock_ref(receipt)
        assert unlocked.unprotected == {"full": 16, "swa": 8, "mamba": 1}
        await assert_nothing_held(cache)


async def test_g85_the_window_of_a_lock_can_be_given_up_once(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        await put(cache, key(16), state=True)
        receipt = (await match(cache, key(16), lock=True)).receipt
        other = (await match(cache, key(16), lock=True)).receipt
        assert receipt is not None
        assert other is not None
        await cache.dec_lock_ref(other)
        first = await cache.dec_swa_lock_only(receipt)
        assert first.unprotected == {"full": 0, "swa": 8, "mamba": 1}
        again = await cache.dec_swa_lock_only(receipt)
        assert again.unprotected == {"full": 0, "swa": 0, "mamba": 0}
        assert await protected(cache) == (16, 0, 0)
        # Somebody else's lock is none of its business.
        other = (await match(cache, key(16), lock=True)).receipt
        assert other is not None
        await cache.dec_swa_lock_only(receipt)
        assert await protected(cache) == (16, 8, 1)
        last = await cache.dec_lock_ref(receipt)
        assert last.unprotected == {"full": 0, "swa": 0, "mamba": 0}
        assert await protected(cache) == (16, 8, 1)
        for call in (cache.dec_lock_ref, cache.dec_swa_lock_only):
            with pytest.raises(ReceiptReleased):
                await call(receipt)
        await cache.dec_lock_ref(other)
        # A request's receipt too; what is left goes with the request.
        req = await admit(cache, "r", tokens(20))
        await cache.dec_swa_lock_only(req.lock)
        assert await protected(cache) == (16, 0, 0)
        await cache.cache_finished_req(req)
        await assert_nothing_held(cache)
    # Without a component that has windows, the state is given up all the same.
    async with make_cache(**hybrid(STATES, page_size=4)) as cache:
        await put(cache, key(8), state=True)
        receipt = (await match(cache, key(8), lock=True)).receipt
        assert receipt is not None
        assert (await cache.dec_swa_lock_only(receipt)).unprotected == {"full": 0, "mamba": 1}
        assert (await cache.dec_lock_ref(receipt)).unprotected == {"full": 8, "mamba": 0}


async def test_g86_a_split_changes_nothing_of_what_a_receipt_covers(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(page_size=4, window=12)) as cache:
        await put(cache, key(24), state=True)
        receipt = (await match(cache, key(24), lock=True)).receipt
        worn = (await match(cache, key(24), lock=True)).receipt
        assert receipt is not None
        assert worn is not None
        await cache.dec_swa_lock_only(worn)
        assert await protected(cache) == (24, 12, 1)
        nodes = (await cache.stats()).nodes
        for at in (20, 8, 16, 4):
            await put(cache, key([*tokens(at), *tokens(4, 100 * at)]), prev=at)
            assert await protected(cache) == (24, 12, 1)
        assert (await cache.stats()).nodes == nodes + 8
        given_up = await cache.dec_lock_ref(worn)
        assert given_up.unprotected == {"full": 0, "swa": 0, "mamba": 0}
        last = await cache.dec_lock_ref(receipt)
        assert last.unprotected == {"full": 24, "swa": 12, "mamba": 1}
        await assert_nothing_held(cache)


async def test_g87_a_match_ends_where_every_component_can_go_on(make_cache: MakeCache) -> None:
    async with make_cache(**hybrid(BOTH, page_size=4, window=8)) as cache:
        # As long as nothing is missing from the root on, no window has to be whole.
        await put(cache, key(16))
        assert len((await match(cache, key(4))).device_indices) == 4
        # Pages without, without, with, with, with: whole windows end at 16 and at 20.
        gap = tokens(20, 100)
        await put(cache, key(gap), live=12)
        for length, usable in ((8, 0), (12, 0), (16, 16), (20, 20)):
            found = await match(cache, key(gap[:length]))
            assert len(found.device_indices) == usable
            assert found.full_kv_hit_length == length
            assert found.miss_reason == ("complete" if usable else "window_gap")
            assert found.swa_branching_seqlen == (None if usable else length)
            if usable:
                paired = await cache.component_slots("swa", found.device_indices[-8:])
                assert int(paired.min()) >= 0
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        await put(cache, key(8), state=True)
        await put(cache, key(16), prev=8)
        found = await match(cache, key(16))
        assert (len(found.device_indices), found.miss_reason) == (8, "no_state")
        assert (found.full_kv_hit_length, found.mamba_branching_seqlen) == (16, 16)


# -- eviction ----------------------------------------------------------------------------------


async def test_g88_what_ranks_higher_takes_along_what_ranks_no_higher(
    make_cache: MakeCache,
) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:

        async def two_nodes() -> None:
            await put(cache, key(8), state=True)
            await put(cache, key(16), prev=8, state=True)

        await two_nodes()
        assert await cache.evict(EvictParams(mamba_num=1)) == EvictResult(0, 0, 1)
        assert await cache.evict(EvictParams(swa_num_tokens=1)) == EvictResult(0, 8, 0)
        # A leaf goes whole, whoever wants something of it.
        assert await cache.evict(EvictParams(mamba_num=1)) == EvictResult(8, 8, 1)
        assert await cache.evict(EvictParams(num_tokens=1)) == EvictResult(8, 0, 0)
        assert (await cache.stats()).nodes == 0
        await two_nodes()
        assert await cache.evict(EvictParams(swa_num_tokens=1)) == EvictResult(0, 8, 1)
        assert (await cache.stats()).nodes == 2
        assert await cache.evict(EvictParams(swa_num_tokens=1)) == EvictResult(8, 8, 1)
        assert (await cache.stats()).nodes == 1


async def test_g89_what_is_locked_survives_the_eviction_of_every_component(
    make_cache: MakeCache,
) -> None:
    async with make_cache(**hybrid(page_size=4, window=8)) as cache:
        await put(cache, key(8), state=True)
        last = await put(cache, key(24), prev=8, state=True)
        receipt = (await match(cache, key(24), lock=True)).receipt
        assert receipt is not None
        everything = EvictParams(num_tokens=64, swa_num_tokens=64, mamba_num=8)
        # All but the window and the state at its end, which are what the lock is for.
        assert await cache.evict(everything) == EvictResult(0, 16, 1)
        assert await windows(cache, last.node) == "....##"
        assert await protected(cache) == (24, 8, 1)
        found = await match(cache, key(24))
        assert (len(found.device_indices), found.miss_reason) == (24, "complete")
        await cache.dec_swa_lock_only(receipt)
        # A leaf that is locked in Full counts as inner: what nobody locks of it may go.
        assert await cache.evict(everything) == EvictResult(0, 8, 1)
        assert (await cache.stats()).nodes == 3
        await cache.dec_lock_ref(receipt)


@pytest.mark.parametrize("component", ["full", "swa", "mamba"])
async def test_g90_after_a_crash_pairs_windows_and_states_are_as_they_were(
    make_cache: MakeCache, component: str
) -> None:
    async with make_cache(audit=False, **HYBRID_WORLD) as cache:
        world = await populate_hybrid(cache)
        before = (await cache.stats()).pools
        own = (await cache.component_slots("swa", world.anonymous)).tolist()
        crash = CrashBefore("Describe", component)
        cache.add_interceptor(crash)
        await cache.pretty_print()
        cache.remove_interceptor(crash)
        assert (await cache.audit()).ok
        assert (await cache.stats()).pools == before
        assert (await cache.component_slots("swa", world.anonymous)).tolist() == own
        assert_conserved(cache)
        await cache.cache_finished_req(world.req)
        await cache.abort_req(world.waiting)
        assert (await cache.audit()).ok


# -- cancellation ------------------------------------------------------------------------------


async def crowded(cache: UnifiedRadixCache) -> None:
    """Fill pools of 32, 32 and 3 slots, so that each pool has to evict for the next call."""
    await put(cache, key(16), state=True)
    await put(cache, key(tokens(8, 100)), state=True)
    await put(cache, key(tokens(8, 200)), state=True)


Prepare = Callable[[UnifiedRadixCache], Awaitable[Request]]
Make = Callable[[UnifiedRadixCache, Request], Awaitable[Any]]


async def _new(cache: UnifiedRadixCache) -> Request:
    await crowded(cache)
    return Request("r", tokens(20))


async def _with_state(cache: UnifiedRadixCache) -> Request:
    """Return a request that has a state from a match before."""
    await crowded(cache)
    req = Request("r", tokens(20))
    await match(cache, req.key(), req=req, cow_mamba=True)
    return req


async def _match(cache: UnifiedRadixCache, req: Request) -> Any:
    return await match(cache, req.key(), req=req, cow_mamba=True)


async def _match_locked(cache: UnifiedRadixCache, req: Request) -> Any:
    return await match(cache, req.key(), req=req, cow_mamba=True, lock=True)


async def _allocate(cache: UnifiedRadixCache, req: Request) -> Any:
    return await cache.allocate(AllocateParams(num_tokens=8, mamba_num=1, req=req))


async def _allocate_states(cache: UnifiedRadixCache, req: Request) -> Any:
    return await cache.allocate(AllocateParams(mamba_num=1, req=req))


TAKING: dict[str, tuple[Prepare, Make]] = {
    "match with a copy": (_new, _match),
    "match with a copy and a lock": (_new, _match_locked),
    "match with a copy, again": (_with_state, _match_locked),
    "allocate": (_new, _allocate),
    "allocate after a match": (_with_state, _allocate),
    "allocate states after a match": (_with_state, _allocate_states),
}


@pytest.mark.parametrize("name", TAKING)
async def test_g91_a_cancelled_call_leaves_a_request_what_it_had(name: str) -> None:
    prepare, make = TAKING[name]
    ends: set[str] = set()
    for steps in range(40):
        sizes = hybrid(page_size=4, window=8, size=32, states=3)
        async with open_cache(delivery="queued", **sizes) as cache:
            req = await prepare(cache)
            had = await held_by(cache, req)
            call = asyncio.ensure_future(make(cache, req))
            await turns(steps)
            call.cancel()
            end: object = (await asyncio.gather(call, return_exceptions=True))[0]
            await settled(cache)
            assert (await cache.audit()).violations == ()
            ends.add(type(end).__name__)
            if isinstance(end, asyncio.CancelledError):
                assert await held_by(cache, req) == had
            else:
                assert await held_by(cache, req) != had
            await cache.abort_req(req)
            await assert_nothing_held(cache)
            assert_conserved(cache)
        if "CancelledError" in ends and len(ends) == 2:
            break
    assert len(ends) == 2, ends


async def held_by(cache: UnifiedRadixCache, req: Request) -> dict[str, Any]:
    """Return what is held, by pool, and what the only request there is knows to be its own."""
    stats = await cache.stats()
    return {
        "pools": {name: one["device"].held for name, one in stats.pools.items()},
        "locks": (stats.receipts, await protected(cache)),
        "requests": stats.requests,
        "fields": (req.mamba_pool_idx, req.mamba_ping_pong, req.lock, req.cache_protected_len),
    }


GIVING: dict[str, tuple[Make, tuple[tuple[int, ...], int]]] = {
    # With what is protected, and held of the window's pool, when it was carried out.
    "release_window": (lambda cache, req: cache.release_window(req, 40), ((16, 8, 1), 8)),
    "dec_swa_lock_only": (lambda cache, req: cache.dec_swa_lock_only(req.lock), ((16, 0, 0), 24)),
    "component_slots": (
        lambda cache, _: cache.component_slots("swa", slots(range(16))),
        ((16, 8, 1), 24),
    ),
}


@pytest.mark.parametrize("name", GIVING)
async def test_g92_calls_on_windows_are_carried_out_once_made(name: str) -> None:
    make, wanted = GIVING[name]
    ends: set[str] = set()
    for steps in range(1, 40):
        sizes = hybrid(page_size=4, window=8)
        async with open_cache(delivery="queued", **sizes) as cache:
            await put(cache, key(8), state=True)
            req = await admit(cache, "r", tokens(40))
            await chunk(cache, req, 16)
            call = asyncio.ensure_future(make(cache, req))
            await turns(steps)
            call.cancel()
            ends.add(type((await asyncio.gather(call, return_exceptions=True))[0]).__name__)
            await settled(cache)
            for _ in range(2):
                assert (await protected(cache), (await pool(cache, "swa")).held) == wanted
                await make(cache, req)
            await cache.abort_req(req)
            await assert_nothing_held(cache)
            assert_conserved(cache)
        if len(ends) == 2:
            break
    assert len(ends) == 2, ends
