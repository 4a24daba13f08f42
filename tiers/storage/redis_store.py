"""Pages in a Redis or Valkey server.

The client of worker threads rather than the asyncio one: its parser would hold the event loop for
as long as a batch takes to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from radixtide.tiers.storage.base import PageKey, StorageFailed, extra
from radixtide.tiers.storage.frame import HEAD_MAX, encode
from radixtide.tiers.storage.threaded import MISSING, Found, Put, ThreadedBackend, unpack
from radixtide.tiers.storage.threads import Permit

if TYPE_CHECKING:
    import redis

PREFIX: Final = "radixtide:"
"""What the names of our keys begin with, so that databases can be shared."""

BATCH_BYTES: Final = 2**25
"""Payload that one MGET asks for at most: the client holds the answer in memory."""

SCAN: Final = 1000


class RedisStore(ThreadedBackend):
    """Pages in the database that `url` names (``redis://``, ``rediss://``).

    A call's pages are set in one MULTI. The size limit is the server's: `maxmemory`, with a policy
    such as `allkeys-lru`; without one, pages that find no room are refused. No page expires.
    Connections are made anew after the server was away. `timeout_s`: for the socket.
    """

    kind = "redis"
    lanes: ClassVar[dict[str, int]] = {"read": 2, "write": 2}

    def __init__(self, url: str, *, timeout_s: float = 5.0) -> None:
        with extra("redis"):
            import redis
            import redis.backoff
            import redis.retry
        super().__init__()
        self._redis = redis
        # One try more, for a connection that the server has closed since the last call.
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 1)
        self._pool = redis.BlockingConnectionPool.from_url(
            url,
            max_connections=sum(self.lanes.values()),
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=retry,
            retry_on_timeout=False,
        )
        self._client: redis.Redis = redis.Redis(connection_pool=self._pool)

    def _open(self) -> None:
        self._run(self._client.ping)

    def _exists(self, keys: Sequence[PageKey], permit: Permit) -> list[bool]:
        def ask() -> list[Any]:
            # In one transaction, so that a call's pages are all there or none.
            with self._client.pipeline(transaction=True) as pipeline:
                for key in keys:
                    pipeline.exists(_name(key))
                return pipeline.execute()

        return [bool(answer) for answer in self._run(ask)]

    def _read(
        self, keys: Sequence[PageKey], targets: list[memoryview], permit: Permit
    ) -> list[Found]:
        found: list[Found] = []
        for start, stop in _batches([len(target) for target in targets]):
            permit.check()
            names = [_name(key) for key in keys[start:stop]]
            frames = self._run(self._client.mget, names)
            for key, target, frame in zip(
                keys[start:stop], targets[start:stop], frames, strict=True
            ):
                found.append(_unpack(key, target, frame, permit))
        return found

    def _write(self, puts: list[Put], permit: Permit) -> list[bool]:
        frames = []
        for put in puts:
            with permit.touching():
                frames.append(encode(put.key, put.source, put.digest))

        def store() -> list[Any]:
            with self._client.pipeline(transaction=True) as pipeline:
                for put, frame in zip(puts, frames, strict=True):
                    pipeline.set(_name(put.key), memoryview(frame))
                return pipeline.execute()

        try:
            return [bool(answer) for answer in self._run(store)]
        except _NoRoom:
            return [False] * len(puts)

    def _delete(self, keys: Sequence[PageKey]) -> None:
        self._run(self._client.unlink, *map(_name, keys))

    def _clear(self) -> None:
        cursor = 0
        while True:
            answer = self._run(self._client.scan, cursor, f"{PREFIX}*", SCAN)
            cursor, names = int(answer[0]), answer[1]
            if names:
                self._run(self._client.unlink, *names)
            if not cursor:
                return

    def _run(self, command: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return command(*arguments)
        except (self._redis.OutOfMemoryError, self._redis.exceptions.ExecAbortError) as error:
            raise _NoRoom(f"redis: {error}") from error
        except (self._redis.RedisError, OSError) as error:
            raise StorageFailed(f"redis: {error}") from error

    def _shut(self) -> None:
        self._client.close()
        self._pool.disconnect()


class _NoRoom(StorageFailed):
    """The server's memory is at its limit, and its policy evicts nothing."""


def _name(key: PageKey) -> str:
    return f"{PREFIX}{key.name}"


def _unpack(key: PageKey, target: memoryview, frame: Any, permit: Permit) -> Found:
    if frame is None:
        permit.check()
        return MISSING
    return unpack(key.name, memoryview(frame), target, permit)


def _batches(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield ranges of places whose sizes come to about BATCH_BYTES."""
    start, total = 0, 0
    for place, size in enumerate(sizes):
        if total and total + size > BATCH_BYTES:
            yield start, place
            start, total = place, 0
        total += size + HEAD_MAX
    if start < len(sizes):
        yield start, len(sizes)
