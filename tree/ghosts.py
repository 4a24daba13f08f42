"""Ghosts: a bounded memory of what was evicted, so that a miss can say why.

A ghost is named by the *lineage* of the parent and the first page of the evicted node. A node that
comes back to a ghost's place with the ghost's whole key takes over its lineage; so the ghosts of
its former children are found again under it. Memory: one small record an evicted node, at most
``capacity``; cost O(page) a lookup and O(key) at memory speed an eviction.
"""

from __future__ import annotations

from collections import OrderedDict

from xxhash import xxh3_64_intdigest

from radixtide.tree.node import Node


class GhostList:
    """The last `capacity` evicted nodes, oldest forgotten first; 0 remembers none.

    ``known``: the ghosts; false while there are none.
    """

    __slots__ = ("_capacity", "known")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Names and keys are hashes: a collision could only misname the reason of a miss.
        self.known: OrderedDict[int, tuple[int, int, bool]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.known)

    def remember(self, node: Node, stored: bool = False) -> None:
        """Note that `node`, still linked to its parent, is evicted; and whether it is stored."""
        if not self._capacity or node.parent is None:
            return
        name = hash((node.parent.lineage, node.edge))
        self.known[name] = (node.lineage, xxh3_64_intdigest(node.piece), stored)
        if len(self.known) > self._capacity:
            self.known.popitem(last=False)

    def knows(self, parent: Node, edge: bytes) -> bool:
        """Return whether a child of `parent` that began with `edge` was evicted."""
        return hash((parent.lineage, edge)) in self.known

    def is_stored(self, parent: Node, edge: bytes) -> bool:
        """Return whether an evicted child of `parent` that began with `edge` is in storage."""
        ghost = self.known.get(hash((parent.lineage, edge)))
        return ghost is not None and ghost[2]

    def revive(self, node: Node) -> None:
        """Let `node`, new below its parent, take over the lineage of the ghost in its place."""
        if not self.known or node.parent is None:
            return
        ghost = self.known.pop(hash((node.parent.lineage, node.edge)), None)
        if ghost is not None and ghost[1] == xxh3_64_intdigest(node.piece):
            node.lineage = ghost[0]

    def clear(self) -> None:
        """Forget all."""
        self.known.clear()
