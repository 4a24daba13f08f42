"""The Full component hook by hook, without actors."""

from __future__ import annotations

import numpy as np
import pytest

from radixtide import DoubleFree, EvictLayer, SlotError
from radixtide.components.outcomes import Reserved, Shortage
from radixtide.tiers.slots import ANONYMOUS, FIRST_HOLDER
from support.bench import Bench
from support.caches import key, tokens

HOLDER = FIRST_HOLDER


@pytest.fixture
def bench() -> Bench:
    """64 slots in pages of 4."""
    return Bench()


# -- match ---------------------------------------------------------------------------------------


def test_a_node_with_data_on_the_device_is_accepted(bench: Bench) -> None:
    leaf, _ = bench.insert(tokens(8))
    assert bench.full.create_match_validator(True)(leaf, 8)
    assert list(bench.full.validate_path([leaf], None, 0, True)) == [1]
    assert list(bench.full.validate_path([], leaf, 4, True)) == [1]
    assert list(bench.full.validate_path([], None, 0, True)) == []


def test_a_node_with_data_on_the_host_is_accepted_where_the_host_counts(bench: Bench) -> None:
    stem, _ = bench.insert(tokens(8))
    leaf, _ = bench.insert(tokens(16))
    data = bench.full.data(leaf)
    data.host_value, data.value = data.value, None
    assert list(bench.full.validate_path([stem, leaf], None, 0, True)) == [1]
    assert list(bench.full.validate_path([stem, leaf], None, 0, False)) == [1, 2]
    data.host_value = None
    assert list(bench.full.validate_path([stem, leaf], None, 0, False)) == [1]


def test_a_match_hands_out_the_slots_of_the_path_in_a_fresh_array(bench: Bench) -> None:
    bench.insert(tokens(8))
    leaf, _ = bench.insert(tokens(16))
    path = bench.path(leaf)
    slots = bench.full.finalize_match_result(path)
    assert slots.tolist() == [*range(8), *range(16, 24)]
    slots[:] = -1
    assert bench.full.path_slots(path).tolist() == [*range(8), *range(16, 24)]
    one = bench.full.finalize_match_result(path[:1])
    one[:] = -1
    assert bench.full.finalize_match_result(path[:1]).tolist() == list(range(8))
    assert bench.full.finalize_match_result([]).tolist() == []
    assert bench.audit() == []


def test_a_match_refreshes_the_place_of_its_leaf(bench: Bench) -> None:
    first, _ = bench.insert(tokens(4))
    bench.insert(tokens(4, 100))
    first.touch = bench.tree.clock = bench.tree.clock + 1
    bench.tree.root.touch = first.touch
    bench.full.finalize_match_result([first])
    assert [node.id for node in bench.full.drive_eviction(64)][-1] == first.id


# -- insert --------------------------------------------------------------------------------------


def test_what_is_new_is_adopted_and_the_rest_is_freed(bench: Bench) -> None:
    bench.insert(tokens(8))
    leaf, part = bench.insert(tokens(16))
    assert (part.adopted, part.duplicate, part.freed) == (((8, 16),), ((0, 8),), 8)
    assert (part.kept, part.indices) == (None, None)
    assert leaf.length == 8
    assert bench.sizes == (48, 16, 0, 0)
    assert bench.audit() == []


def test_an_insert_of_what_is_there_adopts_nothing(bench: Bench) -> None:
    bench.insert(tokens(8))
    _, part = bench.insert(tokens(8))
    assert (part.adopted, part.duplicate, part.freed) == ((), ((0, 8),), 8)
    assert bench.sizes == (56, 8, 0, 0)


def test_units_that_the_caller_has_from_the_tree_are_neither_adopted_nor_duplicate(
    bench: Bench,
) -> None:
    bench.insert(tokens(8))
    _, part = bench.insert(tokens(16), prev=4)
    assert (part.adopted, part.duplicate, part.freed) == (((8, 16),), ((4, 8),), 4)
    assert bench.sizes == (44, 16, 0, 4)


