"""What is told to a worker of ``radixtide simulate``, and what it answers: plain data.

Nothing here loads the cache, so whoever only hands out seeds starts at once.
"""

from __future__ import annotations

import msgspec

from radixtide.simulation.case import Case
from radixtide.simulation.plan import FaultPlan
from radixtide.simulation.setup import Setup, Tiers


class RunSeed(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """Draw the case of a seed and run it, for `limit_s` seconds of wall time at most."""

    seed: int
    steps: int
    plan: FaultPlan
    components: tuple[str, ...] | None = None
    tiers: Tiers | None = None
    journal: str | None = None
    limit_s: float = 600.0


class Ran(msgspec.Struct, frozen=True, kw_only=True, tag="ran"):
    """What came of one seed. ``lost``: there is no outcome, the run itself did not end.

    ``found`` counts all violations; ``violations`` has the first of them as text. ``plan``: where
    there are any, the faults that have happened, each named by what it hit.
    """

    seed: int
    setup: Setup | None = None
    steps: int = 0
    messages: int = 0
    faults_injected: int = 0
    faults_by_kind: dict[str, int] = {}
    answers_compared: int = 0
    found: int = 0
    violations: tuple[str, ...] = ()
    virtual_s: float = 0.0
    digest: str = ""
    lost: bool = False
    plan: FaultPlan | None = None


class MakeSmall(msgspec.Struct, frozen=True, kw_only=True, tag="small"):
    """Make the case of a failing seed small, in about `seconds` of wall time."""

    job: RunSeed
    violations: tuple[str, ...]
    seconds: float


class Small(msgspec.Struct, frozen=True, kw_only=True, tag="smaller"):
    """A case that still fails, after so many runs. ``done``: the last that will come."""

    case: Case
    violations: tuple[str, ...]
    runs: int
    done: bool = False


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """A worker has started, and what it was told first has begun."""


Task = RunSeed | MakeSmall
Answer = Ran | Small | Ready


def lost(seed: int, violation: str, setup: Setup | None = None) -> Ran:
    """Return what came of a seed whose run did not end."""
    return Ran(seed=seed, setup=setup, found=1, violations=(violation,), lost=True)


__all__ = ("Answer", "MakeSmall", "Ran", "Ready", "RunSeed", "Small", "Task", "lost")
