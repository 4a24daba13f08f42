"""Bugs of locks, receipts and evictions."""

from __future__ import annotations

from radixtide.actors import op_lock, op_request
from radixtide.components.auxiliary import AuxiliaryComponent
from radixtide.components.full import FullComponent
from radixtide.components.full_host import FullHost
from support.planted.patching import Planted

LOCKS = (
    Planted(
        "a_window_is_given_up_twice",
        "K1",
        "a lock whose window was given up early gives it up again with its release",
        AuxiliaryComponent.release_component_lock,
        "if record is RELEASED:",
        "if record is RELEASED and self.reach is None:",
        components=("full", "swa"),
    ),
    Planted(
        "a_tombstone_counts_no_lock",
        "K1",
        "a lock passes over tombstones, its release does not",
        AuxiliaryComponent.acquire_component_lock,
        "data.lock_ref += 1",
        "data.lock_ref += data.value is not None",
        components=("full", "swa"),
    ),
    Planted(
        "a_receipt_outlives_its_release",
        "K1",
        "a receipt can be released again and again",
        op_lock._released,
        "del state.receipts[number]",
        "state.receipts.get(number)",
    ),
    Planted(
        "a_chunk_keeps_the_old_lock",
        "K1",
        "a request that gives a chunk with duplicates keeps the lock it had before, too",
        op_request.cache_unfinished_req,
        "unlock=old_node,",
        "unlock=old_node if part.kept is None else None,",
    ),
    Planted(
        "a_locked_parent_is_evicted",
        "K1",
        "an eviction takes a locked parent along with its last child",
        FullComponent.drive_eviction,
        "if count == above.device_children and not above.lock_ref:",
        "if count == above.device_children:",
    ),
    Planted(
        "a_locked_leaf_is_evicted_for_its_window",
        "K1",
        "a leaf that is locked in Full goes when another component evicts it",
        FullComponent.judge,
        "leaf = not data.lock_ref and data.device_children == gone.get(node, 0)",
        "leaf = data.device_children == gone.get(node, 0)",
        components=("full", "swa"),
    ),
    Planted(
        "a_locked_value_is_evicted",
        "K4",
        "an eviction of windows or states passes over no lock",
        AuxiliaryComponent.drive_eviction,
        "if data.lock_ref or data.node in spared:",
        "if data.node in spared:",
        components=("full", "mamba"),
    ),
    Planted(
        "a_lock_is_counted_at_every_ancestor",
        "K6",
        "releasing a lock goes on where another still protects, so sizes drift",
        FullHost.release_component_lock,
        "if data.lock_ref:",
        "if data.lock_ref > 1:",
    ),
)
