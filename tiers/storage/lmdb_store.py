"""The embedded store: one LMDB directory, one writer thread, readers that copy out of its map.

A read is one copy out of memory that the kernel maps; a write is one transaction for all pages of
a call, and several calls that wait share one (each still whole). What a crash of the process or of
the machine interrupts was never there. A directory may serve several processes of one machine; it
must not lie on a network file system.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from radixtide.configs.errors import ConfigError
from radixtide.tiers.storage.base import PageKey, StorageFailed, extra
from radixtide.tiers.storage.frame import BadFrame, read_head, seal, verify
from radixtide.tiers.storage.lmdb_books import (
    FORMAT,
    Books,
    Tables,
    Totals,
    footprint,
    read_totals,
)
from radixtide.tiers.storage.threaded import BAD, MISSING, Found, Put, ThreadedBackend, deliver
from radixtide.tiers.storage.threads import Job, Permit, Withdrawn, Workers

if TYPE_CHECKING:
    import lmdb

UNLIMITED_MAP: Final = 2**40
"""Address space for a store without a limit; the file only takes what is written."""

SMALLEST_MAP: Final = 2**28
GROUP_CALLS: Final = 32
GROUP_BYTES: Final = 2**26
TOUCHED_MAX: Final = 8192
READERS_MAX: Final = 512
ROOM_STEP: Final = 2**26
"""Bytes that one transaction evicts at most while a store is brought below its limit."""

_OPEN_HERE: Final[set[str]] = set()
"""Directories that this process has open: LMDB can not open one twice."""
_NO_PAGES: Final = "MDB_MAP_FULL"
_NO_SPACE: Final = "No space left"
"""How the library's errors name a map without room, and a disk."""


class _Call(NamedTuple):
    """One `put_from`, and its leave to read the sources."""

    puts: list[Put]
    permit: Permit


class _NoRoom(Exception):
    """All that may be evicted is gone, and the pages still do not fit."""


