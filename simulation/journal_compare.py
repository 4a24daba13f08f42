"""Comparing a journal with one that is being written, record by record, without keeping either."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, BinaryIO, Self, cast

import msgspec

from radixtide.simulation.frames import HEAD
from radixtide.simulation.journal_reading import plain
from radixtide.simulation.journal_records import MAGIC, Record, StepBegan, StepEnded

_decode = msgspec.msgpack.Decoder(Record).decode


class JournalComparison(io.RawIOBase):
    """A file to write a journal to that only compares it with another.

    Hand it to whatever writes the journal, then ask for ``difference``. Memory: one record.

    ``position``: bytes that were equal; ``records``: whole records that were, the header included.

    Args:
        path: the journal to compare with.
        steps: compare up to the end of so many steps only; None: all.
    """

    def __init__(self, path: Path, *, steps: int | None = None) -> None:
        super().__init__()
        self._file: BinaryIO = path.open("rb")
        self.position = 0
        self.records = 0
        self._left = steps
        self._writes = 0
        self._step: int | None = None
        self._found: str | None = None

    @property
    def file(self) -> BinaryIO:
        """Itself, as a file by type."""
        return cast("BinaryIO", self)

    def writable(self) -> bool:
        """Return whether it can be written to: it can."""
        return True

    def write(self, data: Any) -> int:
        """Compare one record with the next of the other journal."""
        mine = bytes(data)
        if self._found is None and self._left != 0:
            theirs = self._file.read(len(mine))
            if theirs != mine:
                theirs += self._rest(theirs)
                self._found = self._describe(theirs, mine)
            else:
                self.position += len(mine)
                if self._writes:
                    self.records += 1
                    self._note_step(mine)
        self._writes += 1
        return len(mine)

    def _rest(self, head: bytes) -> bytes:
        """Return what is missing of the other journal's record that begins with `head`."""
        if self._writes == 0 or len(head) < HEAD.size:
            return b""
        return self._file.read(max(HEAD.unpack_from(head)[0] + HEAD.size - len(head), 0))

    def _note_step(self, frame: bytes) -> None:
        record = _record_of(frame)
        if isinstance(record, StepBegan):
            self._step = record.step
        elif isinstance(record, StepEnded) and self._left is not None:
            self._left -= 1

    @property
    def difference(self) -> str | None:
        """What the first record that differs is, and was; None where all are the same."""
        if self._found is None and self._left != 0:
            more = self._file.read(HEAD.size)
            if more:
                more += self._rest(more)
                self._found = self._describe(more, b"")
        return self._found

    def _describe(self, theirs: bytes, mine: bytes) -> str:
        if self._writes == 0:
            return f"the journal begins with {theirs!r}, not with {MAGIC!r}"
        where = f"record {self._writes - 1}"
        if self._step is not None:
            where += f", in step {self._step}"
        return f"{where}: the journal has {_words(theirs)}; now it is {_words(mine)}"

    def close(self) -> None:
        """Close both ends. Idempotent."""
        self._file.close()
        super().close()

    def __enter__(self) -> Self:
        return self


def _record_of(frame: bytes) -> Record | None:
    try:
        return _decode(frame[HEAD.size :])
    except msgspec.MsgspecError:
        return None


def _words(frame: bytes) -> str:
    """Return a record in words, or what is there instead."""
    if not frame:
        return "no more records"
    record = _record_of(frame)
    if record is None:
        return f"{len(frame)} bytes that are no record"
    fields = {
        name: plain(one) if isinstance(one, msgspec.Raw) else one
        for name, one in msgspec.structs.asdict(record).items()
    }
    words = ", ".join(f"{name}={one!r}" for name, one in fields.items() if one is not None)
    return f"{type(record).__name__}({_shortened(words)})"


def _shortened(words: str, most: int = 600) -> str:
    return words if len(words) <= most else f"{words[:most]}..."


__all__ = ("JournalComparison",)
