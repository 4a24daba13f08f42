"""A copy engine in virtual time: real bytes, moved piece by piece at drawn moments.

A piece is one layer of a job's pages, or of half of them. It is read at one moment and written at a
later one, and calls of the cache run in between, so a slot that is reused while a copy still needs
it shows as wrong bytes. Admission, order, fences and answers are those of the engines with threads,
whose code this one runs; what waits and moves there on a thread goes on by timers here.
"""

from __future__ import annotations

import threading
from asyncio import TimerHandle
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from radixtide.simulation.decisions import Faults
from radixtide.simulation.loop import SimulatedLoop
from radixtide.tiers.copy_engine import CopyJob, Direction
from radixtide.tiers.copy_lanes import (
    Lane,
    Moved,
    OrderedEngine,
    PoolCopy,
    PoolPairs,
    Ticket,
    empty_digests,
)
from radixtide.tiers.digests import Bytes, PageDigests
from radixtide.tiers.slots import Pages

PIECE_S: Final = 2e-4
"""A piece takes up to twice that."""
SLOW_ONCE_IN: Final = 16
SLOW_TIMES: Final = 20
"""One job in so many takes so many times as long: it outlasts whole requests."""
HALVED: Final = 0.25
"""Share of the jobs whose pages are moved in two halves."""
WRITTEN: Final = 0.5
"""Share of the pieces in hand that are written all the same when the engine is closed."""
POLL_S: Final = 1e-4
"""How often an event of a device is asked whether it has happened."""

OnCopy = Callable[[str, CopyJob, str | None], None]
"""Told of a job ``submit``, ``begin`` (its first byte moves) and ``done``, this with its error."""


class SimulatedEngine(OrderedEngine):
    """Copies in the turns of a simulated loop; every method is called from there.

    Memory besides the pools: one piece for each direction.

    Args:
        loop: whose time passes.
        pools: per pool its device tensors (per layer its parts, all on the CPU) and its HostPool.
        dice: the stream "copies" of the run.
        faults: asked once for each job that begins; None: nothing goes wrong.
        note: told what happens to a job.
        verify: take a digest of each page on backups and compare them on loads.

    Raises:
        InvalidInput: a host pool was not made for these tensors.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        pools: PoolPairs,
        dice: Random,
        faults: Faults | None = None,
        note: OnCopy | None = None,
        verify: bool = True,
    ) -> None:
        self.loop = loop
        self.dice = dice
        self.faults = faults
        self.note = note or _nobody
        self.crashed = False
        super().__init__(pools, verify)

    def make_lane(self, direction: Direction) -> Lane:  # noqa: D102  # as in OrderedEngine
        return _SimulatedLane(self)

    def submit(self, job: CopyJob) -> None:  # noqa: D102  # as in CopyEngine
        super().submit(job)
        self.note("submit", job, None)

    def crash(self) -> None:
        """End as a process that is killed: no byte moves any more, and no job is answered."""
        self.crashed = True
        self._closed = True

    def close(self) -> None:  # noqa: D102  # as in CopyEngine
        if not self.crashed:
            super().close()


class _SimulatedLane:
    """The jobs of one direction, in order; the first is under way."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._queue: deque[Ticket] = deque()
        self._running: _Running | None = None

    def put(self, ticket: Ticket) -> None:
        """Take a job; nothing of it happens before the next turn."""
        self._queue.append(ticket)
        if self._running is None:
            self._take()

    def close(self) -> None:
        """Answer every job at once; the piece in hand ends as the dice fall."""
        while self._running is not None:
            self._running.end_now()

    def _take(self) -> None:
        if self._queue:
            self._running = _Running(self._engine, self._queue.popleft(), self._ended)

    def _ended(self) -> None:
        self._running = None
        self._take()


