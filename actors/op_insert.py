"""The insert operation: one walk, one check, one commit."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from radixtide.actors.actor import Conversation
from radixtide.actors.messages import CheckInsert, CommitInsert
from radixtide.actors.state import State
from radixtide.components.api import InsertParams, InsertResult, Slots
from radixtide.components.base import InsertPart
from radixtide.components.checks import as_slots
from radixtide.configs.errors import InvalidInput
from radixtide.tiers.slots import ANONYMOUS
from radixtide.tree.node import Node
from radixtide.tree.radix_tree import Walk


def insert(state: State, p: InsertParams) -> Conversation:
    """Give slots to the tree; see ``UnifiedRadixCache.insert``."""
    key = p.key
    state.check_key(key)
    value = as_slots(p.value)
    walk = state.tree.walk(key)
    _check_ranges(state, p, walk, len(value))
    inserted = yield from insert_walk(
        state, walk, value, ANONYMOUS, p.prev_prefix_len, p.prev_prefix_len, p.priority
    )
    return InsertResult(
        prefix_len=inserted.matched,
        inserted_len=walk.limit,
        last_device_node=state.handle(inserted.node),
        adopted=inserted.part.adopted,
        duplicate=inserted.part.duplicate,
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


class Inserted:
    """What :func:`insert_walk` did: the deepest node, what was there, and Full's part."""

    __slots__ = ("matched", "node", "part")

    def __init__(self, node: Node, matched: int, part: InsertPart) -> None:
        self.node = node
        self.matched = matched
        self.part = part


def insert_walk(
    state: State,
    walk: Walk,
    value: Slots | None,
    holder: int,
    prev: int,
    counted: int,
    priority: int,
    running: bool = False,
) -> Generator[Any, Any, Inserted]:
    """Insert what `walk` walked.

    Args:
        state: the coordinator's data.
        walk: from the root, or from a node that its caller holds locked.
        value: slots of the walk's units; None: those that `holder` holds.
        holder: who holds them.
        prev: depth below which the slots are the tree's own.
        counted: depth below which this request's hits are counted already.
        priority: raises the priority of the nodes on the way.
        running: the request goes on: keep duplicates until its row is rewritten, and return the
            tree's slots for that.
    """
    matched = walk.matched
    limit = walk.limit
    if not limit:
        return Inserted(walk.start, matched, InsertPart())
    check = CheckInsert(value, holder, walk.base, prev, limit, matched)
    yield state.all(check)
    # From here on nothing can refuse.
    split = state.split_inside(walk)
    path = walk.path
    if running:
        # Under the lock of a running request the order does not matter; what it leads to takes the
        # access time of the locked node, so that no ancestor has to be visited for each chunk.
        state.count_hits(path, counted)
    else:
        touch = state.touch(path, counted)
        if walk.base:
            state.stamp(walk.start, touch, priority)
    leaf: Node | None = None
    if matched < walk.base + limit:
        leaf = state.tree.add_leaf(walk.last, walk, matched - walk.base)
        leaf.priority = priority
        state.ghosts.revive(leaf)
    if priority:
        for node in path:
            if node.priority < priority:
                node.priority = priority
    parts = yield state.all(
        CommitInsert(
            path,
            split,
            leaf,
            value,
            holder,
            walk.base,
            prev,
            limit,
            running,
            running,
        )
    )
    counters = state.counters
    counters.inserts += 1
    counters.new_units += walk.base + limit - matched
    return Inserted(leaf if leaf is not None else walk.last, matched, parts[0])
