"""The insert operation: one walk, one check, one commit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from radixtide.actors.actor import Round
from radixtide.actors.messages import CheckInsert, CommitInsert
from radixtide.actors.state import State
from radixtide.components.api import InsertParams, InsertResult, NodeHandle, Slots
from radixtide.components.base import InsertPart
from radixtide.components.checks import as_slots
from radixtide.configs.errors import InvalidInput
from radixtide.tiers.slots import ANONYMOUS
from radixtide.tree.node import Node
from radixtide.tree.radix_tree import Walk


class Insertion(msgspec.Struct):
    """One insert on its way.

    ``walk``: from the root, or from a node that its caller holds locked. ``value``: slots of the
    walk's units; None: those that ``holder`` holds. ``holder``: who holds them. ``prev``: depth
    below which the slots are the tree's own. ``counted``: depth below which this request's hits
    are counted already. ``priority``: raises that of the nodes on the way. ``running``: the
    request goes on: keep duplicates until its row is rewritten, and return the tree's slots for
    that. What comes out: ``matched``: depth of what was there; ``node``: the deepest node;
    ``part``: what Full did.
    """

    walk: Walk
    value: Slots | None
    holder: int
    prev: int
    counted: int
    priority: int
    running: bool
    matched: int
    node: Node
    part: InsertPart


def insert(state: State, p: InsertParams) -> Round | InsertResult:
    """Give slots to the tree; see ``UnifiedRadixCache.insert``."""
    state.check_key(p.key)
    value = as_slots(p.value)
    if not state.full.idle:
        value = value.copy()
    walk = state.tree.walk(p.key)
    prev = p.prev_prefix_len
    _check_ranges(state, p, walk, len(value))
    job = make_insertion(walk, value, ANONYMOUS, prev, prev, p.priority)
    if not walk.limit:
        return _result(state, job)
    return ask_insert(state, job, _result)


def _result(state: State, job: Insertion) -> InsertResult:
    part = job.part
    node = job.node
    return InsertResult(
        job.matched,
        job.walk.limit,
        NodeHandle(node.id, state.tree.generation, node.epoch),
        adopted=part.adopted,
        duplicate=part.duplicate,
    )


def _check_ranges(state: State, p: InsertParams, walk: Walk, slots: int) -> None:
    page = state.page_size
    prev = p.prev_prefix_len
    if slots < walk.limit:
        raise InvalidInput(
            f"insert of {walk.limit} units (whole pages) with only {slots} slots in `value`"
        )
    if prev < 0 or prev % page:
        raise InvalidInput(f"prev_prefix_len {prev} is not a multiple of page size {page}")
    if prev > min(walk.matched, walk.limit):
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


def make_insertion(
    walk: Walk,
    value: Slots | None,
    holder: int,
    prev: int,
    counted: int,
    priority: int,
    running: bool = False,
) -> Insertion:
    """Return an insert that has not begun."""
    return Insertion(
        walk, value, holder, prev, counted, priority, running, walk.matched, walk.start, NOTHING
    )


def ask_insert(state: State, job: Insertion, then: Callable[[State, Insertion], Any]) -> Round:
    """Ask whether the slots may be given; then insert, and reply what `then` makes of it.

    The walk has at least one whole page.
    """
    walk = job.walk
    return Round(
        state.cells,
        CheckInsert(job.value, job.holder, walk.base, job.prev, walk.limit, job.matched),
        partial(_apply, state, job, then),
    )


def _apply(
    state: State, job: Insertion, then: Callable[[State, Insertion], Any], _: list[Any]
) -> Round:
    """Edit the structure, and let the components settle every slot. Nothing can refuse any more."""
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
    leaf: Node | None = None
    job.node = walk.last
    if job.matched < walk.base + walk.limit:
        job.node = leaf = state.tree.add_leaf(walk.last, walk, job.matched - walk.base)
        leaf.priority = priority
        state.ghosts.revive(leaf)
    if priority:
        for node in path:
            if node.priority < priority:
                node.priority = priority
    return Round(
        state.cells,
        CommitInsert(
            path,
            split,
            leaf,
            job.value,
            job.holder,
            walk.base,
            job.prev,
            walk.limit,
            job.running,
            job.running,
        ),
        partial(_inserted, state, job, then),
    )


def _inserted(
    state: State,
    job: Insertion,
    then: Callable[[State, Insertion], Any],
    parts: list[InsertPart],
) -> Any:
    job.part = parts[0]
    counters = state.counters
    counters.inserts += 1
    counters.new_units += job.walk.base + job.walk.limit - job.matched
    return then(state, job)


def done(state: State, job: Insertion) -> Insertion:
    """Return the insert itself: for operations that go on after it."""
    return job
