"""The audit of an auxiliary component: every clause recounted from scratch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixtide.components.api import Violation
from radixtide.components.host_audit import audit_host, audit_host_sizes, loading_slots
from radixtide.components.outcomes import Census, JobPins
from radixtide.components.pool_audit import audit_pool, audit_sizes
from radixtide.tree.node import Node

if TYPE_CHECKING:
    from radixtide.components.auxiliary import AuxiliaryComponent


def audit_auxiliary(
    part: AuxiliaryComponent,
    locked: dict[int, int],
    ledger: dict[int, tuple[str, int]],
    jobs: JobPins,
) -> list[Violation]:
    """Return all that is wrong with a component's records, sizes, list and slots."""
    found: list[Violation] = []
    nodes = list(part.tree)
    pinning = jobs if part.host_allocator is not None else {}
    _audit_locks(part, nodes, locked, pinning, found)
    _audit_recency(part, nodes, found)
    loading = loading_slots(part, nodes)
    found.extend(audit_pool(part, part.values(), ledger, loading, whole=False))
    if part.host_allocator is not None:
        found.extend(audit_host(part, nodes, jobs))
        _audit_host_locks(part, nodes, jobs, found)
        _audit_host_lists(part, nodes, found)
    return found


def _audit_locks(
    part: AuxiliaryComponent,
    nodes: list[Node],
    locked: dict[int, int],
    jobs: JobPins,
    found: list[Violation],
) -> None:
    index = part.index
    expected: dict[Node, int] = {node: jobs.get(node.id, (0, 0))[0] for node in nodes}
    for node in nodes:
        receipts = locked.get(node.id, 0)
        if not receipts:
            continue
        for at in part.covered(node):
            expected[at] += receipts
            if part.reach is not None and at.start < node.end - part.reach < at.end:
                found.append(
                    Violation(
                        "windows",
                        f"{part.name}: the lock on {node} begins inside {at}, so that it pins "
                        f"more than {part.reach} units",
                    )
                )
    evictable = protected = 0
    for node in nodes:
        data = node.component_data[index]
        size = 0 if data.value is None else len(data.value)
        wanted = part.expected_size(node)
        if data.value is not None and wanted is not None and size != wanted:
            found.append(Violation("slots", f"{part.name}: {node} has {size} slots, not {wanted}"))
        if expected[node]:
            protected += size
        else:
            evictable += size
        if data.lock_ref < 0:
            found.append(Violation("counts", f"{part.name}: {node} has count {data.lock_ref}"))
        if data.lock_ref != expected[node]:
            found.append(
                Violation(
                    "receipts",
                    f"{part.name}: {node} has lock count {data.lock_ref}, receipts make "
                    f"{expected[node]}",
                )
            )
    found.extend(audit_sizes(part, evictable, protected))


def _audit_recency(part: AuxiliaryComponent, nodes: list[Node], found: list[Violation]) -> None:
    index = part.index
    members: set[Node] = set()
    for data in part.recency:
        node = data.node
        assert node is not None
        if node in members:
            found.append(Violation("lru", f"the {part.name} list holds {node} twice"))
            break
        members.add(node)
    if len(part.recency) != len(members):
        found.append(
            Violation("lru", f"the {part.name} list counts {len(part.recency)} of {len(members)}")
        )
    valued = {node for node in nodes if node.component_data[index].value is not None}
    for node in sorted(valued ^ members, key=lambda one: one.id):
        wrong = "has a value but is not" if node in valued else "has no value but is"
        found.append(Violation("lru", f"{node} {wrong} in the {part.name} list"))


def _audit_host_locks(
    part: AuxiliaryComponent, nodes: list[Node], jobs: JobPins, found: list[Violation]
) -> None:
    evictable = protected = 0
    for node in nodes:
        data = node.component_data[part.index]
        size = 0 if data.host_value is None else len(data.host_value)
        pins = jobs.get(node.id, (0, 0))[1]
        if pins:
            protected += size
        else:
            evictable += size
        if data.host_lock_ref != pins:
            message = f"{part.name}: {node} has host lock count {data.host_lock_ref}, not {pins}"
            found.append(Violation("transfers", message))
    found.extend(audit_host_sizes(part, evictable, protected))


def _audit_host_lists(part: AuxiliaryComponent, nodes: list[Node], found: list[Violation]) -> None:
    where: dict[Node, str] = {}
    for name, lru in (("mirrors", part.host_mirrors), ("host_only", part.host_only)):
        seen = 0
        for link in lru:
            assert link.node is not None
            seen += 1
            if link.node in where:
                found.append(Violation("host_order", f"{part.name}: {link.node} is in it twice"))
                break
            where[link.node] = name
        if seen != len(lru):
            found.append(Violation("host_order", f"{part.name}: {len(lru)} of {seen} {name}"))
    for node in nodes:
        data = node.component_data[part.index]
        wanted = None
        if data.host_value is not None:
            wanted = "host_only" if data.value is None else "mirrors"
        if (place := where.pop(node, None)) != wanted:
            message = f"{part.name}: {node} is in host list {place}, belongs in {wanted}"
            found.append(Violation("host_order", message))
    for node in where:
        message = f"{part.name}: {node} is in a host list, not in the tree"
        found.append(Violation("host_order", message))


def audit_places(part: AuxiliaryComponent, carrier: Census) -> list[Violation]:
    """Return where `part` has data and the first component has none on that tier. O(N)."""
    found: list[Violation] = []
    for node in part.tree:
        data = node.component_data[part.index]
        if data.value is not None and node.id not in carrier.nodes:
            message = f"{part.name}: {node} has a value, but its Full data is not on the device"
            found.append(Violation("closure", message))
        if data.host_value is not None and node.id not in carrier.host_nodes:
            message = f"{part.name}: {node} has a host value, but its Full data has none"
            found.append(Violation("host_closure", message))
    return found
