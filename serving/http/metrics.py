"""What Prometheus is told: requests by the server's own count, all else by the engine's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from radixtide.serving.statistics import EngineStats, Histogram

__all__ = ("CONTENT_TYPE", "Metrics")

STATES: Final = ("free", "evictable", "protected", "held", "in_flight")
TIERS: Final = ("device", "host", "storage")


class Metrics:
    """The server's own registry, so that several servers in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "radixtide_http_requests",
            "Requests answered, by path and status.",
            ("path", "status"),
            registry=self.registry,
        )
        self.gone = Counter(
            "radixtide_clients_gone",
            "Clients that went away before their answer's end.",
            registry=self.registry,
        )
        self._engine = _EngineCollector()
        self.registry.register(self._engine)

    def page(self, stats: EngineStats | None) -> bytes:
        """Return all of it in Prometheus' text format. `stats`: None while the model loads."""
        self._engine.stats = stats
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """Tells what the engine counted; the numbers are its own, and nobody counts them twice."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None

    def collect(self) -> Iterator[Metric]:
        stats = self.stats
        if stats is None:
            return
        yield from self._counters(stats)
        yield from self._gauges(stats)
        for name, what, histogram in (
            ("time_to_first_token_seconds", "From arrival to the first token.", stats.ttft_s),
            ("queue_seconds", "From arrival to admission.", stats.queue_s),
            ("request_seconds", "From arrival to the last token.", stats.total_s),
            ("step_seconds", "Forward passes.", stats.step_s),
        ):
            yield _histogram(f"radixtide_{name}", what, histogram)

    def _counters(self, stats: EngineStats) -> Iterator[Metric]:
        for name, what in (
            ("prompt_tokens", "Tokens of prompts."),
            ("computed_tokens", "Tokens of prompts that were computed."),
            ("output_tokens", "Tokens of answers."),
            ("refused", "Requests for which there was no place in the queue."),
            ("retractions", "Requests that had to make room for others."),
            ("retries", "Requests that began anew after a failure."),
            ("failed_steps", "Forward passes that failed."),
            ("lost_loads", "Loads that failed under a request."),
            ("steps", "Forward passes."),
        ):
            yield CounterMetricFamily(f"radixtide_{name}", what, getattr(stats, name))
        cached = CounterMetricFamily(
            "radixtide_cached_tokens", "Tokens of prompts that were cached.", labels=("tier",)
        )
        for tier in TIERS:
            cached.add_metric((tier,), getattr(stats, f"cached_{tier}"))
        yield cached
        finished = CounterMetricFamily(
            "radixtide_requests_finished", "Requests that ended.", labels=("reason",)
        )
        for reason, count in stats.finished.items():
            finished.add_metric((reason,), count)
        yield finished
        misses = CounterMetricFamily(
            "radixtide_misses", "Requests, by why no more of them was cached.", labels=("reason",)
        )
        for reason, count in stats.misses.items():
            misses.add_metric((reason,), count)
        yield misses

    def _gauges(self, stats: EngineStats) -> Iterator[Metric]:
        yield GaugeMetricFamily("radixtide_requests_running", "In the batch.", stats.running)
        yield GaugeMetricFamily("radixtide_requests_waiting", "Wait for memory.", stats.waiting)
        if stats.cache is None:
            return
        yield GaugeMetricFamily("radixtide_tree_nodes", "Nodes of the tree.", stats.cache.nodes)
        slots = GaugeMetricFamily(
            "radixtide_pool_slots", "Slots of the pools.", labels=("pool", "tier", "state")
        )
        for pool, tiers in stats.cache.pools.items():
            for tier, sizes in tiers.items():
                for state in STATES:
                    slots.add_metric((pool, tier, state), getattr(sizes, state))
        yield slots


def _histogram(name: str, what: str, histogram: Histogram) -> HistogramMetricFamily:
    """Return `histogram` as Prometheus has it: counts that add up from bucket to bucket."""
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        below += count
        buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", below))
    return HistogramMetricFamily(name, what, buckets=buckets, sum_value=histogram.sum)
