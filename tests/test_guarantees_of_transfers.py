"""One test a sentence of docs/guarantees.md: transfers, and the tiers as a whole."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from radixtide import (
    AllocateParams,
    Busy,
    CacheClosed,
    CallTimeout,
    EvictParams,
    UnifiedRadixCache,
)
from support.actors import turns
from support.caches import Delivery, settled
from support.interceptors import Stall
from support.tier_cases import on_host
from support.tier_config import SETS, tier_config
from support.tiered import Tiers, soon, tiers

EACH = pytest.mark.parametrize("components", [SETS[0], SETS[-1]], ids="+".join)


# -- transfers -----------------------------------------------------------------------------------


async def test_g93_nobody_waits_for_a_transfer_who_does_not_ask_for_it(delivery: Delivery) -> None:
    async with tiers(delivery, page_size=4, url="memory:") as t:
        await on_host(t, 4)
        found = await t.match(t.key(4))
        stall = Stall("tiering")
        t.cache.add_interceptor(stall)
        handle = await t.cache.load_back(found, timeout=20.0)
        fetch = await t.cache.prefetch(t.key(8), timeout=20.0)
        fresh = t.key(t.span(2, 100))
        await t.put(fresh)
        assert await t.hit(fresh) == (2, 0)
        receipt = (await t.match(fresh, lock=True)).receipt
        assert receipt is not None
        await t.cache.dec_lock_ref(receipt)
        await t.cache.evict(EvictParams(num_tokens=64), timeout=20.0)
        for waiting in (handle.wait(timeout=0.02), t.cache.drain(0.02), fetch.wait(timeout=0.02)):
            with pytest.raises(CallTimeout):
                await waiting
        await handle.close()
        await fetch.close()
        stall.release()
        t.cache.remove_interceptor(stall)


@EACH
async def test_g94_what_a_transfer_reads_stays_and_what_it_fills_is_nobody_elses(
    delivery: Delivery, components: tuple[str, ...]
) -> None:
    small: dict[str, Any] = {"pages": 4, "host_pages": 4, "swa_pages": 4, "host_swa_pages": 4}
    async with tiers(delivery, components, window=2, states=4, **small) as t:
        t.engine.hold()
        await t.put(t.key(2))
        await t.engine.arrived(1)
        assert (await t.pool(tier="host")).in_flight == 2
        await t.demote()
        assert await t.hit(t.key(2)) == (2, 0), "its backup reads it"
        t.engine.release()
        await t.cache.drain()
        await t.demote()
        async with await t.cache.load_back(await t.match(t.key(2))) as handle:
            await t.engine.arrived(1)
            assert (await t.pool(tier="device")).in_flight == 2
            # Two pages are left on each tier; others take them and no more.
            await t.put(t.key(t.span(2, 100)))
            mine = handle.device_indices.tolist()
            other = await t.match(t.key(t.span(2, 100)))
            assert set(mine).isdisjoint(other.device_indices.tolist())
            t.engine.hold_no_more()
            t.engine.release()
            assert await handle.wait() == 2
            await t.check(t.key(2), handle.device_indices, handle.receipt.node)


async def test_g95_a_copy_has_its_parents_there(delivery: Delivery) -> None:
    async with tiers(delivery, ("full",), url="memory:", batch_units=1) as t:
        assert t.store is not None
        t.engine.hold("backup", how="copied")
        for end in (2, 4, 6):
            await t.put(t.key(end), prev=end - 2)
            await t.engine.arrived(end // 2)
        # The news of the copies come in the wrong order, and each time all are looked at.
        for job in reversed(t.engine.held()):
            t.engine.release([job])
            await turns(20)
            await t.sound()
        await t.cache.drain()
        assert [bits for _, _, bits in t.picture()] == ["DHS"] * 3
        stored = [name.partition(".")[0] for name in t.store.order]
        assert len(stored) == 6
        tree = t.cache._state.tree
        node = next(iter(tree.root.children.values()))
        hashes = b""
        while True:
            hashes += node.hashes
            if not node.children:
                break
            node = next(iter(node.children.values()))
        chain = [hashes[at : at + 32].hex() for at in range(0, len(hashes), 32)]
        assert [name.partition("-")[0] for name in stored] == chain


@pytest.mark.parametrize(
    ("components", "direction"),
    [(SETS[0], "backup"), (SETS[0], "load"), (SETS[-1], "backup")],
    ids=str,
)
async def test_g96_a_split_changes_nothing_of_what_a_transfer_brings(
    delivery: Delivery, components: tuple[str, ...], direction: Any
) -> None:
    async with tiers(delivery, components, page_size=4, url="memory:") as t:
        if direction == "load":
            await on_host(t, 8)
        t.engine.hold(direction)
        load = None
        if direction == "load":
            load = await t.cache.load_back(await t.match(t.key(8)))
        else:
            await t.put(t.key(8))
        await t.engine.arrived(1)
        await t.split(6)
        await t.split(2)
        t.engine.hold_no_more()
        t.engine.release()
        await t.cache.drain()
        assert {bits for _, _, bits in t.picture()} == {"DHS"}
        if components == ("full",):
            assert [(begin, end) for begin, end, _ in t.picture()] == [(0, 2), (2, 6), (6, 8)]
        if load is not None:
            assert await load.wait() == 8 * t.page
            await load.close()
        assert await t.hit(t.key(8)) == (8, 0)


async def test_g97_a_backup_that_is_not_made_leaves_nothing_half_done(delivery: Delivery) -> None:
    async with tiers(delivery, page_size=4, host_pages=4, host_swa_pages=4) as t:
        t.engine.hold("backup")
        await t.put(t.key(2))
        await t.engine.arrived(1)
        t.engine.hold_no_more()
        t.engine.fail()
        await t.cache.drain()
        assert t.picture() == [(0, 2, "D")]
        assert await t.free_pages() == 4
        assert await t.count("backups_failed") == 1
        # It is used again.
        await t.match(t.key(2))
        await t.cache.drain()
        assert t.picture() == [(0, 2, "DH")]
        # A node that is larger than the host finds no room.
        await t.put(t.key(t.span(6, 100)))
        await t.cache.drain()
        assert t.picture()[-1][2] == "D"
        assert await t.count("backups_refused") >= 1
        await t.sound()


@pytest.mark.parametrize("kind", [asyncio.Future, Future])
async def test_g98_copies_wait_for_what_was_given_as_ready_and_after(
    delivery: Delivery, kind: Any
) -> None:
    async with tiers(delivery, ("full",), pages=4) as t:
        written: Any = kind()
        put = await t.put(t.key(2), written=False, ready=written)
        await turns(50)
        assert "H" not in t.picture()[0][2]
        await t.write(put.slots, t.pending.pop())
        written.set_result(None)
        await t.cache.drain()
        assert t.picture() == [(0, 2, "DH")]
        await t.demote()
        read: Any = kind()
        given = await t.cache.allocate(AllocateParams(num_tokens=4))
        t.cache.memory["full"].parts()[0][0][given.indices] = 7.0
        await t.cache.free(given.indices, after=read)
        async with await t.cache.load_back(await t.match(t.key(2))) as handle:
            await turns(50)
            untouched = t.cache.memory["full"].parts()[0][0][handle.device_indices]
            assert (untouched == 7.0).all()
            with pytest.raises(CallTimeout):
                await handle.wait(timeout=0.02)
            read.set_result(None)
            assert await handle.wait() == 2


async def test_g99_limits_hold_and_what_is_left_out_is_counted(delivery: Delivery) -> None:
    limits: dict[str, Any] = {"jobs_max": 2, "units_in_flight": 3, "batch_units": 1}
    async with tiers(delivery, ("full",), backlog_max=2, **limits) as t:
        t.engine.hold("backup")
        for at in range(8):
            await t.put(t.key(t.span(1, 10 * at)))
            await settled(t.cache)
            await turns(3)
        assert t.cache.transfers == 2
        assert await t.count("backups_skipped") == 8 - 2 - 2
        t.engine.hold_no_more()
        t.engine.release()
        await t.cache.drain()
        assert sorted(bits for _, _, bits in t.picture()) == ["D"] * 4 + ["DH"] * 4


async def test_g100_who_needs_what_write_back_saves_waits_in_line(delivery: Delivery) -> None:
    async with tiers(delivery, ("full",), pages=4, policy="write_back") as t:
        await t.put(t.key(4))
        t.engine.hold("backup")
        order: list[int] = []

        async def take(number: int) -> None:
            given = await t.cache.allocate(AllocateParams(num_tokens=1))
            order.append(number)
            await t.cache.free(given.indices)

        waiting = [await soon(take(number)) for number in range(4)]
        assert order == []
        assert await t.hit(t.key(4)) == (4, 0), "nothing is lost"
        t.engine.hold_no_more()
        t.engine.release()
        await asyncio.gather(*waiting)
        assert order == [0, 1, 2, 3]
        assert await t.hit(t.key(4)) == (0, 4)


@EACH
async def test_g101_a_mirror_that_is_evicted_stays_on_the_host(
    delivery: Delivery, components: tuple[str, ...]
) -> None:
    async with tiers(delivery, components, page_size=4) as t:
        await t.put(t.key(4))
        await t.settle()
        await t.demote()
        found = await t.match(t.key(4))
        assert (len(found.device_indices), found.host_hit_length) == (0, 4 * t.page)
        assert found.miss_reason == "on_host"
        assert (await t.pool(tier="device")).free == 32 * t.page
        assert await t.load(t.key(4)) == 4


# -- the tiers as a whole ------------------------------------------------------------------------


async def test_g118_a_drain_returns_when_nothing_moves(delivery: Delivery) -> None:
    async with tiers(delivery, page_size=4, url="memory:") as t:
        assert t.store is not None
        t.engine.hold("backup")
        t.store.hold("put_from")
        await t.put(t.key(4))
        draining = await soon(t.cache.drain())
        with pytest.raises(CallTimeout):
            await t.cache.drain(0.01)
        t.engine.release()
        await t.stored(1)
        assert not draining.done()
        t.store.release()
        await draining
        assert t.cache.transfers == 0
        assert t.picture() == [(0, 4, "DHS")]


async def test_g119_a_flush_drops_what_is_on_its_tier_and_not_held(delivery: Delivery) -> None:
    async with tiers(delivery, ("full",), page_size=4, url="memory:") as t:
        await t.put(t.key(4))
        await t.put(t.key(t.span(2, 100)))
        t.engine.hold("backup")
        await t.put(t.key(t.span(2, 200)))
        await t.engine.arrived(1)
        for tier in ("host", "storage"):
            with pytest.raises(Busy):
                await t.cache.flush(tier, 0.01)
        t.engine.release()
        receipt = (await t.match(t.key(4), lock=True)).receipt
        assert receipt is not None
        await t.cache.drain()
        assert [bits for _, _, bits in t.picture()] == ["DHS"] * 3
        assert await t.cache.flush("device") == 4 * t.page
        assert [bits for _, _, bits in t.picture()] == ["DHS", "HS", "HS"]
        assert await t.cache.flush("storage", 20.0) == 8
        assert [bits for _, _, bits in t.picture()] == ["DH", "H", "H"]
        await t.cache.flush("host", 20.0)
        assert t.picture()[0][2][0] == "D"
        assert len(t.picture()) == 1
        await t.cache.dec_lock_ref(receipt)
        async with await t.cache.prefetch(t.key(t.span(2, 100))) as fetch:
            assert await fetch.wait() == 0, "it is gone from storage as well"


async def test_g120_a_reset_is_refused_while_a_transfer_is_under_way(delivery: Delivery) -> None:
    async with tiers(delivery, page_size=4) as t:
        t.engine.hold("backup")
        await t.put(t.key(4))
        await t.engine.arrived(1)
        with pytest.raises(Busy, match="backup"):
            await t.cache.reset(0.01)
        assert await t.hit(t.key(4)) == (4, 0)
        waiting = await soon(t.cache.reset(20.0))
        t.engine.release()
        await waiting
        assert (await t.cache.stats()).nodes == 0
        assert await t.free_pages() == 64


@pytest.mark.parametrize("how", ["late", "copied"])
async def test_g121_when_a_cache_is_closed_nothing_moves(delivery: Delivery, how: Any) -> None:
    config = tier_config(page_size=4, delivery=delivery, url="memory:")
    async with UnifiedRadixCache(config) as cache:
        t = Tiers(cache)
        await on_host(t, 4)
        t.engine.hold(how=how)
        await t.put(t.key(t.span(4, 100)))
        handle = await cache.load_back(await t.match(t.key(4)))
        await t.engine.arrived(2)
        waiting = [await soon(handle.wait()), await soon(cache.drain())]
        await cache.close(0.5)
        assert not t.engine.waiting
        assert not t.engine.under_way
        for task in waiting:
            with pytest.raises(CacheClosed):
                await task
        async with handle:
            pass
