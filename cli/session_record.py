"""What a session measured: one record a question, and what they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from statistics import median
from typing import Final

import msgspec


class Case(StrEnum):
    """Where the shared part of a prompt was when its question came.

    ``COLD``: nowhere, all of it is computed. ``DEVICE``: in the device's pool. ``HOST``: in host
    memory alone. ``STORAGE``: in storage alone, after a restart of engine and cache. ``TOGETHER``:
    on the device, and all users ask at the same moment.
    """

    COLD = "cold"
    DEVICE = "device"
    HOST = "host"
    STORAGE = "storage"
    TOGETHER = "together"


TITLES: Final = {
    Case.COLD: "cold",
    Case.DEVICE: "on device",
    Case.HOST: "from host",
    Case.STORAGE: "from storage",
    Case.TOGETHER: "second turn",
}

BARS: Final = {Case.DEVICE: 0.15, Case.HOST: 0.25}
"""What a case may take of the time of a cold prompt at most."""


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One question and its answer.

    ``ttft_s``: seconds from the call to the first token, as the client sees them. ``total_s``: to
    the last. ``queue_s``, ``fetch_s``, ``load_s``: what the engine's report says of them: until it
    was admitted, for the fetch from storage, for the copy from the host; None where there was none.
    Tokens are those of the prompt: where they were, and how many were computed. ``miss_reason``:
    why no more of it was cached.
    """

    case: Case
    user: str
    question: str
    answer: str
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    cached_device: int
    cached_host: int
    cached_storage: int
    computed_tokens: int
    miss_reason: str
    ttft_s: float
    total_s: float
    queue_s: float | None
    fetch_s: float | None
    load_s: float | None


class CaseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The questions of one case: medians, and the reasons for misses with how often each came.

    ``of_cold``: `ttft_s` as a share of that of cold prompts.
    """

    case: Case
    samples: int
    ttft_s: float
    fastest_s: float
    slowest_s: float
    of_cold: float
    prompt_tokens: int
    cached_device: int
    cached_host: int
    cached_storage: int
    computed_tokens: int
    miss_reasons: dict[str, int]


class SessionResult(msgspec.Struct, frozen=True, kw_only=True):
    """A whole session.

    ``shared_tokens``: tokens of the shared system prompt. ``held``: slots, locks and requests that
    are still held, summed over all engines of the session; ``violations``: what the audits found.
    ``load_model_s``: seconds to read the model; ``wall_s``: of everything.
    """

    model: str
    device: str
    threads: int
    users: int
    shared_tokens: int
    asks: tuple[Ask, ...]
    held: dict[str, int]
    violations: tuple[str, ...]
    load_model_s: float
    wall_s: float

    @property
    def is_random(self) -> bool:
        """Whether the weights are random, and so the answers no words."""
        return self.model.startswith("random:")

    @property
    def problems(self) -> list[str]:
        """What must not be at the end, in words; a sound session has none."""
        return [
            *(f"audit: {found}" for found in self.violations),
            *(f"still held: {count} {what}" for what, count in self.held.items() if count),
            *(
                f"no answer for {ask.user}: {ask.question}"
                for ask in self.asks
                if ask.finish_reason not in ("stop", "length")
            ),
        ]


def summaries(asks: Sequence[Ask]) -> list[CaseSummary]:
    """Return a summary of each case that occurs, in the order of :class:`Case`. One is cold."""
    cold = median(ask.ttft_s for ask in asks if ask.case is Case.COLD)
    return [
        _summary(case, chosen, cold)
        for case in Case
        if (chosen := [ask for ask in asks if ask.case is case])
    ]


def _summary(case: Case, asks: Sequence[Ask], cold: float) -> CaseSummary:
    times = [ask.ttft_s for ask in asks]
    return CaseSummary(
        case=case,
        samples=len(asks),
        ttft_s=median(times),
        fastest_s=min(times),
        slowest_s=max(times),
        of_cold=median(times) / cold,
        prompt_tokens=round(median(ask.prompt_tokens for ask in asks)),
        cached_device=round(median(ask.cached_device for ask in asks)),
        cached_host=round(median(ask.cached_host for ask in asks)),
        cached_storage=round(median(ask.cached_storage for ask in asks)),
        computed_tokens=round(median(ask.computed_tokens for ask in asks)),
        miss_reasons=dict(sorted(Counter(ask.miss_reason for ask in asks).items())),
    )


__all__ = ("BARS", "TITLES", "Ask", "Case", "CaseSummary", "SessionResult", "summaries")
