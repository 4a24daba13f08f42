"""Sets of components that can be measured, and the config of a cache for each."""

from __future__ import annotations

from typing import Literal, TypeAlias

from benchmarks.generators import Workload
from radixtide.configs.schema import (
    CacheConfig,
    FullPoolConfig,
    MambaPoolConfig,
    PoolsConfig,
    RequestPoolConfig,
    SwaPoolConfig,
)

Delivery: TypeAlias = Literal["direct", "queued"]

COMPONENTS: dict[str, tuple[str, ...]] = {
    "full": ("full",),
    "full_swa": ("full", "swa"),
    "full_mamba": ("full", "mamba"),
    "full_swa_mamba": ("full", "swa", "mamba"),
}
"""What ``--components`` may name."""

WINDOW = 128
"""Tokens of the sliding window."""
STATE_GRID = 64
"""States are kept at multiples of this many tokens, where a page has more than one token."""
MARK_BYTES = 16
"""Size of a state whose content is followed: a digest of the tokens it belongs to."""


def state_grid(page: int, components: str) -> int:
    """Return the tokens of which every length that is inserted is a multiple."""
    return max(page, STATE_GRID) if "mamba" in COMPONENTS[components] and page > 1 else page


def config_for(
    workload: Workload,
    page: int,
    components: str = "full",
    delivery: Delivery = "direct",
    *,
    verify: bool = False,
) -> CacheConfig:
    """Return the config of a cache for `workload`: slots are counted, no bytes lie behind them.

    The SWA pool is as large as Full's, and there is a state for every insert: what is measured is
    the price of the components, not the luck of their evictions. With `verify` states have a few
    bytes, and there is one more, for a copy.
    """
    names = COMPONENTS[components]
    size = -(-workload.pool_tokens // page) * page
    swa = max(size, -(-WINDOW // page) * page)
    return CacheConfig(
        components=names,
        page_size=page,
        window=WINDOW if "swa" in names else None,
        pools=PoolsConfig(
            full=FullPoolConfig(size=size, holds_bytes=False),
            swa=SwaPoolConfig(size=swa, holds_bytes=False) if "swa" in names else None,
            mamba=MambaPoolConfig(
                size=workload.max_inserts + verify,
                conv_shape=(MARK_BYTES,),
                conv_dtype="int8",
                ssm_shape=(1,),
                holds_bytes=verify,
                extra_buffer=page > 1,
                chunk=STATE_GRID if page > 1 else 1,
            )
            if "mamba" in names
            else None,
            requests=RequestPoolConfig(max_requests=1, max_context=page),
        ),
        delivery=delivery,
    )


__all__ = ("COMPONENTS", "MARK_BYTES", "WINDOW", "Delivery", "config_for", "state_grid")
