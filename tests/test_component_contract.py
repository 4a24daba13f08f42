"""What a component of one's own inherits: every hook of the contract, and its default."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from radixtide import EvictLayer, Request, SlotError, Violation
from radixtide.components.base import TreeComponent, Validator
from radixtide.components.insertion import InsertCheck, Insertion, InsertPart
from radixtide.components.outcomes import NO_MOVES, Census, JobPins, Reserved
from radixtide.components.registry import make_components
from radixtide.configs.errors import ConfigError
from radixtide.tiers.slots import FIRST_HOLDER, SlotAllocator
from radixtide.tree import Node, RadixTree
from support.caches import key, make_config

HOOKS = {
    "create_match_validator",
    "finalize_match_result",
    "update_component_on_insert_overlap",
    "recover_after_unevict",
    "commit_insert_component_data",
    "redistribute_on_node_split",
    "evict_component",
    "eviction_priority",
    "drive_eviction",
    "drive_host_eviction",
    "acquire_component_lock",
    "release_component_lock",
    "prepare_for_caching_req",
    "cleanup_after_caching_req",
    "build_hicache_transfers",
    "commit_hicache_transfer",
    "node_has_component_data",
}
ABSTRACT = {
    "create_match_validator",
    "redistribute_on_node_split",
    "evict_component",
    "drive_eviction",
    "acquire_component_lock",
    "release_component_lock",
}


class Sidecar(TreeComponent):
    """One slot a page, on every second page: as small as a component can be."""

    name = "sidecar"

    def make_allocator(self) -> SlotAllocator:
        return SlotAllocator(8, 1, self.name)

    def create_match_validator(self, match_device_only: bool) -> Validator:
        seen = 0

        def accepts(node: Node, units: int) -> bool:
            nonlocal seen
            seen += units
            return seen % 8 == 0

        return accepts

    def apply_insert(self, job: Insertion) -> InsertPart:
        return InsertPart()

    def redistribute_on_node_split(self, prefix: Node, suffix: Node) -> None:
        self.data(prefix).value = None

    def evict_component(self, node: Node, target: EvictLayer) -> tuple[int, int]:
        value, self.data(node).value = self.data(node).value, None
        return (0 if value is None else len(value)), 0

    def drive_eviction(self, target: int, spare: tuple[Node, ...] = ()) -> list[Node]:
        return []

    def acquire_component_lock(self, node: Node) -> Any:
        return node.id

    def release_component_lock(self, node: Node, record: Any) -> int:
        return 0

    def audit(
        self,
        locked: dict[int, int],
        ledger: dict[int, tuple[str, int]],
        jobs: JobPins | None = None,
    ) -> list[Violation]:
        return []

    def rebuild(
        self,
        locked: dict[int, int],
        holders: set[int],
        carrier: Census | None = None,
        jobs: JobPins | None = None,
    ) -> list[Node]:
        return []


@pytest.fixture
def sidecar() -> Sidecar:
    """Make a second component on a tree of pages of 4."""
    return Sidecar(make_config(), RadixTree(4, 2), 1)


def nodes(component: TreeComponent, *lengths: int) -> list[Node]:
    """Return a chain of nodes of these lengths."""
    tree = component.tree
    made: list[Node] = []
    for length in lengths:
        end = length + (made[-1].end if made else 0)
        walk = tree.walk(key(end))
        made.append(tree.add_leaf(walk.last, walk, walk.last.end))
    return made


def test_the_contract_has_the_hooks_by_their_fixed_names() -> None:
    assert [name for name in sorted(HOOKS) if not hasattr(TreeComponent, name)] == []
    assert not ABSTRACT - TreeComponent.__abstractmethods__
    defaults = HOOKS - ABSTRACT
    assert not defaults & TreeComponent.__abstractmethods__


def test_a_component_that_lacks_a_hook_can_not_be_made() -> None:
    class Incomplete(TreeComponent):
        name = "incomplete"

    with pytest.raises(TypeError, match="abstract"):
        Incomplete(make_config(), RadixTree(4, 1), 0)  # type: ignore[abstract]  # that is the test


def test_a_component_has_its_own_record_on_a_node(sidecar: Sidecar) -> None:
    (node,) = nodes(sidecar, 4)
    assert sidecar.data(node) is node.component_data[1]


def test_every_step_of_a_path_is_asked_of_one_validator(sidecar: Sidecar) -> None:
    path = nodes(sidecar, 4, 4, 8, 4)
    assert sidecar.validate_path(path, None, 0, True) == [2, 3]
    assert sidecar.validate_path(path[:1], path[1], 4, True) == [2]
    assert sidecar.validate_path(path[:2], path[2], 4, True) == [2]
    assert sidecar.validate_path([], None, 0, True) == []


def test_defaults_consume_nothing_and_change_nothing(sidecar: Sidecar) -> None:
    (node,) = nodes(sidecar, 8)
    value = np.arange(8)
    assert sidecar.finalize_match_result([node]) is None
    assert sidecar.update_component_on_insert_overlap(node, value, 0) == 8
    sidecar.recover_after_unevict(node, value)
    sidecar.commit_insert_component_data(node, value)
    walk = sidecar.tree.walk(key(8))
    job = Insertion(walk, value, 2, 0, 0, 0, False, walk.matched, walk.start)
    assert sidecar.check_insert(job) == InsertCheck()
    assert sidecar.eviction_priority(True) == sidecar.eviction_priority(False) == 0
    assert sidecar.drive_host_eviction(8) == []
    assert sidecar.prepare_for_caching_req(Request("r", [1]), 3, 17) == 17
    sidecar.cleanup_after_caching_req(3)
    for phase in ("backup", "load"):
        assert sidecar.build_hicache_transfers([node], phase, 7) is NO_MOVES
        sidecar.commit_hicache_transfer([node], phase)
    assert sidecar.lru_lengths() == (None, None)
    assert sidecar.data(node).value is None
    assert sidecar.sizes().free == 8


@pytest.mark.parametrize(
    ("device", "host", "expected"),
    [
        (False, False, (False, False, False)),
        (True, False, (True, False, True)),
        (False, True, (False, True, True)),
        (True, True, (True, True, True)),
    ],
)
def test_where_the_data_of_a_node_is_can_be_asked(
    sidecar: Sidecar, device: bool, host: bool, expected: tuple[bool, bool, bool]
) -> None:
    (node,) = nodes(sidecar, 4)
    data = sidecar.data(node)
    data.value = np.arange(1, dtype=np.int32) if device else None
    data.host_value = np.arange(1, dtype=np.int32) if host else None
    layers = (EvictLayer.DEVICE, EvictLayer.HOST, EvictLayer.ALL)
    assert tuple(sidecar.node_has_component_data(node, layer) for layer in layers) == expected
    assert sidecar.node_has_component_data(node) == device


def test_slots_along_a_path_skip_tombstones(sidecar: Sidecar) -> None:
    path = nodes(sidecar, 4, 4, 4)
    for at, slots in ((0, [5]), (2, [7, 6])):
        sidecar.data(path[at]).value = np.array(slots, dtype=np.int32)
    assert sidecar.path_slots(path).tolist() == [5, 7, 6]
    assert sidecar.path_slots([]).tolist() == []


def test_evicting_nodes_adds_up_what_each_frees(sidecar: Sidecar) -> None:
    path = nodes(sidecar, 4, 4, 4)
    for at, node in enumerate(path):
        sidecar.data(node).value = np.arange(at, dtype=np.int32)
    assert sidecar.evict_nodes(path) == 3
    assert sidecar.evict_nodes(path) == 0


def test_a_node_is_described_by_the_components_name(sidecar: Sidecar) -> None:
    (node,) = nodes(sidecar, 4)
    assert sidecar.describe(node) == "sidecar: tombstone, locks 0"


def test_slots_of_a_holder_are_counted_before_they_are_used(sidecar: Sidecar) -> None:
    given = sidecar.reserve(3, FIRST_HOLDER)
    assert isinstance(given, Reserved)
    assert sidecar.own_slots(FIRST_HOLDER, 2).tolist() == given.slots[:2].tolist()
    with pytest.raises(SlotError, match=r"pool sidecar: the request has .* but 9 are to be cached"):
        sidecar.own_slots(FIRST_HOLDER, 9)
    assert sidecar.own_slots(FIRST_HOLDER + 1, 0).tolist() == []


def test_a_reset_makes_new_books(sidecar: Sidecar) -> None:
    sidecar.reserve(3, FIRST_HOLDER)
    sidecar.evictable, sidecar.protected = 1, 2
    sidecar.reset()
    sizes = sidecar.sizes()
    assert (sizes.free, sizes.evictable, sizes.protected, sizes.held, sizes.size) == (8, 0, 0, 0, 8)
    assert sidecar.holdings == {}


def test_a_component_that_nobody_registered_is_refused() -> None:
    config = make_config(components=("full", "sidecar"))
    with pytest.raises(ConfigError, match="'sidecar' is unknown; one of full"):
        make_components(config)
