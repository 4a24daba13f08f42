"""Load back: bring what a match found on the host to the device.

The path is locked first, so that room is not made at its cost; then what is read is protected on
the host; then slots are taken, and the copy begins. Who needs what is being loaded already shares
that load. Whatever can not be done shortens the answer to the device part; nothing waits here.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import torch

from radixtide.actors.actor import Conversation
from radixtide.actors.calls import Call
from radixtide.actors.cascade import MustWait, evict_one
from radixtide.actors.jobs import LOAD, Job
from radixtide.actors.load_order import lost_loads
from radixtide.actors.messages import GetSizes, LockSplit, PathSlots, Splits, Unlock
from radixtide.actors.op_backup import transfers_of
from radixtide.actors.op_match import check_request, check_row, check_tokens, depth_of, own
from radixtide.actors.op_match_tiers import cut_to, find_reach
from radixtide.actors.state import State, put_on_path
from radixtide.actors.tier_messages import (
    BeginLoad,
    LoadNeeds,
    PinHost,
    StartCopy,
    UnpinHost,
)
from radixtide.actors.tier_state import LoadRecord, TierState
from radixtide.components.api import LockReceipt, Slots
from radixtide.components.outcomes import LoadNeed, Moving
from radixtide.components.request import Request
from radixtide.configs.errors import InvalidRequest, RadixtideError
from radixtide.tiers.copy_engine import LayerGate
from radixtide.tiers.slots import EMPTY
from radixtide.tree.key import RadixKey
from radixtide.tree.node import LOADING, Node


class LoadBackCall(Call, frozen=True, tag=True, gc=False):
    """Load what the host has of a key. Reply: LoadStarted."""

    key: RadixKey
    req: Request | None = None


class WaitLoad(Call, frozen=True, tag=True, gc=False):
    """Wait until a load is over. Reply: (units on the device, whether it failed)."""

    number: int


class CloseLoad(Call, frozen=True, tag=True, gc=False):
    """Let go of what a load_back holds. Reply: None; a second one finds nothing to do."""

    number: int


class UndoLoad(Call, frozen=True, tag=True, gc=False):
    """Nobody took the answer of a load_back: release what it holds."""

    number: int
    receipt: LockReceipt
    req: Request | None


class LoadStarted(msgspec.Struct, frozen=True):
    """What ``load_back`` began. ``gates``: one a job to wait for, layer by layer."""

    number: int
    receipt: LockReceipt
    device_length: int
    length: int
    indices: torch.Tensor
    gates: list[Any]
    taken: bool


def load_back(state: State, p: LoadBackCall) -> Conversation:
    """Begin to load what the host has of a key beyond its device match."""
    tiers = state.tiers
    req = p.req
    state.check_key(p.key)
    if req is not None:
        check_request(state, req, p.key, False)
        check_row(state, req, p.key)
        entry = state.ledger.get(req)
        if entry is not None and entry.allocated:
            raise InvalidRequest(
                f"request {req.rid!r} has slots already; load back before you allocate"
            )
    walk = state.tree.walk(p.key)
    if tiers is None or not walk.matched:
        return (yield from _hold_device(state, p, state.tree.root, []))
    reach = yield from find_reach(state, walk)
    device = depth_of(walk, reach.device)
    cut_to(walk, reach.either)
    if req is not None:
        check_tokens(req, p.key, walk.matched)
    gain = walk.matched - device
    worth_it = gain and gain >= tiers.host.load_back_threshold
    if not worth_it:
        cut_to(walk, reach.device)
    splits: Splits = (state.split_inside(walk),) if walk.inside is not None else ()
    node = walk.last
    if not worth_it:
        return (yield from _lock_and_hold(state, p, node, splits))
    borders = state.make_borders(node)
    put_on_path(walk, borders)
    path = walk.path
    first = 0
    while first < len(path) and path[first].end <= device:
        first += 1
    last = path[first - 1] if first else state.tree.root
    # One lock for the caller, one for the job: a caller that leaves takes its own along only.
    records = yield state.all(LockSplit(node, splits + borders))
    try:
        begun = yield from _begin(state, tiers, path, first, node)
    except RadixtideError:
        yield state.all(Unlock(node, records))
        raise
    if begun is None:
        tiers.counters.loads_refused += 1
        yield state.all(Unlock(node, records))
        return (yield from _lock_and_hold(state, p, last, ()))
    slots = yield state.carrier, PathSlots(path)
    state.touch(path, node.end)
    before = None
    if req is not None:
        before = yield from _release_old(state, req)
    return _started(state, tiers, p, node, device, records, slots, begun, before)


def _begin(
    state: State, tiers: TierState, path: list[Node], first: int, node: Node
) -> Generator[Any, Any, list[Job] | None]:
    """Begin what is missing of `path`; return all jobs that bring some of it, None: no room."""
    needs: list[LoadNeed] = yield state.all(LoadNeeds(path, first))
    wanted = {one for need in needs for one in need.nodes}
    nodes = [one for one in path if one in wanted]
    shared = {job.number: job for one in path if one.job & LOADING for job in tiers.jobs.of(one)}
    jobs = [job for job in shared.values() if job.kind == LOAD]
    if jobs and not lost_loads(tiers).isdisjoint(job.number for job in jobs):
        # It failed, and is kept for who stands on it: nothing will come of it.
        return None
    if not nodes:
        tiers.counters.loads_shared += 1
        return jobs
    units = needs[0].slots
    quota = tiers.host.load_back_quota
    if tiers.down or tiers.jobs.count(LOAD) >= tiers.host.jobs_max:
        return None
    if quota and tiers.jobs.units[LOAD] + units > quota:
        return None
    yield state.all(PinHost(nodes))
    try:
        room = yield from _make_room(state, needs, tuple(path))
    except MustWait:
        # The copies that make room have begun; a load does not wait for them.
        room = False
    except RadixtideError:
        yield state.all(UnpinHost(nodes))
        raise
    if not room:
        yield state.all(UnpinHost(nodes))
        return None
    number = state.ledger.next_holder()
    by_name = {name: need.nodes for name, need in zip(state.names, needs, strict=True)}
    records = yield state.all(LockSplit(node, ()))
    mine: Moving = yield state.carrier, BeginLoad(by_name, number, {})
    carriers = _by_node(needs[0].nodes, mine.device)
    moving = [mine]
    if state.others:
        message = BeginLoad(by_name, number, carriers)
        moving += yield [(cell, message) for cell in state.others]
    gate = LayerGate(tiers.layers)
    job = Job(number, LOAD, nodes, list(nodes), units, (node, records), gate=gate)
    for cell, one in zip(state.cells, moving, strict=True):
        job.depths[cell.name] = _depths(by_name[cell.name], len(one.host), state.page_size)
    tiers.jobs.add(job)
    tiers.counters.loads += 1
    digests = {
        cell.name: one.digests
        for cell, one in zip(state.cells, moving, strict=True)
        if one.digests is not None
    }
    tiers.tell(StartCopy(number, LOAD, transfers_of(state, moving), digests=digests, gate=gate))
    return [*jobs, job]


def _depths(nodes: list[Node], slots: int, page: int) -> list[int]:
    """Return the depth at which each page ends that is loaded for `nodes`."""
    if slots and slots == sum(node.length for node in nodes):
        return [at for node in nodes for at in range(node.start + page, node.end + 1, page)]
    each = slots // len(nodes) if nodes else 0
    return [node.end for node in nodes for _ in range(each)]


def _by_node(nodes: list[Node], slots: Slots) -> dict[int, Slots]:
    found: dict[int, Slots] = {}
    begin = 0
    for node in nodes:
        found[node.id] = slots[begin : begin + node.length]
        begin += node.length
    return found


def _make_room(
    state: State, needs: list[LoadNeed], spare: tuple[Node, ...]
) -> Generator[Any, Any, bool]:
    """Evict until each pool has what a load takes; return whether they have."""
    sizes = yield state.all(GetSizes())
    for need, size in zip(needs, sizes, strict=True):
        if size.free + size.evictable < need.slots:
            return False
    for cell, need in zip(state.cells, needs, strict=True):
        size = yield cell, GetSizes()
        if size.free < need.slots:
            yield from evict_one(state, cell, need.slots - size.free, spare, may_wait=True)
            size = yield cell, GetSizes()
        if size.free < need.slots:
            return False
    return True


def _lock_and_hold(state: State, p: LoadBackCall, node: Node, splits: Splits) -> Conversation:
    """Lock the device part, which is all there will be."""
    if node.parent is None:
        return (yield from _hold_device(state, p, node, []))
    splits += state.make_borders(node)
    records = yield state.all(LockSplit(node, splits))
    return (yield from _hold_device(state, p, node, records))


def _hold_device(state: State, p: LoadBackCall, node: Node, records: list[Any]) -> Conversation:
    slots = EMPTY.copy()
    if node.parent is not None:
        slots = yield state.carrier, PathSlots(state.path_to(node))
    before = None
    if p.req is not None and state.tiers is not None:
        before = yield from _release_old(state, p.req)
    return _started(state, state.tiers, p, node, node.end, records, slots, [], before)


def _release_old(state: State, req: Request) -> Generator[Any, Any, int | None]:
    """Undo the lock of the request's match: the load's takes its place. Returns its length."""
    entry = state.ledger.find(req)
    if entry is None or entry.receipt is None:
        return None
    before = entry.protected
    old = state.receipts[entry.receipt]
    if old.node.parent is not None:
        yield state.all(Unlock(old.node, old.records))
    del state.receipts[entry.receipt]
    entry.receipt = None
    return before


def _started(
    state: State,
    tiers: TierState | None,
    p: LoadBackCall,
    node: Node,
    device: int,
    records: list[Any],
    slots: Slots,
    jobs: list[Job],
    before: int | None,
) -> LoadStarted:
    """Write down what the caller has now."""
    req = p.req
    handle = state.handle(node)
    receipt = state.issue(node, handle, records, None if req is None else req.rid)
    indices = torch.from_numpy(slots)
    number = 0
    if tiers is not None:
        number = tiers.next_number = tiers.next_number + 1
        rid = None if req is None else req.rid
        numbers = {job.number for job in jobs}
        tiers.loads[number] = LoadRecord(
            number, node, receipt.id, rid, device, node.end, numbers, before=before
        )
    if req is not None:
        own(state, req, node, receipt, slots)
        req.counted_len = max(req.counted_len, node.end)
    return LoadStarted(
        number, receipt, device, node.end, indices, [job.gate for job in jobs], req is not None
    )
