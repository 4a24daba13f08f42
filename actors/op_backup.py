"""Backups: what they begin with, how they end, and how the host makes room."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from radixtide.actors.cell import Cell
from radixtide.actors.envelope import WAIT_FOR_ROOM
from radixtide.actors.jobs import BACKUP, Job
from radixtide.actors.state import State
from radixtide.actors.tier_messages import (
    BackupNeed,
    BeginBackup,
    CopyDone,
    EndBackup,
    EvictHost,
    Fence,
    PinHost,
    ProposeHost,
    StartCopy,
    UnpinHost,
)
from radixtide.actors.tier_state import TierState, is_pending
from radixtide.components.insertion import Insertion
from radixtide.components.outcomes import Moving
from radixtide.tiers.copy_engine import Transfer
from radixtide.tree.node import BACKING, FAILED, IN_STORAGE, ON_DEVICE, ON_HOST, QUEUED, Node


def queue_path(tiers: TierState, node: Node) -> None:
    """Queue the nodes from `node` upward that want a backup. O(nodes without one).

    A host copy implies that all ancestors have one, so the walk ends at the first that has.
    """
    if tiers.write_back:
        return
    threshold = tiers.threshold
    at = node
    waiting: list[Node] = []
    while at.parent is not None and not at.tiers & ON_HOST:
        if not at.job & ~FAILED and at.tiers & ON_DEVICE and at.hits + 1 >= threshold:
            waiting.append(at)
        at = at.parent
    for one in reversed(waiting):
        tiers.queue(one)


def queue_inserted(tiers: TierState, job: Insertion) -> None:
    """Queue what an insert brought, and note when it is written.

    What has a copy already and got more (a window, a state) is backed up again.
    """
    depths = [start for part in job.parts for start, _ in part.adopted]
    more = [start for part in job.parts[1:] for start, _ in part.adopted]
    if depths and (more or job.ready is not None):
        first, rest = min(depths), min(more, default=job.end)
        at = job.node
        while at.parent is not None and at.end > first:
            tiers.note_ready(at, job.ready)
            if at.end > rest and (at.tiers & ON_HOST or at.job & BACKING):
                if tiers.write_back:
                    tiers.again.add(at)
                else:
                    tiers.queue(at, again=True)
            at = at.parent
    if is_pending(job.ready) and job.parts[0].duplicate:
        # The caller's duplicates are free now, or will be at once, and may still be written to.
        tiers.tell(Fence(job.ready))
    queue_path(tiers, job.node)


def begin_backups(state: State) -> Generator[Any, Any, None]:
    """Begin backups of what waits, within the limits of what may be on its way."""
    tiers = state.tiers
    assert tiers is not None
    host = tiers.host
    if tiers.down:
        while tiers.backlog:
            tiers.backlog.popleft().job &= ~QUEUED
    while tiers.backlog and tiers.jobs.count(BACKUP) < host.jobs_max:
        room = host.units_in_flight - tiers.jobs.units[BACKUP]
        if room <= 0 and tiers.jobs.units[BACKUP]:
            return
        batch = _next_batch(tiers, min(room, host.batch_units))
        if not batch:
            continue
        try:
            yield from start_backup(state, batch)
        except GeneratorExit:
            # A component is silent, and this is done anew.
            tiers.put_back(batch)
            raise


def _next_batch(tiers: TierState, room: int) -> list[Node]:
    """Take nodes off the backlog, each behind its ancestors that have no copy yet."""
    batch: list[Node] = []
    known: set[Node] = set()
    units = 0
    while tiers.backlog and (units < room or not batch):
        node = tiers.backlog.popleft()
        node.job &= ~QUEUED
        if node.parent is not None:
            chain = chain_above(node)
            if not chain and node in tiers.again and not node.job & BACKING:
                chain = [node]
            for one in chain:
                if one not in known:
                    known.add(one)
                    batch.append(one)
                    units += one.length
    return batch


def chain_above(node: Node) -> list[Node]:
    """Return `node` and its ancestors without a host copy, present or on its way, top first."""
    chain: list[Node] = []
    at = node
    while at.parent is not None and not at.tiers & ON_HOST and not at.job & BACKING:
        if not at.tiers & ON_DEVICE:
            return []
        chain.append(at)
        at = at.parent
    chain.reverse()
    return chain


def start_backup(state: State, nodes: list[Node]) -> Generator[Any, Any, bool]:
    """Begin one backup of `nodes`, parents first, or of as many as there is room for.

    Returns whether anything began. What found no room is refused and counted, and nothing of it is
    left half done; it is queued again when it is used again.
    """
    tiers = state.tiers
    assert tiers is not None
    counters = tiers.counters
    if tiers.down:
        return False
    anchors = [node.parent for node in nodes if node.parent is not None]
    spare = tuple(dict.fromkeys((*anchors, *nodes)))
    need, free = yield state.carrier, BackupNeed(nodes)
    if need > free:
        yield from evict_host(state, state.carrier, need - free, spare)
        need, free = yield state.carrier, BackupNeed(nodes)
    fitting: list[Node] = []
    for node in nodes:
        units = 0 if node.tiers & ON_HOST else node.length
        if units > free:
            break
        free -= units
        fitting.append(node)
    if len(fitting) < len(nodes):
        counters.backups_refused += len(nodes) - len(fitting)
    if not fitting:
        return False
    for cell in state.others:
        need, free = yield cell, BackupNeed(fitting)
        if need > free:
            yield from evict_host(state, cell, need - free, spare)
    inside = set(fitting)
    pinned = [node.parent for node in fitting if node.parent not in inside]
    # What has a copy already, of which only a part is missing, has to keep it meanwhile.
    pinned += [node for node in fitting if node.tiers & ON_HOST]
    anchored = [one for one in dict.fromkeys(pinned) if one is not None and one.parent is not None]
    number = state.ledger.next_holder()
    units = sum(node.length for node in fitting if not node.tiers & ON_HOST)
    job = Job(number, BACKUP, fitting, anchored, units)
    moving: list[Moving] = yield state.all(BeginBackup(fitting, number))
    if anchored:
        yield state.all(PinHost(anchored))
    tiers.jobs.add(job)
    after = tiers.take_ready(fitting)
    for node in fitting:
        if node in tiers.again:
            tiers.again.discard(node)
            if node.tiers & IN_STORAGE:
                tiers.again_stored.add(node)
    tiers.tell(StartCopy(number, BACKUP, transfers_of(state, moving), after))
    return True


def transfers_of(state: State, moving: list[Moving]) -> list[Transfer]:
    """Return the copies that each component's answer asks for."""
    return [
        Transfer(cell.name, one.device, one.host)
        for cell, one in zip(state.cells, moving, strict=True)
        if len(one.host)
    ]


