"""How many seeds the simulator needs to find a planted bug.

From ``tests/``, ``python -m support.planted.finding`` measures all of them and prints the rows of
the table in docs/mutations.md.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from typing import NamedTuple

from radixtide.simulation.case import Case, draw_case
from radixtide.simulation.plan import FaultPlan
from radixtide.simulation.run import run_case
from radixtide.simulation.setup import Tiers
from support.planted import BUGS, Planted, planted

SEEDS = 500
STEPS = 300
SHOWN = 160


class Found(NamedTuple):
    """How a bug was found: ``seeds`` were run, the last of which took ``steps`` steps."""

    seeds: int
    steps: int
    violation: str


def case_of(bug: Planted, seed: int, steps: int) -> Case:
    """Return the case of a seed, of the components and tiers in which the bug can show."""
    return draw_case(seed, steps, FaultPlan.heavy(), components=bug.components, tiers=bug.tiers)


def violation(case: Case) -> str | None:
    """Run a case; return what was wrong first. A run that breaks off is wrong as well."""
    try:
        wrong = run_case(case).violations
    except Exception as error:  # noqa: BLE001  # whatever a broken product may raise
        return f"{type(error).__name__}: {error}"
    return wrong[0] if wrong else None


@lru_cache(maxsize=1 << 12)
def is_sound(
    seed: int, steps: int, components: tuple[str, ...] | None, tiers: Tiers | None
) -> bool:
    """Return whether a case is fine without any bug: then what is found is the bug's."""
    return violation(draw_case(seed, steps, FaultPlan.heavy(), components, tiers)) is None


def find(bug: Planted, seeds: Iterable[int], steps: int = STEPS) -> Found | None:
    """Return the first of `seeds` that finds a bug, or None. About half a second a seed."""
    for count, seed in enumerate(seeds, 1):
        case = case_of(bug, seed, steps)
        with planted(bug):
            wrong = violation(case)
        if wrong is not None and is_sound(seed, steps, bug.components, bug.tiers):
            return Found(count, steps, wrong)
    return None


def _measure(name: str, seeds: int, steps: int) -> Found | None:
    logging.disable(logging.CRITICAL)
    bug = next(one for one in BUGS if one.name == name)
    return find(bug, range(seeds), steps)


def main() -> None:
    """Measure, and write a row for each bug as it is found."""
    options = argparse.ArgumentParser(description=main.__doc__)
    options.add_argument("names", nargs="*", help="bugs (default: all)")
    options.add_argument("--seeds", type=int, default=SEEDS, help="seeds to try at most")
    options.add_argument("--steps", type=int, default=STEPS, help="steps of a seed")
    options.add_argument("--jobs", type=int, default=1, help="processes")
    chosen = options.parse_args()
    bugs = [bug for bug in BUGS if not chosen.names or bug.name in chosen.names]
    missing = 0
    say = sys.stdout.write
    with ProcessPoolExecutor(chosen.jobs, max_tasks_per_child=1) as pool:
        work = [pool.submit(_measure, bug.name, chosen.seeds, chosen.steps) for bug in bugs]
        for bug, done in zip(bugs, work, strict=True):
            found = done.result()
            missing += found is None
            seeds = f"more than {chosen.seeds}" if found is None else str(found.seeds)
            say(f"| {bug.kind} | `{bug.name}` | {bug.says} | {seeds} |\n")
            if found is not None:
                say(f"    {found.violation[:SHOWN]}\n")
            sys.stdout.flush()
    say(f"{len(bugs) - missing} of {len(bugs)} found\n")


if __name__ == "__main__":
    main()
