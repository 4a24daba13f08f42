"""What ``radixtide inspect`` does with a journal: read it, choose, and show."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Literal

import typer
from rich.console import Console

from radixtide.cli import inspect_counts
from radixtide.cli.inspect_absent import explain
from radixtide.cli.inspect_diagram import draw, make_diagram
from radixtide.cli.inspect_events import Event, Filter, events
from radixtide.cli.inspect_page import render_diagram
from radixtide.cli.inspect_timeline import line_of
from radixtide.cli.inspect_words import as_json
from radixtide.cli.page import check_report_path, write_page
from radixtide.simulation.journal_reading import JournalReader

PIPED_WIDTH = 160
"""Columns where the output goes to no terminal."""


def show_counts(path: Path, chosen: Filter, as_object: bool) -> None:
    """Show what happened how often."""
    with JournalReader(path) as reader:
        counts = inspect_counts.count(meant_of(path, chosen, reader))
        header, torn = reader.header, reader.torn
    if as_object:
        typer.echo(json.dumps(inspect_counts.as_json(header, counts, torn), indent=2))
    else:
        _console().print(inspect_counts.as_tables(header, counts, torn))


def show_events(
    path: Path, chosen: Filter, limit: int, view: Literal["timeline", "diagram"], as_lines: bool
) -> None:
    """Show events: as a timeline, a diagram, or one JSON object a line."""
    with JournalReader(path) as reader:
        meant = meant_of(path, chosen, reader)
        console = _console()
        if as_lines:
            for event in _limited(meant, limit):
                typer.echo(json.dumps(as_json(event), ensure_ascii=False))
        elif view == "timeline":
            width = console.width if console.is_terminal else None
            for event in _limited(meant, limit):
                console.print(line_of(event, width), soft_wrap=True)
        else:
            for line in draw(make_diagram(_limited(meant, limit)), console.width):
                console.print(line, soft_wrap=True)
        _tell(reader, f"{path}: ")


def write_diagram(path: Path, chosen: Filter, limit: int, page: Path) -> None:
    """Write the diagram as a page."""
    check_report_path(page, "--html")
    with JournalReader(path) as reader:
        diagram = make_diagram(_limited(meant_of(path, chosen, reader), limit))
        about = f"{path.name}, seed {reader.header.seed}: {len(diagram.rows)} lines"
        write_page(render_diagram(diagram, "Journal of a run", about), page, "--html")
        _tell(reader, f"{path}: ")
    typer.echo(f"diagram: {page}", err=True)


def meant_of(path: Path, chosen: Filter, reader: JournalReader) -> Iterator[Event]:
    """Yield the events that are meant; where there are none, say why.

    Raises typer.BadParameter where the journal has nothing at all of what was named.
    """
    any_of_it = False
    for event in chosen.choose(events(reader)):
        any_of_it = True
        yield event
    if any_of_it or chosen == Filter():
        return
    with JournalReader(path) as again:
        explain(chosen, events(again))
    typer.echo("nothing is all of that at once", err=True)


def _limited(meant: Iterator[Event], limit: int) -> Iterator[Event]:
    """Yield the first `limit` events (0: all), and say whether there are more."""
    if not limit:
        yield from meant
        return
    yield from islice(meant, limit)
    if next(meant, None) is not None:
        sys.stdout.flush()
        typer.echo(
            f"only the first {limit} are shown; --limit 0 shows all, --from and --to a part",
            err=True,
        )


def _tell(reader: JournalReader, where: str) -> None:
    if reader.torn is not None:
        typer.echo(f"{where}{reader.torn}", err=True)


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    return console
