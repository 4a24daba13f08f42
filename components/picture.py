"""What ``picture()`` shows of a tree, for drawing: structure and residency, no token and no slot.

Lengths are in units of the tree; counts of slots are in slots of the pool that is meant. Nothing
here tells what a key says or whose it is: neither tokens nor salts nor extra keys get in.
"""

from __future__ import annotations

import msgspec


class NodePicture(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One node; encoded as the list of its fields in their order, as there are many.

    ``id``: its own for the life of the cache; a split leaves it with the part that ends deeper.
    ``parent``: id of the node above, 0 for the root. ``start``, ``end``: the units that it covers.
    ``children``: how many there are, shown or not. ``touch``: number of the last touch, to be
    compared with ``TreePicture.clock``. ``hits``: requests that used it.
    ``device``, ``host``: slots by component, in the order of ``TreePicture.components``; 0: none.
    ``locks``: by component, what protects the node on the device, 0: nothing. How that counts is
    the component's affair: of a path that is locked, it may be each node or the last one.
    ``pinned``: a pin covers it. ``stored``: it is in storage too.
    ``moves``: what is under way or waits: of "queued", "backup", "load", "store".
    """

    id: int
    parent: int
    start: int
    end: int
    children: int
    touch: int
    hits: int
    device: tuple[int, ...]
    host: tuple[int, ...]
    locks: tuple[int, ...]
    pinned: bool = False
    stored: bool = False
    moves: tuple[str, ...] = ()


class TreePicture(msgspec.Struct, frozen=True):
    """The most recently used part of a tree, as it is between two operations.

    ``nodes``: parents before their children; of each its parent is shown. ``nodes_total``: how many
    the tree has, the root not counted; ``branches``: how many of them lie below the root itself.
    ``clock``: the touches so far. ``moving``: units under way by kind of transfer; empty without
    tiers. ``pinned``: pinned units.
    """

    components: tuple[str, ...]
    page_size: int
    generation: int
    clock: int
    pinned: int
    nodes_total: int
    branches: int
    nodes: tuple[NodePicture, ...]
    moving: dict[str, int] = {}

    @property
    def left_out(self) -> int:
        """How many nodes are not shown: none of them was used later than any that is."""
        return self.nodes_total - len(self.nodes)
