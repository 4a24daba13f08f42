"""Steps of several ranks: what each has seen takes effect where all have seen it.

Every rank runs the same calls, so trees, queues and jobs are the same everywhere; what differs is
when copies and stores are done, and how they ended. A rank offers a vector of fixed size that says
so; all act on the element-wise minimum. Between an offer and its effect no other call may run, or
ranks could do the same things in another order.
"""

from __future__ import annotations

import hashlib
from typing import Any, ClassVar, Final

import msgspec

from radixtide.actors.actor import Conversation
from radixtide.actors.agreement import RanksDiverged
from radixtide.actors.calls import Call
from radixtide.actors.jobs import BACKUP, FETCH, LOAD, STORE, Job
from radixtide.actors.op_evict import drop_pin
from radixtide.actors.op_fetch import stop_fetch
from radixtide.actors.op_tiers import end_what_is_over
from radixtide.actors.pins import Pin
from radixtide.actors.state import State
from radixtide.actors.tier_messages import CopyDone, FetchDone, Found, StoreDone
from radixtide.actors.tier_state import TierState

KINDS: Final = (BACKUP, LOAD, STORE, FETCH)
JOBS: Final = 16
"""Jobs of each kind that a step can end."""
PINS: Final = 32
"""Pins that a step can end."""
FINE: Final = 2**40
"""A copy that went well; one with a damaged page says at which depth that is."""
FAILED_COPY: Final = 2**39
"""A copy that failed otherwise."""
ORPHAN: Final = -1
"""A write that was not begun, as the store has not the page before."""

WIDTH: Final = len(KINDS) * (1 + JOBS) + JOBS + PINS + 2
"""Values in a vector."""


class StepOffer(Call, frozen=True, tag=True, gc=False):
    """Ask what this rank has seen. Reply: list of int."""


class StepApply(Call, frozen=True, tag=True, gc=False):
    """Act on what all ranks have seen. Reply: None. Raises RanksDiverged."""

    final: ClassVar[bool] = True

    agreed: list[int]


def _of_kind(tiers: TierState | None, kind: str) -> list[Job]:
    """Return the first jobs of a kind, in the order in which they began."""
    jobs = [] if tiers is None else [job for job in tiers.jobs if job.kind == kind]
    return jobs[:JOBS]


def _pins(state: State) -> list[Pin]:
    """Return the pins that a step looks at: each time the next ones, so that all have their turn.

    In the order in which they were made, since the clocks of ranks differ.
    """
    pins = state.pins.all()
    begin = state.steps * PINS % len(pins) if len(pins) > PINS else 0
    return [*pins[begin:], *pins[:begin]][:PINS]


def step_offer(state: State, p: StepOffer) -> list[int]:
    """Return this rank's vector."""
    tiers = state.tiers
    vector: list[int] = []
    for kind in KINDS:
        values = []
        for job in _of_kind(tiers, kind):
            if job.arrived is None:
                break
            values.append(_value(job))
        vector.append(len(values))
        vector.extend(values + [0] * (JOBS - len(values)))
    fetches = _of_kind(tiers, FETCH)
    # 0 where this rank waits no longer: one is enough for all.
    going_on = [int(not job.wants_end) for job in fetches]
    vector.extend(going_on + [1] * (JOBS - len(going_on)))
    now = state.clock()
    over = [int(pin.expires_at <= now) for pin in _pins(state)]
    vector.extend(over + [0] * (PINS - len(over)))
    digest = _digest(state)
    vector.extend((digest, -digest))
    return vector


def _value(job: Job) -> int:
    """Return how a job ended here, as a number of which the least counts."""
    report = job.arrived
    if isinstance(report, CopyDone):
        if report.ok:
            return FINE
        depths = [
            job.depths[name][page]
            for name, pages in report.bad.items()
            for page in pages
            if page < len(job.depths.get(name, ()))
        ]
        return min(depths, default=FAILED_COPY)
    if isinstance(report, StoreDone) and report.orphan:
        return ORPHAN
    assert isinstance(report, (StoreDone, Found, FetchDone))
    return report.pages


def _digest(state: State) -> int:
    """Return a number that is the same on ranks that did the same."""
    words = [state.tree.clock, len(state.tree), state.tree.next_id]
    if state.tiers is not None:
        words += [len(state.tiers.backlog), *state.tiers.jobs.jobs]
    raw = hashlib.sha256(repr(words).encode()).digest()
    return int.from_bytes(raw[:7], "little")


def step_apply(state: State, p: StepApply) -> Conversation:
    """End what is over on every rank, and begin what waits."""
    tiers = state.tiers
    agreed = p.agreed
    if agreed[-2] != -agreed[-1]:
        raise RanksDiverged(
            "the ranks have different trees: they must make the same calls in the same order, and "
            "no call between the beginning and the end of step()"
        )
    at = 0
    for kind in KINDS:
        jobs = _of_kind(tiers, kind)
        for job, value in zip(jobs[: agreed[at]], agreed[at + 1 : at + 1 + JOBS], strict=False):
            job.report, job.arrived = _adjusted(job, value), None
        at += 1 + JOBS
    if tiers is not None:
        for job, goes_on in zip(_of_kind(tiers, FETCH), agreed[at : at + JOBS], strict=False):
            if not goes_on:
                stop_fetch(tiers, job.number, keep=not job.dropped)
    at += JOBS
    pins = _pins(state)
    state.steps += 1
    for pin, over in zip(pins, agreed[at : at + PINS], strict=False):
        if over:
            yield from drop_pin(state, pin)
    if tiers is not None:
        yield from end_what_is_over(state, tiers)


def _adjusted(job: Job, value: int) -> Any:
    """Return the report that every rank acts on."""
    report = job.arrived
    if isinstance(report, CopyDone):
        if value == FINE:
            return report
        bad: dict[str, list[int]] = {}
        for name, depths in job.depths.items():
            if value in depths:
                bad[name] = [depths.index(value)]
        return msgspec.structs.replace(report, ok=False, bad=bad)
    if isinstance(report, Found):
        missing = value - job.begin // max(job.page, 1)
        parts = {name: min(pages, missing) for name, pages in report.parts.items()}
        return msgspec.structs.replace(report, pages=value, parts=parts)
    if isinstance(report, StoreDone):
        # Where one rank's store has lost what comes before, all of them write it once more.
        return msgspec.structs.replace(report, pages=max(value, 0), orphan=value == ORPHAN)
    return msgspec.structs.replace(report, pages=value)
