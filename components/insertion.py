"""One insert on its way: what the coordinator plans, and what the components make of it."""

from __future__ import annotations

from typing import Any

import msgspec

from radixtide.components.api import Ranges, Slots
from radixtide.components.request import Request
from radixtide.tiers.slots import ANONYMOUS
from radixtide.tree.node import Node
from radixtide.tree.radix_tree import Walk


class InsertCheck(msgspec.Struct, frozen=True, gc=False):
    """What a component found when it checked an insert.

    ``found``: for its own use when the insert is applied. ``cuts``: depths that must be borders of
    nodes by then. ``needs``: slots of its pool that it wants for the insert; it may not get them.
    """

    found: Any = None
    cuts: tuple[int, ...] = ()
    needs: int = 0


class InsertPart(msgspec.Struct, frozen=True, gc=False):
    """What a component did with the slots of an insert.

    ``adopted``, ``duplicate``: half-open ranges of units. ``indices``: the tree's slots over the
    inserted units from the walk's start, when asked for. ``kept``: duplicates not freed yet.
    ``freed``: slots freed. ``existed``: the target had this component's state already. ``swapped``:
    the slot that the request gave to the tree, and the one it has in its place (or None).
    """

    adopted: Ranges = ()
    duplicate: Ranges = ()
    indices: Slots | None = None
    kept: Slots | None = None
    freed: int = 0
    existed: bool = False
    swapped: tuple[int, int | None] | None = None


class Insertion(msgspec.Struct, gc=False):
    """An insert; the coordinator writes it, components read it.

    ``walk``: from the root, or from a node that the caller holds locked. ``value``: slots of the
    walk's units; None: those that ``holder`` holds. ``holder``: who holds them. ``prev``: depth
    below which the slots are the tree's own. ``counted``: depth below which this request's hits
    are counted already. ``priority``: raises that of the nodes on the way. ``running``: the request
    goes on: keep duplicates until its row is rewritten, and return the tree's slots for that.
    ``own_holder``: who holds what the request has of other pools, also where a scheduler holds the
    slots of its tokens itself. ``evicted``: by component, the depth below which the caller has
    given its slots back already.
    ``given``: by component, the slot of its own pool that comes with the insert. ``req``: the
    request, where it is one's.

    On the way: ``matched``: depth of what was there. ``device_matched``: depth up to which that is
    on the device; what lies between is on the host only, and the caller's slots bring it back;
    -1: as ``matched``. ``cut``: it ends early, before what is being loaded. ``ready``: what a
    backup of it has to wait for. ``node``: the deepest node. ``leaves``: the new nodes, shallow to
    deep; ``walk.path`` then has every other node, whole after splits.
    ``checked``, ``parts``: each component's answers, in order. ``granted``: the slots that each
    component got of those it needs.
    """

    walk: Walk
    value: Slots | None
    holder: int
    prev: int
    counted: int
    priority: int
    running: bool
    matched: int
    node: Node
    own_holder: int = ANONYMOUS
    evicted: dict[str, int] | None = None
    given: dict[str, int] | None = None
    req: Request | None = None
    leaves: tuple[Node, ...] = ()
    checked: list[InsertCheck] = []
    granted: list[Slots | None] | None = None
    parts: list[InsertPart] = []
    device_matched: int = -1
    cut: bool = False
    ready: Any = None

    @property
    def end(self) -> int:
        """Depth up to which the key is inserted."""
        return self.walk.base + self.walk.limit
