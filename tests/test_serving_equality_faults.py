"""Answers under the light fault plan: late perhaps, but those of the model without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from radixtide.configs.schema import LimitsConfig, StorageConfig
from radixtide.serving.config import EngineConfig
from radixtide.testing.caches import FaultyCaches
from support.serving_models import RANDOM, Served, served
from support.serving_records import Records
from support.serving_storm import Ask, crowd, rubbish, stage

pytestmark = pytest.mark.slow

LIMITS = LimitsConfig(call_timeout_s=5.0, stall_after_s=0.02, resend_after_s=0.05)
"""What was lost is asked for again soon, so that a run takes seconds."""
BUSY = EngineConfig(
    max_running=8,
    step_tokens=64,
    chunk_tokens=24,
    reserve_tokens=0,
    retries_max=50,
    release_pause_s=0.01,
)


@contextmanager
def spared(caches: FaultyCaches) -> Iterator[None]:
    """Let nothing happen to calls of the test itself."""
    injectors = caches._injectors
    for one in injectors:
        one.active = False
    yield
    for one in injectors:
        one.active = True


async def storm_under_faults(subject: Served, seed: int, page: int, folder: Path) -> dict[str, int]:
    """Serve a crowd, restart, and serve it again from storage, all under faults; return these."""
    store = StorageConfig(
        url=f"lmdb:{folder}", prefetch_policy="wait_complete", prefetch_threshold=1
    )
    config = msgspec.structs.replace(
        subject.config(
            tokens=512,
            window_tokens=384,
            page_size=page,
            states=30,
            state_chunk=16,
            host_ratio=4.0,
            storage=store,
        ),
        limits=LIMITS,
    )
    caches = FaultyCaches("light", seed)
    for life in range(2):
        records = Records()
        async with caches(config) as cache:
            async with stage(subject, cache, BUSY, records) as st:
                st.faulty = True
                await st.ask_all(crowd(seed, clients=8))
                with spared(caches):
                    await st.engine.drain()
                    await cache.flush("device", 10.0)
                rubbish(cache)
                await st.ask_all(
                    [Ask(f"{one.rid} {life}", one.prompt, 5) for one in crowd(seed, 8)[:5]]
                )
                st.check(compared=40)
                if life:
                    assert st.total("cached_tokens") > 0
            with spared(caches):
                await cache.drain()
    return caches.injected


@pytest.mark.parametrize("spec", ["random:gemma3", "random:lfm2"])
async def test_a_crowd_under_light_faults(spec: str, tmp_path: Path) -> None:
    assert await storm_under_faults(served(spec), 3, 16, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20, 24))
@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("spec", RANDOM)
async def test_crowds_under_light_faults(spec: str, page: int, seed: int, tmp_path: Path) -> None:
    assert await storm_under_faults(served(spec), seed, page, tmp_path)
