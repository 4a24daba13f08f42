"""Bugs of splits, alone and under transfers."""

from __future__ import annotations

from radixtide.actors.jobs import JobBoard
from radixtide.components.full import FullComponent
from radixtide.components.host_tier import HostTier
from radixtide.tree import key
from radixtide.tree.radix_tree import RadixTree
from support.planted.patching import Planted

SPLITS = (
    Planted(
        "a_split_joins_its_job_behind",
        "K2",
        "of a node that is split while it is copied, the new prefix joins the job behind the rest",
        JobBoard.split,
        "nodes.insert(nodes.index(suffix), prefix)",
        "nodes.insert(nodes.index(suffix) + 1, prefix)",
        tiers="host",
    ),
    Planted(
        "a_split_is_not_pinned",
        "K2",
        "of a node that is split while it is copied, the new prefix is not noted as pinned",
        JobBoard.split,
        "for nodes in (job.nodes, job.pinned):",
        "for nodes in (job.nodes,):",
        tiers="storage",
    ),
    Planted(
        "a_split_cuts_digests_at_the_wrong_end",
        "K2",
        "the digests of a node on the host are cut where the suffix is long, not the prefix",
        HostTier.cut_link,
        "at = len(digests) - units // self.page_size",
        "at = units // self.page_size",
        tiers="host",
    ),
    Planted(
        "a_split_keeps_the_names_of_its_beginning",
        "K2",
        "after a split the suffix has the storage names of the first pages",
        RadixTree.split,
        "node.hashes = node.hashes[at:]",
        "node.hashes = node.hashes[: len(node.hashes) - at]",
        tiers="storage",
    ),
    Planted(
        "a_split_copies_the_locks_of_full",
        "K6",
        "the new prefix counts all locks of the suffix, not the suffix as one",
        FullComponent.redistribute_on_node_split,
        "above.lock_ref = 1 if below.lock_ref else 0",
        "above.lock_ref = below.lock_ref",
    ),
    Planted(
        "a_bigram_edge_is_a_token_short",
        "K7",
        "after a split a bigram node is named by its page's tokens without the one ahead",
        RadixTree.split,
        "node.edge = node.piece[: self.edge_bytes]",
        "node.edge = node.piece[: self.page_size * TOKEN_BYTES]",
    ),
    Planted(
        "bigrams_share_as_many_as_tokens",
        "K7",
        "of two bigram keys that part at some token, the pair across it counts as shared",
        key.common_units,
        "return max(tokens - lookahead // TOKEN_BYTES, 0)",
        "return tokens",
    ),
)
