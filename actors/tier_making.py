"""Makes what a cache's tiers consist of: host pools, the copy engine, work on a storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from radixtide.actors.storage_jobs import StorageJobs, StoredPool
from radixtide.components.base import TreeComponent
from radixtide.configs.schema import CacheConfig, HostConfig, StorageConfig
from radixtide.tiers.copy_engine import CopyEngine
from radixtide.tiers.copy_making import make_engine
from radixtide.tiers.copy_modelled import Clock, ModelledEngine
from radixtide.tiers.host_pool import HostPool
from radixtide.tiers.page_hash import Plain, identity
from radixtide.tiers.storage.base import StorageBackend
from radixtide.tiers.storage.breaker import Guarded
from radixtide.tiers.storage.open import open_storage

Ends = dict[str, tuple[list[list[Any]], HostPool]]
"""By pool: the tensors of the device pool, by layer, and the host pool."""
MakeEngine = Callable[[HostConfig, Ends], CopyEngine]
MakeStore = Callable[[StorageConfig], StorageBackend]


def make_host_pools(
    host: HostConfig, components: Sequence[TreeComponent], memory: dict[str, Any]
) -> dict[str, HostPool]:
    """Return a host pool for each component whose device pool holds bytes, by name."""
    pools: dict[str, HostPool] = {}
    for one in components:
        books = one.host_allocator
        if books is not None and memory.get(one.name) is not None:
            pools[one.name] = HostPool(
                memory[one.name].parts(), books.size, books.page_size, host.layout, host.pinned
            )
    return pools


def make_copy_engine(
    host: HostConfig,
    components: Sequence[TreeComponent],
    memory: dict[str, Any],
    pools: dict[str, HostPool],
    clock: Clock,
    make: MakeEngine | None,
) -> CopyEngine:
    """Return what copies between these pools; where they have no bytes, copies are modelled.

    `make`: makes it instead of what the config names, where there are bytes.
    """
    if not pools:
        sizes = {one.name: one.bytes_per_slot() for one in components}
        return ModelledEngine(clock, sizes, host.bandwidth)
    ends = {name: (memory[name].parts(), pool) for name, pool in pools.items()}
    if make is not None:
        return make(host, ends)
    return make_engine(ends, host.backend, host.verify)


def open_by_url(storage: StorageConfig) -> StorageBackend:
    """Return the store that the config names."""
    return open_storage(storage.url, max_bytes=storage.max_bytes, timeout_s=storage.timeout_s)


async def open_storage_jobs(
    config: CacheConfig,
    storage: StorageConfig,
    components: Sequence[TreeComponent],
    memory: dict[str, Any],
    pools: dict[str, HostPool],
    make: MakeStore,
) -> StorageJobs:
    """Open the store that `make` makes of `storage`, for the pools of this cache."""
    stored = []
    for one in components:
        traits = one.traits()
        if one.name not in pools or traits.independent:
            continue
        window = None if traits.reach is None else traits.reach // config.page_size
        stored.append(StoredPool(one.name, pools[one.name], window, traits.private))
    page = config.page_size
    assert config.host is not None
    geometry: Plain = {
        pool.name: {"slots": pool.host.page_size, "pieces": pool.host.pieces} for pool in stored
    }
    dtypes = [
        [str(part.dtype) for layer in memory[pool.name].parts() for part in layer]
        for pool in stored
    ]
    whose = identity(
        storage.model,
        storage.weight_version,
        str(dtypes),
        config.host.layout,
        page,
        storage.rank,
        storage.ranks,
        geometry,
    )
    raw = make(storage)
    raw.check()
    backend = Guarded(
        raw,
        timeout_s=storage.timeout_s,
        failures=storage.breaker_failures,
        reset_s=storage.breaker_reset_s,
        clock=asyncio.get_running_loop().time,
    )
    try:
        await backend.open()
    except BaseException:
        # Nobody else knows of it: what it has opened by now would stay open.
        with anyio.CancelScope(shield=True):
            await backend.close()
        raise
    return StorageJobs(backend, storage, stored, whose, page, config.bigram)
