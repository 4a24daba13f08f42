"""The guard around a store: deadlines, the circuit, and nothing raised."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from radixtide.configs.schema import StorageConfig
from radixtide.tiers.storage import (
    Guarded,
    PageKey,
    StorageBackend,
    StorageFailed,
    StoreStats,
    guarded_storage,
    open_storage,
)
from radixtide.tiers.storage.base import Digests
from support.servers import RedisServer, Server
from support.stores import page_bytes, page_keys, targets


class Moody(StorageBackend):
    """A store in memory that fails or hangs when it is told to."""

    kind = "moody"

    def __init__(self) -> None:
        self.inner = open_storage("memory:")
        self.error: BaseException | None = None
        self.hangs = False
        self.calls = 0
        self.waiting = asyncio.Event()

    async def mood(self) -> None:
        self.calls += 1
        if self.hangs:
            self.waiting.set()
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error

    async def open(self) -> None:
        await self.mood()
        await self.inner.open()

    async def exists(self, keys: Sequence[PageKey]) -> list[bool]:
        await self.mood()
        return await self.inner.exists(keys)

    async def get_into(
        self,
        keys: Sequence[PageKey],
        targets: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        await self.mood()
        return await self.inner.get_into(keys, targets, digests)

    async def put_from(
        self,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        await self.mood()
        return await self.inner.put_from(keys, sources, digests)

    async def delete(self, keys: Sequence[PageKey]) -> None:
        await self.mood()
        await self.inner.delete(keys)

    async def clear(self) -> None:
        await self.mood()
        await self.inner.clear()

    def stats(self) -> StoreStats:
        return self.inner.stats()

    async def close(self) -> None:
        await self.mood()
        await self.inner.close()


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def guard(store: StorageBackend, clock: Clock, timeout_s: float = 30.0) -> Guarded:
    return Guarded(store, timeout_s=timeout_s, failures=3, reset_s=10.0, clock=clock)


async def every_call(store: StorageBackend) -> None:
    """Expect nothing from any call, and no error."""
    keys = page_keys(2)
    assert await store.exists(keys) == [False] * 2
    assert await store.get_into(keys, targets(2)) == [False] * 2
    assert await store.put_from(keys, page_bytes(2)) == [False] * 2
    await store.delete(keys)
    await store.clear()


async def test_a_store_that_works_is_as_it_is_without_a_guard() -> None:
    keys, pages, out = page_keys(2), page_bytes(2), targets(2)
    async with guard(Moody(), Clock()) as store:
        found = np.zeros(2, np.uint64)
        assert await store.put_from(keys, pages, np.array([5, 6], np.uint64)) == [True] * 2
        assert await store.exists(keys) == [True] * 2
        assert await store.get_into(keys, out, found) == [True] * 2
        assert (out, found.tolist()) == (pages, [5, 6])
        await store.delete(keys[:1])
        assert await store.exists(keys) == [False, True]
        await store.clear()
        assert await store.exists(keys) == [False, False]
        stats = store.stats()
        assert (stats.backend, stats.puts, stats.failures, stats.circuit) == (
            "memory",
            2,
            0,
            "closed",
        )


@pytest.mark.parametrize(
    "error",
    [StorageFailed("gone"), OSError("gone"), KeyError("bug"), ValueError("bug"), TimeoutError()],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_a_store_raises_is_a_miss_and_counted(error: Exception) -> None:
    store = Moody()
    guarded = Guarded(store, timeout_s=9.0, failures=99, reset_s=10.0, clock=Clock())
    await guarded.open()
    store.error = error
    await every_call(guarded)
    assert guarded.stats().failures == 5
    assert guarded.stats().timeouts == 0
    await guarded.close()


async def test_after_failures_in_a_row_the_store_is_left_alone_for_a_while() -> None:
    store, clock = Moody(), Clock()
    guarded = guard(store, clock)
    await guarded.open()
    store.error = StorageFailed("gone")
    for circuit in ("closed", "closed", "open"):
        await guarded.exists(page_keys(1))
        assert guarded.circuit == circuit
    calls = store.calls
    await every_call(guarded)
    assert store.calls == calls
    assert guarded.stats().rejected == 5

    assert [guarded.circuit for clock.now in (109.99, 110.0)] == ["open", "half_open"]
    await guarded.exists(page_keys(1))
    assert (store.calls, guarded.circuit) == (calls + 1, "open")
    clock.now += 9.99
    await guarded.exists(page_keys(1))
    assert store.calls == calls + 1

    clock.now += 0.01
    store.error = None
    assert await guarded.put_from(page_keys(1), page_bytes(1)) == [True]
    assert guarded.circuit == "closed"
    assert await guarded.exists(page_keys(1)) == [True]
    await guarded.close()


async def test_a_success_between_failures_keeps_the_circuit_closed() -> None:
    store = Moody()
    guarded = guard(store, Clock())
    await guarded.open()
    for _ in range(5):
        store.error = StorageFailed("gone")
        await guarded.exists(page_keys(1))
        await guarded.exists(page_keys(1))
        store.error = None
        await guarded.exists(page_keys(1))
    assert (guarded.circuit, guarded.stats().failures) == ("closed", 10)
    await guarded.close()


async def test_a_call_that_takes_too_long_is_a_failure() -> None:
    store = Moody()
    guarded = guard(store, Clock(), timeout_s=0.02)
    await guarded.open()
    store.hangs = True
    for _ in range(3):
        assert await guarded.get_into(page_keys(1), targets(1)) == [False]
    stats = guarded.stats()
    assert (stats.timeouts, stats.failures, stats.circuit) == (3, 0, "open")
    # A store that does not end is not waited for either.
    await guarded.close()


async def test_one_call_at_a_time_asks_whether_the_store_is_back() -> None:
    store, clock = Moody(), Clock()
    guarded = guard(store, clock)
    await guarded.open()
    store.error = StorageFailed("gone")
    for _ in range(3):
        await guarded.exists(page_keys(1))
    store.error, store.hangs = None, True
    clock.now += 10
    probe = asyncio.ensure_future(guarded.exists(page_keys(1)))
    await store.waiting.wait()
    calls = store.calls
    assert await guarded.exists(page_keys(1)) == [False]
    assert store.calls == calls

    # A probe that its caller gives up says nothing about the store: the next call is one.
    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe
    store.hangs = False
    assert await guarded.put_from(page_keys(1), page_bytes(1)) == [True]
    assert guarded.circuit == "closed"
    await guarded.close()


async def test_a_cancelled_call_is_no_failure() -> None:
    store = Moody()
    guarded = guard(store, Clock())
    await guarded.open()
    store.hangs = True
    for _ in range(4):
        store.waiting.clear()
        call = asyncio.ensure_future(guarded.exists(page_keys(1)))
        await store.waiting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    store.hangs = False
    assert await guarded.exists(page_keys(1)) == [False]
    stats = guarded.stats()
    assert (stats.failures, stats.timeouts, stats.circuit) == (0, 0, "closed")
    await guarded.close()


async def test_calls_that_began_before_do_not_keep_the_circuit_open_longer() -> None:
    store, clock = Moody(), Clock()
    guarded = guard(store, clock, timeout_s=0.05)
    await guarded.open()
    store.hangs = True
    late = [asyncio.ensure_future(guarded.exists(page_keys(1))) for _ in range(3)]
    await store.waiting.wait()
    store.hangs, store.error = False, StorageFailed("gone")
    for _ in range(3):
        await guarded.exists(page_keys(1))
    clock.now += 8
    assert await asyncio.gather(*late) == [[False]] * 3
    clock.now += 2
    assert guarded.circuit == "half_open"
    await guarded.close()


async def test_a_store_that_could_not_be_opened_is_opened_by_a_later_call() -> None:
    store, clock = Moody(), Clock()
    guarded = guard(store, clock)
    store.error = StorageFailed("not there yet")
    await guarded.open()
    await every_call(guarded)
    assert guarded.circuit == "open"
    store.error = None
    clock.now += 10
    assert await guarded.put_from(page_keys(1), page_bytes(1)) == [True]
    assert await guarded.exists(page_keys(1)) == [True]
    await guarded.close()


async def test_a_closed_store_has_nothing_and_raises_nothing() -> None:
    store = Moody()
    guarded = guard(store, Clock())
    await guarded.open()
    await guarded.put_from(page_keys(1), page_bytes(1))
    await guarded.close()
    calls = store.calls
    await every_call(guarded)
    assert store.calls == calls
    store.error = OSError("planted")
    await guarded.close()


async def test_bad_and_refused_pages_are_no_failures(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("pages")
    config = StorageConfig(url=f"lmdb:{folder}?sync=0", max_bytes=20_000, breaker_failures=1)
    async with guarded_storage(config, Clock()) as store:
        assert await store.put_from(page_keys(1), page_bytes(1, 100_000)) == [False]
        assert await store.put_from(page_keys(1), page_bytes(1)) == [True]
        assert await store.get_into(page_keys(1), targets(1, 4000)) == [False]
        stats = store.stats()
        assert (stats.refused, stats.bad, stats.failures, stats.circuit) == (1, 1, 0, "closed")


async def test_a_server_that_comes_and_goes(redis_server: Server, tmp_path: object) -> None:
    assert isinstance(redis_server, RedisServer)
    clock = Clock()
    config = StorageConfig(url=f"redis://{redis_server.address}/3", timeout_s=5.0)
    redis_server.kill()
    store = guarded_storage(config, clock)
    await store.open()
    await every_call(store)
    assert store.stats().circuit == "open"
    redis_server.start()
    clock.now += 10
    assert await store.put_from(page_keys(2), page_bytes(2)) == [True] * 2
    out = targets(2)
    assert await store.get_into(page_keys(2), out) == [True] * 2
    assert out == page_bytes(2)
    redis_server.kill()
    await every_call(store)
    assert store.stats().circuit == "open"
    redis_server.start()
    clock.now += 10
    assert await store.get_into(page_keys(2), out) == [True] * 2
    assert store.stats().circuit == "closed"
    await store.close()
