"""Configurations of caches with tiers for random walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from radixtide.configs.schema import CacheConfig, LimitsConfig
from support.caches import Delivery
from support.tier_config import tier_config

FOR_EVER: Final = 1e6
"""Seconds that no walk lets pass."""


@dataclass(frozen=True)
class TierSetup:
    """One configuration of a walk; its repr is a line of Python that makes it again.

    Sizes in pages (of states: states), the window in units. ``storage``: whether there is one.
    ``damage``: host pages go bad, and the storage lies. ``crashes``: actors crash.
    ``audit_every``, ``look_every``: steps between audits, and looks at every byte.
    """

    components: tuple[str, ...] = ("full",)
    page: int = 4
    window: int = 8
    pages: int = 24
    swa_pages: int = 16
    states: int = 9
    host_pages: int = 40
    host_swa_pages: int = 24
    host_states: int = 12
    policy: str = "write_through"
    layout: str = "layer_first"
    eviction: str = "lru"
    delivery: Delivery = "direct"
    bigram: bool = False
    storage: bool = True
    prefetch: str = "wait_complete"
    quota: int = 0
    batch: int = 8192
    jobs: int = 64
    damage: bool = False
    crashes: bool = False
    audit_every: int = 1
    look_every: int = 7

    def config(self) -> CacheConfig:
        """Return the configuration."""
        config = tier_config(
            self.components,
            page_size=self.page,
            pages=self.pages,
            swa_pages=self.swa_pages,
            states=self.states,
            host_pages=self.host_pages,
            host_swa_pages=self.host_swa_pages,
            host_states=self.host_states,
            policy=self.policy,
            eviction=self.eviction,
            bigram=self.bigram,
            delivery=self.delivery,
            pins=self.pages // 4,
            url="memory:" if self.storage else None,
            storage=self.storage_fields(),
            limits=LimitsConfig(call_timeout_s=FOR_EVER, restarts_max=1_000_000),
            layout=self.layout,
            load_back_quota=self.quota,
            batch_units=self.batch,
            jobs_max=self.jobs,
        )
        if "swa" not in self.components:
            return config
        return msgspec.structs.replace(config, window=self.window)

    def storage_fields(self) -> dict[str, Any]:
        """Return the fields of the storage section but for the URL."""
        return {
            "prefetch_policy": self.prefetch,
            "prefetch_threshold": 0,
            "batch_pages": 2,
            "timeout_s": FOR_EVER,
            "breaker_failures": 3,
            "breaker_reset_s": 2.0,
        }
