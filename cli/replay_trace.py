"""Reading a trace file: JSON lines in one of two public forms.

* **512-token blocks**: ``timestamp`` in milliseconds, ``input_length``, ``output_length``,
  ``hash_ids``; optional ``session_id``. The form of the traces that Mooncake published
  (github.com/kvcache-ai/Mooncake, FAST25-release/traces).
* **16-token blocks**: the same with ``timestamp`` in seconds and ``chat_id``, ``parent_chat_id``
  (-1: none), ``turn``. The form of the Qwen-Bailian usage traces
  (github.com/alibaba-edu/qwen-bailian-usagetraces-anon).

The first line decides which; every line is checked against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from radixtide.cli.replay_source import TraceRequest
from radixtide.cli.replay_tokens import ID_LIMIT, output_id
from radixtide.configs.errors import TraceError

NO_PARENT: Final = -1
LONGEST: Final = 2**40
"""Tokens: a longer prompt or output is a mistake in the file, not a request."""
LATEST_NS: Final = 2**62
"""Nanoseconds: times stay within 64 bits."""

_BlockId = Annotated[int, Meta(ge=0, lt=ID_LIMIT)]


class _Line(msgspec.Struct):
    """A line as it stands in the file, of either form; fields unknown here are left alone."""

    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Annotated[int, Meta(ge=1, le=LONGEST)]
    output_length: Annotated[int, Meta(ge=0, le=LONGEST)]
    hash_ids: list[_BlockId]
    session_id: int | str | None = None
    chat_id: int | str | None = None
    parent_chat_id: int | str | None = None
    turn: Annotated[int, Meta(ge=0)] | None = None

    @property
    def is_chat(self) -> bool:
        """Whether the line has a field that only the 16-token form has."""
        return not (self.chat_id is None and self.parent_chat_id is None and self.turn is None)


class TraceForm(msgspec.Struct, frozen=True):
    """One of the two forms: its name, the tokens of a block, the nanoseconds of a time unit."""

    name: str
    block: int
    unit_ns: int


BLOCKS_512: Final = TraceForm("512-token blocks", 512, 1_000_000)
BLOCKS_16: Final = TraceForm("16-token blocks with chat_id", 16, 1_000_000_000)


class TraceFile:
    """A trace file as a source of requests.

    Args:
        path: the file. It is opened at once to tell its form, and again at each reading.
        limit: read no more than so many requests; None: all.

    Raises:
        TraceError: no such file, no request in it, or a first line of neither form.
    """

    def __init__(self, path: Path, limit: int | None = None) -> None:
        self.path = path
        self._limit = limit
        first = next(self._lines(), None)
        if first is None:
            raise TraceError(f"{path}: holds no request; expected one JSON object a line")
        self.form = BLOCKS_16 if first[1].is_chat else BLOCKS_512

    @property
    def name(self) -> str:
        """The file's path."""
        return str(self.path)

    @property
    def block(self) -> int:
        """Tokens of a block: 512 or 16."""
        return self.form.block

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests in the file's order.

        A time that lies before the line above counts as that line's. Raises :class:`TraceError`
        with file and line at the first line that is wrong.
        """
        clock = 0
        for number, (line_number, line) in enumerate(self._lines()):
            self._check(line_number, line)
            clock = max(clock, round(line.timestamp * self.form.unit_ns))
            last = line.input_length - self.form.block * (len(line.hash_ids) - 1)
            name, after = self._links(line)
            yield TraceRequest(
                number=number,
                arrival_ns=clock,
                ids=tuple(line.hash_ids),
                lengths=(self.form.block,) * (len(line.hash_ids) - 1) + (last,),
                stream=output_id(number),
                output_length=line.output_length,
                name=name,
                after=after,
            )
            if number + 1 == self._limit:
                return

    def _lines(self) -> Iterator[tuple[int, _Line]]:
        """Yield line number (from 1) and line; blank lines are passed over."""
        decoder = msgspec.json.Decoder(_Line)
        try:
            with self.path.open("rb") as file:
                for line_number, raw in enumerate(file, start=1):
                    if not raw.strip():
                        continue
                    try:
                        yield line_number, decoder.decode(raw)
                    except msgspec.ValidationError as error:
                        raise self._wrong(line_number, str(error)) from None
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        raise self._wrong(line_number, f"not JSON: {error}") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise TraceError(f"{self.path}: can not be read: {reason}") from None

    def _check(self, line_number: int, line: _Line) -> None:
        """Raise for what the types alone do not tell."""
        form = self.form
        if line.is_chat != (form is BLOCKS_16):
            raise self._wrong(
                line_number,
                f"the first line has the form '{form.name}', this one has not "
                "(chat_id, parent_chat_id and turn are on every line or on none)",
            )
        if form is BLOCKS_16 and line.chat_id is None:
            raise self._wrong(line_number, "Object missing required field `chat_id`")
        wanted = -(-line.input_length // form.block)
        if len(line.hash_ids) != wanted:
            raise self._wrong(
                line_number,
                f"{len(line.hash_ids)} hash_ids, but input_length {line.input_length} makes "
                f"{wanted} blocks of {form.block} tokens",
            )
        if not math.isfinite(line.timestamp) or line.timestamp * form.unit_ns >= LATEST_NS:
            raise self._wrong(line_number, f"timestamp {line.timestamp} is too large")

    def _links(self, line: _Line) -> tuple[int | str | None, int | str | None]:
        """Return the request's name and what it comes after."""
        if self.form is BLOCKS_16:
            parent = line.parent_chat_id
            return line.chat_id, None if parent == NO_PARENT else parent
        return line.session_id, line.session_id

    def _wrong(self, line_number: int, what: str) -> TraceError:
        return TraceError(f"{self.path}:{line_number}: {what}")


__all__ = ("BLOCKS_16", "BLOCKS_512", "TraceFile", "TraceForm")
