"""Which pages an LMDB store holds, whose children they are, and which one goes first.

The unit is a *chain*: one page of tokens, with the values of all its pools. Every chain knows its
parent and how many children it has; only held chains without children are in the order, by the
number of their last use, so the first one can go and nothing after it loses its beginning. All of
it is in the transaction that writes the pages, so it survives whatever they survive.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import lmdb

FORMAT: Final = b"1"
"""Written once; a directory with another format is emptied."""

_RECORD: Final = struct.Struct("<QQQ?")
_TOTALS: Final = struct.Struct("<QQQ")
_NUMBER: Final = struct.Struct(">Q")
_PAGE: Final = 4096
_SMALL: Final = 2000
_RECORDS: Final = 320


def footprint(length: int) -> int:
    """Return about how many bytes of the file a page of `length` bytes takes, books included."""
    if length <= _SMALL:
        return length + _RECORDS
    return (length + 16 + _PAGE - 1) // _PAGE * _PAGE + _RECORDS


class Tables(NamedTuple):
    """The databases of one environment; each takes byte strings to byte strings.

    `heads`, `pages`: name of a page to its head and payload. `chains`: chain to its record.
    `order`: number of the last use to chain. `meta`: format and totals.
    """

    heads: Any
    pages: Any
    chains: Any
    order: Any
    meta: Any


class Totals(NamedTuple):
    """`number`: of the last use. `size`: bytes held, as `footprint` has them. `values`: pages."""

    number: int
    size: int
    values: int


class _Record(NamedTuple):
    number: int
    size: int
    children: int
    linked: bool
    """Counted among its parent's children; not so a chain that is only known as a parent."""
    parent: bytes

    @property
    def is_leaf(self) -> bool:
        return self.size > 0 and not self.children


_UNKNOWN: Final = _Record(0, 0, 0, False, b"")


class Books:
    """The books within one write transaction; `close` writes what they come to."""

    def __init__(self, txn: lmdb.Transaction, tables: Tables) -> None:
        self._txn = txn
        self._tables = tables
        self._number, self.size, self.values = read_totals(txn, tables)
        self.first = self._number + 1
        """Numbers from here on are uses in this transaction."""

    def add(self, chain: bytes, parent: bytes, size: int) -> None:
        """Note that `chain` holds a page of `size` bytes more, and was used."""
        record = self._read(chain) or _UNKNOWN
        if not record.linked:
            record = record._replace(linked=True, parent=parent)
            if parent:
                above = self._read(parent) or _UNKNOWN
                self._write(parent, above, above._replace(children=above.children + 1))
        self.size += size
        self.values += 1
        self._write(chain, record, record._replace(number=self._next(), size=record.size + size))

    def remove(self, chain: bytes, size: int) -> None:
        """Note that `chain` holds a page of `size` bytes less."""
        record = self._read(chain)
        if record is not None:
            self._shrink(chain, record, min(size, record.size), 1)

    def drop(self, chain: bytes, values: int) -> None:
        """Note that `chain` holds nothing any more; it held `values` pages."""
        record = self._read(chain)
        if record is not None:
            self._shrink(chain, record, record.size, values)

    def touch(self, chain: bytes) -> None:
        """Note that `chain` was used."""
        record = self._read(chain)
        if record is not None:
            self._write(chain, record, record._replace(number=self._next()))

    def oldest(self) -> bytes | None:
        """Return the chain that may go first; None if all that remain are of this transaction."""
        with self._txn.cursor(db=self._tables.order) as cursor:
            if not cursor.first() or _NUMBER.unpack(cursor.key())[0] >= self.first:
                return None
            return bytes(cursor.value())

    def close(self) -> Totals:
        """Write the totals, and return them."""
        totals = Totals(self._number, self.size, self.values)
        self._txn.put(b"totals", _TOTALS.pack(*totals), db=self._tables.meta)
        return totals

    def _shrink(self, chain: bytes, record: _Record, size: int, values: int) -> None:
        self.size -= size
        self.values = max(self.values - values, 0)
        self._write(chain, record, record._replace(size=record.size - size))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _read(self, chain: bytes) -> _Record | None:
        data = self._txn.get(chain, db=self._tables.chains)
        if data is None:
            return None
        number, size, children, linked = _RECORD.unpack_from(data)
        return _Record(number, size, children, linked, bytes(data[_RECORD.size :]))

    def _write(self, chain: bytes, before: _Record, after: _Record) -> None:
        """Replace a record; one that nobody needs any more goes, and perhaps those above it."""
        txn, tables = self._txn, self._tables
        while True:
            moved = before.number != after.number
            if before.is_leaf and (moved or not after.is_leaf):
                txn.delete(_NUMBER.pack(before.number), db=tables.order)
            if after.is_leaf and (moved or not before.is_leaf):
                txn.put(_NUMBER.pack(after.number), chain, db=tables.order)
            if after.size or after.children:
                txn.put(chain, _pack(after), db=tables.chains)
                return
            txn.delete(chain, db=tables.chains)
            above = self._read(after.parent) if after.parent else None
            if above is None:
                return
            chain, before = after.parent, above
            after = above._replace(children=above.children - 1)


def _pack(record: _Record) -> bytes:
    return _RECORD.pack(*record[:4]) + record.parent


def read_totals(txn: lmdb.Transaction, tables: Tables) -> Totals:
    """Return the totals as of the transaction."""
    data = txn.get(b"totals", db=tables.meta)
    return Totals(*_TOTALS.unpack(data)) if data is not None else Totals(0, 0, 0)
