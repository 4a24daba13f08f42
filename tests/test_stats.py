"""`stats()` and `pretty_print()`: what an operator looks at."""

from __future__ import annotations

import pytest

from radixtide import (
    AllocateParams,
    EvictParams,
    MissReason,
    OutOfSlots,
    PoolStats,
    Request,
    UnifiedRadixCache,
)
from support.caches import Delivery, MakeCache, key, match, store, take, tokens


async def pool(cache: UnifiedRadixCache) -> PoolStats:
    """Return Full's pool on the device."""
    return (await cache.stats()).pools["full"]["device"]


async def test_a_fresh_cache_is_empty(cache: UnifiedRadixCache) -> None:
    stats = await cache.stats()
    assert stats.pools == {
        "full": {
            "device": PoolStats(free=64, evictable=0, protected=0, held=0, in_flight=0, size=64)
        }
    }
    assert (stats.nodes, stats.receipts, stats.requests, stats.pinned, stats.generation) == (0,) * 5
    assert set(stats.counters.values()) == {0}


async def test_a_pool_adds_up_in_every_state(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=8) as cache:
        seen = []
        await store(cache, key(8))
        seen.append(await pool(cache))
        slots = await take(cache, 5)
        seen.append(await pool(cache))
        held = await match(cache, key(8), lock=True)
        seen.append(await pool(cache))
        await cache.pin(key(4), ttl=60)
        assert held.receipt is not None
        await cache.dec_lock_ref(held.receipt)
        seen.append(await pool(cache))
        await cache.free(slots)
        await cache.unpin(key(4))
        await cache.evict(EvictParams(num_tokens=1))
        seen.append(await pool(cache))
        parts = [(one.free, one.evictable, one.protected, one.held) for one in seen]
        assert parts == [
            (56, 8, 0, 0),
            (48, 8, 0, 8),
            (48, 0, 8, 8),
            (48, 4, 4, 8),
            (60, 4, 0, 0),
        ]
        assert {one.size for one in seen} == {64}
        assert all(sum(part) == 64 for part in parts)


async def test_a_pool_that_is_no_whole_number_of_pages_is_rounded_down(
    make_cache: MakeCache,
) -> None:
    async with make_cache(size=30) as cache:
        assert (await pool(cache)).size == 28


async def test_hits_and_misses_are_counted_by_reason(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    await match(cache, key(8))
    await match(cache, key(10))
    await match(cache, key(16))
    await cache.evict(EvictParams(num_tokens=8))
    await match(cache, key(8))
    counters = (await cache.stats()).counters
    assert counters["matches"] == 4
    assert counters["asked_units"] == 8 + 10 + 16 + 8
    assert counters["hit_units"] == 24
    misses = {name: count for name, count in counters.items() if name.startswith("miss.")}
    assert {name for name, count in misses.items() if count == 1} == {
        "miss.complete",
        "miss.unaligned_tail",
        "miss.never_stored",
        "miss.evicted",
    }
    assert sum(misses.values()) == counters["matches"]
    assert set(misses) == {f"miss.{reason.value}" for reason in MissReason}


async def test_inserts_allocations_and_evictions_are_counted(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    await store(cache, key(16))
    with pytest.raises(OutOfSlots):
        await take(cache, 65)
    await cache.evict(EvictParams(num_tokens=16))
    counters = (await cache.stats()).counters
    assert (counters["inserts"], counters["new_units"]) == (2, 16)
    assert (counters["allocations"], counters["refused_allocations"]) == (3, 1)
    assert (counters["evicted_nodes"], counters["evicted_units"]) == (2, 16)
    assert counters["repairs"] == 0


async def test_receipts_requests_and_nodes_are_counted(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    await match(cache, key(4))
    receipt = (await match(cache, key(8), lock=True)).receipt
    req = Request(rid="r", origin_input_ids=tokens(8))
    await match(cache, req.key(), req=req, lock=True)
    other = Request(rid="s", origin_input_ids=tokens(8))
    await cache.allocate(AllocateParams(num_tokens=1, req=other))
    stats = await cache.stats()
    assert (stats.nodes, stats.receipts, stats.requests) == (2, 2, 2)
    assert receipt is not None
    await cache.dec_lock_ref(receipt)
    await cache.abort_req(req)
    await cache.abort_req(other)
    stats = await cache.stats()
    assert (stats.nodes, stats.receipts, stats.requests) == (2, 0, 0)


async def test_there_is_a_coordinator_and_one_actor_a_component(
    make_cache: MakeCache, delivery: Delivery
) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        await store(cache, key([*tokens(4), *tokens(4, 100)]))
        actors = (await cache.stats()).actors
        assert set(actors) == {"coordinator", "full"}
        for name, one in actors.items():
            assert one.name == name
            assert one.alive
            assert one.handled >= 4
            assert (one.failures, one.restarts, one.mailbox_depth) == (0, 0, 0)
            assert one.mailbox_capacity == cache.config.limits.mailbox_capacity
            assert 0.0 <= one.wait_mean_s <= one.wait_max_s
            assert 0.0 <= one.handling_mean_s <= one.handling_max_s
            if delivery == "queued":
                assert one.mailbox_depth_max >= 1
                assert one.handling_max_s > 0.0
            else:
                assert one.mailbox_depth_max == 0
        assert (actors["full"].device_lru, actors["full"].host_lru) == (2, 0)
        assert (actors["coordinator"].device_lru, actors["coordinator"].host_lru) == (None, None)


async def test_statistics_are_a_picture_that_does_not_change(cache: UnifiedRadixCache) -> None:
    before = await cache.stats()
    await store(cache, key(8))
    assert before.pools["full"]["device"].free == 64
    assert before.counters["inserts"] == 0
    with pytest.raises(AttributeError):
        before.nodes = 5  # type: ignore[misc]  # that it can not be set is the test


async def test_a_tree_is_drawn_with_what_each_node_has(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    await store(cache, key([*tokens(4), *tokens(4, 100)]), priority=2)
    await match(cache, key(8), lock=True)
    head, *lines = (await cache.pretty_print()).splitlines()
    assert head == "tree: 3 nodes, generation 0, page 4, 1 receipts, 0 requests, 0 pins"
    assert len(lines) == 3
    assert lines[0].startswith("- node ")
    assert "[0, 4)" in lines[0]
    assert lines[0].endswith("priority 2 | full: 4 slots, locks 1")
    assert all(line.startswith("  - node ") for line in lines[1:])
    assert [line.rpartition("locks ")[2] for line in lines] == ["1", "1", "0"]


@pytest.mark.parametrize("most", [0, 1, 5, 9, 10, 11])
async def test_a_large_tree_is_drawn_in_part(cache: UnifiedRadixCache, most: int) -> None:
    for turn in range(10):
        await store(cache, key(tokens(4, 100 * turn)))
    _, *lines = (await cache.pretty_print(max_nodes=most)).splitlines()
    assert len([line for line in lines if "node " in line and "more" not in line]) == min(most, 10)
    if most < 10:
        assert lines[-1] == f"... and {10 - most} more nodes"
