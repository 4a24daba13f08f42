"""The scheduler when something is short or fails: retraction, fairness, failed passes, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.configs.errors import ActorFailed, CacheClosed, OutOfSlots
from radixtide.configs.schema import HostConfig
from radixtide.serving.config import EngineConfig
from radixtide.serving.errors import EngineFailed, GenerationFailed
from radixtide.serving.rows import Row
from support.actors import until
from support.serving_engine import (
    ALL,
    FULL,
    STATEFUL,
    WINDOWED,
    Bench,
    answer_to,
    engine_config_of_cache,
    heard,
    numbers,
)

KINDS = pytest.mark.parametrize("components", [FULL, WINDOWED, STATEFUL, ALL], ids="+".join)


# -- memory ----------------------------------------------------------------------------------------


@KINDS
async def test_requests_that_outgrow_the_pool_take_turns_and_are_all_served(
    components: tuple[str, ...],
) -> None:
    cache = engine_config_of_cache(components, pages=24, states=16)
    config = EngineConfig(reserve_tokens=0, chunk_tokens=16)
    async with Bench(cache, config, components=components) as bench:
        asked = [bench.check(numbers(n, 12), 50) for n in range(4)]
        reports = [one.report for one in await asyncio.gather(*asked)]
        assert sum(one.retractions for one in reports) > 0
        # Who came first is never retracted, and so everybody's turn comes.
        assert reports[0].retractions == 0
        assert (await bench.engine.stats()).retries == 0


async def test_a_retracted_request_finds_what_it_had_computed() -> None:
    cache = engine_config_of_cache(pages=20)
    async with Bench(cache, EngineConfig(reserve_tokens=0)) as bench:
        first = asyncio.ensure_future(bench.check(numbers(1, 31), 13))
        second = asyncio.ensure_future(bench.check(numbers(2, 29), 16))
        reports = [(await one).report for one in (first, second)]
        assert [one.retractions for one in reports] == [0, 1]
        # The other one needed a page, and its unfinished last one was enough.
        assert reports[1].recomputed_tokens < 8
        assert reports[1].cached_tokens == 0, "its report is of the attempt that began to speak"


async def test_the_lowest_priority_is_retracted_first() -> None:
    cache = engine_config_of_cache(pages=20)
    async with Bench(cache, EngineConfig(reserve_tokens=0)) as bench:
        low = asyncio.ensure_future(bench.check(numbers(1, 30), 20))
        high = asyncio.ensure_future(bench.check(numbers(2, 30), 35, priority=1))
        reports = [(await one).report for one in (low, high)]
        assert reports[0].retractions > 0
        assert reports[1].retractions == 0


async def test_a_request_waits_until_there_is_room_for_all_of_its_prompt() -> None:
    cache = engine_config_of_cache(pages=20)
    async with Bench(cache, EngineConfig(chunk_tokens=8)) as bench:
        first = asyncio.ensure_future(bench.check(numbers(1, 50), 5))
        second = asyncio.ensure_future(bench.check(numbers(2, 50), 5))
        reports = [(await one).report for one in (first, second)]
        assert [one.retractions for one in reports] == [0, 0]
        assert reports[1].queue_s is not None
        assert reports[1].queue_s >= reports[0].total_s / 2
        ends = [{row.rid for row in rows} for rows in bench.runner.passes]
        assert all(len(together) == 1 for together in ends)


async def test_a_prompt_that_others_leave_no_slot_waits_for_its_turn_without_retracting() -> None:
    cache = engine_config_of_cache(WINDOWED, pages=40, window_pages=10)
    config = EngineConfig(chunk_tokens=16, reserve_tokens=0)
    async with Bench(cache, config, components=WINDOWED) as bench:
        asked = [bench.check(numbers(n, 30), 10) for n in range(4)]
        await asyncio.gather(*asked)


@pytest.mark.parametrize("components", [STATEFUL, ALL], ids="+".join)
async def test_loads_of_those_who_wait_give_way_to_those_who_run(
    components: tuple[str, ...],
) -> None:
    host = HostConfig(ratio=4.0, load_back_threshold=4)
    cache = engine_config_of_cache(components, pages=24, states=30, host=host)
    async with Bench(cache, EngineConfig(starve_max_s=60.0), components=components) as bench:
        prompts = [numbers(n, 40) for n in range(5)]
        for prompt in prompts:
            await bench.check(prompt, 2)
        await bench.engine.drain()
        await bench.engine.flush("device")
        running = asyncio.ensure_future(bench.check(numbers(9, 8), 70))
        await until(lambda: len(bench.runner.passes) > 20)
        asked = [bench.check([*prompt, 5], 4) for prompt in prompts]
        await asyncio.gather(running, *asked)


@pytest.mark.parametrize("components", [STATEFUL, ALL], ids="+".join)
@pytest.mark.parametrize("priority", [0, 1])
async def test_a_load_of_one_who_waits_gives_way_to_who_comes_before_it_in_the_order(
    components: tuple[str, ...], priority: int
) -> None:
    # Either has room alone. The second is before the first: more of it is cached, or it is urgent.
    host = HostConfig(ratio=4.0)
    cache = engine_config_of_cache(components, pages=64, states=40, host=host)
    async with Bench(cache, components=components) as bench:
        first, second = numbers(1, 121), numbers(2, 201)
        for prompt in (first, second):
            await bench.check(prompt, 4)
        await bench.engine.drain()
        await bench.engine.flush("device")
        board = bench.engine._board
        assert board is not None
        asked = asyncio.ensure_future(bench.check(first, 4))
        await until(lambda: any(one.load is not None for one in board.waiting))
        others = [bench.check([*second, n], 4, priority=priority) for n in range(3)]
        async with asyncio.timeout(20):
            await asyncio.gather(asked, *others, bench.check(numbers(3, 5), 4))


async def test_pins_that_take_all_room_end_a_request_with_an_error_in_the_end() -> None:
    cache = engine_config_of_cache(pages=12, pin_budget=48)
    config = EngineConfig(starve_max_s=0.02, retries_max=1, retry_pause_s=0.001)
    async with Bench(cache, config) as bench:
        bench.troubled = True
        await bench.check(numbers(1, 40))
        assert (await bench.engine.pin(numbers(1, 40), 600.0)).pinned_len == 40
        generation = bench.ask(numbers(2, 20), 5)
        assert await heard(generation) == []
        assert generation.finish_reason == "error"
        assert isinstance(generation.error, GenerationFailed)
        assert isinstance(generation.error.__cause__, OutOfSlots)
        await bench.engine.unpin(numbers(1, 40))
        await bench.check(numbers(2, 20), 5)


async def test_a_request_gets_its_room_when_a_pin_ends() -> None:
    cache = engine_config_of_cache(pages=12, pin_budget=48)
    async with Bench(cache) as bench:
        await bench.check(numbers(1, 40))
        await bench.engine.pin(numbers(1, 40), 600.0)
        asked = asyncio.ensure_future(bench.check(numbers(2, 20), 5))
        await until(lambda: bool(bench.engine.running()))
        await bench.engine.unpin(numbers(1, 40))
        await asked


# -- order -----------------------------------------------------------------------------------------


async def test_who_finds_more_in_the_cache_is_served_first() -> None:
    async with Bench(config=EngineConfig(max_running=1)) as bench:
        await bench.check(numbers(1, 60))
        order = await served_in_order(
            bench,
            {
                "cold": numbers(2, 60),
                "half": [*numbers(1, 30), *numbers(3, 30)],
                "warm": [*numbers(1, 60), 5],
            },
        )
        assert order == ["warm", "half", "cold"]


async def test_priorities_go_before_the_cache() -> None:
    async with Bench(config=EngineConfig(max_running=1)) as bench:
        await bench.check(numbers(1, 60))
        order = await served_in_order(
            bench, {"warm": [*numbers(1, 60), 5], "cold": numbers(2, 60)}, cold={"priority": 1}
        )
        assert order == ["cold", "warm"]


@pytest.mark.parametrize("most", [0, 2, 5])
async def test_nobody_is_overtaken_more_often_than_the_config_says(most: int) -> None:
    async with Bench(config=EngineConfig(max_running=1, overtakes_max=most)) as bench:
        await bench.check(numbers(1, 60))
        prompts = {"cold": numbers(2, 60)}
        prompts |= {f"warm{n}": [*numbers(1, 60), n] for n in range(8)}
        order = await served_in_order(bench, prompts)
        assert order.index("cold") == most


async def served_in_order(
    bench: Bench, prompts: dict[str, list[int]], **options: dict[str, Any]
) -> list[str]:
    """Ask all while one is computed; return the names in the order of their admission."""
    bench.runner.hold()
    bench.others.append(bench.ask(numbers(99, 5), 1))
    await bench.computing()
    asked = [
        bench.check(prompt, 2, rid=name, **options.get(name, {}))
        for name, prompt in prompts.items()
    ]
    served = asyncio.gather(*asked)
    await until(lambda: len(bench.engine.running()) == len(prompts) + 1)
    bench.runner.let_on()
    await served
    return [one.rid for one in bench.engine.finished if one.rid in prompts]


# -- passes that fail ------------------------------------------------------------------------------


def poison(token: int) -> Any:
    """Return what makes every pass fail that computes `token`."""

    def fails(rows: Sequence[Row]) -> None:
        if any(token in row.tokens for row in rows):
            raise RuntimeError("a kernel failed")

    return fails


@KINDS
async def test_of_a_batch_that_fails_only_the_one_whose_fault_it_is_ends_with_an_error(
    components: tuple[str, ...],
) -> None:
    async with Bench(components=components) as bench:
        bench.troubled = True
        said = answer_to(numbers(5, 9), 30, components)
        asked = [asyncio.ensure_future(bench.check(numbers(n, 9), 30)) for n in range(4)]
        bad = bench.ask([*numbers(7, 9), 899], 5)
        clean = all(899 not in answer_to(numbers(n, 9), 30, components) for n in range(4))
        assert clean, "no other one computes it"
        assert len(said) == 30
        bench.runner.fails = poison(899)
        assert await heard(bad) == []
        assert bad.finish_reason == "error"
        assert isinstance(bad.error, GenerationFailed)
        assert "a kernel failed" in str(bad.error)
        for one in asked:
            await one
        stats = await bench.engine.stats()
        assert stats.finished["error"] == 1
        assert stats.failed_steps > bench.engine.config.retries_max


@KINDS
async def test_passes_that_fail_now_and_then_cost_time_and_no_answer(
    components: tuple[str, ...],
) -> None:
    async with Bench(config=EngineConfig(retries_max=20), components=components) as bench:
        bench.troubled = True
        count = 0

        def every_fifth(_: Sequence[Row]) -> None:
            nonlocal count
            count += 1
            if count % 5 == 0:
                raise RuntimeError("now and then")

        bench.runner.fails = every_fifth
        asked = [bench.check(numbers(n, 30), 20) for n in range(3)]
        reports = [one.report for one in await asyncio.gather(*asked)]
        assert sum(one.retries for one in reports) > 3


async def test_a_client_that_leaves_a_failing_pass_is_aborted() -> None:
    async with Bench() as bench:
        bench.troubled = True
        bench.runner.hold()
        bench.runner.fails = poison(899)
        generation = bench.ask([899, 1], 5)
        await bench.computing()
        closing = asyncio.ensure_future(generation.aclose())
        await asyncio.sleep(0)
        bench.runner.let_on()
        await closing
        assert generation.finish_reason == "abort"


# -- the scheduler's own end -----------------------------------------------------------------------


async def test_a_fault_of_the_scheduler_ends_all_with_an_error_and_hangs_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Bench(config=EngineConfig(max_running=2)) as bench:
        asked = [bench.ask(numbers(n, 9), 50) for n in range(4)]
        await anext(asked[0])

        def broken(*_: Any) -> None:
            raise ZeroDivisionError("a fault of ours")

        monkeypatch.setattr(bench.engine._scheduler, "_count", broken)
        for generation in asked:
            await heard(generation)
            assert generation.finish_reason == "error"
            assert isinstance(generation.error, EngineFailed)
            assert isinstance(generation.error.__cause__, ZeroDivisionError)
        assert bench.engine.failed
        with pytest.raises(EngineFailed, match="a fault of ours"):
            bench.ask([1, 2])
        await until(lambda: not bench.engine.running())


async def test_a_cache_that_is_closed_under_the_engine_ends_all_with_an_error() -> None:
    cache = UnifiedRadixCache(engine_config_of_cache())
    bench = Bench(cache)
    async with cache:
        await bench.engine.__aenter__()
        generation = bench.ask(numbers(1, 9), 500)
        await anext(generation)
    await heard(generation)
    assert generation.finish_reason == "error"
    assert isinstance(generation.error, EngineFailed)
    assert isinstance(generation.error.__cause__, CacheClosed)
    await bench.engine.__aexit__(None, None, None)


async def test_a_call_of_the_cache_that_fails_costs_one_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Bench() as bench:
        bench.troubled = True
        cache = bench.engine.cache
        allocate, calls = cache.allocate, 0

        async def unsteady(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 3 == 1:
                raise ActorFailed("planted")
            return await allocate(*args, **kwargs)

        monkeypatch.setattr(cache, "allocate", unsteady)
        generation = await bench.check(numbers(1, 30), 20)
        assert generation.report.retries > 2


async def test_a_request_that_fails_too_often_without_progress_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Bench(config=EngineConfig(retries_max=2)) as bench:
        bench.troubled = True
        cache = bench.engine.cache

        async def broken(*_: Any, **__: Any) -> Any:
            raise ActorFailed("planted")

        with monkeypatch.context() as patch:
            patch.setattr(cache, "match_prefix", broken)
            generation = bench.ask(numbers(1, 30), 20)
            assert await heard(generation) == []
        assert generation.finish_reason == "error"
        assert generation.report.retries == 2
        assert "3 times in a row" in str(generation.error)
        await bench.check(numbers(1, 30))


async def test_an_engine_may_be_left_in_another_task_than_it_was_entered_in() -> None:
    bench = Bench()
    await asyncio.create_task(bench.engine.__aenter__())
    await bench.check(numbers(1, 20))
    await asyncio.create_task(bench.engine.__aexit__(None, None, None))
