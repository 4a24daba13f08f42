"""Several ranks that run the same script, call by call, side by side.

Each rank has a cache and a scheduler of its own. A call that waits for a transfer is answered in a
``step`` only, which all ranks have to make at the same place among their calls; so after each call
they meet, and as long as one of them waits for its answer, all of them make a step.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from radixtide.actors.agreement import AgreementFailed
from radixtide.actors.conversing import ConversingCell
from radixtide.actors.inspection import tree_now
from radixtide.simulation import script as s
from radixtide.simulation.scheduler import Scheduler
from radixtide.simulation.scheduler_base import EraOver
from radixtide.simulation.world import StopRun, World

CALM: Final = 3
"""Looks in a row at which an actor had nothing to do, after which it has nothing to do."""
LOOK_S: Final = 2e-4
STEP_S: Final = 90.0
LOOK_MAX_S: Final = 0.05
TREES_EVERY: Final = 8
CRASHES: Final = ("crash_before", "crash_after", "kill")


class Apart(Exception):
    """The ranks are not at the same place any more."""


class Meeting:
    """Where the ranks wait for each other."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._here: dict[int, bool] = {}
        self._gone = 0
        self._all: asyncio.Future[bool] | None = None

    async def meet(self, rank: int, done: bool) -> bool:
        """Wait for all ranks; return whether all are `done`. Raises Apart where one has left."""
        if self._gone:
            raise Apart
        self._here[rank] = done
        if len(self._here) == self.ranks:
            everyone = all(self._here.values())
            self._here.clear()
            waiting, self._all = self._all, None
            if waiting is not None and not waiting.done():
                waiting.set_result(everyone)
            return everyone
        if self._all is None:
            self._all = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._all)

    def leave(self) -> None:
        """Note that a rank is through its step; who still waits for it waits for nothing."""
        self._gone += 1
        waiting, self._all = self._all, None
        if waiting is not None and not waiting.done():
            waiting.set_exception(Apart())

    def begin(self) -> None:
        """Begin a step anew."""
        self._gone = 0
        self._here.clear()
        self._all = None


class RankedScheduler(Scheduler):
    """The scheduler of one rank: a call is over when it is answered on all of them."""

    def __init__(self, world: World, rank: int, meeting: Meeting) -> None:
        super().__init__(world, 0, rank)
        self.meeting = meeting

    async def wait_for(self, task: asyncio.Task[Any], seconds: float) -> None:
        """Wait for the answer; make steps as long as any rank has none."""
        end = self.world.loop.time() + seconds
        while True:
            await self._rest(task)
            if await self.meeting.meet(self.rank, task.done()):
                return
            late = self.world.loop.time() > end
            if await self.meeting.meet(self.rank, late):
                return
            await self._step()

    async def _rest(self, task: asyncio.Task[Any]) -> None:
        """Wait until a call is answered, or waits for a step."""
        cell = self.cache._coordinator  # a look past the mailboxes
        assert isinstance(cell, ConversingCell)
        calm = 0
        pause = LOOK_S
        while not task.done() and calm < CALM:
            await asyncio.sleep(pause)
            if cell.quiet and not cell.busy and not cell.stalled:
                calm += 1
                pause = LOOK_S
            else:
                # A lost message is sent again after a second: looking all the time costs.
                calm = 0
                pause = min(2 * pause, LOOK_MAX_S)

    async def _step(self) -> None:
        step = self.world.loop.create_task(self.cache.step())
        await asyncio.wait((step,), timeout=STEP_S)
        if not step.done():
            self.wrong(f"step: hangs, with no answer after {STEP_S:g} s")
            step.cancel()
            raise Apart
        error = step.exception()
        if error is None:
            return
        if self.is_over:
            raise EraOver
        if isinstance(error, AgreementFailed):
            self.said(f"step {type(error).__name__}")
            raise Apart
        self.wrong(f"step: raised {type(error).__name__}: {error}")

    async def agree(self, _: s.Agree) -> None:
        """Let take effect what all ranks have seen."""
        await self.current()
        await self._step()


class Ranks:
    """All ranks of a run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.meeting = Meeting(world.setup.ranks)
        self.schedulers = [
            RankedScheduler(world, rank, self.meeting) for rank in range(world.setup.ranks)
        ]
        self._crashes = 0
        self.apart = 0

    async def run(self, script: s.Script) -> None:
        """Take all steps. Raises StopRun where the run is to end."""
        for number, step in enumerate(script, 1):
            if self.world.violations:
                raise StopRun
            self.world.steps = number
            if isinstance(step, s.Restart):
                await self._restart(bool(step.hard % 2))
            else:
                await self._together(step)
            self.world.step_over()

    async def _together(self, step: s.AnyStep) -> None:
        self.meeting.begin()
        tasks = [
            self.world.loop.create_task(self._one(scheduler, step)) for scheduler in self.schedulers
        ]
        await asyncio.wait(tasks)
        apart = self._errors(tasks)
        first = self.schedulers[0].say
        if apart or any(other.say != first for other in self.schedulers[1:]):
            await self._parted()
        elif not self.world.steps % TREES_EVERY:
            trees = [tree_now(cache) for cache in self.world.caches]
            if None not in trees and len(set(trees)) > 1:
                await self._parted()

    @staticmethod
    def _errors(tasks: list[asyncio.Task[None]]) -> bool:
        """Return whether the ranks have parted; raise what else went wrong."""
        apart = False
        for task in tasks:
            error = task.exception()
            if error is not None and not isinstance(error, Apart):
                raise error
            apart = apart or error is not None
        return apart

    async def _one(self, scheduler: RankedScheduler, step: s.AnyStep) -> None:
        try:
            await scheduler.attempt(step, self.world.steps)
        finally:
            self.meeting.leave()

    async def _parted(self) -> None:
        """See whether the ranks may be apart: only a crash may lose a rank what others have."""
        world = self.world
        counts = world.injector.counts
        crashes = sum(counts[kind] for kind in CRASHES if kind in counts)
        if crashes == self._crashes:
            told = [f"rank {one.rank}: {'; '.join(one.say)}" for one in self.schedulers]
            world.found(f"step {world.steps}: the ranks are apart: {' | '.join(told)[:400]}")
            return
        self._crashes = crashes
        self.apart += 1
        world.answered("apart\n")
        await self._restart(hard=True)

    async def _restart(self, hard: bool) -> None:
        await self.world.restart(hard)
        self.world.share_prompts()
        for one in self.schedulers:
            await one.leave()
            one.say = []

    def drop_handles(self) -> None:
        """Forget all handles, with nobody to let go of them."""
        for one in self.schedulers:
            one.drop_handles()

    async def end_all(self) -> None:
        """Give back all that is held, on all ranks alike; wait until nothing moves."""
        self.meeting.begin()
        tasks = [self.world.loop.create_task(self._end(one)) for one in self.schedulers]
        await asyncio.wait(tasks)
        if self._errors(tasks):
            await self._parted()

    async def _end(self, scheduler: RankedScheduler) -> None:
        try:
            await scheduler.end_all()
            await scheduler.call("drain", lambda: scheduler.cache.drain(30.0), waits=True)
        finally:
            self.meeting.leave()


__all__ = ("Apart", "Meeting", "RankedScheduler", "Ranks")
