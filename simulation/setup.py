"""What a simulated run is made of: one configuration of a small cache, drawn from a seed.

Pools are small on purpose, so that evictions, tombstones and refusals are the rule, and bytes are
few but real, so that a wrong index is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final, Literal, get_args

import msgspec

from radixtide.configs.errors import ConfigError
from radixtide.configs.rules import POLICIES, validate
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
from radixtide.simulation.dice import dice

Tiers = Literal["device", "host", "storage"]
WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
Layout = Literal["layer_first", "page_first"]
PrefetchPolicy = Literal["best_effort", "wait_complete", "timeout"]
Delivery = Literal["direct", "queued"]

SETS: Final = (
    ("full",),
    ("full", "swa"),
    ("full", "mamba"),
    ("full", "swa", "mamba"),
)
"""The sets of components that there are."""

PAGES: Final = (1, 4, 16)
TIERS: Final[tuple[Tiers, ...]] = get_args(Tiers)
_DRAWN: Final[tuple[Tiers, ...]] = ("device", "host", "storage", "storage")
SCHEDULERS_MAX: Final = 4
RANKS_S: Final = 60.0
LONG_S: Final = 5.0
"""Seconds of virtual time after which a call ends by itself."""


class Setup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One configuration of a simulated cache.

    Sizes of pools are in pages (of states: states), ``window``, ``load_back_threshold``,
    ``load_back_quota`` and ``batch_units`` in units, times in seconds. ``schedulers``: how many
    run side by side; ``ranks``: how many caches run the same calls. What a setup has no use for
    (a window without ``swa``) is not looked at.
    """

    components: tuple[str, ...] = ("full",)
    page_size: int = 4
    pages: int = 32
    window: int = 8
    swa_pages: int = 16
    states: int = 12
    extra_buffer: bool = True
    states_per_path: int = 0
    tiers: Tiers = "device"
    host_pages: int = 40
    host_swa_pages: int = 24
    host_states: int = 12
    write_policy: WritePolicy = "write_through"
    layout: Layout = "layer_first"
    load_back_threshold: int = 0
    load_back_quota: int = 0
    batch_units: int = 8192
    jobs_max: int = 64
    prefetch_policy: PrefetchPolicy = "wait_complete"
    eviction: str = "lru"
    bigram: bool = False
    delivery: Delivery = "direct"
    pins: int = 8
    layers: int = 2
    mailbox: int = 4096
    restarts_max: int = 1000
    call_timeout_s: float = LONG_S
    storage_timeout_s: float = 1.0
    batch_pages: int = 2
    schedulers: int = 1
    ranks: int = 1

    def has(self, component: str) -> bool:
        """Return whether the cache has a component."""
        return component in self.components

    @property
    def host(self) -> bool:
        """Whether there is a host tier."""
        return self.tiers != "device"

    @property
    def storage(self) -> bool:
        """Whether there is a storage."""
        return self.tiers == "storage"

    @property
    def whole_window(self) -> int:
        """The window in whole pages, in units; 0 without one."""
        if not self.has("swa"):
            return 0
        return -(-self.window // self.page_size) * self.page_size

    def config(self) -> CacheConfig:
        """Return the configuration of the cache. Raises ConfigError where it can not be."""
        page = self.page_size
        kv: dict[str, Any] = {
            "kv_heads": 1,
            "head_dim": 2,
            "dtype": "float32",
            "layers": self.layers,
        }
        pools: dict[str, Any] = {"full": FullPoolConfig(size=self.pages * page, **kv)}
        sizes = {"full": HostPoolConfig(size=self.host_pages * page)}
        if self.has("swa"):
            pools["swa"] = SwaPoolConfig(size=self.swa_pages * page, **kv)
            sizes["swa"] = HostPoolConfig(size=self.host_swa_pages * page)
        if self.has("mamba"):
            pools["mamba"] = MambaPoolConfig(
                size=self.states,
                layers=self.layers,
                conv_shape=(2,),
                ssm_shape=(2,),
                conv_dtype="float32",
                extra_buffer=self.extra_buffer,
                chunk=page,
                max_states_per_path=self.states_per_path,
            )
            sizes["mamba"] = HostPoolConfig(size=self.host_states)
        requests = RequestPoolConfig(max_requests=64, max_context=4 * self.pages * page)
        config = CacheConfig(
            components=self.components,
            page_size=page,
            window=self.window if self.has("swa") else None,
            bigram=self.bigram,
            delivery=self.delivery,
            eviction=EvictionConfig(policy=self.eviction, tlru_threshold=2 * page),
            pins=PinsConfig(budget=self.pins * page),
            limits=LimitsConfig(
                # On one rank alone a deadline would part it from the others.
                call_timeout_s=self.call_timeout_s if self.ranks == 1 else RANKS_S,
                restarts_max=self.restarts_max,
                mailbox_capacity=self.mailbox,
            ),
            pools=PoolsConfig(requests=requests, **pools),
            host=self._host(sizes) if self.host else None,
            storage=self.storage_config() if self.storage else None,
        )
        return validate(config)

    def _host(self, sizes: dict[str, HostPoolConfig]) -> HostConfig:
        return HostConfig(
            layout=self.layout,
            write_policy=self.write_policy,
            load_back_threshold=self.load_back_threshold,
            load_back_quota=self.load_back_quota,
            batch_units=self.batch_units,
            jobs_max=self.jobs_max,
            backend="threads",
            pools=sizes,
        )

    def storage_config(self, weights: int = 0) -> StorageConfig:
        """Return the section of the storage; its URL is never opened.

        `weights`: version of the weights.
        """
        deadlines: dict[str, Any] = {}
        if self.prefetch_policy == "timeout":
            deadlines = {"prefetch_timeout_base_s": 0.05, "prefetch_timeout_per_page_s": 0.001}
        return StorageConfig(
            url="memory:",
            model="simulated",
            weight_version=f"v{weights}",
            prefetch_policy=self.prefetch_policy,
            prefetch_threshold=0,
            batch_pages=self.batch_pages,
            timeout_s=self.storage_timeout_s,
            breaker_failures=3,
            breaker_reset_s=0.5,
            **deadlines,
        )


def parse_components(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` as a set of components in its order. Raises ConfigError."""
    for one in SETS:
        if sorted(one) == sorted(names):
            return one
    known = "; ".join(",".join(one) for one in SETS)
    raise ConfigError(f"components: {','.join(names)!r} is no set that there is; write {known}")


def draw_setup(
    seed: int, components: Sequence[str] | None = None, tiers: Tiers | None = None
) -> Setup:
    """Return the setup of a seed; what is given stays as it is. Raises ConfigError."""
    luck = dice(seed, "setup")
    # Drawn whether it is used or not, so that a seed with a part given is otherwise the same.
    drawn_set, drawn_tiers = luck.choice(SETS), luck.choice(_DRAWN)
    chosen = drawn_set if components is None else parse_components(components)
    chosen_tiers = drawn_tiers if tiers is None else tiers
    if chosen_tiers not in TIERS:
        raise ConfigError(f"tiers: {tiers!r} is none of {', '.join(TIERS)}")
    page = luck.choice(PAGES)
    bigram = not luck.randrange(5) and "mamba" not in chosen
    window = page * luck.randrange(1, 4) + luck.choice((0, 0, 1))
    ranks = 2 if not luck.randrange(6) else 1
    schedulers = luck.choice((1, 2, 2, 3, 3, SCHEDULERS_MAX))
    extra = page > 1 or bool(luck.randrange(2))
    return Setup(
        components=chosen,
        page_size=page,
        pages=luck.choice((16, 20, 24, 32, 48, 64)),
        window=window,
        swa_pages=-(-window // page) + luck.choice((8, 12, 20)),
        states=luck.choice((7, 9, 12, 16)),
        extra_buffer=extra,
        states_per_path=luck.choice((0, 0, 0, 2)),
        bigram=bigram,
        eviction=luck.choice(POLICIES) if luck.randrange(2) else "lru",
        delivery=luck.choice(("direct", "queued")),
        pins=luck.choice((0, 3, 8)),
        layers=luck.choice((1, 2)),
        restarts_max=luck.choice((1000, 1000, 1000, 12)),
        mailbox=luck.choice((4096, 4096, 8)),
        call_timeout_s=luck.choice((LONG_S, 1.0)),
        schedulers=1 if ranks > 1 else schedulers,
        ranks=ranks,
        **_draw_tiers(luck, chosen_tiers, page),
    )


def _draw_tiers(luck: Random, tiers: Tiers, page: int) -> dict[str, Any]:
    return {
        "tiers": tiers,
        "host_pages": luck.choice((10, 20, 40, 60)),
        "host_swa_pages": luck.choice((8, 16, 30)),
        "host_states": luck.choice((2, 6, 12)),
        "write_policy": luck.choice(
            ("write_through", "write_through", "write_through_selective", "write_back")
        ),
        "layout": luck.choice(("layer_first", "page_first")),
        "load_back_threshold": luck.choice((0, 0, 0, 2 * page)),
        "load_back_quota": luck.choice((0, 0, 4 * page)),
        "batch_units": luck.choice((8192, 2 * page)),
        "jobs_max": luck.choice((64, 4)),
        "prefetch_policy": luck.choice(("wait_complete", "best_effort", "timeout")),
        "storage_timeout_s": luck.choice((1.0, 1.0, 0.02)),
        "batch_pages": luck.choice((2, 8)),
    }
