"""Run the seeds of ``radixtide simulate``, in one process or several, and make failures small."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from time import perf_counter
from typing import Final, Protocol

import msgspec

from radixtide.cli.simulate_options import SimulateOptions
from radixtide.cli.simulate_tasks import MakeSmall, Ran, RunSeed, Small
from radixtide.cli.simulate_totals import Totals
from radixtide.cli.simulate_workers import Workers
from radixtide.simulation.emit import write_drawn_test, write_test
from radixtide.simulation.shrink import kind_of

SMALL_MAX: Final = 3
"""Failures that are made small: the first of each kind, at most so many."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A seed that failed, and a test of it. ``small``: None where its case is as it was drawn."""

    ran: Ran
    small: Small | None
    test: str


class Report(msgspec.Struct, kw_only=True):
    """What came of a call of the command. ``wall_s``: of the seeds, without making small."""

    totals: Totals
    failures: list[Failure]
    wall_s: float
    interrupted: bool = False


class Watcher(Protocol):
    """Who is told how far it is."""

    def begin(self, seeds: int, steps: int) -> None:
        """Hear how many seeds will be run, of how many steps each."""

    def step(self, steps: int) -> None:
        """Hear how many steps of the seed at hand are done; only where it runs in this process."""

    def ran(self, totals: Totals) -> None:
        """Hear that one more seed has been run."""

    def small(self, seed: int, steps: int, small: Small | None) -> None:
        """Hear how small a failing seed of so many steps has become; None: that begins."""


def run_seeds(options: SimulateOptions, watcher: Watcher) -> Report:
    """Run all seeds, then make small what failed.

    After Ctrl-C the report is of what was done until then.
    """
    began = perf_counter()
    report = Report(totals=Totals(), failures=[], wall_s=0.0)
    failed: list[Ran] = []
    watcher.begin(len(options.seeds), options.steps)
    with Workers(options.jobs) as workers:
        try:
            # Closed at once, also after Ctrl-C, and not whenever it is collected.
            with closing(_results(options, workers, watcher)) as results:
                for ran in results:
                    report.totals.add(ran)
                    if ran.found:
                        failed.append(ran)
                    watcher.ran(report.totals)
        except KeyboardInterrupt:
            report.interrupted = True
        report.wall_s = perf_counter() - began
        for ran, wanted in _chosen(failed):
            small = None
            if wanted and options.shrink_seconds and not report.interrupted:
                try:
                    small = _small(options, workers, ran, watcher)
                except KeyboardInterrupt:
                    report.interrupted = True
            report.failures.append(
                Failure(ran=ran, small=small, test=_test_of(options, ran, small))
            )
    return report


def _results(
    options: SimulateOptions, workers: Workers, watcher: Watcher
) -> Generator[Ran, None, None]:
    """Yield what comes of each seed, as it comes."""
    jobs = (_job(options, seed) for seed in options.seeds)
    if options.jobs > 1:
        yield from workers.run(jobs)
    else:
        from radixtide.cli.simulate_jobs import run_seed

        # In this process, where a debugger and a profiler see it.
        for job in jobs:
            yield run_seed(job, watcher.step)


def _job(options: SimulateOptions, seed: int) -> RunSeed:
    return RunSeed(
        seed=seed,
        steps=options.steps,
        plan=options.plan,
        components=options.components,
        tiers=options.tiers,
        journal=None if options.journal is None else str(options.journal),
        limit_s=options.seed_seconds,
    )


def _chosen(failed: list[Ran]) -> Iterator[tuple[Ran, bool]]:
    """Yield the failures by seed, and whether each is one to make small."""
    kinds: set[str] = set()
    for ran in sorted(failed, key=lambda one: one.seed):
        kind = kind_of(ran.violations[0])
        # One that did not end can not be told from others while it is made small.
        wanted = not ran.lost and kind not in kinds and len(kinds) < SMALL_MAX
        if wanted:
            kinds.add(kind)
        yield ran, wanted


def _small(options: SimulateOptions, workers: Workers, ran: Ran, watcher: Watcher) -> Small | None:
    """Return a smaller case that fails as the seed does; None where none was found."""
    job = msgspec.structs.replace(_job(options, ran.seed), journal=None)
    task = MakeSmall(job=job, violations=ran.violations, seconds=options.shrink_seconds)
    watcher.small(ran.seed, options.steps, None)

    def told(small: Small) -> None:
        watcher.small(ran.seed, options.steps, small)

    small: Small | None
    if options.jobs > 1:
        small = workers.make_small(task, told)
    else:
        from radixtide.cli.simulate_jobs import make_small

        small = make_small(task, told)
    return small if small is not None and small.case.steps < options.steps else None


def _test_of(options: SimulateOptions, ran: Ran, small: Small | None) -> str:
    if small is not None:
        return write_test(small.case, small.violations)
    return write_drawn_test(
        ran.seed, options.steps, options.plan, ran.violations, options.components, options.tiers
    )


__all__ = ("Failure", "Report", "Watcher", "run_seeds")
