"""The coordinator's ledger: what each running request holds."""

from __future__ import annotations

import numpy as np
import torch

from radixtide.components.api import NodeHandle, Slots
from radixtide.components.request import Request
from radixtide.configs.errors import InvalidRequest
from radixtide.tiers.request_pool import ReqToTokenPool
from radixtide.tree.key import namespace_bytes
from radixtide.tree.node import Node


class Entry:
    """One request that holds a lock or slots.

    ``holder``: its number in the books of the slot allocators.
    ``receipt``: id of its lock, or None. ``node``: the locked node, or None.
    ``protected``: leading units whose slots are the tree's.
    ``allocated``: slots asked for past them. ``states``: slots it has of pools of states;
    ``fresh``: those of them, by component, that its last match took for a copy. ``rid``,
    ``namespace``: the request's, as they were when it was entered; a request must not change them
    while it holds something.
    """

    __slots__ = (
        "_buffer",
        "allocated",
        "fresh",
        "holder",
        "namespace",
        "node",
        "protected",
        "receipt",
        "req",
        "rid",
        "row_index",
        "spoiled",
        "states",
    )

    def __init__(self, req: Request, holder: int) -> None:
        self.req = req
        self.rid = req.rid
        self.namespace = namespace_bytes(req.extra_key, req.cache_salt)
        self.row_index: int | None = None
        self.holder = holder
        self.receipt: int | None = None
        self.node: Node | None = None
        self.protected = 0
        self.allocated = 0
        self.states = 0
        self.spoiled = False
        self.fresh: dict[str, Slots] = {}
        # Indices of a request without a row; grown by doubling.
        self._buffer: Slots | None = None

    def write(self, pool: ReqToTokenPool, position: int, slots: Slots) -> None:
        """Write `slots` into the request's row from `position` on."""
        end = position + len(slots)
        self._row(pool, end)[position:end] = slots

    def indices(self, pool: ReqToTokenPool, length: int) -> torch.Tensor:
        """Return the first `length` entries of the request's row, as a view."""
        return torch.from_numpy(self._row(pool, length)[:length])

    def show_prefix(self, pool: ReqToTokenPool, node: Node, handle: NodeHandle) -> None:
        """Note that the request has the path to `node` locked, and tell it what that comes to."""
        self.node = node
        self.protected = node.end
        req = self.req
        req.prefix_indices = self.indices(pool, node.end)
        req.last_node = handle
        req.cache_protected_len = node.end

    def _row(self, pool: ReqToTokenPool, length: int) -> Slots:
        """Return the request's row, at least `length` long."""
        if self.row_index is not None:
            row: Slots = pool.array[self.row_index]
            return row
        buffer = self._buffer
        if buffer is None or len(buffer) < length:
            grown = np.zeros(max(length, 64) * 2, dtype=np.int64)
            if buffer is not None:
                grown[: len(buffer)] = buffer
            self._buffer = buffer = grown
        return buffer

    def take_row(self, pool: ReqToTokenPool, row: int) -> None:
        """Note the request's row, and bring it up to date when slots came before it."""
        if self._buffer is not None:
            known = self.protected + self.allocated
            pool.array[row, :known] = self._buffer[:known]
            self._buffer = None
        self.row_index = row


class Ledger:
    """All entries by request id, and whose each row of the request table is."""

    __slots__ = ("_entries", "_next_holder", "_rows")

    def __init__(self, first_holder: int) -> None:
        self._entries: dict[str, Entry] = {}
        self._rows: dict[int, Entry] = {}
        self._next_holder = first_holder

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, req: Request) -> Entry | None:
        """Return the entry of `req`, whatever became of its fields, or None."""
        entry = self._entries.get(req.rid)
        return entry if entry is not None and entry.req is req else None

    def by_rid(self, rid: str) -> Entry | None:
        """Return the entry of the request of that id, or None."""
        return self._entries.get(rid)

    def get(self, req: Request) -> Entry | None:
        """Return the entry of `req`, or None.

        Raises:
            InvalidRequest: its rid or its row is another's, or it changed namespace or row.
        """
        entry = self._entries.get(req.rid)
        row = req.req_pool_idx
        owner = self._rows.get(row) if row is not None else None
        if owner is not None and owner is not entry:
            raise InvalidRequest(
                f"request {req.rid!r} names row {row} of the request table, which is request "
                f"{owner.rid!r}'s; take a row of its own with req_to_token_pool.alloc()"
            )
        if entry is None:
            return None
        if entry.req is not req:
            raise InvalidRequest(
                f"request id {req.rid!r} is in use by another request that holds something; "
                "finish or abort that one, or use a unique rid"
            )
        if entry.row_index is not None and entry.row_index != row:
            raise InvalidRequest(
                f"request {req.rid!r} changed its row from {entry.row_index} to {row} while it "
                "holds something"
            )
        if entry.namespace != namespace_bytes(req.extra_key, req.cache_salt):
            raise InvalidRequest(
                f"request {req.rid!r} changed its namespace while it holds something"
            )
        return entry

    def open(self, req: Request, pool: ReqToTokenPool) -> Entry:
        """Return the entry of `req`, made when there is none; its row is noted as taken."""
        entry = self.get(req)
        if entry is None:
            entry = Entry(req, self.next_holder())
            self._entries[entry.rid] = entry
        row = req.req_pool_idx
        if row is not None and entry.row_index is None:
            entry.take_row(pool, row)
            self._rows[row] = entry
        return entry

    def next_holder(self) -> int:
        """Return a number that no other holder of slots has."""
        number = self._next_holder
        self._next_holder += 1
        return number

    def has(self, entry: Entry) -> bool:
        """Return whether `entry` is in the ledger still."""
        return self._entries.get(entry.rid) is entry

    def close(self, entry: Entry) -> None:
        """Forget an entry that holds nothing any more."""
        del self._entries[entry.rid]
        if entry.row_index is not None:
            del self._rows[entry.row_index]

    def entries(self) -> list[Entry]:
        """Return all entries, oldest first."""
        return list(self._entries.values())

    def owns_row(self, row: int) -> bool:
        """Return whether `row` is the row of an entry."""
        return row in self._rows

    def claims(self) -> dict[int, tuple[str, int]]:
        """Return request id and slots asked for, by holder number."""
        return {entry.holder: (entry.rid, entry.allocated) for entry in self._entries.values()}
