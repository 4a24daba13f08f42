"""Pins: cached keys that stay for a time, within a budget.

A pin is a lock that the cache holds itself. The budget counts the union of what is pinned: like
protection, it is counted once per edge on ``node.pins``.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from radixtide.tree.key import RadixKey
from radixtide.tree.node import Node

PinName = tuple[bytes, bytes]


class Pin:
    """One pinned key. ``records``: what each component counted."""

    __slots__ = ("expires_at", "name", "node", "records")

    def __init__(self, name: PinName, node: Node, records: list[Any], expires_at: float) -> None:
        self.name = name
        self.node = node
        self.records = records
        self.expires_at = expires_at


class PinBoard:
    """All pins. Times are the coordinator's clock, in seconds; sizes in units."""

    __slots__ = ("_expiries", "_pins", "budget", "units")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.units = 0
        self._pins: dict[PinName, Pin] = {}
        self._expiries: list[tuple[float, PinName]] = []

    def __len__(self) -> int:
        return len(self._pins)

    @staticmethod
    def name(key: RadixKey) -> PinName:
        """Return what a pin of `key` is known by."""
        return key.namespace, key.raw

    def get(self, name: PinName) -> Pin | None:
        """Return the pin called `name`."""
        return self._pins.get(name)

    def nodes(self) -> Iterator[Node]:
        """Yield the node of every pin."""
        return (pin.node for pin in self._pins.values())

    def cost(self, node: Node) -> int:
        """Return the units that pinning `node` would add. O(depth)."""
        at = node
        while at.parent is not None and not at.pins:
            at = at.parent
        return node.end - at.end

    def add(self, pin: Pin) -> None:
        """Enter a pin, and count its path."""
        self._pins[pin.name] = pin
        heapq.heappush(self._expiries, (pin.expires_at, pin.name))
        at = pin.node
        while at.parent is not None:
            at.pins += 1
            if at.pins > 1:
                break
            at = at.parent
        self.units += pin.node.end - at.end

    def renew(self, pin: Pin, expires_at: float) -> None:
        """Give a pin a new expiry."""
        pin.expires_at = expires_at
        heapq.heappush(self._expiries, (expires_at, pin.name))

    def remove(self, pin: Pin) -> None:
        """Take a pin out, and uncount its path."""
        del self._pins[pin.name]
        at = pin.node
        while at.parent is not None:
            at.pins -= 1
            if at.pins:
                break
            at = at.parent
        self.units -= pin.node.end - at.end

    def next_expired(self, now: float) -> Pin | None:
        """Return a pin whose time is over, or None. Amortised O(log pins).

        It stays on the board until it is removed: the caller may not get to that.
        """
        while self._expiries and self._expiries[0][0] <= now:
            expires_at, name = self._expiries[0]
            pin = self._pins.get(name)
            if pin is not None and pin.expires_at == expires_at:
                return pin
            heapq.heappop(self._expiries)
        return None

    def all(self) -> list[Pin]:
        """Return all pins."""
        return list(self._pins.values())
