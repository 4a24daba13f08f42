"""A copy engine for pools without bytes: the time that copies would take, and nothing else.

For sizing and replays: pools that only keep books have nothing to move, but when a copy is over
decides what may be evicted and what a request can use. Each direction is a link of its own that
moves one job at a time, in order; backups and loads do not slow each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from radixtide.configs.errors import CacheClosed, InvalidInput
from radixtide.tiers.copy_engine import DIRECTIONS, CopyEngine, CopyJob, CopyResult, Direction


class Clock(Protocol):
    """What can call back later: an event loop, or something with a time of its own."""

    def call_later(self, delay: float, callback: Callable[..., Any], /, *args: Any) -> Any:
        """Call `callback` with `args` after `delay` seconds."""


class ModelledEngine(CopyEngine):
    """Answers each job after bytes / bandwidth seconds of the clock's time.

    Digests are neither taken nor checked, as there are no bytes. A CUDA event counts as happened,
    as there is no device; futures are waited for. ``on_done`` is called on the clock's thread, and
    within ``submit`` where nothing is to be waited for and copies take no time.

    Args:
        clock: has ``call_later``, as an event loop does.
        bytes_per_slot: per pool, over all layers.
        bandwidth: bytes a second in each direction; None: copies take no time.

    Raises:
        InvalidInput: a bandwidth that is not positive.
    """

    def __init__(
        self, clock: Clock, bytes_per_slot: Mapping[str, int], bandwidth: float | None = None
    ) -> None:
        if bandwidth is not None and not bandwidth > 0:
            raise InvalidInput(f"bandwidth must be positive, in bytes a second, not {bandwidth}")
        self._clock = clock
        self._bytes = dict(bytes_per_slot)
        self._bandwidth = bandwidth
        self._links: dict[Direction, deque[_Modelled]] = {"backup": deque(), "load": deque()}
        self._jobs: dict[int, _Modelled] = {}
        self._fences: list[Any] = []
        self._closed = False

    def submit(self, job: CopyJob) -> None:  # noqa: D102  # as in CopyEngine
        if self._closed:
            raise CacheClosed("the copy engine is closed")
        if job.direction not in DIRECTIONS:
            raise InvalidInput(f"a copy is one of {DIRECTIONS}, not {job.direction!r}")
        if job.number in self._jobs:
            raise InvalidInput(f"job {job.number} is under way already")
        size = 0
        for transfer in job.transfers:
            if transfer.pool not in self._bytes:
                raise InvalidInput(f"there is no pool {transfer.pool!r} to copy")
            if len(transfer.device) != len(transfer.host):
                raise InvalidInput(
                    f"pool {transfer.pool}: {len(transfer.device)} slots on the device and "
                    f"{len(transfer.host)} on the host"
                )
            size += len(transfer.host) * self._bytes[transfer.pool]
        fences: list[Any] = []
        if job.direction == "load":
            self._fences = fences = [one for one in self._fences if not one.done()]
        entry = _Modelled(job, 0.0 if self._bandwidth is None else size / self._bandwidth)
        for future in (*filter(_is_future, job.after), *fences):
            entry.waits += 1
            own = future not in fences
            future.add_done_callback(lambda ended, own=own: self._happened(entry, ended, own))
        self._jobs[job.number] = entry
        self._links[job.direction].append(entry)
        self._go_on(job.direction)

    def fence(self, event: Any) -> None:  # noqa: D102  # as in CopyEngine
        if _is_future(event):
            self._fences.append(event)

    def cancel(self, number: int) -> bool:  # noqa: D102  # as in CopyEngine
        entry = self._jobs.get(number)
        if entry is None:
            return False
        self._answer(entry, "the copy was cancelled")
        return True

    def close(self) -> None:  # noqa: D102  # as in CopyEngine
        self._closed = True
        for entry in list(self._jobs.values()):
            self._answer(entry, "the copy engine was closed")

    def _happened(self, entry: _Modelled, future: Any, own: bool) -> None:
        entry.waits -= 1
        if own and not entry.over:
            if future.cancelled():
                self._answer(entry, "what the copy waited for was cancelled")
                return
            if (problem := future.exception()) is not None:
                self._answer(entry, f"what the copy waited for failed: {problem!r}")
                return
        self._go_on(entry.job.direction)

    def _go_on(self, direction: Direction) -> None:
        """Begin the first job of a link if it can."""
        link = self._links[direction]
        while link and not link[0].begun and not link[0].waits:
            entry = link[0]
            entry.begun = True
            if entry.seconds:
                self._clock.call_later(entry.seconds, self._answer, entry, None)
                return
            self._answer(entry, None)

    def _answer(self, entry: _Modelled, error: str | None) -> None:
        if entry.over:
            return
        entry.over = True
        job = entry.job
        self._links[job.direction].remove(entry)
        del self._jobs[job.number]
        if job.layers is not None:
            if error is None:
                job.layers.open_all()
            else:
                job.layers.fail(error)
        job.on_done(CopyResult(job.number, error is None, error))
        self._go_on(job.direction)


class _Modelled:
    """A job on its way."""

    __slots__ = ("begun", "job", "over", "seconds", "waits")

    def __init__(self, job: CopyJob, seconds: float) -> None:
        self.job = job
        self.seconds = seconds
        self.waits = 0
        self.begun = False
        self.over = False


def _is_future(thing: Any) -> bool:
    return hasattr(thing, "add_done_callback")
