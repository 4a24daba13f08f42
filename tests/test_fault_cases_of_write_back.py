"""Faults that users of other caches reported: what is backed up when it is evicted (kind K9).

The table in test_fault_cases_of_backup.py says which case is where.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.actors import turns
from support.caches import Delivery
from support.tier_config import Components, everywhere, policies, with_window
from support.tiered import Tiers, soon, tiers


def parents_first(t: Tiers) -> None:
    """Assert that what is on the host has all that is before it there."""
    depth = 0
    for begin, end, bits in t.picture():
        if begin == 0:
            depth = 0
        if "H" in bits:
            assert begin <= depth, t.picture()
            depth = max(depth, end)


@with_window
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
@pytest.mark.parametrize("live", [4, 3, 1])
async def test_k9_1_a_node_below_a_tombstone_is_backed_up_behind_it_and_found_on_the_host(
    delivery: Delivery, components: Components, page_size: int, policy: str, live: int
) -> None:
    """The part without a window goes to the host as well, first, and all eight pages are a hit."""
    fields: dict[str, Any] = {"page_size": page_size, "window": live, "policy": policy}
    async with tiers(delivery, components, **fields) as t:
        await t.put(t.key(8), live=live)
        assert len(t.picture()) >= 2
        t.engine.hold("backup", how="copied")
        evicting = await soon(t.demote())
        await t.sound()
        while not evicting.done() or t.engine.held():
            if t.engine.held():
                t.engine.release(t.engine.held()[:1])
            await turns(2)
            parents_first(t)
            await t.sound()
        await evicting
        t.engine.hold_no_more()
        await t.settle()
        await t.demote()
        assert {bits for _, _, bits in t.picture()} == {"H"}
        assert await t.hit(t.key(8)) == (0, 8)
        assert await t.load(t.key(8)) == 8


@everywhere
@policies
@pytest.mark.parametrize("how", ["late", "copied"])
async def test_k9_4_a_backup_never_takes_the_host_pages_that_another_is_filling(
    delivery: Delivery, components: Components, page_size: int, policy: str, how: Any
) -> None:
    """Two leaves and a host for one: the second waits or is lost, and the first stays whole."""
    small: dict[str, Any] = {"host_pages": 4, "host_swa_pages": 4, "host_states": 2, "window": 4}
    async with tiers(delivery, components, page_size=page_size, policy=policy, **small) as t:
        t.engine.hold("backup", how=how)
        first, second = t.key(t.span(4, 100)), t.key(t.span(4, 200))
        for wanted in (first, second):
            await t.put(wanted)
            await t.match(wanted)
        evicting = await soon(t.evict(full=8)) if policy == "write_back" else None
        held = await t.engine.arrived(1)
        filling = [one for job in held for one in job.transfers if one.pool == "full"]
        assert sum(len(one.host) for one in filling) == 4 * page_size
        assert (await t.pool()).in_flight == 4 * page_size
        await turns(50)
        await t.sound()
        assert t.engine.held() == held
        t.engine.release()
        t.engine.hold_no_more()
        if evicting is not None:
            await evicting
        await t.settle()
        await t.demote()
        hits = [await t.hit(wanted) for wanted in (first, second)]
        assert sorted(hits) == [(0, 0), (0, 4)]
        assert sum([await t.load(first), await t.load(second)]) == 4


@everywhere
async def test_k9_4_one_sweep_over_many_leaves_is_exact_on_both_tiers(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Eight leaves, room on the host for three of them: sizes stay exact, all is right."""
    small: dict[str, Any] = {"host_pages": 6, "host_swa_pages": 6, "host_states": 3, "window": 2}
    async with tiers(delivery, components, page_size=page_size, policy="write_back", **small) as t:
        prompts = [t.key(t.span(2, 100 * at)) for at in range(8)]
        for wanted in prompts:
            await t.put(wanted)
        t.engine.hold("backup")
        evicting = await soon(t.evict(full=16))
        while not evicting.done():
            t.engine.release(t.engine.held()[:1])
            await turns(5)
            await t.sound()
        await evicting
        assert (await t.pool(tier="device")).evictable == 0
        found = 0
        for wanted in prompts:
            device, host = await t.hit(wanted)
            assert (device, host) in ((0, 0), (0, 2))
            found += host
        assert 0 < found <= 6
        # Each that is gone was given up: without a copy, or with its copy for another's.
        lost = await t.count("dropped_unbacked") + await t.count("host_evicted_nodes")
        assert lost == (16 - found) // 2
        for wanted in prompts:
            await t.load(wanted)


@everywhere
@pytest.mark.parametrize("call", ["evict", "allocate"])
async def test_k9_4_who_waits_for_a_backup_is_served_in_order_and_can_leave(
    delivery: Delivery, components: Components, page_size: int, call: str
) -> None:
    """While victims are backed up a caller waits; one that leaves leaves nothing behind."""
    fields: dict[str, Any] = {"page_size": page_size, "policy": "write_back", "window": 2}
    async with tiers(delivery, components, pages=8, swa_pages=8, states=4, **fields) as t:
        await t.put(t.key(8))
        t.engine.hold("backup")

        def ask() -> Any:
            return t.evict(full=8) if call == "evict" else t.put(t.key(t.span(8, 300)))

        leaving = await soon(ask())
        staying = await soon(ask())
        other = await soon(t.hit(t.key(8)))
        assert await other == (8, 0), "nobody else waits for the copy"
        assert not leaving.done()
        assert not staying.done()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await t.sound()
        t.engine.hold_no_more()
        t.engine.release()
        await staying
        await t.settle()
        assert await t.hit(t.key(8)) == (0, 8)
        if call == "allocate":
            assert await t.hit(t.key(t.span(8, 300))) == (8, 0)
