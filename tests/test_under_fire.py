"""Random faults against impatient callers: a fault may cost a miss or a retry, and nothing else."""

from __future__ import annotations

import pytest

from radixtide.actors import system as system_module
from radixtide.configs.schema import LimitsConfig
from support.caches import assert_nothing_held, open_cache, system_of
from support.chaos import FAULTS, under_fire

MIXES = [*((fault,) for fault in FAULTS), ("drop", "duplicate", "delay"), FAULTS]
LIMITS = LimitsConfig(call_timeout_s=20.0, restarts_max=1_000_000, stall_after_s=0.003)


async def survives(seed: int, faults: tuple[str, ...]) -> None:
    async with open_cache(size=512, max_requests=8, limits=LIMITS, audit=False) as cache:
        assert await under_fire(cache, seed, faults) > 3
        # A call that was left and delayed may come after the abort: it is refused unheard.
        await assert_nothing_held(cache, heard=False)
        assert cache.req_to_token_pool.available == 8
        assert [len(cell.answered) for cell in system_of(cache)._cells] == [0, 0]


@pytest.fixture(autouse=True)
def _resend_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_module.ActorSystem, "resend_after_s", 0.002)


@pytest.mark.parametrize("faults", MIXES, ids="+".join)
@pytest.mark.parametrize("seed", range(3))
async def test_nothing_leaks_and_nothing_breaks_under_random_faults(
    seed: int, faults: tuple[str, ...]
) -> None:
    await survives(seed, faults)


@pytest.mark.nightly
@pytest.mark.parametrize("faults", MIXES, ids="+".join)
async def test_nothing_leaks_and_nothing_breaks_under_many_random_faults(
    faults: tuple[str, ...],
) -> None:
    for seed in range(3, 200):
        await survives(seed, faults)
