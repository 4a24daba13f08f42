"""What a replay counts: latencies in histograms, tallies, and samples over virtual time.

All of it takes constant memory, however long the trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable
from time import perf_counter_ns
from typing import Final, TypeVar

import msgspec

from radixtide.components.api import EvictResult, MatchResult, MissReason, PoolStats

Answer = TypeVar("Answer")

_SUB_BITS: Final = 6


class Histogram:
    """Counts of non-negative integers in buckets that grow with the value.

    A value is told to within 1/128 of itself: each power of two is cut into 64 buckets. Adding
    costs O(1), a percentile O(buckets used).
    """

    __slots__ = ("count", "counts")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.count = 0

    def add(self, value: int) -> None:
        """Count `value`."""
        shift = value.bit_length() - _SUB_BITS - 1
        bucket = value if shift <= 0 else (shift << _SUB_BITS) + (value >> shift)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.count += 1

    def merge(self, other: Histogram) -> None:
        """Add all that `other` counted."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self.count += other.count

    def percentile(self, percent: float) -> int:
        """Return a value that `percent` percent of the values do not exceed; 0 when empty."""
        wanted = self.count * percent / 100
        reached = 0
        for bucket in sorted(self.counts):
            reached += self.counts[bucket]
            if reached >= wanted:
                return _middle(bucket)
        return 0


def _middle(bucket: int) -> int:
    """Return the value in the middle of `bucket`."""
    if bucket < 2 << _SUB_BITS:
        return bucket
    shift = (bucket >> _SUB_BITS) - 1
    return ((bucket - (shift << _SUB_BITS)) << shift) + (1 << shift >> 1)


class CallTimes:
    """Latencies of the cache's calls in nanoseconds: since the start, and since the last sample."""

    def __init__(self) -> None:
        self.total: dict[str, Histogram] = {}
        self.recent: dict[str, Histogram] = {}

    async def timed(self, name: str, call: Awaitable[Answer]) -> Answer:
        """Await `call` and note how long it took, whether it succeeded or raised."""
        start = perf_counter_ns()
        try:
            return await call
        finally:
            took = perf_counter_ns() - start
            histogram = self.recent.get(name)
            if histogram is None:
                histogram = self.recent[name] = Histogram()
            histogram.add(took)

    def roll(self) -> dict[str, Histogram]:
        """Return what was noted since the last roll, and add it to the total."""
        recent, self.recent = self.recent, {}
        for name, histogram in recent.items():
            self.total.setdefault(name, Histogram()).merge(histogram)
        return recent


CUT_BY: Final = {
    "window_gap": "swa",
    "no_state": "mamba",
    "no_slot": "mamba",
    "component": "plug-in",
}
"""Which component shortened a match that names one of these reasons; otherwise it was Full."""


TIERS: Final = ("device", "host", "storage")
"""Where a hit may be found, from the fastest on."""


class Found(msgspec.Struct, frozen=True):
    """What was found of a prompt, after what could be loaded was.

    ``match``: the match that says why it is not more. ``length``: units that are on the device now.
    ``host``: how many of them were loaded from the host, ``storage``: how many of those were
    fetched from storage just before.
    """

    match: MatchResult
    length: int
    host: int = 0
    storage: int = 0

    @property
    def reason(self) -> MissReason:
        """Why it is not more."""
        match = self.match
        if match.miss_reason is not MissReason.ON_HOST:
            return match.miss_reason
        if self.length < match.device_indices.numel() + match.host_hit_length:
            return MissReason.ON_HOST  # and stayed there
        return match.full_miss_reason or MissReason.NEVER_STORED

    def upto(self, hits: int) -> list[tuple[str, int]]:
        """Return each tier with the units that it and the faster ones have of the first `hits`."""
        ends = (self.length - self.host, self.length - self.storage, self.length)
        return [(tier, min(end, hits)) for tier, end in zip(TIERS, ends, strict=True)]


