"""A store with troubles that a test plants; a real one below it keeps the pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import anyio

from radixtide.tiers.storage.base import (
    Digests,
    PageKey,
    StorageBackend,
    StorageFailed,
    StoreStats,
)

Chosen = Callable[[PageKey], bool]


def nothing(_: PageKey) -> bool:
    """Choose no page."""
    return False


class TroubledStore(StorageBackend):
    """Fails, waits, loses and lies as it is told to.

    ``put``: how often each page was written; ``order``: names in the order in which they became
    visible; ``reads``: how often each page was read. ``refuses``: pages whose write is refused.
    ``loses``: pages that are named by `exists` and not found by `get_into`. ``lies``: pages whose
    bytes are another's when they are read, though the store says that they are right; ``lied``: how
    often that was. ``fails``: so many calls of an operation fail, after half of a write was done.
    ``gated``: calls that are held.
    """

    def __init__(self, inner: StorageBackend) -> None:
        self.inner = inner
        self.kind = inner.kind
        self.put: Counter[str] = Counter()
        self.order: list[str] = []
        self.reads: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.under_way: Counter[str] = Counter()
        self.refuses: Chosen = nothing
        self.loses: Chosen = nothing
        self.lies: Chosen = nothing
        self.lied = 0
        self.gated = 0
        self.fails: Counter[str] = Counter()
        self._gates: dict[str, anyio.Event] = {}

    # -- what a test does -------------------------------------------------------------------

    def hold(self, *operations: str) -> None:
        """Let calls of `operations` wait, before they do anything."""
        for operation in operations:
            self._gates.setdefault(operation, anyio.Event())

    def release(self, *operations: str) -> None:
        """Let calls of `operations` (none: of all) go on."""
        for operation in operations or tuple(self._gates):
            gate = self._gates.pop(operation, None)
            if gate is not None:
                gate.set()

    def waiting(self, operation: str) -> int:
        """Return how many calls of an operation have begun and are not over."""
        return self.under_way[operation]

    async def _begin(self, operation: str) -> None:
        self.calls[operation] += 1
        gate = self._gates.get(operation)
        if gate is not None:
            self.gated += 1
            try:
                await gate.wait()
            finally:
                self.gated -= 1

    def _fail(self, operation: str) -> None:
        if self.fails[operation] > 0:
            self.fails[operation] -= 1
            raise StorageFailed("planted")

    # -- what a store does ------------------------------------------------------------------

    async def open(self) -> None:
        await self.inner.open()

    async def exists(self, keys: Sequence[PageKey]) -> list[bool]:
        self.under_way["exists"] += 1
        try:
            await self._begin("exists")
            self._fail("exists")
            return await self.inner.exists(keys)
        finally:
            self.under_way["exists"] -= 1

    async def get_into(
        self,
        keys: Sequence[PageKey],
        targets: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        self.under_way["get_into"] += 1
        try:
            await self._begin("get_into")
            found = await self.inner.get_into(keys, targets, digests)
            self._fail("get_into")
            self.reads.update(key.name for key in keys)
            for at, key in enumerate(keys):
                if self.loses(key):
                    found[at] = False
                lie = found[at] and self.lies(key)
                self.lied += lie
                if lie or not found[at]:
                    # Of a page that is not there the target has unspecified content.
                    targets[at].cast("B")[:] = bytes([0xA5]) * targets[at].nbytes
            return found
        finally:
            self.under_way["get_into"] -= 1

    async def put_from(
        self,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        self.under_way["put_from"] += 1
        try:
            await self._begin("put_from")
            if self.fails["put_from"] > 0:
                half = len(keys) // 2
                await self._put(list(range(half)), keys, sources, digests)
            self._fail("put_from")
            wanted = [at for at, key in enumerate(keys) if not self.refuses(key)]
            return await self._put(wanted, keys, sources, digests)
        finally:
            self.under_way["put_from"] -= 1

    async def _put(
        self,
        wanted: list[int],
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        digests: Digests | None,
    ) -> list[bool]:
        stored = [False] * len(keys)
        if wanted:
            chosen = [keys[at] for at in wanted]
            memory = [sources[at] for at in wanted]
            answers = await self.inner.put_from(
                chosen, memory, None if digests is None else digests[wanted]
            )
            for at, answer in zip(wanted, answers, strict=True):
                stored[at] = answer
                if answer:
                    self.put[keys[at].name] += 1
                    self.order.append(keys[at].name)
        return stored

    async def delete(self, keys: Sequence[PageKey]) -> None:
        await self._begin("delete")
        await self.inner.delete(keys)

    async def clear(self) -> None:
        await self._begin("clear")
        await self.inner.clear()

    def stats(self) -> StoreStats:
        return self.inner.stats()

    async def close(self) -> None:
        self.release()
        await self.inner.close()
