"""The match operation: one walk, one vote of each component, one commit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from radixtide.actors.actor import Conversation
from radixtide.actors.calls import DeviceIndices, UndoMatch
from radixtide.actors.messages import CommitMatch, PathSlots, Validate
from radixtide.actors.state import State
from radixtide.components.api import MatchPrefixParams, MatchResult, MissReason
from radixtide.components.request import Request
from radixtide.configs.errors import InvalidRequest
from radixtide.tiers.slots import EMPTY
from radixtide.tree.key import TOKEN_BYTES, RadixKey
from radixtide.tree.radix_tree import Walk

# Names of their own: looking a member up in an enumeration costs more than the comparison.
COMPLETE = MissReason.COMPLETE
UNALIGNED_TAIL = MissReason.UNALIGNED_TAIL
NEVER_STORED = MissReason.NEVER_STORED


def match_prefix(state: State, p: MatchPrefixParams) -> Conversation:
    """Find the longest reusable prefix; see ``UnifiedRadixCache.match_prefix``."""
    key = p.key
    req = p.req
    state.check_key(key)
    counted = 0
    if req is not None:
        counted = _check_request(state, req, key, p.lock)
    tree = state.tree
    walk = tree.walk(key)
    path = walk.path
    records: list[object] = []
    slots = EMPTY
    full_length = 0
    if path or walk.inside is not None:
        inside = walk.inside if walk.inside_units else None
        votes = yield state.all(Validate(path, inside, walk.inside_units))
        full_length = _depth(walk, votes[0][-1] if votes[0] else 0)
        steps = _longest_common(votes)
        if req is not None and p.lock:
            _check_tokens(req, key, _depth(walk, steps))
        split = None
        if inside is not None and steps == len(path) + 1:
            split = state.split_inside(walk)
        elif steps < len(path):
            walk.path = path = path[:steps]
        if path:
            state.touch(path, counted)
            parts = yield state.all(CommitMatch(path, split, p.lock))
            slots = parts[0][0]
            records = [part[1] for part in parts]
    matched = len(slots)
    node = path[-1] if path else tree.root
    reason = _miss_reason(state, walk, matched, full_length)
    counters = state.counters
    counters.matches += 1
    counters.asked_units += key.units
    counters.hit_units += matched
    counters.misses[reason] += 1
    receipt = None
    if p.lock:
        receipt = state.issue(node, records, req.rid if req is not None else None)
    handle = state.handle(node)
    indices = torch.from_numpy(slots if slots is not EMPTY else EMPTY.copy())
    if req is not None:
        req.counted_len = max(counted, matched)
        if receipt is not None:
            entry = state.ledger.open(req, state.rows)
            entry.receipt = receipt.id
            entry.node = node
            entry.protected = matched
            entry.write(state.rows, 0, slots)
            req.prefix_indices = entry.indices(state.rows, matched)
            req.last_node = handle
            req.cache_protected_len = matched
            req.lock = receipt
    missing = key.units - matched
    if receipt is None:
        return MatchResult(indices, handle, handle, handle, reason, full_length, missing)
    return MatchResult(
        indices, handle, handle, handle, reason, full_length, missing, receipt=receipt
    )


def _check_request(state: State, req: Request, key: RadixKey, lock: bool) -> int:
    """Return up to where this request's hits are counted already."""
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
    row = req.req_pool_idx
    if lock and row is not None:
        state.rows.check(row)
        if key.units > state.rows.max_context:
            raise InvalidRequest(
                f"request {req.rid!r} has {key.units} units, its row only "
                f"{state.rows.max_context} (pools.requests.max_context)"
            )
    return req.counted_len


def _check_tokens(req: Request, key: RadixKey, units: int) -> None:
    """Raise InvalidRequest unless the matched part of `key` is what the request begins with.

    What the request computes later is cached below that part, without a look at it again.
    """
    matched = key.piece(0, units) if units else b""
    if req.segment(0, len(matched) // TOKEN_BYTES).tobytes() != matched:
        raise InvalidRequest(
            f"request {req.rid!r} matches with a key that is not made of its own tokens; "
            "use req.key()"
        )


def _depth(walk: Walk, steps: int) -> int:
    """Return the depth after `steps` steps of `walk` (see Validate)."""
    if not steps:
        return walk.base
    if steps <= len(walk.path):
        return walk.path[steps - 1].end
    return walk.last.end + walk.inside_units


def _longest_common(votes: list[Sequence[int]]) -> int:
    """Return the largest step that every component accepts, or 0."""
    first = votes[0]
    if len(votes) == 1:
        return first[-1] if first else 0
    common = set(first).intersection(*votes[1:])
    return max(common, default=0)


def _miss_reason(state: State, walk: Walk, matched: int, full_length: int) -> MissReason:
    """Say why the match is not longer than `matched`."""
    key = walk.key
    if matched == key.units:
        return COMPLETE
    if matched == walk.limit:
        return UNALIGNED_TAIL
    if matched < full_length:
        # Full has more: another component cut the match.
        return MissReason.NO_STATE
    if len(state.ghosts) and state.ghosts.knows(walk.last, state.tree.edge_of(walk, matched)):
        return MissReason.EVICTED
    return NEVER_STORED


def undo_match(state: State, p: UndoMatch) -> Conversation:
    """Release the lock of a match whose caller went away."""
    held = state.receipts.get(p.receipt.id)
    if held is None:
        return
    if held.node.parent is not None:
        yield state.unlock(held.node, held.records)
    del state.receipts[p.receipt.id]
    entry = state.ledger.find(p.req) if p.req is not None else None
    if entry is None or entry.receipt != p.receipt.id:
        return
    entry.receipt = None
    entry.node = None
    entry.protected = 0
    if not entry.allocated:
        state.ledger.close(entry)
    entry.req.forget()


def device_indices(state: State, p: DeviceIndices) -> Conversation:
    """Return the slots from the root down to a node, as a tensor."""
    node = state.resolve(p.node)
    path = state.path_to(node)
    if not path:
        return torch.from_numpy(EMPTY.copy())
    slots = yield state.full, PathSlots(path)
    return torch.from_numpy(slots)
