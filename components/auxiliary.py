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

from radixtide.components.api import Slots, StoredSlots, Violation
from radixtide.components.auxiliary_audit import audit_auxiliary, audit_places
from radixtide.components.auxiliary_host import AuxiliaryHost
from radixtide.components.host_repair import (
    Sieve,
    drop_doubtful_transfers,
    loading_pages,
    rebuild_host_books,
    reset_link,
)
from radixtide.components.outcomes import RELEASED, Census, JobPins
from radixtide.tree.lru import L, LruList
from radixtide.tree.node import Node


class AuxiliaryComponent(AuxiliaryHost):
    """Base of the components that ride on the first one's nodes.

    ``recency``: the list of nodes with a value on the device.
    """

    # -- values -------------------------------------------------------------------

    def free_values(self, values: list[StoredSlots]) -> int:
        """Free the slots of values that left the tree; return how many."""
        if not values:
            return 0
        slots = np.concatenate(values, dtype=np.int64)
        self.allocator.release_tree(slots)
        return len(slots)

    # -- evict --------------------------------------------------------------------

    def evict_nodes(self, nodes: Sequence[Node]) -> int:
        """Free the device values of `nodes`; return how many slots. Host values stay."""
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

    def audit(
        self,
        locked: dict[int, int],
        ledger: dict[int, tuple[str, int]],
        jobs: JobPins | None = None,
    ) -> list[Violation]:
        """Recount everything from scratch. O(N + pool)."""
        return audit_auxiliary(self, locked, ledger, jobs or {})

    def audit_against(self, carrier: Census) -> list[Violation]:
        """Compare with where the first component has data. O(N)."""
        return audit_places(self, carrier)

    def fits(self, node: Node, value: StoredSlots, carrier: Census) -> bool:
        """Return whether `value` can be `node`'s, for repairs."""
        size = self.expected_size(node)
        return size is None or len(value) == size

    def rebuild(
        self,
        locked: dict[int, int],
        holders: set[int],
        carrier: Census | None = None,
        jobs: JobPins | None = None,
    ) -> list[Node]:
        """Recompute counts, sizes, lists and books from values, receipts and jobs. O(N + pool)."""
        assert carrier is not None
        index = self.index
        pins = jobs or {}
        nodes = [
            node for node in self.tree if node.id in carrier.nodes or node.id in carrier.host_nodes
        ]
        order = _order(self.recency)
        host_order = _order(self.host_mirrors) | _order(self.host_only)
        self.recency = LruList()
        self.host_mirrors = LruList()
        self.host_only = LruList()
        self.evictable = self.protected = self.host_evictable = self.host_protected = 0
        self._drop_doubtful(nodes, carrier, pins)
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
        for node in sorted(nodes, key=lambda one: host_order.get(one.id, len(host_order))):
            data = node.component_data[index]
            if data.host_value is not None and data.host_link is not None:
                self.host_came(node, data, data.host_link)
        for holder in set(self.holdings) - holders:
            del self.holdings[holder]
        self.rebuild_books(nodes, carrier)
        rebuild_host_books(self, nodes)
        return []

    def _drop_doubtful(self, nodes: list[Node], carrier: Census, jobs: JobPins) -> None:
        """Forget what can not be a node's; give all records the counts that jobs make."""
        index = self.index
        device, host = Sieve(self.allocator), Sieve(self.host_allocator)
        for node in nodes:
            data = node.component_data[index]
            data.newer = data.older = None
            value = data.value
            here = value is not None and node.id in carrier.nodes
            fits = here and value is not None and self.fits(node, value, carrier)
            if not (fits and device.takes(value, None)):
                data.value = None
            size = self.expected_size(node)
            if node.id not in carrier.host_nodes or not host.takes(data.host_value, size):
                data.host_value = None
            reset_link(self, node, jobs)
            link = data.host_link
            data.lock_ref = 0 if link is None else link.pins
        for node in nodes:
            # After all values, which have the better claim.
            drop_doubtful_transfers(self, node, device, host)

    def rebuild_books(self, nodes: list[Node], carrier: Census) -> None:
        """Make the books say what nodes and holders have."""
        tree_pages = self.allocator.pages_of(self.slots_on(nodes))
        self.allocator.rebuild(tree_pages, self.held_pages() | loading_pages(self, nodes))


def _order(recency: LruList[L]) -> dict[int, int]:
    """Return each node's place in a list, as far as the list can be followed."""
    order: dict[int, int] = {}
    for entry in recency:
        if entry.node is None or entry.node.id in order:
            break
        order[entry.node.id] = len(order)
    return order
