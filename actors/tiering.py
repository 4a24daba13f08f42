"""The tiering actor: it alone moves data between device, host memory and storage.

It is told what to move and reports when that is over; it decides nothing about nodes. Copies go to
the copy engine, which works beside the loop; storage is awaited in tasks of its own, so that no
handler ever waits. A job's number makes what comes twice act once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from radixtide.actors.actor import Actor, Handler
from radixtide.actors.storage_jobs import StorageJobs
from radixtide.actors.system import ActorSystem
from radixtide.actors.tier_messages import (
    CopyDone,
    Fence,
    FetchDone,
    Found,
    Lookup,
    Report,
    StartCopy,
    StartFetch,
    StartStore,
    StopFetch,
    StoreDone,
    Told,
)
from radixtide.tiers.copy_engine import CopyEngine, CopyJob, CopyResult

log = logging.getLogger("radixtide.actors")

REMEMBERED = 4096
"""Jobs that are over and remembered, so that a message that comes late does not begin one anew."""


def report_of_failure(m: Told) -> Report | None:
    """Return what ends the job that `m` was to begin, when that could not be done."""
    match m:
        case StartCopy():
            if m.gate is not None:
                m.gate.fail("the copy could not be begun")
            return CopyDone(m.job, False, "the copy could not be begun")
        case StartStore():
            return StoreDone(m.job, 0, b"")
        case Lookup():
            return Found(m.job, m.skip, {})
        case StartFetch():
            return FetchDone(m.job, 0)
        case _:
            return None


class TieringActor(Actor):
    """Copies, stores and fetches.

    ``engine``: does the copies. ``report``: brings a report to the coordinator.
    ``slot_bytes``: what a slot of each pool takes.
    """

    name = "tiering"

    def __init__(self, engine: CopyEngine, slot_bytes: Mapping[str, int]) -> None:
        self.engine = engine
        self._slot_bytes = slot_bytes
        self._moved = {"backup_bytes": 0, "load_bytes": 0, "stored_bytes": 0, "fetched_bytes": 0}
        self.report: Callable[[Any], None]
        self._loop: asyncio.AbstractEventLoop
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._running: set[int] = set()
        self._over: dict[int, None] = {}

    def attach(self, system: ActorSystem, report: Callable[[Any], None]) -> None:
        """Note the system on whose loop work is done, and who gets the reports."""
        self._loop = system.loop
        self._own = system.own
        self.report = report

    def handlers(self) -> Mapping[type, Handler]:
        """Return one handler a message."""
        return {
            StartCopy: self.start_copy,
            StartStore: self.start_store,
            Lookup: self.lookup,
            StartFetch: self.start_fetch,
            StopFetch: self.stop_fetch,
            Fence: self.fence,
        }

    def has_begun(self, m: Told) -> bool:
        """Return whether what `m` asks for is under way, so that its report will come."""
        number = getattr(m, "job", 0)
        return number in self._running or (-number if isinstance(m, StartFetch) else number) in (
            self._tasks
        )

    @property
    def jobs(self) -> int:
        """How many jobs are under way."""
        return len(self._running) + len(self._tasks)

    def counters(self) -> dict[str, int]:
        """Return the bytes moved so far, by direction."""
        return dict(self._moved)

    async def close(self) -> None:
        """Wait until no byte moves any more, and let go of the engine."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(self.engine.close)

    # -- copies ---------------------------------------------------------------------

    def start_copy(self, m: StartCopy) -> None:
        """Hand a copy to the engine."""
        if m.job in self._running or m.job in self._over:
            return
        self._running.add(m.job)
        loop = self._loop

        def on_done(result: CopyResult) -> None:
            # Called on a thread of the engine.
            try:
                loop.call_soon_threadsafe(self._copied, m, result)
            except RuntimeError:
                # The loop is closed: nobody is left to hear of it.
                return

        job = CopyJob(m.job, m.direction, tuple(m.transfers), on_done, m.after, m.digests, m.gate)
        try:
            self.engine.submit(job)
        except Exception as error:  # noqa: BLE001  # whatever it is, the job is over
            self._copied(m, CopyResult(m.job, False, str(error)))

    def _copied(self, m: StartCopy, result: CopyResult) -> None:
        if m.job not in self._running:
            return
        self._running.discard(m.job)
        self._remember(m.job)
        if result.ok:
            self._moved[f"{m.direction}_bytes"] += sum(
                len(one.host) * self._slot_bytes.get(one.pool, 0) for one in m.transfers
            )
        if m.gate is not None:
            if result.ok:
                m.gate.open_all()
            else:
                m.gate.fail(result.error or "the copy failed")
        self.report(CopyDone(m.job, result.ok, result.error, result.digests, result.bad))

    def fence(self, m: Fence) -> None:
        """Let later loads wait for an event."""
        self.engine.fence(m.event)

    # -- storage --------------------------------------------------------------------

    def start_store(self, m: StartStore) -> None:
        """Write a node."""
        self._begin(m.job, m, lambda storage: storage.store(m))

    def lookup(self, m: Lookup) -> None:
        """Ask what storage has."""
        if m.job not in self._tasks and m.job not in self._over:
            m.storage.note_lookup(m)
        self._begin(m.job, m, lambda storage: storage.lookup(m))

    def start_fetch(self, m: StartFetch) -> None:
        """Read pages."""
        m.storage.note_fetch(m)
        self._begin(-m.job, m, lambda storage: storage.fetch(m))

    def stop_fetch(self, m: StopFetch) -> None:
        """Have a fetch end with what it has."""
        report = m.storage.stop(m.job) if m.storage is not None else None
        if report is not None:
            self.report(report)

    def _begin(
        self,
        number: int,
        m: StartStore | Lookup | StartFetch,
        work: Callable[[StorageJobs], Coroutine[Any, Any, Any]],
    ) -> None:
        """Run `work` in a task. A fetch goes by the negative number: its lookup had the other."""
        if number in self._tasks or number in self._over:
            return
        storage: StorageJobs = m.storage

        async def run() -> None:
            try:
                report = await work(storage)
            except Exception:
                log.exception("job %s failed", number)
                report = report_of_failure(m)
            finally:
                self._tasks.pop(number, None)
            self._remember(number)
            self._moved["stored_bytes"] += storage.take_stored()
            self._moved["fetched_bytes"] += storage.take_fetched()
            if report is not None:
                self.report(report)

        self._tasks[number] = self._own(run())

    def _remember(self, number: int) -> None:
        self._over[number] = None
        while len(self._over) > REMEMBERED:
            self._over.pop(next(iter(self._over)))
