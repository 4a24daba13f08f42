"""The hooks of the host tier one by one, on components without actors."""

from __future__ import annotations

import numpy as np
import pytest

from radixtide import EvictLayer
from radixtide.components.host_tier import HostTier
from radixtide.components.outcomes import NO_MOVES, Shortage
from radixtide.tree import Node
from radixtide.tree.node import ON_DEVICE, ON_HOST
from support.bench import Bench
from support.caches import tokens
from support.host_jobs import HostWorld

ALL = ("full", "swa", "mamba")


@pytest.fixture
def full() -> HostWorld:
    """Full alone: 64 slots in pages of 4 on the device, 32 on the host."""
    return HostWorld(host={"full": 32})


@pytest.fixture
def hybrid() -> HostWorld:
    """All three, with pages of 4 and a window of two of them."""
    return HostWorld(ALL, window=8, host={"full": 64, "swa": 32, "mamba": 4})


def put(world: HostWorld, *sequences: list[int]) -> list[Node]:
    """Insert sequences, with all that belongs to them; return the node at each one's end."""
    nodes: list[Node] = []
    for one in sequences:
        assert world.insert(one, state=True) is not None
        nodes.append(world.walk(one).last)
    world.check()
    return nodes


def back_up(world: HostWorld, *nodes: Node) -> None:
    """Back nodes up, with all above them."""
    for node in nodes:
        number = world.begin_backup(node)
        assert number is not None
        world.check()
        world.end_backup(number)
    world.check()


def host_sizes(part: HostTier) -> tuple[int, int, int, int]:
    """Return (free, evictable, protected, in flight) of the host pool."""
    sizes = part.host_sizes()
    assert sizes is not None
    assert sizes.held == 0
    return sizes.free, sizes.evictable, sizes.protected, sizes.in_flight


def away(world: HostWorld, *nodes: Node) -> None:
    """Back nodes up and take all off the device that can go."""
    back_up(world, *nodes)
    world.evict(world.full, 10**6)
    assert not any(node.tiers & ON_DEVICE for node in nodes)
    world.check()


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


# -- load ------------------------------------------------------------------------------------------


def test_a_load_fills_slots_that_are_in_flight_and_become_the_nodes(hybrid: HostWorld) -> None:
    stem, leaf = put(hybrid, tokens(4), tokens(16))
    away(hybrid, leaf)
    path = hybrid.path(leaf)
    full, swa, mamba = hybrid.parts
    needs = [part.load_need(path, 0) for part in hybrid.parts]
    assert [need.slots for need in needs] == [16, 8, 1]
    assert needs[2].nodes == [leaf]
    assert stem in needs[0].nodes
    assert stem not in needs[1].nodes
    assert [part.finalize_host_match(path, 0) for part in hybrid.parts] == [16, 8, 1]
    number = hybrid.begin_load(tokens(16))
    assert number is not None
    assert [part.sizes().in_flight for part in hybrid.parts] == [16, 8, 1]
    assert [part.sizes().held for part in hybrid.parts] == [0, 0, 0]
    assert [part.load_need(path, 0).shared for part in hybrid.parts] == [True, True, True]
    assert [part.load_need(path, 0).slots for part in hybrid.parts] == [0, 0, 0]
    assert full.path_slots(path).tolist() == hybrid.jobs[number].moving[0].device.tolist()
    assert swa.paired_slots(full.path_slots(path))[-8:].tolist() == (
        hybrid.jobs[number].moving[1].device.tolist()
    )
    assert all(one.digests is not None for one in hybrid.jobs[number].moving)
    hybrid.check()
    hybrid.lock(leaf)
    hybrid.end_load(number)
    assert [part.sizes().protected for part in hybrid.parts] == [16, 8, 1]
    hybrid.check()
    hybrid.unlock(0)
    assert [part.sizes().evictable for part in hybrid.parts] == [16, 8, 1]
    assert host_sizes(mamba)[:2] == (2, 2)
    hybrid.check()


def test_a_load_that_failed_gives_all_slots_back(hybrid: HostWorld) -> None:
    (leaf,) = put(hybrid, tokens(16))
    away(hybrid, leaf)
    free = [part.sizes().free for part in hybrid.parts]
    number = hybrid.begin_load(tokens(16))
    assert number is not None
    hybrid.split(*hybrid.border(leaf, 12), *hybrid.border(leaf, 4))
    hybrid.check()
    hybrid.end_load(number, ok=False)
    hybrid.check()
    assert [part.sizes().free for part in hybrid.parts] == free
    assert hybrid.begin_load(tokens(16)) is not None
    hybrid.check()


