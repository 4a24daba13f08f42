"""One test a sentence of docs/guarantees.md: storage, faults and ranks of a cache with tiers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from radixtide import AllocateParams, CallTimeout, ConfigError, Request, UnifiedRadixCache
from radixtide.actors import system as system_module
from radixtide.actors.agreement import Agreement, RanksDiverged
from radixtide.configs.schema import LimitsConfig, StorageConfig
from radixtide.tiers.storage.base import PageKey
from support.actors import turns, until
from support.caches import Delivery, assert_sound, settled, system_of
from support.held_engine import TURNS_MAX
from support.interceptors import CrashAfter, CrashBefore, Delay, DropFirst, DropReply, Duplicate
from support.tier_cases import in_storage, on_host
from support.tier_config import SETS, tier_config
from support.tiered import Tiers, soon, tiers

EACH = pytest.mark.parametrize("components", (SETS[0], SETS[-1]), ids="+".join)
PATIENT: dict[str, Any] = {"prefetch_policy": "wait_complete"}


def address(folder: Path) -> str:
    return f"file:{folder / 'store'}"


async def fetched(t: Tiers, length: int, **namespace: Any) -> int:
    """Fetch a key of so many pages, and return how many it brought."""
    async with await t.cache.prefetch(t.key(length, **namespace)) as fetch:
        return await fetch.wait() // t.page


# -- storage -------------------------------------------------------------------------------------


async def test_g110_pages_of_others_are_never_found(delivery: Delivery, tmp_path: Path) -> None:
    mine: dict[str, Any] = {"model": "m", "weight_version": "1", **PATIENT}
    fields: dict[str, Any] = {"page_size": 4, "url": address(tmp_path)}
    async with tiers(delivery, ("full",), storage=mine, **fields) as t:
        await t.put(t.key(4, extra_key="adapter", cache_salt="tenant"))
        await t.settle()
        await t.cache.flush("device", 20.0)
        await t.cache.flush("host", 20.0)
        for other in ({}, {"extra_key": "adapter"}, {"cache_salt": "tenant"}):
            assert await fetched(t, 4, **other) == 0
        assert await fetched(t, 4, extra_key="adapter", cache_salt="tenant") == 4
    space = {"extra_key": "adapter", "cache_salt": "tenant"}
    for change in (
        {"model": "n"},
        {"weight_version": "2"},
        {"ranks": 2},
        {"ranks": 2, "rank": 1},
    ):
        async with tiers(delivery, ("full",), storage={**mine, **change}, **fields) as t:
            assert await fetched(t, 4, **space) == 0
    async with tiers(delivery, ("full",), storage=mine, layout="page_first", **fields) as t:
        assert await fetched(t, 4, **space) == 0
    async with tiers(delivery, ("full",), storage=mine, **fields) as t:
        assert await fetched(t, 4, **space) == 4


async def test_g111_a_bad_page_is_a_miss_and_removed(delivery: Delivery, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"page_size": 4, "url": address(tmp_path), "storage": PATIENT}
    async with tiers(delivery, ("full",), **fields) as t:
        await in_storage(t, 4)
        (file, *_) = sorted(one for one in tmp_path.rglob("*") if one.is_file())
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        file.write_bytes(raw)
        brought = await fetched(t, 4)
        assert brought < 4
        stats = (await t.cache.stats()).storage
        assert stats is not None
        assert stats.bad == 1
        assert not file.exists()
        assert (await t.hit(t.key(4))) == (0, brought)
        assert await t.load(t.key(4)) == brought


@EACH
async def test_g112_a_fetch_brings_what_the_cache_lacks(
    delivery: Delivery, components: tuple[str, ...]
) -> None:
    fields: dict[str, Any] = {"page_size": 4, "url": "memory:", "storage": PATIENT}
    async with tiers(delivery, components, **fields) as t:
        await in_storage(t, 4, 8)
        await t.put(t.key(2))
        await t.settle()
        async with await t.cache.prefetch(t.key(t.span(10))) as fetch:
            assert fetch.pages == 8
            assert await fetch.wait() == 6 * t.page
            assert await fetch.wait() == 6 * t.page
        assert sum(await t.hit(t.key(10))) == 8
        assert await t.load(t.key(8)) == 8
        assert await fetched(t, 8) == 0, "all of it is there"
        assert await t.count("prefetched_units") == 6 * t.page
    # The host has room for half of a key, and gives no more than half of itself.
    async with tiers(delivery, ("full",), host_pages=8, **fields) as t:
        await in_storage(t, 8)
        assert await fetched(t, 8) == 4


@pytest.mark.parametrize("end", ["close", "finish", "abort"])
async def test_g113_a_fetch_that_is_given_up_gives_its_slots_back(
    delivery: Delivery, end: str
) -> None:
    async with tiers(delivery, page_size=4, url="memory:", storage=PATIENT) as t:
        await in_storage(t, 8)
        assert t.store is not None
        store = t.store
        before = await t.sizes()
        store.hold("get_into")
        req = Request("r", t.span(8))
        await t.match(t.key(8), req=req, lock=True)
        fetch = await t.cache.prefetch(t.key(8), req)
        await until(lambda: store.waiting("get_into") > 0, TURNS_MAX)
        assert (await t.pool()).in_flight == 8 * t.page
        if end == "close":
            await fetch.close()
        elif end == "abort":
            await t.cache.abort_req(req)
        else:
            await t.cache.allocate(AllocateParams(num_tokens=4, req=req))
            req.kv_committed_len = 0
            await t.cache.cache_finished_req(req, is_insert=False)
        store.release()
        await t.cache.drain()
        assert await t.sizes() == before
        await t.cache.abort_req(req)


@pytest.mark.parametrize("policy", ["best_effort", "timeout", "wait_complete"])
async def test_g114_the_policy_says_how_long_to_wait(delivery: Delivery, policy: str) -> None:
    storage: dict[str, Any] = {"prefetch_policy": policy}
    if policy == "timeout":
        storage |= {"prefetch_timeout_base_s": 0.02, "prefetch_timeout_per_page_s": 0.001}
    async with tiers(delivery, ("full",), page_size=4, url="memory:", storage=storage) as t:
        await in_storage(t, 8)
        assert t.store is not None
        t.store.hold("get_into")
        fetch = await t.cache.prefetch(t.key(8))
        if policy == "wait_complete":
            with pytest.raises(CallTimeout):
                await fetch.wait(timeout=0.1)
            t.store.release()
            assert await fetch.wait() == 8 * t.page
        else:
            assert await asyncio.wait_for(fetch.wait(), 10.0) == 0
            t.store.release()
        await fetch.close()


@pytest.mark.parametrize("when", ["start", "writing", "looking", "reading", "slow"])
async def test_g115_a_storage_that_fails_costs_misses_only(
    delivery: Delivery, when: str, tmp_path: Path
) -> None:
    place = tmp_path / "store"
    storage = {**PATIENT, "timeout_s": 0.2, "breaker_failures": 1, "breaker_reset_s": 1000.0}
    if when == "start":
        # What is to be its folder is a file.
        place.write_text("in the way")
    fields: dict[str, Any] = {"page_size": 4, "url": f"file:{place}", "storage": storage}
    async with tiers(delivery, **fields) as t:
        if when in ("looking", "reading"):
            await in_storage(t, 4)
        assert t.store is not None
        operation = {"looking": "exists", "reading": "get_into"}.get(when, "put_from")
        if when == "slow":
            t.store.hold("put_from")
        elif when != "start":
            t.store.fails[operation] = 100
        assert await fetched(t, 4) == 0
        await t.put(t.key(4))
        await t.cache.drain()
        assert (await t.hit(t.key(4))) == (4, 0)
        await t.demote()
        assert await t.load(t.key(4)) == 4
        stats = (await t.cache.stats()).storage
        assert stats is not None
        assert stats.circuit == "open"
        calls = dict(t.store.calls)
        assert await fetched(t, 8) == 0
        assert dict(t.store.calls) == calls, "it is not even asked any more"


async def test_g116_a_storage_comes_and_goes_while_serving(delivery: Delivery) -> None:
    async with tiers(delivery, page_size=4) as t:
        await t.put(t.key(4))
        await t.settle()
        config = StorageConfig(url="memory:", prefetch_threshold=0, prefetch_policy="wait_complete")
        await t.cache.attach_storage(config)
        assert await t.hit(t.key(4)) == (4, 0)
        await t.settle()
        assert t.picture() == [(0, 4, "DHS")]
        await t.cache.flush("device")
        await t.cache.flush("host", 20.0)
        assert await fetched(t, 4) == 4
        await t.cache.detach_storage()
        assert t.picture() == [(0, 4, "H")]
        assert (await t.cache.stats()).storage is None
        await t.cache.flush("host", 20.0)
        assert await fetched(t, 4) == 0
        with pytest.raises(ConfigError):
            await t.cache.attach_storage(StorageConfig(url="nowhere:"))
        await t.put(t.key(4))
        await t.settle()
        assert t.picture() == [(0, 4, "DH")]


@EACH
@pytest.mark.parametrize("kind", ["file", "lmdb"])
async def test_g117_what_one_cache_stored_another_finds(
    delivery: Delivery, components: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    url = f"{kind}:{tmp_path / 'store'}"
    fields: dict[str, Any] = {"page_size": 4, "url": url, "storage": PATIENT}
    async with tiers(delivery, components, **fields) as t:
        await t.put(t.key(8))
        await t.settle()
    async with tiers(delivery, components, **fields) as t:
        assert await fetched(t, 8) == 8
        assert await t.load(t.key(8)) == 8


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
    monkeypatch.setattr(system_module, "RESEND_AFTER_S", 0.01)
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
        assert t.cache.transfers == 0
        await t.cache.drain(5.0)


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
    answers = await asyncio.gather(
        first.cache.step(), second.cache.step(), return_exceptions=True
    )
    assert [type(one) for one in answers] == [RanksDiverged, RanksDiverged]
    await asyncio.gather(*(t.cache.close() for t in (first, second)))
