"""Show what came of a simulation: tables, one JSON object, and the tests of what failed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import typer
from rich.console import Group
from rich.table import Table

from radixtide.simulation.plan import KINDS

if TYPE_CHECKING:
    from radixtide.cli.simulate_options import SimulateOptions
    from radixtide.cli.simulate_replay import Replayed
    from radixtide.cli.simulate_run import Failure, Report
    from radixtide.cli.simulate_totals import Totals


def as_json(report: Report) -> dict[str, Any]:
    """Return the report as plain data.

    The same seeds give the same object: nothing in it depends on the machine but, where a seed
    failed, how small it was made in the time that there was.
    """
    return {
        **_totals_as_json(report.totals),
        "interrupted": report.interrupted,
        "failures": [
            {
                "seed": failure.ran.seed,
                "violations": list(failure.ran.violations),
                "test": failure.test,
            }
            for failure in report.failures
        ],
    }


def replay_as_json(replayed: Replayed) -> dict[str, Any]:
    """Return what came of a replay as plain data: the keys of a run, and ``same``."""
    from radixtide.cli.simulate_totals import Totals

    totals = Totals()
    totals.add(replayed.ran)
    return {**_totals_as_json(totals), "same": replayed.same, "differs": replayed.differs}


def _totals_as_json(totals: Totals) -> dict[str, Any]:
    return {
        "seeds": totals.seeds,
        "steps": totals.steps,
        "messages": totals.messages,
        "faults_injected": totals.faults_injected,
        "faults_by_kind": {kind: totals.faults_by_kind[kind] for kind in KINDS},
        "answers_compared": totals.answers_compared,
        "violations": totals.violations,
        "failed": totals.failed,
        "virtual_s": round(totals.virtual_s, 6),
        "digest": totals.digest,
    }


def as_tables(options: SimulateOptions, report: Report) -> Group:
    """Return the report as tables for a terminal."""
    tables = [_drawn(report.totals), _figures(options, report)]
    if report.totals.faults_injected:
        tables.insert(0, _faults(report.totals))
    return Group(*tables)


def _faults(totals: Totals) -> Table:
    table = Table(title="What was injected, and survived", title_justify="left")
    for name in ("fault", "injected", "seeds with it", "of these survived"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for kind in KINDS:
        if count := totals.faults_by_kind[kind]:
            seeds, survived = totals.seeds_with[kind], totals.survived[kind]
            style = None if seeds == survived else "red"
            table.add_row(kind, f"{count:,}", f"{seeds:,}", f"{survived:,}", style=style)
    return table


def _drawn(totals: Totals) -> Table:
    table = Table(title="What it ran on", title_justify="left")
    for name in ("components", "lowest tier", "seeds", "failed"):
        table.add_column(name, justify="right" if name in {"seeds", "failed"} else "left")
    for drawn in sorted(totals.drawn, key=lambda one: (one[0].count(","), one)):
        failed = totals.failed_of[drawn]
        table.add_row(
            *drawn, f"{totals.drawn[drawn]:,}", f"{failed:,}", style="red" if failed else None
        )
    return table


def _figures(options: SimulateOptions, report: Report) -> Table:
    totals = report.totals
    several = options.first != options.last
    seeds = f"{options.first}..{options.last}" if several else str(options.first)
    table = Table(title="Totals", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    per_message = totals.messages / totals.faults_injected if totals.faults_injected else 0
    rate = f", one in {per_message:,.1f} messages" if per_message else ""
    rows = {
        f"seeds ({seeds})": f"{totals.seeds:,} of {len(options.seeds):,}",
        "steps": f"{totals.steps:,}",
        "messages": f"{totals.messages:,}",
        f"faults ({options.plan.name})": f"{totals.faults_injected:,}{rate}",
        "answers compared": f"{totals.answers_compared:,}",
        "violations": f"{totals.violations:,}",
        "seeds that failed": f"{len(totals.failed):,}",
        "virtual time": f"{totals.virtual_s:,.1f} s",
        "wall time": f"{report.wall_s:,.1f} s, {totals.steps / report.wall_s:,.0f} steps/s",
    }
    for name, value in rows.items():
        red = totals.failed and name.startswith(("violations", "seeds that"))
        table.add_row(name, value, style="red" if red else None)
    return table


def show_failures(options: SimulateOptions, report: Report, *, err: bool) -> None:
    """Print what failed, each failure's test, and last the command that repeats the first.

    Tests that are not small, of a failure of a kind that was shown, are left out. ``err``: to
    stderr. With ``--out`` each test is in a file too.
    """
    shown = 0
    for failure in report.failures:
        if options.out is not None:
            path = options.out / f"simulate-{failure.ran.seed}.py"
            path.write_text(failure.test, encoding="utf-8")
            typer.echo(f"test: {path}", err=True)
        if failure.small is None and shown:
            continue
        shown += 1
        typer.echo(f"\n{_told(options, failure)}\n\n{failure.test}", err=err)
    if report.failures:
        failed = report.totals.failed
        numbers = ", ".join(map(str, failed[:20])) + (", ..." if len(failed) > 20 else "")
        typer.echo(f"failed: {numbers}", err=True)
        typer.echo(f"again: {options.repeat(failed[0])}", err=True)


def _told(options: SimulateOptions, failure: Failure) -> str:
    ran, small = failure.ran, failure.small
    lines = [f"seed {ran.seed} failed: {ran.found:,} violation{'' if ran.found == 1 else 's'}"]
    lines += [f"  {violation}" for violation in ran.violations[:5]]
    if ran.setup is not None:
        lines.append(f"setup: {msgspec.json.encode(ran.setup).decode()}")
    if small is not None:
        case = small.case
        lines.append(
            f"made small in {small.runs:,} runs: {options.steps:,} > {case.steps:,} steps, "
            f"{len(options.plan.faults):,} > {len(case.plan.faults):,} faults in the plan"
        )
    return "\n".join(lines)


__all__ = ("as_json", "as_tables", "replay_as_json", "show_failures")