def test_digests_are_told_when_all_are_known(full: HostWorld) -> None:
    (leaf,) = put(full, tokens(8))
    away(full, leaf)
    link = full.full.data(leaf).host_link
    assert link is not None
    link.digests = None
    number = full.begin_load(tokens(8))
    assert number is not None
    assert full.jobs[number].moving[0].digests is None


def test_a_job_ends_only_what_it_loads(hybrid: HostWorld) -> None:
    (leaf,) = put(hybrid, tokens(4))
    away(hybrid, leaf)
    number = hybrid.begin_load(tokens(4))
    assert number is not None
    for part in hybrid.parts:
        part.commit_load([leaf], number + 1)
        part.abort_load([leaf], number + 1)
    hybrid.check()
    assert [part.sizes().in_flight for part in hybrid.parts] == [4, 4, 1]


def test_a_value_that_an_insert_brought_meanwhile_stays(hybrid: HostWorld) -> None:
    leaf, _ = put(hybrid, tokens(8), tokens(12))
    back_up(hybrid, leaf)
    mamba, swa = hybrid.part("mamba"), hybrid.part("swa")
    assert hybrid.evict(mamba, 1) == hybrid.evict(swa, 8) == [leaf]
    assert mamba.data(leaf).value is swa.data(leaf).value is None
    assert leaf.tiers & ON_DEVICE
    number = hybrid.begin_load(tokens(8))
    assert number is not None
    assert [part.sizes().in_flight for part in hybrid.parts] == [0, 8, 1]
    hybrid.check()
    parts = hybrid.insert(tokens(8), state=True)
    assert parts is not None
    assert [part.adopted for part in parts] == [(), (), ((7, 8),)]
    hybrid.check()
    hybrid.end_load(number)
    assert [part.sizes().in_flight for part in hybrid.parts] == [0, 0, 0]
    assert [part.sizes().evictable for part in hybrid.parts] == [12, 12, 2]
    hybrid.check()


def test_what_is_found_on_either_tier_counts_where_the_host_counts(hybrid: HostWorld) -> None:
    (leaf,) = put(hybrid, tokens(16))
    away(hybrid, leaf)
    path = hybrid.path(leaf)
    steps = len(path)
    assert [list(part.validate_path(path, None, 0, True)) for part in hybrid.parts[1:]] == [[], []]
    votes = [list(part.validate_path(path, None, 0, False)) for part in hybrid.parts]
    assert votes[0] == list(range(1, steps + 1))
    assert votes[1][-1] == votes[2][-1] == steps


# -- insert ----------------------------------------------------------------------------------------


def test_an_insert_brings_back_what_is_on_the_host_only(hybrid: HostWorld) -> None:
    stem, leaf = put(hybrid, tokens(8), tokens(16))
    back_up(hybrid, leaf)
    hybrid.evict(hybrid.full, 8)
    assert stem.tiers & ON_DEVICE
    parts = hybrid.insert(tokens(24), state=True)
    assert parts is not None
    assert parts[0].adopted == ((8, 24),)
    assert parts[0].duplicate == ((0, 8),)
    assert parts[1].adopted == ((8, 24),)
    hybrid.check()
    assert host_sizes(hybrid.full) == (48, 16, 0, 0)
    assert hybrid.full.sizes().evictable == 24
    assert hybrid.full.lru_lengths() == (1, 1)


def test_what_an_insert_brings_back_without_a_window_is_a_tombstone(hybrid: HostWorld) -> None:
    (leaf,) = put(hybrid, tokens(16))
    away(hybrid, leaf)
    parts = hybrid.insert(tokens(16), swa=4)
    assert parts is not None
    assert parts[0].adopted == ((0, 16),)
    assert parts[1].adopted == ((12, 16),)
    hybrid.check()
    swa = hybrid.part("swa")
    assert swa.sizes().evictable == 4
    # The host still has the rest of the window.
    need = swa.load_need(hybrid.path(leaf), len(hybrid.path(leaf)))
    assert need.slots == 4
    number = hybrid.begin_load(tokens(16))
    assert number is not None
    hybrid.check()
    hybrid.end_load(number)
    assert swa.sizes().evictable == 8
    hybrid.check()


