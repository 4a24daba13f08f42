"""Eviction, and the end of pins."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from radixtide.actors.actor import Conversation
from radixtide.actors.cascade import Freed, MustWait, evict_one
from radixtide.actors.envelope import WAIT_FOR_ROOM
from radixtide.actors.messages import Unlock
from radixtide.actors.state import State
from radixtide.components.api import EvictParams, EvictResult

NO_EVICTION = EvictResult()


def evict(state: State, p: EvictParams) -> Conversation:
    """Free at least what is asked for, where it is evictable."""
    targets = p.targets()
    state.check_pools(targets)
    if state.tiers is not None and state.tiers.in_line(WAIT_FOR_ROOM):
        return WAIT_FOR_ROOM
    yield from expire_pins(state)
    # What it freed before it had to wait, if it had to.
    freed: Freed = dict(state.evicted_before.get(id(p), (p, {}))[1])
    for cell in state.cells:
        # What one component's eviction frees of another counts toward that one's target.
        target = targets.get(cell.name, 0) - freed.get(cell.name, 0)
        if target > 0:
            try:
                add_freed(freed, (yield from evict_one(state, cell, target, may_wait=True)))
            except MustWait as wait:
                add_freed(freed, wait.freed)
                state.note_evicted(p, freed)
                return WAIT_FOR_ROOM
    state.evicted_before.pop(id(p), None)
    return EvictResult.of(freed) if freed else NO_EVICTION


def add_freed(total: Freed, more: Freed) -> None:
    """Add what an eviction freed to what was freed before."""
    for name, slots in more.items():
        total[name] = total.get(name, 0) + slots


def expire_pins(state: State) -> Generator[Any, Any, int]:
    """Release the pins whose time is over; return how many."""
    dropped = 0
    if state.together:
        # Clocks differ: pins end in a step of all ranks.
        return 0
    while (pin := state.pins.next_expired(state.clock())) is not None:
        yield from drop_pin(state, pin)
        dropped += 1
    return dropped


def drop_pin(state: State, pin: Any) -> Generator[Any, Any, None]:
    """Release one pin."""
    yield state.all(Unlock(pin.node, pin.records))
    state.pins.remove(pin)
