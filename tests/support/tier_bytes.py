"""What a whole cache holds on its tiers: every byte of every node, and every slot by its number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from radixtide import UnifiedRadixCache
from radixtide.components.api import StoredSlots
from radixtide.tiers.slots import ANONYMOUS, FIRST_HOLDER, TREE
from radixtide.tree.node import IN_STORAGE, ON_DEVICE, ON_HOST, Node
from support.caches import state_of
from support.marks import MarkArray, Marks, marks_of
from support.seams import host_pools

BITS = {ON_DEVICE: "D", ON_HOST: "H", IN_STORAGE: "S"}


class Place(NamedTuple):
    """A node, and the key that leads to its end."""

    node: Node
    namespace: bytes
    raw: bytes

    @property
    def tiers(self) -> str:
        """The tiers that have the node, as letters."""
        return "".join(letter for bit, letter in BITS.items() if self.node.tiers & bit)


def places(cache: UnifiedRadixCache) -> Iterator[Place]:
    """Yield every node, parents first."""
    tree = state_of(cache).tree
    stack = [
        Place(node, node.edge[: len(node.edge) - tree.edge_bytes], node.piece)
        for node in tree.root.children.values()
    ]
    while stack:
        place = stack.pop()
        yield place
        for child in place.node.children.values():
            raw = place.raw[: child.start * 8] + child.piece
            stack.append(Place(child, place.namespace, raw))


def picture(cache: UnifiedRadixCache) -> list[tuple[int, int, str]]:
    """Return begin, end and tiers of every node, in order of what they are for."""
    found = sorted(places(cache), key=lambda place: (place.namespace, place.raw))
    return [(place.node.start, place.node.end, place.tiers) for place in found]


def expected(place: Place, component: str, bigram: bool) -> MarkArray:
    """Return the marks of what a component has on a node."""
    marks = marks_of(place.raw, place.namespace, bigram)
    node = place.node
    return marks[node.end - 1 : node.end] if component == "mamba" else marks[node.start : node.end]


def check_bytes(cache: UnifiedRadixCache, marks: Marks, pending: MarkArray | None = None) -> None:
    """Assert that all that nodes have, on the device and on the host, is what it should be.

    `pending`: marks of what was inserted before it was written, which is not looked at.
    """
    pools = host_pools(cache)
    for place in places(cache):
        for part in cache._components:
            data = part.data(place.node)
            wanted = expected(place, part.name, cache.config.bigram)
            if pending is not None and np.isin(wanted, pending).any():
                continue
            if data.value is not None:
                wrong = marks.wrong(part.name, data.value.astype(np.int64), wanted)
                assert not wrong, f"{place.node}, {part.name} on the device: wrong at {wrong[:9]}"
            if data.host_value is not None:
                pool = pools[part.name]
                pages = _pages(data.host_value, pool.page_size)
                found = np.empty((len(pages), pool.page_bytes), dtype=np.uint8)
                pool.read_pages(pages, found)
                good = (found == marks.page_bytes(part.name, wanted)).all(axis=1)
                assert good.all(), f"{place.node}, {part.name} on the host: wrong pages {~good}"


def _pages(slots: StoredSlots, page: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    numbers = slots[::page].astype(np.int64) // page
    whole = (numbers[:, None] * page + np.arange(page)).ravel()
    assert np.array_equal(slots, whole), f"not whole pages of {page}: {slots.tolist()}"
    return numbers


def check_slots(cache: UnifiedRadixCache) -> None:
    """Assert that each page of each pool, on device and host, is free or has one owner.

    Whose it is must be what the books say: a node's value is the tree's, what a copy fills has an
    owner of its own.
    """
    for part in cache._components:
        tiers = (("device", part.allocator), ("host", part.host_allocator))
        for tier, allocator in tiers:
            if allocator is None:
                continue
            page = allocator.page_size
            owners = allocator.owners()
            claims: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = [allocator.free_pages()]
            for node in state_of(cache).tree:
                data = part.data(node)
                link = data.host_link
                value = data.value if tier == "device" else data.host_value
                moving = None
                if link is not None:
                    moving = link.loading if tier == "device" else link.arriving
                if value is not None:
                    claims.append(_pages(value, page))
                    assert (owners[claims[-1]] == TREE).all(), f"{part.name}, {tier}: {node}"
                if moving is not None:
                    claims.append(_pages(moving, page))
                    assert (owners[claims[-1]] != TREE).all(), f"{part.name}, {tier}: {node}"
            if tier == "device":
                claims += [held for held in part.held_pages().values() if len(held)]
            claims.append(np.flatnonzero(owners == ANONYMOUS).astype(np.int64))
            found = np.concatenate(claims)
            whole = np.arange(allocator.size // page)
            fetched = np.setdiff1d(whole, found)
            assert len(np.unique(found)) == len(found), f"{part.name}, {tier}: owned twice"
            if tier == "device":
                assert not len(fetched), f"{part.name}, {tier}: pages {fetched} are nobody's"
            else:
                # What a fetch has reserved is on no node yet; the books name its job.
                assert (owners[fetched] >= FIRST_HOLDER).all(), (
                    f"{part.name}: host pages are nobody's"
                )
