"""Bugs of slots: freed twice, never, too early, or somebody else's."""

from __future__ import annotations

from radixtide.actors import op_allocate, op_request
from radixtide.actors.cell import Cell
from radixtide.actors.pins import PinBoard
from radixtide.components.full import FullComponent
from radixtide.tiers.slots import SlotAllocator
from support.planted.patching import Planted

SLOTS = (
    Planted(
        "a_row_names_duplicates",
        "K5",
        "after a chunk the row of the request names slots that were freed as duplicates",
        op_request.cache_unfinished_req,
        "entry.write(state.rows, walk.base, part.indices)",
        "entry.write(\n        state.rows, max(inserted.matched, walk.base),"
        " part.indices[max(inserted.matched - walk.base, 0) :]\n    )",
    ),
    Planted(
        "duplicates_are_lost",
        "K5",
        "a single page of duplicates is nobody's after an insert",
        FullComponent.apply_insert,
        "if len(duplicate) and not running:",
        "if len(duplicate) > self.page_size and not running:",
    ),
    Planted(
        "what_comes_twice_acts_twice",
        "K5",
        "a message that is delivered again is handled again",
        Cell._handle,
        "known = self.answered.get(envelope.correlation)",
        "known = None",
    ),
    Planted(
        "a_cancelled_allocation_stays_in_the_ledger",
        "K6",
        "slots go back when the caller of an allocation leaves, the request's length does not",
        op_allocate.undo_allocate,
        "entry.allocated = position",
        "entry.allocated = max(position, entry.allocated)",
    ),
    Planted(
        "a_repair_frees_what_callers_hold",
        "K6",
        "after a crash the slots of callers without a request are free",
        SlotAllocator.rebuild,
        "owner[self._owner == ANONYMOUS] = ANONYMOUS",
        "owner[self._owner == ANONYMOUS] = FREE",
    ),
    Planted(
        "a_renewed_pin_ends_at_its_old_time",
        "K8",
        "a pin that was renewed is let go when its first time is over",
        PinBoard.next_expired,
        "if pin is not None and pin.expires_at == expires_at:",
        "if pin is not None:",
    ),
    Planted(
        "an_allocation_counts_its_rest",
        "K5",
        "the row of a request names the rest of its last page as tokens",
        op_allocate.allocate,
        "entry.allocated = reserved.position + p.num_tokens",
        "entry.allocated = reserved.position + len(slots)",
    ),
)
