"""Stores under test: a rig of each kind makes stores at one place, and can damage what is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import obstore
import pytest
import redis
from obstore.store import ObjectStore, S3Store

from radixtide.tiers.storage import PageKey, StorageBackend, open_storage
from radixtide.tiers.storage.files import FOLDER
from radixtide.tiers.storage.frame import HEADER, read_head
from radixtide.tiers.storage.objects import ObjectPages
from support.servers import Server

KINDS = ("lmdb", "file", "object+file", "memory", "s3", "redis", "mooncake")
IDENTITY = "0123456789abcdef0123456789abcdef"


class Rig:
    """One place for pages. `store` makes a store at it; `read` and `write` go behind its back.

    `lasts`: what was stored is there for a store that is made later. Where a store keeps its place
    to itself, `read` and `write` want it closed.
    """

    kind: str
    lasts = True
    url = ""

    def store(self, **options: Any) -> StorageBackend:
        return open_storage(self.url, **options)

    async def opened(self) -> StorageBackend:
        """Return an open store; `done` closes it."""
        store = self.store()
        await store.open()
        return store

    async def done(self, store: StorageBackend) -> None:
        await store.close()

    def read(self, key: PageKey) -> bytes | None:
        raise NotImplementedError

    def write(self, key: PageKey, frame: bytes) -> None:
        raise NotImplementedError


class LmdbRig(Rig):
    kind = "lmdb"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"lmdb:{folder}?sync=0"

    def read(self, key: PageKey) -> bytes | None:
        name = key.name.encode()
        with self._open() as env, env.begin() as txn:
            head = txn.get(name, db=env.open_db(b"heads", txn))
            page = txn.get(name, db=env.open_db(b"pages", txn))
        return None if head is None or page is None else bytes(head) + bytes(page)

    def write(self, key: PageKey, frame: bytes) -> None:
        name = key.name.encode()
        head = HEADER
        if len(frame) >= HEADER:
            head += int.from_bytes(frame[10:12], "little")
        with self._open() as env, env.begin(write=True) as txn:
            txn.put(name, frame[:head], db=env.open_db(b"heads", txn))
            txn.put(name, frame[head:], db=env.open_db(b"pages", txn))

    def _open(self) -> lmdb.Environment:
        return lmdb.open(str(self.folder), map_size=2**30, max_dbs=8)


class FileRig(Rig):
    kind = "file"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file:{folder}"

    def paths(self) -> list[Path]:
        return [path for path in (self.folder / FOLDER).rglob("*") if path.is_file()]

    def read(self, key: PageKey) -> bytes | None:
        return next((path.read_bytes() for path in self.paths() if path.name == key.name), None)

    def write(self, key: PageKey, frame: bytes) -> None:
        shard = _shard(key)
        path = self.folder / FOLDER / shard / key.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(frame)


class ObjectRig(Rig):
    """Any object store; `raw` reaches the same objects."""

    def __init__(self, kind: str, url: str, raw: ObjectStore) -> None:
        self.kind = kind
        self.url = url
        self.raw = raw

    def read(self, key: PageKey) -> bytes | None:
        try:
            return bytes(obstore.get(self.raw, self._path(key)).bytes())
        except FileNotFoundError:
            return None

    def write(self, key: PageKey, frame: bytes) -> None:
        obstore.put(self.raw, self._path(key), frame)

    def _path(self, key: PageKey) -> str:
        return f"{FOLDER}/{_shard(key)}/{key.name}"


class MemoryRig(ObjectRig):
    lasts = False

    def __init__(self) -> None:
        super().__init__("memory", "memory:", obstore.store.MemoryStore())

    def store(self, **options: Any) -> StorageBackend:
        return ObjectPages("memory", lambda: self.raw)


class RedisRig(Rig):
    kind = "redis"

    def __init__(self, server: Server) -> None:
        self.url = f"redis://{server.address}/1"
        self.client = redis.Redis.from_url(self.url)
        self.client.flushdb()

    def read(self, key: PageKey) -> bytes | None:
        value: Any = self.client.get(f"radixtide:{key.name}")
        return value  # type: ignore[no-any-return]  # bytes, or None

    def write(self, key: PageKey, frame: bytes) -> None:
        self.client.set(f"radixtide:{key.name}", frame)


class MooncakeRig(Rig):
    """A store that lends memory stays open: the pages are in it.

    Ending a client takes a second, so tests that do not ask for a store of their own share one.
    """

    kind = "mooncake"

    def __init__(self, server: Server, shared: StorageBackend) -> None:
        self.url = f"mooncake://{server.address}?segment=0&buffer=8MiB"
        self.shared = shared
        self.client: Any = vars(shared)["_client"]
        self.client.remove_all(True)

    async def opened(self) -> StorageBackend:
        return self.shared

    async def done(self, store: StorageBackend) -> None:
        if store is not self.shared:
            await store.close()

    def read(self, key: PageKey) -> bytes | None:
        return self.client.get(f"radixtide:{key.name}") or None

    def write(self, key: PageKey, frame: bytes) -> None:
        self.client.remove(f"radixtide:{key.name}", True)
        assert self.client.put(f"radixtide:{key.name}", frame) == 0


def _shard(key: PageKey) -> str:
    from radixtide.tiers.storage.objects import _path

    return _path(key).split("/")[1]


@pytest.fixture(params=KINDS)
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Rig:
    """Return a rig of each kind of store, its place empty."""
    return make_rig(request, request.param, tmp_path)


def make_rig(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Rig:
    """Return a rig of `kind`, its server started."""
    match kind:
        case "lmdb":
            return LmdbRig(tmp_path / "lmdb")
        case "file":
            return FileRig(tmp_path / "files")
        case "object+file":
            folder = tmp_path / "objects"
            return ObjectRig(
                kind, f"object+file:{folder}", obstore.store.LocalStore(folder, mkdir=True)
            )
        case "memory":
            return MemoryRig()
        case "s3":
            server: Server = request.getfixturevalue("s3_server")
            prefix = tmp_path.name
            endpoint = f"http://{server.address}"
            raw = S3Store(
                "pages",
                prefix=prefix,
                config={"endpoint": endpoint, "region": "us-east-1"},
                client_options={"allow_http": True},
            )
            return ObjectRig(kind, f"s3://pages/{prefix}?endpoint={endpoint}&region=us-east-1", raw)
        case "redis":
            return RedisRig(request.getfixturevalue("redis_server"))
        case _:
            return MooncakeRig(
                request.getfixturevalue("mooncake_server"),
                request.getfixturevalue("mooncake_shared"),
            )


def chain(number: int, line: int = 0) -> str:
    """Return the name of the page `number` of the `line`-th key."""
    return f"{line:032x}{number:032x}-{IDENTITY}"


def page_keys(
    count: int, pools: Sequence[str] = ("kv",), first: int = 0, line: int = 0
) -> list[PageKey]:
    """Return the keys of `count` pages that follow each other, from `first` on, pools together."""
    return [
        PageKey(chain(n, line), chain(n - 1, line) if n else None, pool)
        for n in range(first, first + count)
        for pool in pools
    ]


def page_bytes(count: int, size: int = 5000, seed: int = 0) -> list[memoryview]:
    """Return random pages of `size` bytes."""
    data = np.random.default_rng(seed).integers(0, 256, (count, size), dtype=np.uint8)
    return [row.data for row in data]


def targets(count: int, size: int = 5000) -> list[memoryview]:
    """Return memory for pages, filled with what no test stores."""
    return [memoryview(bytearray(b"\xee" * size)) for _ in range(count)]


def head_of(frame: bytes) -> int:
    """Return how many bytes stand before the payload."""
    return HEADER + len(read_head(frame).parent or "")
