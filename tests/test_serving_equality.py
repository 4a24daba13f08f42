"""What the engine answers with a cache is what the model answers without one, token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from radixtide.configs.schema import StorageConfig
from radixtide.serving.config import EngineConfig
from support.serving_models import RANDOM, SOME, Served, prompt, served
from support.serving_storm import Ask, crowd, rubbish, stage, talkers

pytestmark = pytest.mark.slow

BUSY = EngineConfig(
    max_running=8, step_tokens=64, chunk_tokens=24, reserve_tokens=0, retries_max=20
)
"""Small steps and chunks that end inside pages; nothing is kept free for those who decode."""


@pytest.fixture(params=RANDOM)
def subject(request: pytest.FixtureRequest) -> Served:
    """Return a model of each kind, with what is known of it."""
    return served(request.param)


async def storm(subject: Served, page: int, seed: int = 1, waves: int = 1, **host: Any) -> None:
    """Let clients come in waves on pools too small for them, with a host tier below.

    `host`: fields of the host tier's configuration.
    """
    config = subject.config(
        tokens=256 if page < 64 else 512,
        window_tokens=256,
        page_size=page,
        states=40,
        state_chunk=16,
        host_ratio=4.0,
    )
    assert config.host is not None
    config = replace(config, host=replace(config.host, **host))
    async with stage(subject, config, BUSY) as st:
        await st.ask_all(talkers(seed))
        assert st.total("retractions") > 0
        for wave in range(waves):
            await st.ask_all(crowd(seed + wave))
            # All that they left goes to the host, and the next ones want it again.
            await st.engine.drain()
            await st.engine.flush("device")
            rubbish(st.engine.cache)
            again = [
                Ask(f"{one.rid} again", one.prompt, one.tokens) for one in crowd(seed + wave)[:6]
            ]
            await st.ask_all(again)
        st.check(compared=100)
        assert st.records.widest > 1
        assert st.total("cached_device") > 0
        assert st.total("cached_host") > 0
        assert st.copies is not None
        assert st.copies.loads > 0
        assert "abort" in st.reasons.values()
        assert await st.check_at_rest() > 0


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10, 16))
@pytest.mark.parametrize("page", [1, 16, 64])
async def test_crowds_on_small_pools_of_any_pages(subject: Served, page: int, seed: int) -> None:
    await storm(subject, page, seed, waves=3)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "host",
    [
        {"write_policy": "write_back"},
        {"write_policy": "write_through_selective"},
        {"layout": "page_first", "load_back_threshold": 0},
        {"load_back_quota": 64, "jobs_max": 2},
    ],
    ids=str,
)
async def test_crowds_on_any_host_tier(subject: Served, host: dict[str, Any]) -> None:
    await storm(subject, 16, 30, **host)


async def test_a_crowd_on_small_pools(subject: Served) -> None:
    await storm(subject, page=16)


@pytest.mark.parametrize("subject", SOME, indirect=True)
async def test_what_storage_has_after_a_restart(subject: Served, tmp_path: Path) -> None:
    store = StorageConfig(
        url=f"lmdb:{tmp_path}", prefetch_policy="wait_complete", prefetch_threshold=1
    )
    config = subject.config(tokens=2048, state_chunk=16, storage=store)
    asks = crowd(5, clients=8)
    async with stage(subject, config) as st:
        await st.ask_all(asks)
        st.check()
        await st.engine.drain()
    async with stage(subject, config) as st:
        rubbish(st.engine.cache)
        await st.ask_all([Ask(one.rid, one.prompt, 8) for one in asks])
        st.check(compared=50)
        assert st.total("cached_storage") > 0
        assert await st.check_at_rest() > 0


@pytest.mark.parametrize("subject", SOME, indirect=True)
async def test_what_another_namespace_has_changes_no_answer(subject: Served) -> None:
    config = subject.config(tokens=2048, page_size=1, state_chunk=16)
    base = prompt(8, 90)
    async with stage(subject, config) as st:
        await st.ask_all(
            [Ask(f"theirs {at}", base[: 60 + at], 4, salt="theirs") for at in range(4)]
        )
        await st.engine.drain()
        # As if theirs were of other weights: whoever reads any of it answers differently.
        rubbish(st.engine.cache)
        st.prompts.clear()
        await st.ask_all([Ask(f"mine {at}", base[: 60 + at], 4) for at in range(4)])
        await st.ask_all([Ask(f"yours {at}", base[: 60 + at], 4, salt="yours") for at in range(4)])
        st.check(compared=32)
        assert st.reports["mine 0"].cached_tokens == 0 or st.reports["mine 3"].cached_tokens == 0


@pytest.mark.parametrize("subject", SOME, indirect=True)
async def test_what_a_model_of_other_weights_has_stored_is_not_used(
    subject: Served, tmp_path: Path
) -> None:
    store = StorageConfig(
        url=f"file:{tmp_path}", prefetch_policy="wait_complete", prefetch_threshold=1
    )
    other = served(f"{subject.model.spec}?seed=7")
    tokens = prompt(11, 85)
    for which, cached in ((subject, 0), (other, 0), (subject, 1)):
        async with stage(which, which.config(tokens=512, state_chunk=16, storage=store)) as st:
            await st.ask(Ask("it", tokens, 4))
            st.check(compared=4)
            assert bool(st.total("cached_storage")) == bool(cached)
            await st.engine.drain()