class _Running:
    """A job under way: it waits, moves piece after piece, and is answered."""

    def __init__(self, engine: SimulatedEngine, ticket: Ticket, on_end: Callable[[], None]) -> None:
        self._engine = engine
        self._ticket = ticket
        self._on_end = on_end
        self._moved = Moved()
        self._shares: list[_Share] = []
        self._pieces: deque[_Piece] = deque()
        self._hand: _Piece | None = None
        self._fails_at = -1
        self._pace = PIECE_S
        self._begun = False
        self._call = self._later(self._wait)
        ticket.wake = _Wake(engine.loop, self._look_again)
        for wait in (*ticket.waits, *ticket.fences):
            if wait.event is None and not wait.passed:
                wait.listen(ticket.wake)

    def _later(self, what: Callable[[], None], late: float = 0.0) -> TimerHandle:
        engine = self._engine
        return engine.loop.call_later(late + 2.0 * self._pace * engine.dice.random(), what)

    def _look_again(self) -> None:
        """Go on: something that was waited for has happened, or the job was told to stop."""
        if not self._begun:
            self._call.cancel()
            self._wait()

    def _wait(self) -> None:
        """Begin, unless there is something to wait for."""
        if self._engine.crashed:
            return
        ticket = self._ticket
        failed = [wait.error for wait in ticket.waits if wait.error is not None]
        waiting = [wait for wait in (*ticket.waits, *ticket.fences) if not wait.passed]
        if ticket.stopped is not None or failed:
            self._end(ticket.stopped or failed[0])
        elif not waiting:
            self._begin()
        elif all(wait.event is not None for wait in waiting):
            self._call = self._engine.loop.call_later(POLL_S, self._wait)

    def _begin(self) -> None:
        engine, job, dice = self._engine, self._ticket.job, self._engine.dice
        self._begun = True
        engine.note("begin", job, None)
        self._shares = [_Share(copy, job.direction, engine.verify) for copy in self._ticket.copies]
        if job.direction == "backup" and engine.verify:
            self._moved.digests = empty_digests(self._ticket.copies)
        self._pieces.extend(self._cut(2 if dice.random() < HALVED else 1))
        if not dice.randrange(SLOW_ONCE_IN):
            self._pace *= SLOW_TIMES
        late = 0.0
        fault = None if engine.faults is None else engine.faults.copy(job)
        if fault is not None:
            late = fault.seconds
            if fault.kind == "copy_fail":
                self._fails_at = int(fault.share * (len(self._pieces) + 1))
        self._call = self._later(self._step, late)

    def _cut(self, parts: int) -> Iterator[_Piece]:
        for layer in range(max((share.layers for share in self._shares), default=0)):
            there = [share for share in self._shares if layer < share.layers]
            for part in range(parts):
                yield _Piece(there, layer, part, parts)

    def _step(self) -> None:
        """Write the piece that was read, and read the next."""
        if self._engine.crashed:
            return
        if self._ticket.stopped is not None:
            self._end(self._ticket.stopped)
            return
        try:
            over, error = self._move()
        except Exception as problem:  # noqa: BLE001  # any failure is the job's answer
            over, error = True, f"{type(problem).__name__}: {problem}"
        if over:
            self._end(error)
        else:
            self._call = self._later(self._step)

    def _move(self) -> tuple[bool, str | None]:
        """Return whether that was all, and what went wrong."""
        if self._hand is not None:
            self._put_down(self._hand)
        if not self._fails_at:
            return True, "the copy failed, as it was to"
        self._fails_at -= 1
        if not self._pieces:
            for share in self._shares:
                share.settle(self._moved)
            return True, None
        self._hand = self._pieces.popleft()
        self._hand.read()
        return False, None

    def _put_down(self, piece: _Piece) -> None:
        self._hand = None
        piece.write()
        gate = self._ticket.job.layers
        # The last layer opens when the digests are found right.
        if gate is not None and piece.ends_layer and piece.layer < gate.layers - 1:
            gate.open(piece.layer)

    def end_now(self) -> None:
        """End a job that was told to stop; its piece in hand is written or not."""
        self._call.cancel()
        if self._hand is not None and self._engine.dice.random() < WRITTEN:
            self._hand.write()
        self._end(self._ticket.stopped or "the copy engine was closed")

    def _end(self, error: str | None) -> None:
        self._begun = True
        self._call.cancel()
        engine, job = self._engine, self._ticket.job
        engine.note("done", job, error)
        engine.report(self._ticket, self._moved, error)
        self._on_end()


class _Share:
    """One transfer of a job: where its pages are at both ends, and their digests."""

    def __init__(self, copy: PoolCopy, direction: Direction, verify: bool) -> None:
        self.copy = copy
        self.layers = copy.host.layers
        self.backup = direction == "backup"
        self.digests: PageDigests | None = None
        if verify and (self.backup or copy.expected is not None):
            self.digests = PageDigests(len(copy.host_pages))

    def settle(self, moved: Moved) -> None:
        """Note what the digests say."""
        if self.digests is not None:
            self.copy.settle(self.digests.values(), 0, "backup" if self.backup else "load", moved)


class _Piece:
    """One layer of a job, or the `part`-th of `parts` of its pages."""

    __slots__ = ("_read", "_shares", "ends_layer", "layer", "part", "parts")

    def __init__(self, shares: list[_Share], layer: int, part: int, parts: int) -> None:
        self._shares = shares
        self.layer = layer
        self.part = part
        self.parts = parts
        self.ends_layer = part == parts - 1
        self._read: list[tuple[Bytes, Pages, Bytes]] = []

    def read(self) -> None:
        """Take the bytes from where they come; digests are of what was taken."""
        for share in self._shares:
            copy = share.copy
            count = len(copy.host_pages)
            own = slice(count * self.part // self.parts, count * (self.part + 1) // self.parts)
            ends = [copy.device_pages[own], copy.host_pages[own]]
            for device, host in zip(
                copy.device[self.layer], copy.host.arrays[self.layer], strict=True
            ):
                sides = [device.numpy(), host]
                source, target = (0, 1) if share.backup else (1, 0)
                taken: Bytes = sides[source][ends[source]]
                if share.digests is not None:
                    for update, row in zip(share.digests.updates[own], taken, strict=True):
                        update(row)
                self._read.append((sides[target], ends[target], taken))

    def write(self) -> None:
        """Put the bytes where they go."""
        for target, pages, taken in self._read:
            target[pages] = taken


class _Wake(threading.Event):
    """What a wait tells that it has passed, or a job that it is to stop."""

    def __init__(self, loop: SimulatedLoop, call: Callable[[], None]) -> None:
        super().__init__()
        self._loop = loop
        self._call = call

    def set(self) -> None:
        """Have the job look again, in a turn of the loop."""
        self._loop.call_soon_threadsafe(self._call)


def _nobody(what: str, job: CopyJob, error: str | None) -> None:
    """Hear of a job."""
