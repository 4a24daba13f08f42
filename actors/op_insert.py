"""The insert operation: one walk, one check, one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixtide.actors.actor import Conversation, Round, conversation
from radixtide.actors.cascade import evict_one
from radixtide.actors.messages import CheckInsert, CommitInsert, Grant, Quote, Splits
from radixtide.actors.op_backup import queue_inserted
from radixtide.actors.op_match_tiers import host_only, settle_walk
from radixtide.actors.state import State, put_on_path
from radixtide.actors.tier_state import TierState
from radixtide.components.api import (
    InsertParams,
    InsertResult,
    NodeHandle,
    Ranges,
    SlotInput,
    Slots,
)
from radixtide.components.checks import as_one_slot, as_slots
from radixtide.components.insertion import InsertCheck, Insertion, InsertPart
from radixtide.configs.errors import InvalidInput
from radixtide.tiers.slots import ANONYMOUS
from radixtide.tree.node import ON_DEVICE
from radixtide.tree.radix_tree import Walk


def insert(state: State, p: InsertParams) -> Round | InsertResult:
    """Give slots to the tree; see ``UnifiedRadixCache.insert``."""
    state.check_key(p.key)
    value = as_slots(p.value)
    if not state.carrier.idle:
        value = value.copy()
    walk = state.tree.walk(p.key)
    limit = walk.limit
    prev = p.prev_prefix_len
    _check_ranges(state, p, walk, len(value))
    job = Insertion(walk, value, ANONYMOUS, prev, prev, p.priority, False, walk.matched, walk.start)
    if state.tiers is not None:
        note_tiers(state.tiers, job)
        job.ready = p.ready
    _check_prev(p, job)
    if state.others and p.component_evicted_seqlens:
        job.evicted = p.component_evicted_seqlens
    given = p.given()
    if given is not None:
        checked = _check_given(state, p, limit, given)
        if not job.cut:
            job.given = checked
    if not walk.limit:
        return _result(state, job)
    return ask_insert(state, job, _result)


def _check_given(
    state: State, p: InsertParams, limit: int, given: dict[str, SlotInput]
) -> dict[str, int]:
    for name in given:
        if name not in state.names:
            state.check_pools({name: 1})
    if limit != p.key.units:
        raise InvalidInput(
            f"a state came with an insert of {p.key.units} units, of which {limit} (whole "
            "pages) are inserted; a state is valid at exactly its own length, so give a key of "
            "whole pages"
        )
    return {name: as_one_slot(name, slots) for name, slots in given.items()}


def _result(state: State, job: Insertion) -> InsertResult:
    parts = job.parts
    part = parts[0] if parts else NOTHING
    node = job.node
    handle = NodeHandle(node.id, state.tree.generation, node.epoch)
    if len(parts) <= 1:
        return InsertResult(
            job.matched, job.walk.limit, handle, adopted=part.adopted, duplicate=part.duplicate
        )
    adopted: dict[str, Ranges] = {}
    existed: dict[str, bool] = {}
    for name, other in zip(state.names, parts, strict=True):
        if other is not part:
            if other.adopted:
                adopted[name] = other.adopted
            if other.existed:
                existed[name] = True
    return InsertResult(
        job.matched,
        job.walk.limit,
        handle,
        bool(existed) and InsertResult.state_existed(existed),
        part.adopted,
        part.duplicate,
        adopted,
    )


def _check_ranges(state: State, p: InsertParams, walk: Walk, slots: int) -> None:
    prev = p.prev_prefix_len
    if slots < walk.limit:
        raise InvalidInput(
            f"insert of {walk.limit} units (whole pages) with only {slots} slots in `value`"
        )
    if prev % state.page_size:
        raise InvalidInput(
            f"prev_prefix_len {prev} is not a multiple of page size {state.page_size}"
        )
    if p.component_evicted_seqlens:
        for name in p.component_evicted_seqlens:
            state.cell(name)


def _check_prev(p: InsertParams, job: Insertion) -> None:
    # What matched is whole pages of the key, so it is never beyond the walk's limit.
    cached = job.matched if job.device_matched < 0 else job.device_matched
    if p.prev_prefix_len > cached:
        raise InvalidInput(
            f"prev_prefix_len {p.prev_prefix_len} is beyond the {cached} units of the key that are "
            "cached on the device; pass what match_prefix returned, and hold a lock on it"
        )


def note_tiers(tiers: TierState, job: Insertion) -> None:
    """Note what of the insert's path is on the host only, and end it before what is loading."""
    walk = job.walk
    limit = walk.limit
    job.device_matched = settle_walk(tiers, walk)
    job.matched = walk.matched
    job.cut = walk.limit < limit


