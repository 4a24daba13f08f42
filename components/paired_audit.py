"""The audit of pairs: between the pages of the window's pool and those of the carrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from radixtide.components.api import Violation
from radixtide.components.host_audit import loading_slots
from radixtide.components.outcomes import Census
from radixtide.tiers.holdings import Holding
from radixtide.tiers.pairing import NONE
from radixtide.tiers.slots import FREE

if TYPE_CHECKING:
    from radixtide.components.paired import PairedComponent


def audit_pairs(part: PairedComponent) -> list[Violation]:
    """Return what is wrong with the pairs among themselves, and with the pool's books. O(pools)."""
    found: list[Violation] = []

    def report(message: str) -> None:
        found.append(Violation("pairs", f"pool {part.name}: {message}"))

    to_pair, to_carrier = part.pairing.to_pair, part.pairing.to_carrier
    pairs = np.flatnonzero(to_carrier != NONE)
    if not np.array_equal(to_pair[to_carrier[pairs]], pairs):
        report("a pair is not mutual")
    if int(np.count_nonzero(to_pair != NONE)) != len(pairs):
        report("a Full page names a pair in vain")
    if not np.array_equal(np.flatnonzero(part.allocator.owners() != FREE), pairs):
        report("pages that are owned and pages that are paired are not the same")
    return found


def audit_pairs_against(part: PairedComponent, carrier: Census) -> list[Violation]:
    """Compare the pairs with the Full slots of nodes, and with whose these are. O(N + pools)."""
    found: list[Violation] = []
    page = part.page_size
    to_pair, to_carrier = part.pairing.to_pair, part.pairing.to_carrier
    for node in part.tree:
        theirs = carrier.nodes.get(node.id, carrier.loading.get(node.id))
        if theirs is None:
            continue
        data = node.component_data[part.index]
        if data.value is not None:
            if node.id in carrier.nodes and not part.fits(node, data.value, carrier):
                message = f"{node}: its {part.name} slots are not the pairs of its Full slots"
                found.append(Violation("pairs", message))
            continue
        heads = theirs[::page] // page
        coming = data.host_link.loading if data.host_link is not None else None
        if coming is not None:
            if not np.array_equal(to_pair[heads], coming[::page] // page):
                message = f"{node}: the {part.name} slots being loaded are not the pairs of its own"
                found.append(Violation("pairs", message))
        elif (to_pair[heads] != NONE).any():
            found.append(Violation("pairs", f"{node} is a tombstone, but a page of it is paired"))
        kept = data.metadata["carriers"] if data.metadata is not None else heads[:0]
        if not np.array_equal(kept, heads):
            found.append(Violation("pairs", f"{node} keeps other Full pages than it has"))
    for holder in sorted({*carrier.holders, *part.holdings}):
        # One who gave back all that it had may be written down as having nothing, or not at all.
        nothing = Holding(holder)
        theirs_held = carrier.holders.get(holder, nothing)
        mine = part.holdings.get(holder, nothing)
        if theirs_held.used != mine.used or not np.array_equal(theirs_held.slots(), mine.slots()):
            message = f"pool {part.name}: holder {holder} holds other Full slots than it knows of"
            found.append(Violation("pairs", message))
    paired = to_carrier != NONE
    # What is loaded for a node is a job's; the Full page may be the tree's already.
    paired[part.allocator.pages_of(loading_slots(part, list(part.tree)))] = False
    owners = carrier.owners[to_carrier[paired]]
    if not np.array_equal(owners, part.allocator.owners()[paired]):
        message = f"pool {part.name}: the pages of a pair have different owners"
        found.append(Violation("pairs", message))
    return found
