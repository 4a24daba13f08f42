"""What the live page is sent: sizes, counters and requests, without any text of a user.

Requests are numbered here as they are met: their own names may come from clients. The tree is sent
apart, as a :class:`~radixtide.components.picture.TreePicture`, which has no text either.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from typing import Final, Protocol

import msgspec

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.components.api import CacheStats, PoolStats
from radixtide.serving.report import Report
from radixtide.serving.statistics import EngineStats

RUNNING_MAX: Final = 40
"""Requests that wait or run and are shown; of the others only their number is told."""

ENDED_MAX: Final = 60
"""Requests that ended and are shown, the last ones."""

NUMBERS_MAX: Final = 4096
"""Names of requests whose numbers are remembered; there can not be as many at once."""


class Watched(Protocol):
    """What is looked at: an :class:`~radixtide.serving.engine.Engine`."""

    @property
    def cache(self) -> UnifiedRadixCache:
        """The cache whose tree is shown."""

    @property
    def finished(self) -> deque[Report]:
        """Reports of the last requests that ended, the newest last."""

    def running(self) -> list[Report]:
        """Return reports of those that wait or run."""

    async def stats(self) -> EngineStats:
        """Return counters, and what the cache says."""


class RequestView(msgspec.Struct, omit_defaults=True):
    """One request: its number on this page, and what a Report says of the same name."""

    id: int
    state: str
    prompt: int
    output: int = 0
    device: int = 0
    host: int = 0
    storage: int = 0
    computed: int = 0
    miss: str | None = None
    finish: str | None = None
    retractions: int = 0
    queue_s: float | None = None
    ttft_s: float | None = None
    total_s: float = 0.0


class StorageView(msgspec.Struct, omit_defaults=True):
    """What a storage has: StoreStats of the cache, in short. ``values``: pages."""

    backend: str
    values: int | None = None
    bytes: int | None = None
    max_bytes: int = 0
    circuit: str = "none"


class Now(msgspec.Struct, omit_defaults=True):
    """All that a page shows beside the tree.

    ``at``: seconds since 1970. ``phase``: ``loading``, ``ready`` or ``stopping``. ``interval_s``:
    time between two looks, as it is now. ``look_s``: what the last look at the tree took.
    ``trouble``: the kind of error that the last look ended in.
    ``pools[component][tier]``: sizes in slots. ``totals``: tokens of prompts since the start, by
    where they came from: device, host, storage, computed. ``counters``: of the cache, some.
    ``running``: those that wait or run; ``busy``, ``waiting``: how many run and wait in all.
    ``ended``: those that ended, the newest last.
    """

    at: float
    phase: str
    model: str = ""
    interval_s: float = 0.0
    look_s: float = 0.0
    viewers: int = 0
    trouble: str | None = None
    nodes: int = 0
    locks: int = 0
    pinned: int = 0
    pools: dict[str, dict[str, PoolStats]] = {}
    storage: StorageView | None = None
    totals: dict[str, int] = {}
    counters: dict[str, int] = {}
    busy: int = 0
    waiting: int = 0
    running: list[RequestView] = []
    ended: list[RequestView] = []


SHOWN_COUNTERS: Final = (
    "evicted_nodes",
    "evicted_units",
    "demoted_nodes",
    "host_evicted_nodes",
    "backup_units",
    "load_units",
    "prefetched_units",
    "stored_pages",
    "repairs",
)
"""Counters of the cache that the page shows; those of tiers are there where there are tiers."""


class Numbers:
    """Numbers for requests, by name, in the order in which they are met."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, int] = OrderedDict()
        self._last = 0

    def of(self, rid: str) -> int:
        """Return the number of the request of that name."""
        number = self._known.get(rid)
        if number is None:
            self._last = number = self._last + 1
            self._known[rid] = number
            if len(self._known) > NUMBERS_MAX:
                self._known.popitem(last=False)
        return number


def view_of(report: Report, numbers: Numbers) -> RequestView:
    """Return what is shown of a request."""
    return RequestView(
        id=numbers.of(report.rid),
        state=report.state,
        prompt=report.prompt_tokens,
        output=report.output_tokens,
        device=report.cached_device,
        host=report.cached_host,
        storage=report.cached_storage,
        computed=report.computed_tokens,
        miss=report.miss_reason,
        finish=report.finish_reason,
        retractions=report.retractions,
        queue_s=report.queue_s,
        ttft_s=report.ttft_s,
        total_s=report.total_s,
    )


def now_of(watched: Watched, stats: EngineStats, numbers: Numbers, model: str) -> Now:
    """Return what is to be shown of `watched`, whose statistics are `stats`. O(requests shown)."""
    # The oldest first: numbers are given in the order in which requests are met.
    ended = [view_of(one, numbers) for one in list(watched.finished)[-ENDED_MAX:]]
    running = watched.running()
    now = Now(
        time.time(),
        "ready",
        model,
        totals={
            "device": stats.cached_device,
            "host": stats.cached_host,
            "storage": stats.cached_storage,
            "computed": stats.computed_tokens,
        },
        busy=stats.running,
        waiting=stats.waiting,
        running=[view_of(one, numbers) for one in running[:RUNNING_MAX]],
        ended=ended,
    )
    if stats.cache is not None:
        _add_cache(now, stats.cache)
    return now


def _add_cache(now: Now, stats: CacheStats) -> None:
    now.nodes, now.locks, now.pinned = stats.nodes, stats.receipts, stats.pinned
    now.pools = stats.pools
    now.counters = {name: stats.counters[name] for name in SHOWN_COUNTERS if name in stats.counters}
    store = stats.storage
    if store is not None:
        now.storage = StorageView(
            store.backend, store.values, store.bytes, store.max_bytes, store.circuit
        )


__all__ = ("Now", "Numbers", "RequestView", "StorageView", "Watched", "now_of", "view_of")
