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
from radixtide.actors.state import State
from radixtide.tree.node import Node

Freed = dict[str, int]
"""Slots freed, by component."""


def evict_one(
    state: State, cell: Cell, target: int, spare: tuple[Node, ...] = ()
) -> Generator[Any, Any, Freed]:
    """Evict for one component until `target` of its slots are free, or nothing is left."""
    victims = yield cell, Propose(target, spare)
    if not victims:
        return {}
    freed = yield from cascade(state, cell, victims)
    return freed


def cascade(state: State, cell: Cell, victims: list[Node]) -> Generator[Any, Any, Freed]:
    """Take `victims` of `cell` out of every component that goes along, and leaves out of the tree.

    Children come before their parents where both are leaves in the end.
    """
    leaves = victims
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
        for other, theirs in zip(state.cells, state.traits, strict=True):
            goes_along = other is cell or (
                other is not state.carrier
                and not theirs.independent
                and theirs.priority <= trait.priority
            )
            nodes = victims if goes_along else leaves
            if nodes:
                calls.append((other, EvictNodes(nodes)))
    parts = yield calls
    freed = {other.name: part for (other, _), part in zip(calls, parts, strict=True)}
    tree = state.tree
    remember = state.ghosts.remember
    for node in leaves:
        remember(node)
        tree.remove(node)
    counters = state.counters
    counters.evicted_nodes += len(leaves)
    counters.evicted_units += freed.get(state.carrier.name, 0)
    return freed
