"""Where tests reach into a cache for what it moves bytes with; nothing else of theirs does."""

from __future__ import annotations

from typing import Any

from radixtide import UnifiedRadixCache
from radixtide.tiers.host_pool import HostPool
from support.caches import system_of
from support.held_engine import HeldEngine
from support.troubled_store import TroubledStore


def host_pools(cache: UnifiedRadixCache) -> dict[str, HostPool]:
    """Return the memory of the host tier, by component."""
    return cache.host_pools


def resting(cache: UnifiedRadixCache) -> bool:
    """Return whether no actor has anything to do; calls may wait for transfers all the same."""
    return all(cell.quiet for cell in system_of(cache)._cells if cell.open)


def hold_engine(cache: UnifiedRadixCache) -> HeldEngine:
    """Put an engine that a test controls before the real one of an open cache."""
    actor = cache._tiering
    assert actor is not None
    inner = actor.engine
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
    jobs = cache.storage_jobs
    if jobs is None:
        return None
    guarded = jobs.backend
    troubled = TroubledStore(guarded.backend)
    guarded.backend = troubled
    return troubled


def _rubbish(pages: int, size: int) -> Any:
    import numpy as np

    return np.full((pages, size), 0x5A, dtype=np.uint8)
