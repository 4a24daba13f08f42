"""Bugs of sliding windows."""

from __future__ import annotations

from radixtide.actors import op_allocate, op_match
from radixtide.components.paired import PairedComponent
from radixtide.components.swa import SwaComponent
from support.planted.patching import Planted

WITH_WINDOW = ("full", "swa")

WINDOWS = (
    Planted(
        "a_window_is_a_page_short",
        "K3",
        "a match goes on behind a window that lacks its first page",
        SwaComponent.validate_path,
        "elif not gap or end - whole_from >= window:",
        "elif not gap or end - whole_from >= window - self.page_size:",
        components=WITH_WINDOW,
        tiers="device",
    ),
    Planted(
        "a_window_is_rounded_down",
        "K3",
        "what a lock covers is the window rounded down to whole pages",
        SwaComponent.__init__,
        "self.reach = -(-config.window // page) * page",
        "self.reach = max(config.window // page, 1) * page",
        components=WITH_WINDOW,
    ),
    Planted(
        "tombstones_keep_their_pairs",
        "K3",
        "of several nodes that become tombstones at once, the slots stay paired",
        PairedComponent.evict_nodes,
        "if values:",
        "if len(values) == 1:",
        components=WITH_WINDOW,
    ),
    Planted(
        "a_revived_window_stays_with_the_caller",
        "K3",
        "window slots that an insert brings for a tombstone stay paired with the caller's slots",
        SwaComponent.apply_insert,
        "if start < there:",
        "if start < there and not job.running:",
        components=WITH_WINDOW,
    ),
    Planted(
        "a_match_that_splits_makes_no_border",
        "K3",
        "the lock of a match that split a node begins inside another, as no border was made for it",
        op_match._commit,
        "if lock and state.reaches:",
        "if lock and state.reaches and not splits:",
        components=WITH_WINDOW,
    ),
    Planted(
        "a_window_is_given_back_a_page_early",
        "K3",
        "what a request gives back behind its window is rounded up, not down",
        op_allocate.release_window,
        "end = (units - max(state.reaches)) // page * page",
        "end = -(-(units - max(state.reaches)) // page) * page",
        components=WITH_WINDOW,
    ),
    Planted(
        "a_duplicate_keeps_its_window",
        "K5",
        "the window slots of a chunk's duplicates are freed while its row still names them",
        SwaComponent._free_rest,
        "if job.running and first < there:",
        "if not job.running and first < there:",
        components=WITH_WINDOW,
    ),
)
