"""A whole cache with tiers on the simulated loop, engine and store: no thread, real bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
import torch

from radixtide import (
    AllocateParams,
    EvictParams,
    InsertParams,
    MatchPrefixParams,
    RadixKey,
    UnifiedRadixCache,
)
from radixtide.configs.schema import CacheConfig, HostConfig, StorageConfig
from radixtide.simulation.dice import dice
from radixtide.simulation.engine import SimulatedEngine
from radixtide.simulation.loop import SimulatedLoop
from radixtide.simulation.store import Disk, SimulatedStore
from support.caches import Delivery
from support.marks import Marks, key_marks
from support.tier_config import DELIVERIES, tier_config

T = TypeVar("T")
PAGE = 4
SEEDS = range(4)


class Site:
    """Caches that come one after the other on one disk."""

    def __init__(self, seed: int, delivery: Delivery) -> None:
        self.seed = seed
        self.loop = SimulatedLoop(seed)
        self.disk = Disk()
        self.config: CacheConfig = tier_config(
            ("full",),
            page_size=PAGE,
            delivery=delivery,
            url="memory:",
            storage={"prefetch_policy": "wait_complete"},
        )
        self.engines: list[SimulatedEngine] = []
        self.stores: list[SimulatedStore] = []

    def cache(self) -> UnifiedRadixCache:
        """Return a cache that nobody has entered."""
        return UnifiedRadixCache(self.config, make_engine=self._engine, make_store=self._store)

    def _engine(self, host: HostConfig, ends: Any) -> SimulatedEngine:
        luck = dice(self.seed, f"copies/{len(self.engines)}")
        self.engines.append(SimulatedEngine(self.loop, ends, luck, verify=host.verify))
        return self.engines[-1]

    def _store(self, _: StorageConfig) -> SimulatedStore:
        luck = dice(self.seed, f"storage/{len(self.stores)}")
        self.stores.append(SimulatedStore(self.loop, self.disk, luck))
        return self.stores[-1]


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody start a thread."""

    def refuse(thread: threading.Thread) -> None:
        raise AssertionError(f"{thread.name} was started")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def key(number: int, pages: int) -> RadixKey:
    return RadixKey([1000 * number + at for at in range(pages * PAGE)])


async def put(cache: UnifiedRadixCache, wanted: RadixKey) -> None:
    given = await cache.allocate(AllocateParams(num_tokens=len(wanted)))
    Marks(cache).write("full", given.indices, key_marks(wanted))
    await cache.insert(InsertParams(wanted, given.indices))


async def load(cache: UnifiedRadixCache, wanted: RadixKey) -> int:
    """Bring a key to the device; check its bytes and return its pages."""
    found = await cache.match_prefix(MatchPrefixParams(wanted))
    async with await cache.load_back(found) as handle:
        length = await handle.wait()
        slots: torch.Tensor = handle.device_indices[:length]
        Marks(cache).check("full", slots, key_marks(wanted)[:length])
    return length // PAGE


def everywhere(
    work: Callable[[Site], Coroutine[Any, Any, T]],
) -> Callable[[Delivery, int], None]:
    """Make a test of `work`: with each delivery and several seeds, twice each."""

    @pytest.mark.parametrize("seed", SEEDS)
    @pytest.mark.parametrize("delivery", DELIVERIES)
    def test(delivery: Delivery, seed: int) -> None:
        courses = []
        for _ in range(2):
            site = Site(seed, delivery)
            said = site.loop.run(work(site))
            assert site.loop.errors == []
            courses.append((said, site.loop.time(), site.loop.turns, site.disk.frames))
        assert courses[0] == courses[1]

    return test


@everywhere
async def test_what_left_the_device_is_loaded_back(site: Site) -> list[int]:
    async with site.cache() as cache:
        for number in range(3):
            await put(cache, key(number, 5))
        await cache.drain()
        await cache.evict(EvictParams(num_tokens=10**6))
        loaded = [await load(cache, key(number, 5)) for number in range(3)]
        assert (await cache.audit()).ok
    assert loaded == [5] * 3
    assert len(site.disk.frames) == 15
    return loaded


@everywhere
async def test_what_was_stored_is_fetched_by_a_later_cache(site: Site) -> list[int]:
    async with site.cache() as cache:
        await put(cache, key(1, 6))
        await cache.drain()
    async with site.cache() as cache:
        async with await cache.prefetch(key(1, 8)) as handle:
            assert await handle.wait() == 6 * PAGE
        assert await load(cache, key(1, 8)) == 6
        assert (await cache.audit()).ok
    return [len(site.engines), len(site.stores)]


@everywhere
async def test_of_what_a_killed_cache_was_storing_a_later_one_has_what_is_whole(
    site: Site,
) -> list[int]:
    fetched = []
    for after in range(12):
        site.disk.clear()
        cache = await site.cache().__aenter__()
        await put(cache, key(after, 6))
        await asyncio.sleep(1.5e-3 * after)
        site.engines[-1].crash()
        site.stores[-1].crash()
        await cache.close(timeout=0)
        async with site.cache() as later:
            async with await later.prefetch(key(after, 6)) as handle:
                fetched.append(await handle.wait() // PAGE)
            assert await load(later, key(after, 6)) == fetched[-1]
            assert (await later.audit()).ok
    assert fetched[0] == 0
    assert max(fetched) > 0
    return fetched
