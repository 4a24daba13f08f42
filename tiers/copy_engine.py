"""Copies between a device pool and its host pool: what is asked, what is answered, who does it.

A :class:`CopyJob` names slots at both ends, per pool, and the engine calls ``on_done`` once when
their bytes are there (or are not). Nothing waits for a copy: ``submit`` returns at once. Jobs of
one direction are carried out in the order of ``submit``; backups and loads run beside each other.

The owner of the slots keeps both ends from other use until ``on_done``: whoever reuses a slot
while a job runs gets torn pages, which digests would tell and nobody could mend.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from radixtide.configs.errors import CallTimeout, InvalidInput, LoadFailed
from radixtide.tiers.digests import Digests
from radixtide.tiers.slots import Slots

Direction = Literal["backup", "load"]
DIRECTIONS: Final = ("backup", "load")


class Transfer(msgspec.Struct, frozen=True):
    """Slots of one pool: ``device[i]`` and ``host[i]``, int64, in whole pages on each side."""

    pool: str
    device: Slots
    host: Slots


class CopyResult(msgspec.Struct, frozen=True):
    """What became of a job.

    ``ok``: every byte is where it belongs and no digest was wrong. ``error``: why not.
    ``digests``: of a backup, per pool uint64, one a page in order of the job's transfers; empty
    where the engine takes none. ``bad``: of a load, per pool the positions of pages (counted the
    same way) whose bytes were not those of their digest; ``ok`` is false then.
    """

    number: int
    ok: bool
    error: str | None = None
    digests: dict[str, Digests] = {}
    bad: dict[str, list[int]] = {}


OnDone = Callable[[CopyResult], None]


class LayerGate:
    """Opens layer by layer as a load arrives; readers wait for the layer that they need next.

    Layer ``i`` is open when layer ``i`` of every pool of the job has arrived, so a reader of the
    ``i``-th layer of any of them waits for ``i``. **The last layer opens only when the digests of
    the whole load were found right**: a forward pass may use early layers before that, but one that
    asks for each layer never ends on wrong bytes.

    Thread-safe and synchronous: wait in the thread that runs the model, not in an event loop.
    """

    def __init__(self, layers: int) -> None:
        if layers < 1:
            raise InvalidInput(f"a gate has at least one layer, not {layers}")
        self.layers = layers
        self._changed = threading.Condition()
        self._open = [False] * layers
        self._events: list[Any] = [None] * layers
        self._error: str | None = None

    def open(self, layer: int, event: Any = None) -> None:
        """Open `layer`. `event`: a CUDA event that its copy ends with (None: it is there)."""
        with self._changed:
            self._events[layer] = event
            self._open[layer] = True
            self._changed.notify_all()

    def open_all(self) -> None:
        """Open every layer that is not open yet: all is there."""
        with self._changed:
            self._open = [True] * self.layers
            self._changed.notify_all()

    def fail(self, error: str) -> None:
        """Let everybody who waits, and everybody who comes later, get LoadFailed."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    @property
    def opened(self) -> int:
        """Layers that are open."""
        with self._changed:
            return sum(self._open)

    @property
    def settled(self) -> bool:
        """Whether nothing more will change: all layers are open, or the load failed."""
        with self._changed:
            return self._error is not None or all(self._open)

    def wait_layer(self, layer: int, timeout: float | None = None) -> None:
        """Wait until `layer` may be read.

        Where the copy was only put on a CUDA stream, the current stream is made to wait for it, and
        the caller goes on. `timeout` in seconds; None waits as long as it takes.

        Raises:
            InvalidInput: there is no such layer.
            LoadFailed: the load failed, even if this layer had arrived.
            CallTimeout: `timeout` has passed.
        """
        if not 0 <= layer < self.layers:
            raise InvalidInput(f"layer {layer} is not in [0, {self.layers})")
        with self._changed:
            there = self._changed.wait_for(
                lambda: self._open[layer] or self._error is not None, timeout
            )
            if self._error is not None:
                raise LoadFailed(self._error)
            if not there:
                raise CallTimeout(f"layer {layer} has not arrived within {timeout} s")
            event = self._events[layer]
        if event is not None:
            event.wait()


class CopyJob(msgspec.Struct, frozen=True):
    """Bytes to move.

    ``number``: of no other job under way. ``after``: what must have happened before the first byte
    is read: CUDA events, futures (``concurrent.futures`` or asyncio's, of the loop that submits),
    None for what has. A future that failed or was cancelled fails the job, as its bytes were never
    made. ``digests``: of a load, per pool those that its pages must have; a pool that is not named
    is not checked. ``on_done`` is called once, on a thread of the engine, and must not block.
    ``layers``: of a load, opened as it arrives.
    """

    number: int
    direction: Direction
    transfers: tuple[Transfer, ...]
    on_done: OnDone
    after: tuple[Any, ...] = ()
    digests: dict[str, Digests] | None = None
    layers: LayerGate | None = None


class CopyEngine(ABC):
    """Carries out jobs. All methods are called from one thread, that of the event loop."""

    @abstractmethod
    def submit(self, job: CopyJob) -> None:
        """Begin `job` when those of its direction before it are done. Returns at once.

        Raises:
            InvalidInput: no such pool or direction, ends of different length, a number that is
                taken, something in ``after`` that can not be waited for; nothing is begun.
            SlotError: slots that are not whole pages of their pool; nothing is begun.
            CacheClosed: the engine is closed.
        """

    @abstractmethod
    def fence(self, event: Any) -> None:
        """Let loads that are submitted from now on wait for `event` (as one of ``after``).

        For slots that were given back while work on the device may still write to them. A future
        that fails has ended, so it holds up nobody.
        """

    @abstractmethod
    def cancel(self, number: int) -> bool:
        """Ask for the job to stop; return whether there is one.

        It stops between two steps at the latest. ``on_done`` is called with ``ok`` false, unless
        the last byte was faster. Its slots are its own until then.
        """

    @abstractmethod
    def close(self) -> None:
        """Cancel all jobs, wait until each ``on_done`` was called, and end the threads.

        Takes as long as the steps in hand, about a millisecond; may be called again.
        """


__all__ = (
    "DIRECTIONS",
    "CopyEngine",
    "CopyJob",
    "CopyResult",
    "Direction",
    "LayerGate",
    "OnDone",
    "Transfer",
)
