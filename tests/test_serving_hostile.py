"""Clients that do what they should not: at any moment, many at once, and with the cache in trouble.

Whatever they do, the others get right answers, everybody's generation ends, and in the end nothing
is held.
"""

from __future__ import annotations

import asyncio
import gc
import random
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from radixtide.configs.errors import Busy, PinRefused, RadixtideError
from radixtide.configs.schema import CacheConfig, HostConfig, LimitsConfig, StorageConfig
from radixtide.serving.config import EngineConfig
from radixtide.serving.engine import Engine
from radixtide.serving.errors import Overloaded
from radixtide.serving.generation import Generation
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
    max_running=5,
    queue_max=12,
    step_tokens=32,
    chunk_tokens=12,
    reserve_tokens=2,
    retries_max=30,
    release_tries_max=200,
    layerwise_loads=False,
    overtakes_max=3,
)
KINDS = pytest.mark.parametrize("components", [FULL, WINDOWED, STATEFUL, ALL], ids="+".join)
SOME_KINDS = pytest.mark.parametrize(
    "components",
    [FULL, ALL, *(pytest.param(one, marks=pytest.mark.nightly) for one in (WINDOWED, STATEFUL))],
    ids="+".join,
)


def make_runner(model: Any, cache: Any) -> TallyRunner:
    runner = TallyRunner(model, cache)
    # In simulated time a copy does not go on while the model's thread waits for it.
    runner.patient = False
    return runner


async def virtually(seconds: float) -> None:
    """Let time pass on a SimulatedLoop, which costs none."""
    await asyncio.sleep(seconds)


class Crowd:
    """Clients of one engine. ``did``: what they did, counted."""

    def __init__(self, engine: Engine, dice: random.Random, components: Sequence[str]) -> None:
        self.engine = engine
        self.dice = dice
        self.components = components
        self.did: Counter[str] = Counter()
        self.prefixes = [
            [dice.randrange(900) for _ in range(dice.randrange(4, 60))] for _ in range(3)
        ]

    def begin(self) -> tuple[Generation | None, list[int], int]:
        """Ask something; None where the engine has too much to do."""
        dice = self.dice
        prompt = [*dice.choice(self.prefixes)[: dice.randrange(1, 61)]]
        prompt += [dice.randrange(900) for _ in range(dice.randrange(0, 20))]
        count = dice.randrange(1, 16)
        given = list(prompt)
        try:
            generation = self.engine.generate(
                given,
                SamplingParams(temperature=0.0, max_tokens=count),
                priority=dice.randrange(3),
                cache_salt=dice.choice((None, None, "a")),
                extra_key=dice.choice((None, None, "x")),
            )
        except Overloaded:
            self.did["overloaded"] += 1
            return None, prompt, count
        # What a caller does to its list afterwards is its own business.
        given[:] = [0] * len(given)
        return generation, prompt, count

    async def client(self) -> None:
        """Be one client."""
        await virtually(self.dice.random() * 0.5)
        how = self.dice.choice(
            (
                "reads",
                "reads",
                "reads",
                "is cancelled",
                "closes twice",
                "stops",
                "drops",
                "two read",
            )
        )
        generation, prompt, count = self.begin()
        if generation is None:
            return
        self.did[how] += 1
        right = answer_to(prompt, count, self.components)
        await getattr(self, "_" + how.replace(" ", "_"))(generation, right)

    async def _reads(self, generation: Generation, right: list[int]) -> None:
        heard = []
        async for token in generation:
            heard.append(token.id)
            if self.dice.random() < 0.2:
                await virtually(self.dice.random() * 0.2)
        assert heard == right, generation.error
        assert generation.finish_reason == "length"

    async def _is_cancelled(self, generation: Generation, right: list[int]) -> None:
        heard: list[int] = []

        async def read() -> None:
            async with generation:
                async for token in generation:
                    heard.append(token.id)

        task = asyncio.ensure_future(read())
        for _ in range(self.dice.randrange(40)):
            await asyncio.sleep(0)
        if self.dice.random() < 0.5:
            await virtually(self.dice.random() * 0.1)
        task.cancel()
        await asyncio.wait((task,))
        if self.dice.random() < 0.5:
            # Who goes on reading gets what had come, and the end.
            heard += [token.id async for token in generation]
        else:
            await generation.aclose()
        assert heard == right[: len(heard)]
        assert generation.finish_reason in ("abort", "length")

    async def _closes_twice(self, generation: Generation, right: list[int]) -> None:
        reader = asyncio.ensure_future(generation.tokens())
        await virtually(self.dice.random() * 0.1)
        ends = [asyncio.ensure_future(generation.aclose()) for _ in range(2)]
        ends.append(asyncio.ensure_future(generation.stop()))
        await asyncio.sleep(0)
        self.dice.choice(ends).cancel()
        await asyncio.wait(ends)
        heard = [token.id for token in await reader]
        assert heard == right[: len(heard)]

    async def _stops(self, generation: Generation, right: list[int]) -> None:
        heard = []
        at = self.dice.randrange(len(right))
        async for token in generation:
            heard.append(token.id)
            if len(heard) == at:
                await generation.stop()
                assert generation.finish_reason in ("stop", "length")
        assert heard == right[: len(heard)]

    async def _drops(self, generation: Generation, right: list[int]) -> None:
        if self.dice.random() < 0.5:
            with suppress(StopAsyncIteration):
                assert (await anext(generation)).id == right[0]
        # The caller's name for it goes with the caller.

    async def _two_read(self, generation: Generation, right: list[int]) -> None:
        one, other = await asyncio.gather(generation.tokens(), generation.tokens())
        assert sorted(token.id for token in (*one, *other)) == sorted(right)

    async def meddler(self, rounds: int) -> None:
        """Do to the engine and its cache what an operator may, at any time."""
        dice = self.dice
        for _ in range(rounds):
            await virtually(dice.random() * 0.15)
            what = dice.choice(
                ("flush", "pin", "unpin", "reset", "kill", "look", "drain", "storage")
            )
            self.did[what] += 1
            try:
                await self._meddle(what)
            except (Busy, PinRefused):
                self.did["refused"] += 1
            except RadixtideError as error:
                self.did[type(error).__name__] += 1

    async def _meddle(self, what: str) -> None:
        engine, dice = self.engine, self.dice
        prefix = dice.choice(self.prefixes)
        if what == "flush":
            await engine.flush(dice.choice(("device", "host", "storage")), 0.05)
        elif what == "pin":
            await engine.pin(prefix, 0.5)
        elif what == "unpin":
            await engine.unpin(prefix)
        elif what == "reset":
            await engine.cache.reset(0.02)
        elif what == "kill":
            engine.cache.kill(dice.choice(("coordinator", *self.components, "tiering")))
        elif what == "look":
            engine.running()
            await engine.stats()
            assert (await engine.audit()).violations == ()
        elif what == "drain":
            await engine.drain(0.05)
        elif engine.cache.storage_jobs is None:
            await engine.cache.attach_storage(STORAGE)
        else:
            await engine.cache.detach_storage()


