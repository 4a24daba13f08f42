"""A store whose calls block: each is done by a worker thread, and this is all that awaits."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import ClassVar, NamedTuple

from radixtide.tiers.storage.base import (
    Counters,
    Digests,
    PageKey,
    StorageBackend,
    StorageClosed,
    StorageFailed,
    StoreStats,
    copy_bytes,
    digest_list,
    flat,
)
from radixtide.tiers.storage.frame import BadFrame, decode
from radixtide.tiers.storage.threads import Permit, Workers


class Found(NamedTuple):
    """What reading one page came to: its digest, None if it was not there or `bad`."""

    digest: int | None
    bad: bool = False


MISSING = Found(None)
BAD = Found(None, bad=True)


def deliver(payload: memoryview, digest: int, target: memoryview, permit: Permit) -> Found:
    """Copy a page that was verified into the caller's memory, if the caller still waits."""
    with permit.touching():
        if len(target):
            copy_bytes(target, payload)
    return Found(digest)


def unpack(name: str, frame: memoryview, target: memoryview, permit: Permit) -> Found:
    """Verify the frame of the page `name`, which was read whole; only then deliver it."""
    try:
        payload, digest = decode(name, frame, len(target))
    except BadFrame:
        return BAD
    return deliver(payload, digest, target, permit)


class Put(NamedTuple):
    """One page to store."""

    key: PageKey
    source: memoryview
    digest: int | None


class ThreadedBackend(StorageBackend):
    """Base of stores that block. A subclass writes the six underscored methods, for threads.

    `lanes`: threads a lane; ``read`` serves `exists` and `get_into`, ``write`` the others.
    """

    lanes: ClassVar[dict[str, int]] = {"read": 2, "write": 1}
    write_lane: ClassVar[str] = "write"
    read_lane: ClassVar[str] = "read"

    def __init__(self, max_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.counters = Counters()
        self._workers: Workers | None = None
        self._opening: Future[None] | None = None
        self._ready = False

    async def open(self) -> None:
        """Start the threads, and let one of them open the store."""
        if self._ready:
            return
        workers = self._workers
        if workers is None:
            workers = self._workers = Workers(self.kind, self.lanes)
            # Starting a thread waits for it. Once asked for it is done, or `close` would wait for
            # the end of threads that never were.
            loop = asyncio.get_running_loop()
            await asyncio.shield(loop.run_in_executor(None, workers.start))
        if self._opening is None or self._opening.cancelled():
            self._opening = workers.submit(self.write_lane, lambda _: self._open()).future
        opening = self._opening
        # Opening goes on when its caller is cancelled; the next one to open finds it done.
        waiting = asyncio.wrap_future(opening)
        waiting.add_done_callback(_heard)
        try:
            await asyncio.shield(waiting)
        except BaseException:
            if opening.done() and self._opening is opening:
                self._opening = None
            raise
        self._ready = True

    async def exists(self, keys: Sequence[PageKey]) -> list[bool]:
        """Ask for all in one piece of work."""
        workers = self._open_workers()
        if not keys:
            return []
        return await workers.run(self.read_lane, lambda permit: self._exists(keys, permit))

    async def get_into(
        self,
        keys: Sequence[PageKey],
        targets: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        """Read all in one piece of work; what was bad is deleted after it."""
        workers = self._open_workers()
        views = flat(targets, len(keys), writable=True)
        if not keys:
            return []
        found = await workers.run(self.read_lane, lambda permit: self._read(keys, views, permit))
        bad = note_found(self.counters, keys, views, found, digests)
        if bad:
            with suppress(StorageFailed):
                await workers.run(self.write_lane, lambda _: self._delete(bad))
        return [one.digest is not None for one in found]

    async def put_from(
        self,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        """Store all in one piece of work."""
        workers = self._open_workers()
        views = flat(sources, len(keys), writable=False)
        puts = list(map(Put, keys, views, digest_list(digests, len(keys))))
        if not puts:
            return []
        stored = await self._put(workers, puts)
        note_stored(self.counters, puts, stored)
        return stored

    async def delete(self, keys: Sequence[PageKey]) -> None:
        """Remove pages, after the writes that came before."""
        workers = self._open_workers()
        if keys:
            await workers.run(self.write_lane, lambda _: self._delete(keys))
            self.counters.deleted += len(keys)

    async def clear(self) -> None:
        """Remove all pages, after the writes that came before."""
        await self._open_workers().run(self.write_lane, lambda _: self._clear())

    def stats(self) -> StoreStats:
        """Return what was done and is held."""
        values, size = self._held()
        counts = {name: getattr(self.counters, name) for name in self.counters.__struct_fields__}
        return StoreStats(
            backend=self.kind, values=values, bytes=size, max_bytes=self.max_bytes, **counts
        )

    async def close(self) -> None:
        """End the threads after what they are at, then release what the store took."""
        self._ready = False
        if self._workers is not None:
            workers, self._opening = self._workers, None
            await workers.close(self._shut)
            if self._workers is workers:
                self._workers = None

    async def _put(self, workers: Workers, puts: list[Put]) -> list[bool]:
        return await workers.run(self.write_lane, lambda permit: self._write(puts, permit))

    def _open_workers(self) -> Workers:
        if not self._ready or self._workers is None:
            raise StorageClosed(f"{self.kind}: the store is not open")
        return self._workers

    @abstractmethod
    def _open(self) -> None:
        """Connect, or open files. In a thread, as all that follow."""

    @abstractmethod
    def _exists(self, keys: Sequence[PageKey], permit: Permit) -> list[bool]: ...

    @abstractmethod
    def _read(
        self, keys: Sequence[PageKey], targets: list[memoryview], permit: Permit
    ) -> list[Found]:
        """Read pages; touch targets only by the permit, and only with what was verified."""

    @abstractmethod
    def _write(self, puts: list[Put], permit: Permit) -> list[bool]:
        """Store pages; touch sources only by the permit."""

    @abstractmethod
    def _delete(self, keys: Sequence[PageKey]) -> None: ...

    @abstractmethod
    def _clear(self) -> None: ...

    def _held(self) -> tuple[int | None, int | None]:
        """Return how many pages and bytes are held, None for what is not known. No I/O."""
        return None, None

    def _shut(self) -> None:
        """Release what `_open` took; called when no thread does anything else."""


def note_found(
    counters: Counters,
    keys: Sequence[PageKey],
    views: Sequence[memoryview],
    found: Sequence[Found],
    digests: Digests | None,
) -> list[PageKey]:
    """Count what a read came to, hand out its digests, and return the keys that are bad."""
    bad = []
    for place, one in enumerate(found):
        if one.digest is not None:
            counters.hits += 1
            counters.get_bytes += len(views[place])
            if digests is not None:
                digests[place] = one.digest
        elif one.bad:
            counters.bad += 1
            bad.append(keys[place])
        else:
            counters.misses += 1
    return bad


def note_stored(counters: Counters, puts: Sequence[Put], stored: Sequence[bool]) -> None:
    """Count what a write came to."""
    for put, done in zip(puts, stored, strict=True):
        if done:
            counters.puts += 1
            counters.put_bytes += len(put.source)
        else:
            counters.refused += 1


def _heard(opening: asyncio.Future[None]) -> None:
    """Look at an error, which nobody may be left to hear: who waited may be cancelled."""
    if not opening.cancelled():
        opening.exception()
