"""The copy engine on CPU threads: for machines without CUDA, with the same order and answers.

Each direction has its own thread and `threads` - 1 more that share the pages of a job. They go
layer by layer, so a load opens its gate in that order, and in steps of `step_bytes`, each one
NumPy call for many pages: pages that follow one another at both ends are one memcpy, others are
gathered or scattered by row. A page's digest is fed with the step's bytes on the device's side
while they are in the cache; so it covers the way there and back.

NumPy lets other threads run while it copies. What holds the interpreter is the bookkeeping between
two steps and digests of pieces up to 64 KiB: some tens of microseconds, then a copy of about two
hundred. Where pieces are so small that the copies are shorter than that, the thread pauses now
and then, or the event loop, which wakes slower than such a copy ends, would hardly get a turn.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import numpy as np

from radixtide.configs.errors import InvalidInput
from radixtide.tiers.copy_engine import Direction, LayerGate
from radixtide.tiers.copy_lanes import LaneEngine, Moved, PoolCopy, PoolPairs, Ticket, empty_digests
from radixtide.tiers.digests import Bytes, PageDigests
from radixtide.tiers.page_rows import PageIndex, as_run

STEP_BYTES: Final = 2**20
STEP_PAGES: Final = 128
"""Pages of a step at most: each costs a call to its digest."""
SHARED_BYTES: Final = 2**20
"""Jobs of less are not shared: waking another thread costs as much."""
SMALL_STEP: Final = 2**17
"""A step of fewer bytes ends before a waiting thread has woken."""
PAUSE_EVERY: Final = 4
PAUSE_S: Final = 5e-5


NICENESS: Final = 10
"""Of threads that copy; 0 is that of all others."""


class ThreadCopyEngine(LaneEngine):
    """Copies on CPU threads.

    Memory besides the pools: `step_bytes` for each of the 2 x `threads` threads.

    Args:
        pools: per pool its device tensors (per layer its parts, all on the CPU) and its HostPool.
        verify: take a digest of each page on backups and compare them on loads.
        threads: that share a job, for each direction.
        step_bytes: bytes that are copied, then digested, at a time.

    Raises:
        InvalidInput: tensors that are not on the CPU or not those of the host pool, or numbers
            below one.
    """

    def __init__(
        self,
        pools: PoolPairs,
        verify: bool = True,
        threads: int = 2,
        step_bytes: int = STEP_BYTES,
    ) -> None:
        if threads < 1 or step_bytes < 1:
            raise InvalidInput(f"threads and step_bytes must be positive: {threads}, {step_bytes}")
        for name, (parts, _) in pools.items():
            if not all(part.is_cpu for layer in parts for part in layer):
                raise InvalidInput(f"pool {name} is not on the CPU; its copies need CUDA")
        self._step_bytes = step_bytes
        super().__init__(pools, verify)
        # Only now, as threads of an engine that was refused would never end.
        self._crews: dict[Direction, _Crew] = {
            "backup": _Crew("radixtide-backup", threads - 1),
            "load": _Crew("radixtide-load", threads - 1),
        }

    def close(self) -> None:  # noqa: D102  # as in CopyEngine
        super().close()
        for crew in self._crews.values():
            crew.close()

    def begin(self, ticket: Ticket) -> Callable[[], Moved]:  # noqa: D102  # as in LaneEngine
        return lambda: self._move(ticket)

    def _move(self, ticket: Ticket) -> Moved:
        stand_back()
        for wait in (*ticket.waits, *ticket.fences):
            if wait.event is not None:
                wait.event.synchronize()
        job = ticket.job
        moved = Moved()
        if job.direction == "backup" and self.verify:
            moved.digests = empty_digests(ticket.copies)
        crew = self._crews[job.direction]
        size = sum(len(copy.host_pages) * copy.host.page_bytes for copy in ticket.copies)
        workers = crew.size if size >= SHARED_BYTES else 1
        progress = None if job.layers is None else _Progress(job.layers, workers)
        crew.share(workers, lambda worker: self._work(ticket, worker, workers, moved, progress))
        # Each worker found its own, in no order.
        for positions in moved.bad.values():
            positions.sort()
        return moved

    def _work(
        self, ticket: Ticket, worker: int, workers: int, moved: Moved, progress: _Progress | None
    ) -> None:
        """Move this worker's share of the pages of every transfer."""
        direction = ticket.job.direction
        shares = [
            _Share(copy, worker, workers, direction, self._step_bytes, self.verify)
            for copy in ticket.copies
            if len(copy.host_pages)
        ]
        stage = np.empty(self._step_bytes, dtype=np.uint8)
        for layer in range(max((copy.host.layers for copy in ticket.copies), default=0)):
            for share in shares:
                if layer < share.copy.host.layers:
                    share.move_layer(layer, ticket, stage)
            if progress is not None:
                progress.done(layer)
        for share in shares:
            share.settle(moved)


