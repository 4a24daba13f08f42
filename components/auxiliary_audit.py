"""The audit of an auxiliary component: every clause recounted from scratch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixtide.components.api import Violation
from radixtide.components.pool_audit import audit_pool, audit_sizes
from radixtide.tree.node import Node

if TYPE_CHECKING:
    from radixtide.components.auxiliary import AuxiliaryComponent


def audit_auxiliary(
    part: AuxiliaryComponent, locked: dict[int, int], ledger: dict[int, tuple[str, int]]
) -> list[Violation]:
    """Return all that is wrong with a component's records, sizes, list and slots."""
    found: list[Violation] = []
    nodes = list(part.tree)
    _audit_locks(part, nodes, locked, found)
    _audit_recency(part, nodes, found)
    found.extend(audit_pool(part, part.values(), ledger, whole=False))
    return found


def _audit_locks(
    part: AuxiliaryComponent, nodes: list[Node], locked: dict[int, int], found: list[Violation]
) -> None:
    index = part.index
    expected: dict[Node, int] = dict.fromkeys(nodes, 0)
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
