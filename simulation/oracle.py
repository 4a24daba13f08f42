"""The oracle: a plain sequential model of the cache that every answer is compared with.

It knows prefixes by the marks of their units (see :mod:`.oracle_content`): no tree, no actors, no
order of eviction. A cache may always have less than the oracle thinks, but for what is locked and
for what was seen when nothing was dropped since; it must never have more, or other bytes.

Every method that gets an answer returns what is wrong with it, as sentences. A scheduler tells the
oracle *before* a call what the call may take away (``gone``, ``leaving``, ``unlocked``) or put in
(``asked``), since others run until its answer comes, and *after* it what it was answered.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from radixtide.components.api import CacheReqResult, Slots
from radixtide.components.request import Request
from radixtide.simulation.oracle_books import Book, Wrong, as_slots
from radixtide.simulation.oracle_bounds import Before, Lock
from radixtide.simulation.oracle_calls import CallOracle
from radixtide.simulation.oracle_content import FULL, SWA, MarkArray, key_marks
from radixtide.tree.key import RadixKey


class Oracle(CallOracle):
    """Compares every answer: those of requests, loads and fetches here, the others in its bases."""

    def cached(
        self,
        call: str,
        req: Request,
        key: RadixKey,
        result: CacheReqResult,
        before: Before,
        rank: int = 0,
        protected_before: int = 0,
    ) -> Wrong:
        """Compare a ``chunk``, ``finish`` or ``abort``, of which `key` is what was committed."""
        self.compared += 1
        book = self.books[rank]
        marks = key_marks(key)
        what = f"{call} of {req.rid}"
        wrong: Wrong = []
        if call != "abort":
            wrong += self.known.check(what, marks, result.inserted_len, before.generation)
        if call == "chunk":
            return wrong + self._chunk(what, book, req, marks, result, before, protected_before)
        if self.plain and call == "finish":
            book.saw(before, marks, result.inserted_len)
        left = [
            name
            for name in ("lock", "prefix_indices", "req_pool_idx", "mamba_pool_idx", "last_node")
            if getattr(req, name) is not None
        ]
        if left:
            wrong.append(f"{what}: the request still has {', '.join(left)}")
        for lock in book.of(req.rid):
            del book.locks[lock.receipt.id]
        return wrong

    def _chunk(
        self,
        what: str,
        book: Book,
        req: Request,
        marks: MarkArray,
        result: CacheReqResult,
        before: Before,
        protected_before: int,
    ) -> Wrong:
        length = req.cache_protected_len
        if self.is_spoiled(book, req.rid):
            self.replaced(req.rid, book)
            return []
        wrong: Wrong = []
        if self.loading_now(book, req.rid):
            protected_before = 0  # a load that fails while this call waits takes what it brought
        if not protected_before <= length == result.inserted_len:
            wrong.append(
                f"{what}: {length} units are protected, {result.inserted_len} inserted, "
                f"{protected_before} were before"
            )
        if not length:
            return wrong
        prefix = None if req.prefix_indices is None else as_slots(req.prefix_indices)
        if prefix is None or len(prefix) < length or req.lock is None or length > len(marks):
            return [*wrong, f"{what}: {length} units without indices or a lock"]
        slots = prefix[:length]
        for lock in book.of(req.rid):
            # A load that failed may have left the request less than it promised.
            moved = not np.array_equal(lock.slots[: len(slots)], slots[: len(lock.slots)])
            if lock.settled and moved:
                wrong.append(f"{what}: slots of what was locked before are others now")
        if not any(lock.receipt.id == req.lock.id for lock in book.of(req.rid)):
            book.hold(Lock(req.lock, marks[:length], slots, self.plain, 0, req.rid))
        self.replaced(req.rid, book)
        if not self.is_pending(marks[:length]):
            wrong += book.content.check(what, FULL, slots, marks[:length])
        if self.plain:
            book.saw(before, marks, length)
        return wrong

    def loading_now(self, book: Book, rid: str) -> bool:
        """Return whether something that a request has locked is on its way."""
        return any(not lock.settled for lock in book.of(rid))

    def request(self, req: Request, key: RadixKey, own: Any, rank: int = 0) -> Wrong:
        """Read all that a running request has. `own`: its Full slots behind what is protected."""
        self.compared += 1
        book = self.books[rank]
        marks = key_marks(key)
        what = f"request {req.rid}"
        if self.is_spoiled(book, req.rid) or self.loading_now(book, req.rid):
            return []
        begin = req.cache_protected_len
        slots = as_slots(own)[: max(len(marks) - begin, 0)]
        mine = marks[begin : begin + len(slots)]
        written = book.content.written[FULL][slots]
        mine = np.where(written == 0, np.uint64(0), mine)
        wrong = book.content.check(f"{what}, its own slots", FULL, slots, mine)
        if SWA in book.content.pools and len(slots):
            wrong += book.content.check_pairs(f"{what}, its windows", slots, mine)
            wrong += self._window_of(what, book, req, slots)
        if begin and req.prefix_indices is not None and not self.is_pending(marks[:begin]):
            prefix = as_slots(req.prefix_indices)[:begin]
            wrong += book.content.check(f"{what}, its prefix", FULL, prefix, marks[:begin])
        row = req.req_pool_idx
        if row is not None and begin:
            found = book.cache.req_to_token_pool.array[row]
            prefix = as_slots(req.prefix_indices)[:begin]
            wanted = np.concatenate((prefix, as_slots(own)))
            if not np.array_equal(found[: len(wanted)], wanted):
                wrong.append(
                    f"{what}: its row is {found[: len(wanted)].tolist()}, not {wanted.tolist()}"
                )
        return wrong

    def _window_of(self, what: str, book: Book, req: Request, slots: Slots) -> Wrong:
        """Return what is missing of the window that the next token of a request needs."""
        begin = req.cache_protected_len
        gone = req.swa_evicted_seqlen
        window = book.cache.config.window
        assert window is not None
        length = begin + len(slots)
        if gone > max(length - window, 0):
            return [f"{what}: its window is given back up to {gone}, of {length} units"]
        kept = slots[max(gone - begin, 0) :]
        lost = book.content.windowed_slots[kept] & (book.content.pairs(kept) < 0)
        if not lost.any():
            return []
        return [f"{what}: its window has lost slots {kept[lost].tolist()}"]

    # -- loads ----------------------------------------------------------------------------------

    def loading(self, key: RadixKey, handle: Any, before: Before, rank: int = 0) -> Wrong:
        """Compare what a load promises; its lock counts from now on."""
        self.compared += 1
        book = self.books[rank]
        marks = key_marks(key)
        what = f"load of {key}"
        receipt = handle.receipt
        length = handle.length
        wrong = self.known.check(what, marks, length, receipt.node.generation)
        slots = as_slots(handle.device_indices)
        if len(slots) != length or not 0 <= handle.loaded <= length:
            return [*wrong, f"{what}: {len(slots)} indices, {handle.loaded} loaded, of {length}"]
        if wrong:
            return wrong
        _, whole, which = self.least(book, marks, before)
        if length < whole:
            wrong.append(f"{what}: {length} units, and {whole} are locked whole by {which}")
        live = book.cache._state.receipts.get(receipt.id)  # a look past the mailboxes
        rid = None if live is None else live.rid
        lock = Lock(receipt, marks[:length], slots, True, 0, rid, handle.loaded)
        book.hold(lock)
        if rid is not None:
            self.replaced(rid, book)
        there = min(self.kept(book, lock), length - handle.loaded)
        if not self.is_pending(marks[:there]):
            wrong += book.content.check(what, FULL, slots[:there], marks[:there])
        return wrong

    def loaded(self, key: RadixKey, handle: Any, length: int, rank: int = 0) -> Wrong:
        """Compare what a load brought."""
        self.compared += 1
        book = self.books[rank]
        lock = book.locks.get(handle.receipt.id)
        what = f"load of {key}, over"
        if not 0 <= length == handle.length or length % self.page:
            return [f"{what}: {length} units, and its handle says {handle.length}"]
        if lock is None:
            return []
        if length > lock.length:
            return [f"{what}: {length} units, of {lock.length}"]
        if length < lock.length and not handle.failed:
            return [f"{what}: {length} units of {lock.length}, and it did not fail"]
        if self.plain and length < lock.length - lock.coming:
            return [f"{what}: {length} units, and {lock.length - lock.coming} were there before"]
        lock.slots = lock.slots[:length]
        lock.marks = lock.marks[:length]
        if lock.coming:
            # A call that was made before this may have been handled while it was on its way.
            book.serial += 1
            lock.arrived = book.serial
        lock.coming = 0
        if lock.leaving:
            return []
        return self.read_lock(book, lock)

    def layer(self, key: RadixKey, handle: Any, layer: int, rank: int = 0) -> Wrong:
        """Compare one layer of a load that may be read by now."""
        self.compared += 1
        book = self.books[rank]
        lock = book.locks.get(handle.receipt.id)
        if lock is None or self.is_pending(lock.marks):
            return []
        return book.content.check(f"layer {layer} of {key}", FULL, lock.slots, lock.marks, layer)

    def load_closed(self, handle: Any, rank: int = 0) -> None:
        """Note, before the call, that a load is let go; one that a request has stays its lock."""
        book = self.books[rank]
        lock = book.locks.get(handle.receipt.id)
        if lock is not None and lock.rid is None:
            del book.locks[handle.receipt.id]

    def fetched(self, key: RadixKey, handle: Any, brought: int, rank: int = 0) -> Wrong:
        """Compare what a fetch says it brought."""
        self.compared += 1
        if not 0 <= brought <= min(handle.pages * self.page, key.aligned(self.page)):
            return [f"fetch of {key}: {brought} units of {handle.pages} pages"]
        return []
