"""The match operation: one walk, one vote of each component, one commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from radixtide.actors.actor import Conversation, Round, conversation
from radixtide.actors.calls import ComponentSlots, DeviceIndices, UndoMatch
from radixtide.actors.cascade import evict_one
from radixtide.actors.cell import Cell
from radixtide.actors.messages import (
    CommitMatch,
    PairedSlots,
    PathSlots,
    ReservePrivate,
    Splits,
    Ungrant,
    Unlock,
    Validate,
)
from radixtide.actors.op_backup import queue_path
from radixtide.actors.op_match_tiers import cut_to, find_reach
from radixtide.actors.state import State, close_if_empty, put_on_path
from radixtide.actors.tier_messages import UseHost
from radixtide.actors.tier_state import TierState
from radixtide.components.api import (
    BRANCHING,
    LockReceipt,
    MatchPrefixParams,
    MatchResult,
    MissReason,
    NodeHandle,
    Slots,
)
from radixtide.components.outcomes import Reserved, Shortage
from radixtide.components.request import Request
from radixtide.configs.errors import InvalidInput, InvalidRequest
from radixtide.tiers.slots import EMPTY
from radixtide.tree.key import TOKEN_BYTES, RadixKey
from radixtide.tree.node import Node
from radixtide.tree.radix_tree import Walk

# Names of their own: looking a member up in an enumeration costs more than the comparison.
COMPLETE = MissReason.COMPLETE
UNALIGNED_TAIL = MissReason.UNALIGNED_TAIL
NEVER_STORED = MissReason.NEVER_STORED


class Matching(msgspec.Struct, gc=False):
    """One match on its way.

    ``counted``: depth up to which this request's hits are counted already. ``carrier_length``: how
    far the carrier alone could be reused. ``asked``: who votes. ``holder``: who gets a copy of the
    state. ``reason``: why a component cut it, None when none did. ``carrier_reason``: why the match
    of the carrier alone, which was cut, was not longer. ``lengths``: how far each of the others
    would have gone alone. ``beyond``: nodes after the device match that the host has. ``partial``:
    a node of which the host match ends inside, and after how many units.
    """

    p: MatchPrefixParams
    walk: Walk
    counted: int
    carrier_length: int
    asked: list[Cell] | None = None
    holder: int | None = None
    reason: MissReason | None = None
    carrier_reason: MissReason | None = None
    lengths: dict[str, int] | None = None
    beyond: list[Node] = []
    partial: tuple[Node, int] | None = None


def match_prefix(state: State, p: MatchPrefixParams) -> Round | MatchResult | Conversation:
    """Find the longest reusable prefix; see ``UnifiedRadixCache.match_prefix``."""
    key = p.key
    if key.is_bigram is not state.tree.bigram or not 0 < key.units <= state.key_units_max:
        state.check_key(key)
    counted = 0 if p.req is None else check_request(state, p.req, p.key, p.lock)
    if p.cow_mamba and p.req is None:
        raise InvalidInput("cow_mamba without req: the copy of a state is a request's; give one")
    walk = state.tree.walk(key)
    job = Matching(p, walk, counted, walk.matched)
    if state.tiers is not None:
        return _match_tiers(state, job, state.tiers)
    if not walk.matched:
        return _found(state, job, [(EMPTY.copy(), None)])
    if state.carrier.idle:
        # What has data on every node can not say no. One that may be slow to answer is asked all
        # the same: nothing is changed for a match that may have to be given up.
        if not state.voters:
            if p.req is not None and p.lock:
                check_tokens(p.req, key, walk.matched)
            return _commit(state, job)
        job.asked = state.voters
    else:
        job.asked = state.cells
    return Round(job.asked, Validate(walk.path, walk.inside, walk.inside_units), _vote, state, job)


def _vote(
    state: State, job: Matching, votes: list[Sequence[int]]
) -> Round | MatchResult | Conversation:
    """Cut the walk to what every component accepts, and commit."""
    p = job.p
    walk = job.walk
    most = len(walk.path) + (walk.inside is not None)
    steps = longest_common(votes)
    if steps < most:
        _blame(state, job, votes, steps)
    if p.req is not None and p.lock:
        check_tokens(p.req, p.key, depth_of(walk, steps))
    if steps <= len(walk.path):
        walk.cut(steps)
    if not steps:
        return _found(state, job, [(EMPTY.copy(), None)])
    if p.cow_mamba and state.private:
        return _with_copy(state, job)
    return _commit(state, job)


def _match_tiers(state: State, job: Matching, tiers: TierState) -> Conversation:
    """Match where there is a host tier: the device part, and what a load could add to it."""
    p = job.p
    walk = job.walk
    reach = yield from find_reach(state, walk)
    job.carrier_length = depth_of(walk, reach.any_steps)
    if reach.either < reach.any_steps:
        _blame(state, job, reach.any_votes, reach.either)
    if p.req is not None and p.lock:
        check_tokens(p.req, p.key, depth_of(walk, reach.device))
    cut_to(walk, reach.either)
    further = None
    if reach.device < reach.either:
        whole = walk.matched == p.key.units
        further = COMPLETE if whole else job.reason or _miss_reason(state, job)
        if walk.inside is not None:
            job.partial = walk.inside, walk.inside_units
        job.beyond = walk.path[reach.device :]
    cut_to(walk, reach.device)
    if not walk.matched and not job.beyond and job.partial is None:
        result = _found(state, job, [(EMPTY.copy(), None)])
    elif walk.matched and p.cow_mamba and state.private:
        result = yield from _with_copy(state, job)
    else:
        result = yield from conversation(_commit(state, job))
    queue_path(tiers, walk.last)
    if not job.beyond:
        return msgspec.structs.replace(result, key=p.key)
    path = [*walk.path, *job.beyond]
    hits = yield state.all(UseHost(path, len(walk.path)))
    by_name = dict(zip(state.names, hits, strict=True))
    windows, states = (by_name.get(name, 0) for name in BRANCHING)
    end = state.handle(job.beyond[-1])
    return msgspec.structs.replace(
        result,
        last_host_node=end,
        best_match_node=end,
        host_hit_length=job.beyond[-1].end - walk.matched,
        swa_host_hit_length=windows,
        mamba_host_hit_length=states,
        full_miss_reason=further,
        key=p.key,
    )


def _blame(state: State, job: Matching, votes: list[Sequence[int]], steps: int) -> None:
    """Note how far the carrier goes alone, and which other component cut the match."""
    shortest: int | None = None
    lengths: dict[str, int] = {}
    traits = state.voter_traits
    if job.asked is state.cells:
        traits = state.traits
        job.carrier_length = depth_of(job.walk, votes[0][-1] if votes[0] else 0)
    for trait, accepted in zip(traits, votes, strict=True):
        if trait is state.traits[0]:
            continue
        longest = accepted[-1] if accepted else 0
        lengths[trait.name] = depth_of(job.walk, longest) if longest else job.walk.base
        if shortest is None or longest < shortest:
            shortest = longest
            job.reason = trait.miss_reason
    if depth_of(job.walk, steps) >= job.carrier_length:
        job.reason = None
        return
    job.lengths = lengths
    _note_carrier(state, job)


def _note_carrier(state: State, job: Matching) -> None:
    """Note why the carrier's match, which is about to be cut, was not longer."""
    complete = job.carrier_length == job.p.key.units
    job.carrier_reason = COMPLETE if complete else _miss_reason(state, job)


