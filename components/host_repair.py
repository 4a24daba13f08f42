"""Repairs of the host tier after a crash: what running transfers read and write stays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from radixtide.components.api import StoredSlots
from radixtide.components.host import link_of, tidy
from radixtide.components.host_audit import arriving_slots, host_values, loading_slots
from radixtide.components.outcomes import JobPins
from radixtide.tiers.slots import FIRST_HOLDER, Pages, SlotAllocator
from radixtide.tree.node import Node

if TYPE_CHECKING:
    from radixtide.components.host_tier import HostTier


class Sieve:
    """Tells slots that can be a node's from those that can not: it sees each page once."""

    def __init__(self, books: SlotAllocator | None) -> None:
        self._books = books
        self._seen = np.zeros(0 if books is None else books.pages, dtype=bool)

    def takes(self, slots: StoredSlots | None, count: int | None, held: bool = False) -> bool:
        """Return whether `slots` are `count` whole pages of the pool that nobody had before.

        `held`: by a job, in the books as well.
        """
        books = self._books
        if slots is None or books is None or (count is not None and len(slots) != count):
            return False
        if len(slots) % books.page_size or not ((slots >= 0) & (slots < books.size)).all():
            return False
        pages = books.pages_of(slots.astype(np.int64))
        if held and not (books.owners()[pages] >= FIRST_HOLDER).all():
            return False
        if self._seen[pages].any() or len(np.unique(pages)) < len(pages):
            return False
        self._seen[pages] = True
        return True


def owned(books: SlotAllocator, pages: Pages) -> dict[int, Pages]:
    """Return `pages` by their owner in the books."""
    owners = books.owners()[pages]
    return {int(owner): pages[owners == owner] for owner in np.unique(owners)}


def drop_doubtful_transfers(part: HostTier, node: Node, device: Sieve, host: Sieve) -> None:
    """Forget what of the node's link can not be: call it after values were looked at.

    The link's pins are those of the jobs already.
    """
    data = node.component_data[part.index]
    link = data.host_link
    if link is None:
        return
    count = part.expected_size(node)
    if data.host_value is None:
        link.digests = None
    elif link.digests is not None:
        pages = len(data.host_value) // part.allocator.page_size
        if len(link.digests) != pages:
            link.digests = None
    if link.arriving is not None:
        needed = link.pins and data.value is not None and data.host_value is None
        if not (needed and host.takes(link.arriving, count, held=True)):
            link.arriving = None
    if link.loading is not None:
        # Also where an insert brought a value meanwhile: the copy into these slots goes on.
        needed = link.host_pins and data.host_value is not None
        if not (needed and device.takes(link.loading, count, held=True)):
            link.loading = None


def reset_link(part: HostTier, node: Node, jobs: JobPins) -> None:
    """Take the node's link out of its order, and give it the pins of the jobs."""
    data = node.component_data[part.index]
    pins, host_pins = jobs.get(node.id, (0, 0)) if part.host_allocator is not None else (0, 0)
    if pins or host_pins or data.host_value is not None:
        link_of(data)
    data.host_lock_ref = host_pins
    link = data.host_link
    if link is not None:
        link.newer = link.older = link.order_key = None
        link.children = 0
        link.pins = pins
        link.host_pins = host_pins


def rebuild_host_books(part: HostTier, nodes: list[Node]) -> None:
    """Make the host pool's books say what nodes and fetches have. O(N + pool)."""
    part.device_arriving = len(loading_slots(part, nodes))
    books = part.host_allocator
    if books is None:
        return
    tree_pages = books.pages_of(host_values(part, nodes))
    arriving = books.pages_of(arriving_slots(part, nodes))
    owners = books.owners()
    taken = {*tree_pages.tolist(), *arriving.tolist()}
    part.reserved = {
        page for page in part.reserved if page not in taken and owners.item(page) >= FIRST_HOLDER
    }
    reserved = np.array(sorted(part.reserved), dtype=np.int64)
    held = owned(books, np.concatenate((arriving, reserved)))
    books.rebuild(tree_pages, held, keep_anonymous=False)
    for node in nodes:
        tidy(node.component_data[part.index])


def loading_pages(part: HostTier, nodes: list[Node]) -> dict[int, Pages]:
    """Return the device pages that loads are filling, by the job that owns them."""
    books = part.allocator
    return owned(books, books.pages_of(loading_slots(part, nodes)))
