"""What a journal is made of: one record for each thing that happens in a run.

``at``: loop time in seconds. ``source``: which cache, numbered from 0 in the order in which the
journal first saw them (ranks and restarts have several). ``number``: the correlation number of an
exchange: the same on every delivery of it, counted by each cache by itself. What is typed Raw is
msgpack of the codec's plain data (:mod:`.codec`); :func:`~.journal_reading.plain` reads it.
"""

from __future__ import annotations

from typing import Final

import msgspec

MAGIC: Final = b"\x89RDXJRNL"
"""First bytes of a journal; frames follow, the first of them a Header."""
VERSION: Final = 1
NOTHING: Final = msgspec.Raw(b"\xc0")
"""None as msgpack."""


class _Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Base of the records."""


class Header(_Record, frozen=True, tag="header"):
    """The first record. ``case``: JSON of the case that was run, so that it can be run again.

    What made it is named, but no machine and no version of Python: equal runs give equal bytes.
    """

    version: int = VERSION
    seed: int | None = None
    case: bytes | None = None
    made_by: str = ""


class Sent(_Record, frozen=True, tag="sent"):
    """A message left its sender, for the first time or again. ``kind``: its type's name.

    ``deadline``: loop time after which nobody waits. ``gives``: it is carried out even then.
    """

    at: float
    number: int
    sender: str
    receiver: str
    kind: str
    message: msgspec.Raw = NOTHING
    gives: bool = False
    deadline: float | None = None
    source: int = 0


class Delivered(_Record, frozen=True, tag="delivered"):
    """Its receiver takes it up. ``times``: how often it was taken up, this time included."""

    at: float
    number: int
    receiver: str
    kind: str
    times: int = 1
    source: int = 0


class Handled(_Record, frozen=True, tag="handled"):
    """Its receiver is done with it; the answer has not left yet. ``error``: what it refused with.

    Nobody gets the ``reply`` of what was told.
    """

    at: float
    number: int
    receiver: str
    kind: str
    reply: msgspec.Raw = NOTHING
    error: str | None = None
    text: str | None = None
    source: int = 0


class Answered(_Record, frozen=True, tag="answered"):
    """The answer came back to the sender.

    ``error``: class of the error, where it is one; those of the runtime (a receiver that is closed,
    or that crashed) were never Handled.
    """

    at: float
    number: int
    sender: str
    receiver: str
    kind: str
    error: str | None = None
    source: int = 0


class Fault(_Record, frozen=True, tag="fault"):
    """A fault was injected. ``number``: of the message that it hit; ``subject``: what else it hit.

    ``detail``: the plan's entry.
    """

    at: float
    kind: str
    number: int | None = None
    subject: msgspec.Raw = NOTHING
    detail: msgspec.Raw = NOTHING
    source: int = 0


class StepBegan(_Record, frozen=True, tag="step"):
    """A scheduler begins a step of its script. ``args``: of the call."""

    at: float
    step: int
    scheduler: int
    call: str
    args: msgspec.Raw = NOTHING


class StepEnded(_Record, frozen=True, tag="done"):
    """A step is over, with an answer or an error."""

    at: float
    step: int
    scheduler: int
    answer: msgspec.Raw = NOTHING
    error: str | None = None
    text: str | None = None


class Copy(_Record, frozen=True, tag="copy"):
    """A copy between device and host. ``event``: "submit", "begin" or "done".

    ``error``: why it failed.
    """

    at: float
    number: int
    direction: str
    event: str
    error: str | None = None
    source: int = 0


class Store(_Record, frozen=True, tag="store"):
    """A call of a store. ``event``: "begin" or "over". ``pages``: it is about so many.

    ``error``: why it failed.
    """

    at: float
    operation: str
    event: str
    pages: int = 0
    error: str | None = None
    source: int = 0


class Crash(_Record, frozen=True, tag="crash"):
    """An actor crashed since the record before. ``failures``: so far. ``down``: it stays down."""

    at: float
    actor: str
    failures: int = 1
    down: bool = False
    source: int = 0


class Restart(_Record, frozen=True, tag="restart"):
    """A cache was closed or lost, and another took its place. ``how``: in what way."""

    at: float
    how: str
    source: int = 0


class Audit(_Record, frozen=True, tag="audit"):
    """A recount of everything. ``violations``: what did not hold; none where all is sound."""

    at: float
    violations: list[str] = []
    source: int = 0


class Note(_Record, frozen=True, tag="note"):
    """Whatever else a run wants to be remembered."""

    at: float
    text: str
    detail: msgspec.Raw = NOTHING


Record = (
    Header
    | Sent
    | Delivered
    | Handled
    | Answered
    | Fault
    | StepBegan
    | StepEnded
    | Copy
    | Store
    | Crash
    | Restart
    | Audit
    | Note
)
