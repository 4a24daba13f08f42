"""Eviction, allocation and freeing: victims proposed by components, removed by the coordinator."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from radixtide.actors.actor import Conversation
from radixtide.actors.calls import Free, UndoAllocate
from radixtide.actors.messages import (
    CheckRelease,
    EvictNodes,
    Propose,
    Release,
    Reserve,
    Unlock,
    Unreserve,
)
from radixtide.actors.state import State
from radixtide.components.api import AllocateParams, AllocateResult, EvictParams, EvictResult
from radixtide.components.base import Reserved, Shortage
from radixtide.configs.errors import InvalidInput, InvalidRequest, OutOfSlots
from radixtide.tiers.slots import ANONYMOUS, EMPTY

NO_EVICTION = EvictResult()


def evict(state: State, p: EvictParams) -> Conversation:
    """Free at least what is asked for, where it is evictable."""
    if p.swa_num_tokens or p.mamba_num:
        raise InvalidInput("this cache has neither an swa nor a mamba component to evict from")
    yield from expire_pins(state)
    if not p.num_tokens:
        return NO_EVICTION
    freed = yield from evict_units(state, p.num_tokens)
    return EvictResult(freed)


def evict_units(state: State, units: int) -> Generator[Any, Any, int]:
    """Evict Full leaves until `units` slots are free or nothing is left; return how many."""
    victims = yield state.full, Propose(units)
    if not victims:
        return 0
    freed = yield from remove_nodes(state, victims)
    return freed


def remove_nodes(state: State, victims: list[Any]) -> Generator[Any, Any, int]:
    """Take `victims`, children first, out of every component and out of the tree."""
    parts = yield state.all(EvictNodes(victims))
    tree = state.tree
    remember = state.ghosts.remember
    for node in victims:
        remember(node)
        tree.remove(node)
    counters = state.counters
    counters.evicted_nodes += len(victims)
    counters.evicted_units += parts[0]
    freed: int = parts[0]
    return freed


def expire_pins(state: State) -> Generator[Any, Any, int]:
    """Release the pins whose time is over; return how many."""
    dropped = 0
    while (pin := state.pins.next_expired(state.clock())) is not None:
        yield from drop_pin(state, pin)
        dropped += 1
    return dropped


def drop_pin(state: State, pin: Any) -> Generator[Any, Any, None]:
    """Release one pin."""
    yield state.all(Unlock(pin.node, pin.records))
    state.pins.remove(pin)


def allocate(state: State, p: AllocateParams) -> Conversation:
    """Take slots, evicting as needed, in one step."""
    wanted = p.num_tokens
    if p.mamba_num or p.swa_num_tokens:
        raise InvalidInput("this cache has neither an swa nor a mamba pool to allocate from")
    req = p.req
    if not wanted:
        return AllocateResult(torch.from_numpy(EMPTY.copy()), NO_EVICTION)
    entry = None
    holder = ANONYMOUS
    if req is not None:
        known = state.ledger.get(req)
        used = known.protected + known.allocated if known is not None else 0
        if req.req_pool_idx is not None:
            state.rows.check(req.req_pool_idx)
            if used + wanted > state.rows.max_context:
                raise InvalidRequest(
                    f"request {req.rid!r} would have {used + wanted} tokens, its row only "
                    f"{state.rows.max_context} (pools.requests.max_context)"
                )
        entry = state.ledger.open(req, state.rows)
        holder = entry.holder
    state.counters.allocations += 1
    evicted = NO_EVICTION
    try:
        reply = yield state.full, Reserve(wanted, holder)
        if isinstance(reply, Shortage) and (yield from expire_pins(state)):
            reply = yield state.full, Reserve(wanted, holder)
        if isinstance(reply, Shortage):
            sizes = reply.sizes
            if sizes.free + sizes.evictable < reply.wanted:
                state.counters.refused_allocations += 1
                raise out_of_slots(state, reply)
            freed = yield from evict_units(state, reply.wanted - sizes.free)
            evicted = EvictResult(freed)
            reply = yield state.full, Reserve(wanted, holder)
            assert isinstance(reply, Reserved), "evicted enough, yet short of slots"
    except GeneratorExit:
        _close_if_empty(state, entry)
        raise
    except OutOfSlots:
        _close_if_empty(state, entry)
        raise
    slots = reply.slots
    if entry is not None:
        entry.write(state.rows, entry.protected + reply.position, slots[:wanted])
        entry.allocated = reply.position + wanted
    return AllocateResult(torch.from_numpy(slots), evicted)


def _close_if_empty(state: State, entry: Any) -> None:
    if entry is not None and entry.receipt is None and not entry.allocated:
        state.ledger.close(entry)


def out_of_slots(state: State, short: Shortage) -> OutOfSlots:
    """Return the error that tells what Full's pool has."""
    sizes = short.sizes
    return OutOfSlots(
        {
            state.full.name: {
                "wanted": short.wanted,
                "free": sizes.free,
                "evictable": sizes.evictable,
                "protected": sizes.protected,
                "held": sizes.held,
                "size": sizes.size,
            }
        }
    )


def undo_allocate(state: State, p: UndoAllocate) -> Conversation:
    """Give back slots whose caller went away."""
    if p.req is None:
        yield state.full, Unreserve(p.slots, ANONYMOUS, 0, p.used)
        return
    entry = state.ledger.find(p.req)
    if entry is None or entry.allocated < p.used:
        return
    position = entry.allocated - p.used
    if (yield state.full, Unreserve(p.slots, entry.holder, position, p.used)):
        entry.allocated = position
        _close_if_empty(state, entry)


def free(state: State, p: Free) -> Conversation:
    """Free slots that were allocated without a request."""
    cell = state.cell(p.component)
    yield cell, CheckRelease(p.slots, ANONYMOUS)
    yield cell, Release(p.slots)
