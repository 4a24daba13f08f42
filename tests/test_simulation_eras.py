"""Schedulers of the simulator whose cache another takes the place of, while they are busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from radixtide.components.api import AllocateParams, AllocateResult
from radixtide.simulation import script as s
from radixtide.simulation.case import Case
from radixtide.simulation.loop import SimulatedLoop
from radixtide.simulation.plan import FaultPlan
from radixtide.simulation.ranked import Ranks
from radixtide.simulation.run import run_case
from radixtide.simulation.scheduler import Scheduler
from radixtide.simulation.scheduler_base import EraOver
from radixtide.simulation.setup import Setup
from radixtide.simulation.world import World
from support.actors import until

SEEDS = range(8)
PROMPT = s.Prompt(shared=3)


def in_a_world(
    seed: int, work: Callable[[World, Scheduler], Coroutine[Any, Any, None]], ranks: int = 1
) -> None:
    """Run `work` with an open world and a scheduler in it."""
    loop = SimulatedLoop(seed)
    case = Case(setup=Setup(ranks=ranks), plan=FaultPlan.none(), seed=seed, scripts=((), ()))
    world = World(case, loop, None, None, None)

    async def run() -> None:
        await world.start()
        await work(world, Scheduler(world, 0))
        for cache in world.caches:
            await world.close(cache, 1.0)

    loop.run(run())
    assert world.violations == []


@pytest.mark.parametrize("hard", [False, True])
def test_a_call_that_begins_late_does_not_reach_the_cache_that_comes_next(hard: bool) -> None:
    async def work(world: World, one: Scheduler) -> None:
        begins = asyncio.Event()

        async def allocate() -> AllocateResult:
            await begins.wait()
            return await one.cache.allocate(AllocateParams(4))

        row = one.cache.req_to_token_pool.alloc()
        call = world.loop.create_task(one.call("allocate", allocate))
        await until(lambda: bool(world.calls))
        await world.restart(hard)
        assert one.cache.req_to_token_pool.is_taken(row)
        begins.set()
        with pytest.raises(EraOver):
            await call
        stats = await world.caches[0].stats()
        assert stats.pools["full"]["device"].held == 0
        await one.leave()
        assert one.cache is world.caches[0]

    in_a_world(1, work)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_waits_for_a_cache_gets_none_that_is_about_to_be_replaced(seed: int) -> None:
    async def work(world: World, one: Scheduler) -> None:
        async def twice() -> None:
            await world.restart(False)
            await world.restart(False)

        restarting = world.loop.create_task(twice())
        await until(lambda: not world.is_open)
        await one.leave()
        assert world.is_open
        assert one.era == world.era == 2
        assert one.cache is world.caches[0]
        await restarting

    in_a_world(seed, work)


@pytest.mark.parametrize("leave", [0, 1])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_hold_of_a_cache_that_is_closed_is_no_lock_of_the_next(seed: int, leave: int) -> None:
    # Both locks are the first of their cache, so their receipts have one number.
    held = (s.Insert(prompt=PROMPT), s.Hold(prompt=PROMPT, pause=20, leave=leave))
    restarts = (
        s.Pause(ms=5),
        s.Restart(),
        s.Insert(prompt=PROMPT),
        s.Match(prompt=PROMPT, lock=1),
        s.Pause(ms=50),
        s.Match(prompt=PROMPT),
    )
    case = Case(setup=Setup(), plan=FaultPlan.none(), seed=seed, scripts=(held, restarts))
    assert run_case(case).violations == []


def test_ranks_that_begin_anew_choose_from_the_same_prompts() -> None:
    """A crash that costs one of them an answer parts what they know, until they begin anew."""

    async def work(world: World, _: Scheduler) -> None:
        world.remember(0, 0, (1, 2, 3))
        world.remember(1, 0, (4, 5))
        ranks = Ranks(world)
        await ranks.run((s.Restart(hard=1),))
        again = s.Prompt(again=1)
        assert [one.prompt(again) for one in ranks.schedulers] == [(0, (1, 2, 3))] * 2
        assert world.past[0] == world.past[1]
        # Each goes on with what it learns itself.
        world.remember(1, 0, (6,))
        assert world.recent[0] != world.recent[1]

    in_a_world(1, work, ranks=2)
