"""What the faults of a plan have hit, so that each can be named: the same plan without chance.

A fault that happens by chance, or to the nth message of all, hits another one as soon as a step of
a script is left out. One that is named by what it hit (the third `Commit` from the coordinator to
full) stays where it is. Making a failing case small hangs on that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any, Protocol

import msgspec

from radixtide.simulation.plan import Fault, FaultPlan

Address = tuple[tuple[str, Any], ...]
"""Fields of a fault that chooses only events like one that was hit, with their values."""


class Hitting(Protocol):
    """A fault of a plan as far as it is needed here; see :class:`.decisions.Armed`."""

    fault: Fault
    order: int
    fired: int
    drawn: dict[int, float]


class _Hit(msgspec.Struct, frozen=True):
    """One event that was hit; for the fields see :meth:`Happened.hit`."""

    armed: Any
    number: int
    key: Hashable
    address: Address
    before: int
    own: bool


class Happened:
    """Counts events, and remembers which of them were hit by what."""

    def __init__(self) -> None:
        self._events: Counter[Hashable] = Counter()
        self._hits: list[_Hit] = []

    def count(self, key: Hashable) -> int:
        """Count an event; return how many like it came before."""
        before = self._events[key]
        self._events[key] = before + 1
        return before

    def hit(
        self, armed: Hitting, key: Hashable, address: Address, before: int, *, own: bool
    ) -> None:
        """Remember that a fault has just happened to an event.

        `key`: of events like it, whoever was asked about them. `before`: how many came before; with
        `own` only those are counted that this very fault was asked about.
        """
        self._hits.append(_Hit(armed, armed.fired, key, address, before, own))

    def exact(self) -> FaultPlan:
        """Return a plan of one fault for each hit. Cost O(hits).

        In the same run it does the same, but for what is drawn beside times: which page is damaged,
        how far a copy gets. A fault that hits takes the event, so that those which stand after it
        in the plan, its own next hit included, do not see it: these do not count for them.
        """
        taken: Counter[tuple[Hashable, int]] = Counter()
        named: list[tuple[int, int, Fault]] = []
        for at, hit in enumerate(self._hits):
            order = hit.armed.order
            others = (order,) if hit.own else range(order + 1)
            skip = hit.before - sum(taken[hit.key, one] for one in others)
            taken[hit.key, order] += 1
            fields = {"skip": skip, "count": 1, "probability": 1.0, **dict(hit.address)}
            if hit.number in hit.armed.drawn:
                fields |= {"seconds": hit.armed.drawn[hit.number], "seconds_max": None}
            named.append((order, at, msgspec.structs.replace(hit.armed.fault, **fields)))
        return FaultPlan(tuple(fault for _, _, fault in sorted(named, key=lambda one: one[:2])))


__all__ = ("Address", "Happened", "Hitting")
