"""What stands in for a component that crashed too often and that the others can do without.

It answers every message as a component would that has nothing and wants nothing, whatever state the
real one was left in. The pool is not touched any more, so that a request that reads from it goes on
undisturbed. It stays so until a new cache is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from radixtide.actors import messages as to
from radixtide.actors import tier_messages as tier
from radixtide.actors.actor import Handler
from radixtide.components.api import Slots
from radixtide.components.base import NOTHING_FOUND, TreeComponent
from radixtide.components.insertion import InsertPart
from radixtide.components.outcomes import NO_MOVES, NO_SIZES, LoadNeed, Reserved, Shortage
from radixtide.tiers.slots import EMPTY
from radixtide.tree.node import ComponentData


class SetAside:
    """Handlers for every message that a component gets; all O(what is named)."""

    def __init__(self, component: TreeComponent) -> None:
        self.name = component.name
        # Nothing is cached of this component any more. O(N), once.
        for node in component.tree:
            _clear(component.data(node))

    def handlers(self) -> Mapping[type, Handler]:
        """Return the handler of each message."""
        nothing: tuple[type, ...] = (
            to.Lock,
            to.LockSplit,
            to.CheckRelease,
            to.Release,
            to.CarrierReleased,
            to.Grant,
            to.Ungrant,
            to.Clear,
            tier.EndBackup,
            tier.PinHost,
            tier.UnpinHost,
            tier.EndLoad,
            tier.NoteStored,
            tier.ReleaseHost,
            tier.CommitFetch,
            tier.HostSizes,
        )
        no_slots: tuple[type, ...] = (
            to.Unlock,
            to.LetGo,
            to.EvictNodes,
            to.ReleasePaired,
            tier.UseHost,
            tier.EvictHost,
        )
        no_nodes: tuple[type, ...] = (
            to.Propose,
            to.Audit,
            to.AuditAgainst,
            to.Rebuild,
            tier.ProposeHost,
        )
        no_moves: tuple[type, ...] = (tier.BeginBackup, tier.BeginLoad)
        return {
            **dict.fromkeys(nothing, lambda _: None),
            **dict.fromkeys(no_slots, lambda _: 0),
            **dict.fromkeys(no_nodes, lambda _: []),
            **dict.fromkeys(no_moves, lambda _: NO_MOVES),
            to.Validate: _all_steps,
            to.CommitMatch: lambda _: (None, None),
            to.CheckInsert: lambda _: NOTHING_FOUND,
            to.CommitInsert: lambda _: InsertPart(),
            to.Settle: lambda _: (None, 0),
            to.Reserve: lambda m: Shortage(m.slots, NO_SIZES),
            to.Unreserve: lambda _: True,
            to.ReservePrivate: lambda _: Reserved(EMPTY, 0),
            to.Quote: self._quote,
            to.Prepare: lambda m: m.length,
            to.PathSlots: lambda _: EMPTY.copy(),
            to.PairedSlots: _no_pairs,
            to.GetSizes: lambda _: NO_SIZES,
            to.Describe: self._describe,
            tier.ValidateTiers: lambda m: (_all_steps(m), _all_steps(m)),
            tier.BackupNeed: lambda _: (0, 0),
            tier.LoadNeeds: lambda _: LoadNeed([], 0),
            tier.ReserveHost: lambda _: EMPTY.copy(),
            tier.HostSlots: lambda m: [(EMPTY, None) for _ in m.nodes],
        }

    def _quote(self, m: to.Quote) -> Shortage | None:
        wanted = m.wanted.get(self.name, 0)
        return Shortage(wanted, NO_SIZES) if wanted else None

    def _describe(self, m: to.Describe) -> dict[int, str]:
        return {node.id: f"{self.name}: set aside" for node in m.nodes}


def _clear(data: ComponentData) -> None:
    data.value = None
    data.lock_ref = 0
    data.host_value = None
    data.host_lock_ref = 0
    data.device_children = 0
    data.order_key = None
    data.metadata = None
    data.host_link = None


def _all_steps(m: Any) -> Sequence[int]:
    return range(1, len(m.path) + (m.inside is not None) + 1)


def _no_pairs(m: to.PairedSlots) -> Slots:
    return np.full(len(m.slots), -1, dtype=np.int64)
