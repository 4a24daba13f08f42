"""One test a sentence of docs/guarantees.md: faults and ranks of a cache with tiers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from radixtide import UnifiedRadixCache
from radixtide.actors import system as system_module
from radixtide.actors.agreement import Agreement, RanksDiverged
from radixtide.configs.schema import LimitsConfig
from support.actors import turns
from support.caches import Delivery, assert_sound, system_of
from support.interceptors import CrashAfter, CrashBefore, Delay, DropFirst, DropReply, Duplicate
from support.tier_cases import fetched, in_storage, on_host
from support.tier_config import SETS, tier_config
from support.tiered import Tiers, tiers

EACH = pytest.mark.parametrize("components", [SETS[0], SETS[-1]], ids="+".join)
PATIENT: dict[str, Any] = {"prefetch_policy": "wait_complete"}


def address(folder: Path) -> str:
    return f"file:{folder / 'store'}"


# -- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plant", [CrashBefore, CrashAfter])
@pytest.mark.parametrize(
    ("kind", "actor"),
    [
        ("StartCopy", "tiering"),
        ("CopyDone", "coordinator"),
        ("BeginLoad", "swa"),
        ("EndLoad", "full"),
        ("EndBackup", "mamba"),
        ("StartStore", "tiering"),
        ("StoreDone", "coordinator"),
        ("Lookup", "tiering"),
        ("FetchDone", "coordinator"),
        ("CommitFetch", "full"),
    ],
)
async def test_g122_a_crash_in_a_transfer_loses_nothing(
    delivery: Delivery, kind: str, actor: str, plant: type[CrashBefore | CrashAfter]
) -> None:
    limits = LimitsConfig(restarts_max=100, call_timeout_s=20.0)
    async with tiers(delivery, page_size=4, url="memory:", storage=PATIENT, limits=limits) as t:
        crash = plant(kind, actor)
        t.cache.add_interceptor(crash)
        await in_storage(t, 4)
        assert await fetched(t, 4) == 4
        assert await t.load(t.key(4)) == 4
        t.cache.remove_interceptor(crash)
        assert crash.hits == 1
        await t.settle()
        assert t.picture() == [(0, 4, "DHS")]


@pytest.mark.parametrize("fault", [DropFirst, DropReply, Duplicate, Delay])
@pytest.mark.parametrize(
    "kind", ["StartCopy", "CopyDone", "StartStore", "StoreDone", "Lookup", "Found", "FetchDone"]
)
async def test_g123_a_message_that_is_lost_late_or_twice_acts_once(
    monkeypatch: pytest.MonkeyPatch, kind: str, fault: Any
) -> None:
    monkeypatch.setattr(system_module.ActorSystem, "resend_after_s", 0.01)
    async with tiers("direct", page_size=4, url="memory:", storage=PATIENT) as t:
        faulty = fault(kind)
        t.cache.add_interceptor(faulty)
        await in_storage(t, 4)
        assert await fetched(t, 4) == 4
        assert await t.load(t.key(4)) == 4
        t.cache.remove_interceptor(faulty)
        assert faulty.hits == 1
        for name, once in (
            ("backed_nodes", 1),
            ("stored_nodes", 1),
            ("prefetched_units", 4 * t.page),
            ("load_units", 4 * t.page),
        ):
            assert await t.count(name) == once


@pytest.mark.parametrize("policy", ["write_through", "write_back"])
async def test_g124_while_the_tiering_actor_is_down_all_else_works(
    delivery: Delivery, policy: str
) -> None:
    limits = LimitsConfig(restarts_max=0, call_timeout_s=20.0)
    fields: dict[str, Any] = {"page_size": 4, "pages": 8, "policy": policy, "limits": limits}
    async with tiers(delivery, ("full",), url="memory:", storage=PATIENT, **fields) as t:
        await on_host(t, 2)
        crash = CrashBefore("StartCopy", "tiering")
        t.cache.add_interceptor(crash)
        async with await t.cache.load_back(await t.match(t.key(2))) as handle:
            assert await handle.wait() == 0
        t.cache.remove_interceptor(crash)
        system_of(t.cache).unheard_errors = 0
        assert not (await t.cache.stats()).actors["tiering"].alive
        assert await t.load(t.key(2)) == 0
        assert await fetched(t, 8) == 0
        for at in (100, 200, 300):
            await t.put(t.key(t.span(4, at)))
            assert await t.hit(t.key(t.span(4, at))) == (4, 0)
        assert await t.hit(t.key(t.span(4, 100))) == (0, 0)
        await t.cache.drain(5.0)
        assert t.cache.transfers == 0


# -- ranks ---------------------------------------------------------------------------------------


class Pair:
    """Two ranks in one process: each offers, and both get the minimum."""

    def __init__(self) -> None:
        self.offers: dict[int, list[int]] = {}
        self.both = asyncio.Event()

    async def minimum(self, rank: int, values: list[int]) -> list[int]:
        self.offers[rank] = values
        both = self.both
        if len(self.offers) == 2:
            offers = list(self.offers.values())
            self.least = [min(pair) for pair in zip(*offers, strict=True)]
            self.offers = {}
            self.both = asyncio.Event()
            both.set()
        await both.wait()
        return list(self.least)


class OneOfTwo(Agreement):
    """One rank of a pair."""

    ranks = 2

    def __init__(self, pair: Pair, rank: int) -> None:
        self.pair = pair
        self.rank = rank

    async def minimum(self, values: list[int]) -> list[int]:
        """Return the minimum of both."""
        return await self.pair.minimum(self.rank, values)


async def two_ranks(delivery: Delivery, **fields: Any) -> tuple[Tiers, Tiers]:
    """Open a cache on each of two ranks."""
    pair = Pair()
    caches = []
    for rank in range(2):
        config = tier_config(("full",), page_size=4, delivery=delivery, **fields)
        if config.storage is not None:
            storage = msgspec.structs.replace(config.storage, ranks=2, rank=rank)
            config = msgspec.structs.replace(config, storage=storage)
        caches.append(UnifiedRadixCache(config, agreement=OneOfTwo(pair, rank)))
    await asyncio.gather(*(cache.__aenter__() for cache in caches))
    return Tiers(caches[0]), Tiers(caches[1])


async def step(*ranks: Tiers) -> None:
    """Step on all ranks."""
    await asyncio.gather(*(t.cache.step() for t in ranks))


async def test_g125_ranks_act_only_in_a_step_and_as_the_one_with_least(
    delivery: Delivery,
) -> None:
    first, second = await two_ranks(delivery, pins=8)
    for t in (first, second):
        t.engine.hold("backup", how="copied")
        await t.put(t.key(4))
        await t.put(t.key(t.span(2, 100)))
        await t.cache.pin(t.key(t.span(2, 100)), 1e-9)
    assert not first.engine.held(), "a backup begins in a step"
    await step(first, second)
    for t in (first, second):
        await t.engine.arrived(1)
    # On the first all is copied; on the second nothing.
    first.engine.release()
    await turns(50)
    await step(first, second)
    assert [bits for _, _, bits in first.picture()] == ["D", "D"]
    second.engine.release()
    await turns(50)
    assert [bits for _, _, bits in second.picture()] == ["D", "D"]
    for _ in range(3):
        await step(first, second)
    for t in (first, second):
        assert [bits for _, _, bits in t.picture()] == ["DH", "DH"]
        assert (await t.cache.stats()).pinned == 0
        await assert_sound(t.cache)
    await asyncio.gather(*(t.cache.close() for t in (first, second)))


async def test_g126_ranks_that_did_not_the_same_are_told(delivery: Delivery) -> None:
    first, second = await two_ranks(delivery)
    for t in (first, second):
        await t.put(t.key(4))
    await step(first, second)
    await first.put(first.key(first.span(2, 100)))
    answers = await asyncio.gather(first.cache.step(), second.cache.step(), return_exceptions=True)
    assert [type(one) for one in answers] == [RanksDiverged, RanksDiverged]
    await asyncio.gather(*(t.cache.close() for t in (first, second)))
