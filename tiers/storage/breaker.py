"""A store that never fails: what goes wrong is a miss; one that keeps failing is left alone.

The circuit is closed while the store answers. After so many failures in a row it is open: calls are
answered at once, with nothing. After a while one call is let through (half open): if it succeeds
the circuit closes, else it stays open for as long again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from radixtide.tiers.storage.base import Circuit, Digests, PageKey, StorageBackend, StoreStats

T = TypeVar("T")

_log: Final = logging.getLogger(__name__)


class Guarded(StorageBackend):
    """`backend` behind a deadline and a circuit breaker; raises nothing but CancelledError.

    `timeout_s`: deadline of one call on the running loop. `failures`: how many in a row open the
    circuit; a call that took too long is one. `reset_s`: how long it stays open. `clock`: seconds,
    from anywhere. A failed or rejected call finds and stores nothing. A store that could not be
    opened is opened by a later call. Pages that are missing, bad or refused are no failures.
    """

    def __init__(
        self,
        backend: StorageBackend,
        *,
        timeout_s: float,
        failures: int,
        reset_s: float,
        clock: Callable[[], float],
    ) -> None:
        self.backend = backend
        self.kind = backend.kind
        self.timeout_s = timeout_s
        self.reset_s = reset_s
        self._failures_max = failures
        self._clock = clock
        self._opened = False
        self._closed = False
        self._opening = asyncio.Lock()
        self._row = 0
        self._until: float | None = None
        self._probing = False
        self._failures = 0
        self._timeouts = 0
        self._rejected = 0

    async def open(self) -> None:
        """Open the store; if that fails a later call does it."""
        self._closed = False
        await self._call(_nothing, None)

    async def exists(self, keys: Sequence[PageKey]) -> list[bool]:
        """Return whether each page is stored; nothing is, where the store does not answer."""
        return await self._call(lambda: self.backend.exists(keys), [False] * len(keys))

    async def get_into(
        self,
        keys: Sequence[PageKey],
        targets: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        """Read what can be read; the rest are misses."""
        return await self._call(
            lambda: self.backend.get_into(keys, targets, digests), [False] * len(keys)
        )

    async def put_from(
        self,
        keys: Sequence[PageKey],
        sources: Sequence[memoryview],
        digests: Digests | None = None,
    ) -> list[bool]:
        """Store what can be stored."""
        return await self._call(
            lambda: self.backend.put_from(keys, sources, digests), [False] * len(keys)
        )

    async def delete(self, keys: Sequence[PageKey]) -> None:
        """Remove pages, if the store answers."""
        await self._call(lambda: self.backend.delete(keys), None)

    async def clear(self) -> None:
        """Remove all pages, if the store answers."""
        await self._call(self.backend.clear, None)

    def stats(self) -> StoreStats:
        """Return the store's counts and those of the guard."""
        return msgspec.structs.replace(
            self.backend.stats(),
            failures=self._failures,
            timeouts=self._timeouts,
            rejected=self._rejected,
            circuit=self.circuit,
        )

    async def close(self) -> None:
        """Close the store; one that does not end in time ends without being waited for."""
        self._closed = True
        self._opened = False
        try:
            async with asyncio.timeout(self.timeout_s):
                await self.backend.close()
        except Exception as error:  # noqa: BLE001 - whatever a store raises, a guarded one does not
            _log.warning("storage %s: not closed cleanly: %r", self.kind, error)

    @property
    def circuit(self) -> Circuit:
        """The state of the circuit now."""
        if self._until is None:
            return "closed"
        return "open" if self._clock() < self._until and not self._probing else "half_open"

    async def _call(self, work: Callable[[], Awaitable[T]], otherwise: T) -> T:
        if self._closed or not self._admit():
            self._rejected += 1
            return otherwise
        probe = self._probing = self._until is not None
        deadline = asyncio.timeout(self.timeout_s)
        try:
            async with deadline:
                if not self._opened:
                    async with self._opening:
                        await self.backend.open()
                        self._opened = not self._closed
                result = await work()
        except Exception as error:  # noqa: BLE001 - whatever a store raises, a guarded one does not
            self._failed(error, late=deadline.expired())
            return otherwise
        else:
            self._succeeded()
            return result
        finally:
            # A probe that was cancelled said nothing; the next call is one.
            if probe:
                self._probing = False

    def _admit(self) -> bool:
        return self._until is None or (not self._probing and self._clock() >= self._until)

    def _failed(self, error: Exception, late: bool) -> None:
        self._timeouts += late
        self._failures += not late
        self._row += 1
        # A call that began before the circuit opened must not prolong it.
        if (self._until is None and self._row >= self._failures_max) or self._probing:
            self._until = self._clock() + self.reset_s
            _log.warning(
                "storage %s: left alone for %g s after %d failures in a row: %r",
                self.kind,
                self.reset_s,
                self._row,
                error,
            )

    def _succeeded(self) -> None:
        self._row = 0
        if self._until is not None and self._probing:
            self._until = None
            _log.warning("storage %s: answers again", self.kind)


async def _nothing() -> None:
    return
