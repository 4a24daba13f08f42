"""One test a sentence of docs/guarantees.md: storage below the host."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from radixtide import AllocateParams, CallTimeout, ConfigError, Request
from radixtide.configs.schema import StorageConfig
from support.actors import until
from support.caches import Delivery
from support.held_engine import TURNS_MAX
from support.tier_cases import fetched, in_storage
from support.tier_config import SETS
from support.tiered import tiers

EACH = pytest.mark.parametrize("components", [SETS[0], SETS[-1]], ids="+".join)
PATIENT: dict[str, Any] = {"prefetch_policy": "wait_complete"}


def address(folder: Path) -> str:
    return f"file:{folder / 'store'}"


def damage_a_file(folder: Path) -> Path:
    """Change one bit at the end of a file."""
    (file, *_) = sorted(one for one in folder.rglob("*") if one.is_file())
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    return file


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
        file = damage_a_file(tmp_path)
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
        after = await t.sizes()
        await fetch.close()
        await t.cache.abort_req(req)
        assert after == before


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
