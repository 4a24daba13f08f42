"""The life of a request in the cache: chunk, finish, abort."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np

from radixtide.actors.actor import Conversation, conversation
from radixtide.actors.calls import AbortReq, CacheFinishedReq, CacheUnfinishedReq
from radixtide.actors.envelope import WAIT_FOR_JOB
from radixtide.actors.ledger import Entry
from radixtide.actors.messages import CheckRelease, LetGo, Prepare, Settle
from radixtide.actors.op_fetch import forget_fetches
from radixtide.actors.op_insert import ask_insert, done, note_tiers
from radixtide.actors.op_load_end import forget_loads
from radixtide.actors.state import State, close_if_empty
from radixtide.actors.tier_messages import Fence
from radixtide.components.api import CacheReqResult, Ranges, Slots
from radixtide.components.insertion import Insertion, InsertPart
from radixtide.components.request import Request
from radixtide.configs.errors import InvalidRequest
from radixtide.tiers.slots import ANONYMOUS
from radixtide.tree.key import RadixKey
from radixtide.tree.radix_tree import Walk


class Progress:
    """How far a request is: what is committed, and where its own slots are."""

    __slots__ = ("committed", "entry", "holder", "own", "protected", "req", "spoiled", "tiers")

    def __init__(self, state: State, req: Request) -> None:
        entry = state.ledger.get(req)
        self.tiers = state.tiers
        self.spoiled = entry is not None and entry.spoiled
        self.req = req
        self.entry = entry
        self.protected = entry.protected if entry is not None else 0
        tokens = len(req.origin_input_ids) + len(req.output_ids)
        row = req.req_pool_idx
        if row is not None:
            state.rows.check(row)
        wanted = req.kv_committed_len
        if entry is not None and (entry.allocated or row is None):
            self.holder = entry.holder
            self.own: Slots | None = None
            allocated = self.protected + entry.allocated
        else:
            if row is None:
                raise InvalidRequest(
                    f"request {req.rid!r} holds nothing in this cache: it never matched with a "
                    "lock, never allocated, has no row, or is finished already"
                )
            # A scheduler that allocates without req= writes the row itself.
            self.holder = ANONYMOUS
            allocated = tokens
        if wanted is None:
            wanted = min(tokens, allocated)
            written = row is None or self.protected >= state.rows.max_context
            written = written or int(state.rows.array[row, self.protected]) >= 0
            if self.holder == ANONYMOUS and not written:
                # Nothing was written past the prefix: the request has computed nothing.
                wanted = self.protected
        self.committed = wanted
        if not self.protected <= self.committed <= min(tokens, allocated):
            raise InvalidRequest(
                f"request {req.rid!r}: kv_committed_len {self.committed} is not between the cached "
                f"prefix ({self.protected}) and what has tokens ({tokens}) and slots "
                f"({allocated})"
            )
        if self.holder == ANONYMOUS and row is not None:
            self.own = state.rows.array[row, self.protected : self.committed].copy()

    @property
    def cached(self) -> int:
        """How much of the request the tree has, as far as is known; none where its load failed."""
        return 0 if self.spoiled else self.protected

    @property
    def loading(self) -> bool:
        """Whether some of what the request has locked is still on its way to the device."""
        tiers = self.tiers
        if tiers is None or self.spoiled or not tiers.loads:
            return False
        return any(
            (job := tiers.jobs.get(number)) is not None and not job.attempts
            for record in tiers.loads.values()
            if record.rid == self.req.rid and not record.failed
            for number in record.jobs
        )

    def prepare(self, state: State) -> Generator[Any, Any, None]:
        """Cut what is committed to what the components want to insert."""
        for cell in state.preparers:
            length = yield cell, Prepare(self.req, self.protected, self.committed)
            self.committed = min(self.committed, length)

    def walk(self, state: State) -> Walk:
        """Walk the committed tokens from the locked node on: O(new tokens), not O(all)."""
        req = self.req
        key = RadixKey(
            req.segment(self.protected, self.committed),
            req.extra_key,
            req.cache_salt,
            state.tree.bigram,
        )
        node = self.entry.node if self.entry is not None else None
        return state.tree.walk(key, node)

    def insertion(self, walk: Walk, counted: int, running: bool) -> Insertion:
        """Return the insert of what `walk` covers."""
        job = Insertion(
            walk,
            self.own,
            self.holder,
            self.protected,
            counted,
            self.req.priority,
            running,
            walk.matched,
            walk.start,
            self.entry.holder if self.entry is not None else ANONYMOUS,
            req=self.req,
        )
        if self.tiers is not None:
            note_tiers(self.tiers, job)
        return job


def cache_unfinished_req(state: State, p: CacheUnfinishedReq) -> Conversation:
    """Insert what a running request has computed, and move its lock to it."""
    req = p.req
    at = Progress(state, req)
    if at.loading:
        return WAIT_FOR_JOB
    if not p.is_insert or at.spoiled:
        if at.entry is not None:
            req.prefix_indices = at.entry.indices(state.rows, at.committed)
        return CacheReqResult(at.cached, at.cached)
    yield from at.prepare(state)
    walk = at.walk(state)
    if not walk.limit:
        return CacheReqResult(at.protected, at.protected)
    entry = state.ledger.open(req, state.rows)
    counted = max(req.counted_len, at.protected)
    job = at.insertion(walk, counted, running=True)
    job.ready = p.ready
    if not walk.limit:
        close_if_empty(state, entry)
        return CacheReqResult(at.protected, at.protected)
    try:
        inserted = yield from conversation(ask_insert(state, job, done))
    except BaseException:
        close_if_empty(state, entry)
        raise
    end = walk.base + walk.limit
    part: InsertPart = inserted.parts[0]
    assert part.indices is not None
    # The row first: from here on nothing the engine reads names a duplicate.
    entry.write(state.rows, walk.base, part.indices)
    old = state.receipts[entry.receipt] if entry.receipt is not None else None
    old_node = old.node if old is not None and old.node.parent is not None else None
    settled = yield [
        (
            cell,
            Settle(
                lock=inserted.node,
                unlock=old_node,
                record=old.records[index] if old is not None and old_node is not None else None,
                free=part.kept,
            ),
        )
        for index, cell in enumerate(state.cells)
    ]
    if entry.receipt is not None:
        del state.receipts[entry.receipt]
    node = inserted.node
    receipt = state.issue(node, state.handle(node), [record for record, _ in settled], req.rid)
    entry.receipt = receipt.id
    entry.show_prefix(state.rows, node, receipt.node)
    entry.allocated = max(entry.allocated - walk.limit, 0)
    req.lock = receipt
    req.counted_len = max(req.counted_len, end)
    for other in inserted.parts[1:]:
        if other.swapped is not None:
            req.swap_state(*other.swapped)
    return CacheReqResult(end, inserted.matched, settled[0][1], adopted_by(state, inserted))


def cache_finished_req(state: State, p: CacheFinishedReq) -> Conversation:
    """Insert what a request has computed, free the rest, release its lock and row."""
    req = p.req
    at = Progress(state, req)
    if at.loading:
        return WAIT_FOR_JOB
    inserted_len = prefix_len = at.cached
    freed = 0
    adopted: dict[str, Ranges] = {}
    tail = at.own
    if at.own is not None and len(at.own):
        # The request holds its last page whole, so all its pages are checked, the tail's too.
        yield state.carrier, CheckRelease(_whole_pages(state, at.own), ANONYMOUS)
    inserted = None
    if p.is_insert and not at.spoiled:
        yield from at.prepare(state)
        walk = at.walk(state)
        counted = max(req.counted_len, at.protected)
        job = at.insertion(walk, counted, running=False)
        job.ready = p.ready
        if walk.limit:
            inserted = yield from conversation(ask_insert(state, job, done))
            inserted_len = walk.base + walk.limit
            prefix_len = inserted.matched
            freed = inserted.parts[0].freed
            adopted = adopted_by(state, inserted)
        if at.own is not None:
            tail = at.own[walk.limit :]
    freed += yield from _let_go(state, req, at.entry, tail, touched=inserted is not None)
    return CacheReqResult(inserted_len, prefix_len, freed, adopted)


def adopted_by(state: State, job: Insertion) -> dict[str, Ranges]:
    """Return what each component but the carrier took over, where it did."""
    parts = zip(state.names[1:], job.parts[1:], strict=True)
    return {name: part.adopted for name, part in parts if part.adopted}


def _whole_pages(state: State, slots: Slots) -> Slots:
    """Return all slots of the pages in which `slots` lie; a request holds its pages whole."""
    page = state.page_size
    if page == 1 or not len(slots):
        return slots
    heads = slots[::page] // page * page
    return (heads[:, None] + np.arange(page, dtype=np.int64)).ravel()


def abort_req(state: State, p: AbortReq) -> Conversation:
    """Free all that the ledger has of a request; a second abort finds nothing to do."""
    entry = state.ledger.find(p.req)
    if p.after is not None and state.tiers is not None:
        state.tiers.tell(Fence(p.after))
    freed = yield from _let_go(state, p.req, entry, None, touched=False)
    return CacheReqResult(freed=freed)


def _let_go(
    state: State, req: Request, entry: Entry | None, tail: Slots | None, touched: bool
) -> Generator[Any, Any, int]:
    """Release lock, slots and row of a request; return the Full slots freed.

    `tail`: slots outside of the ledger. `touched`: an insert has touched the path already.
    """
    forget_fetches(state, req)
    pages = _whole_pages(state, tail) if tail is not None and len(tail) else None
    held = None
    if entry is not None and entry.receipt is not None:
        held = state.receipts[entry.receipt]
    locked = held.node if held is not None and held.node.parent is not None else None
    freed = 0
    if entry is not None or pages is not None:
        if locked is not None and not touched:
            # It comes back into the eviction order: as of now, not as of its admission.
            state.touch_only(locked)
        parts = yield [
            (
                cell,
                LetGo(
                    locked,
                    held.records[index] if held is not None and locked is not None else None,
                    pages,
                    entry.holder if entry is not None else None,
                ),
            )
            for index, cell in enumerate(state.cells)
        ]
        freed = parts[0]
    if entry is not None:
        if entry.receipt is not None:
            del state.receipts[entry.receipt]
        state.ledger.close(entry)
        yield from forget_loads(state, entry.rid)
    row = entry.row_index if entry is not None else req.req_pool_idx
    if row is not None and state.rows.is_taken(row) and not state.ledger.owns_row(row):
        state.rows.free(row)
    req.req_pool_idx = None
    req.forget()
    return freed