def test_duplicates_are_kept_and_indices_told_when_asked_for(bench: Bench) -> None:
    bench.insert(tokens(8))
    _, part = bench.insert(tokens(16), running=True)
    assert part.kept is not None
    assert part.indices is not None
    assert (part.freed, part.kept.tolist()) == (0, list(range(8, 16)))
    assert part.indices.tolist() == [*range(8), *range(16, 24)]
    assert bench.sizes == (40, 16, 0, 8)
    bench.full.allocator.release(part.kept)
    assert bench.audit() == []


def test_slots_of_a_node_are_its_own_array(bench: Bench) -> None:
    leaf, _ = bench.insert(tokens(8))
    value = bench.full.data(leaf).value
    assert value is not None
    assert value.base is None


def test_a_check_refuses_slots_that_the_holder_does_not_hold(bench: Bench) -> None:
    full = bench.full
    free = np.arange(8)
    with pytest.raises(DoubleFree):
        full.check_insert(bench.job(tokens(8), free))
    with pytest.raises(SlotError, match="has 0 slots allocated past its cached prefix, but 8"):
        full.check_insert(bench.job(tokens(8), None, HOLDER))
    full.reserve(8, HOLDER)
    full.check_insert(bench.job(tokens(8), None, HOLDER))
    full.check_insert(bench.job(tokens(8), free, prev=8))


def test_the_slots_of_a_holder_are_taken_from_the_front(bench: Bench) -> None:
    tree, full = bench.tree, bench.full
    full.reserve(10, HOLDER)
    stem, _ = bench.insert(tokens(4))
    job = bench.job(tokens(8, 4), None, HOLDER, prev=4, start=stem, running=True)
    job.checked = [full.check_insert(job)]
    job.leaves = (tree.add_leaf(stem, job.walk, 0),)
    part = full.apply_insert(job)
    assert (part.adopted, part.duplicate) == (((4, 12),), ())
    assert part.indices is not None
    assert part.indices.tolist() == list(range(8))
    assert full.holdings[HOLDER].slots().tolist() == list(range(8, 12))
    assert full.holdings[HOLDER].used == 2
    assert full.release_holding(HOLDER) == 4
    assert full.release_holding(HOLDER) == 0
    assert bench.audit() == []


# -- split ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("locked", [False, True], ids=["free", "locked"])
def test_a_split_shares_slots_and_keeps_locks_with_the_suffix(bench: Bench, locked: bool) -> None:
    leaf, _ = bench.insert(tokens(12))
    full = bench.full
    if locked:
        full.acquire_component_lock(leaf)
    before = bench.sizes
    prefix = bench.tree.split(leaf, 4)
    full.redistribute_on_node_split(prefix, leaf)
    above, below = full.data(prefix), full.data(leaf)
    assert above.value is not None
    assert below.value is not None
    assert (above.value.tolist(), below.value.tolist()) == (list(range(4)), list(range(4, 12)))
    assert (above.lock_ref, below.lock_ref) == (int(locked), int(locked))
    assert (above.device_children, below.device_children) == (1, 0)
    assert above.value.base is None
    assert bench.sizes == before
    assert bench.audit(**{f"n{leaf.id}": 1} if locked else {}) == []
    if locked:
        assert full.release_component_lock(leaf, None) == 12
    assert bench.audit() == []


# -- evict ---------------------------------------------------------------------------------------


def test_victims_come_in_order_until_the_target_is_met(bench: Bench) -> None:
    first, _ = bench.insert(tokens(4))
    second, _ = bench.insert(tokens(8, 100))
    third, _ = bench.insert(tokens(4, 200))
    assert bench.full.drive_eviction(0) == []
    assert bench.full.drive_eviction(-4) == []
    assert bench.full.drive_eviction(1) == [first]
    assert bench.full.drive_eviction(5) == [first, second]
    assert bench.full.drive_eviction(100) == [first, second, third]
    assert bench.audit() == []


def test_a_chain_goes_from_the_bottom_in_one_plan(bench: Bench) -> None:
    for length in (4, 8, 12):
        bench.insert(tokens(length))
    assert [node.end for node in bench.evict(12)] == [12, 8, 4]
    assert bench.sizes == (64, 0, 0, 0)
    assert bench.audit() == []


