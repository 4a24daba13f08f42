"""Lanes: a queue and a thread for each direction, and what a job waits for before it begins.

What every engine that moves bytes has in common. An engine with threads derives from
:class:`LaneEngine` and says how the bytes of one job move.
"""

from __future__ import annotations

import logging
import queue
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import numpy as np
import torch

from radixtide.configs.errors import CacheClosed, InvalidInput
from radixtide.tiers.copy_engine import (
    DIRECTIONS,
    CopyEngine,
    CopyJob,
    CopyResult,
    Direction,
    Transfer,
)
from radixtide.tiers.digests import Digests
from radixtide.tiers.host_pool import HostPool
from radixtide.tiers.page_rows import Parts, rows_of, whole_pages
from radixtide.tiers.slots import Pages

logger: Final = logging.getLogger(__name__)

PoolPairs = Mapping[str, tuple[Parts, HostPool]]
"""Per pool its device tensors (per layer its parts) and the host memory behind them."""


class Stopped(Exception):
    """The job was cancelled; never leaves the engine."""


class Moved:
    """What a job found while its bytes moved."""

    __slots__ = ("bad", "digests")

    def __init__(self) -> None:
        self.digests: dict[str, Digests] = {}
        self.bad: dict[str, list[int]] = {}


class Wait:
    """Something that must have happened: a future or a CUDA event."""

    __slots__ = ("_listeners", "done", "error", "event")

    def __init__(self, thing: Any) -> None:
        self.event: Any = None
        self.done = False
        self.error: str | None = None
        self._listeners: list[threading.Event] = []
        if hasattr(thing, "add_done_callback"):
            thing.add_done_callback(self._ended)
        elif hasattr(thing, "synchronize"):
            self.event = thing
        else:
            raise InvalidInput(
                f"a copy can wait for a CUDA event, a future or None, not {type(thing).__name__}"
            )

    def _ended(self, future: Any) -> None:
        if future.cancelled():
            self.error = "what the copy waited for was cancelled"
        elif (problem := future.exception()) is not None:
            self.error = f"what the copy waited for failed: {problem!r}"
        # First done, then the listeners: one who is added meanwhile looks at `done` after it.
        self.done = True
        for listener in list(self._listeners):
            listener.set()

    @property
    def passed(self) -> bool:
        """Whether it has happened."""
        return bool(self.event.query()) if self.event is not None else self.done

    def listen(self, listener: threading.Event) -> None:
        """Set `listener` when it happens, or now if it has."""
        self._listeners.append(listener)
        if self.done:
            listener.set()


class PoolCopy:
    """One transfer of a job, with pages instead of slots and both ends at hand."""

    __slots__ = ("device", "device_pages", "expected", "host", "host_pages", "offset", "pool")

    def __init__(
        self,
        transfer: Transfer,
        device: list[list[torch.Tensor]],
        host: HostPool,
        pages: tuple[Pages, Pages],
        expected: Digests | None,
        offset: int,
    ) -> None:
        self.pool = transfer.pool
        self.device = device
        self.host = host
        self.device_pages, self.host_pages = pages
        self.expected = expected
        self.offset = offset

    def settle(self, found: Digests, first: int, direction: Direction, into: Moved) -> None:
        """Note the digests of the pages from position `first` on, or which of them are wrong."""
        if direction == "backup":
            at = self.offset + first
            into.digests[self.pool][at : at + len(found)] = found
        elif self.expected is not None:
            wrong = (found != self.expected[first : first + len(found)]).nonzero()[0]
            if len(wrong):
                places = (wrong + self.offset + first).tolist()
                into.bad.setdefault(self.pool, []).extend(places)


class Ticket:
    """A job in the engine."""

    __slots__ = ("copies", "fences", "job", "stopped", "waits", "wake")

    def __init__(self, job: CopyJob, copies: list[PoolCopy], waits: list[Wait]) -> None:
        self.job = job
        self.copies = copies
        self.waits = waits
        self.fences: list[Wait] = []
        self.stopped: str | None = None
        self.wake = threading.Event()

    def stop(self, reason: str) -> None:
        """Let the job end soon; the first reason stays."""
        if self.stopped is None:
            self.stopped = reason
        self.wake.set()

    def check(self) -> None:
        """Raise Stopped if the job shall end."""
        if self.stopped is not None:
            raise Stopped(self.stopped)

    def wait_for_futures(self) -> None:
        """Wait for the futures before the job; its events are for the engine."""
        pending = [wait for wait in (*self.waits, *self.fences) if wait.event is None]
        for wait in pending:
            wait.listen(self.wake)
        while True:
            self.wake.clear()
            self.check()
            for wait in self.waits:
                if wait.error is not None:
                    raise Stopped(wait.error)
            if all(wait.done for wait in pending):
                return
            self.wake.wait()


