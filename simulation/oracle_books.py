"""What the oracle knows of each cache: who holds which slots and locks, read again at will."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from radixtide.actors.life import CacheLife
from radixtide.components.api import LockReceipt, Slots
from radixtide.simulation.checks import Losses, Names, Watch, deep, degraded, lives, state_slot
from radixtide.simulation.oracle_bounds import Before, Known, Lock, Pinned, Seen
from radixtide.simulation.oracle_content import FULL, MAMBA, SWA, Content, MarkArray, key_marks
from radixtide.tree.key import RadixKey

Wrong = list[str]
"""What is wrong with an answer, as sentences."""

LOOKS = 4
"""Locks that are read again at once."""


def as_slots(slots: Any) -> Slots:
    """Return slots, whatever they come as, as an array of the oracle's own."""
    if isinstance(slots, torch.Tensor):
        slots = slots.numpy()
    return np.array(slots, dtype=np.int64)


class Shape(Protocol):
    """What the oracle has to know of a cache beforehand: a Setup, or a CacheConfig's own fields."""

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the components."""

    @property
    def page_size(self) -> int:
        """Units of a page."""

    @property
    def bigram(self) -> bool:
        """Whether units are pairs."""

    @property
    def storage(self) -> Any:
        """Whether there is a storage: true or not."""


@dataclass(eq=False)
class Book:
    """What is known of one cache. ``doubts``: calls of which nobody knows what they did.

    ``renewals``: of each key, the soonest ends of what pins it, for every call that may come yet.
    """

    cache: CacheLife
    content: Content
    losses: Losses
    watch: Watch
    seen: Seen
    locks: dict[int, Lock] = field(default_factory=dict)
    pins: dict[RadixKey, Pinned] = field(default_factory=dict)
    renewals: dict[RadixKey, list[float]] = field(default_factory=dict)
    serial: int = 0
    turn: int = 0
    doubts: int = 0

    @property
    def generation(self) -> int:
        """How often the cache was reset."""
        return self.cache._tree.generation  # a look past the mailboxes

    def hold(self, lock: Lock) -> None:
        """Note a lock that the caller has from now on."""
        self.serial += 1
        lock.since = self.serial
        self.locks[lock.receipt.id] = lock

    def saw(self, before: Before, marks: MarkArray, length: int) -> None:
        """Note that `length` units of a key could be reused at some time since `before`."""
        self.serial += 1
        self.seen.add(before, self.losses.now(), marks, length, self.serial)

    def pinned_now(self) -> Iterator[tuple[RadixKey, Pinned]]:
        """Yield what no call can have let go by now, and no reset."""
        now = self.cache.now()
        for key, pin in self.pins.items():
            until = min((pin.until, *self.renewals.get(key, ())))
            if pin.generation == self.generation and now < until:
                yield key, pin

    def of(self, rid: str) -> list[Lock]:
        """Return the locks of a request."""
        return [lock for lock in self.locks.values() if lock.rid == rid]


class OracleBase:
    """What callers have: slots, bytes, locks; and how they are read again."""

    def __init__(self, setup: Shape) -> None:
        self.setup = setup
        self.page = setup.page_size
        self.plain = setup.components == (FULL,)
        self.compared = 0
        self.known = Known(self.page, bool(setup.storage))
        self.books: dict[int, Book] = {}
        self.pending: set[int] = set()
        self.unpinned_keys: set[RadixKey] = set()
        self.names = Names()

    def bind(self, cache: CacheLife, rank: int = 0) -> None:
        """Look at an open cache from now on as that of `rank`; before its first call."""
        seen = Seen(self.page)
        self.books[rank] = Book(cache, Content(cache), Losses(cache), Watch(cache), seen)

    def snapshot(self, rank: int = 0) -> Before:
        """Return what is so before a call. Cost O(actors)."""
        book = self.books[rank]
        return Before(book.losses.now(), book.serial, book.generation, degraded(book.cache))

    def asked(self, key: RadixKey, length: int) -> None:
        """Note that a call may put the first `length` units of `key` into the cache."""
        book = next(iter(self.books.values()))
        self.known.learn(key_marks(key), length, book.generation)

    # -- slots and bytes ----------------------------------------------------------------------

    def granted(self, slots: Any, component: str, who: str, rank: int = 0) -> Wrong:
        """Note that `who` holds slots from now on; no one else may."""
        self.compared += 1
        book = self.books[rank]
        numbers = as_slots(slots)
        wrong = book.content.grant(component, numbers, who)
        if component != FULL:
            return wrong
        for lock in book.locks.values():
            shared = numbers[np.isin(numbers, lock.slots[: self.kept(book, lock)])]
            if len(shared):
                wrong.append(
                    f"{component} slots {shared.tolist()} were granted to {who}, and are under "
                    f"lock {lock.receipt.id}"
                )
        return wrong

    def stamped(self, slots: Any, component: str, rank: int = 0) -> None:
        """Write to held slots what nothing else has, to see whether somebody else writes there."""
        self.books[rank].content.stamp(component, as_slots(slots))

    def gone(self, slots: Any, component: str, rank: int = 0) -> None:
        """Note, before the call, that slots are given away: nobody answers for them any more."""
        self.books[rank].content.let_go(component, as_slots(slots))

    def wrote(self, key: RadixKey, first: int, slots: Any, rank: int = 0, swa: bool = True) -> None:
        """Write the units of `key` from `first` on to Full slots, and the windows behind these."""
        numbers = as_slots(slots)
        marks = key_marks(key)[first : first + len(numbers)]
        self.pending.difference_update(marks.tolist())
        self.books[rank].content.write(numbers[: len(marks)], marks, swa)

    def unwritten(self, key: RadixKey, first: int, end: int) -> None:
        """Note that units are given to the cache before they are written."""
        self.pending.update(key_marks(key)[first:end].tolist())

    def wrote_state(self, key: RadixKey, length: int, slot: int, rank: int = 0) -> None:
        """Write the state at `length` units of `key` to a slot."""
        if length:
            self.books[rank].content.write_state(slot, key_marks(key)[length - 1 : length])

    # -- locks --------------------------------------------------------------------------------

    def locked(
        self, receipt: LockReceipt, key: RadixKey | None, slots: Any, length: int, rank: int = 0
    ) -> Wrong:
        """Note a lock of ``inc_lock_ref``, and the slots that it covers."""
        self.compared += 1
        book = self.books[rank]
        numbers = as_slots(slots)
        if len(numbers) != length:
            return [f"lock {receipt.id} of {length} units covers {len(numbers)} slots"]
        if key is None:
            return []
        marks = key_marks(key)[:length]
        book.hold(Lock(receipt, marks, numbers, self.plain, 0))
        if self.is_pending(marks):
            return []
        return book.content.check(f"lock {receipt.id}", FULL, numbers, marks)

    def window_dropped(self, receipt: LockReceipt, rank: int = 0) -> None:
        """Note, before the call, that a lock gives up its window and its state."""
        lock = self.books[rank].locks.get(receipt.id)
        if lock is not None:
            lock.whole = lock.whole and self.plain

    def unlocked(self, receipt: LockReceipt, rank: int = 0) -> None:
        """Note, before the call, that a lock is released."""
        self.books[rank].locks.pop(receipt.id, None)

    def leaving(self, req: Any, rank: int = 0, *, ends: bool = False) -> None:
        """Note, before the call, that a request's lock may move; or that it `ends`."""
        book = self.books[rank]
        for lock in book.of(req.rid):
            if ends:
                del book.locks[lock.receipt.id]
            else:
                lock.leaving = True
                lock.whole = lock.whole and self.plain

    def replaced(self, rid: str, book: Book) -> None:
        """Forget the locks of a request that it gave up for another."""
        for lock in book.of(rid):
            if lock.leaving and not lives(book.cache, lock.receipt):
                del book.locks[lock.receipt.id]

    def is_spoiled(self, book: Book, rid: str | None) -> bool:
        """Return whether a load failed on which a request had gone on: its slots stay."""
        entry = None if rid is None else book.cache._state.ledger.by_rid(rid)  # a look from outside
        return entry is not None and entry.spoiled

    def kept(self, book: Book, lock: Lock) -> int:
        """Return how many units of a lock nobody else may have, its load being where it is.

        Once a load has failed its lock is on what every component still has of the device part
        (G105), whether its caller has waited for it or not. Where there is Full only, that is all.
        """
        if lock.settled or self.is_spoiled(book, lock.rid):
            return lock.length
        there = lock.length - lock.coming
        tiers = book.cache._state.tiers  # a look past the mailboxes
        if self.plain or tiers is None:
            return there
        failed = (one for one in tiers.loads.values() if one.failed)
        left = (one.length for one in failed if one.receipt == lock.receipt.id)
        return min(there, next(left, there))

    # -- reading again --------------------------------------------------------------------------

    def look(self, rank: int = 0) -> Wrong:
        """Read again what is held, and some of what is locked. Cost O(slots held)."""
        self.compared += 1
        book = self.books[rank]
        if degraded(book.cache):
            return []
        wrong = book.content.held_wrong()
        tiers = book.cache._state.tiers  # a look past the mailboxes
        if tiers is not None and tiers.counters.bad_pages:
            # Nothing in a simulated run damages the host's memory.
            wrong.append(f"{tiers.counters.bad_pages} pages of the host were found damaged")
        wrong += self._pins_gone(book)
        locks = list(book.locks.values())
        for at in range(min(LOOKS, len(locks))):
            wrong += self.read_lock(book, locks[(book.turn + at) % len(locks)])
        book.turn += LOOKS
        return wrong

    def _pins_gone(self, book: Book) -> Wrong:
        """Return which pins were let go before their time."""
        board = book.cache._state.pins  # a look past the mailboxes
        now = book.cache.now()
        return [
            f"the pin of {key} is gone {pin.until - now:g} s before its time"
            for key, pin in book.pinned_now()
            if board.get(board.name(key)) is None
        ]

    def read_lock(self, book: Book, lock: Lock) -> Wrong:
        """Return what is wrong with what a lock protects."""
        if not lock.settled or not lock.length or self.is_pending(lock.marks):
            return []
        what = f"under lock {lock.receipt.id}"
        wrong = book.content.check(what, FULL, lock.slots, lock.marks)
        if lock.whole and not lock.leaving:
            wrong += self.read_end(book, lock.receipt, lock.slots, lock.marks, what)
        return wrong

    def is_pending(self, marks: MarkArray) -> bool:
        """Return whether some of it is not written yet."""
        return bool(self.pending) and not self.pending.isdisjoint(marks.tolist())

    def read_end(
        self, book: Book, receipt: LockReceipt, slots: Slots, marks: MarkArray, what: str
    ) -> Wrong:
        """Return what is wrong with what goes on from the end of locked `slots`."""
        wrong: Wrong = []
        content = book.content
        if SWA in content.pools:
            window = book.cache.config.window
            assert window is not None
            wrong += content.check_window(what, slots, marks, window)
        live = book.cache._state.receipts.get(receipt.id)  # a look past the mailboxes
        if MAMBA in content.pools and live is not None:
            slot = state_slot(book.cache, live.node)
            if slot is None:
                wrong.append(f"{what}: there is no state at {len(slots)} units")
            else:
                one = np.array([slot], dtype=np.int64)
                wrong += content.check(what, MAMBA, one, marks[-1:])
        if live is None:
            wrong.append(f"{what}: the cache does not know that lock any more")
        return wrong

    def noted(self, rank: int = 0) -> Wrong:
        """Return what went wrong inside the cache meanwhile: crashes of its own, foreign pages."""
        return self.books[rank].watch.found

    def deep(self, rank: int = 0) -> Wrong:
        """Read every byte of every node. Only while nobody edits; cost O(bytes)."""
        self.compared += 1
        book = self.books[rank]
        pending = np.array(sorted(self.pending), dtype=np.uint64)
        return [*deep(book.cache, book.content, pending), *self.names.look(book.cache)]

    def least(self, book: Book, marks: MarkArray, before: Before) -> tuple[int, int, Lock | None]:
        """Return how much of a key must be there: in Full, for all components; by which lock."""
        full = whole = 0
        which: Lock | None = None
        if before.degraded or degraded(book.cache):
            return 0, 0, None
        for lock in book.locks.values():
            if max(lock.since, lock.arrived) > before.serial or not lock.settled:
                continue
            common = lock.common(marks, self.page)
            full = max(full, common)
            if lock.whole and (common == lock.length or self.plain) and common > whole:
                whole, which = common, lock
        for _, pin in book.pinned_now():
            # Longer than it was pinned for it need not be there.
            if pin.since <= before.serial:
                full = max(full, pin.common(marks, self.page))
        return full, whole, which
