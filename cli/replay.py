"""``radixtide replay``: drive the cache with a request trace and report how it did."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from radixtide.cli.replay_recording import Recording
    from radixtide.cli.replay_run import ReplayOptions, ReplayResult
    from radixtide.cli.replay_source import Source, Summary

    Start: TypeAlias = Callable[[Source, Summary], Callable[[Recording], None]]

Result = TypeVar("Result")

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 and the signal's number."""

SyntheticName = Literal["chat", "shared", "tools", "documents", "mixed"]
DeliveryName = Literal["direct", "queued"]


def replay(
    trace: Annotated[
        Path | None,
        typer.Argument(
            help="Trace file: JSON lines with timestamp, input_length, output_length and hash_ids. "
            "Without it, traffic is generated.",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Cache config in TOML.", show_default="the shipped full.toml"),
    ] = None,
    scale: Annotated[
        int, typer.Option(min=1, help="Divide the pools, and the shapes of what they hold, by N.")
    ] = 1,
    sequential: Annotated[
        bool,
        typer.Option(
            "--sequential",
            help="One request at a time, prompts only; the page is the trace's block.",
        ),
    ] = False,
    capacity_blocks: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Pool size in blocks of the trace, other pools alike; 0: endless.",
            show_default="the config's pool",
        ),
    ] = None,
    host_blocks: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Size of the host tier in blocks of the trace, other pools alike; 0: none.",
            show_default="the config's",
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Storage below the host: lmdb:PATH, file:PATH, s3://..., redis://..., "
            "mooncake://...; pages then carry bytes, which are checked.",
            show_default="the config's",
        ),
    ] = None,
    bandwidth: Annotated[
        str | None,
        typer.Option(
            help="Of modelled copies between device and host, a second: 25GB.",
            show_default="the config's, or endless",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Serve only the first N requests.", show_default="all"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of everything random.")] = 0,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Write charts and tables to this .html file.", show_default=False),
    ] = None,
    synthetic: Annotated[
        SyntheticName, typer.Option(help="Which traffic to generate without a trace.")
    ] = "mixed",
    requests: Annotated[
        int, typer.Option(min=1, help="How many requests to generate without a trace.")
    ] = 5_000,
    token_budget: Annotated[
        int, typer.Option(min=1, help="Tokens computed in a step, decoding included.")
    ] = 16_384,
    chunk: Annotated[
        int, typer.Option(min=1, help="Most prompt tokens of one request in a step.")
    ] = 8_192,
    max_running: Annotated[int, typer.Option(min=1, help="Requests in the batch.")] = 128,
    decode_quantum: Annotated[
        int, typer.Option(min=1, help="Tokens that a decoding request may gain in a step.")
    ] = 16,
    abort_ratio: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of clients that leave before the end.")
    ] = 0.01,
    holds_bytes: Annotated[
        bool, typer.Option("--bytes", help="Give the pools memory; else slots are only counted.")
    ] = False,
    delivery: Annotated[
        DeliveryName | None,
        typer.Option(help="How actors get their mail.", show_default="the config's"),
    ] = None,
    uvloop: Annotated[bool, typer.Option(help="Run on uvloop where it is installed.")] = True,
    faults: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            help="Serve under a plan of faults, by many clients at once: light, heavy, none or a "
            "TOML file.",
            show_default=False,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Serve the trace again and again for so long; memory is measured.",
            show_default="the trace once",
        ),
    ] = None,
) -> None:
    """Replay a request trace against the cache and report hits, evictions and latencies.

    Ends with an audit of the cache. Exit status: 0; 1 for a wrong file or a violation that the
    audit found, or slots that are still held; 130 after Ctrl-C, with a report of what was done
    until then.
    """
    # The cache needs PyTorch, whose import takes a second: only when the command really runs.
    from radixtide.cli.page import check_report_path
    from radixtide.cli.replay_costs import Limits
    from radixtide.cli.replay_run import ReplayOptions
    from radixtide.cli.replay_synthetic import Kind

    if report is not None:
        check_report_path(report)
    options = ReplayOptions(
        trace=trace,
        config=config,
        scale=scale,
        sequential=sequential,
        capacity_blocks=capacity_blocks,
        host_blocks=host_blocks,
        storage=storage,
        bandwidth=None if bandwidth is None else _bandwidth(bandwidth),
        limit=limit,
        synthetic=Kind(synthetic),
        requests=requests,
        limits=Limits(token_budget, chunk, max_running, decode_quantum, abort_ratio, seed),
        holds_bytes=holds_bytes,
        delivery=delivery,
        uvloop=uvloop,
    )
    if faults is not None or minutes is not None:
        _soak(options, faults or "none", minutes, json, report)
        return
    result = _run(options)
    _show(result, json, report)
    if result.violations:
        raise typer.Exit(1)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


