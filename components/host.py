"""What a component is asked about the tier below the device: the host's memory.

These hooks belong to :class:`~radixtide.components.base.TreeComponent`; the rules of its module
hold. By default a component has no host tier, and then its data lives on the device alone: every
hook here does nothing. A component of somebody else's gets one by saying what a slot of its pool
takes (:meth:`HostHooks.bytes_per_slot`) and deriving from ``AuxiliaryComponent``, whose hooks
(see :mod:`.host_tier`) do the rest.

Lists of nodes have parents before their children, unless a hook says otherwise. A *job* is one
transfer; its number owns the slots that it fills, on either tier. When a node of a job is split,
the job has the prefix too, and each fragment is committed or given up by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from radixtide.components.api import Slots
from radixtide.components.outcomes import (
    NO_MOVES,
    LoadNeed,
    Moving,
    Shortage,
    Sizes,
)
from radixtide.configs.host import host_slots
from radixtide.configs.schema import CacheConfig
from radixtide.tiers.slots import EMPTY, SlotAllocator
from radixtide.tree.node import ComponentData, HostLink, Node

Digests = npt.NDArray[np.uint64]
"""One a page of the component's pool."""

Carriers = dict[int, Slots]
"""The first component's device slots, by node id."""

NO_SHORTAGE: Final = Shortage(0, Sizes(0, 0, 0, 0, 0))


