"""Worker threads of a store, and who may touch the caller's memory when.

Threads are daemons of our own rather than a pool of the standard library's: one that hangs in a
dead disk or server must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, TypeVar

from radixtide.tiers.storage.base import StorageClosed

T = TypeVar("T")


class Withdrawn(Exception):
    """The call was cancelled: its memory must not be touched any more. Ends the job, unseen."""


class Permit:
    """A job's leave to touch the memory that the call was given.

    The worker touches it inside `touching` only, for a copy at a time; a cancelled call takes the
    leave away and waits for a copy that runs. Two flags and the order in which each side sets and
    reads them do it without a lock, which could block the event loop.
    """

    __slots__ = ("_inside", "_left", "_loop", "_withdrawn")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = asyncio.Event()
        self._inside = False
        self._withdrawn = False

    @contextmanager
    def touching(self) -> Iterator[None]:
        """Hold the caller's memory in place meanwhile; Withdrawn if the call was cancelled."""
        self._inside = True
        try:
            if self._withdrawn:
                raise Withdrawn
            yield
        finally:
            self._inside = False
            if self._withdrawn:
                _tell(self._loop, self._left.set)

    def check(self) -> None:
        """Raise Withdrawn if the call was cancelled."""
        if self._withdrawn:
            raise Withdrawn

    async def withdraw(self) -> None:
        """Take the leave away; returns when nobody touches the memory, whatever is cancelled."""
        self._withdrawn = True
        while True:
            self._left.clear()
            if not self._inside:
                return
            try:
                await self._left.wait()
            except asyncio.CancelledError:
                # A cancellation is on its way out of the caller already, and nothing is lost: a
                # copy ends soon.
                continue


class Job(Generic[T]):
    """One piece of work for a thread, and where its result goes. `tag`: what it is about."""

    __slots__ = ("future", "permit", "tag", "work")

    def __init__(
        self, work: Callable[[Permit], T], loop: asyncio.AbstractEventLoop, tag: object = None
    ) -> None:
        self.work = work
        self.tag = tag
        self.permit = Permit(loop)
        self.future: Future[T] = Future()

    def run(self) -> None:
        """Do the work, on the thread that calls; a cancelled job is passed over."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.work(self.permit)
        except BaseException as error:  # noqa: BLE001 - it is the caller's, whatever it is
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Workers:
    """Threads in lanes: a queue each, with so many threads.

    `lanes`: threads a lane. `name` is part of the threads' names.
    """

    def __init__(self, name: str, lanes: Mapping[str, int]) -> None:
        self.name = name
        self._sizes: Final = dict(lanes)
        self._queues: Final[dict[str, SimpleQueue[Job[Any] | None]]] = {
            lane: SimpleQueue() for lane in lanes
        }
        self._closed = False
        self._running = sum(lanes.values())
        self._last = threading.Lock()
        self._shut: Callable[[], None] = _nothing
        self._ended: Future[None] = Future()

    def start(self) -> None:
        """Start the threads. Waits for them, so not on the event loop."""
        for lane, count in self._sizes.items():
            for number in range(count):
                threading.Thread(
                    target=self._serve,
                    args=(self._queues[lane],),
                    name=f"radixtide-{self.name}-{lane}-{number}",
                    daemon=True,
                ).start()

    def submit(self, lane: str, work: Callable[[Permit], T], tag: object = None) -> Job[T]:
        """Queue `work` on a lane, in order, and return the job."""
        if self._closed:
            raise StorageClosed(f"{self.name}: the store is closed")
        job = Job(work, asyncio.get_running_loop(), tag)
        self._queues[lane].put(job)
        return job

    async def run(self, lane: str, work: Callable[[Permit], T], tag: object = None) -> T:
        """Let a thread of `lane` do `work`, and return its result or raise its error.

        Cancelled: work that did not begin never does; work that runs may touch the caller's memory
        no more when the cancellation comes out, and ends when it likes.
        """
        job = self.submit(lane, work, tag)
        try:
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            await job.permit.withdraw()
            raise

    def take(self, lane: str) -> Job[Any] | None:
        """Return the next job of a lane, for one of its own threads; None if there is none yet.

        The thread answers for it: it runs the job, or settles its future.
        """
        queue = self._queues[lane]
        try:
            job = queue.get_nowait()
        except Empty:
            return None
        if job is None:
            queue.put(None)
        return job

    async def close(self, shut: Callable[[], None]) -> None:
        """Let the threads end after the job they are at; the last one calls `shut`.

        Work that waits gets StorageClosed. A cancelled close goes on without its caller.
        """
        if not self._closed:
            self._closed = True
            self._shut = shut
            for lane, count in self._sizes.items():
                queue = self._queues[lane]
                self._drop(queue)
                for _ in range(count):
                    queue.put(None)
        await asyncio.shield(asyncio.wrap_future(self._ended))

    def _serve(self, queue: SimpleQueue[Job[Any] | None]) -> None:
        while (job := queue.get()) is not None:
            job.run()
            # Between two jobs a thread must not keep the last one's memory alive.
            del job
        with self._last:
            self._running -= 1
            if self._running:
                return
        try:
            self._shut()
        except BaseException as error:  # noqa: BLE001 - it is for who closes
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    def _drop(self, queue: SimpleQueue[Job[Any] | None]) -> None:
        while True:
            try:
                job = queue.get_nowait()
            except Empty:
                return
            if job is not None and job.future.set_running_or_notify_cancel():
                job.future.set_exception(StorageClosed(f"{self.name}: the store is closed"))


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        # The loop was closed with the call still waiting: nobody is there to be told.
        return


def _nothing() -> None:
    return