def _with_copy(state: State, job: Matching) -> Conversation:
    """Get the request a slot for its copy of the state; without one the match comes to nothing."""
    p = job.p
    walk = job.walk
    assert p.req is not None
    entry = state.ledger.open(p.req, state.rows)
    got: list[tuple[Cell, Reserved]] = []
    try:
        for cell in state.private:
            reply = yield cell, ReservePrivate(entry.holder)
            if isinstance(reply, Shortage):
                yield from evict_one(state, cell, reply.wanted, (walk.last,))
                reply = yield cell, ReservePrivate(entry.holder)
            if isinstance(reply, Shortage):
                if job.reason is None:
                    _note_carrier(state, job)
                    job.lengths = {cell.name: walk.matched}
                job.reason = MissReason.NO_SLOT
                job.beyond, job.partial = [], None
                walk.cut(0)
                break
            got.append((cell, reply))
    except BaseException:
        close_if_empty(state, entry)
        raise
    if not walk.path:
        if got:
            yield [
                (cell, Ungrant(entry.holder, None, 0, {cell.name: one.slots})) for cell, one in got
            ]
        close_if_empty(state, entry)
        return _found(state, job, [(EMPTY.copy(), None)])
    entry.fresh = {cell.name: one.slots for cell, one in got if len(one.slots)}
    entry.states += sum(len(slots) for slots in entry.fresh.values())
    job.holder = entry.holder
    return (yield from conversation(_commit(state, job)))


