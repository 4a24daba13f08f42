"""The audit of the Full component: every clause recounted from scratch.

Nothing here trusts a counter: sizes are summed over nodes, protection is derived from receipts and
transfers, membership in the orders from the definition of what can go, ownership from slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixtide.components.api import Violation
from radixtide.components.full_host import host_set
from radixtide.components.host_audit import audit_host, audit_host_sizes, loading_slots
from radixtide.components.outcomes import JobPins
from radixtide.components.pool_audit import audit_pool, audit_sizes
from radixtide.tree.node import IN_STORAGE, ON_DEVICE, ON_HOST, Node

if TYPE_CHECKING:
    from radixtide.components.full import FullComponent


def audit_full(
    full: FullComponent,
    locked: dict[int, int],
    ledger: dict[int, tuple[str, int]],
    jobs: JobPins,
) -> list[Violation]:
    """Return all that is wrong with the Full component's records, sizes, order and slots."""
    found: list[Violation] = []
    nodes = list(full.tree)
    _audit_values(full, nodes, found)
    _audit_locks(full, nodes, locked, jobs, found)
    _audit_order(full, nodes, found)
    found.extend(audit_pool(full, full.slots_on(nodes), ledger, loading_slots(full, nodes)))
    if full.host_allocator is not None:
        found.extend(audit_host(full, nodes, jobs))
        _audit_host_locks(full, nodes, jobs, found)
        _audit_host_order(full, nodes, found)
        _audit_tiers(full, nodes, found)
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
    full: FullComponent,
    nodes: list[Node],
    locked: dict[int, int],
    jobs: JobPins,
    found: list[Violation],
) -> None:
    index = full.index
    expected = {node: locked.get(node.id, 0) + jobs.get(node.id, (0, 0))[0] for node in nodes}
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
    lodgers = 0
    previous = None
    for data in full.leaves:
        node = data.node
        assert node is not None
        in_order.append(node)
        lodgers += bool(data.lock_ref)
        if not data.lock_ref and data.order_key != full.policy.key(node):
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
        data = node.component_data[index]
        if not data.lock_ref or data.value is None or data.device_children:
            found.append(Violation("leaf_sets", f"{node} is in the set but no evictable leaf"))
    if lodgers != full.lodgers:
        found.append(
            Violation(
                "leaf_sets",
                f"the {full.name} leaves count {full.lodgers} locked ones beside the set, "
                f"hold {lodgers}",
            )
        )


def _audit_host_locks(
    full: FullComponent, nodes: list[Node], jobs: JobPins, found: list[Violation]
) -> None:
    """Recount protection and closure on the host, children before parents."""
    expected = {node: jobs.get(node.id, (0, 0))[1] for node in nodes}
    evictable = protected = 0
    for node in reversed(nodes):
        data = node.primary
        parent = node.parent
        assert parent is not None
        length = 0 if data.host_value is None else node.length
        if expected[node]:
            protected += length
            if parent.parent is not None:
                expected[parent] += 1
        else:
            evictable += length
        if data.host_lock_ref != expected[node]:
            message = f"{node} has host lock count {data.host_lock_ref}, pins make {expected[node]}"
            found.append(Violation("transfers", message))
        if length and parent.parent is not None and parent.primary.host_value is None:
            message = f"{node} is on the host, its parent {parent} is not"
            found.append(Violation("host_closure", message))
        children = sum(one.primary.host_value is not None for one in node.children.values())
        counted = 0 if data.host_link is None else data.host_link.children
        if children != counted:
            message = f"{node} counts {counted} children on the host, has {children}"
            found.append(Violation("host_order", message))
    found.extend(audit_host_sizes(full, evictable, protected))


def _audit_host_order(full: FullComponent, nodes: list[Node], found: list[Violation]) -> None:
    """Compare the three sets with what they must hold; keys may be out of date."""
    where: dict[Node, int] = {}
    for turn, order in enumerate(full.host_orders):
        previous = None
        seen = 0
        for link in order:
            node = link.node
            assert node is not None
            seen += 1
            if node in where:
                found.append(Violation("host_order", f"{node} has two places in the host order"))
            where[node] = turn
            if previous is not None and link.order_key < previous:
                found.append(Violation("host_order", f"{node} is out of the host order"))
            previous = link.order_key
        if seen != len(order):
            found.append(Violation("host_order", f"set {turn} counts {len(order)} of {seen} nodes"))
    for node in nodes:
        data = node.primary
        link_here = data.host_link
        can_go = (
            data.host_value is not None
            and link_here is not None
            and not link_here.children
            and not data.host_lock_ref
        )
        wanted = host_set(data, link_here) if can_go and link_here is not None else None
        if (place := where.pop(node, None)) != wanted:
            message = f"{node} is in host set {place}, belongs in {wanted}"
            found.append(Violation("host_order", message))
    for node in where:
        found.append(Violation("host_order", f"{node} is in the host order, not in the tree"))


def _audit_tiers(full: FullComponent, nodes: list[Node], found: list[Violation]) -> None:
    """Compare the structure's note of where each node's data is with where it is."""
    for node in nodes:
        data = node.primary
        link = data.host_link
        actual = (
            (ON_DEVICE if data.value is not None else 0)
            | (ON_HOST if data.host_value is not None else 0)
            | (IN_STORAGE if link is not None and link.stored else 0)
        )
        if node.tiers != actual:
            message = f"{node} is said to be on tiers {node.tiers}, its data is on {actual}"
            found.append(Violation("tiers", message))
