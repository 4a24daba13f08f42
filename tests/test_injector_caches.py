"""Faults happen to whole caches, and what a caller sees of them is a right answer or an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.components.api import EvictParams
from radixtide.configs.errors import ActorFailed, CacheClosed, MailboxFull
from radixtide.configs.schema import LimitsConfig
from radixtide.simulation.injector import CANCELLED, InjectedError, Injector
from radixtide.simulation.plan import Fault, FaultPlan
from support.actors import Look, Stage
from support.caches import (
    assert_nothing_held,
    assert_sound,
    key,
    make_config,
    match,
    settled,
    store,
    system_of,
    take,
)
from support.chaos import client
from support.virtual import injector, now, pass_time, virtual


@asynccontextmanager
async def faulty(
    *faults: Fault, **overrides: Any
) -> AsyncGenerator[tuple[UnifiedRadixCache, Injector]]:
    """Open a cache with three pages of the tokens 0 to 11, to which these faults then happen."""
    async with UnifiedRadixCache(make_config(**overrides)) as cache:
        await store(cache, key(12))
        happens = injector(*faults)
        happens.install(cache)
        yield cache, happens
        happens.heal()
        await settled(cache)
        await assert_sound(cache)


@virtual
async def test_a_match_that_is_refused_can_be_made_again() -> None:
    async with faulty(Fault(kind="handler_error", message="Validate", count=1)) as (cache, _):
        with pytest.raises(InjectedError):
            await match(cache, key(12), lock=True)
        result = await match(cache, key(12), lock=True)
        assert len(result.device_indices) == 12
        assert result.receipt is not None
        await cache.dec_lock_ref(result.receipt)
        await assert_nothing_held(cache)


@virtual
@pytest.mark.parametrize("where", ["request", "reply"])
@pytest.mark.parametrize("seconds", [0.0, 2e-5, 5e-5, 1e-4])
async def test_a_cancelled_match_holds_nothing(where: Any, seconds: float) -> None:
    fault = Fault(
        kind="cancel_caller", message="MatchPrefixParams", where=where, seconds=seconds, count=1
    )
    async with faulty(fault) as (cache, happens):
        result = None
        with suppress(asyncio.CancelledError):
            result = await match(cache, key(12), lock=True)
        if result is not None:
            # It was faster than its cancellation.
            assert where == "request"
            assert seconds
            assert result.receipt is not None
            await cache.dec_lock_ref(result.receipt)
        await settled(cache)
        assert happens.counts == {"cancel_caller": 1}
        await assert_nothing_held(cache)


@virtual
async def test_a_cancelled_release_is_carried_out() -> None:
    async with faulty(Fault(kind="cancel_caller", message="DecLockRef", count=1)) as (cache, _):
        result = await match(cache, key(12), lock=True)
        assert result.receipt is not None
        with pytest.raises(asyncio.CancelledError, match=CANCELLED):
            await cache.dec_lock_ref(result.receipt)
        await settled(cache)
        await assert_nothing_held(cache)


@virtual
async def test_the_librarys_own_tasks_are_no_callers() -> None:
    async with faulty(Fault(kind="cancel_caller", where="both")) as (cache, happens):
        system = system_of(cache)
        result = await system.own(match(cache, key(12)))
        assert len(result.device_indices) == 12
        assert not happens.counts


@virtual
async def test_a_full_mailbox_refuses_what_takes_and_takes_what_is_given() -> None:
    fault = Fault(kind="mailbox_full", message="AllocateParams", skip=1, seconds=0.1, count=1)
    async with faulty(fault) as (cache, _):
        slots = await take(cache, 4)
        for _again in range(2):
            with pytest.raises(MailboxFull):
                await take(cache, 4)
        await cache.free(slots)
        await pass_time(0.2)
        await cache.free(await take(cache, 4))
        await assert_nothing_held(cache)


@virtual
@pytest.mark.parametrize("actor", ["coordinator", "full"])
@pytest.mark.parametrize("message", ["MatchPrefixParams", "CommitMatch", "DecLockRef", "Unlock"])
async def test_a_killed_actor_costs_no_lock(actor: str, message: str) -> None:
    fault = Fault(kind="kill", message=message, count=1)
    async with faulty(fault) as (cache, happens):
        result = await match(cache, key(12), lock=True)
        assert len(result.device_indices) == 12
        assert result.receipt is not None
        assert (await cache.evict(EvictParams(num_tokens=12))).num_tokens_evicted == 0
        await cache.dec_lock_ref(result.receipt)
        await settled(cache)
        assert happens.counts == {"kill": 1}
        assert sum(one.restarts for one in (await cache.stats()).actors.values()) == 1
        await assert_nothing_held(cache)


@virtual
async def test_one_injector_serves_a_cache_and_the_one_after_it() -> None:
    happens = injector(Fault(kind="delay", message="MatchPrefixParams", seconds=0.5))
    for _ in range(2):
        async with UnifiedRadixCache(make_config()) as cache:
            happens.install(cache)
            await match(cache, key(12))
            began = now()
            late = asyncio.ensure_future(match(cache, key(12)))
            await asyncio.sleep(0)
            happens.uninstall(cache)
            assert happens.held == 0
            await late
            assert now() - began < 0.1
            await match(cache, key(12))
    assert happens.counts == {"delay": 4}


@virtual
async def test_a_cache_may_be_closed_before_its_faults_are_taken_from_it() -> None:
    happens = injector(Fault(kind="delay", message="MatchPrefixParams", seconds=60.0))
    cache = UnifiedRadixCache(make_config())
    async with cache:
        happens.install(cache)
        late = asyncio.ensure_future(match(cache, key(12)))
        await asyncio.sleep(0)
    happens.uninstall(cache)
    with pytest.raises(CacheClosed):
        await late
    assert happens.held == 0


@virtual
async def test_caches_on_one_loop_are_told_apart() -> None:
    fault = Fault(kind="stall", message="MatchPrefixParams", seconds=60.0, count=1)
    happens = injector(fault)
    async with UnifiedRadixCache(make_config()) as one, UnifiedRadixCache(make_config()) as other:
        for cache in (one, other):
            happens.install(cache)
        began = now()
        stalled = asyncio.ensure_future(match(one, key(12), lock=True))
        await asyncio.sleep(0)
        await match(other, key(12))
        assert now() - began < 1.0
        happens.uninstall(other)
        await pass_time(0.5)
        assert not stalled.done()
        happens.uninstall(one)
        await stalled
        assert now() - began < 1.5


@virtual
@pytest.mark.parametrize("seed", range(6))
async def test_requests_live_through_heavy_faults_and_leave_nothing_held(seed: int) -> None:
    # These clients cancel their calls themselves, and take a refusal for the end of a request.
    left_out = {"cancel_caller", "handler_error", "mailbox_full"}
    faults = (one for one in FaultPlan.heavy().faults if one.kind not in left_out)
    limits = LimitsConfig(restarts_max=10_000, call_timeout_s=60.0)
    async with UnifiedRadixCache(make_config(size=128, limits=limits)) as cache:
        happens = injector(*faults, seed=seed)
        happens.install(cache)
        dice = Random(seed)
        for wave in range(2):
            await asyncio.gather(*(client(cache, 8 * wave + at, dice) for at in range(8)))
        assert happens.counts
        happens.heal()
        # What was lost is sent again until it is settled.
        await pass_time(5.0)
        await settled(cache)
        await assert_nothing_held(cache, heard=False)


@virtual
@pytest.mark.parametrize(
    ("plan", "messages", "least", "most"),
    [(FaultPlan.heavy(), 3000, 8, 20), (FaultPlan.light(), 8000, 250, 600)],
    ids=["heavy", "light"],
)
async def test_the_presets_do_something_to_as_many_messages_as_they_say(
    plan: FaultPlan, messages: int, least: int, most: int
) -> None:
    at = Stage(direct=True, restarts_max=100_000)
    happens = injector(*plan.faults)
    at.system.add_interceptor(happens)
    while happens.messages < messages:
        with suppress(ActorFailed, InjectedError, MailboxFull, asyncio.CancelledError):
            await at.ask(at.cell, Look())
        # A mailbox that is full has room again only when time goes on.
        await pass_time(0.001)
    assert least < happens.messages / sum(happens.counts.values()) < most
