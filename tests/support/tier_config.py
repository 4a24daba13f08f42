"""Configurations of small caches with tiers, and what tests of them run over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest

from radixtide.configs.schema import (
    CacheConfig,
    EvictionConfig,
    FullPoolConfig,
    HostConfig,
    HostPoolConfig,
    LimitsConfig,
    MambaPoolConfig,
    PinsConfig,
    PoolsConfig,
    RequestPoolConfig,
    StorageConfig,
    SwaPoolConfig,
)
from support.caches import Delivery

Components = tuple[str, ...]

DELIVERIES: Final[tuple[Delivery, ...]] = ("direct", "queued")
SETS: Final[tuple[Components, ...]] = (
    ("full",),
    ("full", "swa"),
    ("full", "mamba"),
    ("full", "swa", "mamba"),
)
PAGES: Final = (1, 4, 16)


def spread(
    chosen: Sequence[tuple[Delivery, Components, int]], sets: Sequence[Components] = SETS
) -> pytest.MarkDecorator:
    """Run a test over `chosen`, and nightly over all deliveries, components and page sizes."""
    every = [(mode, one, page) for mode in DELIVERIES for one in sets for page in PAGES]
    return pytest.mark.parametrize(
        ("delivery", "components", "page_size"),
        [
            pytest.param(*case, marks=[] if case in chosen else [pytest.mark.nightly])
            for case in sorted(every, key=lambda case: case not in chosen)
        ],
        ids=lambda part: "+".join(part) if isinstance(part, tuple) else str(part),
    )


everywhere = spread(
    [
        ("direct", SETS[0], 1),
        ("queued", SETS[1], 4),
        ("direct", SETS[2], 16),
        ("queued", SETS[3], 4),
    ]
)
with_window = spread([("direct", SETS[1], 1), ("queued", SETS[3], 4)], SETS[1::2])
with_state = spread([("direct", SETS[2], 1), ("queued", SETS[3], 4)], SETS[2:])
with_another = spread(
    [("direct", SETS[1], 1), ("queued", SETS[2], 4), ("direct", SETS[3], 4)], SETS[1:]
)
policies = pytest.mark.parametrize(
    "policy", ["write_through", "write_through_selective", "write_back"]
)


def tier_config(
    components: Components = SETS[-1],
    *,
    page_size: int = 1,
    window: int = 4,
    pages: int = 32,
    swa_pages: int | None = None,
    states: int = 8,
    host_pages: int | None = None,
    host_swa_pages: int | None = None,
    host_states: int | None = None,
    layers: int = 2,
    policy: str = "write_through",
    eviction: str = "lru",
    bigram: bool = False,
    delivery: Delivery = "direct",
    url: str | None = None,
    storage: dict[str, Any] | None = None,
    pins: int = 0,
    limits: LimitsConfig | None = None,
    **host: Any,
) -> CacheConfig:
    """Return the config of a small cache with a host tier; sizes and the window in pages.

    Host pools are twice the device's unless they are named. `url`: with that storage, too.
    `storage`, `host`: more fields of those sections.
    """
    kv: dict[str, Any] = {"kv_heads": 1, "head_dim": 4, "dtype": "float32", "layers": layers}
    pools: dict[str, Any] = {"full": FullPoolConfig(size=pages * page_size, **kv)}
    wanted = {"full": (pages, host_pages, page_size)}
    if "swa" in components:
        count = pages if swa_pages is None else swa_pages
        pools["swa"] = SwaPoolConfig(size=count * page_size, **kv)
        wanted["swa"] = (count, host_swa_pages, page_size)
    if "mamba" in components:
        pools["mamba"] = MambaPoolConfig(
            size=states,
            layers=layers,
            conv_shape=(3,),
            ssm_shape=(2, 2),
            conv_dtype="float32",
            extra_buffer=page_size > 1,
            chunk=page_size,
        )
        wanted["mamba"] = (states, host_states, 1)
    sizes = {
        name: HostPoolConfig(size=(2 * device if given is None else given) * unit)
        for name, (device, given, unit) in wanted.items()
    }
    requests = RequestPoolConfig(max_requests=64, max_context=4 * pages * page_size)
    fields: dict[str, Any] = {"prefetch_threshold": 0, **(storage or {})}
    return CacheConfig(
        components=components,
        page_size=page_size,
        window=window * page_size if "swa" in components else None,
        bigram=bigram,
        delivery=delivery,
        eviction=EvictionConfig(policy=eviction),
        pins=PinsConfig(budget=pins * page_size),
        limits=limits or LimitsConfig(call_timeout_s=20.0),
        pools=PoolsConfig(requests=requests, **pools),
        host=HostConfig(
            **{"write_policy": policy, "load_back_threshold": 0, "pools": sizes, **host}
        ),
        storage=None if url is None else StorageConfig(url=url, **fields),
    )
