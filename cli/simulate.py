"""``radixtide simulate``: run the whole cache under faults, and make small what breaks it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from radixtide.cli.simulate_options import SimulateOptions

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 and the signal's number."""

TiersName = Literal["device", "host", "storage"]


def simulate(
    seed: Annotated[
        int | None, typer.Option(min=0, help="The one seed to run.", show_default="0")
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="A..B", help="All seeds from A to B, both included.", show_default=False
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each seed.", show_default="2000")
    ] = None,
    faults: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN", help="light, heavy, none, or a plan in TOML.", show_default="heavy"
        ),
    ] = None,
    components: Annotated[
        str | None,
        typer.Option(help="Which ones: full,swa,mamba.", show_default="drawn by the seed"),
    ] = None,
    tiers: Annotated[
        TiersName | None,
        typer.Option(help="The lowest tier that there is.", show_default="drawn by the seed"),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option(help="Write every message of the run to this file.", show_default=False),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="JOURNAL",
            help="Run again what this journal is of, and compare every byte.",
            show_default=False,
        ),
    ] = None,
    shrink: Annotated[
        bool,
        typer.Option(" /--no-shrink", help="Do not make small what fails.", show_default=False),
    ] = True,
    shrink_seconds: Annotated[
        float, typer.Option(min=0.0, help="Time to make one failure small.")
    ] = 60.0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the test of each failure to DIR/simulate-SEED.py.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes.", show_default="one for each core")
    ] = None,
    seed_seconds: Annotated[
        float, typer.Option(min=1.0, help="A seed that runs for longer has failed: it hangs.")
    ] = 600.0,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")
    ] = False,
) -> None:
    """Run a cache, its schedulers, copies and storage in virtual time, with seeded faults.

    Every answer is compared with a plain model, and an audit runs after every step. What fails is
    made small and printed as a test. Exit status: 0; 1 where a seed failed, a replay differs, or
    a journal can not be read; 2 for a wrong use of the command; 130 after Ctrl-C, with a summary of
    what was run until then.
    """
    from radixtide.cli.simulate_options import make_options

    options = make_options(
        seed=seed,
        seeds=seeds,
        steps=steps,
        faults=faults,
        components=components,
        tiers=tiers,
        journal=journal,
        replay=replay,
        shrink_seconds=shrink_seconds if shrink else 0.0,
        out=out,
        jobs=jobs,
        seed_seconds=seed_seconds,
    )
    raise typer.Exit(_replay(options, json) if options.replay else _run(options, json))


def _run(options: SimulateOptions, as_object: bool) -> int:
    """Run all seeds and show what came of them. Returns the exit status."""
    from rich.console import Console

    from radixtide.cli.simulate_progress import SimulateProgress
    from radixtide.cli.simulate_run import run_seeds
    from radixtide.cli.simulate_summary import as_json, as_tables, show_failures

    progress = SimulateProgress(Console(stderr=True))
    with progress.shown():
        report = run_seeds(options, progress)
    if as_object:
        from json import dumps

        typer.echo(dumps(as_json(report), indent=2, ensure_ascii=False))
    else:
        Console().print(as_tables(options, report))
    # Tests are data as tables are; beside a JSON object nothing else may be on stdout.
    show_failures(options, report, err=as_object)
    if report.interrupted:
        typer.echo("interrupted: the figures are those up to then", err=True)
        return INTERRUPTED
    return 1 if report.totals.failed else 0


def _replay(options: SimulateOptions, as_object: bool) -> int:
    """Run a journal's case again and compare. Returns the exit status."""
    from radixtide.cli.simulate_replay import replay_journal
    from radixtide.cli.simulate_summary import replay_as_json

    assert options.replay is not None
    replayed = replay_journal(options.replay, options.seed_seconds)
    if as_object:
        from json import dumps

        typer.echo(dumps(replay_as_json(replayed), indent=2, ensure_ascii=False))
    typer.echo(replayed.told, err=as_object)
    for violation in replayed.ran.violations:
        typer.echo(f"violation: {violation}", err=True)
    return 0 if replayed.same and not replayed.ran.violations else 1


__all__ = ("simulate",)
