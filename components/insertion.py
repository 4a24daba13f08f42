"""One insert on its way: what the coordinator plans, and what the components make of it."""

from __future__ import annotations

from typing import Any

import msgspec

from radixtide.components.api import Slots
from radixtide.tree.node import Node
from radixtide.tree.radix_tree import Walk


class InsertPart(msgspec.Struct, frozen=True, gc=False):
    """What a component did with the slots of an insert.

    ``adopted``, ``duplicate``: half-open ranges of units. ``indices``: the tree's slots over the
    inserted units from the walk's start, when asked for. ``kept``: duplicates not freed yet.
    ``freed``: slots freed. ``existed``: the target had this component's state already.
    """

    adopted: tuple[tuple[int, int], ...] = ()
    duplicate: tuple[tuple[int, int], ...] = ()
    indices: Slots | None = None
    kept: Slots | None = None
    freed: int = 0
    existed: bool = False


class Insertion(msgspec.Struct, gc=False):
    """An insert; the coordinator writes it, components read it.

    ``walk``: from the root, or from a node that the caller holds locked. ``value``: slots of the
    walk's units; None: those that ``holder`` holds. ``holder``: who holds them. ``prev``: depth
    below which the slots are the tree's own. ``counted``: depth below which this request's hits
    are counted already. ``priority``: raises that of the nodes on the way. ``running``: the request
    goes on: keep duplicates until its row is rewritten, and return the tree's slots for that.

    On the way: ``matched``: depth of what was there. ``node``: the deepest node. ``leaf``: the new
    node, None where all units exist; ``walk.path`` then has every other node, whole after splits.
    ``checked``: each component's answer to the check, in order. ``parts``: what each did.
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
    leaf: Node | None = None
    checked: list[Any] = []
    parts: list[InsertPart] = []

    @property
    def end(self) -> int:
        """Depth up to which the key is inserted."""
        return self.walk.base + self.walk.limit
