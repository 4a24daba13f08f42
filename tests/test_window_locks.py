"""A lock pins one window of SWA, in whole pages, however long its node is and however it is cut.

All numbers are exact, and read from ``stats()``.
"""

from __future__ import annotations

import itertools
import random

import pytest

from radixtide import LockReceipt, Request, UnifiedRadixCache
from support.caches import Delivery, key, match, tokens
from support.hybrids import (
    ALL,
    BOTH,
    admit,
    assert_conserved,
    audited,
    chunk,
    drain,
    has,
    protected,
    put,
    squeeze,
)

sets = pytest.mark.parametrize("components", [BOTH, ALL], ids=["swa", "swa+mamba"])
shapes = pytest.mark.parametrize(
    ("page_size", "window"),
    [(1, 1000), (16, 1), (16, 1000), (64, 65), (64, 1024)],
)
Components = tuple[str, ...]
LONG = 32_768


def rounded(window: int, page_size: int) -> int:
    """Return a window in whole pages."""
    return -(-window // page_size) * page_size


async def locked(cache: UnifiedRadixCache, length: int) -> LockReceipt:
    """Match the first `length` tokens with a lock."""
    receipt = (await match(cache, key(length), lock=True)).receipt
    assert receipt is not None
    return receipt


async def sizes(cache: UnifiedRadixCache) -> tuple[int, ...]:
    """Return what Full and SWA protect."""
    return await protected(cache, "full", "swa")


@sets
@shapes
async def test_a_lock_on_a_leaf_of_32k_tokens_protects_one_window(
    delivery: Delivery, components: Components, page_size: int, window: int
) -> None:
    """By a match, by a handle, by a request and by a pin; what is out of the window can go."""
    reach = rounded(window, page_size)
    async with audited(
        delivery,
        components,
        page_size=page_size,
        window=window,
        size=LONG,
        max_context=LONG,
        pin_budget=LONG,
    ) as cache:
        state = has(cache, "mamba")
        leaf = await put(cache, key(LONG), state=state)
        pools = (await cache.stats()).pools
        assert [pools[name]["device"].evictable for name in BOTH] == [LONG, LONG]
        receipts = [await locked(cache, LONG), await cache.inc_lock_ref(leaf.node)]
        assert await sizes(cache) == (LONG, reach)
        moved = [(await cache.dec_lock_ref(one)).unprotected["swa"] for one in receipts]
        assert moved == [0, reach]
        assert await sizes(cache) == (0, 0)
        await cache.pin(key(LONG), ttl=3600.0)
        assert await sizes(cache) == (LONG, reach)
        await cache.unpin(key(LONG))
        assert await sizes(cache) == (0, 0)
        req = Request("r", tokens(LONG))
        await match(cache, req.key(), req=req, lock=True, cow_mamba=state)
        assert await sizes(cache) == (LONG, reach)
        await squeeze(cache)
        assert await sizes(cache) == (LONG, reach)
        assert (await cache.stats()).pools["swa"]["device"].free == LONG - reach
        assert len((await match(cache, key(LONG))).device_indices) == LONG
        await cache.abort_req(req)
        assert await sizes(cache) == (0, 0)
        await drain(cache)


@shapes
async def test_a_lock_whose_window_begins_in_the_middle_of_a_node_protects_no_more(
    delivery: Delivery, page_size: int, window: int
) -> None:
    """Locks that end anywhere: at a page's end, inside a page, less than a window from the root."""
    reach = rounded(window, page_size)
    size = 2 * LONG
    async with audited(
        delivery, BOTH, page_size=page_size, window=window, size=size, max_context=size
    ) as cache:
        await put(cache, key(LONG))
        for length in (
            20_000,
            page_size,
            9_999,
            reach + page_size,
            LONG - 1,
            reach // 2 + page_size,
        ):
            whole = length - length % page_size
            before = (await cache.stats()).nodes
            receipt = await locked(cache, length)
            assert (await cache.stats()).nodes <= before + 2
            assert await sizes(cache) == (whole, min(reach, whole))
            moved = (await cache.dec_lock_ref(receipt)).unprotected
            assert moved == {"full": whole, "swa": min(reach, whole)}
            assert await sizes(cache) == (0, 0)
        await drain(cache)


@sets
@shapes
async def test_a_request_that_is_cached_in_chunks_pins_one_window_at_each(
    delivery: Delivery, components: Components, page_size: int, window: int
) -> None:
    reach = rounded(window, page_size)
    async with audited(
        delivery, components, page_size=page_size, window=window, size=LONG, max_context=LONG
    ) as cache:
        req = await admit(cache, "r", tokens(12_000))
        for length in (page_size, 4_000, 4_001, 8_500, 12_000):
            done = await chunk(cache, req, length)
            assert await sizes(cache) == (done, min(reach, done))
        moved = (await cache.dec_swa_lock_only(req.lock)).unprotected
        done = 12_000 - 12_000 % page_size
        assert (moved["full"], moved["swa"]) == (0, min(reach, done))
        assert await sizes(cache) == (done, 0)
        await cache.cache_finished_req(req)
        await drain(cache)


@sets
@shapes
async def test_any_number_of_splits_under_a_lock_change_nothing_of_what_it_pins(
    delivery: Delivery, components: Components, page_size: int, window: int
) -> None:
    """Matches and inserts cut the path at random, in the window and above; then all is released."""
    dice = random.Random(page_size + window)
    reach = rounded(window, page_size)
    length = 4 * reach + 64 * page_size
    room = length + 40 * page_size
    async with audited(
        delivery, components, page_size=page_size, window=window, size=room, states=4
    ) as cache:
        state = has(cache, "mamba")
        await put(cache, key(length), state=state)
        receipt = await locked(cache, length)
        assert await sizes(cache) == (length, min(reach, length))
        for turn in range(30):
            inside = dice.random() < 0.5
            low = length - reach if inside else 0
            cut = low + dice.randrange(page_size, length - low + 1)
            cut -= cut % page_size
            if turn % 3 or not cut:
                await match(cache, key(max(cut, page_size)))
            else:
                other = [*tokens(cut), *tokens(page_size, 10**6 * (turn + 1))]
                await put(cache, key(other), prev=cut)
            assert await sizes(cache) == (length, reach)
        await squeeze(cache)
        assert await sizes(cache) == (length, reach)
        assert len((await match(cache, key(length))).device_indices) == length
        moved = (await cache.dec_lock_ref(receipt)).unprotected
        assert (moved["full"], moved["swa"]) == (length, reach)
        assert await sizes(cache) == (0, 0)
        await drain(cache)


@sets
@pytest.mark.parametrize(("page_size", "window"), [(1, 7), (4, 7), (16, 17), (4, 8)])
@pytest.mark.parametrize("first", [0, 1], ids=["deeper first", "shallower first"])
async def test_two_receipts_on_overlapping_windows_are_given_up_in_either_order(
    delivery: Delivery, components: Components, page_size: int, window: int, first: int
) -> None:
    """However far apart the windows end, each release uncovers what is not the other's."""
    reach = rounded(window, page_size)
    length = 3 * reach + page_size
    async with audited(
        delivery, components, page_size=page_size, window=window, size=4 * length, states=32
    ) as cache:
        state = has(cache, "mamba")
        gaps = sorted({0, page_size, reach - page_size, reach, reach + page_size})
        for gap in gaps:
            await put(cache, key(length - gap), state=state)
        for gap, ways in itertools.product(gaps, itertools.product(("early", "whole"), repeat=2)):
            receipts = [await locked(cache, length), await locked(cache, length - gap)]
            union = reach + min(gap, reach)
            assert await sizes(cache) == (length, union)
            one, other = receipts[first], receipts[1 - first]
            moved = await release(cache, one, ways[0])
            # It uncovers what the other's window does not cover; Full where the other ends.
            full = gap if first == 0 and ways[0] == "whole" else 0
            assert (moved["full"], moved["swa"]) == (full, min(gap, reach))
            assert await sizes(cache) == (length - full, reach)
            moved = await release(cache, other, ways[1])
            assert moved["swa"] == reach
            assert (await sizes(cache))[1] == 0
            for receipt, way in ((one, ways[0]), (other, ways[1])):
                if way == "early":
                    again = (await cache.dec_swa_lock_only(receipt)).unprotected
                    assert set(again.values()) == {0}
                    late = (await cache.dec_lock_ref(receipt)).unprotected
                    assert late["swa"] == 0
            assert await sizes(cache) == (0, 0)
        await drain(cache)


async def release(cache: UnifiedRadixCache, receipt: LockReceipt, way: str) -> dict[str, int]:
    """Give a receipt up, its window only or all of it; return what that unprotected."""
    call = cache.dec_swa_lock_only if way == "early" else cache.dec_lock_ref
    return (await call(receipt)).unprotected


@sets
@pytest.mark.parametrize(("page_size", "window"), [(1, 5), (4, 6), (16, 20)])
@pytest.mark.parametrize("seed", range(2))
async def test_slots_of_all_pools_are_conserved_by_number_and_whole_after_a_drain(
    delivery: Delivery, components: Components, page_size: int, window: int, seed: int
) -> None:
    """Requests that share, stash, give back windows, finish or abort: each slot has one owner."""
    dice = random.Random(seed)
    unit = page_size
    async with audited(
        delivery,
        components,
        page_size=page_size,
        window=window,
        size=96 * unit,
        swa_size=48 * unit,
        states=20,
        max_context=96 * unit,
    ) as cache:
        running: list[Request] = []
        for turn in range(24):
            shared = tokens(unit * dice.randrange(1, 8))
            prompt = [*shared, *tokens(dice.randrange(1, 6 * unit), 10**5 * turn)]
            if len(running) < 4:
                running.append(await admit(cache, f"r{turn}", prompt, row=turn % 2 == 0))
            req = running[dice.randrange(len(running))]
            done = dice.randint(req.cache_protected_len, len(req.origin_input_ids))
            await chunk(cache, req, done)
            await cache.release_window(req, max(done, req.cache_protected_len))
            assert_conserved(cache)
            if dice.random() < 0.6:
                running.remove(req)
                req.kv_committed_len = None
                await (
                    cache.cache_finished_req(req) if dice.random() < 0.7 else cache.abort_req(req)
                )
                assert_conserved(cache)
        for req in running:
            req.kv_committed_len = None
            await cache.cache_finished_req(req)
        await drain(cache)
