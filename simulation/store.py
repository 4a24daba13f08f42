"""A store of pages in virtual time, and the disk below it, which outlives the caches.

Calls take drawn times and touch the caller's memory and the disk page by page, with other work of
the loop in between, as threads of a real store would. Pages lie on the disk as real stores keep
them (:mod:`radixtide.tiers.storage.frame`), so what is torn or altered there is found by the same
checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final

from radixtide.simulation.decisions import Faults, StorageFault
from radixtide.simulation.plan import Operation
from radixtide.tiers.storage.base import (
    Counters,
    Digests,
    PageKey,
    StorageBackend,
    StorageClosed,
    StorageFailed,
    StoreStats,
    digest_list,
    flat,
)
from radixtide.tiers.storage.chains import Chains
from radixtide.tiers.storage.frame import BadFrame, decode, encode

CALL_S: Final = 1e-3
"""A call takes up to that before its first page, and as long after its last."""
PAGE_S: Final = 2e-4
"""Between two pages up to that may pass."""
TOGETHER: Final = 0.5
"""Share of the writes whose pages appear all at once."""
PAUSES: Final = 0.25
"""Share of the pages before which time passes."""
SLOW_ONCE_IN: Final = 32
SLOW_TIMES: Final = 50
"""One call in so many takes so many times as long."""
FINISHED: Final = 0.5
"""Share of the pages of cancelled writes that are written all the same."""

OnStored = Callable[[Operation, Sequence[PageKey], Any, BaseException | None], None]
"""Told of each call that is over: what, which pages, its answer or its error."""


class Disk:
    """What was stored, and stays when caches are closed or killed.

    One store may be open on it after another, or several at a time. ``frames``: by name of page;
    tests may read and alter them.

    Args:
        max_bytes: of all frames; the pages least recently used go for others, children before
            their parents. 0: no limit.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self.max_bytes = max_bytes
        self.frames: dict[str, bytes] = {}
        self._books = Chains()
        self._versions: dict[str, str] = {}

    def whose(
        self, operation: str, keys: Sequence[PageKey], answers: Sequence[bool] | None, version: str
    ) -> list[str]:
        """Note which weights what was stored is of; return which pages are read by others."""
        done = [key.name for key, there in zip(keys, answers or (), strict=False) if there]
        if operation == "put":
            self._versions.update(dict.fromkeys(done, version))
        if operation != "get":
            return []
        return [
            f"a page that was stored by weights {self._versions[name]!r} is read for {version!r}"
            for name in done
            if self._versions.get(name, version) != version
        ]

    @property
    def size(self) -> int:
        """Bytes of all frames."""
        return sum(map(len, self.frames.values()))

    def use(self, key: PageKey) -> None:
        """Note that a page was read."""
        self._books.touch(key.chain)

    @property
    def next_use(self) -> int:
        """The number of the next use: what is used from now on has it or a greater one."""
        return self._books.next_number

    def write(self, key: PageKey, frame: bytes, since: int) -> int | None:
        """Put a page there; return how many went for it, None if no room could be made.

        `since`: pages used since that number stay.
        """
        went = 0
        if self.max_bytes:
            if len(frame) > self.max_bytes:
                self.remove(key)
                return None
            # Counted in before it is there, so that its parent stays.
            self._books.add(key.chain, key.parent, key.pool, len(frame))
            while self._books.size > self.max_bytes:
                oldest = self._books.oldest(since)
                if oldest is None:
                    self.remove(key)
                    return None
                chain, pools = oldest
                for pool in pools:
                    self.remove(PageKey(chain, None, pool))
                    went += 1
        self.frames[key.name] = frame
        return went

    def remove(self, key: PageKey) -> None:
        """Take a page away, if it is there."""
        self._books.remove(key.chain, key.pool)
        self.frames.pop(key.name, None)

    def clear(self) -> None:
        """Take all pages away."""
        self.frames.clear()
        self._books = Chains()


