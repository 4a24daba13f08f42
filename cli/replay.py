"""``radixtide replay``: drive the cache with a request trace and report how it did."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from radixtide.cli.replay_run import ReplayOptions, ReplayResult

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
) -> None:
    """Replay a request trace against the cache and report hits, evictions and latencies.

    Ends with an audit of the cache. Exit status: 0; 1 for a wrong file or a violation that the
    audit found; 130 after Ctrl-C, with a report of what was done until then.
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
    result = _run(options)
    _show(result, json, report)
    if result.violations:
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
    from collections.abc import Callable

    from rich.console import Console

    from radixtide.cli.replay_progress import ReplayProgress
    from radixtide.cli.replay_recording import Recording
    from radixtide.cli.replay_run import run_replay
    from radixtide.cli.replay_source import Source, Summary
    from radixtide.tiers.storage.base import StoreStats

    progress = ReplayProgress(Console(stderr=True))

    def start(_source: Source, summary: Summary) -> Callable[[Recording], None]:
        progress.begin(summary.requests)
        return progress.step

    def tell_storage(stats: StoreStats) -> None:
        if stats.values:
            warm = f"{stats.values:,} pages are there already: it starts warm"
        else:
            warm = "it is empty" if stats.values == 0 else "only the server knows what is there"
        typer.echo(f"storage ({stats.backend}): {warm}", err=True)

    with progress.shown():
        return run_replay(options, start, tell_storage)


def _show(result: ReplayResult, as_object: bool, report: Path | None) -> None:
    """Print the result, write the report, and name on stderr what went wrong."""
    from rich.console import Console

    from radixtide.cli.replay_report import write_report
    from radixtide.cli.replay_summary import as_json, as_tables

    if as_object:
        import json

        typer.echo(json.dumps(as_json(result), indent=2, ensure_ascii=False))
    else:
        Console().print(as_tables(result))
    for violation in result.violations:
        typer.echo(f"audit: {violation}", err=True)
    if result.interrupted:
        typer.echo("interrupted: the figures are those up to then", err=True)
    if report is not None:
        write_report(result, report)
        if not as_object:
            typer.echo(f"report: {report}", file=sys.stderr)


__all__ = ("replay",)
