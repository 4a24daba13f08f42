"""Allocation over all pools, and freeing."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from radixtide.actors.actor import Conversation
from radixtide.actors.calls import Free, ReleaseWindow, UndoAllocate
from radixtide.actors.cascade import Freed, MustWait, evict_one
from radixtide.actors.envelope import WAIT_FOR_ROOM
from radixtide.actors.jobs import BACKUP
from radixtide.actors.ledger import Entry
from radixtide.actors.messages import (
    CarrierReleased,
    CheckRelease,
    GetSizes,
    Grant,
    Quote,
    Release,
    ReleasePaired,
    Reserve,
    Ungrant,
    Unreserve,
)
from radixtide.actors.op_evict import NO_EVICTION, add_freed, expire_pins
from radixtide.actors.state import State, close_if_empty
from radixtide.actors.tier_messages import Fence
from radixtide.components.api import AllocateParams, AllocateResult, EvictResult, Slots
from radixtide.components.outcomes import Reserved, Shortage, Sizes
from radixtide.components.request import Request
from radixtide.configs.errors import InvalidRequest, OutOfSlots
from radixtide.tiers.slots import ANONYMOUS, EMPTY


def allocate(state: State, p: AllocateParams) -> Conversation:
    """Take slots of every pool asked for, evicting as needed, in one step; all or nothing."""
    wanted = p.wanted(state.names)
    state.check_pools(wanted)
    req = p.req
    if not any(wanted.values()):
        return AllocateResult(torch.from_numpy(EMPTY.copy()), NO_EVICTION)
    if state.tiers is not None and state.tiers.in_line(WAIT_FOR_ROOM):
        # First come, first served.
        return WAIT_FOR_ROOM
    entry = None
    holder = ANONYMOUS
    if req is not None:
        _check_row(state, req, p.num_tokens)
        entry = state.ledger.open(req, state.rows)
        holder = entry.holder
    state.counters.allocations += 1
    freed: Freed = {}
    reserved: Reserved | None = None
    try:
        if state.others:
            yield from _make_room(state, wanted, holder, freed)
        if p.num_tokens:
            reserved = yield from _reserve(state, p.num_tokens, holder, freed)
    except MustWait:
        # It counts when it comes again.
        state.counters.allocations -= 1
        if entry is not None:
            close_if_empty(state, entry)
        return WAIT_FOR_ROOM
    except BaseException:
        if entry is not None:
            close_if_empty(state, entry)
        raise
    granted: dict[str, Slots] = {}
    if state.others:
        parts = yield [(cell, Grant(wanted, holder, reserved)) for cell in state.others]
        for cell, part in zip(state.others, parts, strict=True):
            if part is not None:
                granted[cell.name] = part
    slots = reserved.slots if reserved is not None else EMPTY.copy()
    if entry is not None and req is not None:
        if reserved is not None:
            position = entry.protected + reserved.position
            entry.write(state.rows, position, slots[: p.num_tokens])
            entry.allocated = reserved.position + p.num_tokens
        for cell in state.private:
            if cell.name in granted:
                entry.states += len(granted[cell.name])
                req.take_states(granted[cell.name].tolist())
    evicted = EvictResult.of(freed) if freed else NO_EVICTION
    indices = torch.from_numpy(slots)
    if not granted:
        return AllocateResult(indices, evicted)
    return AllocateResult.of(indices, evicted, granted)


def _check_row(state: State, req: Request, tokens: int) -> None:
    known = state.ledger.get(req)
    used = known.protected + known.allocated if known is not None else 0
    if req.req_pool_idx is None:
        return
    state.rows.check(req.req_pool_idx)
    if used + tokens > state.rows.max_context:
        raise InvalidRequest(
            f"request {req.rid!r} would have {used + tokens} tokens, its row only "
            f"{state.rows.max_context} (pools.requests.max_context)"
        )


def _reserve(state: State, tokens: int, holder: int, freed: Freed) -> Generator[Any, Any, Reserved]:
    """Take slots of the carrier's pool."""
    reply = yield state.carrier, Reserve(tokens, holder)
    if isinstance(reply, Shortage) and (yield from expire_pins(state)):
        reply = yield state.carrier, Reserve(tokens, holder)
    if isinstance(reply, Shortage):
        sizes = reply.sizes
        if sizes.free + sizes.evictable < reply.wanted:
            _wait_for_copies(state)
            state.counters.refused_allocations += 1
            raise OutOfSlots({state.carrier.name: _told(reply.wanted, sizes)})
        target = reply.wanted - sizes.free
        more = yield from evict_one(state, state.carrier, target, may_wait=True)
        add_freed(freed, more)
        reply = yield state.carrier, Reserve(tokens, holder)
    assert isinstance(reply, Reserved), "evicted enough, yet short of slots"
    return reply


