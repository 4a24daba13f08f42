"""How large the pools of the host tier are, computed from the config alone."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

from radixtide.configs.errors import ConfigError
from radixtide.configs.schema import CacheConfig, KvGeometry, MambaPoolConfig

DTYPE_BYTES: Final = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}
"""Bytes of one number of each dtype that a pool may have."""


def bytes_per_slot(pool: KvGeometry | MambaPoolConfig) -> int:
    """Return what a slot of `pool` (a token, or a state) takes over all its layers, in bytes."""
    if isinstance(pool, MambaPoolConfig):
        conv = math.prod(pool.conv_shape) * DTYPE_BYTES[pool.conv_dtype]
        ssm = math.prod(pool.ssm_shape) * DTYPE_BYTES[pool.ssm_dtype]
        return pool.layers * (conv + ssm)
    row = 2 * pool.kv_heads * pool.head_dim if pool.kind == "mha" else pool.latent_dim
    return pool.layers * row * DTYPE_BYTES[pool.dtype]


def slots_per_page(config: CacheConfig, component: str) -> int:
    """Return the slots of one page in the pool of `component`: of states, each is a page."""
    built_in = getattr(config.pools, component, None)
    return 1 if isinstance(built_in, MambaPoolConfig) else config.page_size


def host_slots(
    config: CacheConfig,
    component: str,
    bytes_per_slot: int,
    *,
    device_slots: int | None = None,
    page_size: int | None = None,
) -> int:
    """Return the slots of the host pool of `component`, in whole pages; 0 without a host tier.

    `bytes_per_slot` is what one of its slots takes over all layers: for a component that is built
    in, :func:`bytes_per_slot` of its section. A component of one's own names `device_slots`, the
    slots of its device pool, and `page_size` where its pages have another size than the tree's.

    Raises:
        ConfigError: a ratio to a device pool of unknown size.
    """
    if config.host is None:
        return 0
    page = page_size or slots_per_page(config, component)
    section = config.host.pools.get(component)
    if section is not None and section.size is not None:
        return section.size // page * page
    if section is not None and section.bytes is not None:
        return section.bytes // (bytes_per_slot * page) * page
    if device_slots is None:
        pool = getattr(config.pools, component, None)
        if pool is None:
            raise ConfigError(
                f'host.pools.{component}: how large the device pool of "{component}" is is not '
                "known here; set bytes or size"
            )
        device_slots = pool.size
    ratio = config.host.ratio if section is None or section.ratio is None else section.ratio
    # As it is written: 0.29 of 100 slots are 29, which no product of floats is.
    return int(Decimal(repr(ratio)) * (device_slots // page)) * page
