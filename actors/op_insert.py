"""The insert operation: one walk, one check, one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixtide.actors.actor import Round
from radixtide.actors.messages import CheckInsert, CommitInsert
from radixtide.actors.state import State
from radixtide.components.api import InsertParams, InsertResult, NodeHandle
from radixtide.components.checks import as_slots
from radixtide.components.insertion import Insertion, InsertPart
from radixtide.configs.errors import InvalidInput
from radixtide.tiers.slots import ANONYMOUS
from radixtide.tree.radix_tree import Walk


def insert(state: State, p: InsertParams) -> Round | InsertResult:
    """Give slots to the tree; see ``UnifiedRadixCache.insert``."""
    state.check_key(p.key)
    value = as_slots(p.value)
    if not state.full.idle:
        value = value.copy()
    walk = state.tree.walk(p.key)
    prev = p.prev_prefix_len
    _check_ranges(state, p, walk, len(value))
    job = Insertion(walk, value, ANONYMOUS, prev, prev, p.priority, False, walk.matched, walk.start)
    if not walk.limit:
        return _result(state, job)
    return ask_insert(state, job, _result)


def _result(state: State, job: Insertion) -> InsertResult:
    part = job.parts[0] if job.parts else NOTHING
    node = job.node
    return InsertResult(
        job.matched,
        job.walk.limit,
        NodeHandle(node.id, state.tree.generation, node.epoch),
        adopted=part.adopted,
        duplicate=part.duplicate,
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
    # What matched is whole pages of the key, so it is never beyond the walk's limit.
    if prev > walk.matched:
        raise InvalidInput(
            f"prev_prefix_len {prev} is beyond the {walk.matched} units of the key that are "
            "cached on the device; pass what match_prefix returned, and hold a lock on it"
        )
    if p.component_evicted_seqlens:
        for name in p.component_evicted_seqlens:
            state.cell(name)
    if p.mamba_value is not None:
        raise InvalidInput("mamba_value was given, but this cache has no mamba component")


NOTHING = InsertPart()


def ask_insert(state: State, job: Insertion, then: Callable[[State, Insertion], Any]) -> Round:
    """Ask whether the slots may be given; then insert, and reply what `then` makes of it.

    The walk has at least one whole page.
    """
    return Round(state.cells, CheckInsert(job), _apply, state, (job, then))


def _apply(
    state: State, of: tuple[Insertion, Callable[[State, Insertion], Any]], checked: list[Any]
) -> Round:
    """Edit the structure, and let the components settle every slot. Nothing can refuse any more."""
    job = of[0]
    job.checked = checked
    walk = job.walk
    split = state.split_inside(walk) if walk.inside is not None else None
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
    if job.matched < walk.base + walk.limit:
        job.node = job.leaf = leaf = state.tree.add_leaf(node, walk, job.matched - walk.base)
        leaf.priority = priority
        state.ghosts.revive(leaf)
    if priority:
        for node in path:
            if node.priority < priority:
                node.priority = priority
    return Round(state.cells, CommitInsert(job, split), _inserted, state, of)


def _inserted(
    state: State,
    of: tuple[Insertion, Callable[[State, Insertion], Any]],
    parts: list[InsertPart],
) -> Any:
    job, then = of
    job.parts = parts
    counters = state.counters
    counters.inserts += 1
    counters.new_units += job.walk.base + job.walk.limit - job.matched
    return then(state, job)


def done(state: State, job: Insertion) -> Insertion:
    """Return the insert itself: for operations that go on after it."""
    return job
