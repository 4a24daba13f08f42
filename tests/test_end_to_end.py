"""A short day of a whole cache: the same answers on both loops, in both modes, whatever watches."""

from __future__ import annotations

import asyncio

import pytest

from radixtide.components.api import MissReason
from radixtide.configs.schema import FullPoolConfig, PoolsConfig, RequestPoolConfig
from support.caches import MakeCache, assert_nothing_held, open_cache
from support.interceptors import Chooser, Delay, Duplicate, DuplicateReply, Recorder
from support.scenario import life, scenario


async def test_a_day_goes_as_planned_on_every_loop_and_in_every_mode(
    make_cache: MakeCache, loops: None
) -> None:
    async with make_cache(pin_budget=16) as cache:
        said = await scenario(cache)
        await assert_nothing_held(cache)
    assert said[0] == (0, ((0, 8),), ())
    assert said[1] == (8, (), ((0, 8),))
    assert said[2] == ([0, 1, 2, 3], MissReason.UNALIGNED_TAIL)
    assert said[3] == 0
    assert said[4] == said[6] == {"full": 8}
    assert said[5] == list(range(8))
    assert said[7] == (8, MissReason.NEVER_STORED)
    assert (said[8].inserted_len, said[8].prefix_len) == (12, 8)
    assert (said[9].inserted_len, said[9].prefix_len, said[9].freed) == (16, 12, 4)
    assert said[10].freed == 8
    assert (said[11].pinned_len, said[11].budget_left) == (8, 8)
    assert said[12] == 8
    assert said[13] is MissReason.EVICTED
    assert said[14] is True
    assert said[16] == 4
    assert said[17] == ()


@pytest.mark.parametrize(
    "watcher",
    [
        Recorder(),
        Delay(count=None, turns=2),
        Duplicate(count=None),
        DuplicateReply(count=None),
    ],
    ids=lambda one: type(one).__name__,
)
async def test_the_answers_do_not_depend_on_who_watches(
    make_cache: MakeCache, watcher: Recorder | Chooser
) -> None:
    async with make_cache(pin_budget=16) as cache:
        plain = await scenario(cache)
    async with make_cache(pin_budget=16) as cache:
        cache.add_interceptor(watcher)
        watched = await scenario(cache)
        cache.remove_interceptor(watcher)
    assert watched == plain


async def test_many_callers_at_once_leave_a_sound_cache(make_cache: MakeCache, loops: None) -> None:
    pools = PoolsConfig(
        full=FullPoolConfig(size=4096, holds_bytes=False),
        requests=RequestPoolConfig(max_requests=64, max_context=128),
    )
    async with make_cache(pools=pools) as cache:
        await asyncio.gather(*(life(cache, number) for number in range(60)))
        await assert_nothing_held(cache)
        assert (await cache.stats()).counters["matches"] >= 60


async def test_a_cache_lives_on_one_loop_after_another(loops: None) -> None:
    for _ in range(2):
        async with open_cache(pin_budget=16) as cache:
            await scenario(cache)