def test_a_parent_that_becomes_a_leaf_takes_the_place_of_its_own_time(bench: Bench) -> None:
    stem, _ = bench.insert(tokens(4))
    leaf, _ = bench.insert(tokens(8))
    other, _ = bench.insert(tokens(4, 100))
    assert bench.full.drive_eviction(64) == [leaf, stem, other]
    assert bench.evict(4) == [leaf]
    assert bench.full.drive_eviction(64) == [stem, other]
    assert bench.audit() == []


def test_a_parent_with_a_child_that_stays_is_no_victim(bench: Bench) -> None:
    sibling, _ = bench.insert(tokens(8))
    kept, _ = bench.insert([*tokens(4), *tokens(4, 50)])
    bench.full.acquire_component_lock(kept)
    assert bench.evict(64) == [sibling]
    assert bench.sizes == (56, 0, 8, 0)
    assert bench.audit(**{f"n{kept.id}": 1}) == []


def test_evicting_one_component_of_a_leaf_frees_its_slots(bench: Bench) -> None:
    leaf, _ = bench.insert(tokens(8))
    assert bench.full.node_has_component_data(leaf)
    assert bench.full.evict_component(leaf, EvictLayer.DEVICE) == (8, 0)
    assert bench.full.evict_component(leaf, EvictLayer.DEVICE) == (0, 0)
    assert not bench.full.node_has_component_data(leaf)
    assert bench.sizes == (64, 0, 0, 0)
    assert bench.full.rebuild({}, set()) == [leaf]


def test_the_rank_of_full_is_zero_for_leaves_and_highest_inside(bench: Bench) -> None:
    assert bench.full.eviction_priority(True) == 0
    assert bench.full.eviction_priority(False) == 2


def test_without_a_host_tier_nothing_is_evicted_there(bench: Bench) -> None:
    bench.insert(tokens(8))
    assert bench.full.drive_host_eviction(8) == []
    assert bench.full.lru_lengths() == (1, 0)


# -- lock ----------------------------------------------------------------------------------------


def test_a_lock_protects_the_path_and_its_release_gives_it_back(bench: Bench) -> None:
    bench.insert(tokens(8))
    leaf, _ = bench.insert(tokens(16))
    full = bench.full
    full.acquire_component_lock(leaf)
    assert bench.sizes == (48, 0, 16, 0)
    assert full.drive_eviction(64) == []
    full.acquire_component_lock(leaf)
    assert full.release_component_lock(leaf, None) == 0
    assert full.release_component_lock(leaf, None) == 16
    assert bench.sizes == (48, 16, 0, 0)
    assert bench.audit() == []


def test_a_shared_stem_is_protected_until_the_last_lock_below_it_goes(bench: Bench) -> None:
    left, _ = bench.insert(tokens(8))
    right, _ = bench.insert([*tokens(4), *tokens(8, 50)])
    full = bench.full
    full.acquire_component_lock(left)
    full.acquire_component_lock(right)
    assert bench.sizes[1:3] == (0, 16)
    assert full.release_component_lock(left, None) == 4
    assert bench.sizes[1:3] == (4, 12)
    assert full.release_component_lock(right, None) == 12
    assert bench.audit() == []


def test_the_root_needs_no_protection(bench: Bench) -> None:
    bench.full.acquire_component_lock(bench.tree.root)
    assert bench.full.release_component_lock(bench.tree.root, None) == 0
    assert bench.audit() == []


def test_a_second_lock_on_a_deep_path_stops_at_what_is_protected() -> None:
    bench = Bench(size=128)
    for length in range(4, 52, 4):
        bench.insert(tokens(length))
    deepest = bench.tree.walk(key(48)).last
    bench.full.acquire_component_lock(deepest)
    counts = [bench.full.data(node).lock_ref for node in bench.path(deepest)]
    bench.full.acquire_component_lock(deepest)
    again = [bench.full.data(node).lock_ref for node in bench.path(deepest)]
    assert counts == [1] * len(counts)
    assert again == [*counts[:-1], 2]


