"""Small caches for tests, and what every test of a cache checks at its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Literal, Protocol

import numpy as np
import torch

from radixtide import UnifiedRadixCache
from radixtide.actors.conversing import ConversingCell
from radixtide.actors.state import State
from radixtide.actors.system import ActorSystem
from radixtide.components.api import (
    AllocateParams,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
)
from radixtide.configs.schema import (
    CacheConfig,
    EvictionConfig,
    FullPoolConfig,
    LimitsConfig,
    PinsConfig,
    PoolsConfig,
    RequestPoolConfig,
)
from radixtide.tree.key import RadixKey, TokenIds
from support.actors import until

Delivery = Literal["direct", "queued"]

QUIET_LIMITS: Final = LimitsConfig(call_timeout_s=20.0)
"""Long enough that no call of a healthy cache meets its deadline on a slow machine."""


def make_config(
    *,
    size: int = 64,
    page_size: int = 4,
    holds_bytes: bool = False,
    max_requests: int = 16,
    max_context: int = 256,
    policy: str = "lru",
    pin_budget: int = 0,
    **overrides: Any,
) -> CacheConfig:
    """Return the configuration of a small cache.

    `overrides` are further fields of CacheConfig (``delivery``, ``bigram``, ``limits``, ...).
    ``eviction`` and ``pins`` replace what `policy` and `pin_budget` would make.
    """
    pools = PoolsConfig(
        full=FullPoolConfig(size=size, holds_bytes=holds_bytes),
        requests=RequestPoolConfig(max_requests=max_requests, max_context=max_context),
    )
    fields: dict[str, Any] = {
        "pools": pools,
        "page_size": page_size,
        "eviction": EvictionConfig(policy=policy),
        "pins": PinsConfig(budget=pin_budget),
        "limits": QUIET_LIMITS,
        **overrides,
    }
    return CacheConfig(**fields)


class MakeCache(Protocol):
    """The type of the ``make_cache`` fixture; see :func:`checked`."""

    def __call__(
        self, config: CacheConfig | None = None, *, audit: bool = True, **overrides: Any
    ) -> AbstractAsyncContextManager[UnifiedRadixCache]:
        """Return an open cache: of `config`, or of ``make_config(**overrides)``."""


@contextlib.asynccontextmanager
async def checked(
    config: CacheConfig, *, audit: bool = True
) -> AsyncGenerator[UnifiedRadixCache, None]:
    """Open a cache; at the end of a block that did not raise, check that it is sound.

    `audit` false is for tests that break it on purpose, or that leave an actor down.
    """
    async with UnifiedRadixCache(config) as cache:
        yield cache
        if audit:
            await assert_sound(cache)


def open_cache(
    *, audit: bool = True, **overrides: Any
) -> AbstractAsyncContextManager[UnifiedRadixCache]:
    """Open a cache of ``make_config(**overrides)``, for tests of one mode of delivery."""
    return checked(make_config(**overrides), audit=audit)


async def assert_sound(cache: UnifiedRadixCache, *, heard: bool = True) -> None:
    """Assert that the audit finds nothing and, with `heard`, that no call failed unheard."""
    report = await cache.audit()
    assert not report.violations, report.violations
    assert not heard or not system_of(cache).unheard_errors


async def assert_nothing_held(cache: UnifiedRadixCache, *, heard: bool = True) -> None:
    """Assert that no receipt, request, pin or slot is held, and that the cache is sound."""
    stats = await cache.stats()
    assert stats.receipts == 0
    assert stats.requests == 0
    assert stats.pinned == 0
    for name, tiers in stats.pools.items():
        for tier, pool in tiers.items():
            assert pool.held == 0, (name, tier, pool)
            assert pool.protected == 0, (name, tier, pool)
            assert pool.in_flight == 0, (name, tier, pool)
            assert pool.free + pool.evictable == pool.size, (name, tier, pool)
    await assert_sound(cache, heard=heard)
    await assert_nothing_remembered(cache)


async def assert_nothing_remembered(cache: UnifiedRadixCache) -> None:
    """Assert that no actor of a cache at rest keeps an answer that nobody fetches any more.

    An answer that was lost is fetched when its sender asks once more, a second later.
    """
    system = system_of(cache)
    if not system.quiet:
        return
    loop = asyncio.get_running_loop()
    late = loop.time() + 3 * system.resend_after_s

    def kept() -> dict[str, int]:
        return {cell.name: len(cell.answered) for cell in system._cells if cell.answered}

    await until(lambda: not kept() or loop.time() > late, 10_000_000)
    assert kept() == {}


async def settled(cache: UnifiedRadixCache) -> None:
    """Let the loop run until no message waits and no operation runs."""
    system = system_of(cache)
    await until(lambda: system.quiet)


def system_of(cache: UnifiedRadixCache) -> ActorSystem:
    """Return the actor system of an open cache."""
    system = cache._system
    assert system is not None
    return system


def coordinator_of(cache: UnifiedRadixCache) -> ConversingCell:
    """Return the coordinator's cell of an open cache."""
    cell = cache._coordinator
    assert isinstance(cell, ConversingCell)
    return cell


def state_of(cache: UnifiedRadixCache) -> State:
    """Return what the coordinator of an open cache owns."""
    return cache._state


def tokens(count: int, start: int = 0) -> list[int]:
    """Return `count` consecutive token ids from `start` on."""
    return list(range(start, start + count))


def key(token_ids: TokenIds | int, **namespace: Any) -> RadixKey:
    """Return a key; of a number n: of the tokens 0, 1, ... n - 1."""
    if isinstance(token_ids, int):
        token_ids = tokens(token_ids)
    return RadixKey(token_ids, **namespace)


async def match(cache: UnifiedRadixCache, wanted: RadixKey, **fields: Any) -> MatchResult:
    """Match a key."""
    return await cache.match_prefix(MatchPrefixParams(key=wanted, **fields))


async def take(cache: UnifiedRadixCache, count: int) -> torch.Tensor:
    """Allocate at least `count` slots without a request; whole pages."""
    return (await cache.allocate(AllocateParams(num_tokens=count))).indices


async def store(
    cache: UnifiedRadixCache, wanted: RadixKey, *, prev: int = 0, priority: int = 0
) -> InsertResult:
    """Allocate for the whole pages of a key from `prev` on, and insert it."""
    length = wanted.aligned(cache.page_size)
    fresh = (await take(cache, length - prev)).numpy()
    value = np.concatenate((np.zeros(prev, dtype=np.int64), fresh))
    return await cache.insert(
        InsertParams(key=wanted, value=value, prev_prefix_len=prev, priority=priority)
    )


def slots(values: Sequence[int]) -> torch.Tensor:
    """Return slot indices as the cache wants them."""
    return torch.tensor(list(values), dtype=torch.int64)
