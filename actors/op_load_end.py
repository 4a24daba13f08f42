"""How a load ends: attached, or failed without harm; and what becomes of damaged host copies."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from radixtide.actors.actor import Conversation
from radixtide.actors.calls import UndoMatch
from radixtide.actors.envelope import WAIT_FOR_JOB
from radixtide.actors.jobs import LOAD, Job
from radixtide.actors.ledger import Entry
from radixtide.actors.load_order import builders, lost_loads, may_end, stands, users_of
from radixtide.actors.messages import LockSplit, Unlock, Validate
from radixtide.actors.op_backup import drop_host
from radixtide.actors.op_load import CloseLoad, UndoLoad, WaitLoad
from radixtide.actors.op_match import longest_common, undo_match
from radixtide.actors.state import LiveReceipt, State
from radixtide.actors.tier_messages import CopyDone, EndLoad, EvictHost, UnpinHost
from radixtide.actors.tier_state import LoadRecord, TierState
from radixtide.tree.node import FAILED, ON_DEVICE, ON_HOST, QUEUED, Node


def end_loads(state: State) -> Generator[Any, Any, None]:
    """End the loads that are over: one that is kept after all that it builds on, else before."""
    tiers = state.tiers
    assert tiers is not None
    ended = True
    while ended:
        ended = False
        for job in list(tiers.jobs):
            if job.kind != LOAD or job.report is None:
                continue
            if may_end(tiers, job, lost_loads(tiers)):
                yield from _end_load(state, tiers, job)
                ended = True
    tiers.let_in(WAIT_FOR_JOB)


def _end_load(state: State, tiers: TierState, job: Job) -> Generator[Any, Any, None]:
    report: CopyDone = job.report
    nodes = list(job.nodes)
    keep = report.ok and not job.attempts and stands(job)
    fails = not keep and not job.attempts
    if fails and ((yield from _shrink_users(state, tiers, job)) or any(builders(tiers, job))):
        # A request has gone on with these slots, or with what is bound to them: they are
        # nobody's until it is done.
        job.attempts = 1
        tiers.counters.loads_failed += 1
        tiers.condemned.update(node for node in nodes if not node.tiers & ON_DEVICE)
        return
    yield state.all(EndLoad(nodes, keep, job.number))
    yield state.all(UnpinHost(list(job.pinned)))
    assert job.lock is not None
    lock, records = job.lock
    yield state.all(Unlock(lock, records))
    tiers.jobs.remove(job)
    if keep:
        tiers.counters.load_units += job.units
        for node in nodes:
            node.tiers |= ON_DEVICE
        tiers.requeue(nodes)
    else:
        # Counted with the books, last: all before may be done anew.
        tiers.counters.loads_failed += fails
        tiers.condemned.difference_update(nodes)
    if report.bad and not keep:
        tiers.counters.bad_pages += sum(len(pages) for pages in report.bad.values())
        tiers.condemned.update(_damaged(job, report, nodes))
    yield from purge(state)


def _damaged(job: Job, report: CopyDone, nodes: list[Node]) -> list[Node]:
    """Return the first node of which a page was not what it should be."""
    depths = [
        job.depths[name][page]
        for name, pages in report.bad.items()
        for page in pages
        if page < len(job.depths.get(name, ()))
    ]
    first = min(depths, default=nodes[0].end)
    return [node for node in nodes if node.end >= first][:1]


def _shrink_users(state: State, tiers: TierState, job: Job) -> Generator[Any, Any, bool]:
    """Let all who wait for `job` have the device part; return whether one has gone on without.

    Where a component was silent this is done anew, and a record may wait for several jobs that
    fail: who has gone on is asked of those too that heard of it before.
    """
    gone_on = False
    for record in users_of(tiers, job):
        if record.failed:
            gone_on = gone_on or record.gone_on
            continue
        node = yield from _usable(state, _above(record.node, record.device))
        held = state.receipts.get(record.receipt)
        entry = None if record.rid is None else state.ledger.by_rid(record.rid)
        if entry is not None and (held is None or _has_gone_on(state, entry)):
            entry.spoiled = record.gone_on = True
            gone_on = True
        elif held is not None:
            yield from _move_lock(state, record, held, entry, node)
        # Last: should a component be silent, the lock is moved anew.
        record.failed = True
        record.length = node.end
    return gone_on


def _above(node: Node, length: int) -> Node:
    """Return the deepest node from `node` upward that is on the device and ends by `length`."""
    at = node
    while at.parent is not None and (at.end > length or not at.tiers & ON_DEVICE):
        at = at.parent
    return at


def _usable(state: State, node: Node) -> Generator[Any, Any, Node]:
    """Return the deepest node from `node` upward that a request can go on from.

    The load's lock was on its end: what another component had further up may be gone by now.
    """
    path = state.path_to(node)
    if not path or not state.voters:
        return node
    votes = yield [(cell, Validate(path)) for cell in state.voters]
    steps = longest_common(votes)
    return path[steps - 1] if steps else state.tree.root


def _has_gone_on(state: State, entry: Entry) -> bool:
    """Return whether a request has slots past what it has locked, here or in its row alone."""
    if entry.allocated or entry.row_index is None:
        return bool(entry.allocated)
    row = state.rows.array[entry.row_index]
    return entry.protected < len(row) and int(row[entry.protected]) >= 0


def _move_lock(
    state: State, record: LoadRecord, held: LiveReceipt, entry: Entry | None, node: Node
) -> Generator[Any, Any, None]:
    """Let a load's lock be on `node`, further up, and its request have what that comes to."""
    fresh: list[Any] = []
    if node.parent is not None:
        fresh = yield state.all(LockSplit(node, state.make_borders(node)))
    if held.node.parent is not None:
        yield state.all(Unlock(held.node, held.records))
    held.node, held.records = node, fresh
    record.node = node
    if entry is not None:
        if entry.row_index is not None:
            # Nothing may take these for slots that the request has.
            state.rows.array[entry.row_index, node.end : entry.protected] = -1
        entry.show_prefix(state.rows, node, state.handle(node))


