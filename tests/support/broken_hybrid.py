"""The ways to break what an auxiliary component keeps that the audit must name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from radixtide.actors.state import LiveReceipt
from radixtide.components.api import LockReceipt, NodeHandle
from radixtide.components.base import RELEASED
from radixtide.tiers.slots import ANONYMOUS, FREE, TREE
from support.trees import lone_node
from support.world_hybrid import HybridWorld


class HybridDamage(NamedTuple):
    """One way to break a sound cache of Full, SWA and Mamba, and what the audit must say.

    ``component``: whose records are broken. ``derived``: a rebuild after a crash of it can make it
    good, since nothing was lost but what follows from the rest, or what may be dropped.
    """

    component: str
    name: str
    clause: str
    says: str
    do: Callable[[HybridWorld], object]
    derived: bool = True


Do = Callable[[HybridWorld], object]


def _set(component: str, node: str, field: str, value: Any) -> Do:
    """Return a damage that sets a field of a record to `value`, or to `value` of what it was."""

    def do(world: HybridWorld) -> None:
        data = world.data(component, node)
        setattr(data, field, value(getattr(data, field)) if callable(value) else value)

    return do


def _size(component: str, field: str, change: Callable[[int], int]) -> Do:
    def do(world: HybridWorld) -> None:
        part = world.part(component)
        setattr(part, field, change(getattr(part, field)))

    return do


# -- pairs -------------------------------------------------------------------------------------


def _page(world: HybridWorld, component: str, node: str) -> int:
    """Return the first page that a component has on a node."""
    return int(world.value(component, node)[0]) // 4


def _pair_with_anothers(world: HybridWorld) -> None:
    world.swa.pairing._to_pair[_page(world, "full", "loose")] = _page(world, "swa", "older")


def _clear_pair(page_of: Callable[[HybridWorld], int]) -> Do:
    return lambda world: world.swa.pairing.clear(np.array([page_of(world)]))


def _held_pair(slots: Callable[[HybridWorld], Any]) -> Callable[[HybridWorld], int]:
    """Return the page that is paired with the last of held Full slots."""
    return lambda world: int(world.swa.pairing.slots_of(slots(world)[-1:])[0]) // 4


def _exchange_pairs(world: HybridWorld) -> None:
    carriers = [_page(world, "full", name) for name in ("loose", "older")]
    pages = [_page(world, "swa", name) for name in ("older", "loose")]
    world.swa.pairing.clear(np.array(pages))
    world.swa.pairing.pair(np.array(carriers), np.array(pages))


def _free_page(world: HybridWorld, component: str) -> Any:
    part = world.full if component == "full" else world.part(component)
    return part.allocator.free_pages()[:1].copy()


def _pair_a_tombstone(world: HybridWorld) -> None:
    page = world.swa.allocator.take(1, TREE)[::4] // 4
    world.swa.allocator.tree_pages += 1
    world.swa.pairing.pair(np.array([_page(world, "full", "gone")]), page)


def _pair_a_free_page(world: HybridWorld) -> None:
    world.swa.pairing.pair(_free_page(world, "full"), _free_page(world, "swa"))


def _name_a_pair_in_vain(world: HybridWorld) -> None:
    world.swa.pairing._to_pair[_free_page(world, "full")] = _page(world, "swa", "loose")


def _carriers(change: Callable[[Any], Any]) -> Do:
    def do(world: HybridWorld) -> None:
        metadata = world.data("swa", "gone").metadata
        assert metadata is not None
        metadata["carriers"] = change(metadata["carriers"])

    return do


def _owner_of_page(component: str, page_of: Callable[[HybridWorld], int], owner: int) -> Do:
    """Return a damage that gives a page to `owner` in the books; negative: to the request."""

    def do(world: HybridWorld) -> None:
        number = world.entry.holder if owner < 0 else owner
        world.part(component).allocator._owner[page_of(world)] = number

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


# -- the list ----------------------------------------------------------------------------------


def _unlist(component: str, node: str) -> Do:
    return lambda world: world.part(component).recency.remove(world.data(component, node))


def _list_tombstone(component: str, node: str) -> Do:
    return lambda world: world.part(component).recency.append(world.data(component, node))


def _list_twice(component: str) -> Do:
    def do(world: HybridWorld) -> None:
        # A list of links holds an entry twice when it leads back into itself.
        recency = world.part(component).recency
        newest, oldest = recency.newest, recency.oldest
        assert newest is not None
        newest.newer = oldest

    return do


def _list_stranger(component: str) -> Do:
    def do(world: HybridWorld) -> None:
        stranger = lone_node(4, world.state.tree.root)
        world.part(component).recency.append(stranger.primary)

    return do


def _miscount_list(component: str) -> Do:
    def do(world: HybridWorld) -> None:
        world.part(component).recency._size += 1

    return do


# -- slots -------------------------------------------------------------------------------------


def _share(component: str, node: str, other: str) -> Do:
    """Return a damage that gives a node the slots of another."""

    def do(world: HybridWorld) -> None:
        world.data(component, node).value = world.value(component, other).copy()

    return do


def _push_owned(component: str, node: str) -> Do:
    def do(world: HybridWorld) -> None:
        allocator = world.part(component).allocator
        allocator._free[allocator._top] = world.value(component, node)[0] // allocator.page_size
        allocator._top += 1

    return do


def _forget_free(component: str) -> Do:
    def do(world: HybridWorld) -> None:
        world.part(component).allocator._top -= 1

    return do


def _request_lists_the_trees_state(world: HybridWorld) -> None:
    slots = world.mamba.holdings[world.entry.holder].slots().copy()
    slots[0] = world.value("mamba", "loose")[0]
    world.mamba.holdings[world.entry.holder]._parts = deque([slots])


def _node_takes_held_state(world: HybridWorld) -> None:
    world.data("mamba", "loose").value = np.array([world.anonymous_state], dtype=np.int32)


def _two_states(world: HybridWorld) -> None:
    allocator = world.mamba.allocator
    second = allocator.take(1, TREE)
    allocator.tree_pages += 1
    world.mamba.evictable += 1
    data = world.data("mamba", "loose")
    data.value = np.append(world.value("mamba", "loose"), second).astype(np.int32)


def _miscount_tree_pages(component: str) -> Do:
    def do(world: HybridWorld) -> None:
        world.part(component).allocator.tree_pages += 1

    return do


def _hold_more_than_there_is(component: str) -> Do:
    def do(world: HybridWorld) -> None:
        allocator = world.part(component).allocator
        allocator.tree_pages = allocator.pages

    return do


def _overuse(world: HybridWorld) -> None:
    world.mamba.holdings[world.entry.holder].used = 99


def _anonymous_state(world: HybridWorld) -> int:
    return world.anonymous_state


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
        _clear_pair(lambda w: _page(w, "swa", "loose")),
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
        _set("swa", "loose", "value", lambda was: was[:4]),
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
        _set("swa", "gone", "metadata", None),
    ),
    HybridDamage(
        "swa",
        "the_pages_of_a_pair_have_different_owners",
        "pairs",
        "the pages of a pair have different owners",
        _owner_of_page("swa", lambda w: _page(w, "swa", "loose"), ANONYMOUS),
    ),
    HybridDamage(
        "swa",
        "the_pair_of_a_callers_slots_is_a_requests",
        "pairs",
        "the pages of a pair have different owners",
        _owner_of_page("swa", _held_pair(lambda w: w.anonymous), -1),
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
        _set("swa", "right", "lock_ref", 2),
    ),
    HybridDamage(
        "swa",
        "a_lock_reaches_beyond_its_window",
        "receipts",
        "swa: Node.* has lock count 1, receipts make 0",
        _set("swa", "gone", "lock_ref", 1),
    ),
    HybridDamage(
        "mamba",
        "a_state_is_locked_once_too_often",
        "receipts",
        "mamba: Node.* has lock count 2, receipts make 1",
        _set("mamba", "right", "lock_ref", 2),
    ),
    HybridDamage(
        "mamba",
        "a_lock_on_a_state_is_lost",
        "receipts",
        "mamba: Node.* has lock count 0, receipts make 1",
        _set("mamba", "cached", "lock_ref", 0),
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
        _set("swa", "right", "lock_ref", 0),
    ),
    HybridDamage(
        "full",
        "a_window_is_protected_and_its_full_slots_are_not",
        "protection",
        "is protected in swa, not in the carrier",
        _set("full", "right", "lock_ref", 0),
    ),
    HybridDamage(
        "full",
        "a_state_is_protected_and_its_full_slots_are_not",
        "protection",
        "is protected in mamba, not in the carrier",
        _set("full", "cached", "lock_ref", 0),
    ),
    # The list holds exactly the nodes with a value.
    *(
        HybridDamage(component, name, "lru", says, do)
        for component, bare in (("swa", "gone"), ("mamba", "older"))
        for name, says, do in (
            (
                "a_node_with_a_value_is_not_listed",
                f"has a value but is not in the {component} list",
                _unlist(component, "loose"),
            ),
            (
                "a_tombstone_is_listed",
                f"has no value but is in the {component} list",
                _list_tombstone(component, bare),
            ),
            (
                "a_node_that_is_gone_is_listed",
                f"has no value but is in the {component} list",
                _list_stranger(component),
            ),
            (
                "a_node_is_listed_twice",
                f"the {component} list holds .* twice",
                _list_twice(component),
            ),
            (
                "the_list_is_miscounted",
                rf"the {component} list counts \d+ of \d+",
                _miscount_list(component),
            ),
        )
    ),
    # Sizes and counts.
    *(
        HybridDamage(component, name, clause, says, do)
        for component in ("swa", "mamba")
        for name, clause, says, do in (
            (
                "the_evictable_size_is_off",
                "sizes",
                rf"{component}: evictable size is \d+, nodes make",
                _size(component, "evictable", lambda was: was + 1),
            ),
            (
                "the_protected_size_is_off",
                "sizes",
                rf"{component}: protected size is \d+, nodes make",
                _size(component, "protected", lambda was: was - 1),
            ),
            (
                "the_parts_of_the_pool_do_not_add_up",
                "sizes",
                rf"pool {component}: free \d+ \+ evictable \d+ \+ protected \d+ \+ held",
                _size(component, "evictable", lambda was: was + 1),
            ),
            (
                "the_tree_pages_are_miscounted",
                "sizes",
                f"pool {component}: .* tree pages counted, books have another number",
                _miscount_tree_pages(component),
            ),
            (
                "a_lock_count_is_negative",
                "counts",
                f"{component}: Node.* has count -1",
                _set(component, "loose", "lock_ref", -1),
            ),
            (
                "the_evictable_size_is_negative",
                "counts",
                f"{component}: evictable size is -4",
                _size(component, "evictable", lambda _: -4),
            ),
            (
                "the_protected_size_is_negative",
                "counts",
                f"pool {component}: protected is -4",
                _size(component, "protected", lambda _: -4),
            ),
            (
                "more_slots_are_held_than_there_are",
                "counts",
                f"pool {component}: held is -",
                _hold_more_than_there_is(component),
            ),
        )
    ),
    HybridDamage(
        "mamba",
        "a_request_uses_more_states_than_it_has",
        "counts",
        r"pool mamba: holder \d+ uses 99 of 3 slots",
        _overuse,
        derived=False,
    ),
    # No slot owned twice, none lost.
    HybridDamage(
        "mamba",
        "two_nodes_have_the_same_state",
        "slots",
        "pool mamba: slots owned twice",
        _share("mamba", "loose", "tail"),
    ),
    HybridDamage(
        "mamba",
        "a_request_has_the_trees_state",
        "slots",
        r"pool mamba: request holder \d+ lists slots that the books give to others",
        _request_lists_the_trees_state,
        derived=False,
    ),
    HybridDamage(
        "mamba",
        "a_node_has_a_state_that_is_held",
        "slots",
        "pool mamba: nodes have slots that the books do not give to the tree",
        _node_takes_held_state,
        derived=False,
    ),
    HybridDamage(
        "mamba",
        "a_node_has_two_states",
        "slots",
        "mamba: Node.* has 2 slots",
        _two_states,
    ),
    HybridDamage(
        "mamba",
        "a_state_of_the_tree_is_free_too",
        "slots",
        "pool mamba: slots owned twice",
        _push_owned("mamba", "loose"),
    ),
    HybridDamage(
        "mamba",
        "the_free_list_has_an_owned_state",
        "slots",
        "pool mamba: free list has owned pages",
        _push_owned("mamba", "loose"),
    ),
    HybridDamage(
        "swa",
        "two_nodes_have_the_same_slots",
        "slots",
        "pool swa: slots owned twice",
        _share("swa", "loose", "trunk"),
    ),
    HybridDamage(
        "swa",
        "a_node_names_slots_out_of_range",
        "slots",
        "pool swa: nodes name slots out of range",
        _set("swa", "loose", "value", lambda was: was + 1000),
    ),
    HybridDamage(
        "mamba",
        "a_node_names_a_state_out_of_range",
        "slots",
        "pool mamba: nodes name slots out of range",
        _set("mamba", "loose", "value", lambda was: was + 1000),
    ),
    HybridDamage(
        "swa",
        "a_slot_of_the_tree_is_free_too",
        "slots",
        "pool swa: slots owned twice",
        _push_owned("swa", "loose"),
    ),
    HybridDamage(
        "mamba",
        "the_state_of_a_node_is_forgotten",
        "lost",
        "pool mamba: slots lost: pages at",
        _set("mamba", "loose", "value", None),
    ),
    HybridDamage(
        "mamba",
        "a_free_state_is_forgotten",
        "lost",
        "pool mamba: slots lost",
        _forget_free("mamba"),
    ),
    HybridDamage(
        "mamba",
        "the_states_of_requests_are_forgotten",
        "lost",
        "pool mamba: slots lost: pages at .* belong to nobody",
        lambda w: w.mamba.holdings.clear(),
        derived=False,
    ),
    HybridDamage(
        "mamba",
        "a_held_state_without_a_holder_is_marked_free",
        "lost",
        "pool mamba: slots lost",
        _owner_of_page("mamba", _anonymous_state, FREE),
    ),
    HybridDamage(
        "swa",
        "the_slots_of_a_node_are_forgotten",
        "lost",
        "pool swa: slots lost",
        _set("swa", "loose", "value", None),
    ),
    HybridDamage(
        "swa", "a_free_slot_is_forgotten", "lost", "pool swa: slots lost", _forget_free("swa")
    ),
    HybridDamage(
        "swa",
        "the_slots_of_requests_are_forgotten",
        "lost",
        "pool swa: slots lost: pages at .* belong to nobody",
        lambda w: w.swa.holdings.clear(),
    ),
    # The ledger.
    HybridDamage(
        "mamba",
        "a_state_is_held_for_a_request_that_the_ledger_does_not_know",
        "ledger",
        r"pool mamba: holder \d+ holds slots, but is no request in the ledger",
        lambda w: w.state.ledger.close(w.idle),
    ),
    HybridDamage(
        "swa",
        "pairs_are_held_for_a_request_that_the_ledger_does_not_know",
        "ledger",
        r"pool swa: holder \d+ holds slots, but is no request in the ledger",
        lambda w: w.state.ledger.close(w.entry),
        derived=False,
    ),
)
