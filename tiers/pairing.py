"""Which pages of one pool belong to which pages of another.

Sliding-window state lies in a pool of its own, smaller than that of full attention. Both name one
token: the tree, the request table and the caller know the slot in the **carrier** pool, and this
map tells which page of the other pool stands behind a carrier's page. It is kept in both
directions, so that either side can give a page back. Pages are paired whole: the token at some
offset of a carrier's page lies at the same offset of the paired page.

Who owns the pages is the allocators' business. All calls are O(pages named).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from radixtide.tiers.slots import PageRange, Pages, Slots

NONE: Final = -1
"""Stands for "no page" and "no slot"."""

PageMap = npt.NDArray[np.int32]


class Pairing:
    """Pairs of pages: each page of either pool is in one pair at most.

    Args:
        carrier_pages: pages of the carrier pool.
        pages: pages of the paired pool.
        page_size: slots a page, the same in both pools.
    """

    __slots__ = ("_to_carrier", "_to_pair", "page_size")

    def __init__(self, carrier_pages: int, pages: int, page_size: int = 1) -> None:
        self.page_size = page_size
        self._to_pair: PageMap = np.full(carrier_pages, NONE, dtype=np.int32)
        self._to_carrier: PageMap = np.full(pages, NONE, dtype=np.int32)

    @property
    def to_pair(self) -> PageMap:
        """Paired page of each carrier page, or -1: a view that can not be written, for audits."""
        return _read_only(self._to_pair)

    @property
    def to_carrier(self) -> PageMap:
        """Carrier page of each paired page, or -1: a view that can not be written, for audits."""
        return _read_only(self._to_carrier)

    def pair(self, carrier_pages: Pages, pages: Pages) -> None:
        """Pair each of `carrier_pages` with the one of `pages` at its place.

        Pages of both are distinct, and none is in a pair.
        """
        assert len(carrier_pages) == len(pages)
        assert (self._to_pair[carrier_pages] == NONE).all()
        assert (self._to_carrier[pages] == NONE).all()
        self._to_pair[carrier_pages] = pages
        self._to_carrier[pages] = carrier_pages

    def clear(self, pages: PageRange) -> None:
        """Undo the pairs of `pages` (of the paired pool); those in no pair stay as they are."""
        carriers = self._to_carrier[pages]
        self._to_pair[carriers[carriers != NONE]] = NONE
        self._to_carrier[pages] = NONE

    def move(self, from_carrier_pages: Pages, to_carrier_pages: Pages) -> None:
        """Give what is paired with the first pages to the second, place by place.

        None of the second is in a pair. A page of the first that is in none gives nothing.
        """
        assert len(from_carrier_pages) == len(to_carrier_pages)
        assert (self._to_pair[to_carrier_pages] == NONE).all()
        pages = self._to_pair[from_carrier_pages]
        self._to_pair[from_carrier_pages] = NONE
        self._to_pair[to_carrier_pages] = pages
        found = pages != NONE
        self._to_carrier[pages[found]] = to_carrier_pages[found]

    def pages_of(self, carrier_pages: PageRange) -> Pages:
        """Return the paired page of each of `carrier_pages`, -1 where there is none; a copy."""
        return self._to_pair[carrier_pages].astype(np.int64)

    def slots_of(self, carrier_slots: Slots | npt.NDArray[np.int32]) -> Slots:
        """Return the paired slot of each of `carrier_slots`, -1 where there is none; a copy."""
        size = self.page_size
        if size == 1:
            return self._to_pair[carrier_slots].astype(np.int64)
        pages, offsets = np.divmod(carrier_slots, size)
        slots = self._to_pair[pages].astype(np.int64)
        missing = slots == NONE
        slots *= size
        slots += offsets
        slots[missing] = NONE
        return slots


def _read_only(array: PageMap) -> PageMap:
    view = array.view()
    view.flags.writeable = False
    return view
