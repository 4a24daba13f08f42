"""The ways to break an auxiliary component's list, sizes and slots that the audit must name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from radixtide.tiers.slots import FREE, TREE
from support.hybrid_damage import Do, HybridDamage, set_field, set_owner
from support.trees import lone_node
from support.world_hybrid import HybridWorld


def set_size(component: str, field: str, change: Callable[[int], int]) -> Do:
    def do(world: HybridWorld) -> None:
        part = world.part(component)
        setattr(part, field, change(getattr(part, field)))

    return do


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


POOL_DAMAGES: tuple[HybridDamage, ...] = (
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
                set_size(component, "evictable", lambda was: was + 1),
            ),
            (
                "the_protected_size_is_off",
                "sizes",
                rf"{component}: protected size is \d+, nodes make",
                set_size(component, "protected", lambda was: was - 1),
            ),
            (
                "the_parts_of_the_pool_do_not_add_up",
                "sizes",
                rf"pool {component}: free \d+ \+ evictable \d+ \+ protected \d+ \+ held",
                set_size(component, "evictable", lambda was: was + 1),
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
                set_field(component, "loose", "lock_ref", -1),
            ),
            (
                "the_evictable_size_is_negative",
                "counts",
                f"{component}: evictable size is -4",
                set_size(component, "evictable", lambda _: -4),
            ),
            (
                "the_protected_size_is_negative",
                "counts",
                f"pool {component}: protected is -4",
                set_size(component, "protected", lambda _: -4),
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
        set_field("swa", "loose", "value", lambda was: was + 1000),
    ),
    HybridDamage(
        "mamba",
        "a_node_names_a_state_out_of_range",
        "slots",
        "pool mamba: nodes name slots out of range",
        set_field("mamba", "loose", "value", lambda was: was + 1000),
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
        set_field("mamba", "loose", "value", None),
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
        set_owner("mamba", _anonymous_state, FREE),
    ),
    HybridDamage(
        "swa",
        "the_slots_of_a_node_are_forgotten",
        "lost",
        "pool swa: slots lost",
        set_field("swa", "loose", "value", None),
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
