"""The host tier of the components that ride on the first one's nodes.

A host value is kept only where the first component has one. Two lists hold exactly the nodes with a
host value, the least recently used first: those that have a device value too, and those that have
not. The former go first, as nothing is lost with them. A node is protected on the host by its own
pins alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from radixtide.components.api import StoredSlots
from radixtide.components.host import tidy
from radixtide.components.host_tier import HostTier
from radixtide.components.outcomes import LoadNeed
from radixtide.configs.schema import CacheConfig
from radixtide.tree.lru import LruList
from radixtide.tree.node import ComponentData, HostLink, Node
from radixtide.tree.radix_tree import RadixTree


class AuxiliaryHost(HostTier):
    """The part of an auxiliary component below the device.

    ``host_mirrors``, ``host_only``: the two lists.
    """

    def __init__(self, config: CacheConfig, tree: RadixTree, index: int) -> None:
        super().__init__(config, tree, index)
        self.recency: LruList[ComponentData] = LruList()
        self.host_mirrors: LruList[HostLink] = LruList()
        self.host_only: LruList[HostLink] = LruList()

    def reset(self) -> None:
        """Forget all nodes and free all slots."""
        super().reset()
        self.recency = LruList()
        self.host_mirrors = LruList()
        self.host_only = LruList()

    # -- device values that come and go --------------------------------------------------

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
        link = data.host_link
        if link is not None and link.newer is not None:
            self.host_only.remove(link)
            self.host_mirrors.append(link)

    def detach(self, node: Node) -> StoredSlots | None:
        """Make `node` a tombstone on the device; return the value it had."""
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
        link = data.host_link
        if link is not None and link.newer is not None:
            self.host_mirrors.remove(link)
            self.host_only.append(link)
        return value

    def attach_value(self, node: Node, value: StoredSlots) -> None:
        """As :meth:`attach`."""
        self.attach(node, value)

    def pin_device(self, node: Node) -> None:
        """Cover `node` alone, with a value or without."""
        data = node.component_data[self.index]
        data.lock_ref += 1
        if data.lock_ref == 1 and data.value is not None:
            self.evictable -= len(data.value)
            self.protected += len(data.value)

    def unpin_device(self, node: Node) -> None:
        """Undo :meth:`pin_device`."""
        data = node.component_data[self.index]
        data.lock_ref -= 1
        if not data.lock_ref and data.value is not None:
            self.evictable += len(data.value)
            self.protected -= len(data.value)

    # -- load -----------------------------------------------------------------------

    def load_need(self, path: Sequence[Node], first: int) -> LoadNeed:
        """Return what a match that ends with `path` lacks: its last node, or what is in reach.

        O(nodes in reach).
        """
        nodes: list[Node] = []
        slots = 0
        shared = False
        for node in reversed(self.lacking(path)):
            data = node.component_data[self.index]
            assert data.host_value is not None and data.host_link is not None
            if data.host_link.loading is not None:
                shared = True
                continue
            nodes.append(node)
            slots += len(data.host_value)
        return LoadNeed(nodes, slots, shared)

    def finalize_host_match(self, path: Sequence[Node], first: int) -> int:
        """Make what a load of `path` would use the most recently used, the deepest most of all.

        Returns its slots. O(nodes in reach).
        """
        slots = 0
        for node in reversed(self.lacking(path)):
            data = node.component_data[self.index]
            assert data.host_value is not None and data.host_link is not None
            slots += len(data.host_value)
            self.host_only.promote(data.host_link)
        return slots

    def lacking(self, path: Sequence[Node]) -> list[Node]:
        """Return what a match that ends with `path` needs of the host, the deepest first."""
        index = self.index
        low = path[-1].end - (1 if self.reach is None else self.reach) if path else 0
        nodes: list[Node] = []
        for node in reversed(path):
            if node.end <= low:
                break
            data = node.component_data[index]
            if data.value is None and data.host_value is not None:
                nodes.append(node)
        return nodes

    # -- host values that come and go ------------------------------------------------------

    def host_list(self, data: ComponentData) -> LruList[HostLink]:
        """Return the list that a record with a host value is in."""
        return self.host_only if data.value is None else self.host_mirrors

    def host_came(self, node: Node, data: ComponentData, link: HostLink) -> None:
        """Count the host value of `node`, and make it the most recently used one."""
        assert data.host_value is not None
        if data.host_lock_ref:
            self.host_protected += len(data.host_value)
        else:
            self.host_evictable += len(data.host_value)
        self.host_list(data).append(link)

    def host_goes(self, node: Node, data: ComponentData, link: HostLink) -> None:
        """Count the host value of `node`, which leaves, no more."""
        assert data.host_value is not None
        if data.host_lock_ref:
            self.host_protected -= len(data.host_value)
        else:
            self.host_evictable -= len(data.host_value)
        self.host_list(data).remove(link)

    def protect_host(self, node: Node) -> None:
        """Protect the host value of `node`."""
        data = node.component_data[self.index]
        data.host_lock_ref += 1
        if data.host_lock_ref == 1 and data.host_value is not None:
            self.host_evictable -= len(data.host_value)
            self.host_protected += len(data.host_value)

    def unprotect_host(self, node: Node) -> None:
        """Undo :meth:`protect_host`."""
        data = node.component_data[self.index]
        data.host_lock_ref -= 1
        if not data.host_lock_ref and data.host_value is not None:
            self.host_evictable += len(data.host_value)
            self.host_protected -= len(data.host_value)

    # -- evict ----------------------------------------------------------------------

    def drive_host_eviction(self, target: int, spare: tuple[Node, ...] = ()) -> list[Node]:
        """Return the least recently used unpinned nodes that hold `target` host slots.

        Those that have a device value too go first. Cost O(victims + pinned nodes passed over).
        """
        victims: list[Node] = []
        if target <= 0 or self.host_allocator is None:
            return victims
        index = self.index
        spared = frozenset(spare)
        got = 0
        for link in chain(self.host_mirrors, self.host_only):
            node = link.node
            assert node is not None
            data = node.component_data[index]
            if data.host_lock_ref or node in spared:
                continue
            assert data.host_value is not None
            victims.append(node)
            got += len(data.host_value)
            if got >= target:
                break
        return victims

    def lru_lengths(self) -> tuple[int | None, int | None]:
        """Return how many nodes have a value on the device, and how many on the host."""
        return len(self.recency), len(self.host_mirrors) + len(self.host_only)

    # -- split ----------------------------------------------------------------------

    def share_pins(self, prefix: Node, suffix: Node) -> None:
        """Let the prefix of a split be pinned as `suffix` is, which keeps all that has slots."""
        above, _ = self.share_link(prefix, suffix)
        self._count_pins(prefix, above)

    def split_host(self, prefix: Node, suffix: Node) -> None:
        """Cut what is known of `suffix` below the device in two: a slot for each unit.

        Both are pinned for the same transfers, and their host values are as recent.
        """
        above, below = self.cut_link(prefix, suffix)
        data = prefix.component_data[self.index]
        if data.host_value is not None:
            self.host_list(data).insert_before(above, below)
        self._count_pins(prefix, above)

    def _count_pins(self, prefix: Node, link: HostLink) -> None:
        data = prefix.component_data[self.index]
        data.host_lock_ref = link.host_pins
        if self.reach is None:
            # A lock covers one node, so that the prefix has none but these.
            data.lock_ref += link.pins
        tidy(data)
