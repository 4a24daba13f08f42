"""Faults that users of other caches reported: loading from the host (kinds K10 and K12-4).

The table in test_fault_cases_of_backup.py says which case is where.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from typing import Any

import numpy as np
import pytest

from radixtide import AllocateParams, Busy, CallTimeout, OutOfSlots, Request
from radixtide.configs.errors import LoadFailed
from support.actors import turns, until
from support.caches import Delivery, state_of
from support.interceptors import Stall
from support.marks import key_marks
from support.tier_config import Components, everywhere, with_another, with_window
from support.tiered import Tiers, soon, tiers


async def on_host(t: Tiers, *lengths: int) -> None:
    """Have the pages of ``t.key(...)`` on the host only, each length the end of a node."""
    begin = 0
    for end in lengths:
        await t.put(t.key(end), prev=begin)
        begin = end
    await t.settle()
    await t.demote()
    assert await t.hit(t.key(begin)) == (0, begin)


@everywhere
@pytest.mark.parametrize("how", ["late", "copied"])
async def test_k10_1_room_for_a_load_is_never_made_of_its_own_source(
    delivery: Delivery, components: Components, page_size: int, how: Any
) -> None:
    """Write-back, device full of X, host full of Y: Y is loaded or stays, and is right."""
    small: dict[str, Any] = {"pages": 4, "host_pages": 4, "swa_pages": 4, "host_swa_pages": 4}
    fields: dict[str, Any] = {"page_size": page_size, "window": 2, "states": 2, "host_states": 2}
    async with tiers(delivery, components, policy="write_back", **small, **fields) as t:
        await on_host(t, 4)
        other = t.key(t.span(4, 300))
        await t.put(other)
        t.engine.hold(how=how)
        loading = await soon(t.load(t.key(4)))
        while not loading.done():
            t.engine.release()
            await turns(5)
            await t.sound()
        length = await loading
        assert length in (0, 4)
        if length:
            assert await t.hit(other) == (0, 0), "there is no room left for it"
        else:
            assert await t.hit(t.key(4)) == (0, 4)
            assert await t.hit(other) == (4, 0)


@everywhere
@pytest.mark.parametrize("partly", ["full", "window", "state"])
async def test_k10_3_a_second_load_of_the_same_nodes_joins_the_first(
    delivery: Delivery, components: Components, page_size: int, partly: str
) -> None:
    """Host only, or on the device but for a window or a state: both callers get all, right."""
    if partly == "window" and "swa" not in components:
        pytest.skip("there is no window")
    if partly == "state" and "mamba" not in components:
        pytest.skip("there is no state")
    async with tiers(delivery, components, page_size=page_size, window=4) as t:
        await on_host(t, 4, 8)
        if partly != "full":
            assert await t.load(t.key(8)) == 8
            # A child that stays makes these inner nodes, so that only one kind of data goes.
            await t.put(t.key(12), prev=8)
            await t.settle()
            if partly == "window":
                await t.evict(swa=12)
            else:
                await t.evict(mamba=3)
            found = await t.match(t.key(8))
            assert len(found.device_indices) < 8 * page_size
            assert found.host_hit_length > 0
        t.engine.hold("load")
        asked = [await t.cache.load_back(await t.match(t.key(end))) for end in (4, 8, 8, 4)]
        await t.sound()
        ends = [await soon(one.wait()) for one in asked]
        slots: dict[int, int] = {}
        for one in asked:
            for at, slot in enumerate(one.device_indices.tolist()):
                assert slots.setdefault(at, slot) == slot, "one token, two slots"
        for job in list(t.engine.held()):
            t.engine.release([job])
            await turns(20)
            await t.sound()
        await t.copied()
        t.engine.hold_no_more()
        t.engine.release()
        assert [await end for end in ends] == [4 * page_size, 8 * page_size] * 1 + [
            8 * page_size,
            4 * page_size,
        ]
        for one in asked:
            t.marks.check("full", one.device_indices, key_marks(t.key(8))[: one.length])
            await one.close()
        assert await t.hit(t.key(8)) == (8, 0)


@everywhere
async def test_k10_3_when_a_shared_load_fails_all_who_wait_fall_back(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Everybody hears it, has the device part, and a new load works."""
    async with tiers(delivery, components, page_size=page_size) as t:
        await on_host(t, 4, 8)
        assert await t.load(t.key(4)) == 4
        t.engine.hold("load")
        asked = [await t.cache.load_back(await t.match(t.key(8))) for _ in range(3)]
        await t.sound()
        t.engine.fail()
        assert [await one.wait() for one in asked] == [4 * page_size] * 3
        assert all(one.failed for one in asked)
        for one in asked:
            with pytest.raises(LoadFailed):
                one.wait_layer(0)
            await one.close()
            await t.sound()
        t.engine.hold_no_more()
        assert await t.hit(t.key(8)) == (4, 4)
        assert await t.load(t.key(8)) == 8
        assert await t.count("loads_failed") == 1


