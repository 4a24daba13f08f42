"""A sequence diagram: who sends what to whom, from top to bottom; and how a terminal shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec
from rich.text import Text

from radixtide.cli.inspect_events import Event, Exchange, failed
from radixtide.cli.inspect_words import detail_of, title_of
from radixtide.simulation.journal_reading import plain
from radixtide.simulation.journal_records import (
    Answered,
    Audit,
    Copy,
    Crash,
    Delivered,
    Fault,
    Handled,
    Header,
    Note,
    Restart,
    Sent,
    StepBegan,
    StepEnded,
    Store,
)

ENGINE: Final = "copy engine"
STORE: Final = "store"
_FIRST: Final = ("face", "coordinator")
_LAST: Final = ("tiering", ENGINE, STORE, "runtime")

Shape = Literal["message", "answer", "mark", "rule"]


class Row(msgspec.Struct, frozen=True):
    """One line of a diagram. ``at``: seconds since the journal's first record.

    ``sender``, ``receiver``: names of lifelines; of a mark both are where it is.
    """

    at: float
    step: int | None
    shape: Shape
    sender: str
    receiver: str
    text: str
    detail: str = ""
    bad: bool = False


class Diagram(msgspec.Struct, frozen=True):
    """Lifelines from left to right, and what happens between them."""

    actors: list[str]
    rows: list[Row]


def make_diagram(events: Iterable[Event]) -> Diagram:
    """Return the diagram of events. Memory: a line for each."""
    replies: dict[Exchange, str] = {}
    rows: list[Row] = []
    for event in events:
        if isinstance(event.record, Handled) and event.exchange is not None:
            replies[event.exchange] = detail_of(event.record)
        row = _row_of(event, replies)
        if row is not None:
            rows.append(row)
    names = dict.fromkeys(name for row in rows for name in (row.sender, row.receiver) if name)
    return Diagram(sorted(names, key=_place), rows)


def _place(name: str) -> tuple[str, int]:
    """Order lifelines: caches apart, callers left, engine and store right, the others as they came.

    `sorted` keeps the order of those that are equal here.
    """
    base, _, source = name.partition("/")
    if base in _FIRST:
        return source, _FIRST.index(base)
    if base in _LAST:
        return source, 10 + _LAST.index(base)
    return source, 5


def _row_of(event: Event, replies: dict[Exchange, str]) -> Row | None:
    """Return the line of an event, or None where it needs none of its own."""
    record = event.record
    bad = failed(record)

    def row(shape: Shape, sender: str, receiver: str, text: str, detail: str = "") -> Row:
        source = getattr(record, "source", 0)
        mark = f"/{source}" if source else ""
        return Row(
            event.elapsed,
            event.step,
            shape,
            sender and sender + mark,
            receiver and receiver + mark,
            text,
            detail,
            bad,
        )

    match record:
        case Header() | StepEnded(error=None) | Delivered(times=1) | Handled():
            return None
        case Sent():
            return row(
                "message", record.sender, record.receiver, title_of(record), detail_of(record)
            )
        case Answered():
            known = replies.pop((record.source, record.number), "")
            answer = record.error or "answer"
            return row(
                "answer", record.receiver, record.sender, f"{answer} #{record.number}", known
            )
        case Delivered():
            return row("mark", record.receiver, record.receiver, f"{title_of(record)} again")
        case Fault():
            bad = True
            where = _where(record)
            if where:
                return row("mark", where, where, title_of(record), detail_of(record))
            return row("rule", "", "", f"fault {title_of(record)}", detail_of(record))
        case Crash():
            return row("mark", record.actor, record.actor, "crash", detail_of(record))
        case Copy():
            bad = record.error is not None
            return row("mark", ENGINE, ENGINE, title_of(record), detail_of(record))
        case Store():
            bad = record.error is not None
            return row("mark", STORE, STORE, title_of(record), detail_of(record))
        case StepBegan() | StepEnded() | Restart() | Audit() | Note():
            return row("rule", "", "", title_of(record), detail_of(record))


def _where(fault: Fault) -> str:
    """Return the lifeline that a fault is shown at; empty where there is none."""
    about = plain(fault.subject)
    if isinstance(about, dict):
        if "receiver" in about:
            return str(about["receiver"])
        if "copy" in about:
            return ENGINE
    return ""


# -- in a terminal ----------------------------------------------------------------------

_GUTTER: Final = 17
"""Columns for time and step."""
_AGAIN: Final = 40
"""The names are repeated after so many lines."""
_NARROW, _WIDE = 12, 34


def draw(diagram: Diagram, width: int) -> Iterator[Text]:
    """Yield a diagram line by line, in `width` columns or what its lifelines need."""
    actors = diagram.actors
    if not actors and not diagram.rows:
        return
    labels = [len(row.text) + 6 for row in diagram.rows if row.sender != row.receiver]
    wanted = min(max([_NARROW, *labels]), _WIDE)
    room = max((width - _GUTTER) // max(len(actors), 1), _NARROW)
    column = min(wanted, room)
    places = {name: _GUTTER + column // 2 + index * column for index, name in enumerate(actors)}
    span = _GUTTER + column * len(actors)
    for index, row in enumerate(diagram.rows):
        if index % _AGAIN == 0:
            yield _heads(actors, places, span, column)
        yield _line(row, places, span, max(width, span))


def _heads(actors: Sequence[str], places: dict[str, int], span: int, column: int) -> Text:
    cells = [" "] * span
    for name in actors:
        shown = name if len(name) < column else f"{name[: column - 2]}."
        begin = places[name] - len(shown) // 2
        cells[begin : begin + len(shown)] = shown
    return Text("".join(cells).rstrip(), style="bold", no_wrap=True)


def _line(row: Row, places: dict[str, int], span: int, width: int) -> Text:
    cells = [" "] * span
    if row.shape != "rule":
        for place in places.values():
            cells[place] = "│"
    gutter = f"{row.at:10.6f} {'' if row.step is None else row.step:>5}"
    cells[: len(gutter)] = gutter
    begin, drawn = _drawn(row, places)
    cells[begin : begin + len(drawn)] = drawn
    text = Text("".join(cells), style="dim", no_wrap=True)
    text.stylize("not dim red" if row.bad else _STYLES[row.shape], begin, begin + len(drawn))
    if row.detail:
        text.append(f" {row.detail}", style="dim")
    text.rstrip()
    text.truncate(width, overflow="ellipsis")
    return text


_STYLES: Final[dict[Shape, str]] = {
    "message": "not dim",
    "answer": "not dim green",
    "mark": "not dim yellow",
    "rule": "not dim cyan",
}


def _drawn(row: Row, places: dict[str, int]) -> tuple[int, str]:
    """Return where a line's own part begins, and its text."""
    if row.shape == "rule":
        return _GUTTER, f"── {row.text} ──"
    begin, end = places[row.sender], places[row.receiver]
    if begin == end:
        return begin, f"{'x' if row.bad else '*'} {row.text}"
    room = abs(end - begin) - 1
    label = row.text if len(row.text) <= room - 3 else f"{row.text[: max(room - 4, 0)]}…"
    line = "─" if row.shape == "message" else "╌"
    if end > begin:
        return begin + 1, f"{label:{line}^{room - 1}}▶"
    return end + 1, f"◀{label:{line}^{room - 1}}"