class LmdbStore(ThreadedBackend):
    """Pages in the directory `path`, which is made if need be.

    `max_bytes`: size from which the pages least recently used go, children before parents; 0: none.
    The file takes up to half as much again and 256 MiB for what is free between pages; processes
    that share a directory give the same limit. `sync`: wait for the disk at each commit, so that
    the machine may crash too; without it only the process may.
    """

    kind = "lmdb"
    lanes: ClassVar[dict[str, int]] = {"read": 2, "write": 1}

    def __init__(self, path: Path, *, max_bytes: int = 0, sync: bool = True) -> None:
        with extra("lmdb"):
            import lmdb
        super().__init__(max_bytes)
        self.path = path
        self.sync = sync
        self._lmdb = lmdb
        self._environment: lmdb.Environment | None = None
        self._tables = Tables(*[None] * 5)
        self._totals = Totals(0, 0, 0)
        self._touched: deque[bytes] = deque(maxlen=TOUCHED_MAX)

    @property
    def _place(self) -> str:
        return str(self.path.resolve())

    def check(self) -> None:
        """Raise ConfigError when this process has the directory open already."""
        if self._environment is None and self._place in _OPEN_HERE:
            raise ConfigError(
                f"storage.url: lmdb:{self.path} is open in this process already; several processes "
                "can share a directory, the caches of one process need one each"
            )

    @property
    def _env(self) -> lmdb.Environment:
        assert self._environment is not None
        return self._environment

    def _open(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFailed(f"lmdb: {error}") from error
        env = self._map()
        try:
            # Slots of readers that were killed would keep old pages from being used again.
            env.reader_check()
            names = [name.encode() for name in Tables._fields]
            self._tables = Tables(*(env.open_db(name) for name in names))
            with env.begin(write=True) as txn:
                if txn.get(b"format", db=self._tables.meta) != FORMAT:
                    for table in self._tables:
                        txn.drop(table, delete=False)
                    txn.put(b"format", FORMAT, db=self._tables.meta)
                self._totals = read_totals(txn, self._tables)
        except self._lmdb.Error as error:
            env.close()
            raise StorageFailed(f"lmdb: {self.path}: {error}") from error
        self._environment = env
        _OPEN_HERE.add(self._place)
        while self.max_bytes and self._totals.size > self.max_bytes:
            if not self._make_room(min(self._totals.size - self.max_bytes, ROOM_STEP)):
                break

    def _map(self) -> lmdb.Environment:
        size = UNLIMITED_MAP
        if self.max_bytes:
            size = self.max_bytes + self.max_bytes // 2 + SMALLEST_MAP
        while True:
            try:
                return self._lmdb.open(
                    str(self.path),
                    map_size=size,
                    max_dbs=len(Tables._fields),
                    max_readers=READERS_MAX,
                    sync=self.sync,
                    # The last transaction may be lost with the machine; the ones before stay whole.
                    metasync=False,
                    meminit=False,
                )
            except (self._lmdb.Error, OSError) as error:
                # Without a limit the map takes what address space there is.
                if self.max_bytes or size <= SMALLEST_MAP or "allocate" not in str(error):
                    raise StorageFailed(f"lmdb: {self.path}: {error}") from error
                size //= 4

    def _exists(self, keys: Sequence[PageKey], permit: Permit) -> list[bool]:
        with self._reading() as txn:
            return [txn.get(_bytes(key), db=self._tables.heads) is not None for key in keys]

    def _read(
        self, keys: Sequence[PageKey], targets: list[memoryview], permit: Permit
    ) -> list[Found]:
        with self._reading() as txn:
            found = [
                self._read_one(txn, key, target, permit)
                for key, target in zip(keys, targets, strict=True)
            ]
        if self.max_bytes:
            self._touched.extend(
                key.chain.encode()
                for key, one in zip(keys, found, strict=True)
                if one.digest is not None
            )
        return found

    def _read_one(self, txn: Any, key: PageKey, target: memoryview, permit: Permit) -> Found:
        head = txn.get(_bytes(key), db=self._tables.heads)
        if head is None:
            permit.check()
            return MISSING
        payload = txn.get(_bytes(key), db=self._tables.pages)
        if payload is None:
            return BAD
        try:
            # This brings the page into memory, so that the copy below does not wait for the disk.
            digest = verify(key.name, head, payload, len(target))
        except BadFrame:
            return BAD
        return deliver(payload, digest, target, permit)

    def _reading(self) -> Any:
        try:
            return self._env.begin(buffers=True)
        except self._lmdb.Error as error:
            raise StorageFailed(f"lmdb: {self.path}: {error}") from error

    async def _put(self, workers: Workers, puts: list[Put]) -> list[bool]:
        return await workers.run("write", lambda permit: self._write(puts, permit), tag=puts)

    def _write(self, puts: list[Put], permit: Permit) -> list[bool]:
        """Commit this call and those that wait behind it."""
        calls, jobs, after = [_Call(puts, permit)], [], None
        size = sum(len(put.source) for put in puts)
        while len(calls) < GROUP_CALLS and size < GROUP_BYTES:
            job = self._next_job()
            if job is None:
                break
            if not isinstance(job.tag, list):
                after = job
                break
            if job.future.set_running_or_notify_cancel():
                jobs.append(job)
                calls.append(_Call(job.tag, job.permit))
                size += sum(len(put.source) for put in job.tag)
        try:
            results = self._commit(calls)
        except BaseException as error:
            for job in jobs:
                job.future.set_exception(error)
            raise
        for job, result in zip(jobs, results[1:], strict=True):
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)
        if after is not None:
            after.run()
        if isinstance(results[0], Exception):
            raise results[0]
        return results[0]

    def _next_job(self) -> Job[Any] | None:
        return None if self._workers is None else self._workers.take("write")

    def _commit(self, calls: list[_Call]) -> list[list[bool] | Exception]:
        """Commit calls in one transaction, or each in its own if one of them is in the way."""
        if len(calls) > 1:
            try:
                self._transaction(calls)
                return [[True] * len(call.puts) for call in calls]
            except (Withdrawn, _NoRoom, self._lmdb.Error):
                return [result for call in calls for result in self._commit([call])]
        return [self._commit_one(calls[0])]

    def _commit_one(self, call: _Call) -> list[bool] | Exception:
        size = sum(footprint(len(put.source)) for put in call.puts)
        if self.max_bytes and size > self.max_bytes:
            return [False] * len(call.puts)
        for attempt in range(4):
            try:
                self._transaction([call])
            except Withdrawn as error:
                return error
            except _NoRoom:
                break
            except self._lmdb.Error as error:
                if _NO_SPACE in str(error):
                    break
                if _NO_PAGES not in str(error):
                    return StorageFailed(f"lmdb: {self.path}: {error}")
                # What is free lies in pieces that are too small: free more of it.
                if not self._make_room(max(size << attempt, self._totals.size // 8)):
                    break
            else:
                return [True] * len(call.puts)
        return [False] * len(call.puts)

    def _transaction(self, calls: list[_Call]) -> None:
        evicted = 0
        with self._env.begin(write=True) as txn:
            # What the books note before the calls is older than them, and may go for them.
            self._note_touched(txn)
            books = Books(txn, self._tables)
            for call in calls:
                for put in call.puts:
                    self._store(txn, books, put, call.permit)
            while self.max_bytes and books.size > self.max_bytes:
                evicted += self._evict(txn, books)
            totals = books.close()
        self._totals = totals
        self.counters.evicted += evicted

    def _store(self, txn: Any, books: Books, put: Put, permit: Permit) -> None:
        name, chain = _bytes(put.key), put.key.chain.encode()
        before = txn.get(name, db=self._tables.heads)
        size = 0 if before is None else self._footprint(txn, name, before)
        with permit.touching():
            head = seal(put.key, put.source, put.digest)
            if before == head:
                books.touch(chain)
                return
            txn.put(name, put.source, db=self._tables.pages)
        txn.put(name, head, db=self._tables.heads)
        if before is not None:
            books.remove(chain, size)
        books.add(chain, (put.key.parent or "").encode(), footprint(len(put.source)))

    def _evict(self, txn: Any, books: Books) -> int:
        """Evict the oldest chain without children; return how many pages it had."""
        chain = books.oldest()
        if chain is None:
            raise _NoRoom
        names = list(self._names_of(txn, chain))
        for name in names:
            txn.delete(name, db=self._tables.heads)
            txn.delete(name, db=self._tables.pages)
        books.drop(chain, len(names))
        return len(names)

    def _names_of(self, txn: Any, chain: bytes) -> Iterable[bytes]:
        prefix = chain + b"."
        with txn.cursor(db=self._tables.heads) as cursor:
            there = cursor.set_range(prefix)
            while there and cursor.key().startswith(prefix):
                yield bytes(cursor.key())
                there = cursor.next()

    def _remove(self, txn: Any, books: Books, chain: bytes, name: bytes) -> None:
        head = txn.get(name, db=self._tables.heads)
        if head is not None:
            books.remove(chain, self._footprint(txn, name, head))
            txn.delete(name, db=self._tables.heads)
            txn.delete(name, db=self._tables.pages)

    def _footprint(self, txn: Any, name: bytes, head: bytes) -> int:
        """Return what a stored page counts for, also when its head can not be read."""
        try:
            return footprint(read_head(head).length)
        except BadFrame:
            return footprint(len(txn.get(name, db=self._tables.pages) or b""))

    def _make_room(self, size: int) -> bool:
        """Evict about `size` bytes in a transaction of its own; return whether anything went."""
        evicted = 0
        with self._env.begin(write=True) as txn:
            books = Books(txn, self._tables)
            goal = max(books.size - size, 0)
            try:
                while books.size > goal:
                    evicted += self._evict(txn, books)
            except _NoRoom:
                pass
            totals = books.close()
        self._totals = totals
        self.counters.evicted += evicted
        return evicted > 0

    def _delete(self, keys: Sequence[PageKey]) -> None:
        try:
            with self._env.begin(write=True) as txn:
                books = Books(txn, self._tables)
                for key in keys:
                    self._remove(txn, books, key.chain.encode(), _bytes(key))
                self._totals = books.close()
        except self._lmdb.Error as error:
            raise StorageFailed(f"lmdb: {self.path}: {error}") from error

    def _clear(self) -> None:
        try:
            with self._env.begin(write=True) as txn:
                for table in self._tables[:-1]:
                    txn.drop(table, delete=False)
                txn.delete(b"totals", db=self._tables.meta)
        except self._lmdb.Error as error:
            raise StorageFailed(f"lmdb: {self.path}: {error}") from error
        self._totals = Totals(0, 0, 0)

    def _note_touched(self, txn: Any) -> None:
        """Bring what was read since the last transaction to the end of the order."""
        chains = [self._touched.popleft() for _ in range(len(self._touched))]
        if chains:
            books = Books(txn, self._tables)
            # The last use counts.
            for chain in reversed(dict.fromkeys(reversed(chains))):
                books.touch(chain)
            books.close()

    def _held(self) -> tuple[int | None, int | None]:
        return self._totals.values, self._totals.size

    def _shut(self) -> None:
        if self._environment is None:
            return
        if self._touched:
            # The order is a hint: losing these uses harms nothing.
            with suppress(self._lmdb.Error), self._env.begin(write=True) as txn:
                self._note_touched(txn)
        self._env.close()
        self._environment = None
        _OPEN_HERE.discard(self._place)


def _bytes(key: PageKey) -> bytes:
    return key.name.encode("ascii")