def _commit(state: State, job: Matching) -> Round:
    """Split where the match ends inside a node, touch, and let the components finalise."""
    walk = job.walk
    splits: Splits = ()
    if walk.inside is not None:
        splits = (state.split_inside(walk),)
    if job.partial is not None:
        prefix = state.split(*job.partial)
        splits += ((prefix, job.partial[0]),)
        job.beyond.append(prefix)
    lock = job.p.lock
    if lock and state.reaches:
        borders = state.make_borders(walk.last)
        put_on_path(walk, borders)
        splits += borders
    touched = [*walk.path, *job.beyond] if job.beyond else walk.path
    state.touch(touched, job.counted)
    return Round(state.cells, CommitMatch(walk.path, splits, lock, job.holder), _found, state, job)


def _found(state: State, job: Matching, parts: list[tuple[Slots, Any]]) -> MatchResult:
    """Make the result of what the components handed out."""
    p = job.p
    walk = job.walk
    slots = parts[0][0]
    matched = walk.matched
    units = p.key.units
    node = walk.last
    if matched == units:
        reason = COMPLETE
    elif job.beyond:
        reason = MissReason.ON_HOST
    else:
        reason = job.reason or _miss_reason(state, job)
    counters = state.counters
    counters.matches += 1
    counters.asked_units += units
    counters.hit_units += matched
    counters.misses[reason] += 1
    handle = NodeHandle(node.id, state.tree.generation, node.epoch)
    indices = torch.from_numpy(slots)
    req = p.req
    if req is not None:
        req.counted_len = max(job.counted, matched)
        if job.holder is not None:
            for handed, _ in parts[1:]:
                if handed is not None:
                    req.take_states(handed.tolist())
    receipt = None
    if p.lock:
        records = [record for _, record in parts] if matched else []
        receipt = state.issue(node, handle, records, None if req is None else req.rid)
        if req is not None:
            own(state, req, node, receipt, slots)
    if job.reason is not None:
        # Where only a slot for the copy was missing, nothing is worth computing again.
        windows, states = (
            (None, None)
            if job.reason is MissReason.NO_SLOT
            else [
                None if length is None else length(matched, job.carrier_length)
                for length in state.branchers
            ]
        )
        return MatchResult(
            indices,
            handle,
            handle,
            handle,
            reason,
            job.carrier_length,
            units - matched,
            receipt=receipt,
            full_miss_reason=job.carrier_reason,
            component_hit_lengths=job.lengths or {},
            swa_branching_seqlen=windows,
            mamba_branching_seqlen=states,
        )
    if receipt is None:
        return MatchResult(
            indices, handle, handle, handle, reason, job.carrier_length, units - matched
        )
    return MatchResult(
        indices,
        handle,
        handle,
        handle,
        reason,
        job.carrier_length,
        units - matched,
        receipt=receipt,
    )


def own(state: State, req: Request, node: Node, receipt: LockReceipt, slots: Slots) -> None:
    """Enter a locked path and its slots into the ledger as the request's."""
    entry = state.ledger.open(req, state.rows)
    entry.receipt = receipt.id
    entry.write(state.rows, 0, slots)
    entry.show_prefix(state.rows, node, receipt.node)
    req.lock = receipt


def check_request(state: State, req: Request, key: RadixKey, lock: bool) -> int:
    """Return up to where this request's hits are counted already. Raises InvalidRequest."""
    state.check_request_key(req, key)
    entry = state.ledger.get(req)
    if lock and entry is not None:
        if entry.receipt is not None:
            raise InvalidRequest(
                f"request {req.rid!r} holds a lock already; finish or abort it before it matches "
                "again"
            )
        if entry.allocated:
            raise InvalidRequest(
                f"request {req.rid!r} has slots already; match before you allocate"
            )
    if lock:
        check_row(state, req, key)
    return req.counted_len