async def storm(
    cache: Any,
    seed: int,
    components: Sequence[str],
    clients: int = 20,
    rounds: int = 20,
    config: EngineConfig = CONFIG,
) -> Counter[str]:
    """Let a crowd at an engine; return what it did."""
    dice = random.Random(seed)
    async with Engine(TallyModel(), cache, config, make_runner=make_runner) as engine:
        crowd = Crowd(engine, dice, components)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of those that are dropped
            async with asyncio.TaskGroup() as group:
                for _ in range(clients):
                    group.create_task(crowd.client())
                if rounds:
                    group.create_task(crowd.meddler(rounds))
            gc.collect()
        for _ in range(200):
            if not engine.running():
                break
            await virtually(0.05)
        stats = await engine.stats()
        assert engine.running() == []
        assert stats.finished["error"] == 0
        assert sum(stats.finished.values()) + crowd.did["overloaded"] == clients
        held = stats.held
        assert (held.slots, held.requests) == (0, 0)
    return crowd.did


def small(components: Sequence[str]) -> Any:
    """Return a cache that is short of everything."""
    return engine_config_of_cache(
        components, pages=30, states=20, host=HOST, storage=STORAGE, limits=LIMITS, pin_budget=40
    )


@pytest.mark.slow
@pytest.mark.simulated(seeds=1)
@KINDS
async def test_clients_that_behave_badly_hurt_nobody(
    faulty_cache: Any, simulated_seed: int, components: tuple[str, ...]
) -> None:
    async with faulty_cache(small(components)) as cache:
        await storm(cache, simulated_seed, components)


@pytest.mark.slow
@pytest.mark.simulated(seeds=1, faults="light")
@SOME_KINDS
async def test_nor_do_they_under_light_faults(
    faulty_cache: Any, simulated_seed: int, components: tuple[str, ...]
) -> None:
    async with faulty_cache(small(components)) as cache:
        await storm(cache, simulated_seed, components, rounds=0)


def drawn(seed: int, components: Sequence[str]) -> tuple[CacheConfig, EngineConfig]:
    """Return limits of all sizes, down to one."""
    dice = random.Random(-seed)
    page = dice.choice((1, 2, 4, 8))
    cache = engine_config_of_cache(
        components,
        page_size=page,
        pages=dice.randrange(100, 200) // page,
        window_pages=dice.randrange(80, 200) // page,
        states=dice.randrange(12, 30),
        host=dice.choice((None, HOST, HOST)),
        limits=LIMITS,
        pin_budget=dice.choice((0, 40)),
    )
    engine = EngineConfig(
        max_running=dice.choice((1, 2, 3, 8)),
        queue_max=dice.choice((0, 3, 12, 50)),
        step_tokens=dice.choice((1, 2, 8, 32, 500)),
        chunk_tokens=dice.choice((1, 3, 8, 12, 100)),
        reserve_tokens=dice.choice((0, 2, 16)),
        look_max=dice.choice((1, 4, 32)),
        retries_max=30,
        release_tries_max=200,
        layerwise_loads=False,
        overtakes_max=dice.choice((0, 1, 3, 16)),
    )
    return cache, engine


@pytest.mark.nightly
@pytest.mark.simulated(seeds=range(100, 130))
@KINDS
async def test_clients_that_behave_badly_hurt_nobody_on_many_seeds(
    faulty_cache: Any, simulated_seed: int, components: tuple[str, ...]
) -> None:
    async with faulty_cache(small(components)) as cache:
        await storm(cache, simulated_seed, components, clients=30, rounds=40)


@pytest.mark.nightly
@pytest.mark.simulated(seeds=range(100, 130))
@KINDS
async def test_nor_do_they_with_limits_of_all_sizes(
    faulty_cache: Any, simulated_seed: int, components: tuple[str, ...]
) -> None:
    config, limits = drawn(simulated_seed, components)
    async with faulty_cache(config) as cache:
        await storm(cache, simulated_seed, components, rounds=0, config=limits)


@pytest.mark.nightly
@pytest.mark.simulated(seeds=range(100, 130), faults="heavy")
@KINDS
async def test_nor_do_they_under_heavy_faults_on_many_seeds(
    faulty_cache: Any, simulated_seed: int, components: tuple[str, ...]
) -> None:
    async with faulty_cache(small(components)) as cache:
        await storm(cache, simulated_seed, components, rounds=0)
