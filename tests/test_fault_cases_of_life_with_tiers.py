"""Faults that users of other caches reported: life and end where there are tiers (K1-7, K8).

The table in test_fault_cases_of_backup.py says which case is where.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixtide import Busy, ForeignReceipt, Request, StaleNode
from support.actors import turns
from support.caches import Delivery
from support.tier_config import Components, everywhere, policies
from support.tiered import soon, tiers


@everywhere
@pytest.mark.parametrize("how", ["abort", "close first", "finish"])
async def test_k8_7_a_look_up_that_is_given_up_leaves_no_lock_in_any_order(
    delivery: Delivery, components: Components, page_size: int, how: str, tmp_path: Path
) -> None:
    """A request is aborted between look-up and load: counts are back to 0, whatever came first."""
    fields: dict[str, Any] = {"page_size": page_size, "url": f"file:{tmp_path / 's'}"}
    fields["storage"] = {"prefetch_policy": "wait_complete"}
    async with tiers(delivery, components, **fields) as t:
        await t.put(t.key(8))
        await t.settle()
    async with tiers(delivery, components, **fields) as t:
        assert t.store is not None
        t.store.hold("get_into")
        for turn in range(4):
            req = Request(f"r{turn}", t.span(8))
            await t.match(t.key(8), req=req, lock=True)
            fetch = await t.cache.prefetch(t.key(8), req)
            if how == "close first":
                await fetch.close()
            if how == "finish":
                await t.cache.cache_finished_req(req)
            else:
                await t.cache.abort_req(req)
            await t.sound()
            assert (await t.cache.stats()).requests == 0
            await fetch.close()
            await t.sound()
        t.store.release()
        await t.settle()
        for name in components:
            pool = await t.pool(name)
            assert (pool.protected, pool.in_flight, pool.held) == (0, 0, 0)


@everywhere
async def test_k8_9_aborting_what_was_only_looked_up_is_trivial(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """A queued request that was never scheduled: nothing is built of it, nothing is left of it."""
    async with tiers(delivery, components, page_size=page_size) as t:
        await t.put(t.key(8))
        await t.settle()
        await t.demote()
        before = await t.sizes()
        for turn in range(4):
            req = Request(f"r{turn}", t.span(12))
            fetch = await t.cache.prefetch(t.key(12), req)
            found = await t.match(t.key(12), req=req)
            assert found.host_hit_length == 8 * page_size
            await t.cache.abort_req(req)
            await fetch.close()
            await t.sound()
        assert await t.sizes() == before


@everywhere
@policies
async def test_k8_10_a_request_that_is_retracted_while_its_work_is_backed_up_comes_back(
    delivery: Delivery, components: Components, page_size: int, policy: str
) -> None:
    """Jobs belong to nodes: the old life's transfers neither stop nor confuse the new one."""
    async with tiers(delivery, components, page_size=page_size, policy=policy) as t:
        wanted = t.key(12)
        t.engine.hold("backup")
        req = await t.admit("r", wanted)
        await t.compute(req, wanted, 4)
        await t.compute(req, wanted, 8)
        await turns(20)
        await t.cache.cache_finished_req(req, is_insert=False)
        await t.sound()
        again = await t.admit("r", wanted)
        assert again.cache_protected_len == 8 * page_size
        await t.compute(again, wanted, 12)
        await t.sound()
        t.engine.release()
        await t.cache.abort_req(again)
        t.engine.hold_no_more()
        await t.settle()
        assert await t.hit(wanted) == (12, 0)
        await t.demote()
        await t.settle()
        assert await t.load(wanted) == (await t.hit(wanted))[0]


@everywhere
@pytest.mark.parametrize("moving", ["backup", "load"])
async def test_k8_12_a_reset_while_data_moves_waits_or_is_refused_and_says_why(
    delivery: Delivery, components: Components, page_size: int, moving: Any
) -> None:
    """No request holds anything, a transfer does: the answer is the truth either way."""
    async with tiers(delivery, components, page_size=page_size) as t:
        old = (await t.put(t.key(8))).node
        if moving == "backup":
            t.engine.hold("backup")
            await t.put(t.key(t.span(4, 300)))
            await t.engine.arrived(1)
        else:
            await t.settle()
            await t.demote()
            t.engine.hold("load")
            handle = await t.cache.load_back(await t.match(t.key(8)))
            await handle.close()
        with pytest.raises(Busy, match=moving):
            await t.cache.reset()
        await t.sound()
        waiting = await soon(t.cache.reset(timeout=20))
        assert not waiting.done()
        with pytest.raises(Busy, match="another reset"):
            await t.cache.reset()
        t.engine.hold_no_more()
        t.engine.release()
        await waiting
        stats = await t.cache.stats()
        assert (stats.nodes, stats.generation) == (0, 1)
        for name in components:
            for tier in ("device", "host"):
                pool = await t.pool(name, tier)
                assert pool.free == pool.size
        with pytest.raises(StaleNode):
            await t.cache.inc_lock_ref(old)
        await t.put(t.key(8))
        await t.settle()
        await t.demote()
        assert await t.load(t.key(8)) == 8


@everywhere
async def test_k1_7_a_receipt_from_before_a_reset_counts_nothing_on_any_tier(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """What is locked is not taken away; what was reset has no old receipts."""
    async with tiers(delivery, components, page_size=page_size) as t:
        await t.put(t.key(8))
        await t.settle()
        receipt = (await t.match(t.key(8), lock=True)).receipt
        assert receipt is not None
        await t.demote()
        assert await t.hit(t.key(8)) == (8, 0)
        with pytest.raises(Busy):
            await t.cache.reset()
        await t.cache.dec_lock_ref(receipt)
        await t.cache.reset()
        before = await t.sizes()
        with pytest.raises(ForeignReceipt):
            await t.cache.dec_lock_ref(receipt)
        assert await t.sizes() == before
