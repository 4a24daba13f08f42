"""Run one seed, or make a failing one small: what a worker of ``radixtide simulate`` does."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import BinaryIO, Final

from radixtide.cli.simulate_limit import Hangs, time_limit
from radixtide.cli.simulate_tasks import MakeSmall, Ran, RunSeed, Small, lost
from radixtide.simulation.case import Case, draw_case
from radixtide.simulation.plan import FaultPlan
from radixtide.simulation.run import Outcome, run_case
from radixtide.simulation.shrink import Shrinker, kind_of, kinds_of

TRIAL_S: Final = 10.0
"""Wall time of one run while a failure is made small: one that hangs is another failure."""

VIOLATIONS_MAX: Final = 20
"""Violations of a seed that are kept as text; all are counted."""


def run_seed(job: RunSeed, on_step: Callable[[int], None] | None = None) -> Ran:
    """Run one seed. Whatever goes wrong is a violation of it, never an exception.

    `on_step` is called with the number of steps done, after each.
    """
    try:
        case = draw_case(job.seed, job.steps, job.plan, job.components, job.tiers)
    except Exception as error:  # noqa: BLE001 - a fault of the simulator is reported with its seed
        return lost(job.seed, _told(error))
    journal = None if job.journal is None else Path(job.journal)
    return run_safely(case, job.limit_s, journal, on_step)


def run_safely(
    case: Case,
    limit_s: float,
    journal: Path | BinaryIO | None = None,
    on_step: Callable[[int], None] | None = None,
) -> Ran:
    """Run a case. Whatever goes wrong is a violation of it, never an exception."""
    try:
        with time_limit(limit_s):
            outcome = run_case(case, journal=journal, on_step=on_step)
    except Hangs as hang:
        return lost(case.seed, f"hangs: {hang}; it was in {', '.join(hang.where)}", case.setup)
    except Exception as error:  # noqa: BLE001 - a fault of the simulator is reported with its seed
        return lost(case.seed, _told(error), case.setup)
    return _ran(case, outcome)


def _ran(case: Case, outcome: Outcome) -> Ran:
    return Ran(
        seed=case.seed,
        setup=case.setup,
        steps=outcome.steps,
        messages=outcome.messages,
        faults_injected=outcome.faults_injected,
        faults_by_kind=dict(outcome.faults_by_kind),
        answers_compared=outcome.answers_compared,
        found=len(outcome.violations),
        violations=tuple(outcome.violations[:VIOLATIONS_MAX]),
        virtual_s=outcome.virtual_s,
        digest=outcome.digest,
        plan=outcome.plan,
    )


def _told(error: Exception) -> str:
    """Return an exception of the simulator, and where it was raised, in one line."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {one.name} ({one.filename}:{one.lineno})" for one in frames)
    return f"the simulator failed{where}: {type(error).__name__}: {error}"


def make_small(task: MakeSmall, told: Callable[[Small], None]) -> Small:
    """Make a failing case small; `told` is called with each smaller one.

    The same failure is one of the kind of the first violation: those that follow are often what it
    leads to.
    """
    job = task.job
    case = draw_case(job.seed, job.steps, job.plan, job.components, job.tiers)
    wanted = kind_of(task.violations[0])
    until = monotonic() + task.seconds
    best = task.violations
    happened: FaultPlan | None = None

    def fails(smaller: Case) -> bool:
        nonlocal best, happened
        # A setup that can not be is lost, too.
        ran = run_safely(smaller, min(TRIAL_S, job.limit_s))
        if ran.lost or wanted not in kinds_of(ran.violations):
            return False
        happened = ran.plan
        best = tuple(sorted(ran.violations, key=lambda text: kind_of(text) != wanted))
        return True

    def tell(smaller: Case, runs: int) -> None:
        told(Small(case=smaller, violations=best, runs=runs))

    search = Shrinker(
        case, fails, stop=lambda: monotonic() > until, told=tell, happened=lambda: happened
    )
    return Small(case=search.run(), violations=best, runs=search.runs, done=True)


__all__ = ("make_small", "run_safely", "run_seed")
