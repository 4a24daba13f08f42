"""The repair of the Full component after a crash: everything that can be derived, anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixtide.components.host import tidy
from radixtide.components.host_repair import (
    Sieve,
    drop_doubtful_transfers,
    loading_pages,
    rebuild_host_books,
    reset_link,
)
from radixtide.components.leaf_order import LeafOrder
from radixtide.components.outcomes import JobPins
from radixtide.tiers.slots import ANONYMOUS
from radixtide.tree.node import Node

if TYPE_CHECKING:
    from radixtide.components.full import FullComponent


def drop_doubtful(full: FullComponent, jobs: JobPins) -> list[Node]:
    """Forget data that can not be a node's, and what is below it on the same tier.

    Returns the nodes that have none left on any tier, children before their parents.
    """
    hollow: list[Node] = []
    device, host = Sieve(full.allocator), Sieve(full.host_allocator)
    root = full.tree.root
    on_device, on_host = {root}, {root}
    nodes = list(full.tree)
    for node in nodes:
        data = node.primary
        if node.parent in on_device and device.takes(data.value, node.length):
            on_device.add(node)
        else:
            data.value = None
        if node.parent in on_host and host.takes(data.host_value, node.length):
            on_host.add(node)
        else:
            data.host_value = None
        reset_link(full, node, jobs)
        if data.value is None and data.host_value is None:
            hollow.append(node)
    for node in nodes:
        # After all values, which have the better claim.
        drop_doubtful_transfers(full, node, device, host)
    hollow.reverse()
    return hollow


def rebuild_full(
    full: FullComponent, locked: dict[int, int], holders: set[int], jobs: JobPins
) -> list[Node]:
    """Recompute counts, sizes, orders and books from values, receipts and jobs. O(N + pool)."""
    full.leaves = LeafOrder(full.policy)
    full.lodgers = 0
    full.host_orders = full.make_host_orders()
    for holder in set(full.holdings) - holders - {ANONYMOUS}:
        del full.holdings[holder]
    hollow = drop_doubtful(full, jobs)
    dropped = set(hollow)
    nodes = [node for node in full.tree if node not in dropped]
    root = full.tree.root.primary
    root.device_children = 0
    root.lock_ref = 0
    for node in nodes:
        data = node.primary
        data.newer = data.older = data.order_key = None
        data.device_children = 0
        data.lock_ref = locked.get(node.id, 0) + jobs.get(node.id, (0, 0))[0]
    _count(full, nodes)
    for node in nodes:
        data = node.primary
        if full.is_evictable_leaf(node, data):
            full.leaves.add(data)
        if data.host_link is not None:
            full.enter_order(data, data.host_link)
        tidy(data)
    pages = full.allocator.pages_of
    held = {holder: pages(one.slots()) for holder, one in full.holdings.items()}
    full.allocator.rebuild(pages(full.slots_on(nodes)), held | loading_pages(full, nodes))
    rebuild_host_books(full, nodes)
    return hollow


def _count(full: FullComponent, nodes: list[Node]) -> None:
    """Count children, protection and sizes on both tiers."""
    full.evictable = full.protected = full.host_evictable = full.host_protected = 0
    # Iteration is parents first, so the reverse counts children before their parents.
    for node in reversed(nodes):
        data = node.primary
        parent = node.parent
        assert parent is not None
        above = parent.primary
        inside = parent.parent is not None
        if data.value is not None:
            above.device_children += 1
            if data.lock_ref:
                full.protected += node.length
            else:
                full.evictable += node.length
        if data.host_value is not None:
            if inside and above.host_link is not None:
                above.host_link.children += 1
            if data.host_lock_ref:
                full.host_protected += node.length
            else:
                full.host_evictable += node.length
        if inside and data.lock_ref:
            above.lock_ref += 1
        if inside and data.host_lock_ref:
            above.host_lock_ref += 1
