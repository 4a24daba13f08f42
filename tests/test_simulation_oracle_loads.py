"""What the oracle of the simulator believes of a load: on its way, over, or failed."""

from __future__ import annotations

from radixtide.components.api import EvictParams
from support.oracle_scene import PAGE, key, opened, setup
from support.seams import hold_engine


async def test_a_load_that_failed_protects_what_it_left_and_no_more() -> None:
    """Before its caller has waited for it, too: a window behind its end has gone meanwhile."""
    scene = await opened(setup(("full", "swa"), tiers="host"))
    cache, oracle = scene.cache, scene.oracle
    for pages in (2, 5, 6):
        await scene.put(key(pages))
    await cache.drain()
    await scene.good_match(key(2), lock=True)
    part = await scene.good_match(key(5), lock=True)
    await cache.evict(EvictParams(1000, 1000))
    found = await scene.good_match(key(6))
    assert found.host_hit_length == PAGE
    engine = hold_engine(cache)
    engine.hold("load")
    before = oracle.snapshot()
    handle = await cache.load_back(found)
    assert not oracle.loading(key(6), handle, before)
    assert part.receipt is not None
    oracle.unlocked(part.receipt)
    await cache.dec_lock_ref(part.receipt)
    await cache.evict(EvictParams(0, 1000))
    last = handle.device_indices[4 * PAGE : 5 * PAGE]
    lost = oracle.granted(last, "full", "s1")
    assert any("are under lock" in one for one in lost), lost
    oracle.gone(last, "full")
    await engine.arrived(1)
    engine.fail()
    await cache.drain()
    await cache.evict(EvictParams(1000))
    given = await scene.take(10 * PAGE)
    assert set(last.tolist()) <= set(given.indices.tolist())
    oracle.wrote(key(10, 50), 0, given.indices)
    # The answer of the load may come as late as this.
    assert not oracle.loading(key(6), handle, before)
    lost = oracle.granted(handle.device_indices[PAGE : 2 * PAGE], "full", "s1")
    assert any("are under lock" in one for one in lost), lost
    length = await handle.wait()
    assert length == 2 * PAGE
    assert not oracle.loaded(key(6), handle, length)
    oracle.load_closed(handle)
    await handle.close()
    await cache.close()


async def test_a_load_that_failed_and_left_less_than_there_was_is_named() -> None:
    scene = await opened(setup(tiers="host"))
    cache, oracle = scene.cache, scene.oracle
    for pages in (2, 3):
        await scene.put(key(pages))
    await cache.drain()
    await scene.good_match(key(2), lock=True)
    await cache.evict(EvictParams(1000))
    found = await scene.good_match(key(3))
    before = oracle.snapshot()
    async with await cache.load_back(found) as handle:
        assert not oracle.loading(key(3), handle, before)
        assert await handle.wait() == 3 * PAGE
        handle.length, handle._failed = PAGE, True
        lost = oracle.loaded(key(3), handle, PAGE)
    assert any("4 units, and 8 were there before" in one for one in lost), lost
    await cache.close()


async def test_a_match_that_was_made_during_a_load_need_not_have_what_it_brought() -> None:
    """Its answer may be lost, and come again when the load is over."""
    scene = await opened(setup(tiers="host"))
    cache, oracle = scene.cache, scene.oracle
    await scene.put(key(3))
    await cache.drain()
    await cache.evict(EvictParams(1000))
    found = await scene.good_match(key(3))
    engine = hold_engine(cache)
    engine.hold("load")
    before = oracle.snapshot()
    handle = await cache.load_back(found)
    assert not oracle.loading(key(3), handle, before)
    params, early, before = await scene.match(key(3))
    assert not len(early.device_indices)
    assert early.host_hit_length == 3 * PAGE
    await engine.arrived(1)
    engine.release()
    assert await handle.wait() == 3 * PAGE
    assert not oracle.loaded(key(3), handle, 3 * PAGE)
    assert not oracle.matched(params, early, before)
    # Of one that was made later that answer would be wrong.
    lost = oracle.matched(params, early, oracle.snapshot())
    assert any("0 units, and 12 are locked whole" in one for one in lost), lost
    oracle.load_closed(handle)
    await handle.close()
    await cache.close()


async def test_indices_from_before_a_load_may_be_others_than_those_it_locked() -> None:
    """Their answer may be lost, and come again when what they were of is loaded elsewhere."""
    scene = await opened(setup(tiers="host"))
    cache, oracle = scene.cache, scene.oracle
    await scene.put(key(3))
    await cache.drain()
    found = await scene.good_match(key(3))
    early = oracle.snapshot()
    slots = await cache.device_indices(found.last_device_node)
    assert not oracle.indices(key(3), 3 * PAGE, "full", slots, early)
    await cache.evict(EvictParams(1000))
    await scene.take(3 * PAGE)
    found = await scene.good_match(key(3))
    before = oracle.snapshot()
    handle = await cache.load_back(found)
    assert not oracle.loading(key(3), handle, before)
    assert await handle.wait() == 3 * PAGE
    assert not oracle.loaded(key(3), handle, 3 * PAGE)
    assert slots.tolist() != handle.device_indices.tolist()
    assert not oracle.indices(key(3), 3 * PAGE, "full", slots, early)
    # Of a call that was made later they would be wrong.
    moved = oracle.indices(key(3), 3 * PAGE, "full", slots, oracle.snapshot())
    assert any("under lock" in one for one in moved), moved
    oracle.load_closed(handle)
    await handle.close()
    await cache.close()
