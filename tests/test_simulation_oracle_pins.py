"""The oracle of the simulator, about pins: what they keep, and until when."""

from __future__ import annotations

from radixtide.components.api import EvictParams
from support.caches import state_of
from support.oracle_scene import (
    PAGE,
    key,
    opened,
    setup,
)


async def test_a_pin_that_is_gone_before_its_time_is_named() -> None:
    scene = await opened(setup())
    oracle, cache = scene.oracle, scene.cache
    await scene.put(key(3))
    before = oracle.snapshot()
    ends = oracle.pinning(key(3), 100.0)
    pinned = await cache.pin(key(3), 100.0)
    oracle.pin_answered(key(3), ends)
    assert not oracle.pinned(key(3), pinned, before)
    # A call that was refused has changed nothing.
    oracle.pin_answered(key(3), oracle.pinning(key(3), 1e-9))
    board = state_of(cache).pins
    (pin,) = board.all()
    board.remove(pin)
    (found,) = oracle.look()
    assert "is gone" in found
    board.add(pin)
    assert not oracle.look()
    await cache.close()


async def test_a_pin_whose_renewal_nobody_heard_of_may_end_by_that() -> None:
    scene = await opened(setup())
    oracle, cache = scene.oracle, scene.cache
    await scene.put(key(3))
    before = oracle.snapshot()
    pinned = await cache.pin(key(3), 100.0)
    assert not oracle.pinned(key(3), pinned, before)
    # Its answer is lost, and it is carried out: the pin is over, and what it kept is evicted.
    oracle.pinning(key(3), 1e-9)
    await cache.pin(key(3), 1e-9)
    await cache.evict(EvictParams(1000))
    assert not len(state_of(cache).pins)
    assert not oracle.look()
    assert not len((await scene.good_match(key(3))).device_indices)
    await cache.close()


async def test_a_renewal_that_is_over_before_it_is_heard_of_ends_the_pin() -> None:
    scene = await opened(setup())
    oracle, cache = scene.oracle, scene.cache
    for ttl, found in ((1e-9, 0), (100.0, 1)):
        await scene.put(key(3))
        pinned = await cache.pin(key(3), 100.0)
        assert not oracle.pinned(key(3), pinned, oracle.snapshot())
        ends = oracle.pinning(key(3), ttl)
        pinned = await cache.pin(key(3), 1e-9)
        await cache.evict(EvictParams(1000))
        oracle.pin_answered(key(3), ends)
        assert not oracle.pinned(key(3), pinned, oracle.snapshot(), ends=ends)
        # The second was to last: that it is gone is wrong.
        assert len(oracle.look()) == found
    await cache.close()


async def test_a_pin_that_was_made_anew_meanwhile_keeps_what_the_new_one_covers() -> None:
    scene = await opened(setup())
    oracle, cache = scene.oracle, scene.cache
    await scene.put(key(3))
    before = oracle.snapshot()
    pinned = await cache.pin(key(3), 100.0)
    # Before that is answered, another caller resets the cache, and pins what there is then.
    await cache.reset()
    await scene.put(key(2))
    await cache.pin(key(3), 100.0)
    assert not oracle.pinned(key(3), pinned, before)
    assert len((await scene.good_match(key(3))).device_indices) == 2 * PAGE
    assert not oracle.look()
    await cache.close()
