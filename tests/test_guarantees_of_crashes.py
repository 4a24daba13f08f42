"""Guarantees about actors that keep crashing or are killed, and about what they are told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from radixtide import (
    ActorFailed,
    CacheClosed,
    EvictParams,
    InsertParams,
    OutOfSlots,
    SlotError,
    UnifiedRadixCache,
)
from radixtide.actors import system as system_module
from radixtide.actors.inspection import audit_now
from radixtide.components.api import AllocateParams
from radixtide.configs.schema import LimitsConfig
from radixtide.tree.key import RadixKey
from support.actors import MakeStage, Note, turns, until
from support.caches import (
    Delivery,
    assert_nothing_held,
    assert_sound,
    key,
    make_config,
    match,
    open_cache,
    settled,
    state_of,
    store,
    take,
    tokens,
)
from support.hooks import HOOKS, failing
from support.hybrids import admit, chunk, decode, hybrid
from support.interceptors import (
    Chooser,
    CrashAfter,
    CrashBefore,
    Delay,
    DropFirst,
    Duplicate,
    Stall,
    StallReplies,
)
from support.plugin import NAME, page_ids, registered, with_sidecar

LIMITS = LimitsConfig(call_timeout_s=20.0, restarts_max=3)
SELDOM = ("create_match_validator",)
"""Asked of this component only where a pin ends inside a node."""
TRIES = 40
"""Rounds of calls in which any hook that always raises must have raised often enough."""


async def is_aside(cache: UnifiedRadixCache) -> bool:
    """Return whether the component was set aside."""
    return (await cache.stats()).actors[NAME].degraded


async def put(cache: UnifiedRadixCache, wanted: list[int]) -> None:
    """Insert 400 tokens; what a failed insert did not take is given back."""
    given = await take(cache, len(wanted))
    try:
        await cache.insert(InsertParams(key(wanted), given))
    except ActorFailed:
        with contextlib.suppress(SlotError):
            await finally_(cache.free, given)


async def tell_ids(cache: UnifiedRadixCache, wanted: RadixKey) -> None:
    """Ask for the ids of a prefix."""
    await page_ids(cache, await match(cache, wanted))


async def give_and_take(cache: UnifiedRadixCache) -> None:
    """Allocate without a request, and free."""
    given = await take(cache, 16)
    await finally_(cache.free, given)


async def finally_(call: Callable[[Any], Awaitable[Any]], what: Any) -> None:
    """Make a call that gives until it is answered."""
    for _ in range(TRIES):
        try:
            await call(what)
        except ActorFailed:
            continue
        return


async def wear_out(cache: UnifiedRadixCache) -> None:
    """Call until the component was set aside; what is lost meanwhile is told by a typed error."""
    for round_ in range(TRIES):
        if await is_aside(cache):
            return
        base = 10_000 * (round_ + 1)
        prompt = [*range(200), *tokens(300, base)]
        for make in (
            partial(put, cache, tokens(400, base)),
            partial(put, cache, [*tokens(200, base), *tokens(200, base + 500)]),
            partial(match, cache, key(tokens(390, base))),
            partial(match, cache, key(tokens(300, base))),
            partial(tell_ids, cache, key(tokens(390, base))),
            partial(give_and_take, cache),
            partial(cache.evict, EvictParams(num_tokens=256, others={NAME: 1})),
            cache.pretty_print,
        ):
            try:
                await make()
            except (ActorFailed, OutOfSlots):
                continue
        req = None
        try:
            req = await admit(cache, f"r{round_}", prompt)
            await chunk(cache, req, 450)
            await decode(cache, req)
        except (ActorFailed, OutOfSlots):
            pass
        if req is not None:
            await finally_(cache.abort_req, req)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("hook", [hook for hook in HOOKS if hook not in SELDOM])
async def test_g133_the_cache_goes_on_without_a_component_that_always_raises(
    delivery: Delivery, hook: str, when: str
) -> None:
    fields = with_sidecar(
        ("full", "swa"), ids=8, page_size=16, size=3072, window=100, max_context=1024
    )
    kind = failing(hook, when, 2, times=1_000_000)
    with registered(kind):
        async with open_cache(delivery=delivery, limits=LIMITS, audit=False, **fields) as cache:
            first = await store(cache, key(512))
            held = await match(cache, key(512), lock=True)
            await wear_out(cache)
            if not await is_aside(cache):
                pytest.fail(f"{hook} was not called often enough: {kind.left}")
            await settled(cache)
            await assert_sound(cache, heard=False)
            # Full and windows are as they were; of the component nothing is left.
            found = await match(cache, key(512))
            assert len(found.device_indices) == first.inserted_len == 512
            assert len(await page_ids(cache, found)) == 0
            req = await admit(cache, "later", [*range(320), *range(4000, 4200)])
            await chunk(cache, req, 450)
            for _ in range(70):
                await decode(cache, req)
            await cache.cache_finished_req(req)
            await cache.evict(EvictParams(num_tokens=600))
            assert held.receipt is not None
            await cache.dec_lock_ref(held.receipt)
            await settled(cache)
            await assert_nothing_held(cache, heard=False)
            stats = await cache.stats()
            assert stats.actors[NAME].alive
            assert stats.pools[NAME]["device"].size == 0
            await cache.reset()
            assert (await store(cache, key(512))).inserted_len == 512
            await assert_sound(cache, heard=False)


async def test_a_killed_component_is_set_aside_at_the_restart_limit(delivery: Delivery) -> None:
    fields = with_sidecar(page_size=16, size=1024)
    with registered():
        async with open_cache(delivery=delivery, limits=LIMITS, **fields) as cache:
            await store(cache, key(400))
            for _ in range(LIMITS.restarts_max):
                assert cache.kill(NAME)
                await settled(cache)
                assert not await is_aside(cache)
            found = await match(cache, key(400))
            assert len(await page_ids(cache, found)) == 3
            assert cache.kill(NAME)
            await settled(cache)
            assert await is_aside(cache)
            assert len(await page_ids(cache, found)) == 0
            given = (await cache.allocate(AllocateParams(num_tokens=400))).indices
            result = await cache.insert(InsertParams(key(tokens(400, 5000)), np.asarray(given)))
            assert result.inserted_len == 400


@pytest.mark.parametrize("component", ["full", "swa"])
async def test_a_component_that_is_needed_stays_down_and_the_calls_say_so(
    delivery: Delivery, component: str
) -> None:
    fields = hybrid(("full", "swa"), page_size=16, size=1024, window=100)
    async with open_cache(delivery=delivery, limits=LIMITS, audit=False, **fields) as cache:
        await store(cache, key(400))
        for _ in range(LIMITS.restarts_max):
            assert cache.kill(component)
            await settled(cache)
        await assert_sound(cache)
        assert cache.kill(component)
        assert not cache.kill(component)
        actor = (await cache.stats()).actors[component]
        assert not actor.alive
        assert not actor.degraded
        with pytest.raises(ActorFailed, match="it stays down: open a new cache"):
            await store(cache, key(400))


async def test_g137_notices_come_until_they_are_handled(delivery: Delivery) -> None:
    limits = LimitsConfig(call_timeout_s=20.0, restarts_max=1000)
    async with open_cache(delivery=delivery, limits=limits) as cache:
        await store(cache, key(12))
        crashes = [CrashBefore(kind, "coordinator", count=4) for kind in ("Repair", "UndoMatch")]
        for crash in crashes:
            cache.add_interceptor(crash)
        assert cache.kill("full")
        await until(lambda: crashes[0].hits == 4)
        answers = StallReplies("coordinator", "MatchPrefixParams")
        cache.add_interceptor(answers)
        asking = asyncio.create_task(match(cache, key(12), lock=True))
        await until(lambda: bool(answers.held))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: crashes[1].hits == 4)
        for one in (*crashes, answers):
            cache.remove_interceptor(one)
        await settled(cache)
        assert state_of(cache).counters.repairs >= 2
        assert not state_of(cache).repair_waits
        await assert_nothing_held(cache)


@pytest.mark.parametrize("actor", ["full", "swa", "coordinator"])
async def test_g134_a_killed_actor_goes_on_where_it_was(delivery: Delivery, actor: str) -> None:
    fields = hybrid(("full", "swa"), page_size=16, size=1024, window=100)
    stall = Stall("swa", "CommitInsert")
    async with open_cache(delivery=delivery, **fields) as cache:
        given = await take(cache, 400)
        cache.add_interceptor(stall)
        inserting = asyncio.create_task(cache.insert(InsertParams(key(400), given)))
        await until(lambda: bool(stall.held))
        # The coordinator is in the middle of an edit; a component is between two messages.
        assert cache.kill(actor)
        assert audit_now(cache) is None
        stall.release()
        assert (await inserting).inserted_len == 400
        cache.remove_interceptor(stall)
        await settled(cache)
        report = audit_now(cache)
        assert report is not None
        assert not report.violations
        assert (await cache.stats()).actors[actor].restarts == 1
        assert len((await match(cache, key(400))).device_indices) == 400


async def test_g135_a_cancelled_close_is_carried_out(delivery: Delivery) -> None:
    cache = UnifiedRadixCache(make_config(delivery=delivery))
    await cache.__aenter__()
    closing = asyncio.create_task(cache.close())
    await turns(1)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await cache.close()
    with pytest.raises(CacheClosed):
        await match(cache, key(16))


async def test_killing_what_is_not_there_is_no_kill(delivery: Delivery) -> None:
    async with open_cache(delivery=delivery) as cache:
        assert not cache.kill("nobody")


@pytest.mark.parametrize("fault", [DropFirst, Delay, Duplicate, CrashBefore, CrashAfter])
async def test_g136_what_is_told_is_handled_in_order_whatever_is_lost_or_held_back(
    monkeypatch: pytest.MonkeyPatch, make_stage: MakeStage, fault: type[Chooser]
) -> None:
    monkeypatch.setattr(system_module.ActorSystem, "resend_after_s", 0.001)
    at = make_stage(restarts_max=100)
    troubles = [fault("Note", skip=skip) for skip in (0, 2, 3)]
    for trouble in troubles:
        at.system.add_interceptor(trouble)
    for number in range(6):
        at.system.tell(at.cell, Note(str(number)))
    for trouble in troubles:
        at.system.remove_interceptor(trouble)
    # Nothing intercepts any more, and what comes now does not overtake either.
    for number in range(6, 12):
        at.system.tell(at.cell, Note(str(number)))
    await until(lambda: len(at.keeper.texts) >= 12 and at.system.quiet)
    assert at.keeper.texts == [str(number) for number in range(12)]
    assert at.cell.idle is at.system.direct
