"""The audit of the host tier: what all components with one must have right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from radixtide.components.api import Slots, Violation
from radixtide.components.host import gathered
from radixtide.components.outcomes import JobPins
from radixtide.tiers.slots import FIRST_HOLDER, FREE, TREE, Pages, SlotAllocator
from radixtide.tree.node import Node

if TYPE_CHECKING:
    from radixtide.components.host_tier import HostTier


def loading_slots(part: HostTier, nodes: list[Node]) -> Slots:
    """Return the device slots that loads are filling. O(nodes)."""
    links = (node.component_data[part.index].host_link for node in nodes)
    return gathered([one.loading for one in links if one is not None and one.loading is not None])


def arriving_slots(part: HostTier, nodes: list[Node]) -> Slots:
    """Return the host slots that backups are filling. O(nodes)."""
    links = (node.component_data[part.index].host_link for node in nodes)
    return gathered([one.arriving for one in links if one is not None and one.arriving is not None])


def host_values(part: HostTier, nodes: list[Node]) -> Slots:
    """Return the host slots of all `nodes`. O(nodes)."""
    values = (node.component_data[part.index].host_value for node in nodes)
    return gathered([value for value in values if value is not None])


def audit_host(part: HostTier, nodes: list[Node], jobs: JobPins) -> list[Violation]:
    """Return what is wrong below the device, but for protection and order. O(N + pool)."""
    if part.host_allocator is None:
        return []
    found: list[Violation] = []
    _audit_transfers(part, nodes, jobs, found)
    _audit_books(part, part.host_allocator, nodes, found)
    return found


def _audit_transfers(
    part: HostTier, nodes: list[Node], jobs: JobPins, found: list[Violation]
) -> None:
    name = part.name

    def report(clause: str, message: str) -> None:
        found.append(Violation(clause, f"{name}: {message}"))

    missing = set(jobs) - {node.id for node in nodes}
    if missing:
        report("transfers", f"jobs pin nodes that are not in the tree: {sorted(missing)[:4]}")
    for node in nodes:
        data = node.component_data[part.index]
        link = data.host_link
        pins = (0, 0) if link is None else (link.pins, link.host_pins)
        expected = jobs.get(node.id, (0, 0))
        if pins != expected:
            report("transfers", f"{node} has pins {pins}, jobs make {expected}")
        wanted = part.expected_size(node)
        if link is None:
            if data.host_value is not None:
                report("host_slots", f"{node} has a host value without a link")
            continue
        for what, slots in (
            ("host slots", data.host_value),
            ("slots arriving", link.arriving),
            ("slots loading", link.loading),
        ):
            if slots is not None and wanted is not None and len(slots) != wanted:
                report("host_slots", f"{node} has {len(slots)} {what}, not {wanted}")
        if link.arriving is not None and (
            not link.pins or data.value is None or data.host_value is not None
        ):
            report("transfers", f"{node} is backed up without a pin, a source or a need")
        if link.loading is not None and (not link.host_pins or data.host_value is None):
            report("transfers", f"{node} is loaded without a pin or a source")
        digests = link.digests
        if digests is not None:
            count = 0 if data.host_value is None else len(data.host_value)
            if len(digests) * part.allocator.page_size != count:
                report("host_slots", f"{node} has {len(digests)} digests for {count} host slots")


def _audit_books(
    part: HostTier, books: SlotAllocator, nodes: list[Node], found: list[Violation]
) -> None:
    def report(clause: str, message: str) -> None:
        found.append(Violation(clause, f"host pool {part.name}: {message}"))

    owners = books.owners()
    claims = np.zeros(books.pages, dtype=np.int32)

    def claim(slots: Slots, what: str, tree: bool) -> None:
        inside = (slots >= 0) & (slots < books.size)
        if not inside.all():
            report("host_slots", f"{what} out of range: {slots[~inside][:4].tolist()}")
            slots = slots[inside]
        _claim_pages(books.pages_of(slots), what, tree)

    def _claim_pages(pages: Pages, what: str, tree: bool) -> None:
        np.add.at(claims, pages, 1)
        theirs = owners[pages]
        if not ((theirs == TREE) if tree else (theirs >= FIRST_HOLDER)).all():
            report("host_slots", f"{what} that the books give to others")

    claim(host_values(part, nodes), "host values", True)
    claim(arriving_slots(part, nodes), "slots arriving", False)
    _claim_pages(np.array(sorted(part.reserved), dtype=np.int64), "pages of fetches", False)
    free = books.free_pages()
    np.add.at(claims, free, 1)
    if len(free) and not (owners[free] == FREE).all():
        report("host_slots", "the free list has owned pages")
    if (claims > 1).any():
        report("host_slots", f"pages owned twice: {np.flatnonzero(claims > 1)[:4].tolist()}")
    if (claims == 0).any():
        report("host_slots", f"pages lost: {np.flatnonzero(claims == 0)[:4].tolist()}")
    if int(np.count_nonzero(owners == TREE)) != books.tree_pages:
        report("host_sizes", f"{books.tree_pages} tree pages counted, books have another number")
    sizes = part.host_sizes()
    assert sizes is not None
    parts = sizes.free + sizes.evictable + sizes.protected + sizes.held + sizes.in_flight
    if parts != sizes.size:
        report(
            "host_sizes",
            f"free {sizes.free} + evictable {sizes.evictable} + protected {sizes.protected} + "
            f"in flight {sizes.in_flight} = {parts}, not {sizes.size}",
        )
    if min(sizes.free, sizes.evictable, sizes.protected, sizes.in_flight) < 0:
        report("host_sizes", f"a size is below 0: {sizes}")


def audit_host_sizes(part: HostTier, evictable: int, protected: int) -> list[Violation]:
    """Compare the host sizes that `part` keeps with those that its nodes make."""
    found: list[Violation] = []
    for what, counted, kept in (
        ("evictable", evictable, part.host_evictable),
        ("protected", protected, part.host_protected),
    ):
        if counted != kept:
            message = f"{part.name}: host {what} size is {kept}, nodes make {counted}"
            found.append(Violation("host_sizes", message))
    return found
