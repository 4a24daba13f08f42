"""The ways to break a cache that the audit must name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from radixtide.actors.state import LiveReceipt
from radixtide.components.api import LockReceipt, NodeHandle
from radixtide.tiers.slots import FREE, TREE
from radixtide.tree.node import Node
from support.trees import lone_node
from support.world import PIN_BUDGET as PIN_BUDGET
from support.world import World
from support.world import populate as populate


class Damage(NamedTuple):
    """One way to break a sound cache, and what the audit must say.

    ``derived``: a rebuild after a crash can make it good, since nothing but a count was lost.
    """

    name: str
    clause: str
    says: str
    do: Callable[[World], object]
    derived: bool = False


def _set(get: Callable[[World], Any], name: str, value: Any) -> Callable[[World], object]:
    """Return a damage that sets an attribute to `value`, or to `value` of what it was."""

    def do(world: World) -> None:
        target = get(world)
        setattr(target, name, value(getattr(target, name)) if callable(value) else value)

    return do


def _slots(node: str) -> Callable[[World], Any]:
    return lambda world: world.data(getattr(world, node))


def _unlinked_node(world: World) -> Node:
    return lone_node(4, world.state.tree.root)


def _rename_in_table(world: World) -> None:
    children = world.stem.children
    children[b"elsewhere"] = children.pop(world.left.edge)


def _two_owners(world: World) -> None:
    value = world.data(world.right).value
    assert value is not None
    world.data(world.left).value = value.copy()


def _push_owned_page(world: World) -> None:
    value = world.data(world.loose).value
    assert value is not None
    allocator = world.full.allocator
    allocator._free[allocator._top] = value[0] // 4
    allocator._top += 1


def _request_lists_tree_slots(world: World) -> None:
    value = world.data(world.loose).value
    assert value is not None
    world.full.holdings[world.entry.holder]._parts = deque([value.astype(np.int64)])


def _node_takes_anonymous_slots(world: World) -> None:
    world.data(world.older).value = world.anonymous.astype(np.int32)


def _lane_out_of_order(world: World) -> None:
    world.full.leaves._lane.promote(world.data(world.older))


def _twice_in_order(world: World) -> None:
    data = world.data(world.loose)
    world.full.leaves._sorted.add((data.order_key, world.loose.id, data))


def _foreign_receipt(world: World) -> None:
    world.state.receipts[77] = LiveReceipt(
        _unlinked_node(world), LockReceipt(77, NodeHandle(999, 0, 0), 1), [None], None
    )


def _receipt_without_a_lock(world: World) -> None:
    world.state.receipts[77] = LiveReceipt(
        world.loose, LockReceipt(77, NodeHandle(world.loose.id, 0, 0), 1), [None], None
    )


def _owner(page_of: Callable[[World], Any], owner: int) -> Callable[[World], object]:
    def do(world: World) -> None:
        world.full.allocator._owner[int(page_of(world)[0]) // 4] = owner

    return do


def _host_only_parent(world: World) -> None:
    data = world.data(world.stem)
    data.host_value = data.value
    data.value = None


def _pin_of_a_lost_node(world: World) -> None:
    (pin,) = world.state.pins.all()
    pin.node = _unlinked_node(world)


DAMAGES: tuple[Damage, ...] = (
    # The leaf set holds exactly the evictable leaves.
    Damage(
        "an_evictable_leaf_is_missing_from_the_set",
        "leaf_sets",
        "is an evictable leaf but not in the set",
        lambda w: w.full.leaves.remove(w.data(w.loose)),
        derived=True,
    ),
    Damage(
        "a_locked_leaf_in_the_order_is_not_counted",
        "leaf_sets",
        "locked ones beside the set, hold",
        _set(lambda w: w.full, "lodgers", lambda was: was - 1),
        derived=True,
    ),
    Damage(
        "an_internal_node_is_in_the_set",
        "leaf_sets",
        "is in the set but no evictable leaf",
        lambda w: w.full.leaves.add(w.data(w.stem)),
        derived=True,
    ),
    Damage(
        "a_leaf_that_is_not_in_the_order_is_counted_as_locked",
        "leaf_sets",
        "locked ones beside the set, hold",
        _set(lambda w: w.full, "lodgers", lambda was: was + 1),
        derived=True,
    ),
    Damage(
        "children_on_the_device_are_miscounted",
        "leaf_sets",
        "counts 3 children on the device, has 2",
        _set(_slots("stem"), "device_children", 3),
        derived=True,
    ),
    # Closures.
    Damage(
        "a_node_without_data_is_kept",
        "kept",
        "has no Full data on any tier",
        _set(_slots("older"), "value", None),
        derived=True,
    ),
    Damage(
        "a_node_is_on_the_device_below_one_that_is_not",
        "closure",
        "is on the device, its parent Node",
        _host_only_parent,
    ),
    # Sizes.
    Damage(
        "the_evictable_size_is_off",
        "sizes",
        r"full: evictable size is \d+, nodes make 12",
        _set(lambda w: w.full, "evictable", lambda was: was + 4),
        derived=True,
    ),
    Damage(
        "the_protected_size_is_off",
        "sizes",
        r"full: protected size is \d+, nodes make 28",
        _set(lambda w: w.full, "protected", lambda was: was - 4),
        derived=True,
    ),
    Damage(
        "the_parts_of_the_pool_do_not_add_up",
        "sizes",
        r"free \d+ \+ evictable \d+ \+ protected \d+ \+ held \d+ = \d+, not 64",
        _set(lambda w: w.full, "evictable", lambda was: was + 4),
        derived=True,
    ),
    Damage(
        "the_tree_pages_are_miscounted",
        "sizes",
        "tree pages counted, books have another number",
        _set(lambda w: w.full.allocator, "tree_pages", lambda was: was + 1),
        derived=True,
    ),
    # The order of eviction.
    Damage(
        "a_leaf_has_a_stale_place",
        "lru",
        "not by its present key",
        _set(_slots("loose"), "order_key", 10**9),
        derived=True,
    ),
    Damage(
        "leaves_are_out_of_order",
        "lru",
        "is out of order in the full leaves",
        _lane_out_of_order,
        derived=True,
    ),
    Damage(
        "a_leaf_is_in_the_order_twice",
        "lru",
        "leaves hold a node twice",
        _twice_in_order,
        derived=True,
    ),
    # No slot owned twice.
    Damage("two_nodes_have_the_same_slots", "slots", "slots owned twice: pages at", _two_owners),
    Damage(
        "a_slot_of_the_tree_is_free_too",
        "slots",
        "slots owned twice: pages at",
        _push_owned_page,
        derived=True,
    ),
    Damage(
        "the_free_list_has_an_owned_page",
        "slots",
        "free list has owned pages",
        _push_owned_page,
        derived=True,
    ),
    Damage(
        "a_request_lists_slots_of_the_tree",
        "slots",
        r"request holder \d+ lists slots that the books give to others",
        _request_lists_tree_slots,
    ),
    Damage(
        "a_node_has_slots_that_are_held",
        "slots",
        "nodes have slots that the books do not give to the tree",
        _node_takes_anonymous_slots,
    ),
    Damage(
        "a_node_names_slots_out_of_range",
        "slots",
        r"nodes name slots out of range: \[1",
        _set(_slots("loose"), "value", lambda was: was + 1000),
    ),
    Damage(
        "a_node_has_too_few_slots",
        "slots",
        "has 4 slots for 8 units",
        _set(_slots("loose"), "value", lambda was: was[:4]),
        derived=True,
    ),
    # No slot lost.
    Damage(
        "a_free_page_is_forgotten",
        "lost",
        "slots lost: pages at",
        _set(lambda w: w.full.allocator, "_top", lambda was: was - 1),
        derived=True,
    ),
    Damage(
        "a_page_of_a_node_belongs_to_nobody",
        "lost",
        "slots lost: pages at",
        _set(_slots("older"), "value", None),
        derived=True,
    ),
    Damage(
        "the_slots_of_a_request_are_forgotten",
        "lost",
        "belong to nobody",
        lambda w: w.full.holdings.clear(),
    ),
    Damage(
        "held_slots_without_a_holder_are_marked_free",
        "lost",
        "belong to nobody",
        _owner(lambda w: w.anonymous, FREE),
        derived=True,
    ),
    Damage(
        "held_slots_are_marked_as_the_trees",
        "lost",
        "belong to nobody",
        _owner(lambda w: w.anonymous, TREE),
        derived=True,
    ),
    # Counts never negative.
    Damage(
        "a_lock_count_is_negative",
        "counts",
        "has lock count -1",
        _set(_slots("loose"), "lock_ref", -1),
        derived=True,
    ),
    Damage(
        "the_evictable_size_is_negative",
        "counts",
        "evictable size is -4",
        _set(lambda w: w.full, "evictable", -4),
        derived=True,
    ),
    Damage(
        "the_protected_size_is_negative",
        "counts",
        "protected is -4",
        _set(lambda w: w.full, "protected", -4),
        derived=True,
    ),
    Damage(
        "more_slots_are_held_than_there_are",
        "counts",
        "held is -",
        _set(lambda w: w.full.allocator, "tree_pages", 16),
        derived=True,
    ),
    Damage(
        "a_request_uses_more_slots_than_it_has",
        "counts",
        r"uses 99 of 8 slots",
        lambda w: setattr(w.full.holdings[w.entry.holder], "used", 99),
    ),
    Damage("a_hit_count_is_negative", "counts", "has -1 hits", _set(lambda w: w.left, "hits", -1)),
    # Access times ordered.
    Damage(
        "a_child_was_touched_after_its_parent",
        "access_times",
        r"was touched at \d+, its parent Node\(\d+, \[0, 8\), children=2\) at \d+",
        lambda w: setattr(w.left, "touch", w.stem.touch + 1),
    ),
    # Every receipt's effect present.
    Damage(
        "a_lock_has_no_receipt",
        "receipts",
        "has lock count 1; receipts and protected children make 0",
        lambda w: w.state.receipts.pop(w.receipt),
        derived=True,
    ),
    Damage(
        "a_receipt_has_no_lock",
        "receipts",
        "has lock count 0; receipts and protected children make 1",
        _receipt_without_a_lock,
        derived=True,
    ),
    Damage(
        "an_ancestor_does_not_count_its_protected_children",
        "receipts",
        "has lock count 1; receipts and protected children make 2",
        _set(_slots("stem"), "lock_ref", 1),
        derived=True,
    ),
    Damage("a_receipt_is_on_a_node_that_is_gone", "receipts", "not in the tree", _foreign_receipt),
    Damage(
        "a_component_is_told_of_a_lock_on_a_missing_node",
        "receipts",
        r"1 receipt\(s\) on missing node 999",
        _foreign_receipt,
    ),
    # The ledger.
    Damage(
        "a_request_has_a_receipt_that_is_not_live",
        "receipts",
        r"request 'r' has receipt \d+, not live",
        lambda w: w.state.receipts.pop(w.entry.receipt or 0),
    ),
    Damage(
        "a_request_and_its_receipt_name_different_nodes",
        "receipts",
        "request 'r' and its receipt name different nodes",
        lambda w: setattr(w.entry, "node", w.stem),
    ),
    Damage(
        "a_request_protects_more_than_its_lock",
        "receipts",
        "request 'r' protects 20 units, its lock 16",
        lambda w: setattr(w.entry, "protected", 20),
    ),
    Damage(
        "a_receipt_of_a_request_is_not_in_the_ledger",
        "receipts",
        r"receipt \d+ of 'r' is not in the ledger",
        lambda w: w.state.ledger.close(w.entry),
    ),
    Damage(
        "the_ledger_and_the_books_disagree_on_what_a_request_uses",
        "ledger",
        "request 'r' uses 6 slots, the ledger says 5",
        lambda w: setattr(w.entry, "allocated", 5),
    ),
    Damage(
        "slots_are_held_for_a_request_that_the_ledger_does_not_know",
        "ledger",
        r"holder \d+",
        lambda w: w.state.ledger.close(w.entry),
    ),
    # Keys of tables, and structure.
    Damage(
        "a_node_is_filed_under_another_key",
        "structure",
        "is not its parent's child under its edge",
        _rename_in_table,
    ),
    Damage(
        "a_table_key_is_not_the_first_page",
        "structure",
        "table key is not its first page",
        _set(lambda w: w.left, "piece", lambda was: was[::-1]),
    ),
    Damage(
        "a_key_is_longer_than_its_node",
        "structure",
        "has a key of 12 units over a length of 8",
        _set(lambda w: w.left, "piece", lambda was: was + was[:32]),
    ),
    Damage(
        "a_node_is_not_registered",
        "structure",
        "is in the tree but not in the register",
        lambda w: w.state.tree.nodes.pop(w.loose.id),
    ),
    Damage(
        "a_registered_node_is_not_in_the_tree",
        "structure",
        r"registered nodes are not in the tree: \[999\]",
        lambda w: w.state.tree.nodes.__setitem__(999, _unlinked_node(w)),
    ),
    # Pins.
    Damage(
        "a_node_counts_a_pin_too_many",
        "pins",
        "counts 1 pins, has 0",
        lambda w: setattr(w.loose, "pins", 1),
    ),
    Damage(
        "the_pinned_units_are_miscounted",
        "pins",
        "8 units counted as pinned, 4 are",
        lambda w: setattr(w.state.pins, "units", 8),
    ),
    Damage(
        "the_budget_is_exceeded",
        "pins",
        "4 units are pinned, budget 0",
        lambda w: setattr(w.state.pins, "budget", 0),
    ),
    Damage("a_pin_is_on_a_node_that_is_gone", "pins", "is not in the tree", _pin_of_a_lost_node),
)
