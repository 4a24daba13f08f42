"""Where tests reach into a cache for what it moves bytes with; nothing else of theirs does."""

from __future__ import annotations

from typing import Any

from radixtide import UnifiedRadixCache
from radixtide.tiers.copy_engine import CopyEngine
from radixtide.tiers.host_pool import HostPool
from radixtide.tiers.storage.base import StorageBackend
from support.held_engine import HeldEngine
from support.troubled_store import TroubledStore


def tiering(cache: UnifiedRadixCache) -> Any:
    """Return the actor that moves data between tiers."""
    actor: Any = cache._tiering
    return actor


def host_pools(cache: UnifiedRadixCache) -> dict[str, HostPool]:
    """Return the memory of the host tier, by component."""
    pools: dict[str, HostPool] = tiering(cache).host_pools
    return pools


def hold_engine(cache: UnifiedRadixCache) -> HeldEngine:
    """Put an engine that a test controls before the real one of an open cache."""
    actor = tiering(cache)
    inner: CopyEngine = actor.engine
    pools = host_pools(cache)

    def spoil(job: Any) -> None:
        for one in job.transfers:
            if job.direction == "load":
                for layer in cache.memory[one.pool].parts():
                    for part in layer:
                        part[one.device] = -9.0
            else:
                page = pools[one.pool].page_size
                pages = one.host[::page] // page
                data = pools[one.pool]
                data.write_pages(pages, _rubbish(len(pages), data.page_bytes))

    held = HeldEngine(inner, spoil)
    actor.engine = held
    return held


def trouble_store(cache: UnifiedRadixCache) -> TroubledStore | None:
    """Put a store that a test controls before the real one of an open cache, where it has one."""
    actor = tiering(cache)
    inner: StorageBackend | None = actor.store
    if inner is None:
        return None
    troubled = TroubledStore(inner)
    actor.store = troubled
    return troubled


def _rubbish(pages: int, size: int) -> Any:
    import numpy as np

    return np.full((pages, size), 0x5A, dtype=np.uint8)