def _soak(
    options: ReplayOptions, faults: str, minutes: float | None, as_object: bool, report: Path | None
) -> None:
    """Serve under faults, and tell what came of it; see radixtide.cli.replay_soak."""
    from radixtide.cli.replay_soak import run_soak
    from radixtide.cli.replay_soak_view import as_json, as_tables
    from radixtide.simulation.plan_reading import find_plan

    if report is not None:
        raise typer.BadParameter("--report has no page for a run under faults; leave it out")
    plan = find_plan(faults)
    with _progress(endless=minutes is not None) as start:
        result = run_soak(options, plan, minutes, start)
    _print(result, as_json, as_tables, as_object)
    for line in (*result.violations, *(f"still held: {what}" for what in result.held)):
        typer.echo(line, err=True)
    if result.violations or result.held:
        raise typer.Exit(1)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)


def _bandwidth(text: str) -> float:
    """Return the bytes a second that `text` names."""
    from radixtide.cli.plan_sizes import parse_bytes
    from radixtide.configs.errors import InvalidInput

    size = parse_bytes(text, "--bandwidth")
    if not size:
        raise InvalidInput(
            f"--bandwidth {text}: nothing would ever arrive; leave it out for endless"
        )
    return float(size)


def _run(options: ReplayOptions) -> ReplayResult:
    """Replay, with progress on stderr where a person watches it."""
    from radixtide.cli.replay_run import run_replay
    from radixtide.tiers.storage.base import StoreStats

    def tell_storage(stats: StoreStats) -> None:
        if stats.values:
            warm = f"{stats.values:,} pages are there already: it starts warm"
        else:
            warm = "it is empty" if stats.values == 0 else "only the server knows what is there"
        typer.echo(f"storage ({stats.backend}): {warm}", err=True)

    with _progress() as start:
        return run_replay(options, start, tell_storage)


@contextmanager
def _progress(endless: bool = False) -> Iterator[Start]:
    """Show progress meanwhile; yields what a run calls when it starts."""
    from rich.console import Console

    from radixtide.cli.replay_progress import ReplayProgress

    progress = ReplayProgress(Console(stderr=True))

    def start(_source: Source, summary: Summary) -> Callable[[Recording], None]:
        progress.begin(None if endless else summary.requests)
        return progress.step

    with progress.shown():
        yield start


def _print(
    result: Result,
    as_json: Callable[[Result], dict[str, Any]],
    as_tables: Callable[[Result], RenderableType],
    as_object: bool,
) -> None:
    """Print a result, for machines or for a person."""
    from rich.console import Console

    if as_object:
        import json

        typer.echo(json.dumps(as_json(result), indent=2, ensure_ascii=False))
    else:
        Console().print(as_tables(result))


def _show(result: ReplayResult, as_object: bool, report: Path | None) -> None:
    """Print the result, write the report, and name on stderr what went wrong."""
    from radixtide.cli.replay_report import write_report
    from radixtide.cli.replay_summary import as_json, as_tables

    _print(result, as_json, as_tables, as_object)
    for violation in result.violations:
        typer.echo(f"audit: {violation}", err=True)
    if result.interrupted:
        typer.echo("interrupted: the figures are those up to then", err=True)
    if report is not None:
        write_report(result, report)
        if not as_object:
            typer.echo(f"report: {report}", file=sys.stderr)


__all__ = ("replay",)
