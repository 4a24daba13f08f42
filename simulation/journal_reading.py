"""Reading a journal: record by record, in memory that does not grow with the file."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec
import xxhash

from radixtide.configs.errors import InvalidInput
from radixtide.simulation.frames import HEAD, PAYLOAD_MAX, FrameError
from radixtide.simulation.journal_records import MAGIC, VERSION, Header, Record

log = logging.getLogger("radixtide.simulation")

_record = msgspec.msgpack.Decoder(Record).decode
_plain = msgspec.msgpack.Decoder().decode


def plain(raw: msgspec.Raw) -> Any:
    """Return the plain data of a record's field, as :mod:`radixtide.simulation.codec` has it."""
    return _plain(raw)


class JournalReader(Iterator[Record]):
    """Yields the records of a journal, the header first.

    A journal whose writer was stopped ends in the middle of a record: all before it is read, a
    warning is logged, and ``torn`` says what is missing. ``position``: bytes read so far.

    Args:
        source: a path, or an open binary file, which is not closed.

    Raises:
        InvalidInput: there is no such file, or it is no journal of a version that this one reads.
        FrameError: a record is damaged, and not the last.
    """

    def __init__(self, source: Path | BinaryIO) -> None:
        self.torn: str | None = None
        self.position = 0
        self._records = 0
        self._owns = isinstance(source, Path)
        self._name = str(source) if isinstance(source, Path) else "the journal"
        try:
            self._file = source.open("rb") if isinstance(source, Path) else source
        except OSError as error:
            raise InvalidInput(f"{source}: can not be read: {error.strerror}") from None
        try:
            self.header = self._read_header()
        except BaseException:
            self.close()
            raise
        self._first: Header | None = self.header

    def close(self) -> None:
        """Close the file, if it was opened here. Idempotent."""
        if self._owns:
            self._file.close()

    def __del__(self) -> None:
        # As a generator that nobody reads to its end.
        if getattr(self, "_file", None) is not None:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        payload = self._read_frame()
        if payload is None:
            self.close()
            raise StopIteration
        return self._decode(payload)

    def _read_header(self) -> Header:
        magic = self._file.read(len(MAGIC))
        if magic != MAGIC:
            raise InvalidInput(f"{self._name} is no journal: it begins with {magic!r}")
        self.position = len(MAGIC)
        payload = self._read_frame()
        if payload is None:
            told = f": {self.torn}" if self.torn else ", and nothing behind its first bytes"
            raise InvalidInput(f"{self._name} is a journal without a header{told}")
        header = self._decode(payload)
        if not isinstance(header, Header) or header.version != VERSION:
            raise InvalidInput(
                f"{self._name} is a journal of version {getattr(header, 'version', '?')}; "
                f"this radixtide reads version {VERSION}"
            )
        return header

    def _decode(self, payload: bytes) -> Record:
        self._records += 1
        try:
            return _record(payload)
        except msgspec.MsgspecError as error:
            raise FrameError(f"{self._where()}: {error}") from None

    def _where(self) -> str:
        return f"{self._name}, record {self._records} before byte {self.position}"

    def _read_frame(self) -> bytes | None:
        if self.torn is not None:
            return None
        head = self._file.read(HEAD.size)
        if len(head) < HEAD.size:
            if head:
                self._tear(len(head), HEAD.size)
            return None
        length, checksum = HEAD.unpack(head)
        if length > PAYLOAD_MAX:
            raise FrameError(
                f"{self._name}, byte {self.position}: a record of {length} bytes is none"
            )
        payload = self._file.read(length)
        if len(payload) < length:
            self._tear(len(payload), length)
            return None
        if xxhash.xxh32_intdigest(payload) != checksum:
            if not self._file.read(1):
                self._tear(length, length)
                return None
            raise FrameError(
                f"{self._name}, byte {self.position}: record {self._records} is damaged"
            )
        self.position += HEAD.size + length
        return payload

    def _tear(self, there: int, wanted: int) -> None:
        what = "is damaged" if there == wanted else f"has {there} bytes of {wanted}"
        self.torn = (
            f"the last record, number {self._records}, at byte {self.position}, {what}: "
            "the writer was stopped there"
        )
        log.warning("%s: %s", self._name, self.torn)


def read_journal(source: Path | BinaryIO) -> JournalReader:
    """Return an iterator over the records of a journal; see :class:`JournalReader`."""
    return JournalReader(source)


__all__ = ("JournalReader", "plain", "read_journal")
