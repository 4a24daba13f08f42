"""An intrusive doubly linked list: recency order in O(1) a change, without garbage.

The links live in the entries, so membership costs no allocation and a node can be taken out of the
middle. One entry is in at most one list that uses its pair of links.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from radixtide.tree.node import Node


class Link(msgspec.Struct, eq=False):
    """An entry of an :class:`LruList`; ``newer`` is None while it is in no list."""

    node: Node | None = None
    newer: Link | None = None
    older: Link | None = None

    def __repr__(self) -> str:
        # The neighbours' names would lead round the whole list.
        return f"{type(self).__name__}({self.node!r})"


L = TypeVar("L", bound=Link)


class LruList(Generic[L]):
    """A list from oldest to newest. All calls O(1), iteration O(entries seen).

    ``ends``: the sentinel; ``ends.older`` is the newest entry, or the sentinel itself.
    """

    __slots__ = ("_size", "ends")

    def __init__(self) -> None:
        # A ring through one sentinel: its `newer` is the oldest entry, its `older` the newest.
        ends = Link()
        ends.newer = ends
        ends.older = ends
        self.ends = ends
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, entry: L) -> bool:
        """Return whether `entry` is linked (into a list of its kind)."""
        return entry.newer is not None

    @property
    def oldest(self) -> L | None:
        """The entry at the tail, or None."""
        first = self.ends.newer
        return None if first is self.ends else first  # type: ignore[return-value]  # only L is linked

    @property
    def newest(self) -> L | None:
        """The entry at the head, or None."""
        last = self.ends.older
        return None if last is self.ends else last  # type: ignore[return-value]  # only L is linked

    def append(self, entry: L) -> None:
        """Make `entry`, which is in no list, the newest."""
        ends = self.ends
        last = ends.older
        assert last is not None and entry.newer is None
        entry.older = last
        entry.newer = ends
        last.newer = entry
        ends.older = entry
        self._size += 1

    def insert_before(self, entry: L, other: L) -> None:
        """Put `entry`, which is in no list, next to `other`, which is in this one, as the older."""
        older = other.older
        assert older is not None and entry.newer is None
        entry.older = older
        entry.newer = other
        older.newer = entry
        other.older = entry
        self._size += 1

    def remove(self, entry: L) -> None:
        """Take `entry`, which is in this list, out."""
        older = entry.older
        newer = entry.newer
        assert older is not None and newer is not None
        older.newer = newer
        newer.older = older
        entry.newer = None
        entry.older = None
        self._size -= 1

    def promote(self, entry: L) -> None:
        """Make `entry`, which is in this list, the newest."""
        ends = self.ends
        if entry.newer is ends:
            return
        older = entry.older
        newer = entry.newer
        last = ends.older
        assert older is not None and newer is not None and last is not None
        older.newer = newer
        newer.older = older
        entry.older = last
        entry.newer = ends
        last.newer = entry
        ends.older = entry

    def __iter__(self) -> Iterator[L]:
        """Yield from oldest to newest; the entry just yielded may be removed meanwhile."""
        entry = self.ends.newer
        while entry is not self.ends:
            assert entry is not None
            following = entry.newer
            yield entry  # type: ignore[misc]  # only L is linked
            entry = following
