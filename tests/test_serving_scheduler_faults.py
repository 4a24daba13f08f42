"""The whole engine on simulated loops: many orders of events, and faults of all kinds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from radixtide.configs.schema import HostConfig, LimitsConfig, StorageConfig
from radixtide.serving.config import EngineConfig
from radixtide.serving.engine import Engine
from radixtide.serving.params import SamplingParams
from support.serving_engine import (
    ALL,
    FULL,
    STATEFUL,
    WINDOWED,
    TallyModel,
    TallyRunner,
    answer_to,
    engine_config_of_cache,
)

LIMITS = LimitsConfig(call_timeout_s=0.5)
HOST = HostConfig(ratio=3.0, load_back_threshold=4)
STORAGE = StorageConfig(url="memory:", model="tally", prefetch_threshold=8)
CONFIG = EngineConfig(
    max_running=6,
    step_tokens=40,
    chunk_tokens=16,
    reserve_tokens=2,
    retries_max=30,
    release_tries_max=200,
    layerwise_loads=False,
)


def make_runner(model: Any, cache: Any) -> TallyRunner:
    runner = TallyRunner(model, cache)
    # In simulated time a copy does not go on while the model's thread waits for it.
    runner.patient = False
    return runner


async def virtually(seconds: float) -> None:
    """Let time pass on a SimulatedLoop, which costs none."""
    await asyncio.sleep(seconds)


async def client(
    engine: Engine, dice: random.Random, components: Sequence[str], prefixes: list[list[int]]
) -> str:
    """Ask something that begins as others do; read all of it, or go; return how it ended."""
    prompt = [*dice.choice(prefixes), *(dice.randrange(900) for _ in range(dice.randrange(1, 20)))]
    length = dice.randrange(1, 16)
    await virtually(dice.random() * 0.5)
    params = SamplingParams(temperature=0.0, max_tokens=length)
    reads = length if dice.random() < 0.7 else dice.randrange(length)
    heard: list[int] = []
    async with engine.generate(prompt, params, priority=dice.randrange(2)) as generation:
        if reads < length and dice.random() < 0.3:
            await virtually(dice.random() * 0.1)
        else:
            async for token in generation:
                heard.append(token.id)
                if len(heard) == reads and reads < length:
                    break
    assert heard == answer_to(prompt, len(heard), components)
    assert generation.finish_reason is not None
    if reads == length:
        assert generation.finish_reason == "length", generation.error
        assert len(heard) == length
    return generation.finish_reason


async def storm(cache: Any, seed: int, components: Sequence[str], clients: int = 14) -> Engine:
    """Let many clients ask at once; every answer has to be right."""
    dice = random.Random(seed)
    prefixes = [[dice.randrange(900) for _ in range(dice.randrange(4, 60))] for _ in range(3)]
    prefixes.append([*prefixes[0], *prefixes[1]][:70])
    async with Engine(TallyModel(), cache, CONFIG, make_runner=make_runner) as engine:
        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client(engine, dice, components, prefixes))
        stats = await engine.stats()
        assert sum(stats.finished.values()) == clients
        assert stats.finished["error"] == 0
        held = stats.held
        assert (held.slots, held.requests) == (0, 0)
    return engine


@pytest.mark.simulated(seeds=1)
@pytest.mark.parametrize("components", [FULL, WINDOWED, STATEFUL, ALL], ids="+".join)
async def test_answers_are_right_in_any_order_of_events(
    faulty_cache: Any, simulated_seed: int, components: tuple[str, ...]
) -> None:
    config = engine_config_of_cache(components, pages=40, states=24, limits=LIMITS)
    async with faulty_cache(config) as cache:
        await storm(cache, simulated_seed, components)


@pytest.mark.simulated(seeds=2, faults="light")
@pytest.mark.parametrize("components", [FULL, WINDOWED, STATEFUL, ALL], ids="+".join)
async def test_answers_are_right_under_light_faults_with_host_and_storage(
    faulty_cache: Any, simulated_seed: int, components: tuple[str, ...]
) -> None:
    config = engine_config_of_cache(
        components, pages=30, states=20, host=HOST, storage=STORAGE, limits=LIMITS
    )
    async with faulty_cache(config) as cache:
        await storm(cache, simulated_seed, components)


@pytest.mark.simulated(seeds=1, faults="heavy")
@pytest.mark.parametrize("components", [FULL, ALL], ids="+".join)
async def test_heavy_faults_cost_attempts_and_no_answer(
    faulty_cache: Any, simulated_seed: int, components: tuple[str, ...]
) -> None:
    config = engine_config_of_cache(
        components, pages=30, states=20, host=HOST, storage=STORAGE, limits=LIMITS
    )
    async with faulty_cache(config) as cache:
        await storm(cache, simulated_seed, components, clients=10)


@pytest.mark.nightly
@pytest.mark.simulated(seeds=range(100, 140), faults="heavy")
@pytest.mark.parametrize("components", [FULL, WINDOWED, STATEFUL, ALL], ids="+".join)
async def test_heavy_faults_on_many_seeds(
    faulty_cache: Any, simulated_seed: int, components: tuple[str, ...]
) -> None:
    config = engine_config_of_cache(
        components, pages=30, states=20, host=HOST, storage=STORAGE, limits=LIMITS
    )
    async with faulty_cache(config) as cache:
        await storm(cache, simulated_seed, components)