NOTHING = InsertPart()
Then = Callable[[State, Insertion], Any]


def ask_insert(state: State, job: Insertion, then: Then) -> Round:
    """Ask whether the slots may be given; then insert, and reply what `then` makes of it.

    The walk has at least one whole page.
    """
    return Round(state.cells, CheckInsert(job), _checked, state, (job, then))


def _checked(state: State, of: tuple[Insertion, Then], checked: list[InsertCheck]) -> Any:
    """Go on when every component agrees: nothing can refuse any more."""
    of[0].checked = checked
    if state.others:
        for check in checked:
            if check.needs:
                return _with_grants(state, of)
    return _edit(state, of)


def _with_grants(state: State, of: tuple[Insertion, Then]) -> Conversation:
    """Get components the slots they need for the insert; it goes on without, if there are none."""
    job = of[0]
    walk = job.walk
    spare = tuple(walk.path) if walk.inside is None else (*walk.path, walk.inside)
    granted: list[Slots | None] = []
    for cell, check in zip(state.cells, job.checked, strict=True):
        slots: Slots | None = None
        if check.needs:
            wanted = {cell.name: check.needs}
            short = yield cell, Quote(wanted, job.own_holder)
            if short is not None and short.sizes.free + short.sizes.evictable >= short.wanted:
                yield from evict_one(state, cell, short.wanted - short.sizes.free, spare)
                short = yield cell, Quote(wanted, job.own_holder)
            if short is None:
                slots = yield cell, Grant(wanted, job.own_holder)
            else:
                state.counters.donations_skipped += 1
        granted.append(slots)
    job.granted = granted
    return (yield from conversation(_edit(state, of)))


def _edit(state: State, of: tuple[Insertion, Then]) -> Round:
    """Edit the structure, and let the components settle every slot."""
    job = of[0]
    walk = job.walk
    splits: Splits = ()
    if walk.inside is not None:
        splits = (state.split_inside(walk),)
    path = walk.path
    priority = job.priority
    if job.running:
        # Under the lock of a running request the order does not matter; what it leads to takes the
        # access time of the locked node, so that no ancestor has to be visited for each chunk.
        state.count_hits(path, job.counted)
    else:
        touch = state.touch(path, job.counted)
        if walk.base:
            state.stamp(walk.start, touch, priority)
    job.node = node = walk.last
    end = walk.base + walk.limit
    cuts: list[int] = []
    if state.others:
        cuts = _cuts(state, job)
        if cuts and cuts[0] < job.matched:
            more = [state.cut(node, depth) for depth in reversed(cuts) if depth < job.matched]
            borders = tuple(split for split in more if split is not None)
            put_on_path(walk, borders)
            splits += borders
    if job.matched < end:
        ends = [depth for depth in cuts if job.matched < depth < end] if cuts else []
        ends.append(end)
        leaves = []
        begin = job.matched
        for stop in ends:
            node = state.tree.add_leaf(node, walk, begin - walk.base, stop - walk.base)
            node.priority = priority
            state.ghosts.revive(node)
            leaves.append(node)
            begin = stop
        job.node = node
        job.leaves = tuple(leaves)
    if priority:
        for node in path:
            if node.priority < priority:
                node.priority = priority
    if 0 <= job.device_matched < job.matched:
        for node in host_only(path):
            node.tiers |= ON_DEVICE
    return Round(state.cells, CommitInsert(job, splits), _inserted, state, of)


def _cuts(state: State, job: Insertion) -> list[int]:
    """Return the depths that must become borders, ascending."""
    cuts: list[int] = []
    for check in job.checked:
        if check.cuts:
            cuts.extend(check.cuts)
    if job.running:
        # The request's lock moves to the insert's end.
        cuts.extend(job.end - reach for reach in state.reaches if reach < job.end)
    return sorted(set(cuts)) if len(cuts) > 1 else cuts


def _inserted(state: State, of: tuple[Insertion, Then], parts: list[InsertPart]) -> Any:
    job, then = of
    job.parts = parts
    counters = state.counters
    counters.inserts += 1
    counters.new_units += job.walk.base + job.walk.limit - job.matched
    tiers = state.tiers
    if tiers is not None:
        queue_inserted(tiers, job)
    return then(state, job)


def done(state: State, job: Insertion) -> Insertion:
    """Return the insert itself: for operations that go on after it."""
    return job