def check_row(state: State, req: Request, key: RadixKey) -> None:
    """Raise InvalidRequest unless the request's row, where it has one, can hold all of `key`."""
    row = req.req_pool_idx
    if row is None:
        return
    state.rows.check(row)
    if key.units > state.rows.max_context:
        raise InvalidRequest(
            f"request {req.rid!r} has {key.units} units, its row only "
            f"{state.rows.max_context} (pools.requests.max_context)"
        )


def check_tokens(req: Request, key: RadixKey, units: int) -> None:
    """Raise InvalidRequest unless the matched part of `key` is what the request begins with.

    What the request computes later is cached below that part, without a look at it again.
    """
    matched = key.piece(0, units) if units else b""
    if req.segment(0, len(matched) // TOKEN_BYTES).tobytes() != matched:
        raise InvalidRequest(
            f"request {req.rid!r} matches with a key that is not made of its own tokens; "
            "use req.key()"
        )


def depth_of(walk: Walk, steps: int) -> int:
    """Return the depth after `steps` steps of `walk` (see Validate)."""
    if not steps:
        return walk.base
    if steps <= len(walk.path):
        return walk.path[steps - 1].end
    return walk.matched


def longest_common(votes: list[Sequence[int]]) -> int:
    """Return the largest step that every component accepts, or 0."""
    first = votes[0]
    if len(votes) == 1:
        return first[-1] if first else 0
    common = set(first).intersection(*votes[1:])
    return max(common, default=0)


def _miss_reason(state: State, job: Matching) -> MissReason:
    """Say why the match is not longer, when no component cut it."""
    walk = job.walk
    matched = walk.matched
    if matched == walk.limit:
        return UNALIGNED_TAIL
    ghosts = state.ghosts
    if ghosts.known:
        edge = state.tree.edge_of(walk, matched)
        if ghosts.knows(walk.last, edge):
            stored = ghosts.is_stored(walk.last, edge)
            return MissReason.IN_STORAGE if stored else MissReason.EVICTED
    return NEVER_STORED


def undo_match(state: State, p: UndoMatch) -> Conversation:
    """Release the lock and the copy of a match whose caller went away.

    What the ledger says of it goes at once: should a component be silent, the request can match
    again while the rest of this waits. So it may run twice.
    """
    entry = state.ledger.find(p.req) if p.req is not None else None
    held = state.receipts.get(p.receipt.id) if p.receipt is not None else None
    copied = p.copied and entry is not None and bool(entry.fresh)
    if held is not None and entry is not None and entry.receipt == held.receipt.id:
        entry.receipt = None
        entry.node = None
        entry.protected = 0
        entry.req.forget_match()
        held.rid = None
        if not copied:
            close_if_empty(state, entry)
    if held is not None:
        if held.node.parent is not None:
            yield state.all(Unlock(held.node, held.records))
        state.receipts.pop(held.receipt.id, None)
    if copied and entry is not None and entry.fresh:
        fresh = entry.fresh
        yield [(cell, Ungrant(entry.holder, None, 0, fresh)) for cell in state.others]
        entry.fresh = {}
        for slots in fresh.values():
            entry.states -= len(slots)
            entry.req.lose_states(slots.tolist())
        close_if_empty(state, entry)


def device_indices(state: State, p: DeviceIndices) -> Conversation:
    """Return a component's slots from the root down to a node, as a tensor."""
    cell = state.cell(p.component)
    node = state.resolve(p.node)
    path = state.path_to(node)
    if not path:
        return torch.from_numpy(EMPTY.copy())
    slots = yield cell, PathSlots(path)
    return torch.from_numpy(slots)


def component_slots(state: State, p: ComponentSlots) -> Conversation:
    """Return the slots of a component that are bound to slots of the carrier."""
    slots = yield state.cell(p.component), PairedSlots(p.slots)
    return torch.from_numpy(slots)