def end_backup(state: State, job: Job, report: CopyDone) -> Generator[Any, Any, None]:
    """Attach the copies, or give their slots back; go on with what waited for it."""
    tiers = state.tiers
    assert tiers is not None
    nodes = list(job.nodes)
    inside = set(nodes)
    keep = report.ok and all(
        node.parent in inside
        or (node.parent is not None and (not node.parent.parent or node.parent.tiers & ON_HOST))
        for node in nodes
    )
    yield state.all(EndBackup(nodes, keep, report.digests))
    if job.pinned:
        yield state.all(UnpinHost(list(job.pinned)))
    tiers.jobs.remove(job)
    if keep:
        tiers.counters.backed_nodes += len(nodes)
        tiers.counters.backup_units += job.units
        for node in nodes:
            node.tiers |= ON_HOST
            if tiers.storing:
                tiers.queue_store(node)
        tiers.requeue(nodes)
    else:
        tiers.counters.backups_failed += 1
        for node in nodes:
            node.job |= FAILED
    tiers.let_in(WAIT_FOR_ROOM)


def evict_host(
    state: State, cell: Cell, target: int, spare: tuple[Node, ...] = ()
) -> Generator[Any, Any, None]:
    """Free host slots of one component, or as many as can be."""
    victims: list[Node] = yield cell, ProposeHost(target, spare)
    if not victims:
        return
    if cell is not state.carrier:
        yield [(other, EvictHost(victims)) for other in state.goes_along(cell)]
        return
    yield state.all(EvictHost(victims))
    drop_host(state, victims)


def drop_host(state: State, nodes: list[Node]) -> None:
    """Note that `nodes`, children first, have no host copy any more; the empty ones go."""
    tiers = state.tiers
    assert tiers is not None
    for node in nodes:
        node.tiers &= ~ON_HOST
        tiers.counters.host_evicted_nodes += 1
        if not node.tiers & ON_DEVICE:
            state.ghosts.remember(node, bool(node.tiers & IN_STORAGE))
            tiers.forget_node(node)
            state.tree.remove(node)
