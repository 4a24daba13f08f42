"""State-space models: one state a node, valid exactly at the node's end.

A prefix can be reused only where a state was kept. Its user needs a private copy, since the model
writes the state in place: the match makes it (*copy-on-write*). A request owns one working slot
and, where ``pools.mamba.extra_buffer`` is on, a ring of two for the states at its last two tracking
points. When the request is cached, a state whose length is exactly what is inserted goes to the
tree: *donated* by one that is finished or that has a slot to take its place, *forked* (copied) by
one that goes on without a ring.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from radixtide.components.api import ComponentType, MissReason, Slots
from radixtide.components.auxiliary import AuxiliaryComponent
from radixtide.components.base import Validator
from radixtide.components.insertion import InsertCheck, Insertion, InsertPart
from radixtide.components.outcomes import Reserved, Shortage
from radixtide.components.request import Request
from radixtide.configs.host import bytes_per_slot
from radixtide.configs.schema import CacheConfig
from radixtide.tiers.holdings import Holding
from radixtide.tiers.slots import ANONYMOUS, EMPTY, SlotAllocator
from radixtide.tiers.state_pool import StatePool
from radixtide.tree.node import Node
from radixtide.tree.radix_tree import RadixTree

CopyState = Callable[[int, int], None]
"""Copies the state of one slot to another, over all layers."""


def copy_nothing(source: int, target: int) -> None:
    """Copy no bytes: for pools of which only the books are kept."""


class MambaComponent(AuxiliaryComponent):
    """State-space state: slots of ``pools.mamba``, one a state.

    ``holdings``: the slots of each request: the working slot first, then the ring.
    ``copy_state``: set by the owner of the pool's tensors.
    """

    name = ComponentType.MAMBA
    miss_reason = MissReason.NO_STATE
    prepares = True
    private = True

    def __init__(self, config: CacheConfig, tree: RadixTree, index: int) -> None:
        assert config.pools.mamba is not None
        self.pool = config.pools.mamba
        super().__init__(config, tree, index)
        self.grid = (
            math.lcm(self.pool.chunk, config.page_size)
            if self.pool.extra_buffer
            else config.page_size
        )
        self.copy_state: CopyState = copy_nothing
        self.capped = 0

    def make_memory(self) -> StatePool | None:
        """Return the tensors of every state; they are copied from here on."""
        if not self.pool.holds_bytes:
            return None
        memory = StatePool(self.pool, self.allocator.size)
        self.copy_state = memory.copy
        return memory

    def make_allocator(self) -> SlotAllocator:
        """Return the books of ``pools.mamba``: a state is a page of its own."""
        return SlotAllocator(self.pool.size, 1, self.name)

    def bytes_per_slot(self) -> int:
        """Return what a state takes over all layers."""
        return bytes_per_slot(self.pool)

    # -- match ----------------------------------------------------------------------

    def create_match_validator(self, match_device_only: bool) -> Validator:
        """Accept nodes that have a state, at their end only."""
        index = self.index

        def accepts(node: Node, units: int) -> bool:
            data = node.component_data[index]
            if data.value is None and (match_device_only or data.host_value is None):
                return False
            return units == node.length

        return accepts

    def validate_path(
        self, path: Sequence[Node], inside: Node | None, inside_units: int, match_device_only: bool
    ) -> Sequence[int]:
        """As in the base, without a call a node; never inside a node. O(steps)."""
        index = self.index
        if not match_device_only and self.host_allocator is not None:
            return super().validate_path(path, None, 0, False)
        return [
            at for at, node in enumerate(path, 1) if node.component_data[index].value is not None
        ]

    def finalize_match_result(
        self, path: Sequence[Node], holder: int | None = None
    ) -> Slots | None:
        """Promote the state that is used, and copy it to the holder's working slot."""
        data = path[-1].component_data[self.index]
        if data.value is None:
            return None
        self.recency.promote(data)
        if holder is None:
            return None
        working = self.holdings[holder].slots(1)
        self.copy_state(int(data.value[0]), int(working[0]))
        return working.copy()

    def reserve_private(self, holder: int) -> Reserved | Shortage:
        """Take a working slot, unless the holder has one."""
        if holder in self.holdings:
            return Reserved(EMPTY, 1)
        return self.reserve(1, holder)

    # -- requests -------------------------------------------------------------------

    def prepare_for_caching_req(self, req: Request, start: int, length: int) -> int:
        """Return the length of the newest state in the ring that is worth an insert.

        Without a ring, or without a state in it, all may be inserted.
        """
        if not self.pool.extra_buffer:
            return length
        for tracked in (req.mamba_last_track_seqlen, req.mamba_prev_track_seqlen):
            if tracked is not None and start < tracked <= length and not tracked % self.grid:
                return tracked
        return length

    def _source(self, job: Insertion) -> tuple[int, bool] | None:
        """Return the place, in the request's slots, of the state at the insert's end.

        And whether it is the working slot, which a running request goes on using.
        """
        req = job.req
        holding = self.holdings.get(job.own_holder)
        if req is None or holding is None or job.cut:
            # An insert that was cut ends elsewhere than the request's states do.
            return None
        if not self.pool.extra_buffer:
            # Pages are of one token then, so what is inserted is all that was computed.
            return 0, True
        if holding.total < 3 or job.end % self.grid:
            return None
        newest = 1 + (req.mamba_next_track ^ 1)
        if req.mamba_last_track_seqlen == job.end:
            return newest, False
        if req.mamba_prev_track_seqlen == job.end:
            return 3 - newest, False
        return None

    def check_insert(self, job: Insertion) -> InsertCheck:
        """Find the state that comes with the insert; a running request needs a slot for it."""
        given = job.given.get(self.name) if job.given is not None else None
        if given is not None:
            self.allocator.check_one(given, ANONYMOUS)
            return InsertCheck(given)
        source = self._source(job)
        if source is None:
            return InsertCheck()
        walk = job.walk
        existed = (
            job.matched == job.end
            and walk.inside is None
            and walk.last.component_data[self.index].value is not None
        )
        return InsertCheck(source, needs=1 if job.running and not existed else 0)

    def apply_insert(self, job: Insertion) -> InsertPart:
        """Attach the state at the insert's end, where there is one and none was there."""
        node = job.node
        data = node.component_data[self.index]
        existed = data.value is not None and node.parent is not None
        if existed:
            self.recency.promote(data)
        found = job.checked[self.index].found
        if found is None:
            return InsertPart(existed=existed)
        if not isinstance(found, tuple):
            if existed:
                self.allocator.release(np.array([found]))
                return InsertPart(existed=True, freed=1)
            return self._adopt(job, found)
        if existed:
            return InsertPart(existed=True)
        return self._donate(job, *found)

    def _donate(self, job: Insertion, place: int, working: bool) -> InsertPart:
        holding = self.holdings[job.own_holder]
        slots = holding.slots().copy()
        own = slots.item(place)
        if not job.running:
            # The rest goes with the request: it is finished.
            self._set_holding(job.own_holder, np.delete(slots, place))
            return self._adopt(job, own, (own, None))
        granted = job.granted[self.index] if job.granted is not None else None
        if granted is None:
            return InsertPart()
        fresh = granted.item(0)
        # The grant came in at the end of the holding.
        slots = slots[:-1]
        if working:
            self.copy_state(own, fresh)
            self._set_holding(job.own_holder, slots)
            return self._adopt(job, fresh)
        slots[place] = fresh
        self._set_holding(job.own_holder, slots)
        return self._adopt(job, own, (own, fresh))

    def _set_holding(self, holder: int, slots: Slots) -> None:
        if not len(slots):
            del self.holdings[holder]
            return
        holding = self.holdings[holder] = Holding(holder)
        holding.extend(slots, len(slots))

    def _adopt(
        self, job: Insertion, slot: int, swapped: tuple[int, int | None] | None = None
    ) -> InsertPart:
        self.allocator.adopt_one(slot)
        self.attach(job.node, np.array((slot,), dtype=np.int32))
        freed = self._cap(job.node) if self.pool.max_states_per_path else 0
        return InsertPart(((job.end - 1, job.end),), freed=freed, swapped=swapped)

    def _cap(self, node: Node) -> int:
        """Drop the shallowest states on the path that are above the cap; O(depth) where there is.

        Kept are the tail, forks, what is locked, and what is on a leaf.
        """
        cap = self.pool.max_states_per_path
        index = self.index
        kept = 0
        droppable: list[Node] = []
        at = node
        while at.parent is not None:
            data = at.component_data[index]
            if data.value is not None:
                kept += 1
                if at is not node and not data.lock_ref and len(at.children) == 1:
                    droppable.append(at)
            at = at.parent
        excess = kept - cap
        if excess <= 0:
            return 0
        victims = droppable[-excess:]
        self.capped += len(victims)
        return self.evict_nodes(victims)

    def counters(self) -> dict[str, int]:
        """Return how many states were dropped above the cap."""
        return {"states_capped": self.capped}

    def expected_size(self, node: Node) -> int:
        """Return 1: a node has one state, at its end."""
        return 1

    # -- split ----------------------------------------------------------------------

    def redistribute_on_node_split(self, prefix: Node, suffix: Node) -> None:
        """Leave the state, on every tier, where it is valid: at the suffix's end."""
        if suffix.component_data[self.index].host_link is not None:
            self.share_pins(prefix, suffix)

    # -- slots ----------------------------------------------------------------------

    def reserve(self, slots: int, holder: int) -> Reserved | Shortage:
        """Take `slots` states."""
        if slots > self.allocator.free:
            return Shortage(slots, self.sizes())
        taken = self.allocator.take(slots, holder)
        if holder == ANONYMOUS:
            return Reserved(taken, 0)
        holding = self.holdings.get(holder)
        if holding is None:
            holding = self.holdings[holder] = Holding(holder)
        position = holding.total
        holding.extend(taken, slots)
        return Reserved(taken.copy(), position)
