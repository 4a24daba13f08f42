"""The tree coordinator: it alone edits the structure, one operation at a time.

Each operation is a conversation (see :mod:`radixtide.actors.cell`) in a module of its own, over the
data in :class:`~radixtide.actors.state.State`. All plan first and apply then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from radixtide.actors import calls
from radixtide.actors.actor import Actor, Handler
from radixtide.actors.op_admin import audit, pin_key, pretty_print, repair, reset, unpin_key
from radixtide.actors.op_allocate import allocate, free, release_window, undo_allocate
from radixtide.actors.op_evict import evict
from radixtide.actors.op_fetch import (
    EndFetch,
    PrefetchCall,
    WaitFetch,
    end_early,
    prefetch,
    wait_fetch,
)
from radixtide.actors.op_insert import insert
from radixtide.actors.op_load import CloseLoad, LoadBackCall, UndoLoad, WaitLoad, load_back
from radixtide.actors.op_load_end import close_load, undo_load, wait_load
from radixtide.actors.op_lock import dec_lock_ref, dec_window_lock, inc_lock_ref
from radixtide.actors.op_match import component_slots, device_indices, match_prefix, undo_match
from radixtide.actors.op_picture import picture
from radixtide.actors.op_request import abort_req, cache_finished_req, cache_unfinished_req
from radixtide.actors.op_step import StepApply, StepOffer, step_apply, step_offer
from radixtide.actors.op_tiers import (
    Drain,
    Flush,
    Pump,
    SetStorage,
    drain,
    flush,
    pump,
    report,
    set_storage,
)
from radixtide.actors.state import State
from radixtide.actors.tier_messages import CopyDone, FetchDone, Found, StoreDone
from radixtide.components.api import (
    AllocateParams,
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)

OPERATIONS: dict[type, Callable[[State, Any], Any]] = {
    MatchPrefixParams: match_prefix,
    InsertParams: insert,
    AllocateParams: allocate,
    EvictParams: evict,
    calls.Free: free,
    calls.IncLockRef: inc_lock_ref,
    calls.DecLockRef: dec_lock_ref,
    calls.CacheFinishedReq: cache_finished_req,
    calls.CacheUnfinishedReq: cache_unfinished_req,
    calls.AbortReq: abort_req,
    calls.UndoMatch: undo_match,
    calls.UndoAllocate: undo_allocate,
    calls.DecWindowLock: dec_window_lock,
    calls.ReleaseWindow: release_window,
    calls.ComponentSlots: component_slots,
    calls.DeviceIndices: device_indices,
    calls.PinKey: pin_key,
    calls.UnpinKey: unpin_key,
    calls.Reset: reset,
    calls.AuditAll: audit,
    calls.Repair: repair,
    calls.Print: pretty_print,
    calls.Picture: picture,
    LoadBackCall: load_back,
    WaitLoad: wait_load,
    CloseLoad: close_load,
    UndoLoad: undo_load,
    PrefetchCall: prefetch,
    WaitFetch: wait_fetch,
    EndFetch: end_early,
    Pump: pump,
    Drain: drain,
    Flush: flush,
    SetStorage: set_storage,
    StepOffer: step_offer,
    StepApply: step_apply,
    CopyDone: report,
    StoreDone: report,
    Found: report,
    FetchDone: report,
}


class Coordinator(Actor):
    """The actor that serialises structural edits and cascades."""

    name = "coordinator"
    converses = True

    def __init__(self, state: State) -> None:
        self.state = state

    def handlers(self) -> Mapping[type, Handler]:
        """Return one operation a call."""
        # Bound methods: the interpreter calls them without a detour through C.
        return {
            message: MethodType(operation, self.state) for message, operation in OPERATIONS.items()
        }

    def give_back(self, message: Any, reply: Any) -> Any:
        """Return the call that undoes an answer nobody took, or None where it owns nothing."""
        if isinstance(message, MatchPrefixParams):
            if reply.receipt is not None or message.cow_mamba:
                return calls.UndoMatch(reply.receipt, message.req, message.cow_mamba)
        elif isinstance(message, AllocateParams):
            return calls.UndoAllocate(
                reply.indices.numpy(), message.req, message.num_tokens, reply.granted()
            )
        elif isinstance(message, calls.IncLockRef):
            return calls.DecLockRef(reply)
        elif isinstance(message, LoadBackCall):
            return UndoLoad(reply.number, reply.receipt, message.req)
        elif isinstance(message, PrefetchCall) and reply.number:
            return EndFetch(reply.number, False)
        return None
