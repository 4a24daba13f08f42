"""What a cache is like, whole: to show that a refused call changed nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from radixtide import RadixtideError, Request, UnifiedRadixCache
from support.caches import state_of

ATTEMPTS = ("allocations", "refused_allocations")
"""Counters that may rise with a call that is refused: they count calls, not what was done."""


class Snapshot(NamedTuple):
    """Everything of a cache that a caller could see, and the slots of every node and holder."""

    pools: dict[str, Any]
    totals: tuple[int, ...]
    counters: dict[str, int]
    picture: str
    violations: tuple[Any, ...]
    crashes: dict[str, tuple[bool, int, int]]
    rows: bytes
    rows_free: int
    node_slots: dict[int, list[int]]
    held_slots: dict[int, list[int]]
    owners: bytes


async def snapshot(cache: UnifiedRadixCache) -> Snapshot:
    """Return what `cache` is like now."""
    stats = await cache.stats()
    full = cache._components[0]
    return Snapshot(
        pools={name: dict(tiers) for name, tiers in stats.pools.items()},
        totals=(stats.nodes, stats.receipts, stats.requests, stats.pinned, stats.generation),
        counters={name: n for name, n in stats.counters.items() if name not in ATTEMPTS},
        picture=await cache.pretty_print(),
        violations=(await cache.audit()).violations,
        crashes={
            name: (one.alive, one.failures, one.restarts) for name, one in stats.actors.items()
        },
        rows=cache.req_to_token_pool.rows.numpy().tobytes(),
        rows_free=cache.req_to_token_pool.available,
        node_slots={
            node.id: [] if (value := full.data(node).value) is None else value.tolist()
            for node in state_of(cache).tree
        },
        held_slots={holder: one.slots().tolist() for holder, one in full.holdings.items()},
        owners=full.allocator.owners().tobytes(),
    )


def fields_of(req: Request) -> dict[str, Any]:
    """Return the fields of a request, arrays as lists, to compare."""
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in msgspec.structs.asdict(req).items()
    }


class Refusal:
    """The error of a refused call."""

    error: RadixtideError


@contextlib.contextmanager
def _refused(kind: type[RadixtideError], says: str) -> Iterator[Refusal]:
    seen = Refusal()
    with pytest.raises(kind, match=says) as caught:
        yield seen
    seen.error = caught.value
    assert isinstance(caught.value, RadixtideError)
    assert len(str(caught.value)) > 10, "a message says what was wrong, where, and what to do"


@contextlib.asynccontextmanager
async def refused_and_unchanged(
    cache: UnifiedRadixCache, kind: type[RadixtideError], says: str, *reqs: Request
) -> Any:
    """Expect the block to raise `kind` with a message like `says`, and to change nothing.

    `reqs`: requests whose fields must not change either.
    """
    before = await snapshot(cache)
    requests = [fields_of(req) for req in reqs]
    with _refused(kind, says) as seen:
        yield seen
    after = await snapshot(cache)
    for name, was, now in zip(Snapshot._fields, before, after, strict=True):
        assert now == was, name
    assert not before.violations
    assert [fields_of(req) for req in reqs] == requests


def as_int64(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return an int64 array."""
    return np.array(values, dtype=np.int64)
