"""Faults that users of other caches reported, of kinds K1 to K8, where there are tiers.

The table in test_fault_cases_of_backup.py says which case is where.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixtide import (
    AllocateParams,
    OutOfSlots,
    Request,
)
from support.actors import turns
from support.caches import Delivery
from support.marks import key_marks
from support.tier_config import (
    SETS,
    Components,
    everywhere,
    policies,
    spread,
    with_state,
    with_window,
)
from support.tiered import Tiers, soon, tiers

with_pairs = spread([("direct", SETS[0], 1), ("queued", SETS[1], 4)], SETS[:2])


async def locked(t: Tiers, wanted: Any) -> Any:
    """Match a key with a lock; return the receipt."""
    found = await t.match(wanted, lock=True)
    assert found.receipt is not None
    return found.receipt


async def swa_only_on_host(t: Tiers) -> None:
    """Have twelve pages on the device, of which [4, 8) has its window on the host only."""
    for begin, end in ((0, 4), (4, 8), (8, 12)):
        await t.put(t.key(end), prev=begin)
    await t.settle()
    await t.match(t.key(12))
    await t.match(t.key(4))
    await t.evict(swa=4)
    assert await t.hit(t.key(8)) == (4, 4)


@with_window
async def test_k1_3_an_early_release_over_a_window_that_was_loaded_since_is_its_own_only(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """A locks over a tombstone, B after its load; A gives up its window: B's stays protected."""
    async with tiers(delivery, components, page_size=page_size, window=4) as t:
        await swa_only_on_host(t)
        # A match ends at a whole window; a lock on a handle does not need one.
        first = await t.cache.inc_lock_ref((await t.match(t.key(12))).last_device_node)
        middle = await t.cache.inc_lock_ref((await t.put(t.key(8))).node)
        await t.settle()
        assert await t.load(t.key(8)) == 8
        second = await locked(t, t.key(8))
        before = (await t.pool("swa", "device")).protected
        for receipt in (first, middle):
            await t.cache.dec_swa_lock_only(receipt)
            await t.sound()
        after = (await t.pool("swa", "device")).protected
        assert after == 4 * page_size <= before
        await t.evict(swa=12)
        assert await t.hit(t.key(8)) == (8, 0)
        for receipt in (first, middle, second):
            await t.cache.dec_lock_ref(receipt)
        assert (await t.pool("swa", "device")).protected == 0


@everywhere
@policies
@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
async def test_k1_9_the_end_of_a_backup_releases_what_the_backup_held_and_nothing_else(
    delivery: Delivery, components: Components, page_size: int, policy: str, fails: bool
) -> None:
    """A locks a leaf, its sibling is backed up and evicted: what A protects stays as it is."""
    async with tiers(delivery, components, page_size=page_size, policy=policy) as t:
        await t.put(t.key(8))
        sibling = t.key([*t.span(4), *t.span(4, 300)])
        await t.put(sibling)
        await t.settle()
        receipt = await locked(t, t.key(8))
        before = {name: (await t.pool(name, "device")).protected for name in components}
        t.engine.hold("backup", how="copied")
        await t.match(sibling)
        evicting = await soon(t.evict(full=8))
        while not evicting.done():
            held = await t.engine.arrived(1)
            if fails:
                t.engine.fail(held)
            else:
                t.engine.release(held)
            await turns(20)
            await t.sound()
        await evicting
        t.engine.hold_no_more()
        t.engine.release()
        await t.copied()
        assert {name: (await t.pool(name, "device")).protected for name in components} == before
        assert await t.hit(t.key(8)) == (8, 0)
        await t.cache.dec_lock_ref(receipt)
        pool = await t.pool("full", "device")
        assert pool.protected == 0


