"""What the parts of the scheduler share: who waits, who runs, and what is told of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.configs.errors import RadixtideError
from radixtide.serving.calls import Letting
from radixtide.serving.config import EngineConfig
from radixtide.serving.errors import GenerationFailed
from radixtide.serving.generation import FinishReason
from radixtide.serving.order import in_order
from radixtide.serving.report import Report
from radixtide.serving.sequence import Sequence, Stage
from radixtide.serving.shape import Shape
from radixtide.serving.statistics import EngineStats, Event, Hub


class Board:
    """Requests by where they are, and how one leaves.

    Every request that has not ended is in ``waiting`` or in ``running``; who is part of the forward
    pass that goes on is in ``computing`` too, and must not be touched until that is over.
    ``time`` counts up when something was cached or given back: what was looked up before may be
    another now. ``wake`` is set when the scheduler may have something to do.
    """

    def __init__(
        self, cache: UnifiedRadixCache, config: EngineConfig, now: Callable[[], float]
    ) -> None:
        self.cache = cache
        self.config = config
        self.now = now
        self.shape = Shape.of(cache.config)
        self.letting = Letting(cache, config)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.computing: set[Sequence] = set()
        self.time = 0
        self.wake = asyncio.Event()
        self.stats = EngineStats()
        self.hub = Hub(config.events_max)
        self.finished: deque[Report] = deque(maxlen=config.reports_max)
        self._ended = 0

    @property
    def idle(self) -> bool:
        """Whether there is no request."""
        return not self.waiting and not self.running

    def all(self) -> list[Sequence]:
        """Return all requests that have not ended, those that run first."""
        return [*self.running, *self.waiting]

    def tell(self, kind: str, one: Sequence, why: str | None = None) -> None:
        """Tell those who watch."""
        if len(self.hub):
            report = one.report
            event = Event(
                kind, one.rid, self.now(), report.prompt_tokens, report.cached_tokens, why
            )
            self.hub.tell(event)

    def queue(self, one: Sequence) -> None:
        """Let a request wait."""
        self.waiting.append(one)
        self.tell("queued", one)
        self.wake.set()

    def admit(self, one: Sequence) -> None:
        """Let a request run."""
        self.waiting.remove(one)
        self.running.append(one)
        one.stage = Stage.RUNNING
        if one.report.queue_s is None:
            one.report.queue_s = self.now() - one.arrived_at
            self.stats.queue_s.add(one.report.queue_s)
        self.tell("admitted", one)

    async def back(self, one: Sequence, *, keep: bool = False) -> None:
        """Let a request give back what it holds, and wait again."""
        await self._give_back(one, keep=keep)
        one.begin()
        one.stage = Stage.WAITING
        if one in self.running:
            one.returns = True
            self.running.remove(one)
            self.waiting.append(one)

    async def retract(self, one: Sequence) -> None:
        """Take a request's memory; it comes back later. What it has computed stays cached."""
        self.stats.retractions += 1
        one.report.retractions += 1
        await self.back(one, keep=True)
        self.tell("retracted", one)

    async def fail(self, one: Sequence, error: BaseException) -> None:
        """Serve a request anew after a failure, or end it where that happened too often."""
        one.retries += 1
        if one.retries > self.config.retries_max:
            reason = GenerationFailed(
                f"request {one.rid!r} failed {one.retries} times in a row, the last time with "
                f"{type(error).__name__}: {error}"
            )
            reason.__cause__ = error
            await self.end(one, "error", reason)
            return
        self.stats.retries += 1
        one.report.retries += 1
        one.not_before = self.now() + one.retries * self.config.retry_pause_s
        await self.back(one)
        self.tell("retried", one, type(error).__name__)

    async def end(
        self, one: Sequence, reason: FinishReason, error: RadixtideError | None = None
    ) -> None:
        """End a request: first nothing is held for it any more, then its client hears of it."""
        await self._give_back(one, keep=reason in ("stop", "length"))
        self.forget(one, reason, error)

    def forget(
        self, one: Sequence, reason: FinishReason, error: RadixtideError | None = None
    ) -> None:
        """Take a request off the board and tell its client, whatever it holds."""
        if one.stage is Stage.ENDED:
            return
        one.stage = Stage.ENDED
        for group in (self.waiting, self.running):
            if one in group:
                group.remove(one)
        self._ended += 1
        report = one.report
        report.number = self._ended
        report.state = "ended"
        report.finish_reason = reason
        report.total_s = self.now() - one.arrived_at
        self.stats.finished[reason] += 1
        self.stats.total_s.add(report.total_s)
        if report.miss_reason is not None:
            misses = self.stats.misses
            misses[report.miss_reason] = misses.get(report.miss_reason, 0) + 1
        self.finished.append(report)
        one.channel.end(reason, error)
        self.tell("ended", one, reason)

    async def let_go_of_load(self, behind: Sequence | None = None) -> bool:
        """Let the last one who waits give up what was loaded for it; return whether one did.

        With `behind`: of those behind that one in the order. Who gives up was overtaken: so two
        that have room one at a time do not take it from each other without end.
        """
        holding = [one for one in self.waiting if one.load is not None and one is not behind]
        if behind is not None:
            order = in_order([behind, *holding], self.config.overtakes_max)
            holding = order[order.index(behind) + 1 :]
        if not holding:
            return False
        one = max(holding, key=lambda each: (-each.priority, each.arrival))
        await self.back(one)
        one.overtaken += 1
        return True

    async def _give_back(self, one: Sequence, *, keep: bool) -> None:
        if one.load is not None and self.shape.states:
            # It was begun for nobody: only the match that follows is the request's.
            await self.letting.close(one.load)
        one.load = None
        one.fetch = None
        if one.stage is Stage.NEW:
            return
        req = one.req
        req.kv_committed_len = one.computed
        await self.letting.let_go(req, keep=keep and one.stage is Stage.RUNNING)
        self.time += 1
        self.wake.set()


__all__ = ("Board",)