@everywhere
async def test_k10_3_a_request_that_went_on_keeps_its_slots_however_often_a_failure_is_told(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """While the locks of others who share the load are moved a component is silent."""
    async with tiers(delivery, components, page_size=page_size) as t:
        await on_host(t, 4, 8)
        req = Request("r", t.span(8), req_pool_idx=t.cache.req_to_token_pool.alloc())
        await t.match(t.key(8), req=req, lock=True)
        t.engine.hold("load")
        its = await t.cache.load_back(await t.match(t.key(8)), req)
        its_slots = set(its.device_indices.tolist())
        others = await t.cache.load_back(await t.match(t.key(8)))
        await t.cache.allocate(AllocateParams(page_size, req=req))
        await t.engine.arrived(1)
        silent = Stall("full")
        t.cache.add_interceptor(silent)
        other = await soon(t.put(t.key(t.span(2, 300))))
        # The coordinator waits no longer: what needs the component is put off until it answers.
        await until(lambda: any(type(one.message).__name__ == "Ping" for one, _ in silent.held))
        t.engine.fail()
        ledger = state_of(t.cache).ledger
        await until(lambda: any(entry.spoiled for entry in ledger.entries()))
        silent.release()
        t.cache.remove_interceptor(silent)
        assert await others.wait() == await its.wait() == 0
        await other
        taken = []
        with contextlib.suppress(OutOfSlots):
            while True:
                taken.append((await t.cache.allocate(AllocateParams(page_size))).indices)
                assert its_slots.isdisjoint(taken[-1].tolist())
        assert taken
        assert await t.count("loads_failed") == 1
        for slots in taken:
            await t.cache.free(slots)
        await others.close()
        await t.cache.abort_req(req)
        t.engine.hold_no_more()
        assert await t.load(t.key(8)) == 8
        await t.sound()


@with_another
@pytest.mark.parametrize("first", ["fails", "comes"])
async def test_k10_3_a_load_that_builds_on_another_ends_with_it(
    delivery: Delivery, components: Components, page_size: int, first: str
) -> None:
    """It brings a window or a state alone, for what the other brings of full attention."""
    async with tiers(delivery, components, page_size=page_size) as t:
        await on_host(t, 4, 12)
        t.engine.hold("load")
        whole = await t.cache.load_back(await t.match(t.key(12)))
        part = await t.cache.load_back(await t.match(t.key(4)))
        ((long,), (short,)) = [[job] for job in await t.engine.arrived(2, "load")]
        if first == "fails":
            t.engine.fail([long])
            waiting = asyncio.ensure_future(whole.wait())
            await turns(50)
            # The slots of full attention are nobody's else while something is bound to them.
            slots = await t.cache.allocate(AllocateParams(20 * page_size))
            await t.sound()
            t.engine.release([short])
            assert (await waiting, await part.wait()) == (0, 0)
            await t.cache.free(slots.indices)
        else:
            t.engine.release([short])
            await turns(50)
            await t.sound()
            t.engine.release([long])
            assert (await whole.wait(), await part.wait()) == (12 * page_size, 4 * page_size)
        for one in (whole, part):
            await one.close()
            await t.sound()
        t.engine.hold_no_more()
        assert await t.load(t.key(12)) == 12
        await t.settle()


@everywhere
async def test_k10_4_a_match_that_ends_inside_a_node_on_the_host_keeps_what_matched(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Six of eight pages are the same: six are a host hit, or what ends at a state."""
    async with tiers(delivery, components, page_size=page_size) as t:
        await on_host(t, 4, 8)
        other = t.key([*t.span(6), *t.span(2, 300)])
        usable = 4 if t.has("mamba") else 6
        assert await t.hit(other) == (0, usable)
        assert await t.hit(t.key(8)) == (0, 8)
        await t.sound()
        assert await t.load(other) == usable
        assert await t.load(t.key(8)) == 8


@everywhere
async def test_k2_a_node_that_is_split_while_it_is_loaded_arrives_whole(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Each fragment is attached once, unlocked once, and right; also when the load fails."""
    for fails in (False, True):
        async with tiers(delivery, components, page_size=page_size) as t:
            await on_host(t, 8)
            t.engine.hold("load")
            handle = await t.cache.load_back(await t.match(t.key(8)))
            for at in (3, 6, 1):
                found = await t.match(t.key([*t.span(at), *t.span(1, 400 + at)]))
                assert not len(found.device_indices), "what is still on its way is no hit"
                await t.sound()
            if fails:
                t.engine.fail()
                assert await handle.wait() == 0
            else:
                t.engine.release()
                assert await handle.wait() == 8 * page_size
            await handle.close()
            t.engine.hold_no_more()
            assert await t.hit(t.key(8)) == ((0, 8) if fails else (8, 0))
            await t.settle()


@with_window
@pytest.mark.parametrize("fails", [False, True], ids=["loaded", "failed"])
async def test_k10_5_where_components_differ_in_depth_each_is_loaded_from_its_own(
    delivery: Delivery, components: Components, page_size: int, fails: bool
) -> None:
    """Full is there to 8, its window only to 4: four are safe, eight the target, or still four."""
    async with tiers(delivery, components, page_size=page_size, window=4) as t:
        for begin, end in ((0, 4), (4, 8), (8, 12)):
            await t.put(t.key(end), prev=begin)
        await t.settle()
        # Makes the window of the middle node the one that was not used for the longest time.
        await t.match(t.key(12))
        await t.match(t.key(4))
        await t.evict(swa=4)
        found = await t.match(t.key(8))
        assert len(found.device_indices) == 4 * page_size
        assert found.host_hit_length == 4 * page_size
        assert found.swa_host_hit_length == 4 * page_size
        before = (await t.pool(tier="device")).free
        t.engine.hold("load")
        handle = await t.cache.load_back(found)
        assert (await t.pool(tier="device")).free == before, "Full is there already"
        (job,) = await t.engine.arrived(1)
        assert {one.pool for one in job.transfers if len(one.host)} <= {"swa", "mamba"}
        if fails:
            t.engine.fail()
        else:
            t.engine.release()
        assert await handle.wait() == (4 if fails else 8) * page_size
        await handle.close()
        t.engine.hold_no_more()
        assert len((await t.match(t.key(8))).device_indices) == (4 if fails else 8) * page_size


@everywhere
async def test_k10_7_a_host_hit_that_is_gone_when_the_load_begins_is_a_shorter_one(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """A match pins nothing on the host; a load does, and then nothing takes it away."""
    small: dict[str, Any] = {"host_pages": 8, "host_swa_pages": 8, "host_states": 4, "window": 2}
    async with tiers(delivery, components, page_size=page_size, **small) as t:
        await on_host(t, 4)
        found = await t.match(t.key(4))
        assert found.host_hit_length == 4 * page_size
        await t.put(t.key(t.span(8, 300)))
        await t.settle()
        handle = await t.cache.load_back(found)
        assert await handle.wait() == 0
        await handle.close()
        await t.demote()
        found = await t.match(t.key(t.span(8, 300)))
        t.engine.hold("load")
        handle = await t.cache.load_back(found)
        refused = await t.count("backups_refused")
        await t.put(t.key(t.span(8, 500)))
        await turns(50)
        assert await t.count("backups_refused") > refused
        await t.sound()
        t.engine.release()
        t.engine.hold_no_more()
        assert await handle.wait() == 8 * page_size
        await handle.close()


@everywhere
@pytest.mark.parametrize("with_request", [False, True], ids=["handles", "requests"])
async def test_k10_8_fifty_who_share_a_prefix_share_one_load_of_it(
    delivery: Delivery, components: Components, page_size: int, with_request: bool
) -> None:
    """One transfer brings it, all go on when it is there, and others are not held up."""
    fields: dict[str, Any] = {"pages": 80, "states": 220}
    async with tiers(delivery, components, page_size=page_size, **fields) as t:
        await on_host(t, 8)
        t.engine.hold("load")
        reqs = [Request(f"r{at}", t.span(8)) for at in range(50)]
        asked = []
        for req in reqs:
            found = await t.match(t.key(8))
            asked.append(await t.cache.load_back(found, req if with_request else None))
        ends = [await soon(one.wait(), 1) for one in asked]
        await turns(50)
        assert not any(end.done() for end in ends)
        await t.put(t.key(t.span(4, 300)))
        assert await t.hit(t.key(t.span(4, 300))) == (4, 0)
        assert len([job for job in t.engine.seen if job.direction == "load"]) == 1
        t.engine.release()
        assert set(await asyncio.gather(*ends)) == {8 * page_size}
        for one in asked:
            await one.close()
        for req in reqs:
            if with_request:
                assert req.cache_protected_len == 8 * page_size
            await t.cache.abort_req(req)
        t.engine.hold_no_more()


@everywhere
@pytest.mark.parametrize("call", ["free", "abort"])
@pytest.mark.parametrize("kind", [asyncio.Future, concurrent.futures.Future])
@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
async def test_k10_9_pages_that_are_still_read_are_no_target_of_a_load(
    delivery: Delivery, components: Components, page_size: int, call: str, kind: Any, fails: bool
) -> None:
    """Slots come back with work on them under way: what is loaded into them waits for its end."""
    small: dict[str, Any] = {"pages": 8, "swa_pages": 8, "states": 3, "window": 8}
    async with tiers(delivery, components, page_size=page_size, **small) as t:
        await on_host(t, 8)
        work = kind()
        req = Request("r", t.span(8, 300))
        mine = req if call == "abort" else None
        given = await t.cache.allocate(AllocateParams(num_tokens=8 * page_size, req=mine))
        marks = key_marks(t.key(t.span(8, 300)))
        await t.write(given.indices, marks)
        held = given.indices.clone()
        if call == "abort":
            await t.cache.abort_req(req, after=work)
        else:
            await t.cache.free(held, after=work)
        loading = await soon(t.load(t.key(8)))
        assert not loading.done()
        t.marks.check("full", held, marks)
        if fails:
            work.set_exception(RuntimeError("the kernel failed"))
        else:
            work.set_result(None)
        assert await loading == 8


@everywhere
async def test_k10_10_what_a_node_keeps_does_not_hold_on_to_more_than_it_is(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """After many splits, loads and evictions the memory behind nodes is that of what they have."""
    async with tiers(delivery, components, page_size=page_size, pages=64) as t:
        for turn in range(10):
            await t.put(t.key(t.span(16, 20 * turn)))
            await t.settle()
            other = [*t.span(1 + turn % 15, 20 * turn), *t.span(1, 3000 + turn)]
            await t.put(t.key(other))
            await t.settle()
            await t.demote()
            await t.load(t.key(t.span(16, 20 * max(turn - 1, 0))))
        kept: dict[int, int] = {}
        alive = 0
        for node in state_of(t.cache).tree:
            for part in t.cache._components:
                data = part.data(node)
                arrays: list[Any] = [data.value, data.host_value]
                if data.host_link is not None:
                    arrays += [data.host_link.digests]
                for array in arrays:
                    if array is not None:
                        base = array if array.base is None else array.base
                        kept[id(base)] = np.asarray(base).nbytes
                        alive += array.nbytes
        assert sum(kept.values()) <= 2 * alive


@everywhere
async def test_k12_4_a_load_that_never_ends_holds_up_nobody_who_does_not_wait_for_it(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Every wait has an end, and says what it waited for; the caller leaves and computes."""
    async with tiers(delivery, components, page_size=page_size) as t:
        await on_host(t, 8)
        t.engine.hold()
        handle = await t.cache.load_back(await t.match(t.key(8)))
        with pytest.raises(CallTimeout):
            await handle.wait(timeout=0.02)
        with pytest.raises(CallTimeout):
            await asyncio.to_thread(handle.wait_layer, 0, 0.02)
        with pytest.raises((Busy, CallTimeout)):
            await t.cache.drain(timeout=0.02)
        with pytest.raises(Busy, match="load"):
            await t.cache.flush("host", timeout=0.02)
        with pytest.raises(Busy):
            await t.cache.reset(timeout=0.02)
        await handle.close()
        await t.sound()
        await t.put(t.key(t.span(8, 300)))
        assert await t.hit(t.key(t.span(8, 300))) == (8, 0)
