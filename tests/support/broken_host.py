"""The ways to break what components keep of the host tier that the audit must name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from radixtide.components.host import link_of
from radixtide.tiers.slots import FREE, TREE
from radixtide.tree import Node
from radixtide.tree.node import ON_DEVICE, ON_HOST, HostLink
from support.caches import tokens
from support.host_steps import back_up, hybrid_world, put


class Scene:
    """A world in which everything is under way once.

    ``stem``, ``mirror``: on both tiers, one below the other. ``gone``: on the host only, below
    ``stem``. ``coming``: being loaded. ``leaving``: being backed up.
    """

    def __init__(self) -> None:
        self.world = world = hybrid_world()
        self.stem, self.mirror, self.gone = put(
            world, tokens(4), tokens(8), [*tokens(4), *tokens(4, 50)]
        )
        (self.coming,) = put(world, tokens(8, 300))
        back_up(world, self.mirror, self.gone, self.coming)
        world.lock(self.mirror)
        world.evict(world.full, 10**6)
        world.unlock(0)
        assert world.begin_load(tokens(8, 300)) is not None
        (self.leaving,) = put(world, tokens(8, 400))
        assert world.begin_backup(self.leaving) is not None
        self.world.full.reserve_host(4, 3000)
        world.check()

    def link(self, node: Node, name: str = "full") -> HostLink:
        """Return what a component keeps of `node` for the host tier."""
        link = self.world.part(name).data(node).host_link
        assert link is not None
        return link


class HostDamage(NamedTuple):
    """One way to break a sound scene, and what the audit must say.

    ``derived``: a repair can make it good, since nothing but a count was lost.
    """

    name: str
    clause: str
    says: str
    do: Callable[[Scene], object]
    derived: bool = True


def _add(get: Callable[[Scene], Any], name: str, more: int = 1) -> Callable[[Scene], object]:
    """Return a damage that adds to a number."""
    return lambda scene: setattr(get(scene), name, getattr(get(scene), name) + more)


def _own(page_of: Callable[[Scene], int], owner: int) -> Callable[[Scene], object]:
    """Return a damage that gives a host page of Full another owner in the books."""

    def do(scene: Scene) -> None:
        books = scene.world.full.host_allocator
        assert books is not None
        books._owner[page_of(scene)] = owner

    return do


def _page(node: str) -> Callable[[Scene], int]:
    """Return the first host page of a node."""
    return lambda scene: getattr(scene, node).primary.host_value[0] // 4


def _shift(get: Callable[[Scene], Any], name: str) -> Callable[[Scene], object]:
    """Return a damage that gives an array of slots another page in its first place."""

    def do(scene: Scene) -> None:
        slots = getattr(get(scene), name).copy()
        slots[:4] = slots[4:8]
        setattr(get(scene), name, slots)

    return do


def _shorten(get: Callable[[Scene], Any], name: str) -> Callable[[Scene], object]:
    return lambda scene: setattr(get(scene), name, getattr(get(scene), name)[:-4])


def _lose_host_value(scene: Scene) -> None:
    """Take the host value off a node that has one below it, as if it had been evicted alone."""
    part = scene.world.full
    data = scene.stem.primary
    books = part.host_allocator
    assert data.host_value is not None
    assert books is not None
    books.release_tree(data.host_value.astype(np.int64))
    part.host_evictable -= 4
    data.host_value = None
    scene.link(scene.stem).digests = None
    scene.stem.tiers = ON_DEVICE


def _lose_carrier(scene: Scene) -> None:
    """Take the first component's host value off a leaf, and nobody else's."""
    scene.world.full.evict_host_nodes([scene.mirror])
    scene.mirror.tiers = ON_DEVICE


def _lose_device_value(scene: Scene) -> None:
    scene.world.full.evict_nodes([scene.mirror])
    scene.mirror.tiers = ON_HOST


def _put_in_wrong_set(scene: Scene) -> None:
    link = scene.link(scene.gone)
    scene.world.full.host_orders[1].remove(link)
    scene.world.full.host_orders[2].add(link)


def _disown_loading(scene: Scene) -> None:
    loading = scene.link(scene.coming).loading
    assert loading is not None
    scene.world.full.allocator._owner[loading[::4] // 4] = FREE


def _unlink(scene: Scene) -> None:
    scene.world.full.data(scene.gone).host_link = None


FULL: Callable[[Scene], Any] = lambda scene: scene.world.full  # noqa: E731 - read as a name
SWA: Callable[[Scene], Any] = lambda scene: scene.world.part("swa")  # noqa: E731 - read as a name

HOST_DAMAGES: tuple[HostDamage, ...] = (
    HostDamage(
        "evictable_host_slots_are_miscounted",
        "host_sizes",
        "full: host evictable size is 16, nodes make 12",
        _add(FULL, "host_evictable", 4),
    ),
    HostDamage(
        "protected_host_slots_of_windows_are_miscounted",
        "host_sizes",
        "swa: host protected size is 12, nodes make 8",
        _add(SWA, "host_protected", 4),
    ),
    HostDamage(
        "the_parts_of_the_host_pool_do_not_add_up",
        "host_sizes",
        r"free \d+ \+ evictable \d+ \+ protected \d+ \+ in flight \d+ = \d+, not 64",
        _add(FULL, "host_evictable", 4),
    ),
    HostDamage(
        "the_tree_pages_of_the_host_pool_are_miscounted",
        "host_sizes",
        "tree pages counted",
        _add(lambda scene: scene.world.full.host_allocator, "tree_pages"),
    ),
    HostDamage(
        "slots_in_flight_are_miscounted",
        "sizes",
        "pool swa: 12 slots are in flight, nodes: 8",
        _add(SWA, "device_arriving", 4),
    ),
    HostDamage(
        "a_host_page_is_free_in_the_books",
        "host_slots",
        "host values that the books give to others",
        _own(_page("gone"), FREE),
    ),
    HostDamage(
        "a_host_page_that_arrives_is_the_trees_in_the_books",
        "host_slots",
        "slots arriving that the books give to others",
        _own(lambda scene: int(scene.link(scene.leaving).arriving[0]) // 4, TREE),  # type: ignore[index]  # it is there
        derived=False,
    ),
    HostDamage(
        "a_host_page_is_named_twice",
        "host_slots",
        "pages owned twice",
        _shift(lambda scene: scene.coming.primary, "host_value"),
        derived=False,
    ),
    HostDamage(
        "a_host_page_is_nobodys",
        "host_slots",
        "pages lost",
        lambda scene: scene.world.full.reserved.clear(),
    ),
    HostDamage(
        "a_host_value_is_too_short",
        "host_slots",
        "has 4 host slots, not 8",
        _shorten(lambda scene: scene.coming.primary, "host_value"),
        derived=False,
    ),
    HostDamage(
        "a_host_slot_is_out_of_the_pool",
        "host_slots",
        "host values out of range",
        lambda scene: setattr(scene.gone.primary, "host_value", np.full(4, 900, np.int32)),
        derived=False,
    ),
    HostDamage(
        "a_host_value_has_no_link",
        "host_slots",
        "has a host value without a link",
        _unlink,
    ),
    HostDamage(
        "digests_are_missing",
        "host_slots",
        "has 1 digests for 8 host slots",
        lambda scene: setattr(
            scene.link(scene.coming),
            "digests",
            scene.link(scene.coming).digests[:1],  # type: ignore[index]  # it has them
        ),
    ),
    HostDamage(
        "a_node_is_on_the_host_and_its_parent_is_not",
        "host_closure",
        "is on the host, its parent .* is not",
        _lose_host_value,
        derived=False,
    ),
    HostDamage(
        "a_state_outlives_its_carrier_on_the_host",
        "host_closure",
        "mamba: .* has a host value, but its Full data has none",
        _lose_carrier,
    ),
    HostDamage(
        "a_window_outlives_its_carrier_on_the_device",
        "closure",
        "swa: .* has a value, but its Full data is not on the device",
        _lose_device_value,
    ),
    HostDamage(
        "children_on_the_host_are_miscounted",
        "host_order",
        "counts 3 children on the host, has 2",
        _add(lambda scene: scene.link(scene.stem), "children"),
    ),
    HostDamage(
        "a_host_copy_that_can_go_is_in_no_set",
        "host_order",
        "is in host set None, belongs in 1",
        lambda scene: scene.world.full.host_orders[1].remove(scene.link(scene.gone)),
    ),
    HostDamage(
        "a_host_copy_is_in_the_wrong_set",
        "host_order",
        "is in host set 2, belongs in 1",
        _put_in_wrong_set,
    ),
    HostDamage(
        "a_state_on_the_host_is_in_no_list",
        "host_order",
        "mamba: .* is in host list None, belongs in host_only",
        lambda scene: scene.world.part("mamba").host_only.remove(scene.link(scene.gone, "mamba")),  # type: ignore[attr-defined]  # an auxiliary one
    ),
    HostDamage(
        "a_list_on_the_host_is_miscounted",
        "host_order",
        "swa: 3 of 2 mirrors",
        _add(lambda scene: scene.world.part("swa").host_mirrors, "_size"),  # type: ignore[attr-defined]  # an auxiliary one
    ),
    HostDamage(
        "a_pin_on_the_device_has_no_job",
        "transfers",
        r"full: .* has pins \(1, 0\), jobs make \(0, 0\)",
        _add(lambda scene: scene.link(scene.mirror), "pins"),
    ),
    HostDamage(
        "a_pin_on_the_host_is_lost",
        "transfers",
        r"swa: .* has pins \(0, 0\), jobs make \(0, 1\)",
        _add(lambda scene: scene.link(scene.coming, "swa"), "host_pins", -1),
    ),
    HostDamage(
        "a_host_lock_has_no_pin",
        "transfers",
        "has host lock count 1, pins make 0",
        _add(lambda scene: scene.gone.primary, "host_lock_ref"),
    ),
    HostDamage(
        "a_host_lock_of_a_window_has_no_pin",
        "transfers",
        "swa: .* has host lock count 2, not 1",
        _add(lambda scene: scene.world.part("swa").data(scene.coming), "host_lock_ref"),
    ),
    HostDamage(
        "a_lock_is_lost_that_a_backup_needs",
        "receipts",
        "has lock count 0; receipts and protected children make 1",
        _add(lambda scene: scene.leaving.primary, "lock_ref", -1),
    ),
    HostDamage(
        "what_is_being_loaded_has_no_source",
        "transfers",
        "mamba: .* is loaded without a pin or a source",
        lambda scene: scene.world.part("mamba").evict_host_nodes([scene.coming]),
        derived=False,
    ),
    HostDamage(
        "what_is_being_backed_up_has_no_source",
        "transfers",
        "mamba: .* is backed up without a pin, a source or a need",
        lambda scene: scene.world.part("mamba").evict_nodes([scene.leaving]),
        derived=False,
    ),
    HostDamage(
        "slots_being_loaded_are_no_jobs",
        "transfers",
        "slots are being loaded that the books give to no job",
        _disown_loading,
        derived=False,
    ),
    HostDamage(
        "windows_being_loaded_are_paired_otherwise",
        "pairs",
        "slots being loaded are not the pairs of its own",
        _shift(lambda scene: scene.link(scene.coming, "swa"), "loading"),
        derived=False,
    ),
    HostDamage(
        "a_node_is_said_to_be_where_it_is_not",
        "tiers",
        "is said to be on tiers 3, its data is on 2",
        lambda scene: setattr(scene.gone, "tiers", ON_DEVICE | ON_HOST),
        derived=False,
    ),
    HostDamage(
        "a_node_is_said_not_to_be_stored",
        "tiers",
        "is said to be on tiers 3, its data is on 7",
        lambda scene: setattr(link_of(scene.mirror.primary), "stored", True),
        derived=False,
    ),
)
