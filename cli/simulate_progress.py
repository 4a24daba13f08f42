"""What a person watches during a simulation, on a terminal's stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from radixtide.cli.simulate_tasks import Small
from radixtide.cli.simulate_totals import Totals


class SimulateProgress:
    """A bar of seeds, and how small a failure has become; nothing on a plain stream."""

    def __init__(self, console: Console) -> None:
        self._single = 0
        self._bar = Progress(
            BarColumn(bar_width=20),  # all of it fits in 80 columns
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[told]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._seeds = self._bar.add_task("seeds", total=None, told="")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw while the block runs."""
        with self._bar:
            yield

    def begin(self, seeds: int, steps: int) -> None:
        """Say how many seeds there will be. A single one is drawn by its steps."""
        self._single = steps if seeds == 1 else 0
        self._bar.update(self._seeds, total=self._single or seeds)

    def step(self, steps: int) -> None:
        """Draw how many steps of a single seed are done."""
        if self._single:
            self._bar.update(self._seeds, completed=steps)

    def ran(self, totals: Totals) -> None:
        """Draw how many seeds are done, how many faults they had, and how many failed."""
        failed = len(totals.failed)
        told = f"{totals.faults_injected:,} faults"
        if failed:
            told += f" [red]{failed} failed[/]"
        done = self._single or totals.seeds
        self._bar.update(self._seeds, completed=done, told=told)

    def small(self, seed: int, steps: int, small: Small | None) -> None:
        """Tell how small the case of a failing seed has become."""
        if self._bar.disable:
            return
        if small is None:
            self._bar.update(self._seeds, told=f"seed {seed} failed: making it small")
            return
        case = small.case
        self._bar.update(
            self._seeds,
            told=f"seed {seed}: {steps:,} > {case.steps:,} steps, "
            f"{len(case.plan.faults)} faults, {small.runs:,} runs",
        )


__all__ = ("SimulateProgress",)
