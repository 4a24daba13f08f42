"""What all components but the first have in common: values that may be missing on a node.

An auxiliary component keeps a value on some nodes; a node without one is a *tombstone* of it. Its
device LRU is a list of exactly the nodes with a value, locked ones included, oldest first; eviction
scans it from the oldest and passes over locked nodes.

A lock counts on each node it covers, with or without a value, so that a value which appears under
a lock is protected from its first moment. What a lock covers is the node alone, or, where
``reach`` is set, all nodes within ``reach`` units up from the node's end. As the coordinator has
made that depth a border before, a node is covered whole or not at all, and a split under a lock
only has to copy the count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from radixtide.components.api import EvictLayer, Slots, StoredSlots, Violation
from radixtide.components.auxiliary_audit import audit_auxiliary
from radixtide.components.base import TreeComponent
from radixtide.components.outcomes import RELEASED, Census
from radixtide.configs.schema import CacheConfig
from radixtide.tree.lru import LruList
from radixtide.tree.node import ComponentData, Node
from radixtide.tree.radix_tree import RadixTree


class AuxiliaryComponent(TreeComponent):
    """Base of the components that ride on the first one's nodes."""

    def __init__(self, config: CacheConfig, tree: RadixTree, index: int) -> None:
        super().__init__(config, tree, index)
        self.recency: LruList[ComponentData] = LruList()

    def reset(self) -> None:
        """Forget all nodes and free all slots."""
        super().reset()
        self.recency = LruList()

    # -- values -------------------------------------------------------------------

    def attach(self, node: Node, value: StoredSlots) -> None:
        """Give `node`, a tombstone, a value: the most recently used one."""
        data = node.component_data[self.index]
        data.value = value
        data.metadata = None
        if data.lock_ref:
            self.protected += len(value)
        else:
            self.evictable += len(value)
        self.recency.append(data)

    def detach(self, node: Node) -> StoredSlots | None:
        """Make `node` a tombstone; return the value it had."""
        data = node.component_data[self.index]
        value = data.value
        if value is None:
            return None
        data.value = None
        if data.lock_ref:
            self.protected -= len(value)
        else:
            self.evictable -= len(value)
        self.recency.remove(data)
        return value

    def free_values(self, values: list[StoredSlots]) -> int:
        """Free the slots of values that left the tree; return how many."""
        if not values:
            return 0
        slots = np.concatenate(values, dtype=np.int64)
        self.allocator.release_tree(slots)
        return len(slots)

    # -- evict --------------------------------------------------------------------

    def evict_component(self, node: Node, target: EvictLayer) -> tuple[int, int]:
        """Free the value of `node`."""
        return self.evict_nodes([node]), 0

    def evict_nodes(self, nodes: Sequence[Node]) -> int:
        """Free the values of `nodes`; return how many slots."""
        values = [value for node in nodes if (value := self.detach(node)) is not None]
        return self.free_values(values)

    def drive_eviction(self, target: int, spare: tuple[Node, ...] = ()) -> list[Node]:
        """Return the least recently used unlocked nodes that hold `target` slots.

        Cost O(victims + locked nodes passed over).
        """
        victims: list[Node] = []
        got = 0
        if target <= 0:
            return victims
        spared = frozenset(spare)
        for data in self.recency:
            if data.lock_ref or data.node in spared:
                continue
            assert data.node is not None and data.value is not None
            victims.append(data.node)
            got += len(data.value)
            if got >= target:
                break
        return victims

    def lru_lengths(self) -> tuple[int | None, int | None]:
        """Return how many nodes have a value on the device; there is no host tier yet."""
        return len(self.recency), 0

    # -- split --------------------------------------------------------------------

    def copy_lock(self, prefix: Node, suffix: Node) -> None:
        """Let the new `prefix` be covered by the locks that cover `suffix`."""
        if self.reach is not None:
            below = suffix.component_data[self.index]
            prefix.component_data[self.index].lock_ref = below.lock_ref

    # -- lock ---------------------------------------------------------------------

    def covered(self, node: Node) -> Iterable[Node]:
        """Return the nodes that a lock on `node` covers, from `node` upward; none for the root."""
        at = node.parent
        if at is None:
            return ()
        if self.reach is None:
            return (node,)
        low = node.end - self.reach
        nodes = [node]
        while at.end > low:
            nodes.append(at)
            at = at.parent
            if at is None:
                # The root has no state.
                nodes.pop()
                break
        return nodes

    def acquire_component_lock(self, node: Node) -> None:
        """Cover `node`, and the units within reach above it. O(nodes covered)."""
        index = self.index
        moved = 0
        for at in self.covered(node):
            data = at.component_data[index]
            data.lock_ref += 1
            if data.lock_ref == 1 and data.value is not None:
                moved += len(data.value)
        self.evictable -= moved
        self.protected += moved

    def release_component_lock(self, node: Node, record: Any) -> int:
        """Undo one acquisition on `node`, unless it was given up before. O(nodes covered)."""
        if record is RELEASED:
            return 0
        index = self.index
        moved = 0
        for at in self.covered(node):
            data = at.component_data[index]
            data.lock_ref -= 1
            if not data.lock_ref and data.value is not None:
                moved += len(data.value)
        self.evictable += moved
        self.protected -= moved
        return moved

    # -- soundness ----------------------------------------------------------------

    def values(self) -> Slots:
        """Return the slots of all nodes in one array. O(N): for audits."""
        return self.slots_on(list(self.tree))

    def audit(self, locked: dict[int, int], ledger: dict[int, tuple[str, int]]) -> list[Violation]:
        """Recount everything from scratch. O(N + pool)."""
        return audit_auxiliary(self, locked, ledger)

    def expected_size(self, node: Node) -> int | None:
        """Return how many slots a value of `node` has; None: any number. For audits."""
        return None

    def fits(self, node: Node, value: StoredSlots, carrier: Census) -> bool:
        """Return whether `value` can be `node`'s, for repairs."""
        size = self.expected_size(node)
        return size is None or len(value) == size

    def rebuild(
        self, locked: dict[int, int], holders: set[int], carrier: Census | None = None
    ) -> list[Node]:
        """Recompute counts, sizes, list and books from values and receipts. O(N + pool)."""
        assert carrier is not None
        index = self.index
        nodes = [node for node in self.tree if node.id in carrier.nodes]
        order = self._order()
        self.recency = LruList()
        self.evictable = self.protected = 0
        seen = np.zeros(self.allocator.pages, dtype=bool)
        for node in nodes:
            data = node.component_data[index]
            data.newer = data.older = None
            data.lock_ref = 0
            value = data.value
            if value is None:
                continue
            inside = (value >= 0) & (value < self.allocator.size)
            if not inside.all():
                data.value = None
                continue
            pages = self.allocator.pages_of(value.astype(np.int64))
            doubtful = seen[pages].any() or len(np.unique(pages)) < len(pages)
            if doubtful or not self.fits(node, value, carrier):
                data.value = None
                continue
            seen[pages] = True
        for node in nodes:
            for _ in range(locked.get(node.id, 0)):
                for at in self.covered(node):
                    at.component_data[index].lock_ref += 1
        for node in sorted(nodes, key=lambda one: order.get(one.id, len(order))):
            data = node.component_data[index]
            value = data.value
            if value is not None:
                data.value = None
                self.attach(node, value)
        for holder in set(self.holdings) - holders:
            del self.holdings[holder]
        self.rebuild_books(nodes, carrier)
        return []

    def _order(self) -> dict[int, int]:
        """Return each node's place in the list, as far as the list can be followed."""
        order: dict[int, int] = {}
        for data in self.recency:
            if data.node is None or data.node.id in order:
                break
            order[data.node.id] = len(order)
        return order

    def rebuild_books(self, nodes: list[Node], carrier: Census) -> None:
        """Make the books say what nodes and holders have."""
        tree_pages = self.allocator.pages_of(self.slots_on(nodes))
        self.allocator.rebuild(tree_pages, self.held_pages())
