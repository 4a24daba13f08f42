"""Moves of a walk on the device: match, insert, slots, locks, evictions, pins."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from radixtide import AllocateParams, EvictParams, InsertParams, MatchPrefixParams
from radixtide.components.api import LockReceipt, MatchResult, MissReason, NodeHandle
from radixtide.configs.errors import (
    OutOfSlots,
    PinRefused,
    StaleNode,
    UnknownNode,
)
from radixtide.tree.key import RadixKey
from support.marks import MarkArray, key_marks
from support.tier_walk_base import LEFT, Ground
from support.tier_walk_setup import TierSetup

RECEIPTS = 4
LOOSE = 5


@dataclass(eq=False)
class Held:
    """A lock of the walk's own. ``whole``: all components can go on from where it is."""

    receipt: LockReceipt
    mark: int
    length: int
    slots: torch.Tensor
    whole: bool


class OnDevice(Ground):
    """Moves on the device."""

    def __init__(self, setup: TierSetup, seed: int) -> None:
        super().__init__(setup, seed)
        self.receipts: list[Held] = []
        self.handles: list[tuple[NodeHandle, RadixKey, int]] = []
        self.loose: list[tuple[torch.Tensor, MarkArray]] = []
        self.loose_states: list[tuple[int, MarkArray]] = []
        self.pins: list[RadixKey] = []
        self.stamps = 0

    # -- match -------------------------------------------------------------------------------

    async def look(self, dice: random.Random, key: RadixKey, **fields: Any) -> MatchResult | None:
        """Match a key and check all that it says; None when the caller left."""
        alone = self.alone
        call = self.cache.match_prefix(MatchPrefixParams(key=key, **fields))
        answer: Any = await self.taken(dice, call)
        if answer is LEFT:
            return None
        found: MatchResult = answer
        marks = key_marks(key)
        length = len(found.device_indices)
        either = length + found.host_hit_length
        self.check_known(marks, length, "device hit")
        self.check_known(marks, either, "hit with the host")
        self.check_known(marks, found.full_kv_hit_length, "hit of Full")
        assert either <= found.full_kv_hit_length or not found.host_hit_length
        assert found.miss_length == key.units - length
        # Without a slot for the copy of a state a match comes to nothing.
        for held in self.receipts if found.miss_reason is not MissReason.NO_SLOT else ():
            if 0 < held.length <= len(marks) and int(marks[held.length - 1]) == held.mark:
                assert found.full_kv_hit_length >= held.length, "a lock did not protect"
                assert not held.whole or length >= held.length, "a lock did not protect all"
                assert (
                    torch.equal(found.device_indices[: held.length], held.slots) or not held.whole
                )
        if alone or found.receipt is not None:
            await self.t.check(key, found.device_indices, found.last_device_node)
        self.met["host hit"] += bool(found.host_hit_length)
        self.met[f"miss {found.miss_reason}"] += 1
        self.handles = [*self.handles[-15:], (found.last_device_node, key, length)]
        return found

    async def match(self, dice: random.Random) -> None:
        """Match, now and then with a lock."""
        key = self.new_key(dice)
        lock = len(self.receipts) < RECEIPTS and not dice.randrange(3)
        self.say(f"match {key.token_ids.tolist()} lock={lock}")
        found = await self.look(dice, key, lock=lock)
        if found is not None and found.receipt is not None:
            self._keep(found.receipt, key, found.device_indices, True)

    def _keep(self, receipt: LockReceipt, key: RadixKey, slots: torch.Tensor, whole: bool) -> None:
        length = len(slots)
        mark = int(key_marks(key)[length - 1]) if length else 0
        self.receipts.append(Held(receipt, mark, length, slots.clone(), whole))

    async def lock(self, dice: random.Random) -> None:
        """Lock one of the last nodes, stale or not."""
        if not self.handles or len(self.receipts) >= RECEIPTS:
            return
        node, key, length = dice.choice(self.handles)
        self.say(f"lock {node}")
        try:
            receipt = await self.cache.inc_lock_ref(node)
        except (StaleNode, UnknownNode):
            self.met["stale"] += 1
            return
        slots = await self.cache.device_indices(receipt.node)
        # A node that was split below still ends where it did.
        assert len(slots) == length
        self.t.marks.check("full", slots, key_marks(key)[:length])
        self._keep(receipt, key, slots, False)

    async def unlock(self, dice: random.Random) -> None:
        """Release any receipt."""
        if not self.receipts:
            return
        held = self.receipts.pop(dice.randrange(len(self.receipts)))
        self.say(f"unlock {held.receipt}")
        await self.cache.dec_lock_ref(held.receipt)

    async def give_up_window(self, dice: random.Random) -> None:
        """Give up the window of a lock, perhaps for the second time."""
        if self.receipts:
            held = dice.choice(self.receipts)
            self.say(f"give up the window of {held.receipt}")
            held.whole = held.whole and not (self.has("swa") or self.has("mamba"))
            await self.cache.dec_swa_lock_only(held.receipt)

    # -- slots ---------------------------------------------------------------------------------

    def stamp(self, count: int) -> MarkArray:
        """Return marks that nothing else has."""
        self.stamps += count
        return np.arange(self.stamps - count, self.stamps, dtype=np.uint64) + np.uint64(2**60)

    async def allocated(
        self, dice: random.Random, count: int, swa: int | None = None, states: int = 0
    ) -> Any:
        """Allocate slots for nobody; None when there are not so many, or the caller left."""
        params = AllocateParams(num_tokens=count, swa_num_tokens=swa, mamba_num=states)
        try:
            given = await self.taken(dice, self.cache.allocate(params))
        except OutOfSlots:
            self.met["out of slots"] += 1
            return None
        return None if given is LEFT else given

    async def allocate(self, dice: random.Random) -> None:
        """Allocate some pages and states for nobody, and write to them."""
        if len(self.loose) >= LOOSE or len(self.loose_states) > 1:
            return
        states = dice.randrange(2) if self.has("mamba") else 0
        count = (1 + dice.randrange(3)) * self.page
        self.say(f"allocate {count} states={states}")
        given = await self.allocated(dice, count, states=states)
        if given is None:
            return
        self.keep_slots(given.indices)
        for slot in [] if given.mamba_indices is None else given.mamba_indices.tolist():
            self.keep_state(slot)

    def keep_slots(self, slots: torch.Tensor) -> None:
        """Hold slots of whole pages, and write to them."""
        for at in range(0, len(slots), self.page):
            marks = self.stamp(self.page)
            self.t.marks.write("full", slots[at : at + self.page], marks)
            self.loose.append((slots[at : at + self.page].clone(), marks))

    def keep_state(self, slot: int) -> None:
        """Hold a state, and write to it."""
        marks = self.stamp(1)
        self.t.marks.write("mamba", torch.tensor([slot]), marks)
        self.loose_states.append((slot, marks))

    def check_loose(self) -> None:
        """Assert that nobody wrote to what the walk holds."""
        for slots, marks in self.loose:
            self.t.marks.check("full", slots, marks)
        for slot, marks in self.loose_states:
            self.t.marks.check("mamba", torch.tensor([slot]), marks)

    async def free(self, dice: random.Random) -> None:
        """Give back some pages and states."""
        self.check_loose()
        dice.shuffle(self.loose)
        cut = dice.randrange(len(self.loose) + 1)
        gone, self.loose = self.loose[:cut], self.loose[cut:]
        self.say(f"free {len(gone)} pages")
        if gone:
            await self.cache.free(torch.cat([slots for slots, _ in gone]))
        if self.loose_states and dice.randrange(2):
            slot, _ = self.loose_states.pop()
            await self.cache.free(torch.tensor([slot]), "mamba")

    # -- insert ----------------------------------------------------------------------------------

    async def insert(self, dice: random.Random) -> None:
        """Insert a key from the root, or below what is cached of it."""
        stateful = self.has("mamba") and dice.randrange(4) > 0
        key = self.new_key(dice, whole=stateful or bool(dice.randrange(2)))
        end = key.aligned(self.page)
        stateful = stateful and end == key.units
        prev, receipt = 0, None
        if not end:
            return
        if not dice.randrange(4):
            found = await self.look(dice, key, lock=True)
            if found is None:
                return
            receipt = found.receipt
            prev = len(found.device_indices)
        live = None
        if self.has("swa") and not dice.randrange(3):
            live = dice.randrange((end - prev) // self.page + 1) * self.page
        self.say(f"insert {key.token_ids.tolist()} prev={prev} swa={live} state={stateful}")
        given = await self.allocated(dice, end - prev, live, int(stateful))
        if given is not None:
            try:
                await self._insert(dice, key, prev, given)
            finally:
                if receipt is not None:
                    await self.cache.dec_lock_ref(receipt)
        elif receipt is not None:
            await self.cache.dec_lock_ref(receipt)

    async def _insert(self, dice: random.Random, key: RadixKey, prev: int, given: Any) -> None:
        end = key.aligned(self.page)
        marks = key_marks(key)[:end]
        state = None if given.mamba_indices is None else int(given.mamba_indices[0])
        value = np.concatenate((np.zeros(prev, dtype=np.int64), given.indices.numpy()))
        # The device may still be writing when the cache is told.
        ready = None if dice.randrange(5) or len(self.going) > 1 else self.loop.create_future()
        if ready is None:
            await self.t.write(given.indices, marks[prev:])
            if state is not None:
                self.t.marks.write("mamba", torch.tensor([state]), marks[-1:])
        evicted = {}
        if self.has("swa") and not dice.randrange(4):
            # It says that these were given back, though they were not.
            evicted["swa"] = dice.randrange(end // self.page + 1) * self.page
        params = InsertParams(
            key, value, given.mamba_indices, prev, evicted, priority=dice.randrange(3)
        )
        result = await self.cache.insert(params, ready=ready)
        if ready is not None:
            # A backup may begin, and must not read yet.
            await self.rest_inside()
            for begin, stop in result.adopted:
                self.t.marks.write("full", value[begin:stop], marks[begin:stop])
            for begin, stop in result.component_adopted.get("swa", ()):
                slots = (await self.cache.device_indices(result.last_device_node))[begin:stop]
                paired = await self.cache.component_slots("swa", slots)
                self.t.marks.write("swa", paired, marks[begin:stop])
            if result.component_adopted.get("mamba") and state is not None:
                self.t.marks.write("mamba", torch.tensor([state]), marks[-1:])
            ready.set_result(None)
        done = result.inserted_len
        assert prev <= done <= end
        assert result.prefix_len <= done
        self.learn(key, done)
        self.remember((key.extra_key, key.cache_salt), tuple(key.token_ids.tolist()))
        self.handles = [*self.handles[-15:], (result.last_device_node, key, done)]
        if done < end:
            self.met["insert ended early"] += 1
            # It ended before what is being loaded: the rest is the caller's still.
            self.keep_slots(torch.from_numpy(value[max(done, prev) :]))
            if state is not None:
                self.keep_state(state)

    # -- evictions and pins ------------------------------------------------------------------------

    async def evict(self, dice: random.Random) -> None:
        """Evict a little from one pool, or from all, or much."""
        much = not dice.randrange(8)
        most = 10**6 if much else 1 + dice.randrange(5 * self.page)
        targets = {"full": most, "swa": most, "mamba": 10**6 if much else 1 + dice.randrange(3)}
        chosen = list(self.setup.components)
        if dice.randrange(4):
            chosen = [dice.choice(chosen)]
        full, swa, mamba = (targets[one] if one in chosen else 0 for one in targets)
        self.say(f"evict {full} {swa} {mamba}")
        await self.cache.evict(EvictParams(full, swa, mamba))

    async def pin(self, dice: random.Random) -> None:
        """Pin a key for a while."""
        key = self.new_key(dice)
        self.say(f"pin {key.token_ids.tolist()}")
        try:
            pinned = await self.cache.pin(key, 1.0 + dice.randrange(6))
        except PinRefused:
            return
        self.check_known(key_marks(key), pinned.pinned_len, "pinned")
        self.pins = [*self.pins, key]

    async def unpin(self, dice: random.Random) -> None:
        """Let a pin go."""
        if self.pins:
            key = self.pins.pop(dice.randrange(len(self.pins)))
            self.say(f"unpin {key.token_ids.tolist()}")
            await self.cache.unpin(key)
