"""One test a sentence of docs/guarantees.md: loads from the host."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from radixtide import (
    AllocateParams,
    LoadFailed,
    Request,
)
from support.actors import turns
from support.caches import Delivery, settled
from support.marks import key_marks
from support.seams import host_pools
from support.tier_cases import on_host
from support.tier_config import SETS
from support.tiered import Tiers, tiers

EACH = pytest.mark.parametrize("components", [SETS[0], SETS[-1]], ids="+".join)


# -- loads ---------------------------------------------------------------------------------------


async def test_g102_a_handle_holds_a_lock_until_it_is_closed_or_its_request_ends(
    delivery: Delivery,
) -> None:
    async with tiers(delivery, page_size=4) as t:
        await on_host(t, 4)
        handle = await t.cache.load_back(await t.match(t.key(4)))
        await handle.wait()
        await t.demote()
        assert await t.hit(t.key(4)) == (4, 0)
        await handle.close()
        await t.demote()
        assert await t.hit(t.key(4)) == (0, 4)
        req = Request("r", t.span(4))
        handle = await t.cache.load_back(await t.match(t.key(4)), req)
        await handle.wait()
        await handle.close()
        await t.demote()
        assert await t.hit(t.key(4)) == (4, 0)
        assert req.lock == handle.receipt
        assert req.prefix_indices is not None
        assert req.prefix_indices.tolist() == handle.device_indices.tolist()
        await t.cache.abort_req(req)
        await t.demote()
        assert await t.hit(t.key(4)) == (0, 4)


async def test_g103_two_loads_of_the_same_nodes_are_one_copy(delivery: Delivery) -> None:
    async with tiers(delivery, page_size=4) as t:
        await on_host(t, 4)
        t.engine.hold("load")
        first = await t.cache.load_back(await t.match(t.key(4)))
        second = await t.cache.load_back(await t.match(t.key(4)))
        assert len(await t.engine.arrived(1)) == 1
        assert first.device_indices.tolist() == second.device_indices.tolist()
        await first.close()
        t.engine.release()
        assert await second.wait() == 4 * t.page
        await second.close()


@pytest.mark.parametrize("limit", ["room", "threshold", "quota", "jobs"])
async def test_g104_a_load_that_can_not_be_made_is_the_device_part(
    delivery: Delivery, limit: str
) -> None:
    fields: dict[str, Any] = {
        "room": {"pages": 10},
        "threshold": {"load_back_threshold": 17},
        "quota": {"load_back_quota": 12},
        "jobs": {"jobs_max": 1},
    }[limit]
    async with tiers(delivery, ("full",), page_size=4, **fields) as t:
        await on_host(t, 4, 8)
        assert await t.load(t.key(4)) == (4 if limit in ("room", "jobs") else 0)
        held: Any = None
        if limit == "room":
            held = (await t.cache.allocate(AllocateParams(num_tokens=6 * t.page))).indices
        other = None
        if limit == "jobs":
            await on_host_too(t)
            t.engine.hold("load")
            other = await t.cache.load_back(await t.match(t.key(t.span(2, 100))))
        device = (await t.hit(t.key(8)))[0]
        wanted = 8 if limit != "threshold" else 4
        async with await t.cache.load_back(await t.match(t.key(wanted))) as handle:
            assert (handle.length, handle.loaded) == (device * t.page, 0)
            assert await handle.wait(timeout=0.5) == device * t.page
            assert not handle.failed
        if held is not None:
            await t.cache.free(held)
        if other is not None:
            t.engine.release()
            await other.close()


async def on_host_too(t: Tiers) -> None:
    """Have two more pages on the host."""
    await t.put(t.key(t.span(2, 100)))
    await t.settle()
    receipt = (await t.match(t.key(4), lock=True)).receipt
    assert receipt is not None
    await t.demote()
    await t.cache.dec_lock_ref(receipt)


@EACH
async def test_g105_a_load_that_fails_leaves_the_device_part(
    delivery: Delivery, components: tuple[str, ...]
) -> None:
    async with tiers(delivery, components, page_size=4) as t:
        await on_host(t, 4, 8)
        assert await t.load(t.key(4)) == 4
        req = Request("r", t.span(8), req_pool_idx=t.cache.req_to_token_pool.alloc())
        await t.match(t.key(8), req=req, lock=True)
        t.engine.hold("load")
        mine = await t.cache.load_back(await t.match(t.key(8)))
        its = await t.cache.load_back(await t.match(t.key(8)), req)
        assert req.cache_protected_len == 8 * t.page
        await t.engine.arrived(1)
        t.engine.fail()
        for handle in (mine, its):
            assert await handle.wait() == 4 * t.page
            assert handle.failed
            assert len(handle.device_indices) == 4 * t.page
            with pytest.raises(LoadFailed):
                handle.wait_layer(0, 5.0)
        assert req.cache_protected_len == 4 * t.page
        assert req.prefix_indices is not None
        t.marks.check("full", req.prefix_indices, key_marks(t.key(4)))
        await t.demote()
        assert (await t.hit(t.key(8)))[0] == 4, "its lock is on that part"
        await mine.close()
        await t.cache.abort_req(req)


@EACH
async def test_g106_a_damaged_host_page_is_never_attached(
    delivery: Delivery, components: tuple[str, ...]
) -> None:
    async with tiers(delivery, components, page_size=4, drain=False) as t:
        await on_host(t, 2, 4, 6)
        node = next(iter(t.cache._state.tree.root.children.values()))
        middle = next(iter(node.children.values()))
        value = middle.primary.host_value
        assert value is not None
        pool = host_pools(t.cache)["full"]
        page = value[:1].astype("int64") // pool.page_size
        pool.write_pages(page, np.full((1, pool.page_bytes), 0x5A, dtype=np.uint8))
        async with await t.cache.load_back(await t.match(t.key(6))) as handle:
            assert await handle.wait() == 0
            assert handle.failed
        await t.cache.drain()
        assert await t.hit(t.key(6)) == (0, 2)
        assert await t.count("bad_pages") == 1
        assert (0, 2, "H") in t.picture()
        assert len(t.picture()) == 1
        await t.sound()
        # It can be computed and cached again.
        await t.put(t.key(6))
        await t.settle()
        await t.demote()
        assert await t.load(t.key(6)) == 6


async def test_g107_a_layer_may_be_read_when_its_wait_returns(delivery: Delivery) -> None:
    async with tiers(delivery, ("full",), page_size=4, layers=3) as t:
        await on_host(t, 8)
        async with await t.cache.load_back(await t.match(t.key(8))) as handle:

            def forward() -> list[Any]:
                seen = []
                for layer in range(3):
                    handle.wait_layer(layer, 20.0)
                    part = t.cache.memory["full"].parts()[layer][0]
                    seen.append(part[handle.device_indices].clone())
                return seen

            seen = await asyncio.to_thread(forward)
            await handle.wait()
        for layer, numbers in enumerate(seen):
            expected = t.marks.numbers("full", layer, 0, key_marks(t.key(8)))
            assert (numbers.reshape(len(numbers), -1).numpy() == expected).all()


async def test_g108_a_cancelled_load_leaves_what_there_was() -> None:
    for steps in range(6):
        async with tiers("queued", page_size=4) as t:
            await on_host(t, 4, 8)
            await t.load(t.key(4))
            req = Request("r", t.span(8))
            await t.match(t.key(8), req=req, lock=True)
            found = await t.match(t.key(8))
            task = asyncio.ensure_future(t.cache.load_back(found, req))
            await turns(steps)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await settled(t.cache)
            if task.cancelled():
                assert req.cache_protected_len == 4 * t.page
                assert (await t.cache.stats()).receipts == 1
            await t.cache.abort_req(req)
            await t.cache.drain()
            loads = await t.count("loads")
            assert await t.load(t.key(8)) == 8
            assert await t.count("loads") <= loads + 1


async def test_g109_a_load_looks_at_what_is_cached_now(delivery: Delivery) -> None:
    async with tiers(delivery, page_size=4) as t:
        await on_host(t, 4, 8)
        found = await t.match(t.key(8))
        await t.cache.flush("host", 20.0)
        async with await t.cache.load_back(found) as handle:
            assert (handle.length, handle.loaded) == (0, 0)
        await t.put(t.key(4))
        async with await t.cache.load_back(found) as handle:
            assert await handle.wait() == 4 * t.page