class Lane(Protocol):
    """Carries out the jobs of one direction in order, and has the engine report each."""

    def put(self, ticket: Ticket) -> None:
        """Take a job; returns at once."""

    def close(self) -> None:
        """Return when all jobs are reported; each of them was told to stop."""


class OrderedEngine(CopyEngine):
    """Checks, order, fences, cancellation and answers; the lanes of subclasses move the bytes.

    Args:
        pools: device tensors and host memory of each pool.
        verify: take digests on backups and compare them on loads.

    Raises:
        InvalidInput: a host pool was not made for these tensors.
    """

    def __init__(self, pools: PoolPairs, verify: bool) -> None:
        self.verify = verify
        self._pools = {
            name: (_device_rows(name, parts, host), host) for name, (parts, host) in pools.items()
        }
        self._tickets: dict[int, Ticket] = {}
        self._fences: list[Wait] = []
        self._closed = False
        self._lanes: dict[Direction, Lane] = {
            direction: self.make_lane(direction) for direction in DIRECTIONS
        }

    @abstractmethod
    def make_lane(self, direction: Direction) -> Lane:
        """Return what carries out the jobs of one direction; called once for each."""

    def submit(self, job: CopyJob) -> None:  # noqa: D102  # as in CopyEngine
        if self._closed:
            raise CacheClosed("the copy engine is closed")
        if job.direction not in DIRECTIONS:
            raise InvalidInput(f"a copy is one of {DIRECTIONS}, not {job.direction!r}")
        if job.number in self._tickets:
            raise InvalidInput(f"job {job.number} is under way already")
        copies = self._copies(job)
        waits = [Wait(thing) for thing in job.after if thing is not None]
        ticket = Ticket(job, copies, waits)
        if job.direction == "load":
            self._fences = [fence for fence in self._fences if not fence.passed]
            ticket.fences = list(self._fences)
        self._tickets[job.number] = ticket
        self._lanes[job.direction].put(ticket)

    def fence(self, event: Any) -> None:  # noqa: D102  # as in CopyEngine
        if event is not None:
            self._fences = [fence for fence in self._fences if not fence.passed]
            self._fences.append(Wait(event))

    def cancel(self, number: int) -> bool:  # noqa: D102  # as in CopyEngine
        ticket = self._tickets.get(number)
        if ticket is None:
            return False
        ticket.stop("the copy was cancelled")
        return True

    def close(self) -> None:  # noqa: D102  # as in CopyEngine
        self._closed = True
        for ticket in list(self._tickets.values()):
            ticket.stop("the copy engine was closed")
        for lane in self._lanes.values():
            lane.close()

    def _copies(self, job: CopyJob) -> list[PoolCopy]:
        copies = []
        offsets: dict[str, int] = {}
        for transfer in job.transfers:
            name = transfer.pool
            if name not in self._pools:
                raise InvalidInput(f"there is no pool {name!r} to copy")
            device, host = self._pools[name]
            if len(transfer.device) != len(transfer.host):
                raise InvalidInput(
                    f"pool {name}: {len(transfer.device)} slots on the device and "
                    f"{len(transfer.host)} on the host"
                )
            pages = (
                whole_pages(transfer.device, host.page_size, len(device[0][0]), f"{name}, device"),
                whole_pages(transfer.host, host.page_size, host.pages, f"{name}, host"),
            )
            at = offsets.get(name, 0)
            offsets[name] = at + len(pages[0])
            expected = None
            if job.direction == "load" and self.verify and job.digests is not None:
                wanted = job.digests.get(name)
                expected = None if wanted is None else wanted[at : at + len(pages[0])]
            copies.append(PoolCopy(transfer, device, host, pages, expected, at))
        if job.direction == "load" and job.digests is not None:
            for name, wanted in job.digests.items():
                if len(wanted) != offsets.get(name, 0):
                    raise InvalidInput(
                        f"pool {name}: {len(wanted)} digests for {offsets.get(name, 0)} pages"
                    )
        return copies

    def report(self, ticket: Ticket, moved: Moved, error: str | None) -> None:
        """Answer a job: open or fail its gate, call ``on_done``; a lane's thread calls it once."""
        job = ticket.job
        if error is None and moved.bad:
            pages = sum(len(positions) for positions in moved.bad.values())
            error = f"{pages} page(s) came from the host with bytes that are not theirs"
        if job.layers is not None:
            if error is None:
                job.layers.open_all()
            else:
                job.layers.fail(error)
        del self._tickets[job.number]
        ok = error is None
        digests = moved.digests if ok else {}
        try:
            job.on_done(CopyResult(job.number, ok, error, digests, moved.bad))
        except Exception:  # the lane must go on for the jobs behind
            logger.exception("on_done of copy %d raised", job.number)


