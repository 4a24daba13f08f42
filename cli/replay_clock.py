"""A clock that jumps: virtual time in whole nanoseconds, and what is to happen when."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

_Due = tuple[int, int, Callable[..., Any], tuple[Any, ...]]


class VirtualClock:
    """Time that passes only when it is told to.

    It is what copies that are modelled ask for their end (``call_later``), in place of the event
    loop: a copy of a second then takes no longer than it takes to say so.
    """

    def __init__(self) -> None:
        self.now_ns = 0
        self._due: list[_Due] = []
        self._number = 0

    @property
    def next_ns(self) -> int | None:
        """When something happens next, or None."""
        return self._due[0][0] if self._due else None

    def call_later(self, seconds: float, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call `callback` when so many seconds have passed; those of one time in their order."""
        self._number += 1
        at_ns = self.now_ns + max(round(seconds * 1e9), 0)
        heapq.heappush(self._due, (at_ns, self._number, callback, arguments))

    def advance(self, now_ns: int) -> None:
        """Let time pass up to `now_ns`, and call what is due by then. It never runs backwards."""
        while self._due and self._due[0][0] <= now_ns:
            at_ns, _, callback, arguments = heapq.heappop(self._due)
            self.now_ns = max(self.now_ns, at_ns)
            callback(*arguments)
        self.now_ns = max(self.now_ns, now_ns)

    def jump(self) -> bool:
        """Let time pass up to what happens next; return False where nothing does."""
        next_ns = self.next_ns
        if next_ns is None:
            return False
        self.advance(next_ns)
        return True


__all__ = ("VirtualClock",)