def _wait_for_copies(state: State) -> None:
    """Raise MustWait where what is saved before its eviction may soon be enough."""
    tiers = state.tiers
    if tiers is not None and tiers.write_back and tiers.jobs.count(BACKUP):
        raise MustWait({})


def _make_room(
    state: State, wanted: dict[str, int], holder: int, freed: Freed
) -> Generator[Any, Any, None]:
    """Evict until every pool has what is wanted of it. Raises OutOfSlots before any eviction."""
    quotes = yield state.all(Quote(wanted, holder))
    if any(quotes) and (yield from expire_pins(state)):
        quotes = yield state.all(Quote(wanted, holder))
    if not any(quotes):
        return
    if any(one is not None and one.sizes.free + one.sizes.evictable < one.wanted for one in quotes):
        _wait_for_copies(state)
        state.counters.refused_allocations += 1
        sizes = yield state.all(GetSizes())
        pools = {}
        for cell, quote, size in zip(state.cells, quotes, sizes, strict=True):
            asked = wanted.get(cell.name, 0)
            if asked:
                pools[cell.name] = _told(asked if quote is None else quote.wanted, size)
        raise OutOfSlots(pools)
    for cell, first in zip(state.cells, quotes, strict=True):
        if first is None:
            continue
        # Asked again: what was evicted for the pools before may have been enough for this one.
        quote = yield cell, Quote(wanted, holder)
        if quote is not None:
            target = quote.wanted - quote.sizes.free
            add_freed(freed, (yield from evict_one(state, cell, target, may_wait=True)))


def _told(wanted: int, sizes: Sizes) -> dict[str, int]:
    return {
        "wanted": wanted,
        "free": sizes.free,
        "evictable": sizes.evictable,
        "protected": sizes.protected,
        "held": sizes.held,
        "size": sizes.size,
    }


def undo_allocate(state: State, p: UndoAllocate) -> Conversation:
    """Give back slots whose caller went away."""
    entry: Entry | None = None
    position = 0
    holder = ANONYMOUS
    if p.req is not None:
        entry = state.ledger.find(p.req)
        if entry is None or entry.allocated < p.used:
            return
        position = entry.allocated - p.used
        holder = entry.holder
    reserved: Reserved | None = None
    if len(p.slots):
        reserved = Reserved(p.slots, position)
        if not (yield state.carrier, Unreserve(p.slots, holder, position, p.used)):
            return
    if state.others:
        undo = Ungrant(holder, reserved, p.used, p.own)
        yield [(cell, undo) for cell in state.others]
    if entry is not None:
        entry.allocated = position
        for cell in state.private:
            if cell.name in p.own:
                entry.states -= len(p.own[cell.name])
                entry.req.lose_states(p.own[cell.name].tolist())
        close_if_empty(state, entry)


def free(state: State, p: Free) -> Conversation:
    """Free slots that were allocated without a request."""
    cell = state.cell(p.component)
    yield cell, CheckRelease(p.slots, ANONYMOUS)
    if p.after is not None and state.tiers is not None:
        state.tiers.tell(Fence(p.after))
    if cell is not state.carrier:
        yield cell, Release(p.slots)
        return
    bound = [(other, CarrierReleased(p.slots)) for other in state.others]
    yield [(cell, Release(p.slots)), *bound]


def release_window(state: State, p: ReleaseWindow) -> Conversation:
    """Give back what a running request has in the pools of windows, and needs no more."""
    req = p.req
    entry = state.ledger.get(req)
    page = state.page_size
    protected = entry.protected if entry is not None else 0
    begin = max(req.evicted(), protected)
    if not state.reaches:
        return 0
    units = p.length - 1 if state.tree.bigram else p.length
    end = (units - max(state.reaches)) // page * page
    if entry is not None and (entry.allocated or req.req_pool_idx is None):
        end = min(end, protected + entry.allocated // page * page)
        if end <= begin:
            return 0
        message: Any = ReleasePaired(entry.holder, begin - protected, end - protected)
        parts = yield [(cell, message) for cell in state.windowed]
        freed = sum(parts)
    else:
        row = req.req_pool_idx
        if row is None:
            raise InvalidRequest(f"request {req.rid!r} holds nothing in this cache")
        state.rows.check(row)
        end = min(end, state.rows.max_context // page * page)
        if end <= begin:
            return 0
        slots = state.rows.array[row, begin:end].copy()
        freed = 0
        for cell in state.windowed:
            before = yield cell, GetSizes()
            yield cell, CheckRelease(slots, ANONYMOUS)
            yield cell, Release(slots)
            freed += (yield cell, GetSizes()).free - before.free
    req.note_evicted(end)
    return freed
