"""``radixtide plan``: what each tier holds of a model's state, and what more of it would gain."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def plan(
    device_memory: Annotated[
        str, typer.Option(help="Memory of the accelerator: 40GiB.", show_default=False)
    ],
    host_memory: Annotated[
        str, typer.Option(help="Memory of the host that the cache may use.")
    ] = "0",
    storage: Annotated[str, typer.Option(help="Room in storage: 2TiB.")] = "0",
    weights: Annotated[
        str, typer.Option(help="What weights and activations take of the accelerator.")
    ] = "0",
    config: Annotated[
        str, typer.Option(help="A preset's name, or a config in TOML: the shape of the model.")
    ] = "full",
    trace: Annotated[
        Path | None,
        typer.Option(help="A request trace: tell what it would find.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first N requests.", show_default="all"),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Write tables and a picture to this .html file.", show_default=False),
    ] = None,
) -> None:
    """Tell how many tokens and states each tier holds, and what a trace would gain from more.

    Nothing is run: sizes follow from the shape of the model, and the hits of caches of all sizes
    from one reading of the trace.
    """
    from radixtide.cli.page import check_report_path, write_page
    from radixtide.cli.plan_sizes import find_config, make_plan, parse_bytes

    if report is not None:
        check_report_path(report)
    made = make_plan(
        find_config(config),
        parse_bytes(device_memory, "--device-memory"),
        parse_bytes(weights, "--weights"),
        parse_bytes(host_memory, "--host-memory"),
        parse_bytes(storage, "--storage"),
    )
    gain = None
    if trace is not None:
        # numpy, only where there is a trace to read.
        from radixtide.cli.plan_distance import hit_curve
        from radixtide.cli.plan_gain import gain_of
        from radixtide.cli.replay_trace import TraceFile

        source = TraceFile(trace, limit)
        gain = gain_of(made, hit_curve(source, source.block), source.name)

    from radixtide.cli.plan_view import as_json, as_tables, render_plan

    if json:
        from json import dumps

        typer.echo(dumps(as_json(made, gain), indent=2, ensure_ascii=False))
    else:
        from rich.console import Console

        Console().print(as_tables(made, gain))
    if report is not None:
        write_page(render_plan(made, gain), report)
        if not json:
            typer.echo(f"report: {report}", file=sys.stderr)


__all__ = ("plan",)