# -- slots ---------------------------------------------------------------------------------------


def test_room_in_the_last_page_is_used_first(bench: Bench) -> None:
    full = bench.full
    first = full.reserve(6, HOLDER)
    second = full.reserve(1, HOLDER)
    third = full.reserve(4, HOLDER)
    assert isinstance(first, Reserved)
    assert isinstance(second, Reserved)
    assert isinstance(third, Reserved)
    assert (first.slots.tolist(), first.position) == (list(range(8)), 0)
    assert (second.slots.tolist(), second.position) == ([6], 6)
    assert (third.slots.tolist(), third.position) == ([7, 8, 9, 10, 11], 7)
    assert bench.sizes == (52, 0, 0, 12)


@pytest.mark.parametrize("holder", [ANONYMOUS, HOLDER])
def test_a_reservation_is_whole_or_nothing(bench: Bench, holder: int) -> None:
    bench.insert(tokens(8))
    short = bench.full.reserve(57, holder)
    assert isinstance(short, Shortage)
    assert (short.wanted, short.sizes.free, short.sizes.evictable) == (60, 56, 8)
    assert bench.full.holdings == {}
    assert bench.sizes == (56, 8, 0, 0)


def test_a_reservation_that_nobody_took_is_undone(bench: Bench) -> None:
    full = bench.full
    for holder in (ANONYMOUS, HOLDER):
        given = full.reserve(6, holder)
        assert isinstance(given, Reserved)
        assert full.unreserve(given.slots, holder, given.position, 6)
        assert bench.sizes == (64, 0, 0, 0)
        assert full.holdings == {}


def test_a_reservation_is_not_undone_after_the_holder_went_on(bench: Bench) -> None:
    full = bench.full
    given = full.reserve(6, HOLDER)
    assert isinstance(given, Reserved)
    full.reserve(1, HOLDER)
    assert not full.unreserve(given.slots, HOLDER, given.position, 6)
    assert full.holdings[HOLDER].used == 7
    assert bench.sizes == (56, 0, 0, 8)


# -- the whole component -------------------------------------------------------------------------


def test_a_reset_frees_everything(bench: Bench) -> None:
    bench.insert(tokens(8))
    bench.full.reserve(5, HOLDER)
    bench.tree.reset()
    bench.full.reset()
    assert bench.sizes == (64, 0, 0, 0)
    assert bench.full.lru_lengths() == (0, 0)
    assert bench.audit() == []


def test_a_node_is_described_for_people(bench: Bench) -> None:
    leaf, _ = bench.insert(tokens(8))
    assert bench.full.describe(leaf) == "full: 8 slots, locks 0"
    bench.full.evict_nodes([leaf])
    assert bench.full.describe(leaf) == "full: tombstone, locks 0"


def test_a_rebuild_counts_everything_anew(bench: Bench) -> None:
    full = bench.full
    left, _ = bench.insert(tokens(8))
    right, _ = bench.insert([*tokens(4), *tokens(8, 50)])
    bench.insert(tokens(4, 200))
    full.acquire_component_lock(right)
    full.reserve(6, HOLDER)
    full.reserve(4, HOLDER + 1)
    sizes = bench.sizes
    full.evictable = full.protected = 99
    full.data(left).lock_ref = 5
    full.data(right).order_key = 3
    hollow = full.rebuild({right.id: 1}, {HOLDER})
    assert hollow == []
    assert HOLDER + 1 not in full.holdings
    assert bench.sizes == (sizes[0] + 4, sizes[1], sizes[2], sizes[3] - 4)
    assert bench.audit(**{f"n{right.id}": 1}) == []


def test_a_rebuild_names_nodes_without_data_children_first(bench: Bench) -> None:
    stem, _ = bench.insert(tokens(4))
    leaf, _ = bench.insert(tokens(8))
    bench.full.data(stem).value = None
    assert bench.full.rebuild({}, set()) == [leaf, stem]
    assert bench.sizes == (64, 0, 0, 0)
