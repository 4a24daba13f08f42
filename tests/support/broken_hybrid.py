"""The ways to break what an auxiliary component keeps that the audit must name.

Pairs, locks and windows are broken here, lists, sizes and slots in broken_hybrid_pools.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from radixtide.actors.state import LiveReceipt
from radixtide.components.api import LockReceipt, NodeHandle
from radixtide.components.outcomes import RELEASED
from radixtide.tiers.slots import ANONYMOUS, TREE
from support.broken_hybrid_pools import POOL_DAMAGES
from support.hybrid_damage import Do, HybridDamage, first_page, set_field, set_owner
from support.world_hybrid import HybridWorld

# -- pairs -------------------------------------------------------------------------------------


def _pair_with_anothers(world: HybridWorld) -> None:
    world.swa.pairing._to_pair[first_page(world, "full", "loose")] = first_page(
        world, "swa", "older"
    )


def _clear_pair(page_of: Callable[[HybridWorld], int]) -> Do:
    return lambda world: world.swa.pairing.clear(np.array([page_of(world)]))


def _held_pair(slots: Callable[[HybridWorld], Any]) -> Callable[[HybridWorld], int]:
    """Return the page that is paired with the last of held Full slots."""
    return lambda world: int(world.swa.pairing.slots_of(slots(world)[-1:])[0]) // 4


def _exchange_pairs(world: HybridWorld) -> None:
    carriers = [first_page(world, "full", name) for name in ("loose", "older")]
    pages = [first_page(world, "swa", name) for name in ("older", "loose")]
    world.swa.pairing.clear(np.array(pages))
    world.swa.pairing.pair(np.array(carriers), np.array(pages))


def _free_page(world: HybridWorld, component: str) -> Any:
    part = world.full if component == "full" else world.part(component)
    return part.allocator.free_pages()[:1].copy()


def _pair_a_tombstone(world: HybridWorld) -> None:
    page = world.swa.allocator.take(1, TREE)[::4] // 4
    world.swa.allocator.tree_pages += 1
    world.swa.pairing.pair(np.array([first_page(world, "full", "gone")]), page)


def _pair_a_free_page(world: HybridWorld) -> None:
    world.swa.pairing.pair(_free_page(world, "full"), _free_page(world, "swa"))


def _name_a_pair_in_vain(world: HybridWorld) -> None:
    world.swa.pairing._to_pair[_free_page(world, "full")] = first_page(world, "swa", "loose")


def _carriers(change: Callable[[Any], Any]) -> Do:
    def do(world: HybridWorld) -> None:
        metadata = world.data("swa", "gone").metadata
        assert metadata is not None
        metadata["carriers"] = change(metadata["carriers"])

    return do


def _use_other_slots_than_the_carrier(world: HybridWorld) -> None:
    world.swa.holdings[world.entry.holder].used -= 4


# -- locks -------------------------------------------------------------------------------------


def _receipt_on_twig(world: HybridWorld) -> None:
    world.state.receipts[77] = LiveReceipt(
        world.twig, LockReceipt(77, NodeHandle(world.twig.id, 0, 0), 1), [None] * 3, None
    )


def _give_up_in_the_books(*components: int) -> Do:
    def do(world: HybridWorld) -> None:
        for component in components:
            world.state.receipts[world.receipt].records[component] = RELEASED

    return do


def _lose_receipt(world: HybridWorld) -> None:
    del world.state.receipts[world.receipt]


HYBRID_DAMAGES: tuple[HybridDamage, ...] = (
    # Pairs are mutual, and of the pages that nodes and holders have.
    HybridDamage(
        "swa", "a_pair_is_not_mutual", "pairs", "a pair is not mutual", _pair_with_anothers
    ),
    HybridDamage(
        "swa",
        "the_pair_of_a_live_node_is_cleared",
        "pairs",
        r"Node\(\d+, \[0, 8\), .*: its swa slots are not the pairs of its Full slots",
        _clear_pair(lambda w: first_page(w, "swa", "loose")),
    ),
    HybridDamage(
        "swa",
        "two_nodes_have_each_others_pair",
        "pairs",
        "its swa slots are not the pairs of its Full slots",
        _exchange_pairs,
    ),
    HybridDamage(
        "swa",
        "a_node_has_too_few_slots",
        "pairs",
        "its swa slots are not the pairs of its Full slots",
        set_field("swa", "loose", "value", lambda was: was[:4]),
    ),
    HybridDamage(
        "swa",
        "the_pair_of_a_requests_slots_is_cleared",
        "pairs",
        "pages that are owned and pages that are paired are not the same",
        _clear_pair(_held_pair(lambda w: w.own)),
    ),
    HybridDamage(
        "swa",
        "the_pair_of_a_callers_slots_is_cleared",
        "pairs",
        "pages that are owned and pages that are paired are not the same",
        _clear_pair(_held_pair(lambda w: w.anonymous)),
    ),
    HybridDamage(
        "swa",
        "a_free_page_is_paired",
        "pairs",
        "pages that are owned and pages that are paired are not the same",
        _pair_a_free_page,
    ),
    HybridDamage(
        "swa",
        "a_full_page_names_a_pair_that_is_anothers",
        "pairs",
        "a Full page names a pair in vain",
        _name_a_pair_in_vain,
    ),
    HybridDamage(
        "swa",
        "a_tombstone_has_a_pair",
        "pairs",
        r"Node\(\d+, \[8, 16\), .* is a tombstone, but a page of it is paired",
        _pair_a_tombstone,
    ),
    HybridDamage(
        "swa",
        "a_tombstone_keeps_its_pages_in_another_order",
        "pairs",
        "keeps other Full pages than it has",
        _carriers(lambda was: was[::-1].copy()),
    ),
    HybridDamage(
        "swa",
        "a_tombstone_keeps_too_few_pages",
        "pairs",
        "keeps other Full pages than it has",
        _carriers(lambda was: was[:1]),
    ),
    HybridDamage(
        "swa",
        "a_tombstone_has_forgotten_its_pages",
        "pairs",
        "keeps other Full pages than it has",
        set_field("swa", "gone", "metadata", None),
    ),
    HybridDamage(
        "swa",
        "the_pages_of_a_pair_have_different_owners",
        "pairs",
        "the pages of a pair have different owners",
        set_owner("swa", lambda w: first_page(w, "swa", "loose"), ANONYMOUS),
    ),
    HybridDamage(
        "swa",
        "the_pair_of_a_callers_slots_is_a_requests",
        "pairs",
        "the pages of a pair have different owners",
        set_owner("swa", _held_pair(lambda w: w.anonymous), -1),
    ),
    HybridDamage(
        "swa",
        "what_a_request_holds_is_not_what_the_carrier_says",
        "pairs",
        r"holder \d+",
        _use_other_slots_than_the_carrier,
    ),
    # Every lock's effect present, in each component.
    HybridDamage(
        "swa",
        "a_window_is_locked_once_too_often",
        "receipts",
        "swa: Node.* has lock count 2, receipts make 1",
        set_field("swa", "right", "lock_ref", 2),
    ),
    HybridDamage(
        "swa",
        "a_lock_reaches_beyond_its_window",
        "receipts",
        "swa: Node.* has lock count 1, receipts make 0",
        set_field("swa", "gone", "lock_ref", 1),
    ),
    HybridDamage(
        "mamba",
        "a_state_is_locked_once_too_often",
        "receipts",
        "mamba: Node.* has lock count 2, receipts make 1",
        set_field("mamba", "right", "lock_ref", 2),
    ),
    HybridDamage(
        "mamba",
        "a_lock_on_a_state_is_lost",
        "receipts",
        "mamba: Node.* has lock count 0, receipts make 1",
        set_field("mamba", "cached", "lock_ref", 0),
    ),
    HybridDamage(
        "swa",
        "a_window_was_given_up_in_the_books_only",
        "receipts",
        "swa: Node.* has lock count 1, receipts make 0",
        _give_up_in_the_books(1, 2),
    ),
    HybridDamage(
        "mamba",
        "a_lock_on_a_state_was_given_up_in_the_books_only",
        "receipts",
        "mamba: Node.* has lock count 1, receipts make 0",
        _give_up_in_the_books(2),
    ),
    HybridDamage(
        "swa",
        "a_window_lock_has_no_receipt",
        "receipts",
        "swa: Node.* has lock count 1, receipts make 0",
        _lose_receipt,
    ),
    # A lock pins one window.
    HybridDamage(
        "swa",
        "a_lock_begins_inside_a_node",
        "windows",
        r"swa: the lock on Node\(\d+, \[8, 12\), .* begins inside Node\(\d+, \[0, 8\), .*, "
        "so that it pins more than 8 units",
        _receipt_on_twig,
        derived=False,
    ),
    # What is protected in one component is protected in those above it.
    HybridDamage(
        "swa",
        "a_state_is_protected_and_the_window_before_it_is_not",
        "protection",
        "is protected in mamba, not swa",
        set_field("swa", "right", "lock_ref", 0),
    ),
    HybridDamage(
        "full",
        "a_window_is_protected_and_its_full_slots_are_not",
        "protection",
        "is protected in swa, not in the carrier",
        set_field("full", "right", "lock_ref", 0),
    ),
    HybridDamage(
        "full",
        "a_state_is_protected_and_its_full_slots_are_not",
        "protection",
        "is protected in mamba, not in the carrier",
        set_field("full", "cached", "lock_ref", 0),
    ),
    *POOL_DAMAGES,
)
