"""The hooks of the host tier one by one, without actors: repair, reset, and words for people."""

from __future__ import annotations

import numpy as np
import pytest

from radixtide.tree.node import ON_DEVICE, ON_HOST
from support.caches import tokens
from support.host_jobs import HostWorld
from support.host_steps import away, back_up, full_world, host_sizes, hybrid_world, put


@pytest.fixture
def full() -> HostWorld:
    return full_world()


@pytest.fixture
def hybrid() -> HostWorld:
    return hybrid_world()


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
