"""Nodes of the tree and the record that each component keeps on a node."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from radixtide.tree.lru import Link

NO_CHILDREN: Final[dict[bytes, Node]] = {}
"""Shared by all leaves, never written to: a leaf costs no dictionary."""


class ComponentData(Link):
    """What one component keeps on one node. Written by that component only.

    ``value``: device slots, int64, or None (a tombstone).
    ``lock_ref``: what protects the value on the device; how it counts is the component's affair.
    ``host_value``, ``host_lock_ref``: the same for the host tier.
    ``device_children``: children whose value of this component is on the device.
    ``order_key``: place in the component's eviction order, None while not in it.
    ``metadata``: whatever else the component needs, None until then.
    The record is itself the link of the component's device list.
    """

    __slots__ = (
        "device_children",
        "host_lock_ref",
        "host_value",
        "lock_ref",
        "metadata",
        "order_key",
        "value",
    )

    value: npt.NDArray[np.int64] | None
    host_value: npt.NDArray[np.int64] | None
    metadata: dict[str, Any] | None
    order_key: Any

    def __init__(self, node: Node) -> None:
        self.newer = None
        self.older = None
        self.node = node
        self.value = None
        self.lock_ref = 0
        self.host_value = None
        self.host_lock_ref = 0
        self.device_children = 0
        self.order_key = None
        self.metadata = None


class Node:
    """A run of whole pages below its parent. Structure is written by the tree's owner only.

    ``piece``: the node's part of the key as memory, with look-ahead (see :mod:`.key`).
    ``edge``: the node's name in its parent's table: the first page of its key, with the namespace
    in front below the root.
    ``end``: distance from the root to the node's end, in units; it never changes, since a split
    keeps the node's identity with the suffix.
    ``touch``: number of the last touch; with ``end`` it is the access time, ordered so that of one
    touch the deeper node is older.
    ``epoch``: raised when the node's device slots leave or change.
    ``lineage``: the name under which evicted children are remembered (see :mod:`.ghosts`).
    ``pins``: own pins and pinned children.
    """

    __slots__ = (
        "children",
        "component_data",
        "created",
        "edge",
        "end",
        "epoch",
        "high_water",
        "hits",
        "id",
        "lineage",
        "parent",
        "piece",
        "pins",
        "priority",
        "touch",
    )

    parent: Node | None
    children: dict[bytes, Node]
    component_data: tuple[ComponentData, ...]

    def __init__(
        self,
        node_id: int,
        parent: Node | None,
        piece: bytes,
        edge: bytes,
        end: int,
        components: int,
    ) -> None:
        self.id = node_id
        self.parent = parent
        self.children = NO_CHILDREN
        self.piece = piece
        self.edge = edge
        self.end = end
        self.touch = 0
        self.created = 0
        self.hits = 0
        self.priority = 0
        self.epoch = 0
        self.lineage = node_id
        self.pins = 0
        self.high_water = end
        if components == 1:
            self.component_data = (ComponentData(self),)
        else:
            self.component_data = tuple(ComponentData(self) for _ in range(components))

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
