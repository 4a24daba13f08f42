"""Running a case: one loop, one world, its schedulers, and what must hold when all is over."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, BinaryIO, Final

import msgspec

from radixtide.configs.errors import CallTimeout, RadixtideError
from radixtide.simulation.case import Case
from radixtide.simulation.journal import JournalWriter
from radixtide.simulation.journal_records import Header
from radixtide.simulation.leftovers import leftovers
from radixtide.simulation.loop import Deadlock, SimulatedLoop
from radixtide.simulation.plan import FaultPlan
from radixtide.simulation.ranked import Ranks
from radixtide.simulation.scheduler import Scheduler
from radixtide.simulation.scheduler_base import drop_call
from radixtide.simulation.world import StopRun, World

QUIET_S: Final = 40.0
"""Seconds after which nothing may be going on any more that was begun before."""
TRIES: Final = 100
LOOKS: Final = 20_000
AGAIN_S: Final = 3.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a run.

    ``steps``: that were taken. ``answers_compared``: with the oracle. ``violations``: what was
    wrong, in words; the run ends with the step in which there is one. ``virtual_s``: of the loop's
    time, ``wall_s``: of this machine's. ``digest``: of all answers, the same for the same case.
    ``tree``: as it was when the run ended early. ``plan``: where there are violations, the faults
    that have happened, each named by what it hit.
    """

    seed: int
    steps: int
    faults_injected: int
    faults_by_kind: dict[str, int]
    messages: int
    answers_compared: int
    violations: list[str]
    virtual_s: float
    wall_s: float
    digest: str
    tree: str | None = None
    plan: FaultPlan | None = None


def run_case(
    case: Case,
    *,
    journal: Path | BinaryIO | None = None,
    stop_at: int | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Outcome:
    """Run a case and return what came of it; about a millisecond a step.

    `journal`: every message and what else happened goes there. `stop_at`: end after so many steps,
    with the tree as it is then, and nothing given back. `on_step`: told the number of steps after
    each.

    Raises:
        ConfigError: the setup can not be.
        OSError: the journal can not be written.
    """
    loop = SimulatedLoop(case.seed)
    writer = None
    if journal is not None:
        writer = JournalWriter(journal, loop.time, Header(seed=case.seed, case=case.to_json()))
    began = perf_counter()
    try:
        with _undisturbed():
            world = World(case, loop, writer, stop_at, on_step)
            _drive(world)
    finally:
        if writer is not None:
            writer.close()
    counts: dict[str, int] = {
        kind: count for kind, count in sorted(world.injector.counts.items()) if count
    }
    return Outcome(
        seed=case.seed,
        steps=world.ended,
        faults_injected=sum(counts.values()),
        faults_by_kind=counts,
        messages=world.injector.messages,
        answers_compared=world.oracle.compared,
        violations=world.violations,
        virtual_s=loop.time() - 1000.0,
        wall_s=perf_counter() - began,
        digest=world.digest,
        tree=world.tree,
        plan=world.injector.exact() if world.violations else None,
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let nothing of the process show in a run, and nothing of the run in the process's log.

    What a plan of faults makes happen, the journal tells.
    """
    log = logging.getLogger("radixtide")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    # Objects die when their last name goes, not when the collector happens to run.
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        log.setLevel(before)
        if collects:
            gc.enable()


def _drive(world: World) -> None:
    loop = world.loop
    try:
        loop.run(_run(world))
    except Deadlock as error:
        world.found(f"deadlock: {error}")
    if not world.violations:
        world.found(*(f"loop: {_told(one)}" for one in loop.errors))


def _told(context: dict[str, Any]) -> str:
    error = context.get("exception")
    return f"{context.get('message')}: {type(error).__name__}: {error}"


async def _run(world: World) -> None:
    await world.start()
    ranks = Ranks(world) if world.setup.ranks > 1 else None
    scripts = world.case.scripts
    if ranks is not None:
        work = [ranks.run(script) for script in scripts[:1]]
        everybody: list[Scheduler] | list[Ranks] = [ranks]
    else:
        everybody = [Scheduler(world, number) for number in range(len(scripts))]
        work = [one.run(script) for one, script in zip(everybody, scripts, strict=True)]
    tasks = [world.loop.create_task(one) for one in work]
    if tasks:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    stopped = False
    for task in tasks:
        error = task.exception() if task.done() and not task.cancelled() else None
        if isinstance(error, StopRun):
            stopped = True
        elif error is not None:
            raise error
    if stopped or world.violations:
        for _ in range(LOOKS):
            # Somebody may be in the middle of an edit, which ends soon.
            world.tree = world.show_tree()
            if world.tree is not None:
                break
            await asyncio.sleep(1e-4)
        await _give_up(world, tasks, everybody)
        return
    await finish(world, everybody)


async def _give_up(
    world: World, tasks: list[asyncio.Task[None]], everybody: list[Scheduler] | list[Ranks]
) -> None:
    """End a run at once: nothing that comes of it is of interest."""
    world.injector.heal()
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for call in list(world.calls):
        await drop_call(call)
    for one in everybody:
        one.drop_handles()


async def finish(world: World, schedulers: list[Scheduler] | list[Ranks]) -> None:
    """Let faults end, give everything back, and see that nothing is left."""
    world.injector.heal()
    for one in schedulers:
        await one.end_all()
    if world.violations:
        return
    # What nobody waits for and was lost is sent again after a while.
    await asyncio.sleep(AGAIN_S)
    for rank in range(world.setup.ranks):
        await _empty(world, rank)
        if world.violations:
            return
    world.look()
    for cache in world.caches:
        await world.close(cache, 5.0)
    await asyncio.sleep(QUIET_S)
    left = [task for task in world.loop.tasks() if task is not asyncio.current_task()]
    world.found(*(f"the end: a task is left: {task!r}" for task in left))
    timers = sum(not timer.cancelled() for _, _, timer in world.loop._timers)
    if timers:
        world.found(f"the end: {timers} timers are set, {QUIET_S:g} s after the cache was closed")


async def _empty(world: World, rank: int) -> None:
    """See that nobody holds anything of a cache any more, and that all of it can go."""
    cache = world.caches[rank]
    for _ in range(TRIES):
        try:
            await cache.drain(20.0)
            break
        except CallTimeout as error:
            world.found(f"the end: {error}")
            return
        except RadixtideError:
            await asyncio.sleep(0.01)
    for component, slots in world.doubtful[rank]:
        for page in slots.reshape(-1, 1 if component == "mamba" else world.setup.page_size):
            # Calls that ended in doubt: whatever of these is still held is given back now.
            try:
                await cache.free(page, component)
            except RadixtideError:
                continue
    stats = await cache.stats()
    if stats.receipts or stats.requests:
        world.found(f"the end: {stats.receipts} locks and {stats.requests} requests are left")
    for name, tiers in stats.pools.items():
        for tier, one in tiers.items():
            if one.held or one.in_flight or (one.protected and not stats.pinned):
                world.found(f"the end: {name} on {tier}: {one}")
    await asyncio.sleep(AGAIN_S)
    world.found(*(f"the end: {line}" for line in leftovers(cache)))


__all__ = ("Outcome", "run_case")
