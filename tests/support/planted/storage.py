"""Bugs of storage and of namespaces."""

from __future__ import annotations

from radixtide.actors import op_fetch
from radixtide.actors.storage_jobs import StorageJobs
from radixtide.tiers import page_hash
from radixtide.tiers.storage import frame
from radixtide.tree import key
from support.planted.patching import Planted

STORAGE = (
    Planted(
        "a_stored_page_is_not_verified",
        "K11",
        "what a store returns is taken, whatever its checksum says",
        frame.verify,
        "if bytes(head[_FIELDS.size : HEADER]) != _checksum(fields, parent, payload):",
        "if len(payload) != told.length:",
        tiers="storage",
    ),
    Planted(
        "a_fetch_is_given_up_while_it_writes",
        "K11",
        "the host slots of a fetch that is given up are free while its pages are being written",
        StorageJobs.stop,
        "if chain.writing:",
        "if chain.writing and chain.ended:",
        tiers="storage",
    ),
    Planted(
        "a_fetch_forgets_its_offset",
        "K11",
        "what is fetched behind a hit is read from the beginning of the key",
        StorageJobs._fetch,
        "first = m.pages - len(slots) // pool.host.page_size",
        "first = 0",
        tiers="storage",
    ),
    Planted(
        "a_fetch_keeps_what_did_not_arrive",
        "K11",
        "pages that a fetch asked for are attached, whether they were read or not",
        op_fetch.end_fetch,
        "pages = min(report.pages, job.pages)",
        "pages = job.pages",
        tiers="storage",
    ),
    Planted(
        "a_salt_is_no_part_of_stored_names",
        "K13",
        "pages of tenants that differ in their salt have the same names in storage",
        page_hash.namespace_seed,
        "for part in (extra_key, cache_salt):",
        "for part in (extra_key,):",
        tiers="storage",
    ),
    Planted(
        "an_adapter_is_as_good_as_a_salt",
        "K13",
        "an adapter and a salt of one name are one namespace",
        key.namespace_bytes,
        "return NAMESPACE_TAG + _frame(extra_key) + _frame(cache_salt)",
        "return NAMESPACE_TAG + _frame(None) + _frame(extra_key or cache_salt)",
    ),
)
