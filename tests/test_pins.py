"""Pins: a cached key stays for a time, within a budget."""

from __future__ import annotations

import pytest

from radixtide import (
    EvictParams,
    InsertParams,
    OutOfSlots,
    PinRefused,
    PinResult,
    RadixKey,
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


class Clock:
    """The cache's clock in the hands of a test."""

    def __init__(self, cache: UnifiedRadixCache) -> None:
        self.now = 1000.0
        state_of(cache).clock = lambda: self.now


async def everything(cache: UnifiedRadixCache) -> int:
    """Evict all that can be evicted; return how many tokens."""
    return (await cache.evict(EvictParams(num_tokens=64))).num_tokens_evicted


async def test_a_pinned_key_stays_until_its_time_is_over(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=16) as cache:
        clock = Clock(cache)
        await store(cache, key(8))
        assert await cache.pin(key(8), ttl=5.0) == PinResult(8, 8)
        assert (await cache.stats()).pinned == 8
        assert (await cache.stats()).pools["full"]["device"].protected == 8
        clock.now += 4.9
        assert await everything(cache) == 0
        clock.now += 0.1
        assert await everything(cache) == 8
        await assert_nothing_held(cache)


async def test_a_pin_outranks_the_policy_and_not_the_budget_of_the_pool(
    make_cache: MakeCache,
) -> None:
    async with make_cache(pin_budget=16) as cache:
        await store(cache, key(8))
        await cache.pin(key(8), ttl=60)
        for turn in range(1, 20):
            await store(cache, key(tokens(8, 100 * turn)))
        assert len((await match(cache, key(8))).device_indices) == 8
        with pytest.raises(OutOfSlots):
            await take(cache, 60)
        assert await cache.unpin(key(8))
        await cache.free(await take(cache, 64))


async def test_an_allocation_expires_pins_whose_time_is_over(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=16) as cache:
        clock = Clock(cache)
        await store(cache, key(16))
        await cache.pin(key(16), ttl=1.0)
        with pytest.raises(OutOfSlots):
            await take(cache, 64)
        clock.now += 1.0
        await cache.free(await take(cache, 64))
        assert (await cache.stats()).pinned == 0


async def test_unpinning_lets_go_and_says_whether_it_was_pinned(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=16) as cache:
        await store(cache, key(8))
        assert await cache.unpin(key(8)) is False
        await cache.pin(key(8), ttl=60)
        assert await cache.unpin(key(8)) is True
        assert await cache.unpin(key(8)) is False
        assert await everything(cache) == 8


async def test_a_renewed_pin_lasts_from_now_and_counts_once(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=8) as cache:
        clock = Clock(cache)
        await store(cache, key(8))
        await cache.pin(key(8), ttl=5.0)
        clock.now += 4.0
        assert await cache.pin(key(8), ttl=5.0) == PinResult(8, 0)
        clock.now += 4.0
        assert await everything(cache) == 0
        clock.now += 1.0
        assert await everything(cache) == 8


async def test_a_renewal_may_shorten_the_time(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=8) as cache:
        clock = Clock(cache)
        await store(cache, key(8))
        await cache.pin(key(8), ttl=50.0)
        await cache.pin(key(8), ttl=1.0)
        clock.now += 1.0
        assert await everything(cache) == 8
        clock.now += 60.0
        assert await everything(cache) == 0


async def test_the_same_expiry_twice_ends_the_pin_once(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=8) as cache:
        clock = Clock(cache)
        await store(cache, key(8))
        for _ in range(3):
            await cache.pin(key(8), ttl=5.0)
        clock.now += 5.0
        assert await everything(cache) == 8
        await assert_nothing_held(cache)


async def test_a_pin_beyond_the_budget_is_refused_until_others_end(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=8) as cache:
        clock = Clock(cache)
        await store(cache, key(8))
        await store(cache, key(tokens(4, 100)))
        await cache.pin(key(8), ttl=5.0)
        with pytest.raises(PinRefused, match=r"4 more units .* 8 of 8"):
            await cache.pin(key(tokens(4, 100)), ttl=5.0)
        clock.now += 5.0
        assert await cache.pin(key(tokens(4, 100)), ttl=5.0) == PinResult(4, 4)


async def test_without_a_budget_nothing_can_be_pinned(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    with pytest.raises(PinRefused, match=r"pins\.budget"):
        await cache.pin(key(8), ttl=5.0)


async def test_a_shared_stem_is_counted_once(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=16) as cache:
        left, right = key(12), key([*tokens(8), *tokens(4, 100)])
        await store(cache, left)
        await store(cache, right)
        assert await cache.pin(left, ttl=60) == PinResult(12, 4)
        assert await cache.pin(right, ttl=60) == PinResult(12, 0)
        await cache.unpin(left)
        assert (await cache.stats()).pinned == 12
        assert await everything(cache) == 4
        await cache.unpin(right)
        assert (await cache.stats()).pinned == 0
        assert await everything(cache) == 12


@pytest.mark.parametrize("length", [4, 6, 8, 11])
async def test_whole_cached_pages_are_pinned_and_split_off(
    make_cache: MakeCache, length: int
) -> None:
    async with make_cache(pin_budget=16) as cache:
        await store(cache, key(8))
        await store(cache, key(16), prev=8)
        pinned = length // 4 * 4
        assert (await cache.pin(key(length), ttl=60)).pinned_len == pinned
        await assert_sound(cache)
        assert await everything(cache) == 16 - pinned
        assert len((await match(cache, key(16))).device_indices) == pinned


async def test_a_pinned_node_may_be_split_and_stays_pinned(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=16) as cache:
        await store(cache, key(16))
        await cache.pin(key(16), ttl=60)
        for cut in (4, 12, 8):
            await match(cache, key(cut))
            await assert_sound(cache)
        assert (await cache.stats()).pinned == 16
        assert await everything(cache) == 0
        assert await cache.unpin(key(16))
        assert await everything(cache) == 16


async def test_a_pin_of_what_grew_covers_the_longer_prefix(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=16) as cache:
        await store(cache, key(8))
        assert (await cache.pin(key(16), ttl=60)).pinned_len == 8
        await store(cache, key(16), prev=8)
        assert await cache.pin(key(16), ttl=60) == PinResult(16, 0)
        assert await everything(cache) == 0
        assert await cache.unpin(key(16))
        await assert_nothing_held(cache)


async def test_pins_of_two_namespaces_are_apart(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=16) as cache:
        await store(cache, key(8))
        await store(cache, key(8, cache_salt="tenant"))
        await cache.pin(key(8, cache_salt="tenant"), ttl=60)
        assert await cache.unpin(key(8)) is False
        assert await everything(cache) == 8
        assert len((await match(cache, key(8, cache_salt="tenant"))).device_indices) == 8


async def test_a_lock_outlives_the_pin(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=16) as cache:
        clock = Clock(cache)
        await store(cache, key(8))
        await cache.pin(key(8), ttl=1.0)
        async with cache.hold(await match(cache, key(8))):
            clock.now += 2.0
            assert await everything(cache) == 0
            assert (await cache.stats()).pinned == 0
        assert await everything(cache) == 8


async def test_a_reset_drops_pins_and_they_do_not_come_back(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=8) as cache:
        clock = Clock(cache)
        await store(cache, key(8))
        await cache.pin(key(8), ttl=5.0)
        await cache.reset()
        assert (await cache.stats()).pinned == 0
        assert await cache.unpin(key(8)) is False
        await store(cache, key(8))
        clock.now += 10.0
        assert await everything(cache) == 8


async def test_pinned_keys_are_shown(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=8) as cache:
        await store(cache, key(8))
        await cache.pin(key(4), ttl=5.0)
        head, first, second = (await cache.pretty_print()).splitlines()
        assert "1 pins" in head
        assert "[0, 4)" in first
        assert ", pinned |" in first
        assert ", pinned |" not in second


async def test_many_pins_come_and_go(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=32) as cache:
        clock = Clock(cache)
        for turn in range(60):
            wanted: RadixKey = key(tokens(8, 100 * (turn % 7)))
            slots = await take(cache, 8)
            await cache.insert(InsertParams(key=wanted, value=slots))
            try:
                await cache.pin(wanted, ttl=1.0 + turn % 4)
            except PinRefused:
                assert (await cache.stats()).pinned == 32
            clock.now += 0.7
            await assert_sound(cache)
        clock.now += 10.0
        assert await everything(cache) > 0
        await assert_nothing_held(cache)
