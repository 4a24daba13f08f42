"""Mail that a fault holds back, and what ends with it: delays, swaps, stalls, full mailboxes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from radixtide.actors.cell import Cell

Act = Callable[[], None]

SWAP_S = 0.05
"""Mail that waits to be overtaken waits no longer, in seconds, where a fault says nothing else."""


class _Held(NamedTuple):
    timer: asyncio.TimerHandle
    act: Act
    owner: Any


class Held:
    """What is to happen later, or at once when all is let go.

    `loop`: whose time counts. Every entry has an owner (an actor system), whose entries can be let
    go apart from others.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._number = 0
        self._held: dict[int, _Held] = {}
        self._swaps: dict[Hashable, list[int]] = {}
        self._stalls: dict[Cell, list[Act]] = {}
        self._capacities: dict[Cell, int] = {}

    def __len__(self) -> int:
        """Return how many entries wait, each stalled message counted."""
        return len(self._held) + sum(len(mail) for mail in self._stalls.values())

    @property
    def in_the_way(self) -> bool:
        """Whether mail that arrives may have to wait, or lets other mail go."""
        return bool(self._stalls or self._swaps)

    def later(self, owner: Any, seconds: float, act: Act) -> int:
        """Do `act` in `seconds`; returns the entry's number."""
        self._number += 1
        number = self._number
        timer = self._loop.call_later(seconds, self._end, number)
        self._held[number] = _Held(timer, act, owner)
        return number

    def _end(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            held.timer.cancel()
            held.act()

    # -- delivery -----------------------------------------------------------------

    def arrive(self, lane: Hashable, cell: Cell | None, deliver: Act) -> None:
        """Deliver now, unless `cell` is stalled; then what waits to be overtaken in `lane`."""
        stalled = None if cell is None else self._stalls.get(cell)
        if stalled is not None:
            stalled.append(deliver)
            return
        # Taken out before: what is delivered may send mail of its own at once.
        overtaken = self._swaps.pop(lane, ()) if self._swaps else ()
        deliver()
        for number in overtaken:
            self._end(number)

    def swap(self, lane: Hashable, owner: Any, seconds: float, deliver: Act) -> None:
        """Deliver after the next mail in `lane`, or in `seconds`."""
        number = self.later(owner, seconds, deliver)
        self._swaps.setdefault(lane, []).append(number)

    def stall(self, cell: Cell, seconds: float) -> None:
        """Hold back all mail of `cell` for `seconds`, in order; a stall is not made longer."""
        if cell not in self._stalls:
            self._stalls[cell] = []
            self.later(cell.system, seconds, lambda: self._end_stall(cell))

    def _end_stall(self, cell: Cell) -> None:
        for deliver in self._stalls.pop(cell, ()):
            deliver()

    def fill(self, cell: Cell, seconds: float) -> None:
        """Leave the mailbox of `cell` no room for `seconds`."""
        if cell not in self._capacities:
            self._capacities[cell] = cell.capacity
            cell.capacity = 0
            self.later(cell.system, seconds, lambda: self._empty(cell))

    def _empty(self, cell: Cell) -> None:
        capacity = self._capacities.pop(cell, None)
        if capacity is not None:
            cell.capacity = capacity

    def let_go(self, owner: Any = None) -> None:
        """Let everything of `owner` (None: of everybody) happen now, in the order it was held."""
        for number, held in list(self._held.items()):
            if owner is None or held.owner is owner:
                self._end(number)
        self._swaps = {
            lane: numbers
            for lane, numbers in self._swaps.items()
            if any(number in self._held for number in numbers)
        }


__all__ = ("SWAP_S", "Held")