class Tally(msgspec.Struct):
    """What became of the requests. Blocks and tokens are those of prompts.

    ``blocks`` and ``tokens`` are those of all requests that arrived, the refused too;
    ``looked_up`` are the tokens of those that were admitted so far. Of these, ``full_hits`` are
    what the match would have had if there were Full alone, and ``lost`` tells by reason what was
    not reused; ``cut`` is, by component, what it alone would have taken from Full's hits.
    ``evicted``: slots by component. ``tier_blocks``, ``tier_tokens``: hits by the tier on which
    they were found. ``deferred``: admissions put off because the pool
    had no room. ``retracted``: times a running request gave its slots back and queued again.
    """

    completed: int = 0
    refused: int = 0
    aborted: int = 0
    blocks: int = 0
    block_hits: int = 0
    tokens: int = 0
    token_hits: int = 0
    looked_up: int = 0
    output_tokens: int = 0
    prefilled_tokens: int = 0
    full_hits: int = 0
    retracted: int = 0
    deferred: int = 0
    miss_reasons: Counter[str] = msgspec.field(default_factory=Counter)
    lost: Counter[str] = msgspec.field(default_factory=Counter)
    cut: Counter[str] = msgspec.field(default_factory=Counter)
    evicted: Counter[str] = msgspec.field(default_factory=Counter)
    tier_blocks: Counter[str] = msgspec.field(default_factory=Counter)
    tier_tokens: Counter[str] = msgspec.field(default_factory=Counter)

    @property
    def evicted_tokens(self) -> int:
        """Slots of Full's pool that allocations evicted."""
        return self.evicted["full"]

    @property
    def requests(self) -> int:
        """Requests that came to an end."""
        return self.completed + self.refused + self.aborted

    @property
    def hit_ratio(self) -> float:
        """Hit tokens per prompt token; 0 without any."""
        return self.token_hits / self.tokens if self.tokens else 0.0

    def count_prompt(self, blocks: int, tokens: int) -> None:
        """Count a prompt that came in."""
        self.blocks += blocks
        self.tokens += tokens

    def count_hits(self, blocks: int, tokens: int, reason: str, of: int) -> None:
        """Count what was cached of a prompt of `of` tokens, and why it was not more."""
        self.looked_up += of
        self.block_hits += blocks
        self.token_hits += tokens
        self.miss_reasons[reason] += 1

    def count_found(self, found: Found, of: int, block: int, page: int) -> int:
        """Count what was found of a prompt of `of` tokens, and why not more; return the hit tokens.

        A block is a hit when all its whole pages are: of a last, shorter block the tokens behind
        its last whole page can not be cached by anyone.
        """
        hits = min(found.length, of)
        whole_pages = of - of % page
        blocks = tokens = 0
        for tier, end in found.upto(hits):
            more = end // block + (end == whole_pages and end % block > 0)
            self.tier_blocks[tier] += more - blocks
            self.tier_tokens[tier] += end - tokens
            blocks, tokens = more, end
        self.count_hits(blocks, hits, found.reason.value, of=of)
        self.count_losses(found, hits, of, page)
        return hits

    def count_losses(self, found: Found, hits: int, of: int, page: int) -> None:
        """Count why the rest of a prompt of `of` tokens, of which `hits` were found, was not."""
        match, reason = found.match, found.reason.value
        full = min(max(match.full_kv_hit_length, hits), of)
        self.full_hits += full
        lost = self.lost
        if full > hits:
            lost[reason] += full - hits
            for name, length in match.component_hit_lengths.items():
                # For want of a slot the match came to nothing, whatever states there are.
                reach = 0 if (reason, name) == ("no_slot", "mamba") else length
                self.cut[name] += full - min(reach, full)
        tail = min(of % page, of - full)
        if tail:
            lost["unaligned_tail"] += tail
        if of - full > tail:
            # Behind what Full had, it is Full's reason that counts, whoever else cut the match.
            lost[(match.full_miss_reason or found.reason).value] += of - full - tail

    def count_unaligned(self, tokens: int) -> None:
        """Count a prompt that is too short to be cached at all."""
        self.count_hits(0, 0, "unaligned_tail", of=tokens)
        self.lost["unaligned_tail"] += tokens

    def component_hits(self, name: str) -> int:
        """Return the tokens that Full and the component `name` alone would have let reuse."""
        return self.full_hits - self.cut[name]

    def count_evicted(self, evicted: EvictResult) -> None:
        """Count what an allocation evicted, by component."""
        self.evicted["full"] += evicted.num_tokens_evicted
        self.evicted["swa"] += evicted.swa_num_tokens_evicted
        self.evicted["mamba"] += evicted.mamba_num_evicted
        self.evicted.update(evicted.others)


class Sample(msgspec.Struct):
    """One look at the replay: totals so far, the pools now, latencies since the sample before.

    ``at_ns``: virtual time. ``pools``, ``hosts``: each device pool and host pool, by component.
    ``tier_tokens``: hit tokens by tier. ``moved``: bytes moved between tiers, by counter.
    """

    at_ns: int
    requests: int
    looked_up: int
    token_hits: int
    full_hits: int
    pools: dict[str, PoolStats]
    running: int
    waiting: int
    latency: dict[str, Histogram]
    hosts: dict[str, PoolStats] = {}
    tier_tokens: dict[str, int] = {}
    moved: dict[str, int] = {}


class Series:
    """At most `limit` samples of a run of unknown length.

    When the room is used up, neighbours become one and samples are taken half as often; so the
    points stay evenly spread over the whole run.
    """

    def __init__(self, limit: int = 256) -> None:
        self.samples: list[Sample] = []
        self._limit = limit
        self._every = 1
        self._ticks = 0

    def tick(self) -> bool:
        """Count one step and return whether a sample is due."""
        self._ticks += 1
        return self._ticks % self._every == 0

    def add(self, sample: Sample) -> None:
        """Append `sample`, first thinning out if the room is used up."""
        if len(self.samples) >= self._limit:
            self._thin()
        self.samples.append(sample)

    def _thin(self) -> None:
        """Merge samples two by two: the later one's totals, both ones' latencies."""
        merged: list[Sample] = []
        for first, second in zip(self.samples[::2], self.samples[1::2], strict=False):
            for name, histogram in first.latency.items():
                second.latency.setdefault(name, Histogram()).merge(histogram)
            merged.append(second)
        if len(self.samples) % 2:
            merged.append(self.samples[-1])
        self.samples = merged
        self._every *= 2


__all__ = ("TIERS", "CallTimes", "Found", "Histogram", "Sample", "Series", "Tally")
