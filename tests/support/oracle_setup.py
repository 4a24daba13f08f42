"""Configurations of hybrid caches for walks beside the oracle, and what the model writes there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from radixtide import UnifiedRadixCache
from radixtide.configs.schema import (
    CacheConfig,
    EvictionConfig,
    FullPoolConfig,
    LimitsConfig,
    PoolsConfig,
    RequestPoolConfig,
)
from support.caches import make_config
from support.oracle import FULL, MAMBA, SWA, Name


@dataclass(frozen=True)
class HybridSetup:
    """One configuration of a run; its repr is a line of Python that makes it again.

    ``chunk``: grid of states, in units; 0 is one page. ``cap``: states kept a path.
    ``audit_every``: steps between audits and full comparisons.
    """

    components: tuple[str, ...] = (FULL,)
    page: int = 4
    window: int = 4
    pages: int = 36
    swa_pages: int = 18
    states: int = 9
    extra_buffer: bool = False
    chunk: int = 0
    cap: int = 0
    bigram: bool = False
    delivery: Literal["direct", "queued"] = "direct"
    policy: str = "lru"
    audit_every: int = 1

    @property
    def counts(self) -> dict[str, int]:
        """Pages of each pool; a state is a page of its own."""
        all_counts = {FULL: self.pages, SWA: self.swa_pages, MAMBA: self.states}
        return {name: all_counts[name] for name in self.components}

    def unit(self, component: str) -> int:
        """Return the slots of a page of a component's pool."""
        return 1 if component == MAMBA else self.page

    @property
    def grid(self) -> int:
        """Lengths at which requests keep states are multiples of it."""
        return math.lcm(self.chunk or self.page, self.page) if self.extra_buffer else self.page

    def config(self) -> CacheConfig:
        """Return the configuration."""
        sections: dict[str, Any] = {}
        if SWA in self.components:
            from radixtide.configs.schema import SwaPoolConfig

            sections[SWA] = SwaPoolConfig(size=self.swa_pages * self.page, holds_bytes=False)
        if MAMBA in self.components:
            from radixtide.configs.schema import MambaPoolConfig

            sections[MAMBA] = MambaPoolConfig(
                size=self.states,
                holds_bytes=True,
                layers=2,
                conv_shape=(1,),
                ssm_shape=(1,),
                conv_dtype="float32",
                extra_buffer=self.extra_buffer,
                chunk=self.chunk or self.page,
                max_states_per_path=self.cap,
            )
        return make_config(
            components=self.components,
            page_size=self.page,
            window=self.window if SWA in self.components else None,
            bigram=self.bigram,
            delivery=self.delivery,
            eviction=EvictionConfig(policy=self.policy),
            pin_budget=self.pages // 3 * self.page,
            # A caller that gives up its turn would let calls made later overtake it.
            limits=LimitsConfig(call_timeout_s=20.0, immediate_calls=1_000_000_000),
            pools=PoolsConfig(
                full=FullPoolConfig(size=self.pages * self.page, holds_bytes=False),
                requests=RequestPoolConfig(max_requests=8, max_context=self.pages * self.page * 2),
                **sections,
            ),
        )


class Contents:
    """What the model has written into the states: which tokens they are valid after.

    Each prefix has a number of its own, which is what every tensor of its state is filled with.
    """

    def __init__(self, cache: UnifiedRadixCache) -> None:
        self.pool = cache.memory.get(MAMBA)
        self.numbers: dict[Name, int] = {}

    def write(self, slot: int, name: Name) -> None:
        """Let a state be the one after all tokens of `name`."""
        assert self.pool is not None
        number = self.numbers.setdefault(name, len(self.numbers) + 1)
        for layer in range(self.pool.layers):
            for part in self.pool.views(layer):
                part[slot].fill_(number)

    def verify(self, slot: int, name: Name) -> None:
        """Check that a state is the one after all tokens of `name`."""
        assert self.pool is not None
        number = self.numbers[name]
        for layer in range(self.pool.layers):
            for part in self.pool.views(layer):
                assert float(part[slot]) == number, f"state {slot} is not the one after {name}"
