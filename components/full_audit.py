"""The audit of the Full component: every clause recounted from scratch.

Nothing here trusts a counter: sizes are summed over nodes, protection is derived from receipts,
membership in the eviction order from the definition of an evictable leaf, ownership from slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixtide.components.api import Violation
from radixtide.components.pool_audit import audit_pool, audit_sizes
from radixtide.tree.node import Node

if TYPE_CHECKING:
    from radixtide.components.full import FullComponent


def hollow_nodes(full: FullComponent) -> list[Node]:
    """Return nodes that must not be kept: without data, of wrong length, or below such a node.

    Children come before their parents.
    """
    hollow: list[Node] = []
    bad: set[Node] = set()
    for node in full.tree:
        value = node.component_data[full.index].value
        if (
            node.parent in bad
            or value is None
            or len(value) != node.length
            or not ((value >= 0) & (value < full.allocator.size)).all()
        ):
            bad.add(node)
            hollow.append(node)
    hollow.reverse()
    return hollow


def audit_full(
    full: FullComponent, locked: dict[int, int], ledger: dict[int, tuple[str, int]]
) -> list[Violation]:
    """Return all that is wrong with the Full component's records, sizes, order and slots."""
    found: list[Violation] = []
    nodes = list(full.tree)
    _audit_values(full, nodes, found)
    _audit_locks(full, nodes, locked, found)
    _audit_order(full, nodes, found)
    found.extend(audit_pool(full, full.slots_on(nodes), ledger))
    return found


def _audit_values(full: FullComponent, nodes: list[Node], found: list[Violation]) -> None:
    index = full.index
    for node in nodes:
        value = node.component_data[index].value
        if value is None:
            if node.component_data[index].host_value is None:
                found.append(Violation("kept", f"{node} has no Full data on any tier"))
            continue
        if len(value) != node.length:
            found.append(
                Violation("slots", f"{node} has {len(value)} slots for {node.length} units")
            )
        parent = node.parent
        if (
            parent is not None
            and parent.parent is not None
            and parent.component_data[index].value is None
        ):
            found.append(
                Violation("closure", f"{node} is on the device, its parent {parent} is not")
            )
        children = sum(
            child.component_data[index].value is not None for child in node.children.values()
        )
        if children != node.component_data[index].device_children:
            found.append(
                Violation(
                    "leaf_sets",
                    f"{node} counts {node.component_data[index].device_children} children on the "
                    f"device, has {children}",
                )
            )


def _audit_locks(
    full: FullComponent, nodes: list[Node], locked: dict[int, int], found: list[Violation]
) -> None:
    index = full.index
    expected: dict[Node, int] = {node: locked.get(node.id, 0) for node in nodes}
    known = {node.id for node in nodes} | {full.tree.root.id}
    for node_id, receipts in locked.items():
        if node_id not in known:
            found.append(Violation("receipts", f"{receipts} receipt(s) on missing node {node_id}"))
    evictable = protected = 0
    for node in reversed(nodes):
        data = node.component_data[index]
        parent = node.parent
        length = node.length if data.value is not None else 0
        if expected[node]:
            protected += length
            if parent is not None and parent.parent is not None:
                expected[parent] = expected.get(parent, 0) + 1
        else:
            evictable += length
        if data.lock_ref < 0:
            found.append(Violation("counts", f"{node} has lock count {data.lock_ref}"))
        if data.lock_ref != expected[node]:
            found.append(
                Violation(
                    "receipts",
                    f"{node} has lock count {data.lock_ref}; receipts and protected children "
                    f"make {expected[node]}",
                )
            )
    found.extend(audit_sizes(full, evictable, protected))


def _audit_order(full: FullComponent, nodes: list[Node], found: list[Violation]) -> None:
    index = full.index
    in_order: list[Node] = []
    previous = None
    for data in full.leaves:
        node = data.node
        assert node is not None
        in_order.append(node)
        if data.order_key != full.policy.key(node):
            found.append(
                Violation("lru", f"{node} is ordered by {data.order_key}, not by its present key")
            )
        if previous is not None and data.order_key < previous:
            found.append(Violation("lru", f"{node} is out of order in the {full.name} leaves"))
        previous = data.order_key
    members = set(in_order)
    if len(in_order) != len(members) or len(full.leaves) != len(members):
        found.append(Violation("lru", f"the {full.name} leaves hold a node twice"))
    leaves = {node for node in nodes if full.is_evictable_leaf(node, node.component_data[index])}
    for node in sorted(leaves - members, key=lambda one: one.id):
        found.append(Violation("leaf_sets", f"{node} is an evictable leaf but not in the set"))
    for node in sorted(members - leaves, key=lambda one: one.id):
        found.append(Violation("leaf_sets", f"{node} is in the set but no evictable leaf"))
