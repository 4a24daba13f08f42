"""What an answer may be at most, and what it must be at least.

At most: what was ever given to the cache under that namespace. At least: what a lock protects, and
what was seen when nothing has been dropped since.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from radixtide.components.api import LockReceipt, Slots
from radixtide.simulation.oracle_content import MarkArray

Token = tuple[int, ...]
"""What :class:`~radixtide.simulation.checks.Losses` counts."""


@dataclass(frozen=True, slots=True)
class Before:
    """What was so when a call was made.

    ``token``: losses; ``serial``: locks known by then; ``generation``: how often the cache had been
    reset, which may happen again before the answer is looked at.
    """

    token: Token
    serial: int
    generation: int
    degraded: bool


@dataclass(eq=False, slots=True)
class Lock:
    """What one receipt protects.

    ``marks``, ``slots``: of the units that it covers. ``whole``: every component can go on from its
    end; else only Full is known. ``since``: its place among the locks. ``coming``: how many of its
    last units are being loaded. ``leaving``: its request may have given it up by now. ``arrived``:
    the place at which its load was known to be over, 0 without one.
    """

    receipt: LockReceipt
    marks: MarkArray
    slots: Slots
    whole: bool
    since: int
    rid: str | None = None
    coming: int = 0
    leaving: bool = False
    arrived: int = 0

    @property
    def length(self) -> int:
        """Units that it covers."""
        return len(self.slots)

    @property
    def settled(self) -> bool:
        """Whether nothing of it is being loaded."""
        return not self.coming

    def common(self, marks: MarkArray, page: int) -> int:
        """Return how many units, in whole pages, of a key of `marks` are those of this lock."""
        most = min(len(self.slots), len(marks))
        if most and self.marks[most - 1] != marks[most - 1]:
            most = int((self.marks[:most] != marks[:most]).argmax())
        return most - most % page


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a pin keeps: units of `marks`, until some time, in one generation of the tree."""

    marks: MarkArray
    until: float
    generation: int
    since: int

    def common(self, marks: MarkArray, page: int) -> int:
        """Return how many units, in whole pages, of a key of `marks` are pinned."""
        return common_pages(self.marks, marks, page)


def common_pages(some: MarkArray, others: MarkArray, page: int) -> int:
    """Return how many units, in whole pages, two keys of these marks share."""
    most = min(len(some), len(others))
    if most and some[most - 1] != others[most - 1]:
        most = int((some[:most] != others[:most]).argmax())
    return most - most % page


@dataclass(eq=False, slots=True)
class Known:
    """Upper bound: the ends of all pages that were given to the cache, and in which generation.

    ``lasting``: what was given once may come back after a reset, from a storage.
    """

    page: int
    lasting: bool
    ends: dict[int, int] = field(default_factory=dict)

    def learn(self, marks: MarkArray, length: int, generation: int) -> None:
        """Note that the first `length` units of a key may be in the cache from now on."""
        self.ends.update(
            dict.fromkeys(marks[self.page - 1 : length : self.page].tolist(), generation)
        )

    def check(self, what: str, marks: MarkArray, length: int, generation: int) -> list[str]:
        """Return what is wrong with a hit of `length` units on a key of `marks`."""
        if length % self.page:
            return [f"{what}: {length} units are not whole pages of {self.page}"]
        if length > len(marks):
            return [f"{what}: {length} units of a key of {len(marks)}"]
        if not length:
            return []
        given = self.ends.get(int(marks[length - 1]))
        if given is None:
            return [f"{what}: {length} units, which were never given under this namespace"]
        if given < generation and not self.lasting:
            return [f"{what}: {length} units, which were given before the last reset only"]
        return []


@dataclass(eq=False, slots=True)
class Seen:
    """Lower bound: the ends of what could be reused, as long as nothing was dropped since.

    ``ends``: each with its place among all that was noted: what was noted after a call was made
    may have come after it.
    """

    page: int
    token: Token = ()
    ends: dict[int, int] = field(default_factory=dict)

    def add(self, before: Before, now: Token, marks: MarkArray, length: int, serial: int) -> None:
        """Note that `length` units could be reused at some time since `before`."""
        if before.token != now or not length:
            return
        if now != self.token:
            self.token = now
            self.ends.clear()
        self.ends.setdefault(int(marks[length - 1]), serial)

    def least(self, now: Token, marks: MarkArray, before: Before) -> int:
        """Return how much of a key must be there for a call that was made at `before`."""
        if now != self.token or not self.ends:
            return 0
        ends = marks[self.page - 1 :: self.page].tolist()
        for at in range(len(ends), 0, -1):
            if self.ends.get(ends[at - 1], before.serial + 1) <= before.serial:
                return at * self.page
        return 0


def same_slots(what: str, found: Slots, lock: Lock, common: int) -> list[str]:
    """Return what is wrong where a locked prefix has other slots than it had."""
    most = min(common, len(found))
    if np.array_equal(found[:most], lock.slots[:most]):
        return []
    at = int((found[:most] != lock.slots[:most]).argmax())
    there, locked = int(found[at]), int(lock.slots[at])
    return [f"{what}: unit {at} is in slot {there}, under lock {lock.receipt.id} in {locked}"]
