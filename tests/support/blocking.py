"""What the tests of the blocking face share: small caches, plain answers, how to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import msgspec
import numpy as np
import torch

from radixtide import AllocateParams, InsertParams, MatchPrefixParams, RadixKey
from radixtide.blocking import UnifiedRadixCache
from radixtide.components.api import LockReceipt, NodeHandle
from radixtide.configs.schema import CacheConfig
from support.caches import make_config


@contextmanager
def blocking_cache(
    config: CacheConfig | None = None, *, audit: bool = True, **overrides: Any
) -> Iterator[UnifiedRadixCache]:
    """Open a blocking cache; at the end of a block that did not raise, check that it is sound."""
    with UnifiedRadixCache(config or make_config(**overrides)) as cache:
        yield cache
        if audit:
            report = cache.audit()
            assert not report.violations, report.violations


def put(cache: UnifiedRadixCache, tokens: list[int]) -> None:
    """Cache `tokens`, a whole number of pages."""
    slots = cache.allocate(AllocateParams(num_tokens=len(tokens)))
    cache.insert(InsertParams(key=RadixKey(tokens), value=slots.indices))


def found(cache: UnifiedRadixCache, tokens: list[int]) -> int:
    """Return how many of `tokens` are on the device."""
    match = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens)))
    return len(match.device_indices)


def nothing_held(cache: UnifiedRadixCache) -> None:
    """Assert that no receipt, request or slot is held and that the cache is sound."""
    stats = cache.stats()
    assert (stats.receipts, stats.requests) == (0, 0)
    for name, tiers in stats.pools.items():
        for tier, pool in tiers.items():
            assert (pool.held, pool.protected) == (0, 0), (name, tier, pool)
    report = cache.audit()
    assert not report.violations, report.violations


def until(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until `true()`, asking it over and over; for what other threads bring about."""
    waiting = threading.Event()
    deadline = monotonic() + seconds
    while not true():
        assert monotonic() < deadline, "it never came"
        waiting.wait(0.001)


def plain(answer: Any) -> Any:
    """Return an answer as plain data that can be compared; handles and receipts by number."""
    if isinstance(answer, torch.Tensor | np.ndarray):
        return [int(one) for one in answer]
    if isinstance(answer, NodeHandle | LockReceipt):
        return (type(answer).__name__, answer.id)
    if isinstance(answer, RadixKey):
        return len(answer)
    if isinstance(answer, msgspec.Struct):
        return {name: plain(getattr(answer, name)) for name in answer.__struct_fields__}
    if isinstance(answer, dict):
        return {name: plain(one) for name, one in answer.items()}
    if isinstance(answer, list | tuple):
        return [plain(one) for one in answer]
    return answer