def test_an_insert_ends_before_what_is_being_loaded(hybrid: HostWorld) -> None:
    stem, leaf = put(hybrid, tokens(8), tokens(16))
    back_up(hybrid, leaf)
    hybrid.evict(hybrid.full, 8)
    number = hybrid.begin_load(tokens(16))
    assert number is not None
    parts = hybrid.insert(tokens(24), state=True)
    assert parts is not None
    assert parts[0].adopted == ()
    assert hybrid.walk(tokens(24)).last is leaf
    hybrid.check()
    hybrid.end_load(number)
    assert stem.end == 8
    hybrid.check()


# -- locks -----------------------------------------------------------------------------------------


def test_a_lock_on_a_node_of_the_host_counts_and_protects_what_comes(full: HostWorld) -> None:
    stem, leaf = put(full, tokens(8), tokens(16))
    back_up(full, leaf)
    full.evict(full.full, 8)
    full.lock(leaf)
    assert (full.full.sizes().protected, full.full.sizes().evictable) == (8, 0)
    assert full.full.drive_eviction(10**6) == []
    full.check()
    assert full.insert(tokens(16)) is not None
    assert full.full.sizes().protected == 16
    full.check()
    assert full.full.release_component_lock(leaf, None) == 16
    full.receipts.clear()
    assert full.full.drive_eviction(10**6) == [leaf, stem]
    full.check()


def test_locks_on_host_nodes_are_counted_once_an_edge(full: HostWorld) -> None:
    stem, left, right = put(full, tokens(4), tokens(8), [*tokens(4), *tokens(4, 50)])
    away(full, left, right)
    full.lock(left)
    full.lock(right)
    assert [node.primary.lock_ref for node in (stem, left, right)] == [2, 1, 1]
    assert full.full.sizes().free == 64
    full.check()
    assert full.insert(tokens(4)) is not None
    assert full.full.sizes().protected == 4
    full.check()
    full.unlock(0)
    assert full.full.sizes().protected == 4
    full.unlock(0)
    assert full.full.sizes().evictable == 4
    full.check()


# -- fetch -----------------------------------------------------------------------------------------


def test_a_fetch_gives_its_slots_to_the_last_nodes(hybrid: HostWorld) -> None:
    nodes = hybrid.fetch(tokens(24), swa=8, state=True)
    assert nodes is not None
    assert [node.length for node in nodes] == [16, 8]
    full, swa, mamba = hybrid.parts
    assert [full.data(node).host_value is not None for node in nodes] == [True, True]
    assert [swa.data(node).host_value is not None for node in nodes] == [False, True]
    assert [mamba.data(node).host_value is not None for node in nodes] == [False, True]
    assert full.reserved == swa.reserved == mamba.reserved == set()
    hybrid.check()
    number = hybrid.begin_load(tokens(24))
    assert number is not None
    hybrid.end_load(number)
    hybrid.check()


def test_reserved_slots_are_in_flight_until_they_go_back(hybrid: HostWorld) -> None:
    swa = hybrid.part("swa")
    slots = swa.reserve_host(6, 2000)
    assert isinstance(slots, np.ndarray)
    assert len(slots) == 8
    assert host_sizes(swa) == (24, 0, 0, 8)
    assert swa.host_arriving == 8
    hybrid.check()
    short = swa.reserve_host(28, 2000)
    assert isinstance(short, Shortage)
    assert (short.wanted, short.sizes.free) == (28, 24)
    swa.release_host(slots)
    assert host_sizes(swa) == (32, 0, 0, 0)
    hybrid.check()


def test_slots_of_a_fetch_that_make_no_node_whole_go_back(hybrid: HostWorld) -> None:
    nodes = hybrid.fetch(tokens(24))
    assert nodes is not None
    swa = hybrid.part("swa")
    slots = swa.reserve_host(12, 2000)
    assert isinstance(slots, np.ndarray)
    swa.commit_fetch(nodes, slots)
    assert host_sizes(swa) == (32, 0, 0, 0)
    hybrid.check()


# -- repair ----------------------------------------------------------------------------------------


