"""Around a real store: calls that fail and are late, and pages that are damaged on their way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import xxhash

from radixtide.configs.errors import InvalidInput
from radixtide.simulation.decisions import StorageFault
from radixtide.simulation.faulty_engine import FaultyEngine
from radixtide.simulation.faulty_store import FaultyStore, damage
from radixtide.simulation.plan import Fault
from radixtide.tiers.copy_making import make_engine
from radixtide.tiers.storage import StorageFailed, open_storage
from support.hybrids import AuditedCache
from support.stores import page_bytes, page_keys, targets
from support.tier_cases import fetched
from support.tier_config import SETS, Components, tier_config
from support.tiered import Tiers
from support.virtual import injector

Call = Callable[[FaultyStore], Any]


@asynccontextmanager
async def faulty(*faults: Fault, stored: int = 0) -> AsyncGenerator[FaultyStore]:
    """Open a store in memory with so many pages, to which these faults then happen."""
    store = FaultyStore(open_storage("memory:"), injector())
    async with store:
        await store.put_from(page_keys(stored), page_bytes(stored))
        store._faults = injector(*faults)
        yield store


def digests_of(pages: list[memoryview]) -> list[int]:
    return [xxhash.xxh3_64_intdigest(page) for page in pages]


CALLS: dict[str, Call] = {
    "exists": lambda store: store.exists(page_keys(3)),
    "get": lambda store: store.get_into(page_keys(3), targets(3)),
    "put": lambda store: store.put_from(page_keys(3), page_bytes(3)),
    "delete": lambda store: store.delete(page_keys(3)),
    "clear": lambda store: store.clear(),
}


async def test_without_a_fault_all_calls_are_the_stores_own() -> None:
    async with faulty() as store:
        keys, pages, out, found = page_keys(3), page_bytes(3), targets(3), np.zeros(3, np.uint64)
        store.check()
        assert store.kind == store.inner.kind
        assert await store.put_from(keys, pages) == [True] * 3
        assert await store.get_into(keys, out, found) == [True] * 3
        assert out == pages
        assert found.tolist() == digests_of(pages)
        await store.delete(keys[:1])
        assert await store.exists(keys) == [False, True, True]
        await store.clear()
        assert await store.exists(keys) == [False] * 3
        assert store.stats() == store.inner.stats()
        assert store.stats().puts == 3


@pytest.mark.parametrize("operation", CALLS)
async def test_a_call_that_fails_says_so_and_the_next_one_works(operation: Any) -> None:
    async with faulty(Fault(kind="storage_fail", operation=operation, count=1)) as store:
        with pytest.raises(StorageFailed, match="failed by a fault plan"):
            await CALLS[operation](store)
        await CALLS[operation](store)


async def test_a_call_that_fails_may_have_been_carried_out() -> None:
    async with faulty(Fault(kind="storage_fail", operation="put")) as store:
        there = set()
        for number in range(20):
            key = page_keys(1, first=number)
            with pytest.raises(StorageFailed):
                await store.put_from(key, page_bytes(1))
            there.add((await store.exists(key))[0])
        assert there == {False, True}


@pytest.mark.parametrize("operation", CALLS)
async def test_a_late_call_does_the_same_later(operation: Any) -> None:
    fault = Fault(kind="storage_slow", operation=operation, seconds=0.05)
    async with faulty(fault, stored=3) as store:
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await CALLS[operation](store) in ([True] * 3, None)
        assert loop.time() - began >= 0.05


async def test_a_late_call_can_be_cancelled_before_it_does_anything() -> None:
    async with faulty(Fault(kind="storage_slow", operation="put", seconds=600.0)) as store:
        putting = asyncio.ensure_future(store.put_from(page_keys(1), page_bytes(1)))
        await asyncio.sleep(0)
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        assert await store.exists(page_keys(1)) == [False]


@pytest.mark.parametrize("kind", ["storage_corrupt", "storage_torn"])
@pytest.mark.parametrize("given", [True, False])
async def test_a_page_that_is_damaged_as_it_is_written_has_the_digest_of_what_was_given(
    kind: Any, given: bool
) -> None:
    keys, pages, found = page_keys(3), page_bytes(3), np.zeros(3, np.uint64)
    digests = np.array(digests_of(pages), np.uint64) if given else None
    async with faulty(Fault(kind=kind, operation="put")) as store:
        before = [bytes(page) for page in pages]
        assert await store.put_from(keys, pages, digests) == [True] * 3
        assert [bytes(page) for page in pages] == before, "the caller's memory was written to"
        out = targets(3)
        assert await store.get_into(keys, out, found) == [True] * 3
        assert found.tolist() == digests_of(pages)
        assert sum(one != page for one, page in zip(out, pages, strict=True)) == 1


@pytest.mark.parametrize("kind", ["storage_corrupt", "storage_torn"])
async def test_a_page_that_is_damaged_as_it_is_read_is_whole_the_next_time(kind: Any) -> None:
    async with faulty(Fault(kind=kind, operation="get", count=1), stored=3) as store:
        keys, pages, out, found = page_keys(3), page_bytes(3), targets(3), np.zeros(3, np.uint64)
        assert await store.get_into(keys, out, found) == [True] * 3
        assert found.tolist() == digests_of(pages)
        assert sum(one != page for one, page in zip(out, pages, strict=True)) == 1
        assert await store.get_into(keys, out) == [True] * 3
        assert out == pages


async def test_a_page_that_is_missing_is_not_damaged() -> None:
    async with faulty(Fault(kind="storage_torn", operation="get")) as store:
        out = [memoryview(bytearray(b"\xff" * 100))]
        assert await store.get_into(page_keys(1), out) == [False]
        assert bytes(out[0]) == b"\xff" * 100


async def test_memory_that_is_not_as_it_should_be_is_refused_as_ever() -> None:
    async with faulty(Fault(kind="storage_corrupt", operation="put")) as store:
        with pytest.raises(InvalidInput):
            await store.put_from(page_keys(2), page_bytes(1))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9999])
def test_damage_is_one_bit_or_a_lost_end(share: float) -> None:
    page = bytearray(b"\xff" * 64)
    damage(StorageFault(kind="storage_corrupt", share=share), memoryview(page))
    assert sum(byte.bit_count() for byte in page) == 64 * 8 - 1
    assert page[int(share * 64)] != 0xFF
    page = bytearray(b"\xff" * 64)
    damage(StorageFault(kind="storage_torn", share=share), memoryview(page))
    assert page == b"\xff" * int(share * 64) + bytes(64 - int(share * 64))
    damage(StorageFault(kind="storage_torn", share=share), memoryview(bytearray()))


# -- a whole cache ------------------------------------------------------------------------------

SET = pytest.mark.parametrize("components", [SETS[0], SETS[-1]], ids="+".join)


@asynccontextmanager
async def faulty_tiers(components: Components, *faults: Fault) -> AsyncGenerator[Tiers]:
    """Open a cache whose engine and store have these faults."""
    loop = asyncio.get_running_loop()
    happens = injector(*faults)
    config = tier_config(
        components, page_size=4, url="memory:", storage={"prefetch_policy": "wait_complete"}
    )
    cache = AuditedCache(
        config,
        make_engine=lambda host, ends: FaultyEngine(
            make_engine(ends, host.backend, host.verify), happens, loop
        ),
        make_store=lambda storage: FaultyStore(open_storage(storage.url), happens),
    )
    async with cache:
        yield Tiers(cache)
        happens.heal()
        await cache.drain()
        assert (await cache.audit()).ok


async def only_in_storage(t: Tiers) -> None:
    """Bring four pages of a key to the storage, and let nothing of them above it."""
    await t.put(t.key(4))
    await t.cache.drain()
    await t.cache.flush("device", 20.0)
    await t.cache.flush("host", 20.0)


@SET
@pytest.mark.parametrize("kind", ["storage_corrupt", "storage_torn"])
@pytest.mark.parametrize("operation", ["get", "put"])
async def test_a_page_damaged_on_its_way_never_reaches_a_caller(
    components: Components, kind: Any, operation: Any
) -> None:
    async with faulty_tiers(components, Fault(kind=kind, operation=operation, count=1)) as t:
        await only_in_storage(t)
        assert await fetched(t, 4) <= 4
        # Every byte of what a load brings is compared.
        assert await t.load(t.key(4)) < 4


@SET
@pytest.mark.parametrize("operation", ["exists", "get", "put"])
async def test_a_store_that_fails_costs_a_miss(components: Components, operation: Any) -> None:
    fault = Fault(kind="storage_fail", operation=operation, count=1)
    async with faulty_tiers(components, fault) as t:
        await only_in_storage(t)
        await fetched(t, 4)
        await t.load(t.key(4))
        stats = (await t.cache.stats()).storage
        assert stats is not None
        assert stats.failures == 1


@SET
async def test_copies_that_fail_cost_a_shorter_hit(components: Components) -> None:
    async with faulty_tiers(components, Fault(kind="copy_fail", direction="load", count=1)) as t:
        await t.put(t.key(4))
        await t.cache.drain()
        await t.demote()
        assert await t.hit(t.key(4)) == (0, 4)
        assert await t.load(t.key(4)) == 0


@SET
async def test_copies_that_are_late_arrive(components: Components) -> None:
    async with faulty_tiers(components, Fault(kind="copy_slow", seconds=0.01)) as t:
        await t.put(t.key(4))
        await t.cache.drain()
        await t.demote()
        assert await t.load(t.key(4)) == 4
