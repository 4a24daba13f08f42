"""Full attention: one slot a token, on every node of the tree.

Full decides whether a node exists. Its data on the device is closed upward: a node on the device
has all its ancestors there, so the deepest node with data settles a whole path.

**Protection is counted once per edge.** A node counts its own locks and its protected children; a
lock's walk towards the root stops at the first ancestor that was protected already. What becomes
protected is then the distance between two depths, without a sum over nodes.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from radixtide.components.api import ComponentType, Slots, StoredSlots, Violation
from radixtide.components.base import Validator
from radixtide.components.full_audit import audit_full
from radixtide.components.full_host import FullHost
from radixtide.components.full_repair import rebuild_full
from radixtide.components.host import gathered
from radixtide.components.insertion import InsertCheck, Insertion, InsertPart
from radixtide.components.outcomes import Census, JobPins
from radixtide.configs.host import bytes_per_slot
from radixtide.tiers.kv_pool import TokenToKVPool
from radixtide.tiers.slots import EMPTY, SlotAllocator
from radixtide.tree.node import ComponentData, Node


class FullComponent(FullHost):
    """Full attention state: slots of ``pools.full``."""

    name = ComponentType.FULL
    votes = False

    def make_memory(self) -> TokenToKVPool | None:
        """Return K and V, or the latents, of every slot."""
        pool = self.config.pools.full
        return TokenToKVPool(pool, self.allocator.size) if pool.holds_bytes else None

    def make_allocator(self) -> SlotAllocator:
        """Return the books of ``pools.full``, whole pages of it."""
        page = self.config.page_size
        size = self.config.pools.full.size
        return SlotAllocator(size - size % page, page, self.name)

    def bytes_per_slot(self) -> int:
        """Return what a token takes over all layers."""
        return bytes_per_slot(self.config.pools.full)

    # -- match ------------------------------------------------------------------

    def create_match_validator(self, match_device_only: bool) -> Validator:
        """Accept nodes with data on the device, or on the host when that is allowed."""
        index = self.index

        def accepts(node: Node, units: int) -> bool:
            data = node.component_data[index]
            return data.value is not None or (not match_device_only and data.host_value is not None)

        return accepts

    def validate_path(
        self, path: Sequence[Node], inside: Node | None, inside_units: int, match_device_only: bool
    ) -> Sequence[int]:
        """As in the base; O(1) where the deepest node has data, thanks to upward closure."""
        deepest = inside if inside is not None else (path[-1] if path else None)
        if deepest is None:
            return range(0)
        if deepest.primary.value is not None:
            steps = len(path) + (inside is not None)
            return range(1, steps + 1)
        return super().validate_path(path, inside, inside_units, match_device_only)

    def finalize_match_result(self, path: Sequence[Node], holder: int | None = None) -> Slots:
        """Return the slots of `path`, a fresh array, and refresh the place of its last node."""
        if not path:
            return EMPTY.copy()
        data = path[-1].primary
        if data.order_key is not None and not data.lock_ref:
            self.leaves.refresh(data)
        if len(path) == 1:
            assert data.value is not None
            return data.value.astype(np.int64)
        return self.path_slots(path)

    def path_slots(self, path: Sequence[Node]) -> Slots:
        """Return the slots of `path` in one fresh array, those being loaded included."""
        if not path:
            return EMPTY.copy()
        if path[-1].primary.value is None:
            return gathered([self._coming(node) for node in path])
        values: list[Any] = [node.primary.value for node in path]
        return np.concatenate(values, dtype=np.int64)

    def _coming(self, node: Node) -> StoredSlots:
        """Return the slots that `node` has on the device, or that a load is filling."""
        data = node.primary
        link = data.host_link
        slots = data.value if data.value is not None or link is None else link.loading
        assert slots is not None
        return slots

    # -- insert -----------------------------------------------------------------

    def check_insert(self, job: Insertion) -> InsertCheck:
        """Raise SlotError unless the holder holds the slots from `prev` on; find their pages."""
        walk = job.walk
        value = job.value
        if value is None:
            self.own_slots(job.holder, walk.limit)
            return InsertCheck()
        begin = job.prev - walk.base
        return InsertCheck(self.allocator.check(value[max(0, begin) : walk.limit], job.holder))

    def apply_insert(self, job: Insertion) -> InsertPart:
        """Adopt what the device has not; what it has already is duplicate."""
        walk = job.walk
        base = walk.base
        units = walk.limit
        matched = job.matched
        there = matched if job.device_matched < 0 else job.device_matched
        value = job.value
        owned = None
        if value is None:
            owned = self.holdings.get(job.holder)
            value = self.own_slots(job.holder, units)
        first = max(job.prev, base)
        leaves = job.leaves
        fresh = there < base + units
        if fresh:
            slots = value[there - base : units]
            pages = job.checked[self.index].found
            if pages is None:
                self.allocator.adopt(self.allocator.pages_of(slots))
            else:
                self.allocator.adopt(pages, (there - first) // self.page_size)
            if there < matched:
                self._revive(walk.path, there, slots)
                slots = slots[matched - there :]
            if leaves:
                self._attach(leaves, slots)
        elif walk.path:
            data = walk.path[-1].primary
            if data.order_key is not None and not data.lock_ref:
                self.leaves.refresh(data)
        running = job.running
        if first >= there and not running:
            # What a prompt that was matched before comes to: nothing is given twice.
            if owned is not None:
                owned.drop_front(units)
            return InsertPart(((there, base + units),) if fresh else ())
        duplicate = value[first - base : there - base].copy() if first < there else EMPTY
        indices = None
        if running:
            path = walk.path
            indices = self.path_slots([*path, *leaves])
        if owned is not None:
            owned.drop_front(units)
        if len(duplicate) and not running:
            self.allocator.release(duplicate)
        return InsertPart(
            adopted=((there, base + units),) if fresh else (),
            duplicate=((first, there),) if first < there else (),
            indices=indices,
            kept=duplicate if running and len(duplicate) else None,
            freed=0 if running else len(duplicate),
        )

    def _revive(self, path: Sequence[Node], depth: int, slots: Slots) -> None:
        """Give `slots` to the nodes of `path` from `depth` on, which are on the host only."""
        for node in path:
            start = node.start
            if start >= depth:
                value = slots[start - depth : node.end - depth].astype(np.int32)
                self.attach_value(node, value)

    def _attach(self, leaves: tuple[Node, ...], slots: Slots) -> None:
        """Give `slots` to a chain of new nodes."""
        parent = leaves[0].parent
        assert parent is not None
        above = parent.primary
        if above.order_key is not None:
            self.drop_leaf(above)
        begin = 0
        end = len(slots)
        for leaf in leaves:
            above.device_children += 1
            above = leaf.primary
            if len(leaves) > 1:
                end = begin + leaf.length
            # A copy: a view would keep the caller's whole array alive as long as the node lives.
            above.value = slots[begin:end].astype(np.int32)
            begin = end
        self.evictable += end
        self.leaves.add(above)

    # -- split ------------------------------------------------------------------

    def redistribute_on_node_split(self, prefix: Node, suffix: Node) -> None:
        """Cut the slots in two; the suffix keeps locks and place, the prefix is protected by it."""
        above = prefix.component_data[self.index]
        below = suffix.component_data[self.index]
        value = below.value
        if value is not None:
            # From its end: the prefix may have been cut again by a split that comes after this one.
            cut = len(value) - suffix.length
            above.value = value[:cut].copy()
            below.value = value[cut:].copy()
            above.device_children = 1
        above.lock_ref = 1 if below.lock_ref else 0
        if below.order_key is not None and not below.lock_ref:
            self.leaves.refresh(below)
        if below.host_link is not None:
            self.split_host(prefix, suffix)
        elif below.host_lock_ref:
            # What is below it is pinned, though nothing of it is on the host (yet).
            above.host_lock_ref = 1

    # -- evict ------------------------------------------------------------------

    def evict_nodes(self, nodes: Sequence[Node]) -> int:
        """Free the device slots of `nodes`, children before parents; return how many.

        Their host values stay.
        """
        index = self.index
        gone: list[StoredSlots] = []
        for node in nodes:
            data = node.component_data[index]
            value = data.value
            if value is None:
                continue
            if data.host_link is None:
                data.value = None
            else:
                self.demote(data, data.host_link)
            if data.order_key is not None:
                self.drop_leaf(data)
            gone.append(value)
            self._lost_child(node)
        if not gone:
            return 0
        slots = np.concatenate(gone, dtype=np.int64)
        self.allocator.release_tree(slots)
        self.evictable -= len(slots)
        return len(slots)

    def _lost_child(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        above = parent.component_data[self.index]
        above.device_children -= 1
        if not above.device_children and self.is_evictable_leaf(parent, above):
            self.leaves.add(above)

    def lru_lengths(self) -> tuple[int | None, int | None]:
        """Return how many device leaves are evictable, and how many host values can go."""
        return len(self.leaves) - self.lodgers, sum(map(len, self.host_orders))

    def is_evictable_leaf(self, node: Node, data: ComponentData) -> bool:
        """Return whether `node` has data, no child with data, no lock, and is not the root."""
        return (
            data.value is not None
            and not data.device_children
            and not data.lock_ref
            and node.parent is not None
        )

    def eviction_priority(self, is_leaf: bool) -> int:
        """Return 0 for a leaf, 2 inside: evicting Full takes every other component along."""
        return 0 if is_leaf else 2

    def drive_eviction(self, target: int, spare: tuple[Node, ...] = ()) -> list[Node]:
        """Return leaves in policy order until they hold `target` slots.

        A parent whose last child is chosen joins with its own key, so a chain can go bottom-up in
        one plan. Locked leaves that are still in the order are taken out of it on the way: once a
        lock. Cost O(victims · log victims).
        """
        victims: list[Node] = []
        if target <= 0:
            return victims
        index = self.index
        key = self.policy.key
        chosen: dict[Node, int] = {}
        late: list[tuple[Any, int, Node]] = []
        leaves = iter(self.leaves)
        head = next(leaves, None)
        got = 0
        lodgers: list[ComponentData] = []
        while got < target and (head is not None or late):
            if head is not None and head.lock_ref:
                lodgers.append(head)
                head = next(leaves, None)
                continue
            if head is not None and (not late or head.order_key <= late[0][0]):
                node = head.node
                head = next(leaves, None)
            else:
                node = heapq.heappop(late)[2]
            assert node is not None
            if node in spare:
                continue
            victims.append(node)
            got += node.length
            parent = node.parent
            assert parent is not None
            if parent.parent is None:
                continue
            above = parent.component_data[index]
            count = chosen.get(parent, 0) + 1
            chosen[parent] = count
            if count == above.device_children and not above.lock_ref:
                heapq.heappush(late, (key(parent), parent.id, parent))
        for data in lodgers:
            self.drop_leaf(data)
        return victims

    def judge(self, nodes: Sequence[Node]) -> list[bool]:
        """Return which of `nodes` are evictable leaves once the leaves before them are gone."""
        gone: dict[Node, int] = {}
        flags: list[bool] = []
        for node in nodes:
            data = node.primary
            parent = node.parent
            assert parent is not None
            leaf = not data.lock_ref and data.device_children == gone.get(node, 0)
            if leaf:
                gone[parent] = gone.get(parent, 0) + 1
            flags.append(leaf)
        return flags

    # -- soundness ------------------------------------------------------------------

    def expected_size(self, node: Node) -> int:
        """Return a slot for each unit."""
        return node.length

    def audit(
        self,
        locked: dict[int, int],
        ledger: dict[int, tuple[str, int]],
        jobs: JobPins | None = None,
    ) -> list[Violation]:
        """Recount everything from scratch. O(N + pool)."""
        return audit_full(self, locked, ledger, jobs or {})

    def census(self) -> Census:
        """Return whose each page and each slot is."""
        nodes: dict[int, StoredSlots] = {}
        host_nodes: dict[int, StoredSlots] = {}
        loading: dict[int, StoredSlots] = {}
        for node in self.tree:
            data = node.primary
            if data.value is not None:
                nodes[node.id] = data.value
            if data.host_value is not None:
                host_nodes[node.id] = data.host_value
            if data.host_link is not None and data.host_link.loading is not None:
                loading[node.id] = data.host_link.loading
        holders = {holder: held.copy() for holder, held in self.holdings.items()}
        return Census(self.allocator.owners().copy(), nodes, holders, host_nodes, loading)

    def rebuild(
        self,
        locked: dict[int, int],
        holders: set[int],
        carrier: Census | None = None,
        jobs: JobPins | None = None,
    ) -> list[Node]:
        """Recompute counts, sizes, orders and books from values, receipts and jobs. O(N + pool)."""
        return rebuild_full(self, locked, holders, jobs or {})
