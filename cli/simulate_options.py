"""What ``radixtide simulate`` was asked for, checked before anything runs.

A mistake is a wrong use of the command line: exit status 2. Status 1 says that a seed failed.
What needs the core to be loaded, which takes seconds, is looked at last.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import typer

from radixtide.configs.errors import RadixtideError

if TYPE_CHECKING:
    from radixtide.simulation.plan import FaultPlan
    from radixtide.simulation.setup import Tiers

STEPS: Final = 2_000
SEED_SECONDS: Final = 600.0
FAULTS: Final = "heavy"
PRESETS: Final = ("light", "heavy", "none")


class SimulateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the command was asked for.

    ``seeds``: a range with at least one; ``faults``: as it was written, ``plan`` is what it means.
    ``shrink_seconds`` 0: what fails stays as it is. ``seed_seconds``: of wall time.
    """

    first: int
    last: int
    steps: int
    faults: str
    plan: FaultPlan
    components: tuple[str, ...] | None
    tiers: Tiers | None
    journal: Path | None
    replay: Path | None
    shrink_seconds: float
    out: Path | None
    jobs: int
    seed_seconds: float

    @property
    def seeds(self) -> range:
        """All seeds to run."""
        return range(self.first, self.last + 1)

    def repeat(self, seed: int) -> str:
        """Return the command that runs one of the seeds again."""
        words = ["radixtide", "simulate", "--seed", str(seed), "--steps", str(self.steps)]
        words += ["--faults", self.faults]
        if self.components is not None:
            words += ["--components", ",".join(self.components)]
        if self.tiers is not None:
            words += ["--tiers", self.tiers]
        if self.seed_seconds != SEED_SECONDS:
            words += ["--seed-seconds", f"{self.seed_seconds:g}"]
        return shlex.join(words)


def make_options(
    *,
    seed: int | None,
    seeds: str | None,
    steps: int | None,
    faults: str | None,
    components: str | None,
    tiers: Tiers | None,
    journal: Path | None,
    replay: Path | None,
    shrink_seconds: float,
    out: Path | None,
    jobs: int | None,
    seed_seconds: float,
) -> SimulateOptions:
    """Return the options. Raises typer.BadParameter for what is wrong or contradicts itself."""
    if replay is not None:
        _check_alone(
            {
                "--seed": seed,
                "--seeds": seeds,
                "--steps": steps,
                "--faults": faults,
                "--components": components,
                "--tiers": tiers,
                "--journal": journal,
                "--out": out,
            }
        )
        if not replay.is_file():
            raise _bad("--replay", f"there is no file {replay}")
    if seed is not None and seeds is not None:
        raise _bad("--seeds", "give one seed (--seed 7) or a range (--seeds 0..99), not both")
    first, last = _parse_range(seeds) if seeds is not None else (seed or 0, seed or 0)
    if journal is not None:
        _check_journal(journal, first == last)
    if out is not None and not out.is_dir():
        raise _bad("--out", f"there is no folder {out}; make it first")
    faults = FAULTS if faults is None else faults
    if faults not in PRESETS and not Path(faults).is_file():
        raise _bad("--faults", f"found {faults!r}, but needs {', '.join(PRESETS)}, or a TOML file")
    chosen = None if components is None else _parse_components(components)
    return SimulateOptions(
        first=first,
        last=last,
        steps=STEPS if steps is None else steps,
        faults=faults,
        plan=_find_plan(faults),
        components=chosen,
        tiers=tiers,
        journal=journal,
        replay=replay,
        shrink_seconds=shrink_seconds,
        out=out,
        jobs=min(_cores() if jobs is None else jobs, last - first + 1),
        seed_seconds=seed_seconds,
    )


def _bad(option: str, message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint=option)


def _check_alone(others: dict[str, object]) -> None:
    """Object to what a journal says itself already."""
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise _bad("--replay", f"the journal says what to run; leave out {', '.join(given)}")


def _parse_range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)\.\.(\d+)", text.strip())
    if not found:
        raise _bad("--seeds", f"found {text!r}, but a range looks like 0..99 (both included)")
    first, last = int(found[1]), int(found[2])
    if last < first:
        raise _bad("--seeds", f"{text} is empty; write {last}..{first}")
    return first, last


def _check_journal(path: Path, one_seed: bool) -> None:
    if not one_seed:
        raise _bad("--journal", "a journal is of one seed; run it with --seed N")
    if not path.absolute().parent.is_dir():
        raise _bad("--journal", f"there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise _bad("--journal", f"{path} is a folder; name a file")


def _find_plan(name: str) -> FaultPlan:
    from radixtide.simulation.plan import FaultPlan
    from radixtide.simulation.plan_reading import check_names, read_plan

    if name in PRESETS:
        plan: FaultPlan = getattr(FaultPlan, name)()
        return plan
    path = Path(name)
    try:
        plan = read_plan(path)
        check_names(plan)
    except RadixtideError as error:
        raise _bad("--faults", str(error)) from None
    if not plan.faults:
        raise _bad("--faults", f"{path} names no fault; for a run without any write none")
    if plan.hopeless:
        raise _bad("--faults", f"{path}: {'; '.join(plan.hopeless)}")
    return plan


def _parse_components(text: str) -> tuple[str, ...]:
    from radixtide.simulation.setup import parse_components

    names: Sequence[str] = [name.strip() for name in text.split(",")]
    try:
        return parse_components(names)
    except RadixtideError as error:
        raise _bad("--components", str(error)) from None


def _cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


__all__ = ("SimulateOptions", "make_options")
