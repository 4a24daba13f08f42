"""A store that fails, is slow and damages pages where a plan says so: around one that stores."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import numpy as np
import xxhash

from radixtide.simulation.decisions import Faults, StorageFault
from radixtide.simulation.plan import Operation
from radixtide.tiers.storage.base import (
    Digests,
    PageKey,
    StorageBackend,
    StorageFailed,
    StoreStats,
    flat,
)

T = TypeVar("T")


class FaultyStore(StorageBackend):
    """`inner`, whose calls fail, take longer and damage pages as `faults` decides.

    A call that fails raises StorageFailed, and has been carried out or not. A page is damaged on
    its way, behind what the store checks: its digest is still the right one, and whoever uses the
    page has to compare. A torn page is whole up to a byte, and zeros from there on.

    Opening, closing and `stats` are the store's own.
    """

    def __init__(self, inner: StorageBackend, faults: Faults) -> None:
        self.inner = inner
        self.kind = inner.kind
        self._faults = faults

    def check(self) -> None:  # noqa: D102  # as in StorageBackend
        self.inner.check()

    async def open(self) -> None:  # noqa: D102  # as in StorageBackend
        await self.inner.open()

    async def exists(self, keys: Sequence[PageKey]) -> list[bool]:  # noqa: D102  # in the base
        fault = await self._begun("exists", len(keys))
        return await _carried_out(fault, lambda: self.inner.exists(keys))

    async def get_into(  # noqa: D102  # in the base
        self,
        keys: Sequence[PageKey],
        targets: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        fault = await self._begun("get", len(keys))
        found = await _carried_out(fault, lambda: self.inner.get_into(keys, targets, digests))
        if fault is not None and found[fault.page]:
            damage(fault, flat([targets[fault.page]], 1, writable=True)[0])
        return found

    async def put_from(  # noqa: D102  # in the base
        self,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        fault = await self._begun("put", len(keys))
        if fault is not None and fault.kind in {"storage_corrupt", "storage_torn"}:
            views = flat(sources, len(keys), writable=False)
            if digests is None:
                # Those of what was given: damage that had a digest of its own would be no damage.
                digests = np.array([xxhash.xxh3_64_intdigest(one) for one in views], np.uint64)
            page = bytearray(views[fault.page])
            damage(fault, memoryview(page))
            sources = [*views[: fault.page], memoryview(page), *views[fault.page + 1 :]]
        return await _carried_out(fault, lambda: self.inner.put_from(keys, sources, digests))

    async def delete(self, keys: Sequence[PageKey]) -> None:  # noqa: D102  # in the base
        fault = await self._begun("delete", len(keys))
        await _carried_out(fault, lambda: self.inner.delete(keys))

    async def clear(self) -> None:  # noqa: D102  # as in StorageBackend
        fault = await self._begun("clear", 0)
        await _carried_out(fault, self.inner.clear)

    def stats(self) -> StoreStats:  # noqa: D102  # as in StorageBackend
        return self.inner.stats()

    async def close(self) -> None:  # noqa: D102  # as in StorageBackend
        await self.inner.close()

    async def _begun(self, operation: Operation, count: int) -> StorageFault | None:
        """Return what happens to a call, when it is its time."""
        fault = self._faults.storage(operation, count)
        if fault is not None and fault.kind == "storage_slow":
            await asyncio.sleep(fault.seconds)
        return fault


async def _carried_out(fault: StorageFault | None, call: Callable[[], Awaitable[T]]) -> T:
    """Make the call, or let it fail: before it was carried out, or after."""
    fails = fault is not None and fault.kind == "storage_fail"
    if fault is not None and fails and not fault.done:
        raise StorageFailed("failed by a fault plan, before it was carried out")
    answer = await call()
    if fails:
        raise StorageFailed("failed by a fault plan, after it was carried out")
    return answer


def damage(fault: StorageFault, page: memoryview) -> None:
    """Alter one bit of a page (corrupt), or lose the end of it (torn); others pass."""
    if not len(page):
        return
    at = int(fault.share * len(page))
    if fault.kind == "storage_corrupt":
        page[at] ^= 1 << (at % 8)
    elif fault.kind == "storage_torn":
        page[at:] = bytes(len(page) - at)


__all__ = ("FaultyStore", "damage")
