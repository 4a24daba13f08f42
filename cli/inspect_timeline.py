"""The timeline: one line for each thing that happened."""

from __future__ import annotations

from typing import Final

from rich.text import Text

from radixtide.cli.inspect_events import Event, failed, tag_of
from radixtide.cli.inspect_words import detail_of, route_of, title_of
from radixtide.simulation.journal_records import Fault, Handled, Record, StepBegan

_ROUTE: Final = 26
_TITLE: Final = 24


def line_of(event: Event, width: int | None = None) -> Text:
    """Return an event as one line: time, step, kind, from whom to whom, what, details.

    `width`: cut it there; None: whole.
    """
    record = event.record
    step = "" if event.step is None else str(event.step)
    line = Text(no_wrap=True)
    line.append(f"{event.elapsed:10.6f}", style="dim")
    line.append(f" {step:>5} ", style="dim")
    line.append(f"{tag_of(record):<9} ", style=style_of(record))
    line.append(f"{route_of(record):<{_ROUTE}} ")
    line.append(f"{title_of(record):<{_TITLE}} ", style="bold")
    line.append(detail_of(record), style="red" if failed(record) else "dim")
    line.rstrip()
    if width is not None:
        line.truncate(width, overflow="ellipsis")
    return line


def style_of(record: Record) -> str:
    """Return the colour of a record's kind."""
    if isinstance(record, Fault) or failed(record):
        return "red"
    if isinstance(record, StepBegan):
        return "cyan"
    return "green" if isinstance(record, Handled) else ""
