"""The hooks of the host tier one by one, without actors: loads, inserts, locks, fetches."""

from __future__ import annotations

import numpy as np
import pytest

from radixtide.components.outcomes import Shortage
from radixtide.tree.node import ON_DEVICE
from support.caches import tokens
from support.host_jobs import HostWorld
from support.host_steps import away, back_up, full_world, host_sizes, hybrid_world, put


@pytest.fixture
def full() -> HostWorld:
    return full_world()


@pytest.fixture
def hybrid() -> HostWorld:
    return hybrid_world()


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
