"""What goes wrong in a component of one's own: hooks that raise, actors that crash, books that lie.

Whatever a hook does, the cache ends sound, and what others hold is untouched.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from radixtide import (
    ActorFailed,
    EvictParams,
    InsertParams,
    LockReceipt,
    Request,
    UnifiedRadixCache,
)
from radixtide.configs.schema import LimitsConfig
from radixtide.tiers.slots import ANONYMOUS
from support.caches import (
    Delivery,
    assert_nothing_held,
    assert_sound,
    key,
    match,
    open_cache,
    settled,
    state_of,
    store,
    take,
    tokens,
)
from support.hooks import HOOKS, failing
from support.hybrids import admit, chunk, decode
from support.interceptors import CrashAfter, CrashBefore, Delay, DropReply, Duplicate
from support.plugin import (
    NAME,
    SidecarClass,
    copies,
    page_ids,
    registered,
    sidecar_of,
    spare_ids,
    with_sidecar,
)

LIMITS = LimitsConfig(call_timeout_s=20.0, restarts_max=1000)


async def live(cache: UnifiedRadixCache) -> None:
    """Use every hook of a component."""
    await store(cache, key(512))
    holder = await match(cache, key(390), lock=True)
    assert holder.receipt is not None
    assert len(holder.device_indices) == 384
    async with cache.hold(holder):
        await store(cache, key([*range(192), *range(3000, 3200)]))
    req = await admit(cache, "r", [*range(320), *range(4000, 4200)])
    await chunk(cache, req, 450)
    for _ in range(70):
        await decode(cache, req)
    await cache.cache_finished_req(req)
    gone = await admit(cache, "gone", tokens(300, 6000))
    await cache.abort_req(gone)
    await cache.evict(EvictParams(others={NAME: 2}))
    await cache.insert(InsertParams(key(384), holder.device_indices, prev_prefix_len=384))
    # A pool that is short: the insert pushes out what nobody holds.
    await store(cache, key(tokens(700, 7000)))
    await cache.pretty_print()
    assert len(await page_ids(cache, holder)) == 3
    await cache.evict(EvictParams(num_tokens=600))
    await cache.dec_lock_ref(holder.receipt)
    await cache.free(await take(cache, 16))


@pytest.mark.parametrize("skip", [0, 2])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("hook", HOOKS)
async def test_a_hook_that_raises_leaves_the_cache_sound(
    delivery: Delivery, hook: str, when: str, skip: int
) -> None:
    kind = failing(hook, when, skip)
    fields = with_sidecar(
        ("full", "swa"), ids=8, page_size=16, size=3072, window=100, max_context=1024
    )
    with registered(kind):
        async with open_cache(delivery=delivery, limits=LIMITS, **fields) as cache:
            # One that raises once is asked again, so that no caller hears of it.
            await live(cache)
            await settled(cache)
            restarts = (await cache.stats()).actors[NAME].restarts
            assert restarts == 1 - kind.left["times"]
            await assert_nothing_held(cache)
            await cache.reset()
            assert await spare_ids(cache) == (8, 0, 0)


def test_most_hooks_are_met_by_that_life() -> None:
    called: set[str] = set()

    def noting(hook: str) -> Callable[..., Any]:
        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            called.add(hook)
            return getattr(SidecarClass, hook)(self, *args, **kwargs)

        return noted

    kind = type("Noting", (SidecarClass,), {hook: noting(hook) for hook in HOOKS})
    fields = with_sidecar(ids=8, page_size=16, size=3072, max_context=1024)

    async def run() -> None:
        async with open_cache(delivery="queued", **fields) as cache:
            await live(cache)

    with registered(kind):
        asyncio.run(run())
    assert called == set(HOOKS)


@pytest.mark.parametrize("hook", ["check_insert", "drive_eviction", "path_slots"])
async def test_a_plan_that_raises_every_time_fails_its_call_alone(
    delivery: Delivery, hook: str
) -> None:
    calls: dict[str, Callable[[UnifiedRadixCache, Any], Any]] = {
        "check_insert": lambda cache, _: store(cache, key(tokens(256, 5000))),
        "drive_eviction": lambda cache, _: cache.evict(EvictParams(others={NAME: 1})),
        "path_slots": page_ids,
    }
    kind = failing(hook, "before", 1 if hook == "check_insert" else 0, times=1000)
    fields = with_sidecar(page_size=16, size=1024)
    with registered(kind):
        async with open_cache(delivery=delivery, limits=LIMITS, audit=False, **fields) as cache:
            await store(cache, key(400))
            found = await match(cache, key(400), lock=True)
            with pytest.raises(ActorFailed, match=f"crashed actor sidecar: Planted\\('{hook}'\\)"):
                await calls[hook](cache, found)
            await settled(cache)
            kind.left["times"] = 0
            await assert_sound(cache)
            assert await page_ids(cache, found) == [0, 1, 2]
            assert (await spare_ids(cache))[2] == 3


# -- crashes and lost messages --------------------------------------------------------------


@pytest.mark.parametrize("kind", [CrashBefore, CrashAfter, DropReply, Duplicate, Delay])
@pytest.mark.parametrize(
    "message",
    [
        "CheckInsert",
        "Quote",
        "EvictNodes",
        "Grant",
        "CommitInsert",
        "CommitMatch",
        "Lock",
        "Unlock",
        "Settle",
        "LetGo",
        "Rebuild",
    ],
)
async def test_a_fault_at_a_message_of_the_component_has_no_effect(
    monkeypatch: pytest.MonkeyPatch, kind: type[Any], message: str
) -> None:
    monkeypatch.setattr("radixtide.actors.system.ActorSystem.resend_after_s", 0.001)
    fields = with_sidecar(ids=8, page_size=16, size=3072, max_context=1024)
    with registered():
        async with open_cache(limits=LIMITS, **fields) as cache:
            faults = [kind(message, NAME, skip=skip) for skip in (0, 1)]
            if message == "Rebuild":
                faults.append(CrashBefore("CommitInsert", NAME))
            for fault in faults:
                cache.add_interceptor(fault)
            await live(cache)
            await settled(cache)
            assert faults[0].hits
            for fault in faults:
                cache.remove_interceptor(fault)
            await assert_nothing_held(cache)


class World(NamedTuple):
    """A cache with copies, some of them locked."""

    cache: UnifiedRadixCache
    receipt: LockReceipt
    req: Request


@pytest.fixture
async def world() -> Any:
    """Open a cache with two locked prompts and one that is not."""
    fields = with_sidecar(page_size=16, size=2048, max_context=1024)
    with registered():
        async with open_cache(limits=LIMITS, audit=False, **fields) as cache:
            await store(cache, key(400))
            found = await match(cache, key(256), lock=True)
            await store(cache, key(tokens(256, 5000)))
            req = await admit(cache, "r", [*range(300), *range(6000, 6100)])
            await chunk(cache, req, 400)
            assert found.receipt is not None
            await assert_sound(cache)
            yield World(cache, found.receipt, req)


async def test_a_crash_keeps_every_copy(world: World) -> None:
    before = copies(world.cache)
    assert len(before) == 6
    sizes = await spare_ids(world.cache)
    world.cache.add_interceptor(crash := CrashAfter("CommitMatch", NAME))
    await match(world.cache, key(400))
    world.cache.remove_interceptor(crash)
    await settled(world.cache)
    await assert_sound(world.cache)
    assert (await world.cache.stats()).counters["repairs"] == 1
    assert copies(world.cache) == before
    assert await spare_ids(world.cache) == sizes


def _first(world: World) -> Any:
    sidecar = sidecar_of(world.cache)
    return next(
        sidecar.data(node)
        for node in state_of(world.cache).tree
        if sidecar.data(node).value is not None and node.parent is state_of(world.cache).tree.root
    )


def _cut(world: World) -> None:
    _first(world).value = _first(world).value[:-1]


def _empty(world: World) -> None:
    sidecar = sidecar_of(world.cache)
    data = _first(world)
    sidecar.allocator.release_tree(data.value.astype(np.int64))
    sidecar.protected -= len(data.value)
    data.value = data.value[:0]


def _hold(world: World) -> None:
    sidecar_of(world.cache).allocator.take(2, ANONYMOUS)


def _forget(world: World) -> None:
    _first(world).value = None


def _lock(world: World) -> None:
    _first(world).lock_ref += 1


def _unlist(world: World) -> None:
    sidecar_of(world.cache).recency.remove(_first(world))


DAMAGES: dict[Callable[[World], None], tuple[str, str]] = {
    _cut: ("slots", r"sidecar: Node\(.*\) has 1 slots, not 2"),
    _empty: ("copies", r"sidecar: Node\(.*\) has a value without page ids"),
    _hold: ("copies", "pool sidecar: 2 page ids are held by no insert"),
    _forget: ("lost", "pool sidecar: slots lost"),
    _lock: ("receipts", r"sidecar: Node\(.*\) has lock count"),
    _unlist: ("lru", "has a value but is not in the sidecar list"),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
async def test_the_audit_names_what_is_wrong_and_a_repair_makes_it_good(
    world: World, damage: Callable[[World], None]
) -> None:
    clause, says = DAMAGES[damage]
    damage(world)
    report = await world.cache.audit()
    found = [one.message for one in report.violations if one.clause == clause]
    assert any(re.search(says, message) for message in found), report
    world.cache.add_interceptor(crash := CrashBefore("CommitMatch", NAME))
    await match(world.cache, key(16))
    world.cache.remove_interceptor(crash)
    await settled(world.cache)
    await assert_sound(world.cache)
    await world.cache.abort_req(world.req)
    await world.cache.dec_lock_ref(world.receipt)
    await assert_nothing_held(world.cache)