@with_window
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
async def test_k3_9_a_window_that_goes_before_the_rest_leaves_a_shorter_hit_or_comes_back_whole(
    delivery: Delivery, components: Components, page_size: int, policy: str
) -> None:
    """Window of 8 over parent and child; the parent's goes, then Full: a load leaves no hole."""
    fields: dict[str, Any] = {"page_size": page_size, "window": 8, "policy": policy}
    async with tiers(delivery, components, **fields) as t:
        await t.put(t.key(4))
        await t.put(t.key(8), prev=4)
        await t.settle()
        await t.evict(swa=4)
        await t.sound()
        await t.match(t.key(8))
        await t.demote()
        await t.settle()
        device, host = await t.hit(t.key(8))
        assert device == 0
        if policy == "write_through":
            assert host == 8
        # load() reads every byte of the window, so that a hole can not pass.
        assert await t.load(t.key(8)) == host


@with_state
async def test_k4_4_a_state_that_finds_no_slot_while_others_are_backed_up_is_not_kept(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """All states are locked by backups: the donation is left out and counted, serving goes on."""
    loose = 1 if page_size == 1 else 3
    async with tiers(delivery, components, page_size=page_size, states=2 + loose) as t:
        t.engine.hold("backup")
        for at in (100, 200):
            await t.put(t.key(t.span(4, at)))
        await t.engine.arrived(1)
        await turns(20)
        req = await t.admit("r", t.key(8))
        before = await t.count("donations_skipped")
        await t.compute(req, t.key(8), 4)
        assert await t.count("donations_skipped") == before + 1
        await t.sound()
        assert await t.finish(req, t.key(8)) in (4, 8)
        t.engine.release()
        t.engine.hold_no_more()
        await t.settle()
        for at in (100, 200):
            assert sum(await t.hit(t.key(t.span(4, at)))) == 4


@everywhere
@policies
async def test_k4_6_a_node_with_a_host_copy_stays_when_its_device_copy_goes(
    delivery: Delivery, components: Components, page_size: int, policy: str
) -> None:
    """It is a host hit, and a load brings back all components, byte by byte."""
    async with tiers(delivery, components, page_size=page_size, policy=policy) as t:
        await t.put(t.key(8))
        await t.match(t.key(8))
        await t.settle()
        await t.demote()
        await t.settle()
        assert await t.hit(t.key(8)) == (0, 8)
        found = await t.match(t.key(8))
        if "swa" in components:
            assert found.swa_host_hit_length == 4 * page_size
        if "mamba" in components:
            assert found.mamba_host_hit_length == 1
        assert await t.load(t.key(8)) == 8
        assert await t.count("demoted_nodes") > 0


@everywhere
@policies
async def test_k5_7_with_both_tiers_full_an_allocation_leaves_exact_sums_on_both(
    delivery: Delivery, components: Components, page_size: int, policy: str
) -> None:
    """Device 2 and host 2 pages, all cached; page after page is taken and given back."""
    small: dict[str, Any] = {"pages": 4, "swa_pages": 4, "states": 4, "window": 1}
    small |= {"host_pages": 4, "host_swa_pages": 4, "host_states": 4, "policy": policy}
    async with tiers(delivery, components, page_size=page_size, **small) as t:
        for turn in range(8):
            await t.put(t.key(t.span(1, 10 * turn)))
            await t.match(t.key(t.span(1, 10 * turn)))
            await t.sound()
            # What is being backed up is protected.
            await t.copied()
        for taken in range(1, 5):
            given = await t.cache.allocate(AllocateParams(num_tokens=taken * page_size))
            t.marks.scribble("full", given.indices)
            await t.settle()
            pool = await t.pool("full", "device")
            assert pool.held == taken * page_size
            assert pool.free + pool.evictable == (4 - taken) * page_size
            for turn in range(8):
                await t.hit(t.key(t.span(1, 10 * turn)))
            await t.cache.free(given.indices)
        with pytest.raises(OutOfSlots):
            await t.cache.allocate(AllocateParams(num_tokens=5 * page_size))


@everywhere
@policies
async def test_k5_8_what_is_brought_back_is_never_the_victim_of_its_own_room(
    delivery: Delivery, components: Components, page_size: int, policy: str
) -> None:
    """Host full with X, device full: X is loaded with its own bytes, or not at all."""
    small: dict[str, Any] = {"pages": 2, "swa_pages": 2, "states": 2, "window": 2}
    small |= {"host_pages": 2, "host_swa_pages": 2, "host_states": 1, "policy": policy}
    async with tiers(delivery, components, page_size=page_size, **small) as t:
        for turn in range(6):
            wanted = t.key(t.span(2, 50 * (turn % 3)))
            await t.put(wanted)
            await t.match(wanted)
            await t.settle()
            for other in range(3):
                before = await t.hit(t.key(t.span(2, 50 * other)))
                loaded = await t.load(t.key(t.span(2, 50 * other)))
                assert loaded <= sum(before)
                await t.settle()


@everywhere
@pytest.mark.parametrize("end", ["close", "abort", "finish"])
async def test_k5_9_pages_that_a_copy_still_fills_are_nobody_elses(
    delivery: Delivery, components: Components, page_size: int, end: str
) -> None:
    """The caller leaves while the load runs; what is allocated meanwhile is not overwritten."""
    small: dict[str, Any] = {"pages": 12, "swa_pages": 12, "states": 6, "host_pages": 24}
    async with tiers(delivery, components, page_size=page_size, **small) as t:
        await t.put(t.key(8))
        await t.settle()
        await t.demote()
        t.engine.hold("load")
        req = Request("r", t.span(8))
        found = await t.match(t.key(8), req=req, lock=True)
        handle = await t.cache.load_back(found, None if end == "close" else req)
        await t.engine.arrived(1)
        if end == "close":
            await t.cache.abort_req(req)
            await handle.close()
        elif end == "abort":
            await t.cache.abort_req(req)
        else:
            finishing = await soon(t.cache.cache_finished_req(req, is_insert=False))
        await t.sound()
        free = (await t.pool("full", "device")).free
        assert free == 4 * page_size
        given = await t.cache.allocate(AllocateParams(num_tokens=free))
        with pytest.raises(OutOfSlots):
            await t.cache.allocate(AllocateParams(num_tokens=page_size))
        marks = key_marks(t.key(t.span(4, 300)))
        await t.write(given.indices, marks)
        t.engine.release()
        t.engine.hold_no_more()
        if end == "finish":
            await finishing
        await t.settle()
        t.marks.check("full", given.indices, marks)
        assert await t.hit(t.key(8)) == (8, 0)
        await t.cache.free(given.indices)


@with_pairs
async def test_k7_5_every_tier_names_pairs_as_the_tree_does(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """A bigram cache finds what it stored, and shares with another only what it shares in pairs."""
    fields: dict[str, Any] = {"page_size": page_size, "url": f"file:{tmp_path / 's'}"}
    fields |= {"bigram": True, "storage": {"prefetch_policy": "wait_complete"}}
    async with tiers(delivery, components, **fields) as t:
        await t.put(t.key(8))
        await t.settle()
        await t.demote()
        assert await t.load(t.key(8)) == 8
    async with tiers(delivery, components, **fields) as t:
        other = t.key([*t.span(4), *t.span(4, 300)])
        async with await t.cache.prefetch(other) as fetch:
            # The pair that leaves the common part is another pair.
            shared = (4 * page_size - 1) // page_size
            brought = await fetch.wait()
            assert brought == (shared * page_size if components == ("full",) else brought)
        async with await t.cache.prefetch(t.key(8)) as fetch:
            await fetch.wait()
        assert await t.hit(t.key(8)) == (0, 8)
        assert await t.load(t.key(8)) == 8
    fields["bigram"] = False
    async with (
        tiers(delivery, components, **fields) as t,
        await t.cache.prefetch(t.key(8)) as fetch,
    ):
        assert await fetch.wait() == 0
