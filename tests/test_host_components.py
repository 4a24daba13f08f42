"""The hooks of the host tier one by one, without actors: backups, demotion, eviction."""

from __future__ import annotations

import numpy as np
import pytest

from radixtide import EvictLayer
from radixtide.components.outcomes import NO_MOVES, Shortage
from support.bench import Bench
from support.caches import tokens
from support.host_jobs import HostWorld
from support.host_steps import away, back_up, full_world, host_sizes, hybrid_world, put

ALL = ("full", "swa", "mamba")


@pytest.fixture
def full() -> HostWorld:
    return full_world()


@pytest.fixture
def hybrid() -> HostWorld:
    return hybrid_world()


# -- no host tier ----------------------------------------------------------------------------------


def test_without_a_host_tier_every_hook_does_nothing() -> None:
    bench = Bench()
    leaf, _ = bench.insert(tokens(8))
    part = bench.full
    assert part.host_allocator is None
    assert part.host_sizes() is None
    assert part.backup_need([leaf]) == part.host_arriving == 0
    assert part.begin_backup([leaf], 9) is NO_MOVES
    part.commit_backup([leaf])
    part.abort_backup([leaf])
    part.pin_host([leaf])
    part.unpin_host([leaf])
    part.note_stored([leaf])
    part.commit_fetch([leaf], np.arange(8))
    part.release_host(np.arange(8))
    assert isinstance(part.reserve_host(8, 9), Shortage)
    assert part.evict_host_nodes([leaf]) == 0
    assert part.drive_host_eviction(8) == []
    assert part.data(leaf).host_link is None
    assert bench.sizes == (56, 8, 0, 0)
    assert bench.audit() == []


def test_the_host_pool_is_as_large_as_the_config_says() -> None:
    world = HostWorld(ALL, window=8, host={"full": 33, "mamba": 3})
    assert [part.host_allocator.size for part in world.parts if part.host_allocator] == [32, 128, 3]
    assert host_sizes(world.full) == (32, 0, 0, 0)
    assert [part.bytes_per_slot() > 0 for part in world.parts] == [True] * 3
    assert host_sizes(HostWorld().full) == (128, 0, 0, 0)


# -- backup ----------------------------------------------------------------------------------------


def test_a_backup_takes_slots_protects_its_source_and_becomes_the_host_value(
    full: HostWorld,
) -> None:
    (leaf,) = put(full, tokens(8))
    part = full.full
    assert part.backup_need([leaf]) == 8
    number = full.begin_backup(leaf)
    assert number is not None
    (moving,) = full.jobs[number].moving
    assert moving.device.tolist() == list(range(8))
    assert moving.device.dtype == moving.host.dtype == np.dtype(np.int64)
    assert host_sizes(part) == (24, 0, 0, 8)
    assert part.sizes().protected == 8
    assert part.backup_need([leaf]) == 0
    full.check()
    full.end_backup(number)
    assert host_sizes(part) == (24, 8, 0, 0)
    assert part.sizes().evictable == 8
    ((slots, digests),) = part.host_slots_of([leaf])
    assert slots.tolist() == moving.host.tolist()
    assert digests is not None
    assert len(digests) == 2
    full.check()


def test_a_backup_that_failed_leaves_nothing_behind(full: HostWorld) -> None:
    (leaf,) = put(full, tokens(8))
    number = full.begin_backup(leaf)
    assert number is not None
    full.end_backup(number, ok=False)
    assert host_sizes(full.full) == (32, 0, 0, 0)
    assert full.full.data(leaf).host_link is None
    assert full.full.sizes().evictable == 8
    full.check()


def test_an_auxiliary_component_backs_up_what_there_is_room_for_in_order() -> None:
    world = HostWorld(("full", "swa"), window=8, host={"full": 64, "swa": 8})
    stem, leaf = put(world, tokens(4), tokens(16))
    swa = world.part("swa")
    assert swa.backup_need([stem, leaf.parent or leaf, leaf]) == 16
    number = world.begin_backup(leaf)
    assert number is not None
    world.check()
    world.end_backup(number)
    assert host_sizes(swa) == (0, 8, 0, 0)
    assert swa.data(stem).host_value is not None
    assert world.full.data(leaf).host_value is not None
    world.check()


def test_a_node_is_pinned_in_every_component_also_where_it_has_no_value(hybrid: HostWorld) -> None:
    assert hybrid.insert(tokens(16), swa=0) is not None
    (leaf,) = hybrid.tree
    number = hybrid.begin_backup(leaf)
    assert number is not None
    assert [part.data(leaf).lock_ref for part in hybrid.parts] == [1, 1, 1]
    hybrid.check()
    # A value that comes meanwhile is protected at once, and not part of the copy.
    hybrid.insert(tokens(16), state=True)
    assert hybrid.part("mamba").sizes().protected == 1
    hybrid.check()
    hybrid.end_backup(number)
    assert [part.data(leaf).lock_ref for part in hybrid.parts] == [0, 0, 0]
    assert hybrid.part("mamba").data(leaf).host_value is None
    hybrid.check()
    back_up_states = hybrid.part("mamba").backup_need([leaf])
    assert back_up_states == 1


