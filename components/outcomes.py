"""What a component answers: plain data for the coordinator and for other components."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from radixtide.components.api import MissReason, Slots, StoredSlots
from radixtide.tiers.holdings import Holding
from radixtide.tiers.slots import EMPTY
from radixtide.tree.node import Node


class Sizes(msgspec.Struct, frozen=True):
    """What a pool's slots are used for, in slots: the parts add up to ``size``.

    ``in_flight``: slots that a transfer fills and that are no node's yet.
    """

    free: int
    evictable: int
    protected: int
    held: int
    size: int
    in_flight: int = 0


NO_SIZES: Final = Sizes(0, 0, 0, 0, 0)


class Shortage(msgspec.Struct, frozen=True):
    """Why slots can not be taken: ``wanted`` slots in whole pages, and what the pool has."""

    wanted: int
    sizes: Sizes


class Reserved(msgspec.Struct, frozen=True):
    """Slots taken for a holder. ``position``: how many slots the holder used before."""

    slots: Slots
    position: int


class Moving(msgspec.Struct, frozen=True):
    """Slots that a transfer connects: each of ``device`` with the one of ``host`` at its place.

    int64, whole pages, in the order of the nodes that are moved. ``digests``: what a load must
    bring, one a page in that order; None: not known for all.
    """

    device: Slots
    host: Slots
    digests: npt.NDArray[np.uint64] | None = None


NO_MOVES: Final = Moving(EMPTY, EMPTY)


class LoadNeed(msgspec.Struct, frozen=True):
    """What has to come from the host so that a match may end at a node.

    ``nodes``: whose host value has to be loaded, parents first. ``slots``: device slots that this
    takes. ``shared``: a load that is under way brings others of them.
    """

    nodes: list[Node]
    slots: int
    shared: bool = False


class Census(msgspec.Struct, frozen=True):
    """Whose slots of a pool are: ``owners`` by page, slots by node id, holdings (copies).

    ``host_nodes``: host slots by node id. ``loading``: device slots that are being filled, by the
    id of the node that gets them.
    """

    owners: npt.NDArray[np.int32]
    nodes: dict[int, StoredSlots]
    holders: dict[int, Holding]
    host_nodes: dict[int, StoredSlots] = {}
    loading: dict[int, StoredSlots] = {}


class Traits(msgspec.Struct, frozen=True):
    """What the coordinator knows of a component: its fixed properties. See TreeComponent.

    ``priority``: rank in cascades on a node inside the tree. ``branching``: its method.
    """

    name: str
    votes: bool
    independent: bool
    reach: int | None
    miss_reason: MissReason
    prepares: bool
    private: bool
    priority: int
    branching: Callable[[int, int], int | None]


RELEASED: Final = "released"
"""The record of a component whose part of a lock was given up early."""


JobPins = dict[int, tuple[int, int]]
"""By node id: how many transfers read its device value, and how many use its host slots."""
