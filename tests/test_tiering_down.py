"""A tiering actor that says nothing, or stays down: transfers wait or are refused, all else works.

Nothing hangs for ever: a load that can not be made leaves the device part, and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from radixtide import AllocateParams, CacheClosed, CallTimeout, EvictParams, LoadFailed, Request
from radixtide.configs.schema import LimitsConfig
from support.actors import turns, until
from support.caches import Delivery, settled, system_of
from support.held_engine import TURNS_MAX
from support.interceptors import CrashBefore, DropFirst, Stall
from support.tier_cases import in_storage, on_host
from support.tier_config import SETS, Components
from support.tiered import Tiers, tiers

sets = pytest.mark.parametrize("components", [SETS[0], SETS[-1]], ids="+".join)
policies = pytest.mark.parametrize("policy", ["write_through", "write_back"])
ONCE = LimitsConfig(restarts_max=0, call_timeout_s=20.0)
PATIENT: dict[str, Any] = {"url": "memory:", "storage": {"prefetch_policy": "wait_complete"}}


async def bring_down(t: Tiers) -> None:
    """Let the tiering actor crash once too often, at a message that moves nothing."""
    crash = CrashBefore("Fence", "tiering")
    t.cache.add_interceptor(crash)
    given = await t.cache.allocate(AllocateParams(num_tokens=t.page))
    await t.cache.free(given.indices, after=asyncio.get_running_loop().create_future())
    await settled(t.cache)
    t.cache.remove_interceptor(crash)
    assert not (await t.cache.stats()).actors["tiering"].alive
    system_of(t.cache).unheard_errors = 0


async def everything_else_works(t: Tiers) -> None:
    """Match, insert, lock, evict, allocate, run and abort requests, pin, look."""
    fresh = t.key(t.span(4, 200))
    node = (await t.put(fresh)).node
    found = await t.match(fresh, lock=True)
    assert len(found.device_indices) == 4 * t.page
    assert found.receipt is not None
    await t.cache.dec_lock_ref(found.receipt)
    receipt = await t.cache.inc_lock_ref(node)
    await t.evict(full=10**6)
    assert await t.hit(fresh) == (4, 0)
    await t.cache.dec_lock_ref(receipt)
    req = await t.admit("r", t.key(t.span(6, 200)))
    assert await t.compute(req, t.key(t.span(6, 200)), 6) == 6
    await t.cache.abort_req(req)
    req = await t.admit("s", t.key(t.span(3, 300)))
    await t.finish(req, t.key(t.span(3, 300)))
    if t.config.pins.budget:
        await t.cache.pin(fresh, 100.0)
        await t.cache.unpin(fresh)
    # All the device can be had, with what was not backed up; copies that run have to end first.
    full = t.cache._components[0]
    await until(lambda: not full.protected, TURNS_MAX)
    size = (await t.pool(tier="device")).size
    await t.cache.free((await t.cache.allocate(AllocateParams(num_tokens=size))).indices)
    await t.cache.pretty_print()
    await t.sound()


# -- down ----------------------------------------------------------------------------------------


@sets
@policies
async def test_all_else_works_while_it_stays_down(
    delivery: Delivery, components: Components, policy: str
) -> None:
    fields: dict[str, Any] = {"limits": ONCE, "policy": policy, "page_size": 4, "pins": 8}
    async with tiers(delivery, components, **fields) as t:
        await on_host(t, 2, 4)
        await bring_down(t)
        assert await t.hit(t.key(4)) == (0, 4)
        await everything_else_works(t)
        assert t.cache.transfers == 0
        await t.cache.drain(5.0)
        assert await t.cache.flush("host", 5.0) == 4 * t.page
        await t.cache.reset(5.0)
        assert (await t.cache.stats()).nodes == 0


@sets
async def test_a_load_is_the_device_part_while_it_stays_down(
    delivery: Delivery, components: Components
) -> None:
    async with tiers(delivery, components, limits=ONCE, page_size=4) as t:
        await on_host(t, 4, 8)
        await t.load(t.key(4))
        await bring_down(t)
        refused = await t.count("loads_refused")
        async with await t.cache.load_back(await t.match(t.key(8))) as handle:
            assert (handle.length, handle.loaded) == (4 * t.page, 0)
            assert await handle.wait(timeout=5.0) == 4 * t.page
            handle.wait_layer(0, 5.0)
        req = Request("r", t.span(8))
        await t.match(t.key(8), req=req, lock=True)
        await t.cache.load_back(await t.match(t.key(8)), req)
        assert req.cache_protected_len == 4 * t.page
        await t.cache.abort_req(req)
        assert await t.count("loads_refused") == refused + 2


@sets
async def test_what_it_was_to_begin_when_it_went_down_has_failed(
    delivery: Delivery, components: Components
) -> None:
    async with tiers(delivery, components, limits=ONCE, page_size=4) as t:
        await on_host(t, 4, 8)
        await t.load(t.key(4))
        found = await t.match(t.key(8))
        crash = CrashBefore("StartCopy", "tiering")
        t.cache.add_interceptor(crash)
        async with await t.cache.load_back(found) as handle:
            assert await handle.wait(timeout=5.0) == 4 * t.page
            assert handle.failed
            with pytest.raises(LoadFailed):
                handle.wait_layer(0, 5.0)
        t.cache.remove_interceptor(crash)
        await t.cache.drain(5.0)
        assert await t.count("loads_failed") == 1
        system_of(t.cache).unheard_errors = 0


@sets
async def test_what_was_lost_on_its_way_to_it_when_it_went_down_has_failed(
    delivery: Delivery, components: Components
) -> None:
    limits = LimitsConfig(restarts_max=0, call_timeout_s=20.0, resend_after_s=0.01)
    async with tiers(delivery, components, limits=limits, page_size=4) as t:
        await on_host(t, 4, 8)
        await t.load(t.key(4))
        found = await t.match(t.key(8))
        # All of it: on a busy machine it is sent again before the actor goes down.
        drop = DropFirst("StartCopy", "tiering", count=1000)
        t.cache.add_interceptor(drop)
        async with await t.cache.load_back(found) as handle:
            await until(lambda: drop.hits > 0)
            assert t.cache.kill("tiering")
            assert await handle.wait(timeout=5.0) == 4 * t.page
            assert handle.failed
        t.cache.remove_interceptor(drop)
        await t.cache.drain(5.0)
        assert await t.count("loads_failed") == 1
        system_of(t.cache).unheard_errors = 0


@sets
async def test_a_copy_that_runs_when_it_goes_down_comes_to_its_end(
    delivery: Delivery, components: Components
) -> None:
    async with tiers(delivery, components, limits=ONCE, page_size=4) as t:
        await on_host(t, 4)
        t.engine.hold()
        await t.put(t.key(t.span(2, 100)))
        async with await t.cache.load_back(await t.match(t.key(4))) as handle:
            await t.engine.arrived(2)
            await bring_down(t)
            t.engine.release()
            assert await handle.wait() == 4 * t.page
        await t.cache.drain(5.0)
        assert t.picture() == [(0, 4, "DH"), (0, 2, "DH")]


@sets
@pytest.mark.parametrize("lost", ["Lookup", "StartFetch", "StartStore"])
async def test_a_fetch_or_a_store_that_it_never_began_is_over(
    delivery: Delivery, components: Components, lost: str
) -> None:
    async with tiers(delivery, components, limits=ONCE, page_size=4, **PATIENT) as t:
        await in_storage(t, 4)
        crash = CrashBefore(lost, "tiering")
        t.cache.add_interceptor(crash)
        async with await t.cache.prefetch(t.key(4)) as fetch:
            brought = await fetch.wait(timeout=5.0)
            assert brought == (4 * t.page if lost == "StartStore" else 0)
        await t.put(t.key(t.span(2, 100)))
        await t.cache.drain(5.0)
        t.cache.remove_interceptor(crash)
        assert crash.hits == 1
        system_of(t.cache).unheard_errors = 0
        async with await t.cache.prefetch(t.key(8)) as fetch:
            assert fetch.pages == 0
        await everything_else_works(t)


async def test_a_storage_can_not_be_exchanged_but_nothing_waits_for_it(delivery: Delivery) -> None:
    async with tiers(delivery, ("full",), limits=ONCE, **PATIENT) as t:
        await t.put(t.key(4))
        await t.settle()
        await bring_down(t)
        await t.cache.detach_storage(timeout=5.0)
        system_of(t.cache).unheard_errors = 0
        assert t.picture() == [(0, 4, "DH")]
        assert await t.cache.flush("storage", 5.0) == 0


# -- silent --------------------------------------------------------------------------------------


@asynccontextmanager
async def silent(t: Tiers) -> AsyncGenerator[Stall, None]:
    """Let nothing reach the tiering actor in a block."""
    stall = Stall("tiering")
    t.cache.add_interceptor(stall)
    yield stall
    stall.release()
    t.cache.remove_interceptor(stall)


@sets
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
async def test_nobody_waits_for_a_silent_one_but_who_asks_for_a_transfer(
    delivery: Delivery, components: Components, policy: str
) -> None:
    limits = LimitsConfig(call_timeout_s=20.0)
    async with tiers(
        delivery, components, limits=limits, page_size=4, pages=12, policy=policy
    ) as t:
        await on_host(t, 4)
        found = await t.match(t.key(4))
        async with silent(t) as stall:
            await t.put(t.key(t.span(2, 100)))
            await t.put(t.key(t.span(2, 150)))
            assert await t.hit(t.key(t.span(2, 100))) == (2, 0)
            handle = await t.cache.load_back(found)
            assert (handle.length, handle.loaded) == (4 * t.page, 4 * t.page)
            with pytest.raises(CallTimeout):
                await handle.wait(timeout=0.01)
            # What is written only to the device is not evicted unsaved while it is being saved.
            evicted = asyncio.ensure_future(
                t.cache.evict(EvictParams(num_tokens=4 * t.page), timeout=20.0)
            )
            await turns(60)
            assert evicted.done() is (policy == "write_through")
            assert await t.hit(t.key(t.span(2, 100))) == (2, 0)
            assert stall.held
            await t.sound()
        await evicted
        assert await handle.wait() == 4 * t.page
        await handle.close()
        await t.settle()
        expected = "DH" if policy == "write_through" else "H"
        assert {bits for _, _, bits in t.picture()[1:]} == {expected}


async def test_an_allocation_that_waits_for_a_silent_one_ends_at_its_deadline(
    delivery: Delivery,
) -> None:
    async with tiers(delivery, ("full",), pages=4, policy="write_back") as t:
        await t.put(t.key(4))
        async with silent(t):
            with pytest.raises(CallTimeout):
                await t.cache.allocate(AllocateParams(num_tokens=t.page), timeout=0.05)
            assert (await t.pool(tier="device")).held == 0
            # A mirror can still go.
        await t.settle()
        given = await t.cache.allocate(AllocateParams(num_tokens=t.page))
        await t.cache.free(given.indices)


async def test_of_a_silent_one_no_more_is_asked_than_the_limits_say(delivery: Delivery) -> None:
    fields: dict[str, Any] = {"jobs_max": 2, "units_in_flight": 16, "batch_units": 8}
    async with tiers(delivery, ("full",), backlog_max=3, **fields) as t:
        await on_host(t, 1)
        async with silent(t) as stall:
            for at in range(10):
                await t.put(t.key(t.span(1, 100 + 10 * at)))
                await settled(t.cache)
                await turns(3)
            books = t.cache._state.tiers
            assert books is not None
            assert books.jobs.count("backup") <= 2
            assert len(books.backlog) <= 3
            assert len(stall.held) <= 2
            assert await t.count("backups_skipped") == 10 - len(books.backlog) - 2
        await t.settle()
        # What was left out comes with its next use.
        for at in range(10):
            await t.match(t.key(t.span(1, 100 + 10 * at)))
            await t.settle()
        assert {bits for _, _, bits in t.picture()[1:]} == {"DH"}


async def test_closing_with_a_silent_one_ends(delivery: Delivery) -> None:
    async with tiers(delivery, ("full",), drain=False) as t:
        await on_host(t, 4)
        t.cache.add_interceptor(Stall("tiering"))
        async with await t.cache.load_back(await t.match(t.key(4))) as handle:
            waiting = asyncio.ensure_future(handle.wait())
            await turns(5)
            await asyncio.wait_for(t.cache.close(0.05), 10.0)
            with pytest.raises(CacheClosed):
                await waiting
        with pytest.raises(LoadFailed):
            handle.wait_layer(0, 0.5)
        system_of(t.cache).unheard_errors = 0


async def test_a_storage_that_never_answers_holds_up_no_copy(delivery: Delivery) -> None:
    async with tiers(delivery, page_size=4, **PATIENT) as t:
        await on_host(t, 4)
        assert t.store is not None
        store = t.store
        store.hold("exists", "put_from")
        fetch = await t.cache.prefetch(t.key(8))
        await t.put(t.key(t.span(2, 100)))
        await until(lambda: store.waiting("put_from") > 0, TURNS_MAX)
        assert await t.load(t.key(4)) == 4
        await everything_else_works(t)
        await fetch.close()
