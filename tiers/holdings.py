"""Holdings: the slots that a request holds and has not given to the tree."""

from __future__ import annotations

from collections import deque

import numpy as np

from radixtide.tiers.slots import EMPTY, Slots


class Holding:
    """One request's own slots, in the order of its tokens, after its protected prefix.

    ``used``: how many of them were asked for; the rest is room in the last page. The slots are kept
    as the parts they came in: giving a chunk to the tree cuts views off the front, so that a long
    prompt that is cached in many chunks is not copied at each of them.
    """

    __slots__ = ("_parts", "holder", "total", "used")

    def __init__(self, holder: int) -> None:
        self.holder = holder
        self.total = 0
        self.used = 0
        self._parts: deque[Slots] = deque()

    @property
    def room(self) -> int:
        """Slots of the last page that were not asked for yet."""
        return self.total - self.used

    def slots(self, count: int | None = None) -> Slots:
        """Return the first `count` slots (None: all); not to be written to. O(count)."""
        wanted = self.total if count is None else count
        parts: list[Slots] = []
        for part in self._parts:
            if wanted <= 0:
                break
            parts.append(part[:wanted])
            wanted -= len(part)
        if not parts:
            return EMPTY
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def copy(self) -> Holding:
        """Return a holding of the same slots that changes apart from this one."""
        twin = Holding(self.holder)
        twin.total = self.total
        twin.used = self.used
        twin._parts = self._parts.copy()
        return twin

    def use_room(self, slots: int) -> Slots:
        """Use up to `slots` slots of the room; return a copy of them."""
        count = min(slots, self.room)
        if not count:
            return EMPTY
        # The room is in the last page, hence in the last part.
        last = self._parts[-1]
        begin = len(last) - self.room
        self.used += count
        return last[begin : begin + count].copy()

    def extend(self, slots: Slots, used: int) -> None:
        """Append whole pages, of which `used` slots are asked for. There must be no room."""
        assert self.room == 0
        self._parts.append(slots)
        self.total += len(slots)
        self.used += used

    def drop_front(self, slots: int) -> None:
        """Forget the first `slots` slots (whole pages): they have a new owner."""
        self.total -= slots
        self.used = max(self.used - slots, 0)
        left = slots
        while left:
            first = self._parts.popleft()
            if len(first) > left:
                self._parts.appendleft(first[left:])
                return
            left -= len(first)

    def shrink(self, used: int, page_size: int) -> Slots:
        """Take back all but the first `used` slots; return the whole pages that are left over."""
        keep = -(-used // page_size) * page_size
        slots = self.slots()
        self._parts = deque([slots[:keep]] if keep else [])
        self.total = keep
        self.used = used
        return slots[keep:].copy()