@pytest.mark.parametrize("ok", [True, False])
def test_every_fragment_of_a_split_backup_ends_alike(hybrid: HostWorld, ok: bool) -> None:
    (leaf,) = put(hybrid, tokens(24))
    number = hybrid.begin_backup(leaf)
    assert number is not None
    hybrid.lock(leaf)
    hybrid.check()
    first = hybrid.cut(leaf, 4) if leaf.length > 4 else hybrid.border(leaf, 12)[0]
    second = hybrid.border(leaf, 8)
    hybrid.split(first, *second)
    hybrid.check()
    before = len(hybrid.jobs[number].nodes)
    assert before == len(hybrid.path(leaf))
    hybrid.end_backup(number, ok)
    hybrid.check()
    for node in hybrid.path(leaf):
        assert (hybrid.full.data(node).host_value is not None) == ok
    hybrid.unlock(0)
    hybrid.check()
    assert hybrid.full.sizes().protected == 0


# -- demotion and eviction -------------------------------------------------------------------------


def test_a_leaf_with_a_host_copy_is_demoted(full: HostWorld) -> None:
    stem, leaf = put(full, tokens(8), tokens(16))
    back_up(full, leaf)
    assert full.evict(full.full, 8) == [leaf]
    assert full.full.data(leaf).value is None
    assert full.full.lru_lengths() == (1, 1)
    assert full.full.describe(leaf) == "full: tombstone, locks 0, 8 on the host"
    full.check()
    assert full.evict(full.full, 8) == [stem]
    assert full.full.sizes().free == 64
    assert host_sizes(full.full) == (16, 16, 0, 0)
    full.check()


def test_host_copies_go_by_kind_and_children_before_parents(full: HostWorld) -> None:
    alone, stored, mirror, stem, deep = put(
        full,
        tokens(4),
        tokens(4, 100),
        tokens(4, 200),
        tokens(4, 300),
        [*tokens(4, 300), *tokens(4, 400)],
    )
    back_up(full, alone, stored, mirror, deep)
    assert full.evict(full.full, 4) == [alone]
    full.store([stored])
    order = full.full.drive_host_eviction(10**6)
    assert order == [stored, alone, mirror, deep, stem]
    assert full.full.drive_host_eviction(4) == order[:1]
    assert full.full.drive_host_eviction(5) == order[:2]
    assert full.full.drive_host_eviction(0) == []
    assert stored not in full.full.drive_host_eviction(10**6, (stored,))
    full.check()
    full.evict_host(full.full, 10**6)
    assert host_sizes(full.full) == (32, 0, 0, 0)
    full.check()


def test_a_touched_copy_gets_its_place_when_its_turn_comes(full: HostWorld) -> None:
    first, second, third = put(full, tokens(4, 100), tokens(4, 200), tokens(4, 300))
    away(full, first, second, third)
    assert full.full.drive_host_eviction(10**6) == [first, second, third]
    full.touch([first])
    assert full.full.drive_host_eviction(4) == [second]
    assert full.full.drive_host_eviction(10**6) == [second, third, first]
    full.check()


def test_what_is_pinned_or_locked_is_passed_over_on_the_host(full: HostWorld) -> None:
    stem, left, right = put(full, tokens(4), tokens(8), [*tokens(4), *tokens(4, 50)])
    back_up(full, left, right)
    full.lock(left)
    assert full.full.drive_host_eviction(10**6) == [right]
    full.unlock(0)
    full.full.pin_host([right])
    assert host_sizes(full.full) == (20, 4, 8, 0)
    assert full.full.drive_host_eviction(10**6) == [left]
    full.full.unpin_host([right])
    assert set(full.full.drive_host_eviction(10**6)) == {stem, left, right}
    full.check()


def test_an_auxiliary_copy_goes_first_where_the_device_has_the_value_too(hybrid: HostWorld) -> None:
    mamba = hybrid.part("mamba")
    first, second, third = put(hybrid, tokens(4, 100), tokens(4, 200), tokens(4, 300))
    back_up(hybrid, first, second, third)
    assert mamba.drive_host_eviction(2) == [first, second]
    hybrid.evict(mamba, 1)
    assert mamba.data(first).value is None
    assert mamba.drive_host_eviction(10) == [second, third, first]
    mamba.pin_host([second])
    assert mamba.drive_host_eviction(10) == [third, first]
    mamba.unpin_host([second])
    assert mamba.drive_host_eviction(1, (second,)) == [third]
    hybrid.evict_host(mamba, 1)
    assert host_sizes(mamba) == (2, 2, 0, 0)
    assert hybrid.full.data(second).host_value is not None
    hybrid.check()


def test_one_tier_or_both_can_be_evicted(hybrid: HostWorld) -> None:
    (leaf,) = put(hybrid, tokens(4))
    back_up(hybrid, leaf)
    mamba = hybrid.part("mamba")
    assert mamba.node_has_component_data(leaf, EvictLayer.HOST)
    assert mamba.evict_component(leaf, EvictLayer.HOST) == (0, 1)
    assert not mamba.node_has_component_data(leaf, EvictLayer.HOST)
    assert mamba.evict_component(leaf, EvictLayer.ALL) == (1, 0)
    assert not mamba.node_has_component_data(leaf, EvictLayer.ALL)
    hybrid.check()
