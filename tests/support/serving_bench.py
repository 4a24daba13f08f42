"""A bench: a cache whose loads come as late as they may, a runner on it, and a hand that serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from radixtide import UnifiedRadixCache
from radixtide.configs.schema import CacheConfig, HostConfig
from radixtide.serving.runner import ModelRunner
from radixtide.testing.caches import check_clean
from radixtide.tiers.copy_making import make_engine
from support.serving_copies import JustInTime
from support.serving_hand import Hand
from support.serving_models import Served, prompt
from support.serving_poison import poisoned
from support.serving_records import at_rest, judge


class Bench:
    """A cache, a runner, a hand that serves, and the engine that copies late."""

    def __init__(self, subject: Served, cache: UnifiedRadixCache, copies: list[JustInTime]) -> None:
        self.subject = subject
        self.cache = cache
        self.hand = Hand(cache, ModelRunner(subject.model, cache).forward)
        self._copies = copies

    @property
    def copies(self) -> JustInTime:
        return self._copies[0]

    def check(self, compared: int = 1) -> None:
        """Assert that all that was said is what the reference says."""
        hand = self.hand
        verdict = judge(
            self.subject.reference, self.subject.spread, hand.records, hand.prompts, hand.outputs
        )
        assert not verdict.wrong, verdict
        assert verdict.compared >= compared

    async def check_at_rest(self, *texts: Sequence[int], salt: str | None = None) -> None:
        """Assert that what the pools have of texts is the state of plain passes."""
        compared = 0
        for text in texts:
            verdict = await at_rest(
                self.cache, self.subject.reference, self.subject.spread, text, salt
            )
            assert not verdict.wrong, verdict
            compared += verdict.compared
        assert compared


@asynccontextmanager
async def bench(subject: Served, config: CacheConfig) -> AsyncIterator[Bench]:
    """Open a cache whose loads come as late as they may; nothing is held at the end."""
    loop = asyncio.get_running_loop()
    copies: list[JustInTime] = []

    def make(host: HostConfig, ends: Any) -> JustInTime:
        copies.append(JustInTime(make_engine(ends, host.backend, host.verify), cache.memory, loop))
        return copies[0]

    cache = UnifiedRadixCache(config, make_engine=make)
    async with cache:
        with poisoned(cache):
            yield Bench(subject, cache, copies)
        await check_clean(cache, empty=True)


BASE = prompt(1, 130)
INSIDE = 87
"""Where others leave it: inside a page of any size but 1."""
FAMILY = {
    "inside": [*BASE[:INSIDE], *prompt(2, 45)],
    "longer": [*BASE, *prompt(3, 20)],
    "same": BASE,
    "early": [*BASE[:5], *prompt(4, 40)],
    "last": [*BASE[:-1], (BASE[-1] + 1) % 256],
    "other": prompt(5, 33),
}
