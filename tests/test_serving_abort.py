"""Clients that leave, at every stage: nothing is held afterwards, and nobody else notices."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.actors.tier_making import open_by_url
from radixtide.configs.schema import HostConfig, StorageConfig
from radixtide.serving.config import EngineConfig
from radixtide.serving.generation import Generation
from radixtide.tiers.copy_engine import CopyJob
from radixtide.tiers.copy_making import make_engine
from radixtide.tiers.storage.base import StorageBackend
from support.actors import until
from support.held_engine import HeldEngine
from support.serving_engine import (
    ALL,
    FULL,
    STATEFUL,
    WINDOWED,
    Bench,
    answer_to,
    engine_config_of_cache,
    heard,
    nothing_is_held,
    numbers,
)
from support.troubled_store import TroubledStore

PROMPT = numbers(1, 60)
KINDS = pytest.mark.parametrize("components", [FULL, WINDOWED, STATEFUL, ALL], ids="+".join)


async def waiting(bench: Bench) -> Generation:
    """Return a request that waits for one that runs."""
    bench.runner.hold()
    bench.others.append(bench.ask(numbers(1, 20), 3))
    await bench.computing()
    return bench.ask(numbers(2, 20), 30)


async def in_its_first_pass(bench: Bench) -> Generation:
    """Return a request of which the prompt is being computed."""
    bench.runner.hold()
    generation = bench.ask(numbers(1, 20), 30)
    await bench.computing()
    return generation


async def between_chunks(bench: Bench) -> Generation:
    """Return a request of which a part of the prompt is cached."""
    generation = bench.ask(numbers(1, 200), 30)
    await until(lambda: len(bench.runner.passes) >= 2)
    return generation


async def while_it_decodes(bench: Bench) -> Generation:
    """Return a request that has said something, and computes more."""
    generation = bench.ask(numbers(1, 20), 200)
    for _ in range(7):
        await anext(generation)
    return generation


async def at_its_last_token(bench: Bench) -> Generation:
    """Return a request of which all tokens are there, read or not."""
    generation = bench.ask(numbers(1, 20), 3)
    await until(lambda: bool(bench.engine.finished))
    return generation


STAGES = pytest.mark.parametrize(
    "reach",
    [waiting, in_its_first_pass, between_chunks, while_it_decodes, at_its_last_token],
    ids=lambda one: one.__name__,
)
Reach = Callable[[Bench], Awaitable[Generation]]


@KINDS
@STAGES
async def test_a_request_that_is_closed_holds_nothing_when_close_returns(
    reach: Reach, components: tuple[str, ...]
) -> None:
    config = EngineConfig(chunk_tokens=16, max_running=1)
    async with Bench(config=config, components=components) as bench:
        generation = await reach(bench)
        closing = asyncio.ensure_future(generation.aclose())
        if not generation.finish_reason:
            await asyncio.sleep(0)
        bench.runner.let_on()
        await closing
        ended = "length" if reach is at_its_last_token else "abort"
        assert generation.finish_reason == ended
        if reach is not waiting:
            await nothing_is_held(bench.engine)
        await generation.aclose()
        await bench.check(numbers(2, 30))
        await until(lambda: not bench.engine.running())


async def test_what_is_being_computed_is_given_back_after_the_pass_and_not_before() -> None:
    async with Bench() as bench:
        generation = await in_its_first_pass(bench)
        closing = asyncio.ensure_future(generation.aclose())
        other = bench.ask(numbers(2, 20), 2)
        # The other one is admitted meanwhile: the loop has seen that this one is to end.
        await until(lambda: bench.engine.running()[-1].queue_s is not None)
        assert not closing.done()
        assert (await bench.engine.stats()).held.slots == 20
        bench.runner.let_on()
        await closing
        assert await heard(other) == answer_to(numbers(2, 20), 2)


async def test_who_waits_is_let_go_while_a_pass_goes_on() -> None:
    async with Bench(config=EngineConfig(max_running=1)) as bench:
        generation = await waiting(bench)
        for _ in range(30):
            # The scheduler has looked at all there is to see, and waits for the pass.
            await asyncio.sleep(0)
        await generation.aclose()
        assert bench.runner.inside
        assert len(bench.engine.running()) == 1
        bench.runner.let_on()
        await until(lambda: not bench.engine.running())


@STAGES
async def test_a_reader_that_is_cancelled_aborts_its_request(reach: Reach) -> None:
    async with Bench(config=EngineConfig(chunk_tokens=16, max_running=1)) as bench:
        generation = await reach(bench)
        reader = asyncio.ensure_future(heard(generation))
        await asyncio.sleep(0)
        reader.cancel()
        bench.runner.let_on()
        await asyncio.wait((reader,))
        await until(lambda: not bench.engine.running())
        assert generation.finish_reason in {"abort", "length"}
        if reach in {waiting, in_its_first_pass, between_chunks}:
            assert generation.finish_reason == "abort"


async def test_a_close_that_is_cancelled_aborts_all_the_same() -> None:
    async with Bench() as bench:
        generation = await in_its_first_pass(bench)
        closing = asyncio.ensure_future(generation.aclose())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait((closing,))
        bench.runner.let_on()
        await until(lambda: not bench.engine.running())
        assert generation.finish_reason == "abort"


async def test_the_end_of_a_block_aborts_what_was_not_read() -> None:
    async with Bench() as bench:
        async with bench.ask(numbers(1, 20), 100) as generation:
            async for _ in generation:
                break
        assert generation.finish_reason == "abort"
        async with bench.ask(numbers(1, 20), 3) as generation:
            assert await heard(generation) == answer_to(numbers(1, 20), 3)
        assert generation.finish_reason == "length"


async def test_what_was_cached_before_an_abort_stays_cached() -> None:
    async with Bench(config=EngineConfig(chunk_tokens=16)) as bench:
        generation = await between_chunks(bench)
        await generation.aclose()
        assert (await bench.check(numbers(1, 200))).report.cached_device >= 16


async def test_the_end_of_the_engine_aborts_all() -> None:
    async with Bench(config=EngineConfig(max_running=2)) as bench:
        bench.runner.hold()
        asked = [bench.ask(numbers(n, 20), 50) for n in range(5)]
        await bench.computing()
        readers = [asyncio.ensure_future(heard(one)) for one in asked]
        leaving = asyncio.ensure_future(bench.engine.__aexit__(None, None, None))
        await asyncio.sleep(0)
        assert not leaving.done()
        bench.runner.let_on()
        await leaving
        assert [len(await reader) for reader in readers[2:]] == [0, 0, 0]
        assert {one.finish_reason for one in asked} == {"abort"}
        bench.engine = Bench().engine
        await bench.engine.__aenter__()


# -- while data is on its way ----------------------------------------------------------------------


@asynccontextmanager
async def with_held_copies(components: tuple[str, ...]) -> AsyncGenerator[tuple[Bench, Any], None]:
    """Open an engine over a cache whose copies move when the test says so."""
    engines: list[HeldEngine] = []

    def spoil(job: CopyJob) -> None:
        for transfer in job.transfers:
            for layer in cache.memory[transfer.pool].parts():
                for part in layer:
                    part[transfer.device] = 77.0

    def held(host: Any, ends: Any) -> HeldEngine:
        engines.append(HeldEngine(make_engine(ends, host.backend, host.verify), spoil))
        return engines[-1]

    config = engine_config_of_cache(components, host=HostConfig(ratio=2.0, load_back_threshold=4))
    cache = UnifiedRadixCache(config, make_engine=held)
    async with cache, Bench(cache, components=components) as bench:
        await bench.check(PROMPT)
        await cache.drain()
        await cache.flush("device")
        engines[0].hold("load")
        yield bench, engines[0]
        engines[0].hold_no_more()
        engines[0].release()
        await cache.drain()


@KINDS
async def test_who_leaves_while_it_is_loaded_holds_nothing_and_the_load_serves_others(
    components: tuple[str, ...],
) -> None:
    async with with_held_copies(components) as (bench, copies):
        generation = bench.ask([*PROMPT, 5], 30)
        await copies.arrived(1, "load")
        if "mamba" not in components:
            # It is alone, and so waits for the load inside its pass.
            await bench.computing()
            closing = asyncio.ensure_future(generation.aclose())
            copies.release()
            await closing
        else:
            await generation.aclose()
            assert copies.held("load")
        assert generation.finish_reason == "abort"
        await nothing_is_held_by_requests(bench)
        copies.release()
        await bench.engine.drain()
        assert (await bench.check([*PROMPT, 6])).report.cached_device == 60


async def nothing_is_held_by_requests(bench: Bench) -> None:
    held = (await bench.engine.stats()).held
    assert (held.slots, held.receipts, held.requests) == (0, 0, 0)


@KINDS
async def test_a_load_that_fails_under_a_request_costs_its_computation_and_no_answer(
    components: tuple[str, ...],
) -> None:
    async with with_held_copies(components) as (bench, copies):
        generation = bench.ask([*PROMPT, 5], 6)
        bench.troubled = True
        await copies.arrived(1, "load")
        if "mamba" not in components:
            # It is alone, so its pass has begun, and stands on the load.
            await bench.computing()
        copies.fail()
        assert await heard(generation) == answer_to([*PROMPT, 5], 6, components)
        report = generation.report
        assert (report.cached_host, report.computed_tokens) == (0, 61)
        assert (await bench.engine.stats()).lost_loads == 1


@KINDS
async def test_others_are_served_while_one_is_loaded(components: tuple[str, ...]) -> None:
    async with with_held_copies(components) as (bench, copies):
        first = bench.ask(numbers(7, 9), 100)
        await anext(first)
        loaded = bench.ask([*PROMPT, 5], 6)
        await copies.arrived(1, "load")
        await bench.check(numbers(8, 30))
        assert not first.finish_reason, "it goes on computing, or the load would be waited for"
        assert loaded.report.ttft_s is None
        copies.release()
        assert await heard(loaded) == answer_to([*PROMPT, 5], 6, components)
        assert loaded.report.cached_host == 60
        await first.aclose()


@KINDS
async def test_who_leaves_while_storage_is_asked_holds_nothing(
    components: tuple[str, ...], tmp_path: Path
) -> None:
    storage = StorageConfig(
        url=f"file:{tmp_path}", prefetch_policy="wait_complete", prefetch_threshold=8
    )
    config = engine_config_of_cache(
        components, host=HostConfig(ratio=2.0, load_back_threshold=4), storage=storage
    )
    stores: list[TroubledStore] = []

    def slow(given: StorageConfig) -> StorageBackend:
        stores.append(TroubledStore(open_by_url(given)))
        return stores[-1]

    async with (
        UnifiedRadixCache(config, make_store=slow) as cache,
        Bench(cache, components=components) as bench,
    ):
        await bench.check(PROMPT)
        await cache.drain()
        await cache.flush("device")
        await cache.flush("host", 20.0)
        stores[0].hold("exists")
        generation = bench.ask([*PROMPT, 5], 6)
        await until(lambda: bool(stores[0].waiting("exists")))
        # Who waits for storage holds up nobody.
        await bench.check(numbers(3, 6))
        assert generation.report.queue_s is None
        await generation.aclose()
        assert generation.finish_reason == "abort"
        await nothing_is_held_by_requests(bench)
        stores[0].release()
        await cache.drain()
        assert (await bench.check([*PROMPT, 6])).report.cached_storage == 60


# -- many clients ----------------------------------------------------------------------------------


@KINDS
async def test_sixty_four_clients_of_which_some_vanish_leave_nothing(
    components: tuple[str, ...],
) -> None:
    dice = random.Random(5)
    cache = engine_config_of_cache(components, pages=120, states=60)
    config = EngineConfig(max_running=16, step_tokens=64, chunk_tokens=32)
    async with Bench(cache, config, components=components) as bench:
        shared = [numbers(n, 40) for n in range(4)]

        async def client(number: int) -> None:
            prompt = [*dice.choice(shared), *numbers(100 + number, dice.randrange(1, 12))]
            leaves = dice.choice((None, None, 0, 1, 5))
            generation = bench.ask(prompt, 12)
            said: list[int] = []
            async with generation:
                while leaves is None or len(said) < leaves:
                    try:
                        said.append((await anext(generation)).id)
                    except StopAsyncIteration:
                        break
            assert said == answer_to(prompt, len(said), components)
            if leaves is None:
                assert len(said) == 12

        async def vanishing(number: int) -> None:
            task = asyncio.ensure_future(client(number))
            for _ in range(dice.randrange(400)):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled() or task.exception() is None

        crowd = [vanishing if dice.random() < 0.3 else client for _ in range(64)]
        await asyncio.gather(*(one(number) for number, one in enumerate(crowd)))
        await until(lambda: not bench.engine.running())
        stats = await bench.engine.stats()
        assert stats.finished["abort"] > 10
        assert stats.finished["length"] > 10
        assert stats.finished["error"] == 0
