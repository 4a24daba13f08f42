"""The oracle's answers to calls on the device: match, insert, slots, locks, pins, sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from radixtide.actors.inspection import at_rest
from radixtide.actors.pins import PinBoard
from radixtide.components.api import (
    AllocateParams,
    AllocateResult,
    CacheStats,
    EvictParams,
    EvictResult,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
    MissReason,
    PinResult,
    Slots,
)
from radixtide.simulation.checks import current, degraded, path_slots, window_values
from radixtide.simulation.oracle_books import Book, OracleBase, Wrong, as_slots
from radixtide.simulation.oracle_bounds import Before, Lock, Pinned, same_slots
from radixtide.simulation.oracle_content import FULL, MAMBA, SWA, MarkArray, key_marks
from radixtide.tree.key import RadixKey


class CallOracle(OracleBase):
    """Compares the answers of calls on the device."""

    def matched(
        self, params: MatchPrefixParams, result: MatchResult, before: Before, rank: int = 0
    ) -> Wrong:
        """Compare a match; what it locked is protected from now on."""
        self.compared += 1
        book = self.books[rank]
        key = params.key
        marks = key_marks(key)
        slots = as_slots(result.device_indices)
        length = len(slots)
        what = f"match of {key}"
        wrong = self._match_lengths(what, marks, length, result)
        if wrong:
            return wrong
        refused = result.miss_reason is MissReason.NO_SLOT
        if refused and not params.cow_mamba:
            wrong.append(f"{what}: {result.miss_reason} without cow_mamba")
        full, whole, which = self.least(book, marks, before)
        if result.full_kv_hit_length < full:
            wrong.append(
                f"{what}: Full has {result.full_kv_hit_length} units, {full} are locked or pinned"
            )
        now = book.losses.now()
        seen = 0 if before.degraded else book.seen.least(now, marks, before)
        if not refused:
            if length < whole:
                wrong.append(f"{what}: {length} units, and {whole} are locked whole by {which}")
            elif length < seen:
                wrong.append(
                    f"{what}: {length} units, and {seen} were there, with nothing dropped since"
                )
        for lock in book.locks.values():
            if lock.since <= before.serial and lock.settled:
                wrong += same_slots(what, slots, lock, lock.common(marks, self.page))
        return wrong + self._match_content(what, book, params, result, slots, before)

    def _match_lengths(
        self, what: str, marks: MarkArray, length: int, result: MatchResult
    ) -> Wrong:
        """Compare the lengths that a match tells with each other and with what was ever given."""
        units = len(marks)
        generation = result.last_device_node.generation
        either = length + result.host_hit_length
        known = self.known
        wrong = known.check(what, marks, length, generation)
        wrong += known.check(f"{what}, with the host", marks, either, generation)
        wrong += known.check(f"{what}, of Full", marks, result.full_kv_hit_length, generation)
        if wrong:
            return wrong
        if result.full_kv_hit_length < either:
            wrong.append(f"{what}: {either} units, and Full has {result.full_kv_hit_length}")
        if result.miss_length != units - length:
            wrong.append(f"{what}: miss_length {result.miss_length} of {units}, matched {length}")
        whole = units - units % self.page
        reason = result.miss_reason
        complete = reason in (MissReason.COMPLETE, MissReason.UNALIGNED_TAIL)
        if complete != (length == whole) or (reason is MissReason.COMPLETE) != (length == units):
            wrong.append(f"{what}: {reason} with {length} of {units} units")
        if (reason is MissReason.ON_HOST) != bool(result.host_hit_length):
            wrong.append(f"{what}: {reason} with {result.host_hit_length} units on the host")
        if reason in (MissReason.EVICTED, MissReason.IN_STORAGE):
            ends = length + self.page
            if ends <= units and int(marks[ends - 1]) not in known.ends:
                wrong.append(f"{what}: {reason}, of a page that was never given")
        return wrong

    def _match_content(
        self,
        what: str,
        book: Book,
        params: MatchPrefixParams,
        result: MatchResult,
        slots: Slots,
        before: Before,
    ) -> Wrong:
        """Read what a match hands out, and note what it locked."""
        wrong: Wrong = []
        length = len(slots)
        marks = key_marks(params.key)[:length]
        receipt, req = result.receipt, params.req
        node = current(book.cache, result.last_device_node)
        readable = not self.is_pending(marks)
        if receipt is not None:
            wrong += self._receipt(what, book, params, slots)
            lock = Lock(receipt, marks, slots, True, 0, None if req is None else req.rid)
            book.hold(lock)
            if readable:
                wrong += book.content.check(what, FULL, slots, marks)
                if length:
                    wrong += self.read_end(book, receipt, slots, marks, what)
        elif node is not None and readable:
            there = path_slots(node)
            if there is not None and not np.array_equal(there, slots):
                wrong.append(f"{what}: indices are not those of the node where it ended")
            wrong += book.content.check(what, FULL, slots, marks)
        if params.cow_mamba and req is not None and length:
            wrong += self._private(what, book, req, marks)
        book.saw(before, marks, length)
        return wrong

    def _receipt(self, what: str, book: Book, params: MatchPrefixParams, slots: Slots) -> Wrong:
        """Compare what a match with a lock wrote to its request."""
        req = params.req
        if req is None:
            return []
        prefix = req.prefix_indices
        if req.lock is None or req.cache_protected_len != len(slots) or prefix is None:
            return [f"{what}: the request was not told of its lock on {len(slots)} units"]
        if not np.array_equal(as_slots(prefix), slots):
            return [f"{what}: prefix_indices of the request are not what was matched"]
        return []

    def _private(self, what: str, book: Book, req: Any, marks: MarkArray) -> Wrong:
        """Compare the private copy of a state that a match made."""
        if req.mamba_pool_idx is None:
            return [f"{what}: no copy of the state"] if MAMBA in self.setup.components else []
        slot = np.array([req.mamba_pool_idx], dtype=np.int64)
        wrong = book.content.check(f"{what}, the copy of the state", MAMBA, slot, marks[-1:])
        wrong += book.content.grant(MAMBA, slot, req.rid)
        if not wrong:
            book.content.written[MAMBA][slot] = marks[-1:]
        return wrong

    # -- insert ---------------------------------------------------------------------------------

    def inserted(
        self, params: InsertParams, result: InsertResult, before: Before, rank: int = 0
    ) -> Wrong:
        """Compare an insert: what it says of the units, and what the node has now."""
        self.compared += 1
        book = self.books[rank]
        key = params.key
        marks = key_marks(key)
        begin, done = params.prev_prefix_len, result.inserted_len
        what = f"insert of {key}"
        end = key.aligned(self.page)
        if not begin <= done <= end or done % self.page:
            return [f"{what}: {done} units inserted, of [{begin}, {end})"]
        wrong: Wrong = []
        if not 0 <= result.prefix_len <= done:
            wrong.append(f"{what}: prefix_len {result.prefix_len} of {done} units")
        parts = sorted([*result.adopted, *result.duplicate])
        borders = [begin, *(at for part in parts for at in part), done]
        if begin < done and (
            borders[::2] != borders[1::2] or any(one[0] >= one[1] for one in parts)
        ):
            wrong.append(
                f"{what}: adopted {result.adopted} and duplicate {result.duplicate} are not "
                f"[{begin}, {done})"
            )
        full, _, _ = self.least(book, marks, before)
        if result.prefix_len < min(full, done):
            wrong.append(f"{what}: prefix_len {result.prefix_len}, and {full} units are kept")
        node = current(book.cache, result.last_device_node)
        slots = None if node is None else path_slots(node)
        # In the middle of an edit a node may be cut already, and its windows not yet.
        quiet = at_rest(book.cache) and not self.is_pending(marks[:done])
        if node is not None and slots is not None and quiet:
            if len(slots) != done:
                wrong.append(f"{what}: the node ends at {len(slots)}, not at {done}")
            else:
                wrong += book.content.check(what, FULL, slots, marks[:done])
                for begins, values in window_values(book.cache, node):
                    mine = marks[begins : begins + len(values)]
                    wrong += book.content.check(what, SWA, values, mine)
        if self._usable(params, result, done):
            book.saw(before, marks, done)
        return wrong

    def _usable(self, params: InsertParams, result: InsertResult, done: int) -> bool:
        """Return whether a match goes on from the end of an insert, for all that is known."""
        if self.plain:
            return True
        if MAMBA in self.setup.components:
            adopted = result.component_adopted.get(MAMBA)
            if not result.mamba_exist and not adopted:
                return False
        if SWA in self.setup.components:
            window = self.books[0].cache.config.window
            assert window is not None
            ranges = result.component_adopted.get(SWA, ())
            begin = max(done - window, 0)
            return any(low <= begin and done <= high for low, high in ranges)
        return True

    # -- slots ----------------------------------------------------------------------------------

    def allocated(
        self, params: AllocateParams, result: AllocateResult, before: Before, rank: int = 0
    ) -> Wrong:
        """Compare what was granted with what was asked for."""
        self.compared += 1
        content = self.books[rank].content
        slots = as_slots(result.indices)
        what = f"allocate of {params.num_tokens}"
        wrong: Wrong = []
        if len(slots) < params.num_tokens:
            wrong.append(f"{what}: {len(slots)} slots")
        if len(np.unique(slots)) != len(slots):
            wrong.append(f"{what}: a slot twice in {slots.tolist()}")
        if params.req is None and len(slots) % self.page:
            wrong.append(f"{what}: {len(slots)} slots are not whole pages")
        wanted = params.wanted(self.setup.components)
        if SWA in self.setup.components and wanted[SWA]:
            asked = slots[: params.num_tokens][-wanted[SWA] :]
            if (content.pairs(asked) < 0).any():
                wrong.append(f"{what}: the last {wanted[SWA]} have no slots of the window")
        states = 0 if result.mamba_indices is None else len(result.mamba_indices)
        if states != wanted[MAMBA] and params.req is None:
            wrong.append(f"{what}: {states} states, and {wanted[MAMBA]} were asked for")
        return wrong

    def evicted(
        self, params: EvictParams, result: EvictResult, before: Before, rank: int = 0
    ) -> Wrong:
        """Compare what was evicted: nothing less than nothing, and no more than there is."""
        self.compared += 1
        pools = self.books[rank].content.written
        freed = {
            FULL: result.num_tokens_evicted,
            SWA: result.swa_num_tokens_evicted,
            MAMBA: result.mamba_num_evicted,
        }
        return [
            f"evict: {count} slots of {name} freed"
            for name, count in freed.items()
            if not 0 <= count <= len(pools.get(name, ()))
        ]

    def paired(self, full_slots: Any, answer: torch.Tensor, rank: int = 0) -> Wrong:
        """Compare the window's slots of Full slots that the caller holds."""
        self.compared += 1
        content = self.books[rank].content
        slots = as_slots(full_slots)
        found = as_slots(answer)
        if len(found) != len(slots):
            return [f"component_slots of {len(slots)} slots: {len(found)}"]
        held = content.holder[FULL][slots] != 0
        if not np.array_equal(content.pairs(slots)[held], found[held]):
            return [f"component_slots of {slots.tolist()}: {found.tolist()}"]
        return []

    def indices(
        self,
        key: RadixKey,
        length: int,
        component: str,
        slots: Any,
        before: Before,
        rank: int = 0,
    ) -> Wrong:
        """Compare the answer of ``device_indices`` for a node that ends at `length` of `key`."""
        self.compared += 1
        book = self.books[rank]
        numbers = as_slots(slots)
        what = f"{component} indices of {key} at {length}"
        if component != FULL:
            size = len(book.content.written[component])
            good = len(numbers) <= length and (numbers < size).all() and (numbers >= 0).all()
            return [] if good else [f"{what}: {numbers.tolist()}"]
        if len(numbers) != length:
            return [f"{what}: {len(numbers)} slots"]
        wrong: Wrong = []
        for lock in book.locks.values():
            # What was locked since may have been evicted after the answer, and loaded elsewhere.
            if lock.since <= before.serial and lock.settled:
                wrong += same_slots(
                    what, numbers, lock, lock.common(key_marks(key)[:length], self.page)
                )
        return wrong

    # -- the rest -------------------------------------------------------------------------------

    def pinning(self, key: RadixKey, ttl: float, rank: int = 0) -> float:
        """Note, before the call, that a pin of `key` may get another time, and a sooner end.

        Returns the soonest end that this call gives it.
        """
        book = self.books[rank]
        ends = book.cache._state.clock() + ttl  # as it does itself, and when an actor is down
        book.renewals.setdefault(key, []).append(ends)
        return ends

    def pin_answered(self, key: RadixKey, ends: float, rank: int = 0) -> None:
        """Note that a call that was noted by ``pinning`` is over, and comes no more."""
        self.books[rank].renewals[key].remove(ends)

    def pinned(
        self, key: RadixKey, result: PinResult, before: Before, rank: int = 0, ends: float = 0.0
    ) -> Wrong:
        """Compare what a pin covers. `ends`: soonest end that this call may have given it."""
        self.compared += 1
        book = self.books[rank]
        marks = key_marks(key)
        wrong = self.known.check(f"pin of {key}", marks, result.pinned_len, before.generation)
        if result.budget_left < 0:
            wrong.append(f"pin of {key}: {result.budget_left} left of the budget")
        pin = book.cache._state.pins.get(PinBoard.name(key))  # only it knows when it was made
        if wrong or key in self.unpinned_keys:
            return wrong
        book.serial += 1
        if pin is None:
            # It is over before its answer was heard: then its end must be, and no older one counts.
            kept, until = marks[: result.pinned_len], ends
        else:
            # It may be a later one by now, which covers less.
            kept, until = marks[: min(result.pinned_len, pin.node.end)], pin.expires_at
        book.pins[key] = Pinned(kept, until, book.generation, book.serial)
        return wrong

    def unpinned(self, key: RadixKey, rank: int = 0) -> None:
        """Note, before the call, that a pin is let go, whoever pins that key again meanwhile."""
        self.unpinned_keys.add(key)
        for book in self.books.values():
            book.pins.pop(key, None)

    def stats(self, stats: CacheStats, rank: int = 0) -> Wrong:
        """Compare the sizes of the pools with each other."""
        self.compared += 1
        wrong: Wrong = []
        for name, tiers in stats.pools.items():
            for tier, one in tiers.items():
                parts = (one.free, one.evictable, one.protected, one.held, one.in_flight)
                if min(parts) < 0 or sum(parts) != one.size:
                    wrong.append(f"stats: {name} on the {tier}: {one}")
        return wrong

    def idle(self, stats: CacheStats, rank: int = 0) -> Wrong:
        """Compare what is held with what callers hold, while no call is on its way."""
        self.compared += 1
        book = self.books[rank]
        if book.doubts or degraded(book.cache):
            return []
        wrong: Wrong = []
        for name in (FULL, MAMBA):
            if name not in stats.pools:
                continue
            held = int(np.count_nonzero(book.content.holder[name]))
            told = stats.pools[name]["device"].held
            if held != told:
                wrong.append(f"{told} slots of {name} are held, and callers hold {held}")
        if stats.receipts != len(book.locks):
            wrong.append(f"{stats.receipts} receipts live, and callers have {len(book.locks)}")
        return wrong

    def lost(self, what: str, key: RadixKey | None = None, rank: int = 0) -> None:
        """Note that nobody knows what became of a call."""
        self.books[rank].doubts += 1

    def reset(self, rank: int = 0) -> None:
        """Note that the cache was reset: generations tell what was given before."""

    def flushed(self, tier: str, rank: int = 0) -> None:
        """Note that a tier was flushed: losses are counted where they are made."""

    def restarted(self, rank: int = 0) -> None:
        """Note that a new cache was bound; only a storage lasts."""
        if not self.known.lasting:
            self.known.ends.clear()