class SimulatedStore(StorageBackend):
    """A store on a :class:`Disk`, in the turns of a loop.

    Args:
        loop: whose time passes; a real one will do, where nothing has to be deterministic.
        disk: where the pages are.
        dice: the stream "storage" of the run.
        faults: asked once for each call; None: nothing goes wrong.
        note: told of each call that is over.
    """

    kind = "simulated"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        disk: Disk,
        dice: Random,
        faults: Faults | None = None,
        note: OnStored | None = None,
    ) -> None:
        self.disk = disk
        self.dice = dice
        self.faults = faults
        self.crashed = False
        self.counters = Counters()
        self._loop = loop
        self._note = note
        self._ready = False
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        # Pages that are sealed and not on the disk yet, in the order in which they are written.
        self._sealed: dict[int, _Sealed] = {}
        self._seals = 0
        # Those of them whose call was cancelled.
        self._left: dict[int, None] = {}

    def crash(self) -> None:
        """End as a process that is killed: nothing more is done, and nobody is waited for.

        Of each page that was just being written the disk has all, nothing, or the beginning.
        """
        self.crashed = True
        self._ready = False
        for one in self._sealed.values():
            fate = self.dice.randrange(3)
            if fate:
                length = len(one.frame) if fate == 1 else self.dice.randrange(len(one.frame))
                self.disk.write(one.key, one.frame[:length], one.since)
        self._sealed.clear()
        self._left.clear()

    async def open(self) -> None:  # noqa: D102  # as in StorageBackend
        if self.crashed:
            raise StorageClosed("simulated: the process of this store was killed")
        if not self._ready:
            await self._pass(CALL_S)
            self._ready = not self.crashed

    async def close(self) -> None:  # noqa: D102  # as in StorageBackend
        self._ready = False
        await self._idle.wait()
        self._land_left()

    async def exists(self, keys: Sequence[PageKey]) -> list[bool]:  # noqa: D102  # as the base
        with self._call("exists", keys) as call:
            if not keys:
                return []
            await call.begin()
            there = call.answer = [key.name in self.disk.frames for key in keys]
            await call.end()
            return there

    async def get_into(  # noqa: D102  # as in StorageBackend
        self,
        keys: Sequence[PageKey],
        targets: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        with self._call("get", keys) as call:
            views = flat(targets, len(keys), writable=True)
            found: list[bool] = []
            await call.begin()
            bad = []
            for at, (key, view) in enumerate(zip(keys, views, strict=True)):
                await self._between_pages()
                call.check()
                if call.fails_at(at):
                    break
                damage = call.damage(at)
                if damage is not None and key.name in self.disk.frames:
                    self.disk.frames[key.name] = _damaged(self.disk.frames[key.name], damage)
                digest = self._read(key, view)
                found.append(digest is not None and digest >= 0)
                if digest is not None and digest < 0:
                    bad.append(key)
                elif digest is not None and digests is not None:
                    digests[at] = digest
            await call.end()
            for key in bad:
                self.disk.remove(key)
            call.answer = found
            return found

    async def put_from(  # noqa: D102  # as in StorageBackend
        self,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        with self._call("put", keys) as call:
            views = flat(sources, len(keys), writable=False)
            wanted = digest_list(digests, len(keys))
            stored: list[bool] = []
            since = self.disk.next_use
            await call.begin()
            together = self.dice.random() < TOGETHER
            numbers: list[int] = []
            try:
                for at, (key, view) in enumerate(zip(keys, views, strict=True)):
                    if call.fails_at(at):
                        break
                    frame = bytes(encode(key, view, wanted[at]))
                    damage = call.damage(at)
                    if damage is not None:
                        frame = _damaged(frame, damage)
                    self._seals += 1
                    self._sealed[self._seals] = _Sealed(key, frame, since)
                    numbers.append(self._seals)
                    if not together:
                        await self._between_pages(surely=not at)
                        call.check()
                        stored.append(self._land(numbers.pop(), stored))
                if together:
                    await self._between_pages(surely=True)
                    call.check()
                    while numbers:
                        stored.append(self._land(numbers.pop(0), stored))
            finally:
                # The frames are the store's own: a thread would go on with them.
                for number in numbers:
                    self._leave(number)
            await call.end()
            for view, done in zip(views, stored, strict=True):
                self.counters.puts += done
                self.counters.put_bytes += len(view) * done
                self.counters.refused += not done
            call.answer = stored
            return stored

    async def delete(self, keys: Sequence[PageKey]) -> None:  # noqa: D102  # as in StorageBackend
        with self._call("delete", keys) as call:
            await call.begin()
            self._land_left()
            for key in keys:
                self.disk.remove(key)
            await call.end()
            self.counters.deleted += len(keys)

    async def clear(self) -> None:  # noqa: D102  # as in StorageBackend
        with self._call("clear", ()) as call:
            await call.begin()
            self._land_left()
            self.disk.clear()
            await call.end()

    def stats(self) -> StoreStats:  # noqa: D102  # as in StorageBackend
        counts = {name: getattr(self.counters, name) for name in self.counters.__struct_fields__}
        return StoreStats(
            backend=self.kind,
            values=len(self.disk.frames),
            bytes=self.disk.size,
            max_bytes=self.disk.max_bytes,
            **counts,
        )

    # -- the parts of a call ----------------------------------------------------------

    @contextmanager
    def _call(self, operation: Operation, keys: Sequence[PageKey]) -> Iterator[_Call]:
        if not self._ready:
            raise StorageClosed("simulated: the store is not open")
        call = _Call(self, operation, keys)
        self._calls += 1
        self._idle.clear()
        problem: BaseException | None = None
        try:
            yield call
        except BaseException as error:
            problem = error
            raise
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
            if self._note is not None and not self.crashed:
                self._note(operation, keys, call.answer, problem)

    async def _pass(self, most_s: float) -> None:
        await asyncio.sleep(most_s * self.dice.random())

    async def _between_pages(self, surely: bool = False) -> None:
        # Not between any two: turns of the loop are what a simulation takes its time with.
        if surely or self.dice.random() < PAUSES:
            await self._pass(PAGE_S)

    def _read(self, key: PageKey, view: memoryview) -> int | None:
        """Bring a page into `view`; return its digest, None if it is missing, -1 if it is bad."""
        frame = self.disk.frames.get(key.name)
        if frame is None:
            self.counters.misses += 1
            return None
        try:
            payload, digest = decode(key.name, memoryview(frame), len(view))
        except BadFrame:
            self.counters.bad += 1
            return -1
        view[:] = payload
        self.disk.use(key)
        self.counters.hits += 1
        self.counters.get_bytes += len(view)
        return digest

    def _land(self, number: int, before: Sequence[bool] = ()) -> bool:
        """Write a sealed page to the disk; return whether there was room.

        `before`: whether there was room for those of its call. What follows a page that found none
        would go on from nothing.
        """
        self._left.pop(number, None)
        one = self._sealed.pop(number, None)
        if one is None or not all(before):
            return False
        went = self.disk.write(one.key, one.frame, one.since)
        self.counters.evicted += went or 0
        return went is not None

    def _land_left(self) -> None:
        """Write what was left by cancelled calls: it came before."""
        for number in list(self._left):
            self._land(number)

    def _leave(self, number: int) -> None:
        """Write a sealed page later, or never: nobody waits for it any more."""
        if self.crashed:
            return
        if self.dice.random() < FINISHED:
            self._left[number] = None
            self._loop.call_later(CALL_S * self.dice.random(), self._land, number)
        else:
            del self._sealed[number]


class _Sealed:
    """A page on its way to the disk."""

    __slots__ = ("frame", "key", "since")

    def __init__(self, key: PageKey, frame: bytes, since: int) -> None:
        self.key = key
        self.frame = frame
        self.since = since


class _Call:
    """A call of a store, with the fault that happens to it."""

    def __init__(
        self, store: SimulatedStore, operation: Operation, keys: Sequence[PageKey]
    ) -> None:
        self._store = store
        self._operation = operation
        self._count = len(keys)
        self.fault: StorageFault | None = None
        self.answer: Any = None

    @property
    def _fails(self) -> bool:
        return self.fault is not None and self.fault.kind == "storage_fail"

    async def begin(self) -> None:
        """Take the time that passes before the first page."""
        store = self._store
        if store.faults is not None:
            self.fault = store.faults.storage(self._operation, self._count)
        late = 0.0 if self.fault is None else self.fault.seconds
        times = 1 if store.dice.randrange(SLOW_ONCE_IN) else SLOW_TIMES
        await asyncio.sleep(late + times * CALL_S * store.dice.random())
        self.check()
        if self._operation not in {"get", "put"} and self.fails_at(self._count):
            raise StorageFailed("simulated: the call failed, as it was to")

    async def end(self) -> None:
        """Take the time that passes before the answer arrives."""
        await asyncio.sleep(CALL_S * self._store.dice.random())
        self.check()
        if self._fails:
            raise StorageFailed("simulated: the call failed, as it was to")

    def check(self) -> None:
        """Raise if the store was killed meanwhile."""
        if self._store.crashed:
            raise StorageClosed("simulated: the process of this store was killed")

    def fails_at(self, at: int) -> bool:
        """Return whether nothing is done of the page at that place and those after it."""
        fault = self.fault
        if fault is None or fault.kind != "storage_fail" or fault.done:
            return False
        return at >= int(fault.share * self._count)

    def damage(self, at: int) -> StorageFault | None:
        """Return what is to become of the page at that place on the disk; None: nothing."""
        fault = self.fault
        damages = fault is not None and fault.kind in {"storage_corrupt", "storage_torn"}
        return fault if damages and fault is not None and fault.page == at else None


def _damaged(frame: bytes, fault: StorageFault) -> bytes:
    at = int(fault.share * len(frame))
    if fault.kind == "storage_torn":
        return frame[:at]
    return frame[:at] + bytes([frame[at] ^ 0x10]) + frame[at + 1 :]
