"""What a component answers: plain data for the coordinator and for other components."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from radixtide.components.api import MissReason, Slots, StoredSlots
from radixtide.tiers.holdings import Holding


class Sizes(msgspec.Struct, frozen=True):
    """What a pool's slots are used for, in slots: the parts add up to ``size``."""

    free: int
    evictable: int
    protected: int
    held: int
    size: int


class Shortage(msgspec.Struct, frozen=True):
    """Why slots can not be taken: ``wanted`` slots in whole pages, and what the pool has."""

    wanted: int
    sizes: Sizes


class Reserved(msgspec.Struct, frozen=True):
    """Slots taken for a holder. ``position``: how many slots the holder used before."""

    slots: Slots
    position: int


class Census(msgspec.Struct, frozen=True):
    """Whose slots of a pool are: ``owners`` by page, slots by node id, holdings (copies)."""

    owners: npt.NDArray[np.int32]
    nodes: dict[int, StoredSlots]
    holders: dict[int, Holding]


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
