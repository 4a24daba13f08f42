"""The cascade: what goes when a component evicts, as one serialised edit over messages.

A component proposes victims among its nodes. A victim that is an evictable leaf of the carrier is
deleted whole; any other becomes a tombstone of the component, and of those that rank no higher.
What an independent component evicts takes nothing along.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from radixtide.actors.cell import Cell
from radixtide.actors.messages import EvictNodes, Judge, Propose
from radixtide.actors.op_backup import chain_above, start_backup
from radixtide.actors.state import State
from radixtide.actors.tier_state import TierState
from radixtide.tree.node import FAILED, IN_STORAGE, ON_DEVICE, ON_HOST, Node

Freed = dict[str, int]
"""Slots freed, by component."""


class MustWait(Exception):
    """What is to be evicted is backed up first: try again when that is done.

    ``freed``: what was evicted by then.
    """

    def __init__(self, freed: Freed) -> None:
        super().__init__()
        self.freed = freed


def evict_one(
    state: State, cell: Cell, target: int, spare: tuple[Node, ...] = (), may_wait: bool = False
) -> Generator[Any, Any, Freed]:
    """Evict for one component until `target` of its slots are free, or nothing is left.

    `may_wait`: raise MustWait, with backups begun, where the policy is to back up what is evicted;
    else that is lost.
    """
    victims = yield cell, Propose(target, spare)
    if not victims:
        return {}
    tiers = state.tiers
    if may_wait and tiers is not None and tiers.write_back:
        return (yield from _evict_or_wait(state, tiers, cell, victims))
    return (yield from cascade(state, cell, victims))


def _evict_or_wait(
    state: State, tiers: TierState, cell: Cell, victims: list[Node]
) -> Generator[Any, Any, Freed]:
    """Evict the victims with a copy on the host; have the others backed up, and raise MustWait.

    It carries what was evicted. What finds no room on the host is evicted without a copy.
    """
    missing = [
        node
        for node in victims
        if (not node.tiers & ON_HOST or node in tiers.again) and not node.job & FAILED
    ]
    if not missing:
        return (yield from cascade(state, cell, victims))
    # Those above one that has to stay for its copy must stay as well.
    stays: set[Node] = set()
    for node in missing:
        at: Node | None = node
        while at is not None and at not in stays:
            stays.add(at)
            at = at.parent
    freed: Freed = {}
    if ready := [node for node in victims if node not in stays]:
        freed = yield from cascade(state, cell, ready)
    nodes: dict[Node, None] = {}
    for node in missing:
        nodes.update(dict.fromkeys(chain_above(node) or (node,)))
    if (yield from start_backup(state, sorted(nodes, key=lambda one: one.end))):
        raise MustWait(freed)
    more = yield from cascade(state, cell, [node for node in victims if node in stays])
    return {name: freed.get(name, 0) + slots for name, slots in more.items()}


def cascade(state: State, cell: Cell, victims: list[Node]) -> Generator[Any, Any, Freed]:
    """Take `victims` of `cell` out of every component that goes along, and leaves off the device.

    Children come before their parents where both are leaves in the end. A leaf with a copy on the
    host stays in the tree for that one.
    """
    leaves = victims
    tiers = state.tiers
    calls: list[tuple[Cell, EvictNodes]]
    trait = state.traits[state.cells.index(cell)]
    if cell is state.carrier:
        calls = state.all(EvictNodes(victims))
    elif trait.independent:
        leaves = []
        calls = [(cell, EvictNodes(victims))]
    else:
        flags = yield state.carrier, Judge(victims)
        leaves = [node for node, leaf in zip(victims, flags, strict=True) if leaf]
        calls = []
        along = state.goes_along(cell)
        for other in state.cells:
            nodes = victims if other in along else leaves
            if nodes:
                calls.append((other, EvictNodes(nodes)))
    if tiers is not None:
        tiers.fence(victims)
    parts = yield calls
    freed = {other.name: part for (other, _), part in zip(calls, parts, strict=True)}
    tree = state.tree
    remember = state.ghosts.remember
    if tiers is None:
        for node in leaves:
            remember(node)
            tree.remove(node)
    else:
        for node in leaves:
            if node.tiers & ON_HOST:
                node.tiers &= ~ON_DEVICE
                node.epoch += 1
                tiers.counters.demoted_nodes += 1
            else:
                remember(node, bool(node.tiers & IN_STORAGE))
                tree.remove(node)
                tiers.forget_node(node)
                tiers.counters.dropped_unbacked += 1
    counters = state.counters
    counters.evicted_nodes += len(leaves)
    counters.evicted_units += freed.get(state.carrier.name, 0)
    return freed
