"""What ``load_back`` and ``prefetch`` return: handles on transfers that go on beside the caller."""

from __future__ import annotations

import warnings
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
import torch

from radixtide.actors.op_fetch import EndFetch, FetchStarted, WaitFetch
from radixtide.actors.op_load import CloseLoad, LoadStarted, WaitLoad
from radixtide.components.api import LockReceipt
from radixtide.configs.errors import CacheClosed
from radixtide.configs.schema import StorageConfig

if TYPE_CHECKING:
    from radixtide.actors.tier_face import TieredCache


class Handle:
    """A transfer that a caller can let go of: by ``close``, or at the end of ``async with``.

    ``closing``: the call that lets go. ``what``: its name in the warning when it was never closed.
    ``taken``: it is a request's, which lets go of it at its own end; so nobody is warned.
    """

    def __init__(
        self, cache: TieredCache, closing: Any, what: str, *, closed: bool = False, taken: bool
    ) -> None:
        self._cache = cache
        self._closing = closing
        self._what = what
        self._closed = closed
        self._taken = taken

    async def close(self) -> None:
        """Let go: of a lock that no request has, or of what has not arrived. Idempotent."""
        if not self._closed:
            with suppress(CacheClosed):
                await self._cache._give(self._closing, None)
            self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Post the release; nothing is awaited, so that a cancelled block releases too."""
        if not self._closed:
            self._closed = True
            self._cache.post(self._closing)

    def __del__(self, warn: Any = warnings.warn) -> None:
        if not (self._closed or self._taken):
            warn(f"a {self._what} was never closed", ResourceWarning, source=self)


class LoadBack(Handle):
    """A load from the host, and the lock on what it brings.

    Close it, or use ``async with``, when the lock is not needed any more; a load that was made for
    a request needs no closing, its lock is the request's. It may be closed before it is over. One
    that fails has its lock on what is left from then on, also before :meth:`wait` tells it.

    ``device_indices``: int64 CPU tensor, the Full slots of the whole length; layer ``i`` of those
    that are being loaded may be read when ``wait_layer(i)`` has returned.
    ``loaded``: units that are being loaded. ``receipt``: its lock.
    """

    def __init__(self, cache: TieredCache, started: LoadStarted) -> None:
        closing = CloseLoad(started.number)
        what = f"load_back of {started.length} units"
        super().__init__(cache, closing, what, taken=started.taken)
        self._number = started.number
        self._gates = started.gates
        self._failed = False
        self._over = not started.gates
        self.receipt: LockReceipt = started.receipt
        self.loaded = started.length - started.device_length
        self.length = started.length
        self.device_indices: torch.Tensor = started.indices

    @property
    def failed(self) -> bool:
        """Whether the load is known to have failed; ``length`` is then what is on the device."""
        return self._failed

    async def wait(self, *, timeout: float | None = None) -> int:
        """Wait until all is on the device; return the length that is.

        It is shorter when a copy failed or a page was damaged: then go on from there. Raises
        CallTimeout.
        """
        if not self._over:
            length, failed = await self._cache._take(WaitLoad(self._number), timeout)
            self._over = True
            self._failed = failed
            if failed:
                self.length = min(length, self.length)
                self.device_indices = self.device_indices[: self.length]
        return self.length

    @property
    def done(self) -> bool:
        """Whether the copies are over, one way or the other, so that :meth:`wait` answers soon."""
        return self._over or all(gate.settled for gate in self._gates)

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Wait, in a thread that runs the model, until `layer` may be read everywhere.

        Raises:
            LoadFailed: a copy failed; what is on the device is told by :meth:`wait`.
            CallTimeout: `timeout` seconds have passed.
            InvalidInput: there is no such layer.
        """
        for gate in self._gates:
            gate.wait_layer(layer, timeout)


class Prefetch(Handle):
    """A fetch from storage into the host.

    ``pages``: how many it asks for at most; 0 when there is nothing to fetch.
    """

    def __init__(
        self,
        cache: TieredCache,
        started: FetchStarted,
        config: StorageConfig | None,
        taken: bool,
    ) -> None:
        closing = EndFetch(started.number, False)
        what = f"prefetch of {started.pages} pages"
        super().__init__(cache, closing, what, closed=not started.number, taken=taken)
        self._number = started.number
        self._config = config
        self._brought: int | None = None if started.number else 0
        self._deadline: float | None = None
        self.pages = started.pages

    async def wait(self, *, timeout: float | None = None) -> int:
        """Wait as long as ``storage.prefetch_policy`` says; return the units that it brought.

        ``best_effort`` takes what has arrived, ``wait_complete`` waits to the end, ``timeout``
        until a deadline that grows with the pages and begins at the first wait. Raises CallTimeout.
        """
        config = self._config
        if self._brought is None and config is not None:
            if config.prefetch_policy == "best_effort":
                await self._cache._give(EndFetch(self._number, True), timeout)
            elif config.prefetch_policy == "timeout":
                await self._until_deadline(config, timeout)
            if self._brought is None:
                self._brought = await self._cache._take(WaitFetch(self._number), timeout)
        return self._brought or 0

    @property
    def done(self) -> bool:
        """Whether the fetch is over, so that :meth:`wait` answers at once."""
        return self._brought is not None or self._cache.is_fetched(self._number)

    async def _until_deadline(self, config: StorageConfig, timeout: float | None) -> None:
        now = self._cache.now()
        if self._deadline is None:
            wait_s = config.prefetch_timeout_base_s
            wait_s += config.prefetch_timeout_per_page_s * self.pages
            self._deadline = now + wait_s
        with anyio.move_on_after(max(self._deadline - now, 0)) as scope:
            self._brought = await self._cache._take(WaitFetch(self._number), timeout)
        if scope.cancelled_caught:
            await self._cache._give(EndFetch(self._number, True), None)
