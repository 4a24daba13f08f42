"""Holdings: the slots that a request holds and has not given to the tree."""

from __future__ import annotations

import numpy as np

from radixtide.tiers.slots import EMPTY, Slots


class Holding:
    """One request's own slots, in the order of its tokens, after its protected prefix.

    ``used``: how many of them were asked for; the rest is room in the last page.
    """

    __slots__ = ("_parts", "holder", "total", "used")

    def __init__(self, holder: int) -> None:
        self.holder = holder
        self.total = 0
        self.used = 0
        self._parts: list[Slots] = []

    @property
    def room(self) -> int:
        """Slots of the last page that were not asked for yet."""
        return self.total - self.used

    def slots(self) -> Slots:
        """Return all slots, shape (total,). O(total) at the first call after a change."""
        if not self._parts:
            return EMPTY
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    def use_room(self, slots: int) -> Slots:
        """Use up to `slots` slots of the room; return them."""
        count = min(slots, self.room)
        if not count:
            return EMPTY
        used = self.used
        self.used += count
        # The room is in the last page, hence in the last part.
        begin = used - (self.total - len(self._parts[-1]))
        return self._parts[-1][begin : begin + count].copy()

    def extend(self, slots: Slots, used: int) -> None:
        """Append whole pages, of which `used` slots are asked for. There must be no room."""
        assert self.room == 0
        self._parts.append(slots)
        self.total += len(slots)
        self.used += used

    def drop_front(self, slots: int) -> None:
        """Forget the first `slots` slots (whole pages): they have a new owner."""
        rest = self.slots()[slots:].copy()
        self._parts = [rest] if len(rest) else []
        self.total = len(rest)
        self.used = max(self.used - slots, 0)

    def shrink(self, used: int, page_size: int) -> Slots:
        """Take back all but the first `used` slots; return the whole pages that are left over."""
        keep = -(-used // page_size) * page_size
        slots = self.slots()
        rest = slots[keep:].copy()
        self._parts = [slots[:keep].copy()] if keep else []
        self.total = keep
        self.used = used
        return rest
