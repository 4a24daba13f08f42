"""The record of a replay while it runs: what drivers write to, and what reports read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from radixtide.cli.replay_metrics import CallTimes, Histogram, Sample, Series, Tally
from radixtide.components.api import CacheStats, PoolStats

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache


class Recording:
    """Tallies, latencies and samples of one replay.

    ``now_ns``: virtual time. ``first_token``, ``whole``: virtual nanoseconds from a request's
    arrival to its first token and to its end. ``on_step``: called after each step, for progress.
    """

    def __init__(self, on_step: Callable[[Recording], None] | None = None) -> None:
        self.calls = CallTimes()
        self.tally = Tally()
        self.series = Series()
        self.first_token = Histogram()
        self.whole = Histogram()
        self.now_ns = 0
        self._on_step = on_step

    async def step(
        self, cache: UnifiedRadixCache, now_ns: int, running: int = 0, waiting: int = 0
    ) -> None:
        """Note that virtual time is `now_ns`; take a sample if one is due."""
        self.now_ns = now_ns
        if self._on_step is not None:
            self._on_step(self)
        if self.series.tick():
            await self.sample(cache, running, waiting)

    async def sample(self, cache: UnifiedRadixCache, running: int = 0, waiting: int = 0) -> None:
        """Add a sample of now to the series."""
        stats = await self.calls.timed("stats", cache.stats())
        self.series.add(
            Sample(
                at_ns=self.now_ns,
                requests=self.tally.requests,
                looked_up=self.tally.looked_up,
                token_hits=self.tally.token_hits,
                full_hits=self.tally.full_hits,
                pools={name: tiers["device"] for name, tiers in stats.pools.items()},
                running=running,
                waiting=waiting,
                latency=self.calls.roll(),
                hosts=hosts_of(stats),
                tier_tokens=dict(self.tally.tier_tokens),
                moved={name: n for name, n in stats.counters.items() if name.endswith("_bytes")},
            )
        )


def hosts_of(stats: CacheStats) -> dict[str, PoolStats]:
    """Return the host pools that there are, by component."""
    return {name: tiers["host"] for name, tiers in stats.pools.items() if "host" in tiers}


__all__ = ("Recording", "hosts_of")
