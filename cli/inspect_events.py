"""A journal as events: each record with its step and its cause, and which of them are meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from radixtide.simulation.journal_reading import plain
from radixtide.simulation.journal_records import (
    Answered,
    Audit,
    Crash,
    Delivered,
    Fault,
    Handled,
    Header,
    Record,
    Sent,
    StepBegan,
    StepEnded,
)

Exchange = tuple[int, int]
"""Source and number: which exchange of messages."""


class Event(msgspec.Struct):
    """One record. ``index``: its place in the journal. ``step``: the last one that had begun.

    ``elapsed``: seconds since the first record. ``cause``: the exchange that its sender was busy
    with when it sent this one.
    """

    index: int
    elapsed: float
    step: int | None
    record: Record
    cause: Exchange | None = None

    @property
    def exchange(self) -> Exchange | None:
        """The exchange that the record belongs to; None: none."""
        record = self.record
        if isinstance(record, Sent | Delivered | Handled | Answered):
            return record.source, record.number
        if isinstance(record, Fault) and record.number is not None:
            return record.source, record.number
        return None


def events(records: Iterable[Record]) -> Iterator[Event]:
    """Yield each record as an event. Memory: one entry an actor, however long the journal is."""
    step: int | None = None
    busy: dict[tuple[int, str], int] = {}
    began: float | None = None
    for index, record in enumerate(records):
        at = getattr(record, "at", None)
        began = at if began is None else began
        cause: Exchange | None = None
        if isinstance(record, StepBegan):
            step = record.step if step is None else max(step, record.step)
        elif isinstance(record, Delivered):
            busy[record.source, record.receiver] = record.number
        elif isinstance(record, Handled):
            busy.pop((record.source, record.receiver), None)
        elif isinstance(record, Sent):
            number = busy.get((record.source, record.sender))
            cause = None if number is None else (record.source, number)
        elapsed = 0.0 if at is None or began is None else at - began
        yield Event(index, elapsed, step, record, cause)


_KIND_OF: Final[dict[type, str]] = {
    kind: str(kind.__struct_config__.tag) for kind in Record.__args__
}


def tag_of(record: Record) -> str:
    """Return the kind of a record as one word: sent, handled, fault."""
    return _KIND_OF[type(record)]


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are meant; None: all.

    ``node``, ``request``: those that name it, and their exchange; of a request also what that
    caused. ``actor``: those that it sends or gets. ``kind``: of the message, the fault or the
    record. ``first``, ``last``: steps, included.
    """

    node: int | None = None
    request: str | None = None
    actor: str | None = None
    kind: str | None = None
    first: int | None = None
    last: int | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing but steps is chosen by."""
        return (self.node, self.request, self.actor, self.kind) == (None, None, None, None)

    def choose(self, source: Iterable[Event]) -> Iterator[Event]:
        """Yield the events that are meant, in order. Reads no further than ``last``."""
        wanted: set[Exchange] = set()
        for event in source:
            if event.step is not None and self.last is not None and event.step > self.last:
                return
            inside = self.first is None or (event.step is not None and event.step >= self.first)
            # Also of what lies before: its answer may come later.
            if self._concerns(event, wanted) and inside:
                yield event

    def _concerns(self, event: Event, wanted: set[Exchange]) -> bool:
        record = event.record
        if isinstance(record, Header):
            return False
        # First of all, as it remembers what was named for what comes later.
        named = (self.node is None and self.request is None) or self._names(event, wanted)
        if self.actor is not None and self.actor not in actors_of(record):
            return False
        return named and (self.kind is None or self._is_kind(record))

    def _is_kind(self, record: Record) -> bool:
        assert self.kind is not None
        return self.kind.lower() in {word.lower() for word in kinds_of(record)}

    def _names(self, event: Event, wanted: set[Exchange]) -> bool:
        """Return whether node and request are named, here or earlier in the exchange."""
        record = event.record
        exchange = event.exchange
        if exchange is not None and exchange in wanted:
            return True
        named = (
            self.node is None or any(names_node(one, self.node) for one in data_of(record))
        ) and (
            self.request is None or any(names_request(one, self.request) for one in data_of(record))
        )
        caused = (
            self.request is not None
            and self.node is None
            and event.cause is not None
            and event.cause in wanted
        )
        if not (named or caused):
            return False
        if exchange is not None:
            wanted.add(exchange)
        return True


def kinds_of(record: Record) -> tuple[str, ...]:
    """Return the words by which a record may be chosen as one of a kind."""
    words = [tag_of(record), str(getattr(record, "kind", ""))]
    if isinstance(record, StepBegan):
        words.append(record.call)
    if isinstance(record, Fault):
        about = plain(record.subject)
        words.append(str(about.get("message", "")) if isinstance(about, dict) else "")
    return tuple(words)


def data_of(record: Record) -> Iterator[Any]:
    """Yield the plain data that a record carries."""
    for name in record.__struct_fields__:
        value = getattr(record, name)
        if isinstance(value, msgspec.Raw):
            yield plain(value)


def actors_of(record: Record) -> tuple[str, ...]:
    """Return the actors that a record is about, the sender first."""
    match record:
        case Sent() | Answered():
            return record.sender, record.receiver
        case Delivered() | Handled():
            return (record.receiver,)
        case Crash():
            return (record.actor,)
        case Fault():
            about = plain(record.subject)
            if isinstance(about, dict):
                return str(about.get("sender", "")), str(about.get("receiver", ""))
    return ()


def names_node(data: Any, node: int) -> bool:
    """Return whether plain data names a node, by itself or by a handle."""
    if isinstance(data, dict):
        if data.get("node") == node and not isinstance(data["node"], bool):
            return True
        return any(names_node(one, node) for one in data.values())
    if isinstance(data, list):
        return any(names_node(one, node) for one in data)
    return False


def names_request(data: Any, request: str) -> bool:
    """Return whether plain data names a request."""
    if isinstance(data, dict):
        if request in (data.get("request"), data.get("rid")):
            return True
        return any(names_request(one, request) for one in data.values())
    if isinstance(data, list):
        return any(names_request(one, request) for one in data)
    return False


def failed(record: Record) -> bool:
    """Return whether something went wrong here: an error, a crash, a violation."""
    if isinstance(record, Crash):
        return True
    if isinstance(record, Audit):
        return bool(record.violations)
    return isinstance(record, Handled | Answered | StepEnded) and record.error is not None
