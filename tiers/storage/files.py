"""One file a page: written under another name, then renamed, so a page is there whole or not.

Works on any file system that renames atomically, network ones too; several processes may share a
directory. A file that a crash of the machine left torn is found when it is read.

Names of pages are plain strings here: `pathlib` interns every part of a path, in a table of the
interpreter that every new name wears out, so that it is built anew again and again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
import xxhash

from radixtide.tiers.storage.base import PageKey, StorageFailed
from radixtide.tiers.storage.chains import Chains
from radixtide.tiers.storage.frame import HEAD_MAX, BadFrame, encode, read_head
from radixtide.tiers.storage.threaded import MISSING, Found, Put, ThreadedBackend, unpack
from radixtide.tiers.storage.threads import Permit

FOLDER: Final = "radixtide-pages-1"
"""Folder of our own below the given one, so that `clear` can not touch what is not ours."""

SHARDS: Final = 4096
TEMPORARY: Final = ".tmp"
_BLOCK: Final = 4096
_FILE_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileStore(ThreadedBackend):
    """Pages as files below the directory `path`, which is made if need be.

    `max_bytes`: size from which the pages least recently used go, children before parents; 0: none.
    With a limit, opening reads the head of every file, and this process counts what it knows: what
    others add is seen at the next open. `sync`: wait for the disk before a page gets its name.
    """

    kind = "file"
    # One writer, so that nothing can go between a parent and the child that is about to come.
    lanes: ClassVar[dict[str, int]] = {"read": 4, "write": 1}

    def __init__(self, path: Path, *, max_bytes: int = 0, sync: bool = False) -> None:
        super().__init__(max_bytes)
        self.path = path
        self.sync = sync
        self._root = str(path / FOLDER)
        self._numbers = count()
        self._last_time = 0
        self._books = Chains()
        self._lock = threading.Lock()
        self._local = threading.local()

    def _open(self) -> None:
        try:
            os.makedirs(self._root, exist_ok=True)
            self._books = Chains()
            found = []
            for path in self._files():
                if path.endswith(TEMPORARY):
                    _remove_left_over(path)
                elif self.max_bytes:
                    found.append((os.stat(path).st_mtime_ns, path))
            # A file's time is that of its last use.
            for _, path in sorted(found):
                self._enter(path)
        except OSError as error:
            raise StorageFailed(f"file: {self.path}: {error}") from error
        self._evict(self._books.next_number)

    def _enter(self, path: str) -> None:
        chain, _, pool = os.path.basename(path).rpartition(".")
        try:
            with open(path, "rb") as file:
                head = read_head(file.read(HEAD_MAX))
                size = os.fstat(file.fileno()).st_size
        except (BadFrame, FileNotFoundError):
            _unlink(path)
            return
        self._books.add(chain, head.parent, pool, _on_disk(size))

    def _files(self) -> Iterator[str]:
        with os.scandir(self._root) as shards:
            folders = [shard.path for shard in shards if shard.is_dir()]
        for folder in folders:
            with os.scandir(folder) as files:
                names = [file.path for file in files]
            yield from names

    def _path(self, chain: str, pool: str) -> str:
        shard = xxhash.xxh3_64_intdigest(chain.encode()) % SHARDS
        return f"{self._root}/{shard:03x}/{chain}.{pool}"

    def _exists(self, keys: Sequence[PageKey], permit: Permit) -> list[bool]:
        try:
            return [_is_there(self._path(key.chain, key.pool)) for key in keys]
        except OSError as error:
            raise StorageFailed(f"file: {self.path}: {error}") from error

    def _read(
        self, keys: Sequence[PageKey], targets: list[memoryview], permit: Permit
    ) -> list[Found]:
        try:
            return [
                self._read_one(key, target, permit)
                for key, target in zip(keys, targets, strict=True)
            ]
        except OSError as error:
            raise StorageFailed(f"file: {self.path}: {error}") from error

    def _read_one(self, key: PageKey, target: memoryview, permit: Permit) -> Found:
        permit.check()
        path = self._path(key.chain, key.pool)
        try:
            with open(path, "rb", buffering=0) as file:
                frame = self._scratch(min(os.fstat(file.fileno()).st_size, len(target) + HEAD_MAX))
                size = 0
                # Into memory of our own: a disk that hangs must not hold the caller's.
                while size < len(frame) and (got := file.readinto(frame[size:])):
                    size += got
                if self.max_bytes:
                    self._touch(key.chain, file.fileno())
        except FileNotFoundError:
            return MISSING
        return unpack(key.name, frame[:size], target, permit)

    def _touch(self, chain: str, file: int) -> None:
        """Note a use, and give the file a time by which the next process knows their order."""
        with self._lock:
            self._books.touch(chain)
            os.utime(file)
            self._last_time = max(os.fstat(file).st_mtime_ns, self._last_time + 1)
            os.utime(file, ns=(self._last_time, self._last_time))

    def _scratch(self, size: int) -> memoryview:
        buffer: memoryview | None = getattr(self._local, "buffer", None)
        if buffer is None or len(buffer) < size:
            buffer = self._local.buffer = np.empty(size, np.uint8).data
        return buffer[:size]

    def _write(self, puts: list[Put], permit: Permit) -> list[bool]:
        first = self._books.next_number
        stored: list[bool] = []
        for put in puts:
            # What follows a page that found no room would go on from nothing.
            stored.append(all(stored[-1:]) and self._write_one(put, permit, first))
        return stored

    def _write_one(self, put: Put, permit: Permit, first: int) -> bool:
        key = put.key
        with permit.touching():
            frame = encode(key, put.source, put.digest)
        try:
            if self.max_bytes and not self._reserve(key, _on_disk(len(frame)), first):
                return False
            self._write_file(key.chain, self._path(key.chain, key.pool), frame)
        except OSError as error:
            self._delete([key])
            if error.errno in _FILE_NO_ROOM:
                return False
            raise StorageFailed(f"file: {self.path}: {error}") from error
        return True

    def _reserve(self, key: PageKey, size: int, first: int) -> bool:
        """Count a page in before it is there, so that its parent stays; False without room."""
        if size <= self.max_bytes:
            with self._lock:
                self._books.add(key.chain, key.parent, key.pool, size)
            if self._evict(first):
                return True
        self._delete([key])
        return False

    def _write_file(self, chain: str, path: str, frame: bytearray) -> None:
        temporary, file = self._create(os.path.dirname(path))
        try:
            try:
                # Who holds the lock is alive: others leave the file alone when they clean up.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                rest = memoryview(frame)
                while rest:
                    rest = rest[os.write(file, rest) :]
                if self.max_bytes:
                    self._touch(chain, file)
                if self.sync:
                    os.fdatasync(file)
                os.replace(temporary, path)
            finally:
                os.close(file)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def _create(self, folder: str) -> tuple[str, int]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        for _ in range(1024):
            # A process with our number, here before or on another machine, may have the name.
            temporary = f"{folder}/.{os.getpid()}-{next(self._numbers)}{TEMPORARY}"
            try:
                return temporary, os.open(temporary, flags, 0o644)
            except FileNotFoundError:
                os.makedirs(folder, exist_ok=True)
            except FileExistsError:
                continue
        raise StorageFailed(f"file: {folder}: no name is free for a new file")

    def _evict(self, first: int) -> bool:
        """Evict until the limit holds; False if only pages used from `first` on are left."""
        while True:
            with self._lock:
                if not self.max_bytes or self._books.size <= self.max_bytes:
                    return True
                oldest = self._books.oldest(first)
                if oldest is None:
                    return False
                chain, pools = oldest
                for pool in pools:
                    self._books.remove(chain, pool)
            for pool in pools:
                _unlink(self._path(chain, pool))
            self.counters.evicted += len(pools)

    def _delete(self, keys: Sequence[PageKey]) -> None:
        try:
            for key in keys:
                _unlink(self._path(key.chain, key.pool))
        except OSError as error:
            raise StorageFailed(f"file: {self.path}: {error}") from error
        with self._lock:
            for key in keys:
                self._books.remove(key.chain, key.pool)

    def _clear(self) -> None:
        try:
            for path in self._files():
                if not path.endswith(TEMPORARY):
                    _unlink(path)
        except OSError as error:
            raise StorageFailed(f"file: {self.path}: {error}") from error
        with self._lock:
            self._books = Chains()

    def _held(self) -> tuple[int | None, int | None]:
        if not self.max_bytes:
            return None, None
        return self._books.values, self._books.size


def _on_disk(size: int) -> int:
    return (size + _BLOCK - 1) // _BLOCK * _BLOCK


def _is_there(path: str) -> bool:
    """Return whether there is a file; a directory or a disk that can not be read raises OSError."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _unlink(path: str) -> None:
    """Remove a file, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def _remove_left_over(path: str) -> None:
    """Remove a file that its writer never renamed, unless the writer is still at it."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        _unlink(path)
