"""The host tier of a component that has slots on the nodes: what all such components share.

A transfer fills slots that belong to nobody's value yet: host slots in ``arriving``, device slots
in ``loading`` of the node's :class:`~radixtide.tree.node.HostLink`. In the pools' books the job
owns them. What a transfer reads can not go meanwhile, as its nodes are pinned. A node has a link
while there is anything to say in it, and whoever has a host value has a link.

How a value is protected, and in which order host values go, is left to the first component
(:mod:`.full_host`) and to the others (:mod:`.auxiliary_host`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from radixtide.components.api import EvictLayer, Slots, StoredSlots
from radixtide.components.base import TreeComponent
from radixtide.components.host import Carriers, Digests, described, gathered, link_of, tidy
from radixtide.components.outcomes import NO_MOVES, Moving, Shortage
from radixtide.configs.schema import CacheConfig
from radixtide.tree.node import ComponentData, HostLink, Node
from radixtide.tree.radix_tree import RadixTree


class HostTier(TreeComponent):
    """Base of the components that can have a host tier; it has none where the config has none.

    ``reserved``: host pages that fetches have taken and that are no node's yet.
    """

    def __init__(self, config: CacheConfig, tree: RadixTree, index: int) -> None:
        super().__init__(config, tree, index)
        self.reserved: set[int] = set()

    def reset(self) -> None:
        """Forget all nodes and free all slots."""
        super().reset()
        self.reserved = set()

    # -- what the two kinds of component do in their own way ----------------------------

    @abstractmethod
    def attach_value(self, node: Node, value: StoredSlots) -> None:
        """Give `node` a device value that is the tree's; where it is locked, protected."""

    def expected_size(self, node: Node) -> int | None:
        """Return how many slots a value of `node` has; None: any number. For audits."""
        return None

    @abstractmethod
    def pin_device(self, node: Node) -> None:
        """Count a pin of `node` among the locks of its device value."""

    @abstractmethod
    def unpin_device(self, node: Node) -> None:
        """Undo :meth:`pin_device`."""

    @abstractmethod
    def protect_host(self, node: Node) -> None:
        """Protect the host value of `node`, also one that comes later."""

    @abstractmethod
    def unprotect_host(self, node: Node) -> None:
        """Undo :meth:`protect_host`."""

    @abstractmethod
    def host_came(self, node: Node, data: ComponentData, link: HostLink) -> None:
        """Count the host value that `node` has now, and give it its place in the order."""

    @abstractmethod
    def host_goes(self, node: Node, data: ComponentData, link: HostLink) -> None:
        """Count the host value of `node`, which leaves, no more, and take it out of the order."""

    # -- backup ---------------------------------------------------------------------

    def wants_backup(self, data: ComponentData) -> bool:
        """Return whether the record has a device value, and no copy of it on the way."""
        if data.value is None or data.host_value is not None:
            return False
        link = data.host_link
        return link is None or link.arriving is None

    def backup_need(self, nodes: Sequence[Node]) -> int:
        """Return the host slots of all `nodes` that have no copy yet. O(nodes)."""
        if self.host_allocator is None:
            return 0
        index = self.index
        need = 0
        for node in nodes:
            data = node.component_data[index]
            if self.wants_backup(data):
                assert data.value is not None
                need += len(data.value)
        return need

    def begin_backup(self, nodes: Sequence[Node], job: int) -> Moving:
        """Take host slots, as many as there are, and pin all `nodes`. O(nodes + slots)."""
        books = self.host_allocator
        if books is None:
            return NO_MOVES
        index = self.index
        room = books.free
        total = 0
        chosen: list[tuple[HostLink, StoredSlots]] = []
        for node in nodes:
            data = node.component_data[index]
            link = link_of(data)
            link.pins += 1
            self.pin_device(node)
            value = data.value
            if value is not None and self.wants_backup(data) and total + len(value) <= room:
                total += len(value)
                chosen.append((link, value))
        if not chosen:
            return NO_MOVES
        host = books.take(books.whole_pages(total), job)
        begin = 0
        for link, value in chosen:
            end = begin + len(value)
            link.arriving = host[begin:end].astype(np.int32)
            begin = end
        return Moving(gathered([value for _, value in chosen]), host)

    def commit_backup(self, nodes: Sequence[Node], digests: Digests | None = None) -> None:
        """Make what has arrived the host values of `nodes`. O(nodes + slots)."""
        books = self.host_allocator
        if books is None:
            return
        index = self.index
        page = books.page_size
        begin = 0
        for node in nodes:
            data = node.component_data[index]
            link = data.host_link
            assert link is not None
            arrived = link.arriving
            if arrived is None:
                continue
            link.arriving = None
            data.host_value = arrived
            books.adopt(books.pages_of(arrived.astype(np.int64)))
            if digests is not None:
                end = begin + len(arrived) // page
                link.digests = digests[begin:end].copy()
                begin = end
            self.host_came(node, data, link)
        self._unpin_device(nodes)

    def abort_backup(self, nodes: Sequence[Node]) -> None:
        """Give the host slots of `nodes` back. O(nodes + slots)."""
        books = self.host_allocator
        if books is None:
            return
        index = self.index
        gone: list[StoredSlots] = []
        for node in nodes:
            link = node.component_data[index].host_link
            assert link is not None
            if link.arriving is not None:
                gone.append(link.arriving)
                link.arriving = None
        books.release(gathered(gone))
        self._unpin_device(nodes)

    def _unpin_device(self, nodes: Sequence[Node]) -> None:
        index = self.index
        for node in nodes:
            data = node.component_data[index]
            link = data.host_link
            assert link is not None
            link.pins -= 1
            self.unpin_device(node)
            tidy(data)

    # -- load -----------------------------------------------------------------------

    def pin_host(self, nodes: Sequence[Node]) -> None:
        """Protect the host values of `nodes`. O(nodes newly protected)."""
        if self.host_allocator is None:
            return
        for node in nodes:
            link_of(node.component_data[self.index]).host_pins += 1
            self.protect_host(node)

    def unpin_host(self, nodes: Sequence[Node]) -> None:
        """Undo one pin of each of `nodes`. O(nodes no longer protected)."""
        if self.host_allocator is None:
            return
        for node in nodes:
            data = node.component_data[self.index]
            link = data.host_link
            assert link is not None
            link.host_pins -= 1
            self.unprotect_host(node)
            tidy(data)

    def begin_load(
        self, nodes: Sequence[Node], job: int, carriers: Carriers | None = None
    ) -> Moving:
        """Take device slots for the host values of `nodes`. O(nodes + slots)."""
        index = self.index
        total = 0
        chosen: list[tuple[HostLink, StoredSlots]] = []
        digests: list[Digests] = []
        for node in nodes:
            data = node.component_data[index]
            link = data.host_link
            if data.value is None and data.host_value is not None:
                assert link is not None
                if link.loading is None:
                    chosen.append((link, data.host_value))
                    total += len(data.host_value)
                    if link.digests is not None:
                        digests.append(link.digests)
        if not chosen:
            return NO_MOVES
        books = self.allocator
        taken = books.take(books.whole_pages(total), job)
        begin = 0
        for link, source in chosen:
            end = begin + len(source)
            link.loading = taken[begin:end].astype(np.int32)
            begin = end
        self.device_arriving += total
        known = np.concatenate(digests) if len(digests) == len(chosen) else None
        return Moving(taken, gathered([source for _, source in chosen]), known)

    def commit_load(self, nodes: Sequence[Node], job: int | None = None) -> None:
        """Make what was loaded the device values of `nodes`. O(nodes + slots).

        Where an insert brought a value meanwhile, that one stays.
        """
        index = self.index
        books = self.allocator
        for node in nodes:
            data = node.component_data[index]
            link = data.host_link
            if link is None or not self.is_loaded_by(link, job):
                continue
            if data.value is not None:
                self.drop_loading([link])
                continue
            loaded = link.loading
            assert loaded is not None
            link.loading = None
            self.device_arriving -= len(loaded)
            books.adopt(books.pages_of(loaded.astype(np.int64)))
            self.attach_value(node, loaded)

    def abort_load(self, nodes: Sequence[Node], job: int | None = None) -> None:
        """Give the device slots of `nodes` back. O(nodes + slots)."""
        links = (node.component_data[self.index].host_link for node in nodes)
        self.drop_loading([one for one in links if one is not None and self.is_loaded_by(one, job)])

    def is_loaded_by(self, link: HostLink, job: int | None) -> bool:
        """Return whether `job` (None: any) fills the link's device slots."""
        loading = link.loading
        if loading is None or job is None:
            return loading is not None
        books = self.allocator
        return bool(books.owners()[loading.item(0) // books.page_size] == job)

    def drop_loading(self, links: Sequence[HostLink]) -> None:
        """Free the device slots that loads were filling."""
        self.allocator.release(self.take_loading(links))

    def take_loading(self, links: Sequence[HostLink]) -> Slots:
        """Return the device slots that loads were filling, in flight no more."""
        slots = gathered([link.loading for link in links])
        for link in links:
            link.loading = None
        self.device_arriving -= len(slots)
        return slots

    # -- fetch ------------------------------------------------------------------------

    def reserve_host(self, slots: int, job: int) -> Slots | Shortage:
        """Take host slots for a fetch, whole pages. O(slots)."""
        books = self.host_allocator
        if books is None:
            return super().reserve_host(slots, job)
        pages = books.whole_pages(slots)
        if pages * books.page_size > books.free:
            sizes = self.host_sizes()
            assert sizes is not None
            return Shortage(pages * books.page_size, sizes)
        taken = books.take(pages, job)
        self.reserved.update(books.pages_of(taken).tolist())
        return taken

    def release_host(self, slots: Slots) -> None:
        """Give back host slots of a fetch. O(slots)."""
        books = self.host_allocator
        if books is not None and len(slots):
            self.reserved.difference_update(books.pages_of(slots).tolist())
            books.release(slots)

    def commit_fetch(
        self, nodes: Sequence[Node], slots: Slots, digests: Digests | None = None
    ) -> None:
        """Make reserved `slots` the host values of the last of `nodes`. O(nodes + slots).

        Slots that do not make a node whole are given back.
        """
        books = self.host_allocator
        if books is None or not len(slots):
            return
        sizes: list[int] = []
        begin = len(slots)
        for node in reversed(nodes):
            size = self.fetched_size(node)
            if size > begin:
                break
            sizes.append(size)
            begin -= size
        self.release_host(slots[:begin])
        page = books.page_size
        for node, size in zip(nodes[len(nodes) - len(sizes) :], reversed(sizes), strict=True):
            if not size:
                continue
            end = begin + size
            pages = books.pages_of(slots[begin:end])
            self.reserved.difference_update(pages.tolist())
            books.adopt(pages)
            data = node.component_data[self.index]
            link = link_of(data)
            data.host_value = slots[begin:end].astype(np.int32)
            if digests is not None:
                link.digests = digests[begin // page : end // page].copy()
            self.host_came(node, data, link)
            begin = end

    def fetched_size(self, node: Node) -> int:
        """Return how many host slots `node` gets from a fetch that has enough."""
        return self.expected_size(node) or 0

    # -- evict ----------------------------------------------------------------------

    def evict_component(self, node: Node, target: EvictLayer) -> tuple[int, int]:
        """Free the data of `node` on the device, on the host, or on both."""
        device = 0 if target is EvictLayer.HOST else self.evict_nodes([node])
        host = 0 if target is EvictLayer.DEVICE else self.evict_host_nodes([node])
        return device, host

    def evict_host_nodes(self, nodes: Sequence[Node]) -> int:
        """Free the host values of `nodes`, children first. O(nodes + slots)."""
        books = self.host_allocator
        if books is None:
            return 0
        gone: list[StoredSlots] = []
        for node in nodes:
            data = node.component_data[self.index]
            value = data.host_value
            link = data.host_link
            if value is None or link is None:
                continue
            self.host_goes(node, data, link)
            data.host_value = None
            link.digests = None
            tidy(data)
            gone.append(value)
        slots = gathered(gone)
        books.release_tree(slots)
        return len(slots)

    # -- split ----------------------------------------------------------------------

    def share_link(self, prefix: Node, suffix: Node) -> tuple[HostLink, HostLink]:
        """Give `prefix` the pins of `suffix`, which has a link; return both links.

        Locks, and everything that has slots, are left to the caller.
        """
        below = suffix.component_data[self.index].host_link
        assert below is not None
        above = link_of(prefix.component_data[self.index])
        above.pins = below.pins
        above.host_pins = below.host_pins
        above.stored = below.stored
        return above, below

    def cut_link(self, prefix: Node, suffix: Node) -> tuple[HostLink, HostLink]:
        """As :meth:`share_link`, and cut in two what has a slot for each unit. O(slots)."""
        above, below = self.share_link(prefix, suffix)
        upper = prefix.component_data[self.index]
        lower = suffix.component_data[self.index]
        # From their ends: the prefix may have been cut again by a split that comes after this one.
        units = suffix.length
        upper.host_value, lower.host_value = _cut(lower.host_value, units)
        above.arriving, below.arriving = _cut(below.arriving, units)
        above.loading, below.loading = _cut(below.loading, units)
        digests = below.digests
        if digests is not None:
            at = len(digests) - units // self.page_size
            above.digests, below.digests = digests[:at].copy(), digests[at:].copy()
        return above, below

    # -- for people -------------------------------------------------------------------

    def describe(self, node: Node) -> str:
        """Return a few words on this component's data on `node`."""
        return super().describe(node) + described(node.component_data[self.index])


def _cut(slots: StoredSlots | None, last: int) -> tuple[StoredSlots | None, StoredSlots | None]:
    """Return all but the `last` slots, and these, each in an array of its own."""
    if slots is None:
        return None, None
    at = len(slots) - last
    return slots[:at].copy(), slots[at:].copy()
