"""Transfers and locks as the blocking face hands them out: ``with`` in place of ``async with``."""

from __future__ import annotations

import warnings
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch

from radixtide.actors import tier_handles
from radixtide.actors.op_load import UndoLoad
from radixtide.blocking_loop import TaskCall
from radixtide.components.api import LockReceipt, NodeHandle
from radixtide.components.request import Request
from radixtide.configs.errors import CacheClosed

if TYPE_CHECKING:
    from radixtide.blocking import UnifiedRadixCache
    from radixtide.blocking_loop import LoopThread


class Handle:
    """A transfer that a caller can let go of: by ``close``, or at the end of ``with``.

    One that was dropped without is let go of too, with a ResourceWarning: a caller that is
    interrupted may have had no chance.
    """

    def __init__(self, thread: LoopThread, handle: tier_handles.Handle) -> None:
        self._thread = thread
        self._handle = handle

    def close(self) -> None:
        """Let go: of a lock that no request has, or of what has not arrived. Idempotent."""
        if not self._handle._closed:
            try:
                self._thread.call(self._handle.close)
            except CacheClosed:
                self._handle._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Post the release; nothing is waited for."""
        if not self._handle._closed:
            self._post_release()

    def _post_release(self) -> None:
        if not self._thread.post(self.release):
            self._handle._closed = True

    def release(self) -> None:
        """Let go, on the loop.

        It is certain there whether that was done before; an interrupt may have come between two
        steps of a caller.
        """
        handle = self._handle
        if not handle._closed:
            handle._closed = True
            handle._cache.post(handle._closing)

    def __del__(self, warn: Any = warnings.warn) -> None:
        handle = self._handle
        if not (handle._closed or handle._taken):
            self._post_release()
            warn(f"a {handle._what} was never closed", ResourceWarning, source=self)


class LoadBack(Handle):
    """A load from the host, and the lock on what it brings: as :class:`radixtide.LoadBack`."""

    _handle: tier_handles.LoadBack

    @property
    def receipt(self) -> LockReceipt:
        """Its lock."""
        return self._handle.receipt

    @property
    def loaded(self) -> int:
        """Units that are being loaded."""
        return self._handle.loaded

    @property
    def length(self) -> int:
        """Units in all; after a failure those that are on the device."""
        return self._handle.length

    @property
    def device_indices(self) -> torch.Tensor:
        """The Full slots of the whole length, int64 on the CPU."""
        return self._handle.device_indices

    @property
    def failed(self) -> bool:
        """Whether the load is known to have failed; ``length`` is then what is on the device."""
        return self._handle.failed

    @property
    def done(self) -> bool:
        """Whether the copies are over, one way or the other. Costs no way to the loop."""
        return self._handle.done

    def wait(self, *, timeout: float | None = None) -> int:
        """Wait until all is on the device; return the length that is. Raises CallTimeout."""
        return self._thread.call(partial(self._handle.wait, timeout=timeout))

    def undoing(self, req: Request | None) -> UndoLoad:
        """Return the call that undoes it, for a request too; it counts as closed from now on."""
        self._handle._closed = True
        return UndoLoad(self._handle._number, self._handle.receipt, req)

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Wait until `layer` may be read everywhere. Raises LoadFailed, CallTimeout, InvalidInput.

        Costs no way to the loop, and may be called in any thread.
        """
        self._handle.wait_layer(layer, timeout)


class Prefetch(Handle):
    """A fetch from storage into the host: as :class:`radixtide.Prefetch`."""

    _handle: tier_handles.Prefetch

    @property
    def pages(self) -> int:
        """How many it asks for at most; 0 when there is nothing to fetch."""
        return self._handle.pages

    @property
    def done(self) -> bool:
        """Whether the fetch is over. Costs no way to the loop."""
        return self._handle.done

    def wait(self, *, timeout: float | None = None) -> int:
        """Wait as long as ``storage.prefetch_policy`` says; return the units that it brought.

        Raises CallTimeout.
        """
        wait = partial(self._handle.wait, timeout=timeout)
        return self._thread.call(wait, kind=TaskCall)


class Hold:
    """``with cache.hold(match) as receipt``: locked inside, released at the end."""

    __slots__ = ("_cache", "_node", "_receipt", "_thread")

    def __init__(self, cache: UnifiedRadixCache, thread: LoopThread, node: NodeHandle) -> None:
        self._cache = cache
        self._thread = thread
        self._node = node
        self._receipt: LockReceipt | None = None

    def __enter__(self) -> LockReceipt:
        """Lock the node. Raises StaleNode when it is gone."""
        self._receipt = receipt = self._cache.inc_lock_ref(self._node)
        return receipt

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Post the release; nothing is waited for."""
        self._thread.post(self._release)

    def _release(self) -> None:
        receipt, self._receipt = self._receipt, None
        if receipt is not None:
            self._cache._core.post_release(receipt)

    def __del__(self) -> None:
        # An interrupt may come before __exit__ has done its work.
        if self._receipt is not None:
            self._thread.post(self._release)
