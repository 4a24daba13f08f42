"""What the engine counts, and what it tells to those who watch."""

from __future__ import annotations

import bisect
from collections import deque
from typing import Final, Self

import anyio
import msgspec

from radixtide.components.api import CacheStats

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the buckets of times, in seconds."""


class Histogram(msgspec.Struct):
    """Counts by size.

    ``counts[i]``: values of at most ``bounds[i]`` and above the bound before; the last one: all
    above. ``total``, ``sum``: how many, and all of them together.
    """

    bounds: tuple[float, ...] = SECONDS
    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(SECONDS) + 1))
    total: int = 0
    sum: float = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += 1
        self.sum += value

    def copy(self) -> Histogram:
        """Return one that does not change any more."""
        return Histogram(self.bounds, list(self.counts), self.total, self.sum)


class Held(msgspec.Struct, frozen=True):
    """What is held in the cache now.

    ``slots`` of all device pools, ``receipts`` (locks), and ``requests`` that hold something. All
    are 0 when nothing runs.
    """

    slots: int = 0
    receipts: int = 0
    requests: int = 0


class EngineStats(msgspec.Struct, kw_only=True):
    """One look at the engine. Counts are totals since its start; times in seconds.

    ``running``, ``waiting``: requests, now. ``finished``: those that ended, by reason. ``refused``:
    those for which there was no place in the queue. ``retractions``: how often memory was given
    back; ``retries``: how often a request began anew after a failure; ``failed_steps``: forward
    passes that failed; ``lost_loads``: loads that failed under a request.
    ``prompt_tokens``: of requests that had their first token, and of these ``cached_device``,
    ``cached_host``, ``cached_storage``; ``computed_tokens``: of prompts, recomputed ones included;
    ``output_tokens``. ``misses``: requests by the reason for which no more of them was cached.
    ``steps``: forward passes; ``step_s``, ``ttft_s``, ``queue_s``, ``total_s``: how long passes
    took, and requests until their first token, their admission and their end. ``rows``: rows of all
    passes.
    ``held``, ``cache``: what the cache says; None where it was not asked.
    """

    running: int = 0
    waiting: int = 0
    finished: dict[str, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0)
    )
    refused: int = 0
    retractions: int = 0
    retries: int = 0
    failed_steps: int = 0
    lost_loads: int = 0
    prompt_tokens: int = 0
    cached_device: int = 0
    cached_host: int = 0
    cached_storage: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    misses: dict[str, int] = msgspec.field(default_factory=dict)
    steps: int = 0
    rows: int = 0
    step_s: Histogram = msgspec.field(default_factory=Histogram)
    ttft_s: Histogram = msgspec.field(default_factory=Histogram)
    queue_s: Histogram = msgspec.field(default_factory=Histogram)
    total_s: Histogram = msgspec.field(default_factory=Histogram)
    held: Held = Held()
    cache: CacheStats | None = None

    def look(self, cache: CacheStats | None = None) -> EngineStats:
        """Return a copy that does not change any more, with what the cache says."""
        held = Held()
        if cache is not None:
            slots = sum(tiers["device"].held for tiers in cache.pools.values())
            held = Held(slots, cache.receipts, cache.requests)
        return msgspec.structs.replace(
            self,
            finished=dict(self.finished),
            misses=dict(self.misses),
            step_s=self.step_s.copy(),
            ttft_s=self.ttft_s.copy(),
            queue_s=self.queue_s.copy(),
            total_s=self.total_s.copy(),
            held=held,
            cache=cache,
        )


class Event(msgspec.Struct, frozen=True):
    """Something happened to a request.

    ``kind``: ``queued``, ``fetching``, ``loading``, ``admitted``, ``first_token``, ``retracted``,
    ``retried`` or ``ended``. ``at``: seconds on the loop's clock. ``cached``, ``prompt``: tokens,
    from the admission on. ``why``: of ``ended`` how it ended, of ``retried`` what failed.
    """

    kind: str
    rid: str
    at: float
    prompt: int = 0
    cached: int = 0
    why: str | None = None


class Subscription:
    """Events as they come: ``async with engine.watch() as events: async for event in events``.

    Who reads too slowly loses the oldest of them; ``dropped`` counts these.
    """

    def __init__(self, hub: Hub, events_max: int) -> None:
        self._hub = hub
        self._waiting: deque[Event] = deque(maxlen=events_max)
        self._changed = anyio.Event()
        self._closed = False
        self.dropped = 0

    def put(self, event: Event) -> None:
        """Hand over an event; never waits."""
        self.dropped += len(self._waiting) == self._waiting.maxlen
        self._waiting.append(event)
        self._changed.set()

    def close(self) -> None:
        """End it; what was not read can still be."""
        self._closed = True
        self._hub.leave(self)
        self._changed.set()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._changed = anyio.Event()
            await self._changed.wait()
        return self._waiting.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Hub:
    """Those who watch."""

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self._subscribers: set[Subscription] = set()

    def __len__(self) -> int:
        return len(self._subscribers)

    def watch(self) -> Subscription:
        """Return a new subscription."""
        one = Subscription(self, self._events_max)
        self._subscribers.add(one)
        return one

    def leave(self, one: Subscription) -> None:
        """Tell `one` nothing more."""
        self._subscribers.discard(one)

    def tell(self, event: Event) -> None:
        """Tell all."""
        for one in self._subscribers:
            one.put(event)

    def close(self) -> None:
        """End all subscriptions."""
        for one in list(self._subscribers):
            one.close()


__all__ = ("SECONDS", "EngineStats", "Event", "Held", "Histogram", "Hub", "Subscription")
