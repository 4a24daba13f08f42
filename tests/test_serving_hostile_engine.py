"""The engine in hands that hold it wrong: nobody hangs, nothing is lost, and others are served."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.configs.errors import InvalidInput, RadixtideError
from radixtide.serving.config import EngineConfig
from radixtide.serving.generation import Generation
from radixtide.serving.rows import Outcome, Row
from support.actors import until
from support.cancelling import FEW_TURNS, Aim, Driven, driven, every_aim
from support.serving_engine import (
    ALL,
    FULL,
    Bench,
    answer_to,
    engine_config_of_cache,
    heard,
    nothing_is_held,
    numbers,
)

PROMPT = numbers(1, 20)
SMALL = EngineConfig(chunk_tokens=8, step_tokens=12, max_running=2)


# -- clients ----------------------------------------------------------------------------------


async def reads(bench: Bench, prompt: list[int]) -> None:
    async with bench.ask(prompt, 4) as generation:
        async for _ in generation:
            await asyncio.sleep(0)


async def collects(bench: Bench, prompt: list[int]) -> None:
    await bench.ask(prompt, 4).tokens()


async def closes(bench: Bench, prompt: list[int]) -> None:
    generation = bench.ask(prompt, 30)
    await anext(generation)
    await generation.aclose()


async def stops(bench: Bench, prompt: list[int]) -> None:
    generation = bench.ask(prompt, 30)
    await anext(generation)
    await generation.stop()
    await generation.tokens()


@pytest.mark.slow
@pytest.mark.parametrize("client", [reads, collects, closes, stops], ids=lambda one: one.__name__)
@pytest.mark.parametrize("components", [FULL, ALL], ids="+".join)
async def test_a_client_is_cancelled_at_each_of_its_awaits(
    client: Any, components: Sequence[str]
) -> None:
    async with Bench(config=SMALL, components=components) as bench:
        number = 10

        async def run(aim: Aim) -> Driven:
            nonlocal number
            number += 1
            beside = bench.ask(numbers(2, 24), 6)
            steps, result = await driven(client(bench, numbers(number, 18)), aim)
            assert isinstance(result, asyncio.CancelledError) == steps.sent
            assert await heard(beside) == answer_to(numbers(2, 24), 6, components)
            await until(lambda: not bench.engine.running())
            await nothing_is_held(bench.engine)
            return steps

        hit = [aim async for aim, _ in every_aim(run, FEW_TURNS)]
        assert len(hit) > 2


async def test_an_answer_can_be_read_by_whoever_comes_later() -> None:
    async with Bench() as bench:
        generation = bench.ask(PROMPT, 6)
        first = asyncio.ensure_future(anext(generation))
        await first
        rest = await asyncio.gather(generation.tokens(), generation.tokens())
        ids = [first.result().id, *(token.id for part in rest for token in part)]
        assert sorted(ids) == sorted(answer_to(PROMPT, 6))
        assert await generation.tokens() == []


@pytest.mark.parametrize("name", ["cache_salt", "extra_key"])
async def test_a_name_that_no_key_can_have_is_refused_and_hurts_nobody(name: str) -> None:
    async with Bench() as bench:
        other = bench.ask(PROMPT, 12)
        with pytest.raises(InvalidInput):
            bench.ask(PROMPT, 3, **{name: "\ud800"})
        assert await heard(other) == answer_to(PROMPT, 12)


async def test_a_caller_on_another_loop_is_refused_instead_of_waiting_for_ever() -> None:
    async with Bench() as bench:
        refused: list[BaseException] = []

        async def ask() -> None:
            try:
                bench.ask(PROMPT, 3)
            except RadixtideError as error:
                refused.append(error)

        thread = threading.Thread(target=asyncio.run, args=(ask(),))
        thread.start()
        await asyncio.to_thread(thread.join)
        assert "loop" in str(refused[0])
        await bench.check(PROMPT)


# -- the end of the engine ----------------------------------------------------------------------


async def test_who_is_cancelled_while_the_engine_ends_hears_of_it_after_the_pass() -> None:
    async with UnifiedRadixCache(engine_config_of_cache(FULL)) as cache:
        bench = Bench(cache)
        await bench.engine.__aenter__()
        bench.runner.hold()
        generation = bench.ask(PROMPT, 30)
        await bench.computing()
        leaving = asyncio.ensure_future(bench.engine.__aexit__(None, None, None))
        for _ in range(3):
            await asyncio.sleep(0)
            leaving.cancel()
            for _ in range(20):
                await asyncio.sleep(0)
            # The pass still writes to these.
            assert (await cache.stats()).pools["full"]["device"].held == 20
            assert not leaving.done()
        bench.runner.let_on()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert generation.finish_reason == "abort"
        stats = await cache.stats()
        assert (stats.requests, stats.pools["full"]["device"].held) == (0, 0)


async def test_a_scheduler_that_is_cancelled_from_outside_waits_for_the_pass() -> None:
    async with UnifiedRadixCache(engine_config_of_cache(FULL)) as cache:
        bench = Bench(cache)
        await bench.engine.__aenter__()
        bench.runner.hold()
        generations: list[Generation] = [bench.ask(PROMPT, 30), bench.ask(numbers(2, 9), 3)]
        await bench.computing()
        task = bench.engine._task
        assert task is not None
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert (await cache.stats()).pools["full"]["device"].held > 0
        bench.runner.let_on()
        await bench.engine.__aexit__(None, None, None)
        assert [one.finish_reason for one in generations] == ["abort", "abort"]
        assert (await cache.stats()).pools["full"]["device"].held == 0


# -- a model that fails in strange ways ------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError, GeneratorExit, SystemExit, KeyboardInterrupt, MemoryError],
)
async def test_whatever_a_model_raises_costs_one_pass(error: type[BaseException]) -> None:
    async with Bench() as bench:
        passes = 0

        def fails(_: Sequence[Row]) -> None:
            nonlocal passes
            passes += 1
            if passes == 2:
                raise error

        bench.troubled = True
        bench.runner.fails = fails
        await bench.check(PROMPT)
        assert (await bench.engine.stats()).failed_steps == 1


async def test_outcomes_that_are_none_cost_a_pass_each() -> None:
    async with Bench() as bench:
        forward = bench.runner.forward
        wrong: list[Any] = [[], None, [Outcome(), Outcome()], [Outcome(None)], [object()]]

        def strange(rows: Sequence[Row]) -> Any:
            outcomes = forward(rows)
            return wrong.pop() if wrong and len(bench.runner.passes) % 2 == 0 else outcomes

        bench.troubled = True
        bench.runner.forward = strange  # type: ignore[method-assign]  # what a bad model does
        await bench.check(PROMPT, 16)
        assert wrong == []
        assert (await bench.engine.stats()).failed_steps == 5