def test_a_repair_keeps_what_transfers_use_and_counts_anew(hybrid: HostWorld) -> None:
    put(hybrid, tokens(16))
    other, leaf = put(hybrid, tokens(8, 500), tokens(16, 500))
    away(hybrid, other, leaf)
    loading = hybrid.begin_load(tokens(16, 500))
    hybrid.insert(tokens(8, 900), state=True)
    backing = hybrid.begin_backup(hybrid.walk(tokens(8, 900)).last)
    held = hybrid.full.reserve_host(4, 3000)
    assert loading is not None
    assert backing is not None
    assert isinstance(held, np.ndarray)
    sizes = [(part.sizes(), part.host_sizes()) for part in hybrid.parts]
    for part in hybrid.parts:
        part.evictable = part.protected = part.host_evictable = part.host_protected = 99
        part.device_arriving = 77
        for node in hybrid.tree:
            part.data(node).lock_ref = part.data(node).host_lock_ref = 5
    assert hybrid.rebuild() == []
    assert [(part.sizes(), part.host_sizes()) for part in hybrid.parts] == sizes
    hybrid.check()
    hybrid.end_load(loading)
    hybrid.end_backup(backing)
    hybrid.full.release_host(held)
    hybrid.check()


def test_a_repair_without_jobs_frees_what_was_in_flight(hybrid: HostWorld) -> None:
    (leaf,) = put(hybrid, tokens(8))
    away(hybrid, leaf)
    assert hybrid.begin_load(tokens(8)) is not None
    hybrid.insert(tokens(8, 900), state=True)
    assert hybrid.begin_backup(hybrid.walk(tokens(8, 900)).last) is not None
    hybrid.jobs.clear()
    assert hybrid.rebuild() == []
    assert [part.sizes().in_flight for part in hybrid.parts] == [0, 0, 0]
    assert [part.host_arriving for part in hybrid.parts] == [0, 0, 0]
    hybrid.check()


def test_a_repair_demotes_a_node_whose_device_value_can_not_be(full: HostWorld) -> None:
    stem, leaf = put(full, tokens(8), tokens(16))
    back_up(full, leaf)
    full.full.data(stem).value = np.array([1, 2, 3], dtype=np.int32)
    assert full.rebuild() == []
    for node in (stem, leaf):
        node.tiers &= ~ON_DEVICE
    assert full.full.sizes().free == 64
    full.check()


def test_a_repair_drops_a_host_value_that_can_not_be_with_all_below(hybrid: HostWorld) -> None:
    stem, leaf = put(hybrid, tokens(8), tokens(16))
    back_up(hybrid, leaf)
    hybrid.evict(hybrid.full, 8)
    assert not leaf.tiers & ON_DEVICE
    hybrid.full.data(hybrid.path(leaf)[0]).host_value = np.array([900] * 8, dtype=np.int32)
    hollow = hybrid.rebuild()
    assert hollow[0] is leaf
    for node in hollow:
        hybrid.tree.remove(node)
    for node in hybrid.tree:
        node.tiers = ON_DEVICE
    assert stem.primary.host_value is None
    assert host_sizes(hybrid.full)[1] == host_sizes(hybrid.part("swa"))[1] == 0
    hybrid.check()


def test_a_reset_forgets_the_host_too(hybrid: HostWorld) -> None:
    (leaf,) = put(hybrid, tokens(16))
    back_up(hybrid, leaf)
    hybrid.tree.reset()
    for part in hybrid.parts:
        part.reset()
        sizes = part.host_sizes()
        assert sizes is not None
        assert sizes.free == sizes.size
        assert part.lru_lengths() == (0, 0)
    hybrid.check()


def test_a_node_tells_people_of_all_that_it_has(full: HostWorld) -> None:
    (leaf,) = put(full, tokens(8))
    number = full.begin_backup(leaf)
    assert number is not None
    assert full.full.describe(leaf) == "full: 8 slots, locks 1, 8 being backed up"
    full.end_backup(number)
    full.store([leaf])
    assert full.full.describe(leaf) == "full: 8 slots, locks 0, 8 on the host, stored"
    full.evict(full.full, 8)
    assert full.begin_load(tokens(8)) is not None
    assert full.full.describe(leaf) == (
        "full: tombstone, locks 1, 8 on the host, 8 being loaded, stored"
    )


def test_the_names_of_the_phases_lead_to_their_hooks(full: HostWorld) -> None:
    (leaf,) = put(full, tokens(8))
    part = full.full
    assert len(part.build_hicache_transfers([leaf], "backup", 2000).host) == 8
    part.commit_hicache_transfer([leaf], "backup")
    assert part.data(leaf).host_value is not None
    part.evict_nodes([leaf])
    part.pin_host([leaf])
    assert len(part.build_hicache_transfers([leaf], "load", 2001).device) == 8
    part.commit_hicache_transfer([leaf], "load")
    part.unpin_host([leaf])
    leaf.tiers |= ON_HOST
    assert full.audit() == []
