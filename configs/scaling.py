"""A config for a small machine, made from one for a large machine.

The presets have the shapes of real models, whose state is large: tens of kilobytes a token, tens of
megabytes a recurrent state. Divided by some factor the same tree, the same windows and the same
kinds of pools fit where there is no accelerator, real bytes included.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from radixtide.configs.errors import ConfigError
from radixtide.configs.host import bytes_per_slot, host_slots, slots_per_page
from radixtide.configs.schema import (
    CacheConfig,
    HostConfig,
    HostPoolConfig,
    KvGeometry,
    MambaPoolConfig,
)
from radixtide.configs.tier_rules import device_pools, least_host_slots

G = TypeVar("G", bound=KvGeometry)

STATES_OF_A_REQUEST = 3
"""States that a request holds with the extra buffer: one it works in, two written in turn."""


def scaled(config: CacheConfig, factor: int) -> CacheConfig:
    """Return `config` with its pools and their shapes divided by `factor`.

    Divided are, in each pool: its size, its layers, and the heads and dimensions of its state; and
    the budget of pins. Each stays 1 at least. Pools also keep what one request needs to get on: two
    windows (of the window or one page, whichever is larger), and the states of a request and one
    more to keep; but never more than they had. Host pools keep their ratio, or are divided where
    they have a size of their own, and hold a page and a window at least; the limit of the storage
    is divided as the bytes of a page are, and by `factor`. What decides how the tree behaves stays
    as it is: the page, the window, the grid of states, every limit.

    Raises:
        ConfigError: `factor` is no integer of at least 1.
    """
    if type(factor) is not int or factor < 1:
        raise ConfigError(f"scale: {factor!r}, but needs an integer of at least 1")
    if factor == 1:
        return config
    pools = config.pools
    page = config.page_size
    least = 2 * -(-(config.window or 1) // page) * page
    full = _scaled_pool(pools.full, factor, least, page)
    small = replace(
        config,
        pools=replace(
            pools,
            full=full,
            swa=pools.swa and _scaled_pool(pools.swa, factor, least, page),
            mamba=pools.mamba and _scaled_states(pools.mamba, factor),
        ),
        pins=replace(config.pins, budget=min(config.pins.budget // factor, full.size)),
    )
    if config.host is None:
        return small
    return _with_scaled_tiers(small, config, config.host, factor)


def _divided(number: int, factor: int) -> int:
    return max(number // factor, 1)


def _scaled_pool(pool: G, factor: int, least: int, page: int) -> G:
    size = max(pool.size // factor, min(least, pool.size)) // page * page
    shape = ("kv_heads", "head_dim") if pool.kind == "mha" else ("latent_dim",)
    return replace(
        pool,
        size=size,
        **{name: _divided(getattr(pool, name), factor) for name in ("layers", *shape)},
    )


def _scaled_states(pool: MambaPoolConfig, factor: int) -> MambaPoolConfig:
    least = (STATES_OF_A_REQUEST if pool.extra_buffer else 1) + 1
    return replace(
        pool,
        size=max(pool.size // factor, min(least, pool.size)),
        layers=_divided(pool.layers, factor),
        conv_shape=tuple(_divided(one, factor) for one in pool.conv_shape),
        ssm_shape=tuple(_divided(one, factor) for one in pool.ssm_shape),
    )


def _with_scaled_tiers(
    small: CacheConfig, config: CacheConfig, host: HostConfig, factor: int
) -> CacheConfig:
    """Return `small`, whose device pools are scaled, with the tiers below them scaled too."""
    sections = dict(host.pools)
    for name, pool in device_pools(config):
        section = sections.get(name, HostPoolConfig())
        slots = host_slots(config, name, bytes_per_slot(pool))
        page, least = slots_per_page(config, name), least_host_slots(config, name)
        if section.size is not None or section.bytes is not None:
            divided = max(slots // factor // page * page, least)
            sections[name] = HostPoolConfig(size=divided)
        elif host_slots(small, name, 1) < least:
            sections[name] = HostPoolConfig(size=least)
    storage = config.storage
    if storage is not None:
        was, now = bytes_per_slot(config.pools.full), bytes_per_slot(small.pools.full)
        page_bytes = config.page_size * sum(
            bytes_per_slot(pool) for _, pool in device_pools(small) if isinstance(pool, KvGeometry)
        )
        most = max(storage.max_bytes * now // was // factor, page_bytes)
        room = host_slots(replace(small, host=replace(host, pools=sections)), "full", now)
        storage = replace(
            storage,
            max_bytes=most if storage.max_bytes else 0,
            prefetch_threshold=min(storage.prefetch_threshold, room),
        )
    return replace(small, host=replace(host, pools=sections), storage=storage)