class HostHooks:
    """The host side of a component's contract; by default there is no host tier."""

    config: CacheConfig
    name: str
    index: int
    allocator: SlotAllocator
    host_allocator: SlotAllocator | None = None
    """The books of the host pool; None: this component has no host tier."""
    host_evictable = 0
    """Host slots that may be evicted."""
    host_protected = 0
    """Host slots that transfers use, or that lie above such (what counts is the component's)."""
    device_arriving = 0
    """Device slots that a load is filling."""

    @property
    def host_arriving(self) -> int:
        """Host slots that a backup or a fetch is filling."""
        books = self.host_allocator
        return 0 if books is None else books.held

    def bytes_per_slot(self) -> int:
        """Return what a slot takes over all layers; 0: this component has no host tier."""
        return 0

    def make_host_allocator(self) -> SlotAllocator | None:
        """Return the books of the host pool, sized by ``[host]``; None where there is none."""
        config = self.config
        size = self.bytes_per_slot() if config.host is not None else 0
        if not size:
            return None
        page = self.allocator.page_size
        slots = host_slots(
            config, self.name, size, device_slots=self.allocator.size, page_size=page
        )
        return SlotAllocator(slots, page, f"{self.name} on the host") if slots else None

    def host_sizes(self) -> Sizes | None:
        """Return the sizes of the host pool, None where there is none. O(1)."""
        books = self.host_allocator
        if books is None:
            return None
        return Sizes(
            free=books.free,
            evictable=self.host_evictable,
            protected=self.host_protected,
            held=0,
            size=books.size,
            in_flight=books.held,
        )

    def host_slots_of(self, nodes: Sequence[Node]) -> list[tuple[Slots, Digests | None]]:
        """Return the host slots of each of `nodes`, int64, with digests where they are known."""
        found: list[tuple[Slots, Digests | None]] = []
        for node in nodes:
            data = node.component_data[self.index]
            link = data.host_link
            if data.host_value is None or link is None:
                found.append((EMPTY, None))
            else:
                found.append((data.host_value.astype(np.int64), link.digests))
        return found

    # -- backup ---------------------------------------------------------------------

    def backup_need(self, nodes: Sequence[Node]) -> int:
        """Return the host slots that backing up `nodes` takes. A plan.

        What has a host value, or one on its way, takes none.
        """
        return 0

    def begin_backup(self, nodes: Sequence[Node], job: int) -> Moving:
        """Take host slots for `nodes`, and protect their device values while they are read.

        Each node counts a pin, with a value or without, so that protection here implies the first
        component's. That one is given room enough; another takes what there is, in order.
        """
        return NO_MOVES

    def commit_backup(self, nodes: Sequence[Node], digests: Digests | None = None) -> None:
        """Make what has arrived the host values of `nodes`, and undo their pins.

        `digests`: those of the pages that arrived, in order.
        """
        return None

    def abort_backup(self, nodes: Sequence[Node]) -> None:
        """Give the host slots back, and undo the pins."""
        return None

    # -- load -----------------------------------------------------------------------

    def load_need(self, path: Sequence[Node], first: int) -> LoadNeed:
        """Return what must be loaded so that a match may end with `path`. A plan.

        `first`: how many nodes of the path are on the device. What is being loaded already is not
        among the nodes.
        """
        return LoadNeed([], 0)

    def pin_host(self, nodes: Sequence[Node]) -> None:
        """Protect the host values of `nodes` for one transfer."""
        return None

    def unpin_host(self, nodes: Sequence[Node]) -> None:
        """Undo one :meth:`pin_host` of each of `nodes`."""
        return None

    def finalize_host_match(self, path: Sequence[Node], first: int) -> int:
        """Note that a match found ``path[first:]`` on the host; return what it takes to load it.

        That is device slots of this component, those included that are on their way. What a load
        of `path` would use becomes the most recently used.
        """
        return 0

    def begin_load(
        self, nodes: Sequence[Node], job: int, carriers: Carriers | None = None
    ) -> Moving:
        """Take device slots for the host values of `nodes`; there are enough.

        The nodes are pinned on the host, and a lock keeps what is above them on the device.
        `carriers`: the first component's slots of all nodes that it loads in this job, None for
        itself.
        """
        return NO_MOVES

    def commit_load(self, nodes: Sequence[Node], job: int | None = None) -> None:
        """Make what `job` (None: any) loaded the device values of `nodes`. Pins on the host stay.

        Those of `nodes` for which it loads nothing of this component are passed over.
        """
        return None

    def abort_load(self, nodes: Sequence[Node], job: int | None = None) -> None:
        """Give the device slots back, as :meth:`commit_load` keeps them."""
        return None

    # -- fetch and store --------------------------------------------------------------

    def reserve_host(self, slots: int, job: int) -> Slots | Shortage:
        """Take host slots, whole pages, for a fetch; a Shortage has changed nothing."""
        return NO_SHORTAGE

    def release_host(self, slots: Slots) -> None:
        """Give back host slots of a fetch."""
        return None

    def commit_fetch(
        self, nodes: Sequence[Node], slots: Slots, digests: Digests | None = None
    ) -> None:
        """Make reserved `slots` the host values of `nodes`, new ones that are on the host only.

        In order; where there are fewer slots than for all, they are those of the last nodes.
        `digests`: one a page of `slots`.
        """
        return None

    def note_stored(self, nodes: Sequence[Node], stored: bool = True) -> None:
        """Note that the data of `nodes` is in storage, or no longer."""
        return None

    # -- evict ----------------------------------------------------------------------

    def drive_host_eviction(self, target: int, spare: tuple[Node, ...] = ()) -> list[Node]:
        """Return nodes whose host values free `target` host slots, or all there are. A plan.

        Children come before their parents. Those to spare are not among them.
        """
        return []

    def evict_host_nodes(self, nodes: Sequence[Node]) -> int:
        """Free the host values of `nodes`, children first; return how many slots."""
        return 0

    # -- by the names of the phases -----------------------------------------------------

    def build_hicache_transfers(
        self,
        nodes: Sequence[Node],
        phase: str,
        job: int,
        carriers: Carriers | None = None,
    ) -> Moving:
        """Begin the ``backup`` or the ``load`` of `nodes`: see the hooks of these phases."""
        if phase == "backup":
            return self.begin_backup(nodes, job)
        return self.begin_load(nodes, job, carriers)

    def commit_hicache_transfer(
        self, nodes: Sequence[Node], phase: str, digests: Digests | None = None
    ) -> None:
        """Commit the ``backup`` or the ``load`` of `nodes`."""
        if phase == "backup":
            self.commit_backup(nodes, digests)
        else:
            self.commit_load(nodes)


def link_of(data: ComponentData) -> HostLink:
    """Return the record's link for the host tier, made where there is none."""
    link = data.host_link
    if link is None:
        link = data.host_link = HostLink(data.node)
    return link


def tidy(data: ComponentData) -> None:
    """Forget the record's link where it says nothing more."""
    link = data.host_link
    if (
        link is not None
        and data.host_value is None
        and link.arriving is None
        and link.loading is None
        and not (link.pins or link.host_pins or link.children or link.stored)
        and not data.host_lock_ref
    ):
        data.host_link = None


def gathered(values: Sequence[Any]) -> Slots:
    """Return the slots of `values`, as nodes keep them, in one int64 array."""
    return np.concatenate(values, dtype=np.int64) if values else EMPTY


def described(data: ComponentData) -> str:
    """Return a few words on the host side of a record, with a comma in front, or nothing."""
    link = data.host_link
    if link is None:
        return ""
    words = ""
    if data.host_value is not None:
        words += f", {len(data.host_value)} on the host"
    if link.arriving is not None:
        words += f", {len(link.arriving)} being backed up"
    if link.loading is not None:
        words += f", {len(link.loading)} being loaded"
    if link.stored:
        words += ", stored"
    return words
