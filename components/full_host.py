"""The host tier of full attention: it decides how long a node lives.

Host values are closed upward, as those of the device are, and so is their protection, counted once
per edge: a node counts its own pins and its protected children.

**Order.** A host value can go when no child has one. Three sets of such nodes go one after the
other: mirrors (also on the device) that are in storage, nodes on the host only, other mirrors. In
each the eviction policy decides, by keys that may be out of date: a touch costs nothing here, and
a node whose key has changed gets its new place when its turn comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any, Final

from radixtide.components.api import Slots, StoredSlots
from radixtide.components.host import Digests, link_of, tidy
from radixtide.components.host_tier import HostTier
from radixtide.components.leaf_order import LeafOrder
from radixtide.components.outcomes import LoadNeed
from radixtide.components.policies import make_policy
from radixtide.configs.schema import CacheConfig
from radixtide.tree.node import ComponentData, HostLink, Node
from radixtide.tree.radix_tree import RadixTree

STORED_MIRRORS: Final = 0
HOST_ONLY: Final = 1
MIRRORS: Final = 2


class FullHost(HostTier):
    """The part of the Full component below the device, and what both tiers' books share.

    ``leaves``: the evictable leaves, and beside them leaves that were locked since: a lock leaves
    its leaf where it is, for it is mostly let go soon, and an eviction that meets one sends it
    away. ``lodgers``: how many of those there are.
    ``host_orders``: the three sets of nodes whose host value can go, in the order of their turn.
    """

    def __init__(self, config: CacheConfig, tree: RadixTree, index: int) -> None:
        self.policy = make_policy(config.eviction)
        self.order_key = self.policy.key
        self.leaves: LeafOrder[ComponentData] = LeafOrder(self.policy)
        self.lodgers = 0
        self.host_orders = self.make_host_orders()
        super().__init__(config, tree, index)

    def make_host_orders(self) -> tuple[LeafOrder[HostLink], ...]:
        """Return the three sets, empty."""
        return LeafOrder(self.policy), LeafOrder(self.policy), LeafOrder(self.policy)

    def reset(self) -> None:
        """Forget all nodes and free all slots."""
        super().reset()
        self.leaves = LeafOrder(self.policy)
        self.lodgers = 0
        self.host_orders = self.make_host_orders()

    def drop_leaf(self, data: ComponentData) -> None:
        """Take a leaf of the device, locked or not, out of the order. O(1) or O(log n)."""
        self.leaves.remove(data)
        if data.lock_ref:
            self.lodgers -= 1

    # -- device values that come and go --------------------------------------------------

    def attach_value(self, node: Node, value: StoredSlots) -> None:
        """Give `node`, whose parent is on the device, a device value that is the tree's.

        Its children have none. O(1), or O(log n) for the orders.
        """
        data = node.primary
        parent = node.parent
        assert parent is not None and not data.device_children
        above = parent.primary
        if above.order_key is not None:
            self.drop_leaf(above)
        above.device_children += 1
        link = data.host_link
        in_order = link is not None and link.order_key is not None
        if link is not None and in_order:
            self.host_orders[host_set(data, link)].remove(link)
        data.value = value
        if link is not None and in_order:
            self.host_orders[host_set(data, link)].add(link)
        if data.lock_ref:
            self.protected += len(value)
        else:
            self.evictable += len(value)
            self.leaves.add(data)

    def demote(self, data: ComponentData, link: HostLink) -> None:
        """Take the device value off a record; its host value, if any, stays and changes sets."""
        if link.order_key is None:
            data.value = None
            return
        self.host_orders[host_set(data, link)].remove(link)
        data.value = None
        self.host_orders[HOST_ONLY].add(link)

    def device_depth(self, node: Node) -> Node:
        """Return `node`, or the first node above it that is on the device, or the root."""
        while node.primary.value is None and node.parent is not None:
            node = node.parent
        return node

    def acquire_component_lock(self, node: Node) -> None:
        """Protect the path from `node` to the root. O(newly protected nodes).

        What of it is not on the device counts the lock too, for the value that may come.
        """
        parent = node.parent
        if parent is None:
            return
        data = node.primary
        if data.order_key is not None and not data.lock_ref:
            self.lodgers += 1
        at = node
        while parent is not None:
            data = at.primary
            data.lock_ref += 1
            if data.lock_ref > 1:
                break
            at = parent
            parent = at.parent
        moved = node.end - at.end
        if moved and node.primary.value is None:
            deepest = self.device_depth(node)
            moved = max(deepest.end - at.end, 0)
            if moved and deepest.primary.order_key is not None:
                self.lodgers += 1
        self.evictable -= moved
        self.protected += moved

    def release_component_lock(self, node: Node, record: object) -> int:
        """Undo one acquisition on `node`. O(nodes that become evictable)."""
        parent = node.parent
        if parent is None:
            return 0
        at = node
        while parent is not None:
            data = at.primary
            data.lock_ref -= 1
            if data.lock_ref:
                break
            at = parent
            parent = at.parent
        moved = node.end - at.end
        if moved:
            data = node.primary
            if data.value is None:
                node = self.device_depth(node)
                moved = max(node.end - at.end, 0)
                if not moved:
                    return 0
                data = node.primary
            self.protected -= moved
            self.evictable += moved
            if data.order_key is not None:
                self.lodgers -= 1
                key = self.order_key
                if key(node) != data.order_key:
                    # Touched under the lock.
                    self.leaves.refresh(data)
            elif not data.device_children:
                self.leaves.add(data)
        return moved

    def pin_device(self, node: Node) -> None:
        """Lock the path to `node` once more."""
        self.acquire_component_lock(node)

    def unpin_device(self, node: Node) -> None:
        """Undo :meth:`pin_device`."""
        self.release_component_lock(node, None)

    # -- load -----------------------------------------------------------------------

    def load_need(self, path: Sequence[Node], first: int) -> LoadNeed:
        """Return the nodes of `path` that are not on the device. O(nodes from `first`)."""
        nodes: list[Node] = []
        slots = 0
        shared = False
        for node in path[first:]:
            data = node.primary
            link = data.host_link
            if data.value is not None:
                continue
            if link is not None and link.loading is not None:
                shared = True
                continue
            nodes.append(node)
            slots += node.length
        return LoadNeed(nodes, slots, shared)

    def finalize_host_match(self, path: Sequence[Node], first: int) -> int:
        """Return the units that a load of ``path[first:]`` brings; nothing moves on the host.

        What is on the device beyond the match, for want of another component's data there, was
        touched as well: the deepest of it gets its new place.
        """
        data = self.device_depth(path[-1]).primary
        if data.order_key is not None and not data.lock_ref:
            self.leaves.refresh(data)
        return sum(node.length for node in path[first:] if node.primary.value is None)

    def commit_fetch(
        self, nodes: Sequence[Node], slots: Slots, digests: Digests | None = None
    ) -> None:
        """As in the base; what comes from storage is there.

        What the nodes hang on to was touched with them: the deepest of it on the device gets its
        new place.
        """
        super().commit_fetch(nodes, slots, digests)
        data = self.device_depth(nodes[0]).primary
        if data.order_key is not None and not data.lock_ref:
            self.leaves.refresh(data)
        for node in nodes:
            link = node.primary.host_link
            if link is not None and node.primary.host_value is not None:
                link.stored = True

    # -- host values that come and go ------------------------------------------------------

    def host_came(self, node: Node, data: ComponentData, link: HostLink) -> None:
        """Count the host value of `node`, whose parent has one; it hides its parent's."""
        assert data.host_value is not None
        parent = node.parent
        assert parent is not None
        if parent.parent is not None:
            above = link_of(parent.primary)
            above.children += 1
            self.leave_order(parent.primary, above)
        if data.host_lock_ref:
            self.host_protected += len(data.host_value)
        else:
            self.host_evictable += len(data.host_value)
            self.enter_order(data, link)

    def host_goes(self, node: Node, data: ComponentData, link: HostLink) -> None:
        """Count the host value of `node`, which leaves and is not protected, no more."""
        assert data.host_value is not None and not data.host_lock_ref and not link.children
        self.leave_order(data, link)
        self.host_evictable -= len(data.host_value)
        parent = node.parent
        assert parent is not None
        above = parent.primary.host_link
        if parent.parent is not None and above is not None:
            above.children -= 1
            self.enter_order(parent.primary, above)

    def enter_order(self, data: ComponentData, link: HostLink) -> None:
        """Put a record whose host value can go, if it can, in its set."""
        if data.host_value is not None and not data.host_lock_ref and not link.children:
            self.host_orders[host_set(data, link)].add(link)

    def leave_order(self, data: ComponentData, link: HostLink) -> None:
        """Take a record out of its set, where it is in one."""
        if link.order_key is not None:
            self.host_orders[host_set(data, link)].remove(link)

    def note_stored(self, nodes: Sequence[Node], stored: bool = True) -> None:
        """Note that the data of `nodes` is in storage, or no longer. O(log n) a node."""
        if self.host_allocator is None:
            return
        for node in nodes:
            data = node.primary
            link = link_of(data)
            if link.stored != stored:
                self.leave_order(data, link)
                link.stored = stored
                self.enter_order(data, link)
            tidy(data)

    def protect_host(self, node: Node) -> None:
        """Protect the host values from `node` to the root. O(newly protected nodes)."""
        at = node
        parent = node.parent
        while parent is not None:
            data = at.primary
            data.host_lock_ref += 1
            if data.host_lock_ref > 1:
                break
            at = parent
            parent = at.parent
        deepest = self.host_depth(node)
        moved = deepest.end - at.end
        if moved > 0:
            self.host_evictable -= moved
            self.host_protected += moved
            data = deepest.primary
            link = data.host_link
            assert link is not None
            self.leave_order(data, link)

    def unprotect_host(self, node: Node) -> None:
        """Undo :meth:`protect_host`. O(nodes no longer protected)."""
        at = node
        parent = node.parent
        while parent is not None:
            data = at.primary
            data.host_lock_ref -= 1
            if data.host_lock_ref:
                break
            at = parent
            parent = at.parent
        deepest = self.host_depth(node)
        moved = deepest.end - at.end
        if moved > 0:
            self.host_protected -= moved
            self.host_evictable += moved
            data = deepest.primary
            link = data.host_link
            assert link is not None
            self.enter_order(data, link)

    def host_depth(self, node: Node) -> Node:
        """Return `node`, or the first node above it that is on the host, or the root."""
        while node.primary.host_value is None and node.parent is not None:
            node = node.parent
        return node

    # -- evict ----------------------------------------------------------------------

    def drive_host_eviction(self, target: int, spare: tuple[Node, ...] = ()) -> list[Node]:
        """Return nodes, set by set in policy order, until they hold `target` host slots.

        A parent whose last child is chosen joins. What is locked on the device is passed over.
        Cost O(log n) for each victim, for each node passed over, and for each touch since the
        last time.
        """
        victims: list[Node] = []
        if target <= 0 or self.host_allocator is None:
            return victims
        key = self.policy.key
        spared = frozenset(spare)
        stale: list[tuple[int, HostLink]] = []
        chosen: dict[Node, int] = {}
        late: list[tuple[int, Any, int, Node]] = []
        coming = self._host_leaves()
        head = next(coming, None)
        got = 0
        while got < target and (head is not None or late):
            if head is not None and (not late or (head[0], head[1].order_key) <= late[0][:2]):
                turn, link = head
                head = next(coming, None)
                assert link.node is not None
                node = link.node
                present = key(node)
                if present != link.order_key:
                    stale.append((turn, link))
                    heapq.heappush(late, (turn, present, node.id, node))
                    continue
            else:
                node = heapq.heappop(late)[3]
            if node.primary.lock_ref or node in spared:
                continue
            victims.append(node)
            got += node.length
            parent = node.parent
            assert parent is not None
            if parent.parent is None:
                continue
            above = parent.primary
            hidden = above.host_link
            assert hidden is not None
            count = chosen[parent] = chosen.get(parent, 0) + 1
            if count == hidden.children and not above.host_lock_ref:
                turn = host_set(above, hidden)
                heapq.heappush(late, (turn, key(parent), parent.id, parent))
        for turn, link in stale:
            self.host_orders[turn].refresh(link)
        return victims

    def _host_leaves(self) -> Iterator[tuple[int, HostLink]]:
        for turn, order in enumerate(self.host_orders):
            for link in order:
                yield turn, link

    # -- split ----------------------------------------------------------------------

    def split_host(self, prefix: Node, suffix: Node) -> None:
        """Share what is known of `suffix` below the device: it keeps its pins and its place.

        Both are pinned for the same transfers, and the prefix is protected by the suffix as well.
        """
        above, below = self.cut_link(prefix, suffix)
        upper, lower = prefix.primary, suffix.primary
        upper.lock_ref += above.pins
        upper.host_lock_ref = (1 if lower.host_lock_ref else 0) + above.host_pins
        if lower.host_value is not None:
            above.children = 1
        tidy(upper)
        if below.order_key is not None:
            self.host_orders[host_set(lower, below)].refresh(below)


def host_set(data: ComponentData, link: HostLink) -> int:
    """Return in which of the three sets a record is, or would be."""
    if data.value is None:
        return HOST_ONLY
    return STORED_MIRRORS if link.stored else MIRRORS


__all__ = ("FullHost", "host_set")
