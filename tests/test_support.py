"""The fixtures themselves: both modes, both loops, and that they notice what they are there for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from blockbuster import BlockingError

from radixtide import UnifiedRadixCache
from support.caches import (
    Delivery,
    MakeCache,
    assert_nothing_held,
    key,
    match,
    state_of,
    store,
    system_of,
)


async def test_a_cache_has_the_delivery_that_was_asked_for(
    make_cache: MakeCache, delivery: Delivery
) -> None:
    async with make_cache() as cache:
        assert system_of(cache).direct == (delivery == "direct")
        await store(cache, key(8))
        assert len((await match(cache, key(8))).device_indices) == 8


async def test_each_kind_of_loop_runs(loops: None, request: pytest.FixtureRequest) -> None:
    kind = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    assert f"[{kind}]" in request.node.name


async def test_a_cache_that_is_broken_fails_its_test(make_cache: MakeCache) -> None:
    async def break_it() -> None:
        async with make_cache() as cache:
            await store(cache, key(8))
            await match(cache, key(4))
            next(iter(state_of(cache).tree.root.children.values())).touch = -1

    with pytest.raises(AssertionError, match="access_times"):
        await break_it()


async def test_a_slot_that_is_held_is_noticed(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    held = await match(cache, key(8), lock=True)
    with pytest.raises(AssertionError):
        await assert_nothing_held(cache)
    assert held.receipt is not None
    await cache.dec_lock_ref(held.receipt)
    await assert_nothing_held(cache)


async def test_a_crashed_callback_is_noticed(loop_errors: list[str]) -> None:
    def crash() -> None:
        raise RuntimeError("planted")

    asyncio.get_running_loop().call_soon(crash)
    await asyncio.sleep(0)
    (error,) = loop_errors
    assert "planted" in error
    loop_errors.clear()


async def test_a_blocking_call_in_the_loop_is_noticed(no_blocking: None) -> None:
    def block() -> None:
        Path(__file__).read_bytes()

    with pytest.raises(BlockingError):
        block()
