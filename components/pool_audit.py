"""The audit of a component's slots: each owned once, none lost, sizes add up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from radixtide.components.api import Slots, Violation
from radixtide.tiers.slots import EMPTY, FIRST_HOLDER, FREE, TREE

if TYPE_CHECKING:
    from radixtide.components.base import TreeComponent


def audit_sizes(component: TreeComponent, evictable: int, protected: int) -> list[Violation]:
    """Compare the sizes that `component` keeps with those that its nodes make."""
    found: list[Violation] = []
    for what, counted, stored in (
        ("evictable", evictable, component.evictable),
        ("protected", protected, component.protected),
    ):
        if stored < 0:
            found.append(Violation("counts", f"{component.name}: {what} size is {stored}"))
        if counted != stored:
            message = f"{component.name}: {what} size is {stored}, nodes make {counted}"
            found.append(Violation("sizes", message))
    return found


def audit_pool(
    component: TreeComponent,
    tree_slots: Slots,
    ledger: dict[int, tuple[str, int]],
    loading: Slots = EMPTY,
    whole: bool = True,
) -> list[Violation]:
    """Compare the pool's books with what tree and holders really have. O(pool).

    `tree_slots`: the device slots of all nodes of `component`. `ledger`: request id and slots
    asked for by holder, as the coordinator has them; `whole`: it tells of this pool's slots.
    `loading`: device slots that loads are filling.
    """
    found: list[Violation] = []
    allocator = component.allocator
    name = component.name

    def report(clause: str, message: str) -> None:
        found.append(Violation(clause, f"pool {name}: {message}"))

    def shown(pages: Slots) -> str:
        head = ", ".join(str(int(page) * allocator.page_size) for page in pages[:4])
        return head + (", ..." if len(pages) > 4 else "")

    owners = allocator.owners()
    claims = np.zeros(allocator.pages, dtype=np.int32)
    in_range = (tree_slots >= 0) & (tree_slots < allocator.size)
    if not in_range.all():
        report("slots", f"nodes name slots out of range: {tree_slots[~in_range][:4].tolist()}")
        tree_slots = tree_slots[in_range]
    tree_pages = allocator.pages_of(tree_slots)
    np.add.at(claims, tree_pages, 1)
    held_pages = component.held_pages()
    for holder, holding in component.holdings.items():
        pages = held_pages[holder]
        np.add.at(claims, pages, 1)
        if len(pages) and not (owners[pages] == holder).all():
            report("slots", f"request holder {holder} lists slots that the books give to others")
        if not 0 <= holding.used <= holding.total or holding.total != len(holding.slots()):
            report("counts", f"holder {holder} uses {holding.used} of {holding.total} slots")
    for holder in sorted(set(ledger) | set(component.holdings)):
        used = component.holdings[holder].used if holder in component.holdings else 0
        if holder not in ledger:
            report("ledger", f"holder {holder} holds slots, but is no request in the ledger")
        elif whole and used != ledger[holder][1]:
            rid, asked = ledger[holder]
            report("ledger", f"request {rid!r} uses {used} slots, the ledger says {asked}")
    loading_pages = allocator.pages_of(loading)
    np.add.at(claims, loading_pages, 1)
    if not (owners[loading_pages] >= FIRST_HOLDER).all():
        report("transfers", "slots are being loaded that the books give to no job")
    if len(loading) != component.device_arriving:
        report("sizes", f"{component.device_arriving} slots are in flight, nodes: {len(loading)}")
    free = allocator.free_pages()
    np.add.at(claims, free, 1)
    if (twice := np.flatnonzero(claims > 1)).size:
        report("slots", f"slots owned twice: pages at {shown(twice)}")
    if not (owners[tree_pages] == TREE).all():
        wrong = tree_pages[owners[tree_pages] != TREE]
        report("slots", f"nodes have slots that the books do not give to the tree: {shown(wrong)}")
    if len(free) and not (owners[free] == FREE).all():
        report("slots", f"free list has owned pages: {shown(free[owners[free] != FREE])}")
    by_request = owners >= FIRST_HOLDER
    lost = np.flatnonzero((claims == 0) & ((owners == FREE) | (owners == TREE) | by_request))
    if lost.size:
        report("lost", f"slots lost: pages at {shown(lost)} belong to nobody")
    if int(np.count_nonzero(owners == TREE)) != allocator.tree_pages:
        report("sizes", f"{allocator.tree_pages} tree pages counted, books have another number")
    sizes = component.sizes()
    parts = sizes.free + sizes.evictable + sizes.protected + sizes.held + sizes.in_flight
    if parts != sizes.size:
        moving = f" + in flight {sizes.in_flight}" if sizes.in_flight else ""
        report(
            "sizes",
            f"free {sizes.free} + evictable {sizes.evictable} + protected {sizes.protected} + "
            f"held {sizes.held}{moving} = {parts}, not {sizes.size}",
        )
    for what in ("free", "evictable", "protected", "held", "in_flight"):
        if getattr(sizes, what) < 0:
            report("counts", f"{what} is {getattr(sizes, what)}")
    return found
