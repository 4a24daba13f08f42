"""Pages as objects: S3 and what speaks its language, a local directory, or memory.

The client is asynchronous and does its I/O in threads of its own; packing, verifying and copying
are done by two worker threads, so that large pages do not hold the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import xxhash

from radixtide.tiers.storage.base import (
    Counters,
    Digests,
    PageKey,
    StorageBackend,
    StorageClosed,
    StorageFailed,
    StoreStats,
    digest_list,
    extra,
    flat,
)
from radixtide.tiers.storage.frame import encode
from radixtide.tiers.storage.threaded import (
    MISSING,
    Found,
    Put,
    note_found,
    note_stored,
    unpack,
)
from radixtide.tiers.storage.threads import Permit, Workers

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")

FOLDER: Final = "radixtide-pages-1"
"""What the names of our objects begin with, below the prefix of the store."""

CONCURRENT: Final = 16
"""Requests of one store that are under way at once."""

SHARDS: Final = 4096
LISTED: Final = 1000


class ObjectPages(StorageBackend):
    """Pages in the object store that `make` returns; called again by each `open`.

    Each page is an object, there whole or not; the pages of one call appear one by one. Size limits
    and expiry are the store's own.
    """

    def __init__(self, kind: str, make: Callable[[], ObjectStore]) -> None:
        with extra("obstore"):
            import obstore
            import obstore.exceptions
        self.kind = kind
        self.counters = Counters()
        self._obstore = obstore
        # A path that no object can have has no object.
        self._absent = (FileNotFoundError, obstore.exceptions.NotFoundError)
        self._make = make
        self._store: ObjectStore | None = None
        self._workers: Workers | None = None
        self._slots = asyncio.Semaphore(CONCURRENT)

    async def open(self) -> None:
        """Make the client, and ask whether the store answers."""
        if self._store is not None:
            return
        if self._workers is None:
            self._workers = Workers(self.kind, {"copy": 2})
            await asyncio.to_thread(self._workers.start)
        store = await self._guard(asyncio.to_thread(self._make))
        # Whether the store is there and lets us in; the object is not.
        await self._guard(self._head(store, f"{FOLDER}/probe"))
        self._store = store

    async def exists(self, keys: Sequence[PageKey]) -> list[bool]:
        """Ask for the head of each object."""
        store, _ = self._opened()
        return await self._each(partial(self._head, store, _path(key)) for key in keys)

    async def get_into(
        self,
        keys: Sequence[PageKey],
        targets: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        """Read each page whole, verify it, then copy it into its target."""
        store, workers = self._opened()
        views = flat(targets, len(keys), writable=True)
        found = await self._each(
            partial(self._get, store, workers, key, view)
            for key, view in zip(keys, views, strict=True)
        )
        bad = note_found(self.counters, keys, views, found, digests)
        try:
            await self._remove([_path(key) for key in bad])
        except StorageFailed:
            # It stays bad, and will be found again.
            pass
        return [one.digest is not None for one in found]

    async def put_from(
        self,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        """Store each page as an object; they appear one by one."""
        store, workers = self._opened()
        views = flat(sources, len(keys), writable=False)
        puts = list(map(Put, keys, views, digest_list(digests, len(keys))))
        stored = await self._each(partial(self._put, store, workers, put) for put in puts)
        note_stored(self.counters, puts, stored)
        return stored

    async def delete(self, keys: Sequence[PageKey]) -> None:
        """Remove pages, in one request where the store can."""
        self._opened()
        await self._remove([_path(key) for key in keys])
        self.counters.deleted += len(keys)

    async def clear(self) -> None:
        """Remove every object below our folder."""
        store, _ = self._opened()
        while True:
            # Listed anew each time: what is being removed must not shift what is still to come.
            stream = self._obstore.list(store, f"{FOLDER}/", chunk_size=LISTED)
            metas = await self._guard(_next(stream))
            if not metas:
                return
            await self._remove([meta["path"] for meta in metas])

    def stats(self) -> StoreStats:
        """Return what was done; what is held only the store knows."""
        counts = {name: getattr(self.counters, name) for name in self.counters.__struct_fields__}
        return StoreStats(backend=self.kind, **counts)

    async def close(self) -> None:
        """Let the client go."""
        self._store = None
        if self._workers is not None:
            workers = self._workers
            await workers.close(lambda: None)
            if self._workers is workers:
                self._workers = None

    def _opened(self) -> tuple[ObjectStore, Workers]:
        if self._store is None or self._workers is None:
            raise StorageClosed(f"{self.kind}: the store is not open")
        return self._store, self._workers

    async def _get(
        self, store: ObjectStore, workers: Workers, key: PageKey, target: memoryview
    ) -> Found:
        try:
            answer = await self._obstore.get_async(store, _path(key))
            data = await answer.bytes_async()
        except self._absent:
            return MISSING

        frame = memoryview(data)
        return await workers.run("copy", partial(unpack, key.name, frame, target))

    async def _put(self, store: ObjectStore, workers: Workers, put: Put) -> bool:
        def pack(permit: Permit) -> bytearray:
            with permit.touching():
                return encode(put.key, put.source, put.digest)

        frame = await workers.run("copy", pack)
        await self._obstore.put_async(store, _path(put.key), frame, use_multipart=False)
        return True

    async def _head(self, store: ObjectStore, path: str) -> bool:
        try:
            await self._obstore.head_async(store, path)
        except self._absent:
            return False
        return True

    async def _remove(self, paths: Sequence[str]) -> None:
        if not paths:
            return
        store, _ = self._opened()
        try:
            await self._guard(self._obstore.delete_async(store, paths))
        except FileNotFoundError:
            # Some stores stop at the first that is not there.
            await self._each(partial(self._remove_one, store, path) for path in paths)

    async def _remove_one(self, store: ObjectStore, path: str) -> bool:
        try:
            await self._obstore.delete_async(store, path)
        except self._absent:
            return False
        return True

    async def _each(self, calls: Iterable[Callable[[], Awaitable[T]]]) -> list[T]:
        """Do calls side by side, a bounded number at once; StorageFailed ends them all."""

        async def one(call: Callable[[], Awaitable[T]]) -> T:
            async with self._slots:
                return await self._guard(call())

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(call)) for call in calls]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from errors
        return [task.result() for task in tasks]

    async def _guard(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except self._absent as error:
            raise FileNotFoundError(str(error)) from error
        except (self._obstore.exceptions.BaseError, OSError, ValueError) as error:
            raise StorageFailed(f"{self.kind}: {str(error).splitlines()[0]}") from error


def _path(key: PageKey) -> str:
    shard = xxhash.xxh3_64_intdigest(key.chain.encode()) % SHARDS
    return f"{FOLDER}/{shard:03x}/{key.name}"


async def _next(stream: object) -> Sequence[dict[str, str]]:
    async for metas in stream:  # type: ignore[attr-defined]  # its two overloads say so
        return metas  # type: ignore[no-any-return]  # as above
    return ()
