"""The audit of what the coordinator owns: structure, times, receipts, ledger, pins."""

from __future__ import annotations

from collections.abc import Iterator

from radixtide.actors.state import State
from radixtide.components.api import Violation
from radixtide.components.outcomes import Traits
from radixtide.tree.key import TOKEN_BYTES
from radixtide.tree.node import Node
from radixtide.tree.radix_tree import RadixTree


def audit_structure(state: State) -> Iterator[Violation]:
    """Yield all that is wrong with the tree's structure and the coordinator's books. O(N)."""
    yield from _audit_nodes(state)
    yield from _audit_receipts(state)
    yield from _audit_pins(state)


def audit_protection(tree: RadixTree, traits: list[Traits]) -> Iterator[Violation]:
    """Yield where a component protects what one that ranks higher does not. O(N).

    Every component's protection implies the carrier's. Among the others, a state that is protected
    implies that the window before it is, where both have a value; only components that protect
    by a single node are looked at, for the others reach further by nature.
    """
    for node in tree:
        records = node.component_data
        for index, data in enumerate(records[1:], 1):
            if not data.lock_ref:
                continue
            name = traits[index].name
            if not records[0].lock_ref:
                yield Violation("protection", f"{node} is protected in {name}, not in the carrier")
            if traits[index].reach is not None or data.value is None:
                continue
            for other, trait in enumerate(traits[1:], 1):
                if trait.independent or traits[index].independent:
                    continue
                if trait.priority > traits[index].priority and (
                    records[other].value is not None and not records[other].lock_ref
                ):
                    yield Violation(
                        "protection", f"{node} is protected in {name}, not {trait.name}"
                    )


def _audit_nodes(state: State) -> Iterator[Violation]:
    tree = state.tree
    seen = {tree.root.id}
    for node in tree:
        seen.add(node.id)
        parent = node.parent
        if tree.nodes.get(node.id) is not node:
            yield Violation("structure", f"{node} is in the tree but not in the register")
        if parent is None or parent.children.get(node.edge) is not node:
            yield Violation("structure", f"{node} is not its parent's child under its edge")
            continue
        page_of_key = node.piece[: tree.edge_bytes]
        if not node.edge.endswith(page_of_key) or (
            parent.parent is not None and node.edge != page_of_key
        ):
            yield Violation("structure", f"{node}: table key is not its first page")
        units = (len(node.piece) - tree.lookahead) // TOKEN_BYTES
        if units != node.length or units <= 0 or units % tree.page_size:
            yield Violation(
                "structure", f"{node} has a key of {units} units over a length of {node.length}"
            )
        if node.touch > parent.touch:
            yield Violation(
                "access_times",
                f"{node} was touched at {node.touch}, its parent {parent} at {parent.touch}",
            )
        if node.hits < 0:
            yield Violation("counts", f"{node} has {node.hits} hits")
    if missing := set(tree.nodes) - seen:
        yield Violation("structure", f"registered nodes are not in the tree: {sorted(missing)[:4]}")


def _audit_receipts(state: State) -> Iterator[Violation]:
    tree = state.tree
    owned: dict[int, str] = {}
    for entry in state.ledger.entries():
        rid = entry.rid
        if entry.receipt is None:
            continue
        held = state.receipts.get(entry.receipt)
        if held is None:
            yield Violation("receipts", f"request {rid!r} has receipt {entry.receipt}, not live")
            continue
        owned[entry.receipt] = rid
        if held.node is not entry.node:
            yield Violation("receipts", f"request {rid!r} and its receipt name different nodes")
        elif held.node.end != entry.protected:
            yield Violation(
                "receipts",
                f"request {rid!r} protects {entry.protected} units, its lock {held.node.end}",
            )
    for number, held in state.receipts.items():
        if tree.nodes.get(held.node.id) is not held.node:
            yield Violation("receipts", f"receipt {number} is on {held.node}, not in the tree")
        if held.rid is not None and owned.get(number) != held.rid:
            yield Violation("receipts", f"receipt {number} of {held.rid!r} is not in the ledger")


def _audit_pins(state: State) -> Iterator[Violation]:
    expected: dict[Node, int] = {}
    own: dict[Node, int] = {}
    for pinned in state.pins.nodes():
        own[pinned] = own.get(pinned, 0) + 1
        if state.tree.nodes.get(pinned.id) is not pinned:
            yield Violation("pins", f"pinned {pinned} is not in the tree")
    units = 0
    # Deepest first: a node is counted before its parent is looked at.
    for node in sorted(state.tree, key=lambda one: one.end, reverse=True):
        count = own.get(node, 0) + expected.get(node, 0)
        if count:
            units += node.length
            if node.parent is not None and node.parent.parent is not None:
                expected[node.parent] = expected.get(node.parent, 0) + 1
        if node.pins != count:
            yield Violation("pins", f"{node} counts {node.pins} pins, has {count}")
    if units != state.pins.units:
        yield Violation("pins", f"{state.pins.units} units counted as pinned, {units} are")
    if units > state.pins.budget:
        yield Violation("pins", f"{units} units are pinned, budget {state.pins.budget}")