def wait_load(state: State, p: WaitLoad) -> Any:
    """Return how much is on the device, and whether the load failed, once that is known."""
    tiers = state.tiers
    record = tiers.loads.get(p.number) if tiers is not None else None
    if tiers is None or record is None:
        return 0, True
    for number in record.jobs:
        job = tiers.jobs.get(number)
        if job is not None and not job.attempts:
            return WAIT_FOR_JOB
    return record.length, record.failed


def close_load(state: State, p: CloseLoad) -> Conversation:
    """Release what a load_back holds, unless a request took it. Idempotent."""
    tiers = state.tiers
    record = tiers.loads.get(p.number) if tiers is not None else None
    if tiers is None or record is None:
        return
    held = state.receipts.get(record.receipt)
    if held is not None and held.rid is not None:
        # It is the request's: should the copy fail, that one has to hear of it.
        return
    # The books last: should a component be silent, all of this is done anew.
    if held is not None:
        if held.node.parent is not None:
            yield state.all(Unlock(held.node, held.records))
        del state.receipts[record.receipt]
    del tiers.loads[p.number]


def undo_load(state: State, p: UndoLoad) -> Conversation:
    """Release what a load holds whose caller went away; the copy goes on, for others to use.

    A request that had the lock of a match before has it again.
    """
    tiers = state.tiers
    record = tiers.loads.get(p.number) if tiers is not None else None
    held = state.receipts.get(p.receipt.id)
    entry = state.ledger.find(p.req) if p.req is not None else None
    if record is None or record.before is None or held is None or entry is None:
        yield from undo_match(state, UndoMatch(p.receipt, p.req))
    else:
        node = yield from _usable(state, _above(record.node, record.before))
        yield from _move_lock(state, record, held, entry, node)
    if tiers is not None:
        tiers.loads.pop(p.number, None)


def forget_loads(state: State, rid: str) -> Generator[Any, Any, None]:
    """Forget the loads of a request that is done; what failed under it can end now."""
    tiers = state.tiers
    if tiers is None:
        return
    numbers = [number for number, record in tiers.loads.items() if record.rid == rid]
    for number in numbers:
        del tiers.loads[number]
    if numbers:
        yield from end_loads(state)


def purge(state: State) -> Generator[Any, Any, None]:
    """Drop damaged host copies, and all below them, as far as nobody uses them."""
    tiers = state.tiers
    assert tiers is not None
    if not tiers.condemned:
        return
    used = _used(state, tiers)
    for node in sorted(tiers.condemned, key=lambda one: (-one.end, one.id)):
        if node.parent is None or not node.tiers & ON_HOST:
            tiers.condemned.discard(node)
            continue
        below = _on_host_below(node)
        if any(one.id in used or one.job & ~(QUEUED | FAILED) for one in below):
            continue
        yield state.all(EvictHost(below))
        drop_host(state, below)
        tiers.condemned.discard(node)


def _used(state: State, tiers: TierState) -> set[int]:
    """Return the ids of nodes that are not to vanish: locked ones, those above, those of jobs."""
    used: set[int] = set()
    nodes = [held.node for held in state.receipts.values()]
    nodes.extend(state.pins.nodes())
    nodes.extend(node for job in tiers.jobs for node in (*job.nodes, *job.pinned))
    for node in nodes:
        at: Node | None = node
        while at is not None and at.id not in used:
            used.add(at.id)
            at = at.parent
    return used


def _on_host_below(node: Node) -> list[Node]:
    """Return `node` and what is on the host below it, children before their parents."""
    found: list[Node] = []
    stack = [node]
    while stack:
        at = stack.pop()
        if at.tiers & ON_HOST:
            found.append(at)
            stack.extend(at.children.values())
    found.reverse()
    return found
