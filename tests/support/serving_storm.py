"""Many clients at once on one engine, and what they heard, to be compared with the reference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radixtide import UnifiedRadixCache
from radixtide.configs.schema import CacheConfig, HostConfig
from radixtide.serving.config import EngineConfig
from radixtide.serving.engine import Engine
from radixtide.serving.params import SamplingParams
from radixtide.serving.report import Report
from radixtide.serving.rows import Outcome, Row
from radixtide.serving.runner import ModelRunner
from radixtide.testing.caches import check_clean
from radixtide.tiers.copy_making import make_engine
from support.serving_copies import JustInTime
from support.serving_models import Served, prompt
from support.serving_poison import poisoned
from support.serving_records import Records, at_rest, judge
from support.serving_reference import Verdict


class RecordingRunner(ModelRunner):
    """The runner itself, whose rows and outcomes are noted.

    ``before``: called in the model's thread before each pass.
    """

    records: Records
    before: Callable[[Sequence[Row]], None] | None = None

    def forward(self, rows: Sequence[Row]) -> list[Outcome]:
        if self.before is not None:
            self.before(rows)
        outcomes = super().forward(rows)
        self.records.note(rows, outcomes)
        return outcomes


@dataclass(frozen=True)
class Ask:
    """What a client asks: `tokens` of answer, of which it reads `reads` and goes (None: all)."""

    rid: str
    prompt: list[int]
    tokens: int = 6
    reads: int | None = None
    salt: str | None = None
    priority: int = 0


class Stage:
    """An engine with clients.

    ``runner``: it. ``faulty``: faults are made to happen, so requests may be served anew.
    ``wrong``: what clients did not get. ``reports``: of requests that ended, by rid.
    ``reasons``: how they ended.
    """

    def __init__(self, subject: Served, engine: Engine, records: Records) -> None:
        self.subject = subject
        self.engine = engine
        self.records = records
        self.prompts: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        self.reports: dict[str, Report] = {}
        self.reasons: dict[str, str | None] = {}
        self.wrong: list[str] = []
        self.faulty = False
        self.copies: JustInTime | None = None
        self.runner: RecordingRunner

    async def ask(self, ask: Ask) -> None:
        """Be one client."""
        self.prompts[ask.rid] = ask.prompt
        heard = self.outputs[ask.rid] = []
        params = SamplingParams(max_tokens=ask.tokens, temperature=0.0, ignore_eos=True)
        async with self.engine.generate(
            ask.prompt, params, rid=ask.rid, cache_salt=ask.salt, priority=ask.priority
        ) as generation:
            if ask.reads != 0:
                async for token in generation:
                    heard.append(token.id)
                    if len(heard) == ask.reads:
                        break
        self.reports[ask.rid] = generation.report
        self.reasons[ask.rid] = generation.finish_reason
        if ask.reads is None and (generation.finish_reason != "length" or len(heard) != ask.tokens):
            self.wrong.append(
                f"{ask.rid}: {len(heard)} tokens of {ask.tokens}, {generation.finish_reason} "
                f"({generation.error})"
            )

    async def ask_all(self, asks: Sequence[Ask]) -> None:
        """Be many clients at once; return when all have ended."""
        await asyncio.gather(*(self.ask(one) for one in asks))

    def judge(self) -> Verdict:
        """Compare all that was computed and heard so far with the reference."""
        verdict = judge(
            self.subject.reference, self.subject.spread, self.records, self.prompts, self.outputs
        )
        verdict.wrong += self.wrong
        if not self.faulty:
            # What is served anew hides a slip: its answer is right, and late.
            verdict.wrong += [
                f"{rid}: served anew {report.retries} times"
                for rid, report in self.reports.items()
                if report.retries
            ]
        return verdict

    def check(self, compared: int = 1) -> Verdict:
        """Assert that all of it is right."""
        verdict = self.judge()
        assert not verdict.wrong, verdict
        assert verdict.compared >= compared, verdict
        assert verdict.undecided <= verdict.compared // 50 + 1, verdict
        return verdict

    async def check_at_rest(self, *rids: str) -> int:
        """Assert that the pools have the right state of texts; return how much they have.

        Those of `rids`; without any, all.
        """
        compared = 0
        for rid in rids or tuple(self.prompts):
            text = self.records.text(rid, self.prompts[rid])
            verdict = await at_rest(
                self.engine.cache, self.subject.reference, self.subject.spread, text
            )
            assert not verdict.wrong, (rid, verdict)
            compared += verdict.compared
        return compared

    def total(self, field: str) -> int:
        """Return the sum of a field of all reports."""
        return sum(getattr(one, field) for one in self.reports.values())


@asynccontextmanager
async def stage(
    subject: Served,
    cache: CacheConfig | UnifiedRadixCache,
    config: EngineConfig | None = None,
    records: Records | None = None,
) -> AsyncIterator[Stage]:
    """Open an engine whose loads arrive as late as they may; at the end nothing is held.

    An open `cache` is used as it is, and its owner checks it.
    """
    copies: list[JustInTime] = []
    loop = asyncio.get_running_loop()

    def late(host: HostConfig, ends: Any) -> JustInTime:
        assert isinstance(opened, UnifiedRadixCache)
        inner = make_engine(ends, host.backend, host.verify)
        copies.append(JustInTime(inner, opened.memory, loop))
        return copies[0]

    records = Records() if records is None else records
    if isinstance(cache, UnifiedRadixCache):
        opened = cache
        async with _engine(subject, opened, config, records) as made:
            yield made
        return
    opened = UnifiedRadixCache(cache, make_engine=late)
    async with opened:
        async with _engine(subject, opened, config, records) as made:
            made.copies = copies[0] if copies else None
            yield made
        await check_clean(opened, empty=True)


@asynccontextmanager
async def _engine(
    subject: Served, cache: UnifiedRadixCache, config: EngineConfig | None, records: Records
) -> AsyncIterator[Stage]:
    runners: list[RecordingRunner] = []

    def make_runner(model: Any, of: UnifiedRadixCache) -> RecordingRunner:
        runners.append(RecordingRunner(model, of))
        runners[0].records = records
        return runners[0]

    async with Engine(subject.model, cache, config, make_runner=make_runner) as engine:
        made = Stage(subject, engine, records)
        made.runner = runners[0]
        with poisoned(cache):
            yield made


def crowd(seed: int, clients: int = 10, longest: int = 150) -> list[Ask]:
    """Return what clients ask who share prompts, and leave them at places inside of pages.

    Every fifth goes before its answer is there; one is gone before anything is computed.
    """
    dice = np.random.default_rng(seed)
    stems = [prompt(100 * seed + at, longest) for at in range(3)]
    asks = []
    for at in range(clients):
        stem = stems[int(dice.integers(len(stems)))]
        kept = int(dice.integers(1, len(stem) + 1))
        tail = prompt(100 * seed + 10 + int(dice.integers(4)), int(dice.integers(0, 40)))
        tokens = [*stem[:kept], *tail]
        reads = None
        if at % 5 == 4:
            reads = int(dice.integers(0, 4))
        asks.append(
            Ask(f"s{seed}c{at}", tokens, int(dice.integers(1, 32)), reads, None, int(at % 7 == 3))
        )
    return asks


def talkers(seed: int, clients: int = 5) -> list[Ask]:
    """Return short questions with long answers: together they need more than a small pool has."""
    stem = prompt(seed, 33)
    return [Ask(f"s{seed}t{at}", [*stem, *prompt(seed + at, 5)], 52) for at in range(clients)]


def rubbish(cache: UnifiedRadixCache, number: float = 3.0) -> None:
    """Overwrite all that the device pools have."""
    for memory in cache.memory.values():
        pool: Any = memory
        with torch.inference_mode():
            for layer in pool.parts():
                for part in layer:
                    part.fill_(number)


__all__ = ("Ask", "RecordingRunner", "Stage", "crowd", "rubbish", "stage", "talkers")
