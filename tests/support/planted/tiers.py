"""Bugs of backups, loads and ranks."""

from __future__ import annotations

from radixtide.actors import op_backup, op_load_end, op_tiers
from radixtide.components.host_tier import HostTier
from support.planted.patching import Planted

TIERS = (
    Planted(
        "a_failed_backup_is_kept",
        "K9",
        "a backup whose copy failed is attached as if it had not",
        op_backup.end_backup,
        "keep = report.ok and all(",
        "keep = all(",
        tiers="host",
    ),
    Planted(
        "a_failed_load_is_kept",
        "K10",
        "a load whose copy failed is attached as if it had not",
        op_load_end._end_load,
        "keep = report.ok and not job.attempts",
        "keep = not job.attempts",
        tiers="host",
    ),
    Planted(
        "a_failed_load_keeps_its_lock",
        "K10",
        "a load that failed never lets go of the path it was for",
        op_load_end._end_load,
        "yield state.all(Unlock(lock, records))",
        "if keep:\n        yield state.all(Unlock(lock, records))",
        tiers="host",
    ),
    Planted(
        "a_failed_load_takes_slots_from_under_a_request",
        "K5",
        "slots of a load that failed are free while a request has gone on behind them",
        op_load_end._shrink_users,
        "entry.spoiled = record.gone_on = True\n            gone_on = True",
        "entry.spoiled = record.gone_on = True",
        tiers="host",
    ),
    Planted(
        "a_rank_acts_by_itself",
        "K12",
        "backups take effect on each rank when they are over there",
        op_tiers.report,
        "if state.together:",
        "if state.together and job.kind != BACKUP:",
        tiers="host",
    ),
    Planted(
        "a_host_copy_is_counted_but_not_freed",
        "K9",
        "what is evicted from the host stays in the books as the tree's",
        HostTier.evict_host_nodes,
        "books.release_tree(slots)",
        "books.release_tree(slots[: len(slots) - len(slots) % (2 * books.page_size)])",
        tiers="host",
    ),
)