class LaneEngine(OrderedEngine):
    """Has a thread for each direction; subclasses say how the bytes of one job move.

    Args:
        pools: device tensors and host memory of each pool.
        verify: take digests on backups and compare them on loads.
        in_flight: jobs of a direction that are begun while one before them is under way (an engine
            whose copies run by themselves); 0: one after the other.

    Raises:
        InvalidInput: a host pool was not made for these tensors.
    """

    def __init__(self, pools: PoolPairs, verify: bool, in_flight: int = 0) -> None:
        self._in_flight = in_flight
        super().__init__(pools, verify)

    def make_lane(self, direction: Direction) -> Lane:  # noqa: D102  # as in OrderedEngine
        return _ThreadLane(self, direction, self._in_flight)

    @abstractmethod
    def begin(self, ticket: Ticket) -> Callable[[], Moved]:
        """Begin to move the bytes; return what waits for the end of it.

        Called on the lane's thread when the futures of the job are done; the second part on the
        same thread, or on the lane's other one where several jobs may be in flight.
        """


class _ThreadLane:
    """The jobs of one direction, in order, on a thread."""

    def __init__(self, engine: LaneEngine, direction: Direction, in_flight: int) -> None:
        self._engine = engine
        # A SimpleQueue never makes the event loop wait.
        self._queue: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._ending: queue.Queue[tuple[Ticket, Callable[[], Moved]] | None] | None = None
        self._threads = [threading.Thread(target=self._serve, name=f"radixtide-{direction}")]
        if in_flight:
            self._ending = queue.Queue(in_flight)
            self._threads.append(
                threading.Thread(target=self._finish, name=f"radixtide-{direction}-end")
            )
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def put(self, ticket: Ticket) -> None:
        self._queue.put(ticket)

    def close(self) -> None:
        self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _serve(self) -> None:
        while (ticket := self._queue.get()) is not None:
            try:
                ticket.wait_for_futures()
                rest = self._engine.begin(ticket)
            except Exception as problem:  # noqa: BLE001  # any failure is the job's answer
                rest = _raiser(problem)
            if self._ending is None:
                self._end(ticket, rest)
            else:
                self._ending.put((ticket, rest))
        if self._ending is not None:
            self._ending.put(None)

    def _finish(self) -> None:
        assert self._ending is not None
        while (pair := self._ending.get()) is not None:
            self._end(*pair)

    def _end(self, ticket: Ticket, rest: Callable[[], Moved]) -> None:
        moved, error = Moved(), None
        try:
            moved = rest()
        except Stopped as stop:
            error = str(stop)
        except Exception as problem:  # noqa: BLE001  # any failure is the job's answer
            error = f"{type(problem).__name__}: {problem}"
        self._engine.report(ticket, moved, error)


def _raiser(problem: Exception) -> Callable[[], Moved]:
    def rest() -> Moved:
        raise problem

    return rest


def _device_rows(name: str, parts: Parts, host: HostPool) -> list[list[torch.Tensor]]:
    rows = [[rows_of(part, host.page_size) for part in layer] for layer in parts]
    if [[view.shape[1] for view in layer] for layer in rows] != host.pieces:
        raise InvalidInput(f"the host pool of {name} was made for other tensors")
    if len({view.shape[0] for layer in rows for view in layer}) != 1:
        raise InvalidInput(f"the device tensors of {name} do not all have the same slots")
    return rows


def empty_digests(copies: list[PoolCopy]) -> dict[str, Digests]:
    """Return room for the digests of a backup: per pool uint64, one a page."""
    sizes: dict[str, int] = {}
    for copy in copies:
        sizes[copy.pool] = sizes.get(copy.pool, 0) + len(copy.host_pages)
    return {name: np.zeros(size, dtype=np.uint64) for name, size in sizes.items()}
