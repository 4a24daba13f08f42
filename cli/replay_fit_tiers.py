"""Making the tiers below the device fit a replay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from radixtide.configs.errors import ConfigError
from radixtide.configs.host import bytes_per_slot, host_slots, slots_per_page
from radixtide.configs.schema import (
    CacheConfig,
    HostConfig,
    HostPoolConfig,
    PoolsConfig,
    StorageConfig,
)
from radixtide.configs.tier_rules import device_pools, least_host_slots

if TYPE_CHECKING:
    from radixtide.cli.replay_run import ReplayOptions

PAGE_BYTES: Final = 64
"""A page has at least so many bytes where they are checked: enough that no two are alike."""

replace = msgspec.structs.replace


def has_storage(config: CacheConfig, options: ReplayOptions) -> bool:
    """Return whether the replay has a storage, and so bytes to store."""
    configured = config.storage is not None and options.host_blocks != 0
    return options.storage is not None or configured


def marked(pools: PoolsConfig, page: int) -> PoolsConfig:
    """Return `pools` with the smallest shapes that give each page `PAGE_BYTES`, on the CPU."""
    row = max(-(-PAGE_BYTES // page), 2)
    shape = {"kind": "mha", "layers": 1, "kv_heads": 1, "latent_dim": 576, "dtype": "int8"}
    shape |= {"head_dim": -(-row // 2), "device": "cpu"}
    half = (PAGE_BYTES // 2,)
    return replace(
        pools,
        full=replace(pools.full, **shape),
        swa=pools.swa and replace(pools.swa, **shape),
        mamba=pools.mamba
        and replace(
            pools.mamba,
            layers=1,
            conv_shape=half,
            ssm_shape=half,
            conv_dtype="int8",
            ssm_dtype="int8",
            device="cpu",
        ),
    )


def fit_tiers(
    config: CacheConfig, was: CacheConfig, options: ReplayOptions, block: int
) -> CacheConfig:
    """Return `config`, whose device pools fit already, with the tiers that `options` ask for.

    `was` is the config before anything was made to fit: what its host pools are to each other, they
    stay.

    Raises ConfigError: options that contradict each other.
    """
    if options.host_blocks == 0:
        if options.storage is not None:
            raise ConfigError(
                "--storage: pages reach storage through the host, and --host-blocks 0 leaves that "
                "out; name a size"
            )
        return replace(config, host=None, storage=None)
    host = config.host
    if options.host_blocks is not None:
        # A host tier that the config has not is as the default has it, but for its size.
        named = was if was.host is not None else replace(was, host=HostConfig())
        host = _sized(config, named, options.host_blocks * block)
    if host is None:
        if options.storage is not None or options.bandwidth is not None:
            flag = "--storage" if options.storage is not None else "--bandwidth"
            raise ConfigError(
                f"{flag}: there is no host tier; name its size with --host-blocks N, or a config "
                "with [host]"
            )
        return config
    config = replace(config, host=_moving(config, host, options))
    if not has_storage(config, options):
        return config
    return replace(config, storage=_storage(config, options))


def _sized(config: CacheConfig, was: CacheConfig, slots: int) -> HostConfig:
    """Return the host section with so many slots for Full, and other pools in proportion."""
    assert was.host is not None
    before = {name: host_slots(was, name, bytes_per_slot(pool)) for name, pool in device_pools(was)}
    sizes: dict[str, HostPoolConfig] = {}
    for name, size in before.items():
        page, least = slots_per_page(config, name), least_host_slots(config, name)
        wanted = slots * size / before["full"]
        sizes[name] = HostPoolConfig(size=max(math.ceil(wanted / page) * page, least))
    return replace(was.host, pools={**was.host.pools, **sizes})


def _moving(config: CacheConfig, host: HostConfig, options: ReplayOptions) -> HostConfig:
    """Return `host` with what concerns copies."""
    page = config.page_size
    real = config.pools.full.holds_bytes
    if real and options.bandwidth is not None:
        raise ConfigError(
            "--bandwidth: models copies between pools without bytes; with --bytes or --storage "
            "copies are real and take what they take"
        )
    changes: dict[str, object] = {
        "backend": "threads" if real else "auto",
        "bandwidth": None if real else options.bandwidth or host.bandwidth,
        # A page may be larger here than what the limits were made for.
        "units_in_flight": max(host.units_in_flight, page),
        "batch_units": max(host.batch_units, page),
    }
    if host.load_back_quota:
        changes["load_back_quota"] = max(host.load_back_quota, page, host.load_back_threshold)
    if options.sequential:
        # Every block counts, as it does for the plain LRU that the hits compare with.
        changes["load_back_threshold"] = 0
    return replace(host, **changes)


def _storage(config: CacheConfig, options: ReplayOptions) -> StorageConfig:
    """Return the storage section."""
    storage = config.storage
    if storage is None:
        # Time is virtual and reads are real: a deadline would cut what a server had time for.
        storage = StorageConfig(url=options.storage or "", prefetch_policy="wait_complete")
    elif options.storage is not None:
        storage = replace(storage, url=options.storage)
    room = host_slots(config, "full", bytes_per_slot(config.pools.full))
    threshold = 0 if options.sequential else min(storage.prefetch_threshold, room)
    return replace(storage, prefetch_threshold=threshold)


__all__ = ("fit_tiers", "has_storage", "marked")
