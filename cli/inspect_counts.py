"""The journal in numbers: what happened how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from radixtide.cli.inspect_events import Event, tag_of
from radixtide.simulation.journal_records import (
    Answered,
    Audit,
    Crash,
    Delivered,
    Fault,
    Handled,
    Header,
    Sent,
    StepBegan,
    StepEnded,
)


class Messages(msgspec.Struct):
    """Messages of one type. ``again``: deliveries beyond the first of each."""

    sent: int = 0
    handled: int = 0
    refused: int = 0
    answered: int = 0
    again: int = 0


class Counts(msgspec.Struct):
    """A journal in numbers. Times in seconds of the loop."""

    records: int = 0
    began: float | None = None
    ended: float = 0.0
    steps: int = 0
    audits: int = 0
    messages: dict[str, Messages] = {}
    handled_by: Counter[str] = msgspec.field(default_factory=Counter)
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    crashes: Counter[str] = msgspec.field(default_factory=Counter)
    errors: Counter[str] = msgspec.field(default_factory=Counter)
    others: Counter[str] = msgspec.field(default_factory=Counter)
    violations: list[str] = []
    sources: int = 1


def count(events: Iterable[Event]) -> Counts:
    """Return what happened how often. Memory does not grow with the journal."""
    counts = Counts()
    for event in events:
        record = event.record
        if isinstance(record, Header):
            continue
        counts.records += 1
        counts.began = record.at if counts.began is None else counts.began
        counts.ended = record.at
        counts.sources = max(counts.sources, getattr(record, "source", 0) + 1)
        match record:
            case Sent():
                _of(counts, record.kind).sent += 1
            case Delivered():
                _of(counts, record.kind).again += record.times > 1
            case Handled():
                _of(counts, record.kind).handled += 1
                counts.handled_by[record.receiver] += 1
                _of(counts, record.kind).refused += record.error is not None
            case Answered():
                _of(counts, record.kind).answered += 1
            case Fault():
                counts.faults[record.kind] += 1
            case Crash():
                counts.crashes[record.actor] += 1
            case StepBegan():
                counts.steps += 1
            case StepEnded():
                if record.error is not None:
                    counts.errors[record.error] += 1
            case Audit():
                counts.audits += 1
                counts.violations += record.violations
            case _:
                counts.others[tag_of(record)] += 1
    return counts


def _of(counts: Counts, kind: str) -> Messages:
    return counts.messages.setdefault(kind, Messages())


def as_json(header: Header, counts: Counts, torn: str | None) -> dict[str, Any]:
    """Return the counts as plain data."""
    return {
        "seed": header.seed,
        "made_by": header.made_by,
        "torn": torn,
        "loop_s": counts.ended - (counts.began or 0.0),
        **{
            name: one
            for name, one in msgspec.to_builtins(counts).items()
            if name not in ("began", "ended")
        },
    }


def as_tables(header: Header, counts: Counts, torn: str | None) -> RenderableType:
    """Return the counts for a person."""
    span = counts.ended - (counts.began or 0.0)
    sent = sum(one.sent for one in counts.messages.values())
    about = Text(
        f"{header.made_by or 'journal'}, seed {header.seed}: {counts.steps} steps, "
        f"{sent} messages, "
        f"{sum(counts.faults.values())} faults, {span:.3f} s of loop time, "
        f"{counts.records} records"
    )
    parts: list[RenderableType] = [about]
    if torn is not None:
        parts.append(Text(torn, style="yellow"))
    if counts.messages:
        parts.append(_messages(counts))
    parts += [
        _table(title, name, what)
        for title, name, what in (
            ("Handled", "actor", counts.handled_by),
            ("Faults", "kind", counts.faults),
            ("Crashes", "actor", counts.crashes),
            ("Steps that ended in an error", "error", counts.errors),
            ("Else", "record", counts.others),
        )
        if what
    ]
    parts += [Text(f"violation: {one}", style="red") for one in counts.violations]
    return Group(*parts)


def _messages(counts: Counts) -> Table:
    table = Table(title="Messages", title_justify="left")
    table.add_column("type")
    for name in ("sent", "handled", "refused", "answered", "again"):
        table.add_column(name, justify="right")
    ordered = sorted(counts.messages.items(), key=lambda item: (-item[1].sent, item[0]))
    for kind, one in ordered:
        table.add_row(kind, *(str(value or "") for value in msgspec.structs.astuple(one)))
    return table


def _table(title: str, name: str, what: Counter[str]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(name)
    table.add_column("times", justify="right")
    for word, times in sorted(what.items(), key=lambda item: (-item[1], item[0])):
        table.add_row(word, str(times))
    return table
