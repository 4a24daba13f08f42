"""Bad input to the calls on the tiers: a typed error, and nothing has changed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from radixtide import (
    Busy,
    CacheClosed,
    CallTimeout,
    ConfigError,
    InvalidInput,
    InvalidKey,
    InvalidRequest,
    Request,
    UnifiedRadixCache,
)
from radixtide.components.api import AllocateParams, MatchPrefixParams
from radixtide.configs.schema import StorageConfig
from support.caches import Delivery, MakeCache, key, match, store, tokens
from support.snapshots import refused_and_unchanged
from support.tier_config import tier_config
from support.tiered import Tiers, tiers

ELSEWHERE = [None, 1, "full", b"full", [], object()]


async def both_tiers(t: Tiers) -> None:
    """Have four pages on the host only, and two on both tiers."""
    await t.put(t.key(4))
    await t.settle()
    await t.demote()
    await t.put(t.key(t.span(2, 100)))
    await t.settle()


# -- wrong types ---------------------------------------------------------------------------------


def _kind_of(wrong: object) -> str:
    """Return a name that is the same in every process."""
    return repr(wrong) if type(wrong) is not object else "object"


@pytest.mark.parametrize("wrong", [*ELSEWHERE, key(8)], ids=_kind_of)
async def test_a_load_back_of_what_is_no_match_is_refused(delivery: Delivery, wrong: Any) -> None:
    async with tiers(delivery, drain=False) as t:
        await both_tiers(t)
        async with refused_and_unchanged(t.cache, InvalidInput, "match"):
            await t.cache.load_back(wrong)


@pytest.mark.parametrize("wrong", [*ELSEWHERE, [1, 2, 3]], ids=_kind_of)
async def test_a_prefetch_of_what_is_no_key_is_refused(delivery: Delivery, wrong: Any) -> None:
    async with tiers(delivery, url="memory:", drain=False) as t:
        await both_tiers(t)
        async with refused_and_unchanged(t.cache, InvalidInput, "key"):
            await t.cache.prefetch(wrong)


@pytest.mark.parametrize("wrong", [1, "r", key(8)], ids=_kind_of)
async def test_what_is_no_request_is_refused(delivery: Delivery, wrong: Any) -> None:
    async with tiers(delivery, url="memory:", drain=False) as t:
        await both_tiers(t)
        found = await t.match(t.key(4))
        async with refused_and_unchanged(t.cache, InvalidInput, "req"):
            await t.cache.load_back(found, wrong)
        async with refused_and_unchanged(t.cache, InvalidInput, "req"):
            await t.cache.prefetch(t.key(8), wrong)


@pytest.mark.parametrize("wrong", ["", "Host", "disk", "ALL", None, 1, [], {}], ids=_kind_of)
async def test_a_flush_of_an_unknown_tier_is_refused(delivery: Delivery, wrong: Any) -> None:
    async with tiers(delivery, url="memory:", drain=False) as t:
        await both_tiers(t)
        async with refused_and_unchanged(t.cache, InvalidInput, "none of device, host, storage"):
            await t.cache.flush(wrong)


@pytest.mark.parametrize("wrong", ["1", -1.0, float("nan"), object()], ids=_kind_of)
async def test_a_timeout_that_is_no_time_is_refused(delivery: Delivery, wrong: Any) -> None:
    async with tiers(delivery, url="memory:", drain=False) as t:
        await both_tiers(t)
        found = await t.match(t.key(4))
        for call in (
            lambda: t.cache.flush("host", wrong),
            lambda: t.cache.drain(wrong),
            lambda: t.cache.load_back(found, timeout=wrong),
            lambda: t.cache.prefetch(t.key(8), timeout=wrong),
        ):
            async with refused_and_unchanged(t.cache, InvalidInput, "timeout"):
                await call()


@pytest.mark.parametrize("wrong", [None, "memory:", {"url": "memory:"}], ids=_kind_of)
async def test_attaching_what_is_no_config_is_refused(delivery: Delivery, wrong: Any) -> None:
    async with tiers(delivery, drain=False) as t:
        await both_tiers(t)
        async with refused_and_unchanged(t.cache, InvalidInput, "config"):
            await t.cache.attach_storage(wrong)


@pytest.mark.parametrize("url", ["", "nowhere:", "http://x", "lmdb"])
async def test_attaching_a_storage_that_is_none_is_refused(delivery: Delivery, url: str) -> None:
    async with tiers(delivery, drain=False) as t:
        await both_tiers(t)
        async with refused_and_unchanged(t.cache, ConfigError, "url|storage"):
            await t.cache.attach_storage(StorageConfig(url=url))


@pytest.mark.parametrize("layer", [-1, 2, 99])
async def test_there_is_no_such_layer(delivery: Delivery, layer: int) -> None:
    async with tiers(delivery, ("full",)) as t:
        await both_tiers(t)
        async with await t.cache.load_back(await t.match(t.key(4))) as handle:
            await handle.wait()
            with pytest.raises(InvalidInput, match="layer"):
                handle.wait_layer(layer)


# -- keys and matches ----------------------------------------------------------------------------


async def test_a_key_that_can_not_be_the_trees_is_refused(delivery: Delivery) -> None:
    async with tiers(delivery, url="memory:", drain=False) as t:
        await both_tiers(t)
        found = await t.match(t.key(4))
        for wrong in (key([]), key(8, is_bigram=True)):
            async with refused_and_unchanged(t.cache, InvalidKey, "key"):
                await t.cache.prefetch(wrong)
            with pytest.raises(InvalidKey):
                await t.cache.load_back(msgspec.structs.replace(found, key=wrong))
        async with refused_and_unchanged(t.cache, InvalidInput, "host tier"):
            await t.cache.load_back(msgspec.structs.replace(found, key=None))


async def test_a_match_of_a_cache_without_a_host_tier_has_nothing_to_load(
    make_cache: MakeCache,
) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        found = await match(cache, key(8))
        async with refused_and_unchanged(cache, InvalidInput, "without a host tier"):
            await cache.load_back(found)
    async with (
        tiers("direct", ("full",)) as t,
        refused_and_unchanged(t.cache, InvalidInput, "without a host tier"),
    ):
        await t.cache.load_back(found)


async def test_of_a_match_of_another_cache_a_load_takes_the_key_alone(delivery: Delivery) -> None:
    """Its handles and indices mean nothing here, so this cache looks for itself."""
    async with tiers(delivery, ("full",)) as t, tiers(delivery, ("full",)) as other:
        await both_tiers(t)
        await other.put(other.key(t.span(3, 50)))
        await other.put(other.key(2))
        foreign = await other.match(other.key(4))
        assert len(foreign.device_indices) == 2 * t.page
        async with await t.cache.load_back(foreign) as handle:
            assert await handle.wait() == 4 * t.page
            await t.check(t.key(4), handle.device_indices, handle.receipt.node)
        stranger = await other.match(other.key(t.span(3, 50)))
        async with await t.cache.load_back(stranger) as handle:
            assert await handle.wait() == 0
            assert handle.loaded == 0


# -- requests ------------------------------------------------------------------------------------


async def test_a_request_of_another_namespace_is_refused(delivery: Delivery) -> None:
    async with tiers(delivery, url="memory:", drain=False) as t:
        await both_tiers(t)
        found = await t.match(t.key(4))
        req = Request("r", t.span(4), cache_salt="other")
        async with refused_and_unchanged(t.cache, InvalidRequest, "different namespaces", req):
            await t.cache.load_back(found, req)
        async with refused_and_unchanged(t.cache, InvalidRequest, "different namespaces", req):
            await t.cache.prefetch(t.key(8), req)


async def test_a_request_with_slots_loads_nothing(delivery: Delivery) -> None:
    async with tiers(delivery, drain=False) as t:
        await both_tiers(t)
        found = await t.match(t.key(4))
        req = Request("r", t.span(4))
        await t.cache.allocate(AllocateParams(num_tokens=1, req=req))
        async with refused_and_unchanged(t.cache, InvalidRequest, "slots already", req):
            await t.cache.load_back(found, req)
        await t.cache.abort_req(req)


async def test_a_key_that_is_not_the_requests_own_is_refused(delivery: Delivery) -> None:
    async with tiers(delivery, drain=False) as t:
        await both_tiers(t)
        found = await t.match(t.key(4))
        req = Request("r", t.span(4, 700))
        async with refused_and_unchanged(t.cache, InvalidRequest, "not made of its own", req):
            await t.cache.load_back(found, req)


# -- state of the cache --------------------------------------------------------------------------


async def test_a_storage_needs_a_host_tier(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        async with refused_and_unchanged(cache, InvalidInput, "needs a host tier"):
            await cache.attach_storage(StorageConfig(url="memory:"))
        await cache.detach_storage()


async def test_without_tiers_there_is_nothing_to_fetch_to_drain_or_to_flush(
    make_cache: MakeCache,
) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        async with await cache.prefetch(key(tokens(8, 100))) as fetch:
            assert (fetch.pages, await fetch.wait()) == (0, 0)
        await cache.drain(1.0)
        await cache.step()
        assert cache.transfers == 0
        assert await cache.flush("host", 1.0) == 0
        assert await cache.flush("storage", 1.0) == 0
        assert await cache.flush("device") == 8


async def test_a_second_storage_is_refused(delivery: Delivery) -> None:
    async with tiers(delivery, url="memory:", drain=False) as t:
        await both_tiers(t)
        async with refused_and_unchanged(t.cache, Busy, "attached already"):
            await t.cache.attach_storage(StorageConfig(url="memory:"))


async def test_of_two_who_attach_at_once_one_is_refused(delivery: Delivery) -> None:
    async with tiers(delivery, ("full",)) as t:
        config = StorageConfig(url="memory:")
        answers = await asyncio.gather(
            t.cache.attach_storage(config), t.cache.attach_storage(config), return_exceptions=True
        )
        assert [type(one) for one in answers if one is not None] == [Busy]
        answers = await asyncio.gather(
            t.cache.detach_storage(), t.cache.detach_storage(), return_exceptions=True
        )
        assert [type(one) for one in answers if one is not None] in ([], [Busy])
        await t.cache.detach_storage()
        await t.cache.attach_storage(config)


async def test_a_drain_that_takes_too_long_ends_at_its_timeout(delivery: Delivery) -> None:
    async with tiers(delivery, ("full",)) as t:
        t.engine.hold("backup")
        await t.put(t.key(4))
        await t.engine.arrived(1)
        before = await t.sizes()
        with pytest.raises(CallTimeout, match="Drain"):
            await t.cache.drain(0.01)
        for tier in ("host", "storage"):
            with pytest.raises(Busy, match="1 transfers"):
                await t.cache.flush(tier, 0.01)
        assert await t.sizes() == before
        assert await t.cache.flush("device") == 0
        t.engine.release()
        await t.cache.drain()
        assert await t.cache.flush("host") == 4 * t.page


@pytest.mark.parametrize("policy", ["wait_complete", "timeout"])
async def test_waiting_for_a_fetch_ends_at_its_timeout(delivery: Delivery, policy: str) -> None:
    slow: dict[str, Any] = {"prefetch_policy": policy}
    if policy == "timeout":
        slow["prefetch_timeout_base_s"] = 1000.0
    async with tiers(delivery, ("full",), url="memory:", storage=slow) as t:
        await both_tiers(t)
        await t.cache.flush("host", 20.0)
        assert t.store is not None
        t.store.hold("exists")
        async with await t.cache.prefetch(t.key(4)) as fetch:
            with pytest.raises(CallTimeout):
                await asyncio.wait_for(fetch.wait(timeout=0.01), 10.0)
        t.store.release()


async def test_waiting_for_a_load_ends_at_its_timeout_and_can_be_done_again(
    delivery: Delivery,
) -> None:
    async with tiers(delivery, ("full",)) as t:
        await both_tiers(t)
        t.engine.hold("load")
        async with await t.cache.load_back(await t.match(t.key(4))) as handle:
            with pytest.raises(CallTimeout):
                await handle.wait(timeout=0.01)
            with pytest.raises(CallTimeout):
                await asyncio.to_thread(handle.wait_layer, 0, 0.01)
            t.engine.release()
            assert await handle.wait() == 4 * t.page
            assert not handle.failed


async def test_handles_of_a_cache_that_is_closed(delivery: Delivery) -> None:
    """Waiting is refused; a block ends in peace, as that of a hold does."""
    config = tier_config(("full",), delivery=delivery, url="memory:")
    async with UnifiedRadixCache(config) as cache:
        t = Tiers(cache)
        await both_tiers(t)
        found = await t.match(t.key(4))
        async with await cache.load_back(found) as load, await cache.prefetch(t.key(8)) as fetch:
            await cache.close()
            with pytest.raises(CacheClosed):
                await load.wait()
            with pytest.raises(CacheClosed):
                await fetch.wait()
        with pytest.raises(CacheClosed):
            await cache.match_prefix(MatchPrefixParams(key=t.key(4)))


async def test_a_load_that_is_let_go_of_unclosed_is_warned_about(delivery: Delivery) -> None:
    async with tiers(delivery, ("full",), drain=False) as t:
        await both_tiers(t)
        handle = await t.cache.load_back(await t.match(t.key(4)))
        await handle.wait()
        number = handle._number
        with pytest.warns(ResourceWarning, match="never closed"):
            del handle
        assert number in t.cache._state.tiers.loads  # type: ignore[union-attr]  # there are tiers


async def test_closing_twice_does_nothing(delivery: Delivery) -> None:
    async with tiers(delivery, ("full",), url="memory:") as t:
        await both_tiers(t)
        load = await t.cache.load_back(await t.match(t.key(4)))
        fetch = await t.cache.prefetch(t.key(8))
        for one in (load, fetch):
            await one.close()
            await one.close()
            async with one:
                pass
        assert (await t.cache.stats()).receipts == 0
