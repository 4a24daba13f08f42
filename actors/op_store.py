"""Stores: write what the host has to storage, parents before children."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from radixtide.actors.jobs import STORE, Job
from radixtide.actors.state import State
from radixtide.actors.tier_messages import (
    HostSlots,
    NoteStored,
    PinHost,
    StartStore,
    StoreDone,
    UnpinHost,
)
from radixtide.actors.tier_state import TierState
from radixtide.configs.errors import RadixtideError
from radixtide.tiers.page_hash import namespace_seed
from radixtide.tree.key import namespace_parts
from radixtide.tree.node import HASH_BYTES, IN_STORAGE, ON_HOST, STORING, Node

STEPS = 256
"""Nodes that are looked at in one turn."""


def begin_stores(state: State) -> Generator[Any, Any, None]:
    """Begin to write what waits for it, within the limit of what may be on its way."""
    tiers = state.tiers
    assert tiers is not None and tiers.storage is not None
    steps = 0
    while tiers.to_store and tiers.jobs.count(STORE) < tiers.storage.queue_max:
        steps += 1
        if steps > STEPS:
            # The rest in a turn of its own.
            if not tiers.waking:
                tiers.wake()
            return
        node = tiers.to_store.popleft()
        if tiers.down or not tiers.storing or node.parent is None or not node.tiers & ON_HOST:
            _give_up(tiers, [node])
            continue
        if node.job & STORING or (node.tiers & IN_STORAGE and node not in tiers.again_stored):
            continue
        parent = node.parent
        if parent.parent is not None and not parent.tiers & IN_STORAGE:
            if not _is_coming(tiers, parent):
                tiers.to_store.appendleft(node)
                tiers.to_store.appendleft(parent)
                continue
            tiers.after_parent.setdefault(parent.id, []).append(node)
            tiers.waiting.add(node.id)
            continue
        try:
            yield from _start(state, tiers, node)
        except RadixtideError:
            _give_up(tiers, [node])
            raise
        except GeneratorExit:
            # A component is silent, and this is done anew.
            tiers.to_store.appendleft(node)
            raise


def _is_coming(tiers: TierState, parent: Node) -> bool:
    """Return whether `parent` is being stored or waits for its own parent."""
    return bool(parent.job & STORING) or parent.id in tiers.waiting


def _start(state: State, tiers: TierState, node: Node) -> Generator[Any, Any, None]:
    parts = yield state.all(HostSlots([node]))
    yield state.all(PinHost([node]))
    number = state.ledger.next_holder()
    tiers.again_stored.discard(node)
    job = Job(number, STORE, [node], [node], node.length)
    tiers.jobs.add(job)
    parent = node.parent
    assert parent is not None
    if parent.parent is None:
        namespace = node.edge[: len(node.edge) - state.tree.edge_bytes]
        previous = namespace_seed(*namespace_parts(namespace))
    else:
        previous = parent.hashes[-HASH_BYTES:]
    items = {
        cell.name: (slots, digests)
        for cell, ((slots, digests),) in zip(state.cells, parts, strict=True)
        if len(slots)
    }
    first = parent.parent is None
    tiers.tell(StartStore(number, tiers.store, node.piece, previous, first, items))


def end_store(state: State, job: Job, report: StoreDone) -> Generator[Any, Any, None]:
    """Note what is stored. What is not is given up, and with it what was to follow."""
    tiers = state.tiers
    assert tiers is not None
    nodes = list(job.nodes)
    page = state.page_size
    at = 0
    stored: list[Node] = []
    for node in nodes:
        pages = node.length // page
        hashes = report.hashes[at * HASH_BYTES : (at + pages) * HASH_BYTES]
        at += pages
        if len(hashes) == pages * HASH_BYTES:
            node.hashes = hashes
        if at <= report.pages:
            node.tiers |= IN_STORAGE
            stored.append(node)
    if stored:
        yield state.all(NoteStored(stored))
    yield state.all(UnpinHost(list(job.pinned)))
    tiers.jobs.remove(job)
    tiers.counters.stored_nodes += len(stored)
    tiers.counters.stored_pages += report.pages
    tiers.requeue(nodes)
    failed = len(stored) < len(nodes)
    tiers.counters.store_failures += failed
    first = nodes[0]
    if report.orphan and first.id not in tiers.orphans:
        # The store has lost what comes before: that first, then this again; once. Of what had got
        # more since it was stored, nothing counts as stored: nobody gets to it past what is lost.
        assert first.parent is not None
        lost = [first.parent, *(node for node in nodes if node.tiers & IN_STORAGE)]
        for node in lost:
            node.tiers &= ~IN_STORAGE
        yield state.all(NoteStored(lost, stored=False))
        tiers.orphans.add(first.id)
        tiers.to_store.extend(nodes)
        return
    tiers.orphans.difference_update(node.id for node in nodes)
    for node in nodes:
        waiting = tiers.after_parent.pop(node.id, [])
        tiers.waiting.difference_update(one.id for one in waiting)
        if node.tiers & IN_STORAGE:
            tiers.to_store.extendleft(reversed(waiting))
        else:
            _give_up(tiers, waiting)


def _give_up(tiers: TierState, nodes: list[Node]) -> None:
    """Let `nodes`, and what waits for them, be stored when they are next backed up or asked for."""
    while nodes:
        node = nodes.pop()
        tiers.waiting.discard(node.id)
        tiers.orphans.discard(node.id)
        nodes.extend(tiers.after_parent.pop(node.id, []))
