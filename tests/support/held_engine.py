"""A copy engine whose jobs end when a test says so; the real engine below it moves the bytes.

A job can be held in two ways. *Copied*: its bytes move at once, and only the news of it is kept
back. *Late*: nothing is read or written before the release, so whoever reuses what the job reads
or fills meanwhile makes wrong bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from radixtide.tiers.copy_engine import CopyEngine, CopyJob, CopyResult, Direction
from support.actors import until

How = Literal["pass", "copied", "late"]

TURNS_MAX = 2_000_000
"""Turns of the loop in which a thread of the real engine must have come to its end."""


class Held:
    """A job that waits for its release. ``result``: what the real engine said of it."""

    def __init__(self, job: CopyJob, how: How, end: Callable[[CopyResult], None]) -> None:
        self.job = job
        self.how = how
        self.end = end
        self.result: CopyResult | None = None
        self.let_go = False

    def note(self, result: CopyResult) -> None:
        """Take the real result; on a thread of the real engine."""
        self.result = result
        if self.let_go:
            self.end(result)


class HeldEngine(CopyEngine):
    """Holds what `choose` says; releases, fails and cancels what it holds.

    ``seen``: every job, in order. ``waiting``: those that are held. ``under_way``: numbers of the
    jobs that are not over. ``spoil``: writes rubbish into what a failing job was to fill, as one
    would find it there. ``begun``: those that the real engine has, in its order.
    """

    def __init__(self, inner: CopyEngine, spoil: Callable[[CopyJob], None]) -> None:
        self.inner = inner
        self.spoil = spoil
        self.seen: list[CopyJob] = []
        self.waiting: list[Held] = []
        self.under_way: set[int] = set()
        self.begun: list[CopyJob] = []
        self.fences: list[Any] = []
        self.choose: Callable[[CopyJob], How] = lambda _: "pass"

    # -- what an engine does ------------------------------------------------------------

    def submit(self, job: CopyJob) -> None:
        how = self.choose(job)
        self.seen.append(job)
        self.under_way.add(job.number)

        def end(result: CopyResult) -> None:
            self.under_way.discard(job.number)
            job.on_done(result)

        if how == "pass":
            self._begin(job, end)
            return
        held = Held(job, how, end)
        self.waiting.append(held)
        if how == "copied":
            self._begin(job, held.note)

    def _begin(self, job: CopyJob, end: Callable[[CopyResult], None]) -> None:
        self.begun.append(job)
        self.inner.submit(msgspec.structs.replace(job, on_done=end))

    def fence(self, event: Any) -> None:
        self.fences.append(event)
        self.inner.fence(event)

    def cancel(self, number: int) -> bool:
        for held in self.waiting:
            if held.job.number == number and held.how == "late":
                self.waiting.remove(held)
                held.end(CopyResult(number, False, "cancelled"))
                return True
        return self.inner.cancel(number)

    def close(self) -> None:
        for held in list(self.waiting):
            if held.how == "late":
                self.cancel(held.job.number)
            else:
                self._let_go(held)
        self.inner.close()

    # -- what a test does -----------------------------------------------------------------

    def hold(self, *directions: Direction, how: How = "late") -> None:
        """Hold jobs of `directions` (none: of both) from now on."""
        self.choose = lambda job: how if not directions or job.direction in directions else "pass"

    def hold_no_more(self) -> None:
        """Let jobs to come pass; those that wait go on waiting."""
        self.choose = lambda _: "pass"

    def held(self, direction: Direction | None = None) -> list[CopyJob]:
        """Return the jobs that are held, oldest first."""
        jobs = [held.job for held in self.waiting]
        return [job for job in jobs if direction in (None, job.direction)]

    def release(self, jobs: Iterable[CopyJob] | None = None) -> None:
        """Let jobs (None: all that are held) come to their end."""
        for held in self._chosen(jobs):
            self._let_go(held)

    def fail(self, jobs: Iterable[CopyJob] | None = None, error: str = "planted") -> None:
        """Let jobs fail, with rubbish in what they were to fill; those copied must have been."""
        for held in self._chosen(jobs):
            job = held.job
            assert held.how == "late" or held.result is not None
            self.waiting.remove(held)
            self.spoil(job)
            if job.layers is not None:
                job.layers.fail(error)
            held.end(CopyResult(job.number, False, error))

    async def arrived(self, count: int, direction: Direction | None = None) -> list[CopyJob]:
        """Wait until `count` jobs are held, and those that are copied at once are; return them."""
        await until(lambda: len(self.held(direction)) >= count, TURNS_MAX)
        await until(
            lambda: all(one.how == "late" or one.result is not None for one in self.waiting),
            TURNS_MAX,
        )
        return self.held(direction)

    def moving(self) -> bool:
        """Return whether the real engine moves bytes, and is not waiting for work on the device."""
        waiting = {held.job.number: held for held in self.waiting}
        self.begun = [job for job in self.begun if job.number in self.under_way]
        blocked: set[str] = {"load"} if any(not one.done() for one in self.fences) else set()
        for job in self.begun:
            held = waiting.get(job.number)
            if held is not None and held.result is not None:
                continue
            if any(one is not None and not one.done() for one in job.after):
                blocked.add(job.direction)
            if job.direction not in blocked:
                return True
        return False

    def _chosen(self, jobs: Iterable[CopyJob] | None) -> list[Held]:
        if jobs is None:
            return list(self.waiting)
        numbers = [job.number for job in jobs]
        return [held for held in self.waiting if held.job.number in numbers]

    def _let_go(self, held: Held) -> None:
        self.waiting.remove(held)
        if held.how == "late":
            self._begin(held.job, held.end)
            return
        held.let_go = True
        if held.result is not None:
            held.end(held.result)
