"""Steps on the device without a request: match, insert, slots, locks, evictions, pins."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import numpy as np
import torch

from radixtide.components.api import (
    AllocateParams,
    EvictParams,
    InsertParams,
    LockReceipt,
    MatchPrefixParams,
    MatchResult,
)
from radixtide.configs.errors import (
    OutOfSlots,
    PinRefused,
    ReceiptError,
    ReceiptReleased,
    StaleNode,
    UnknownNode,
)
from radixtide.simulation import script as s
from radixtide.simulation.scheduler_base import MS, Answer, Held, SchedulerBase, pick
from radixtide.tree.key import RadixKey

LOCKS: Final = 4
LOOSE: Final = 6
ALL: Final = 10**6
EVERYTHING: Final = 30


class OnDevice(SchedulerBase):
    """Steps on the device."""

    # -- match ------------------------------------------------------------------------------

    async def look_up(
        self,
        key: RadixKey,
        patience: int = 0,
        failed: list[BaseException | None] | None = None,
        **fields: Any,
    ) -> MatchResult | None:
        """Match a key and check the answer; None when there is none, with nothing held.

        `failed`: gets the error of a match that was not answered.
        """
        params = MatchPrefixParams(key=key, **fields)
        before = self.oracle.snapshot(self.rank)
        answer = await self.call(
            "match",
            lambda: self.cache.match_prefix(params, timeout=self.timeout(patience)),
            patience=patience,
        )
        if not answer.ok:
            if failed is not None:
                failed.append(answer.error)
            return None
        found: MatchResult = answer.value
        self.check(self.oracle.matched(params, found, before, self.rank))
        self.note_node(found.last_device_node, key, len(found.device_indices))
        return found

    def timeout(self, patience: int) -> float | None:
        """Return a call's timeout in seconds; ranks have none of their own."""
        return patience * MS if patience and self.setup.ranks == 1 else None

    def waiting_s(self, ms: int) -> float:
        """Return how long a call may wait for others; ranks wait in steps only."""
        return ms * MS if self.setup.ranks == 1 else 0.0

    async def match(self, step: s.Match) -> None:
        """Match, and perhaps lock."""
        key = self.key(step.prompt)
        lock = bool(step.lock % 2) and len(self.locks) < LOCKS
        found = await self.look_up(key, step.patience, lock=lock)
        if found is not None and found.receipt is not None:
            self._keep(found.receipt, key, found.device_indices)

    def _keep(self, receipt: LockReceipt, key: RadixKey | None, slots: Any) -> None:
        mine = self.slots_of(slots)
        self.locks.append(Held(receipt, key, len(mine), mine))

    async def lock(self, step: s.Lock) -> None:
        """Lock one of the last nodes."""
        known = pick(self.nodes, step.which)
        if known is None or len(self.locks) >= LOCKS:
            return
        node, key, length = known
        answer = await self.call(
            "lock",
            lambda: self.cache.inc_lock_ref(node, timeout=self.timeout(step.patience)),
            may=(StaleNode, UnknownNode),
            patience=step.patience,
        )
        if not answer.ok:
            return
        receipt: LockReceipt = answer.value
        # It is held from here on, whatever comes of the next call.
        held = Held(receipt, key, length, self.slots_of([]))
        self.locks.append(held)
        slots = await self.persist(
            "indices of a lock", lambda: self.cache.device_indices(receipt.node)
        )
        if slots.ok and held in self.locks:
            held.slots = self.slots_of(slots.value)
            self.check(self.oracle.locked(receipt, key, held.slots, length, self.rank))

    async def unlock(self, step: s.Unlock) -> None:
        """Release a lock."""
        held = pick(self.locks, step.which)
        if held is not None:
            await self.release(held)

    async def release(self, held: Held) -> None:
        """Release a lock, as often as it takes."""
        self.locks.remove(held)
        await self.let_go(held.receipt)
        self.released = [*self.released[-3:], held.receipt]

    async def let_go(self, receipt: LockReceipt) -> None:
        """Release a receipt: after a call that is in doubt it may be released already."""
        self.oracle.unlocked(receipt, self.rank)
        doubts = self.world.doubts
        answer = await self.persist(
            "unlock", lambda: self.cache.dec_lock_ref(receipt), may=(ReceiptError,)
        )
        if isinstance(answer.error, ReceiptError) and self.world.doubts == doubts:
            self.wrong(f"unlock: {type(answer.error).__name__}: {answer.error}")

    async def drop_window(self, step: s.DropWindow) -> None:
        """Give up the window of a lock."""
        receipt = None
        live = pick(self.live, step.which) if step.request % 2 else None
        held = pick(self.locks, step.which)
        if live is not None:
            receipt = live.req.lock
        elif held is not None:
            receipt = held.receipt
        if receipt is None or not (self.has("swa") or self.has("mamba")):
            return
        self.oracle.window_dropped(receipt, self.rank)
        # The undoing of a load gives the request a lock of another receipt, while this is asked.
        may = (ReceiptReleased,) if live is not None and live.unsettled else ()
        await self.persist("drop window", lambda: self.cache.dec_swa_lock_only(receipt), may=may)

    async def hold(self, step: s.Hold) -> None:
        """Match, hold it in a block, and let go, one way or the other."""
        key = self.key(step.prompt)
        found = await self.look_up(key, step.patience if hasattr(step, "patience") else 0)
        if found is None:
            return

        async def block() -> None:
            async with self.cache.hold(found) as receipt:
                # The books of the cache that comes next have receipts of the same numbers.
                if not self.is_over:
                    slots = self.slots_of(found.device_indices)
                    self.check(self.oracle.locked(receipt, key, slots, len(slots), self.rank))
                try:
                    await asyncio.sleep(step.pause * MS)
                    if step.leave % 2:
                        # As a caller that is cancelled in the block.
                        raise asyncio.CancelledError
                finally:
                    if not self.is_over:
                        self.oracle.unlocked(receipt, self.rank)

        async def held() -> None:
            try:
                await block()
            except asyncio.CancelledError:
                if not step.leave % 2:
                    raise

        await self.call(
            "hold", held, may=(StaleNode, UnknownNode), longer=step.pause * MS, waits=True
        )

    async def indices(self, step: s.Indices) -> None:
        """Ask for the slots of a node."""
        known = pick(self.nodes, step.which)
        if known is None:
            return
        node, key, length = known
        component = self.setup.components[step.component % len(self.setup.components)]
        before = self.oracle.snapshot(self.rank)
        answer = await self.call(
            "indices",
            lambda: self.cache.device_indices(node, component),
            may=(StaleNode, UnknownNode),
        )
        if answer.ok:
            slots = self.slots_of(answer.value)
            self.check(self.oracle.indices(key, length, component, slots, before, self.rank))

    async def paired(self, step: s.Paired) -> None:
        """Ask for window slots."""
        slots = pick(self.loose, step.which)
        if slots is None or not self.has("swa") or not self.windowless.isdisjoint(slots.tolist()):
            return
        answer = await self.call("paired", lambda: self.cache.component_slots("swa", slots))
        if answer.ok:
            self.check(self.oracle.paired(slots, answer.value, self.rank))

    # -- slots ------------------------------------------------------------------------------

    async def take(self, params: AllocateParams, patience: int = 0) -> Any:
        """Allocate for nobody; None when there is no room, or no answer."""
        before = self.oracle.snapshot(self.rank)
        answer = await self.call(
            "allocate",
            lambda: self.cache.allocate(params, timeout=self.timeout(patience)),
            may=(OutOfSlots,),
            patience=patience,
            waits=self.setup.write_policy == "write_back",
        )
        if not answer.ok:
            return None
        given = answer.value
        self.check(self.oracle.allocated(params, given, before, self.rank))
        self.check(self.oracle.granted(self.slots_of(given.indices), "full", self.name, self.rank))
        for name, part in given.granted().items():
            if name == "mamba":
                self.check(self.oracle.granted(self.slots_of(part), name, self.name, self.rank))
        return given

    def window_part(self, tokens: int, window: int) -> int | None:
        """Return the window slots to ask for with `tokens`; None: as many."""
        if not self.has("swa") or not window:
            return None
        return min((window - 1) * self.page, tokens)

    async def allocate(self, step: s.Allocate) -> None:
        """Take slots for nobody."""
        if len(self.loose) >= LOOSE or len(self.loose_states) > 1:
            return
        states = step.states % 3 if self.has("mamba") else 0
        params = AllocateParams(step.tokens, self.window_part(step.tokens, step.window), states)
        given = await self.take(params, step.patience)
        if given is not None:
            self.keep_slots(self.slots_of(given.indices))
            self.keep_states(given)

    def keep_slots(self, slots: Any) -> None:
        """Hold whole pages, and write to them."""
        if len(slots):
            self.oracle.stamped(slots, "full", self.rank)
        for at in range(0, len(slots), self.page):
            self.loose.append(self.slots_of(slots[at : at + self.page]))

    def keep_states(self, given: Any) -> None:
        """Hold the states that came with an allocation, and write to them."""
        if given.mamba_indices is None:
            return
        slots = self.slots_of(given.mamba_indices)
        if len(slots):
            self.oracle.stamped(slots, "mamba", self.rank)
            self.loose_states.extend(slots.tolist())

    async def free(self, step: s.Free) -> None:
        """Give back pages, states, or the window slots of pages."""
        what = step.what % 3
        if what == 1:
            if self.loose_states:
                at = step.which % len(self.loose_states)
                await self.give_back([self.loose_states.pop(at)], "mamba")
            return
        if not self.loose:
            return
        first = step.which % len(self.loose)
        count = max(step.count, 1)
        if what == 2:
            if self.has("swa"):
                pages = np.concatenate(self.loose[first : first + count])
                # Named by their Full slots, as everything of a token is.
                answer = await self.call(
                    "free window", lambda: self.cache.free(pages, "swa"), waits=True
                )
                if answer.doubt:
                    # It may be carried out later, while somebody asks for these windows.
                    self.windowless.update(pages.tolist())
            return
        pages = np.concatenate(self.loose[first : first + count])
        del self.loose[first : first + count]
        self.windowless.difference_update(pages.tolist())
        await self.give_back(pages, "full", step.after if self.alone else 0)

    async def give_back(self, slots: Any, component: str, after: int = 0) -> Answer:
        """Give back slots of nobody; when that is in doubt, they are looked for at the end."""
        mine = self.slots_of(slots)
        self.oracle.gone(mine, component, self.rank)
        fence = self.world.later(after * MS, lambda: None) if after and self.setup.host else None
        answer = await self.call(
            "free", lambda: self.cache.free(mine, component, after=fence), waits=True
        )
        if not answer.ok:
            self.in_doubt(mine, component)
        if fence is not None:
            await fence
        return answer

    def in_doubt(self, slots: Any, component: str = "full") -> None:
        """Note slots of which nobody knows whether they are still held."""
        if len(slots):
            self.world.doubtful[self.rank].append((component, self.slots_of(slots)))

    # -- insert -----------------------------------------------------------------------------

    async def insert(self, step: s.Insert) -> None:
        """Compute a prompt and give it to the tree, from the root or below what is cached."""
        key = self.key(step.prompt)
        end = key.aligned(self.page)
        if not end:
            return
        state = self.has("mamba") and bool(step.state % 2) and end == key.units
        prev, held = 0, None
        if step.below % 2:
            found = await self.look_up(key, lock=True)
            if found is None:
                return
            prev = min(len(found.device_indices), end)
            if found.receipt is not None:
                self._keep(found.receipt, key, found.device_indices)
                held = self.locks[-1]
        window = self.window_part(end - prev, step.window)
        given = await self.take(AllocateParams(end - prev, window, int(state)), step.patience)
        if given is not None:
            await self._insert(step, key, prev, given)
        if held is not None and held in self.locks:
            await self.release(held)

    async def _insert(self, step: s.Insert, key: RadixKey, prev: int, given: Any) -> None:
        end = key.aligned(self.page)
        slots = self.slots_of(given.indices)
        states = self.slots_of(given.mamba_indices if given.mamba_indices is not None else [])
        oracle = self.oracle
        oracle.wrote(key, prev, slots, self.rank)
        if len(states):
            oracle.wrote_state(key, end, int(states[0]), self.rank)
        evicted = {}
        if step.evicted and self.has("swa"):
            evicted["swa"] = min((step.evicted - 1) * self.page, end)
        value = np.concatenate((np.zeros(prev, dtype=np.int64), slots))
        params = InsertParams(
            key,
            value,
            torch.from_numpy(states) if len(states) else None,
            prev,
            evicted,
            step.priority % 3,
        )
        ready = None
        adopted: list[tuple[int, int]] = []
        if step.ready and self.alone and self.setup.host and len(slots):
            self.world.scribble(self.rank, "full", slots)
            whole = [(prev, end)]

            def compute() -> None:
                for begin, stop in adopted or whole:
                    self.world.oracle.wrote(key, begin, value[begin:stop], self.rank)

            ready = self.world.later(step.ready * MS, compute)
        world = self.world
        world.oracle.asked(key, end)
        world.oracle.gone(slots, "full", self.rank)
        if len(states):
            world.oracle.gone(states, "mamba", self.rank)
        before = world.oracle.snapshot(self.rank)
        answer = await self.call(
            "insert",
            lambda: self.cache.insert(params, ready=ready, timeout=self.timeout(step.patience)),
            patience=step.patience,
            waits=True,
        )
        if not answer.ok:
            self.world.sync()
            self.oracle.lost("insert", key, self.rank)
            self.in_doubt(slots)
            self.in_doubt(states, "mamba")
            return
        result = answer.value
        adopted.extend(result.adopted or [(0, 0)])
        if ready is not None:
            await ready
        self.check(self.oracle.inserted(params, result, before, self.rank))
        self.world.remember(self.rank, self.space_of(key), tuple(key.token_ids.tolist()))
        done = result.inserted_len
        self.note_node(result.last_device_node, key, done)
        if done < end:
            # It ended before what is being loaded: the rest is the caller's still.
            rest = value[max(done, prev) :]
            self.check(self.oracle.granted(rest, "full", self.name, self.rank))
            self.keep_slots(rest)
            if len(states):
                self.check(self.oracle.granted(states, "mamba", self.name, self.rank))
                self.keep_states(given)

    # -- evictions and pins -------------------------------------------------------------------

    async def evict(self, step: s.Evict) -> None:
        """Evict a little from one pool, or from several, or all."""

        def slots(pages: int, unit: int) -> int:
            return ALL if pages >= EVERYTHING else pages * unit

        params = EvictParams(
            slots(step.full, self.page),
            slots(step.window, self.page) if self.has("swa") else 0,
            slots(step.states, 1) if self.has("mamba") else 0,
        )
        before = self.oracle.snapshot(self.rank)
        answer = await self.call("evict", lambda: self.cache.evict(params), waits=True)
        if answer.ok:
            self.check(self.oracle.evicted(params, answer.value, before, self.rank))

    async def pin(self, step: s.Pin) -> None:
        """Pin a prompt for a while, or for another while."""
        key = self.key(step.prompt)
        if step.prompt.again % 2 and self.pins:
            key = self.pins[0]
        before = self.oracle.snapshot(self.rank)
        ends = self.oracle.pinning(key, step.ttl * MS, self.rank)
        answer = await self.call(
            "pin", lambda: self.cache.pin(key, step.ttl * MS), may=(PinRefused,)
        )
        if not answer.doubt:
            self.oracle.pin_answered(key, ends, self.rank)
        if answer.error is not None and not answer.doubt:
            return
        self.pins = [key, *self.pins[:7]]
        if answer.ok:
            self.check(self.oracle.pinned(key, answer.value, before, self.rank, ends))

    async def unpin(self, step: s.Unpin) -> None:
        """Let a pin go."""
        key = pick(self.pins, step.which)
        if key is None:
            return
        self.pins.remove(key)
        await self.drop_pin(key)

    async def drop_pin(self, key: RadixKey) -> None:
        """Let a pin go, as often as it takes."""
        self.oracle.unpinned(key, self.rank)
        await self.persist("unpin", lambda: self.cache.unpin(key))


__all__ = ("ALL", "OnDevice")
