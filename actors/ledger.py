"""The coordinator's ledger: what each running request holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from radixtide.components.request import Request
from radixtide.configs.errors import InvalidRequest
from radixtide.tiers.request_pool import ReqToTokenPool
from radixtide.tree.node import Node

if TYPE_CHECKING:
    from radixtide.components.api import Slots


class Entry:
    """One request that holds a lock or slots.

    ``holder``: its number in the books of the slot allocators.
    ``receipt``: id of its lock, or None. ``node``: the locked node, or None.
    ``protected``: leading units whose slots are the tree's.
    ``allocated``: slots asked for past them.
    """

    __slots__ = ("_buffer", "allocated", "holder", "node", "protected", "receipt", "req")

    def __init__(self, req: Request, holder: int) -> None:
        self.req = req
        self.holder = holder
        self.receipt: int | None = None
        self.node: Node | None = None
        self.protected = 0
        self.allocated = 0
        # Indices of a request without a row; grown by doubling.
        self._buffer: torch.Tensor | None = None

    def write(self, pool: ReqToTokenPool, position: int, slots: Slots) -> None:
        """Write `slots` into the request's row from `position` on."""
        end = position + len(slots)
        self.row(pool, end)[position:end] = torch.from_numpy(slots)

    def row(self, pool: ReqToTokenPool, length: int) -> torch.Tensor:
        """Return the request's row, at least `length` long."""
        index = self.req.req_pool_idx
        if index is not None:
            return pool.rows[index]
        buffer = self._buffer
        if buffer is None or len(buffer) < length:
            grown = torch.from_numpy(np.zeros(max(length, 64) * 2, dtype=np.int64))
            if buffer is not None:
                grown[: len(buffer)] = buffer
            self._buffer = buffer = grown
        return buffer


class Ledger:
    """All entries by request id."""

    __slots__ = ("_entries", "_next_holder")

    def __init__(self, first_holder: int) -> None:
        self._entries: dict[str, Entry] = {}
        self._next_holder = first_holder

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, req: Request) -> Entry | None:
        """Return the entry of `req`. Raises InvalidRequest when its rid is another's."""
        entry = self._entries.get(req.rid)
        if entry is not None and entry.req is not req:
            raise InvalidRequest(
                f"request id {req.rid!r} is in use by another request that holds something; "
                "finish or abort that one, or use a unique rid"
            )
        return entry

    def open(self, req: Request) -> Entry:
        """Return the entry of `req`, made when there is none."""
        entry = self.get(req)
        if entry is None:
            entry = Entry(req, self._next_holder)
            self._next_holder += 1
            self._entries[req.rid] = entry
        return entry

    def close(self, entry: Entry) -> None:
        """Forget an entry that holds nothing any more."""
        self._entries.pop(entry.req.rid, None)

    def entries(self) -> list[Entry]:
        """Return all entries, oldest first."""
        return list(self._entries.values())

    def holders(self) -> set[int]:
        """Return the holder numbers in use."""
        return {entry.holder for entry in self._entries.values()}
