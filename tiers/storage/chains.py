"""Which pages a store of separate values holds, and which chain goes first: books in memory.

The same rules as those of the embedded store (`lmdb_books.py`): a chain is one page of tokens with
the values of all its pools, and only a chain without stored children may go, the one first whose
last use is longest ago.
"""

from __future__ import annotations

import heapq
from typing import Final

import msgspec


class Chain(msgspec.Struct):
    """One chain: its parent, the bytes of each pool's value, its children and its last use."""

    parent: str | None = None
    linked: bool = False
    children: int = 0
    number: int = 0
    pools: dict[str, int] = msgspec.field(default_factory=dict)


class Chains:
    """The books of all chains. Every call is O(1) but for `oldest`, which is O(log n)."""

    def __init__(self) -> None:
        self.size = 0
        self.values = 0
        self._number = 0
        self._chains: Final[dict[str, Chain]] = {}
        # Holds every leaf with its number, and what was one once: those are passed over.
        self._leaves: list[tuple[int, str]] = []

    def add(self, chain: str, parent: str | None, pool: str, size: int) -> None:
        """Note that `chain` holds a value of `size` bytes for `pool`, and was used."""
        record = self._chains.setdefault(chain, Chain())
        if not record.linked:
            record.linked, record.parent = True, parent
            if parent is not None:
                self._chains.setdefault(parent, Chain()).children += 1
        before = record.pools.get(pool)
        self.values += before is None
        self.size += size - (before or 0)
        record.pools[pool] = size
        self._use(chain, record)

    def touch(self, chain: str) -> None:
        """Note that `chain` was used."""
        record = self._chains.get(chain)
        if record is not None and record.pools:
            self._use(chain, record)

    def remove(self, chain: str, pool: str) -> None:
        """Note that the value of `pool` is gone."""
        record = self._chains.get(chain)
        size = record.pools.pop(pool, None) if record is not None else None
        if record is None or size is None:
            return
        self.size -= size
        self.values -= 1
        while not record.pools and not record.children:
            del self._chains[chain]
            above = self._chains.get(record.parent) if record.parent is not None else None
            if above is None:
                return
            assert record.parent is not None
            chain, record = record.parent, above
            record.children -= 1
            self._offer(chain, record)

    def oldest(self, before: int) -> tuple[str, list[str]] | None:
        """Return the chain that goes first, with its pools; None unless its number is less."""
        while self._leaves:
            number, chain = self._leaves[0]
            record = self._chains.get(chain)
            if record is None or record.number != number or record.children or not record.pools:
                heapq.heappop(self._leaves)
                continue
            return (chain, list(record.pools)) if number < before else None
        return None

    @property
    def next_number(self) -> int:
        """The number of the next use."""
        return self._number + 1

    def _use(self, chain: str, record: Chain) -> None:
        self._number += 1
        record.number = self._number
        self._offer(chain, record)

    def _offer(self, chain: str, record: Chain) -> None:
        if record.children or not record.pools:
            return
        heapq.heappush(self._leaves, (record.number, chain))
        if len(self._leaves) > 64 + 4 * len(self._chains):
            self._leaves = [
                (one.number, name)
                for name, one in self._chains.items()
                if one.pools and not one.children
            ]
            heapq.heapify(self._leaves)
