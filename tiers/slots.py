"""Slot allocator: who owns which page of a pool.

A pool has ``size`` slots in pages of ``page_size``. A page belongs to exactly one owner: it is
free, the tree's, or held by a holder (a request, or the anonymous holder for slots handed out
without one). Owners are recorded per page, so giving a page that is not one's own to give is found
before anything changes. All calls are O(slots named), none depends on the size of the pool.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

from radixtide.configs.errors import DoubleFree, SlotError

Slots = npt.NDArray[np.int64]
Pages = npt.NDArray[np.int64]
PageRange = Pages | slice
"""Pages in order; a slice where they are one ascending run."""

FREE: Final = 0
TREE: Final = 1
ANONYMOUS: Final = 2
FIRST_HOLDER: Final = 3
"""Numbers from here on are holders: requests."""

SLOTS_MAX: Final = 2**31 - 1
"""Slots of one pool: a node keeps its slots as int32."""
_OWNER: Final = struct.Struct("=i")

EMPTY: Final[Slots] = np.empty(0, dtype=np.int64)


RAMP_SLOTS: Final = 2**22
"""Slots that the ramp has: 32 MiB; beyond it runs are told by their steps, at twice the cost."""


@lru_cache(maxsize=8)
def ramp(size: int) -> bytes:
    """Return the numbers below `size` as int64 in memory: 8 bytes a slot, shared by equal pools.

    Slots that ascend by one are a piece of it, which one comparison of memory tells.
    """
    return np.arange(size, dtype=np.int64).tobytes()


class SlotAllocator:
    """The books of one pool on one tier.

    Args:
        size: slots; a multiple of `page_size`.
        page_size: slots a page.
        name: for messages.
    """

    __slots__ = (
        "_free",
        "_offsets",
        "_owner",
        "_ramp",
        "_seen",
        "_top",
        "name",
        "page_size",
        "pages",
        "tree_pages",
    )

    def __init__(self, size: int, page_size: int, name: str) -> None:
        if size % page_size or size < page_size:
            raise SlotError(
                f"pool {name}: size {size} is not a positive multiple of page size {page_size}"
            )
        if size > SLOTS_MAX:
            raise SlotError(f"pool {name}: {size} slots are more than {SLOTS_MAX}")
        self.name = name
        self.page_size = page_size
        self.pages = size // page_size
        # A stack whose top is its end. Pages leave it reversed, so that a fresh pool hands out
        # ascending runs.
        self._free: Pages = np.arange(self.pages - 1, -1, -1, dtype=np.int64)
        self._top = self.pages
        self._owner = np.zeros(self.pages, dtype=np.int32)
        self._seen = np.zeros(self.pages, dtype=np.int32)
        self._offsets = np.arange(page_size, dtype=np.int64)
        self._ramp = ramp(min(size, RAMP_SLOTS))
        self.tree_pages = 0

    @property
    def size(self) -> int:
        """Slots of the pool."""
        return self.pages * self.page_size

    @property
    def free(self) -> int:
        """Slots that nobody owns."""
        return self._top * self.page_size

    @property
    def held(self) -> int:
        """Slots that holders own."""
        return (self.pages - self._top - self.tree_pages) * self.page_size

    def whole_pages(self, slots: int) -> int:
        """Return how many pages `slots` slots need."""
        return -(-slots // self.page_size)

    def take(self, pages: int, holder: int) -> Slots:
        """Give `pages` free pages (there must be as many) to `holder`; return their slots."""
        top = self._top
        assert 0 <= pages <= top
        taken = self._free[top - pages : top][::-1]
        self._top = top - pages
        self._owner[taken] = holder
        if self.page_size == 1:
            return taken.copy()
        return (taken[:, None] * self.page_size + self._offsets).ravel()

    def check(self, slots: Slots, *holders: int) -> PageRange:
        """Return the pages of `slots`, which must be whole, distinct and owned by `holders`.

        Raises:
            DoubleFree: a page is free.
            SlotError: out of range, not whole pages, repeated, the tree's, or somebody else's.
        """
        count = len(slots)
        if not count:
            return EMPTY
        size = self.page_size
        if count % size:
            raise SlotError(
                f"pool {self.name}: {count} slots are not whole pages of {size}; give whole pages"
            )
        first, last = slots.item(0), slots.item(-1)
        run = last - first == count - 1 and first >= 0 and first % size == 0 and last < self.size
        if run and self._ascends(slots, first, last):
            # One ascending run: distinct by nature, owners are one slice.
            page = first // size
            owners = self._owner[page : last // size + 1]
            self._check_owners(owners, page, None, holders)
            return slice(page, last // size + 1)
        if int(slots.min()) < 0 or int(slots.max()) >= self.size:
            at = int(np.argmax((slots < 0) | (slots >= self.size)))
            raise SlotError(
                f"pool {self.name}: slot {int(slots[at])} at position {at} is not in "
                f"[0, {self.size})"
            )
        if size == 1:
            pages = slots
        else:
            heads = slots[::size]
            pages = heads // size
            expected = (pages[:, None] * size + self._offsets).ravel()
            if not np.array_equal(slots, expected):
                at = int(np.argmax(slots != expected))
                raise SlotError(
                    f"pool {self.name}: slot {int(slots[at])} at position {at} breaks its page; "
                    f"slots must be whole pages of {size} in order"
                )
        self._check_owners(self._owner[pages], 0, pages, holders)
        order = np.arange(len(pages), dtype=np.int32)
        self._seen[pages] = order
        if not np.array_equal(self._seen[pages], order):
            at = int(np.argmax(self._seen[pages] != order))
            raise SlotError(
                f"pool {self.name}: slot {int(pages[at]) * size} at position {at * size} is "
                "given twice"
            )
        return pages

    def _ascends(self, slots: Slots, first: int, last: int) -> bool:
        """Return whether each slot is one more than the one before."""
        if last < RAMP_SLOTS:
            return self._ramp.startswith(slots, first * 8)  # type: ignore[arg-type]  # any buffer
        return bool((slots[1:] - slots[:-1] == 1).all())

    def check_one(self, slot: int, holder: int) -> None:
        """As :meth:`check`, of one slot that is a page."""
        if not 0 <= slot < self.pages or self._owner.item(slot) != holder:
            self.check(np.array([slot], dtype=np.int64), holder)

    def _check_owners(
        self,
        owners: npt.NDArray[np.int32],
        first: int,
        pages: Pages | None,
        holders: tuple[int, ...],
    ) -> None:
        count = len(owners)
        if count <= 1024 and owners.tobytes() == _OWNER.pack(holders[0]) * count:
            # For the lengths that requests have, cheaper than a comparison and a reduction.
            return
        fine = owners == holders[0]
        for other in holders[1:]:
            fine |= owners == other
        if fine.all():
            return
        at = int(np.argmin(fine))
        page = first + at if pages is None else int(pages[at])
        slot = page * self.page_size
        owner = int(owners[at])
        if owner == FREE:
            raise DoubleFree(f"pool {self.name}: slot {slot} is free; it was given back before")
        whose = {TREE: "the tree's", ANONYMOUS: "held outside of any request"}.get(
            owner, "held by another request"
        )
        raise SlotError(f"pool {self.name}: slot {slot} is {whose}, not the caller's to give")

    def pages_of(self, slots: Slots) -> Pages:
        """Return the pages of `slots`, which are whole pages in order."""
        if self.page_size == 1:
            return slots
        return slots[:: self.page_size] // self.page_size

    def adopt(self, pages: PageRange, skip: int = 0) -> None:
        """Make held pages (checked, or known), but for the first `skip`, the tree's."""
        if isinstance(pages, slice):
            start = pages.start + skip
            self.tree_pages += pages.stop - start
            self._owner[start : pages.stop] = TREE
        else:
            pages = pages[skip:]
            self.tree_pages += len(pages)
            self._owner[pages] = TREE

    def adopt_one(self, page: int) -> None:
        """As :meth:`adopt`, of one page."""
        self.tree_pages += 1
        self._owner[page] = TREE

    def release(self, slots: Slots) -> None:
        """Make held `slots` (checked, or known) free."""
        self._push(self.pages_of(slots))

    def release_pages(self, pages: Pages) -> None:
        """Make held `pages`, which are distinct, free."""
        self._push(pages)

    def release_tree(self, slots: Slots) -> None:
        """Make `slots` of the tree free."""
        pages = self.pages_of(slots)
        self.tree_pages -= len(pages)
        self._push(pages)

    def _push(self, pages: Pages) -> None:
        count = len(pages)
        self._owner[pages] = FREE
        self._free[self._top : self._top + count] = pages[::-1]
        self._top += count

    def owners(self) -> npt.NDArray[np.int32]:
        """Return the owner of each page (a view, for audits; do not write)."""
        return self._owner

    def free_pages(self) -> Pages:
        """Return the free pages (a view, for audits; do not write)."""
        return self._free[: self._top]

    def rebuild(
        self, tree_pages: Pages, held: dict[int, Pages], keep_anonymous: bool = True
    ) -> int:
        """Make the books say exactly this; return how many pages nobody claimed before.

        For repairs after a crash: a page that neither tree nor holder claims is free. With
        `keep_anonymous`, pages of the anonymous holder stay as they are, since only their holder
        knows them. O(size of the pool).
        """
        owner = np.zeros(self.pages, dtype=np.int32)
        if keep_anonymous:
            owner[self._owner == ANONYMOUS] = ANONYMOUS
        owner[tree_pages] = TREE
        for holder, pages in held.items():
            owner[pages] = holder
        lost = int(np.count_nonzero((owner == FREE) & (self._owner != FREE)))
        self._owner = owner
        free = np.flatnonzero(owner == FREE)[::-1]
        self._free[: len(free)] = free
        self._top = len(free)
        self.tree_pages = len(tree_pages)
        return lost
