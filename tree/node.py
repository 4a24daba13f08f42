"""Nodes of the tree and the record that each component keeps on a node."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from radixtide.tree.lru import Link

NO_CHILDREN: Final[dict[bytes, Node]] = {}
"""Shared by all leaves, never written to: a leaf costs no dictionary."""

ON_DEVICE: Final = 1
ON_HOST: Final = 2
IN_STORAGE: Final = 4

QUEUED: Final = 1
BACKING: Final = 2
LOADING: Final = 4
STORING: Final = 8
FAILED: Final = 16

HASH_BYTES: Final = 32
"""Bytes of a page's chain hash."""


class HostLink(Link, eq=False):
    """What one component keeps of one node for the tiers below the device; made when first needed.

    It is itself the link of the component's list of the host tier, ``order_key`` its place there.
    ``arriving``: host slots that a copy is filling. ``loading``: device slots that a copy is
    filling. ``pins``: copies that read the value on the device, each counted in ``lock_ref`` too.
    ``host_pins``: copies that use the host slots, each counted in ``host_lock_ref`` too.
    ``digests``: one a page of the host value, taken when the page left the device.
    ``stored``: whether the node's data is in storage as well.
    ``children``: children whose value of this component is on the host.
    """

    order_key: Any = None
    arriving: npt.NDArray[np.int32] | None = None
    loading: npt.NDArray[np.int32] | None = None
    pins: int = 0
    host_pins: int = 0
    digests: npt.NDArray[np.uint64] | None = None
    stored: bool = False
    children: int = 0


class ComponentData(Link, eq=False):
    """What one component keeps on one node. Written by that component only.

    ``value``: device slots, or None (a tombstone). Kept as int32, which halves the memory of a node
    and what a match has to read; everywhere else slots are int64.
    ``lock_ref``: what protects the value on the device; how it counts is the component's affair.
    ``host_value``, ``host_lock_ref``: the same for the host tier.
    ``device_children``: children whose value of this component is on the device.
    ``order_key``: place in the component's eviction order, None while not in it.
    ``metadata``: whatever else the component needs, None until then.
    ``host_link``: what it needs for the tiers below the device, None until then.
    The record is itself the link of the component's device list.
    """

    value: npt.NDArray[np.int32] | None = None
    lock_ref: int = 0
    host_value: npt.NDArray[np.int32] | None = None
    host_lock_ref: int = 0
    device_children: int = 0
    order_key: Any = None
    metadata: dict[str, Any] | None = None
    host_link: HostLink | None = None


class Node(msgspec.Struct, eq=False):
    """A run of whole pages below its parent. Structure is written by the tree's owner only.

    A Struct, as everything here that is made often: instances are made in C.

    ``piece``: the node's part of the key as memory, with look-ahead (see :mod:`.key`).
    ``edge``: the node's name in its parent's table: the first page of its key, with the namespace
    in front below the root.
    ``end``: distance from the root to the node's end, in units; it never changes, since a split
    keeps the node's identity with the suffix.
    ``lineage``: the name under which evicted children are remembered (see :mod:`.ghosts`).
    ``high_water``: the greatest depth its branch ever had, where a policy asks for it.
    ``created``: order of creation; a split copies it.
    ``touch``: number of the last touch; with ``end`` it is the access time, ordered so that of one
    touch the deeper node is older.
    ``hits``: requests that used the node. ``priority``: the highest of those that stored it.
    ``primary``: ``component_data[0]``, the record of the component that carries the tree.
    ``pins``: own pins and pinned children.
    ``epoch``: raised when the node's device slots leave or change.
    ``tiers``: where the data of the component that carries the tree is: ON_DEVICE, ON_HOST,
    IN_STORAGE. ``job``: what is queued or under way: QUEUED (waits for its backup), BACKING,
    LOADING, STORING; FAILED: its last backup failed. ``hashes``: the chain hashes of its pages, 32
    bytes each; empty until needed.
    """

    # What every match reads and writes comes first, so that it lies together in memory.
    piece: bytes
    end: int
    children: dict[bytes, Node]
    parent: Node | None
    touch: int
    hits: int
    primary: ComponentData
    component_data: tuple[ComponentData, ...]
    id: int
    edge: bytes
    lineage: int
    high_water: int
    created: int
    priority: int = 0
    pins: int = 0
    epoch: int = 0
    tiers: int = ON_DEVICE
    job: int = 0
    hashes: bytes = b""

    @property
    def start(self) -> int:
        """Distance from the root to the node's beginning, in units."""
        return self.parent.end if self.parent is not None else 0

    @property
    def length(self) -> int:
        """Units in this node."""
        return self.end - self.start

    def __repr__(self) -> str:
        return f"Node({self.id}, [{self.start}, {self.end}), children={len(self.children)})"


NO_RECORD: Final = ComponentData()
"""What a node has in the moment of its making."""

for _kind in (Link, HostLink, ComponentData, Node):
    # Written at every touch and lock. A Struct's own way of setting a field is a general one; the
    # plain one of objects is what the interpreter has a short cut for (13 against 33 ns). What it
    # leaves out is to show a Struct to the garbage collector late, when it first gets a container:
    # these have one from their creation on.
    _kind.__setattr__ = object.__setattr__  # type: ignore[method-assign]  # see above
    _kind.__delattr__ = object.__delattr__  # type: ignore[method-assign]  # one slot serves both