def stand_back() -> None:
    """Lower the priority of the calling thread: copies are to take what serving leaves.

    Where all cores are busy copying, an event loop that wakes up gets one at once instead of after
    a time slice of milliseconds. Only on Linux, where threads have priorities of their own.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


class _Progress:
    """Opens the layers that all workers are through with, but for the last."""

    def __init__(self, gate: LayerGate, workers: int) -> None:
        self._gate = gate
        self._missing = [workers] * (gate.layers - 1)
        self._lock = threading.Lock()

    def done(self, layer: int) -> None:
        if layer < len(self._missing):
            with self._lock:
                self._missing[layer] -= 1
                last = not self._missing[layer]
            if last:
                self._gate.open(layer)


class _Share:
    """The pages of one transfer that one worker moves."""

    def __init__(
        self,
        copy: PoolCopy,
        worker: int,
        workers: int,
        direction: Direction,
        step_bytes: int,
        verify: bool,
    ) -> None:
        pages = len(copy.host_pages)
        self.copy = copy
        self._first = pages * worker // workers
        self._stop = pages * (worker + 1) // workers
        self._backup = direction == "backup"
        self._direction = direction
        self._step_bytes = step_bytes
        self._steps: dict[int, list[_Step]] = {}
        self._small = 0
        self._pause = threading.Event()
        self._digests: PageDigests | None = None
        if verify and (self._backup or copy.expected is not None):
            self._digests = PageDigests(self._stop - self._first)

    def move_layer(self, layer: int, ticket: Ticket, stage: Bytes) -> None:
        for device_rows, host in zip(
            self.copy.device[layer], self.copy.host.arrays[layer], strict=True
        ):
            device: Bytes = device_rows.numpy()
            for step in self._steps_for(device.shape[1]):
                ticket.check()
                if device.shape[1] > self._step_bytes:
                    self._move_blocks(step, device, host, ticket)
                else:
                    self._move_rows(step, device, host, stage)

    def settle(self, moved: Moved) -> None:
        """Note what the digests say about this share."""
        if self._digests is not None:
            self.copy.settle(self._digests.values(), self._first, self._direction, moved)

    def _steps_for(self, piece: int) -> list[_Step]:
        pages = max(1, min(STEP_PAGES, self._step_bytes // piece))
        steps = self._steps.get(pages)
        if steps is None:
            steps = self._steps[pages] = [
                _Step(self.copy, self._first, at, min(at + pages, self._stop))
                for at in range(self._first, self._stop, pages)
            ]
        return steps

    def _move_rows(self, step: _Step, device: Bytes, host: Bytes, stage: Bytes) -> None:
        if self._backup:
            copy_rows(host, step.host, device, step.device, stage)
        else:
            copy_rows(device, step.device, host, step.host, stage)
        if self._digests is not None:
            # Rows of a run come from one iterator, cheaper than an index each.
            run = isinstance(step.device, slice)
            rows = device[step.device] if run else map(device.__getitem__, step.device_pages)
            for update, row in zip(self._digests.updates[step.own], rows, strict=True):
                update(row)
        if device.shape[1] * len(step.device_pages) < SMALL_STEP:
            self._small += 1
            if not self._small % PAUSE_EVERY:
                self._pause.wait(PAUSE_S)

    def _move_blocks(self, step: _Step, device: Bytes, host: Bytes, ticket: Ticket) -> None:
        """Move one page whose piece is longer than a step."""
        (page,) = step.device_pages
        device_row, host_row = device[page], host[step.host][0]
        for at in range(0, len(device_row), self._step_bytes):
            ticket.check()
            ends = device_row[at : at + self._step_bytes], host_row[at : at + self._step_bytes]
            source, target = ends if self._backup else ends[::-1]
            np.copyto(target, source)
            if self._digests is not None:
                self._digests.updates[step.own.start](ends[0])


class _Step:
    """Pages that are moved at a time."""

    __slots__ = ("device", "device_pages", "host", "own")

    def __init__(self, copy: PoolCopy, first: int, start: int, stop: int) -> None:
        # Positions among the pages of the worker's share.
        self.own = slice(start - first, stop - first)
        self.device: PageIndex = as_run(copy.device_pages[start:stop])
        self.host: PageIndex = as_run(copy.host_pages[start:stop])
        self.device_pages: list[int] = copy.device_pages[start:stop].tolist()


def copy_rows(target: Bytes, to: PageIndex, source: Bytes, of: PageIndex, stage: Bytes) -> None:
    """Copy rows `of` of `source` to rows `to` of `target`, uint8 (pages, piece) each.

    `stage` has room for them. Rows are distinct and exist.
    """
    if isinstance(of, slice):
        if isinstance(to, slice):
            np.copyto(target[to], source[of])
        else:
            target[to] = source[of]
        return
    if not source.flags.c_contiguous:
        # take() would first copy the whole of such a source.
        target[to] = source[of]
        return
    if isinstance(to, slice) and target.flags.c_contiguous:
        # With "clip" it writes to `out` directly.
        np.take(source, of, axis=0, out=target[to], mode="clip")
        return
    gathered = stage[: len(of) * source.shape[1]].reshape(len(of), source.shape[1])
    np.take(source, of, axis=0, out=gathered, mode="clip")
    target[to] = gathered


class _Crew:
    """Threads that help the lane's own with one job at a time."""

    def __init__(self, name: str, helpers: int) -> None:
        self.size = helpers + 1
        self._orders: list[queue.SimpleQueue[Callable[[], None] | None]] = [
            queue.SimpleQueue() for _ in range(helpers)
        ]
        self._answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._help, args=(orders,), name=f"{name}-{at}", daemon=True)
            for at, orders in enumerate(self._orders, start=1)
        ]
        for thread in self._threads:
            thread.start()

    def share(self, workers: int, work: Callable[[int], None]) -> None:
        """Call ``work(i)`` for each worker, the last here; return or raise when all have ended."""
        for worker, orders in enumerate(self._orders[: workers - 1]):
            orders.put(partial(work, worker))
        problems: list[BaseException | None] = []
        try:
            work(workers - 1)
        finally:
            problems.extend(self._answers.get() for _ in range(workers - 1))
        for problem in problems:
            if problem is not None:
                raise problem

    def close(self) -> None:
        for orders in self._orders:
            orders.put(None)
        for thread in self._threads:
            thread.join()

    def _help(self, orders: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        stand_back()
        while (order := orders.get()) is not None:
            problem: BaseException | None = None
            try:
                order()
            except Exception as error:  # noqa: BLE001  # raised again by the one who asked
                problem = error
            self._answers.put(problem)
