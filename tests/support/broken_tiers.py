"""The ways to break what the coordinator notes of the tiers that the audit must name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from radixtide.actors.jobs import Job
from radixtide.actors.tier_state import TierState
from radixtide.tree.node import BACKING, HASH_BYTES, IN_STORAGE, LOADING, ON_DEVICE, ON_HOST, Node
from support.caches import state_of
from support.tiered import Tiers
from support.trees import lone_node

WORLD: dict[str, Any] = {"page_size": 4, "url": "memory:"}
"""What ``tiers`` needs for a cache that :func:`populate_tiers` can fill."""


class TierWorld(NamedTuple):
    """What :func:`populate_tiers` made, with everything under way once.

    ``stem``, ``mirror``: on all tiers, one below the other. ``gone``: on host and in storage.
    ``coming``: being loaded. ``leaving``: being backed up.
    """

    t: Tiers
    books: TierState
    stem: Node
    mirror: Node
    gone: Node
    coming: Node
    leaving: Node

    def job(self, kind: str) -> Job:
        """Return the transfer of a kind that is under way."""
        return next(job for job in self.books.jobs if job.kind == kind)


async def populate_tiers(t: Tiers) -> TierWorld:
    """Fill a cache of ``WORLD``, and hold its copies."""
    state = state_of(t.cache)
    books = state.tiers
    assert books is not None
    found: dict[str, Node] = {}

    async def put(name: str, wanted: list[int], prev: int = 0) -> None:
        found[name] = state.tree.nodes[(await t.put(t.key(wanted), prev=prev)).node.id]

    await put("gone", t.span(2, 100))
    await put("coming", t.span(2, 200))
    await t.settle()
    await t.demote()
    await put("stem", t.span(2))
    await put("mirror", t.span(4), 2)
    await t.settle()
    t.engine.hold()
    handle = await t.cache.load_back(await t.match(t.key(t.span(2, 200))))
    await put("leaving", t.span(2, 300))
    await t.engine.arrived(2)
    await handle.close()
    return TierWorld(t, books, **found)


class TierDamage(NamedTuple):
    """One way to break a sound cache with tiers, and what the audit must say.

    ``derived``: a repair after a crash of Full can make it good.
    """

    name: str
    clause: str
    says: str
    do: Callable[[TierWorld], object]
    derived: bool = False


def _bits(node: str, change: Callable[[int], int]) -> Callable[[TierWorld], object]:
    """Return a damage that changes on which tiers a node is noted."""

    def do(world: TierWorld) -> None:
        at: Node = getattr(world, node)
        at.tiers = change(at.tiers)

    return do


def _moved(node: str, bit: int) -> Callable[[TierWorld], object]:
    """Return a damage that notes a transfer of a node that is not there, or none that is."""

    def do(world: TierWorld) -> None:
        at: Node = getattr(world, node)
        at.job ^= bit

    return do


def _stored_otherwise(world: TierWorld) -> None:
    link = world.mirror.primary.host_link
    assert link is not None
    link.stored = False


def _no_data(world: TierWorld) -> None:
    world.gone.primary.host_value = None


def _short_hashes(world: TierWorld) -> None:
    world.mirror.hashes = world.mirror.hashes[HASH_BYTES:]


def _strange_node(world: TierWorld) -> None:
    world.job("backup").nodes.append(lone_node(4, world.t.cache._state.tree.root))


def _more_units(world: TierWorld) -> None:
    world.books.jobs.units["load"] += 4


def _forgotten_job(world: TierWorld) -> None:
    world.books.jobs.jobs.pop(world.job("backup").number)


TIER_DAMAGES: tuple[TierDamage, ...] = (
    TierDamage(
        "a_node_is_not_noted_as_on_the_device",
        "tiers",
        r"is noted as on tiers 6, which is not so",
        _bits("mirror", lambda was: was & ~ON_DEVICE),
        derived=True,
    ),
    TierDamage(
        "a_node_is_noted_as_on_the_device_and_is_not",
        "tiers",
        r"is noted as on tiers 7, which is not so",
        _bits("gone", lambda was: was | ON_DEVICE),
        derived=True,
    ),
    TierDamage(
        "a_node_is_noted_as_on_the_host_before_its_copy_is",
        "tiers",
        r"is noted as on tiers 3, which is not so",
        _bits("leaving", lambda was: was | ON_HOST),
        derived=True,
    ),
    TierDamage(
        "a_node_is_on_the_device_below_one_that_is_not",
        "tiers",
        r"is on the device, its parent is not",
        _bits("stem", lambda was: was & ~ON_DEVICE),
        derived=True,
    ),
    TierDamage(
        "a_node_is_on_the_host_below_one_that_is_not",
        "tiers",
        r"is on the host, its parent is not",
        _bits("stem", lambda was: was & ~ON_HOST),
        derived=True,
    ),
    TierDamage("a_node_has_no_data", "tiers", r"has data on no tier", _no_data),
    TierDamage(
        "a_node_is_noted_as_stored_and_was_not",
        "tiers",
        r"is in storage, with hashes of another length",
        _bits("leaving", lambda was: was | IN_STORAGE),
    ),
    TierDamage(
        "a_page_of_a_stored_node_has_no_name",
        "tiers",
        r"is in storage, with hashes of another length",
        _short_hashes,
    ),
    TierDamage(
        "full_and_the_coordinator_differ_on_what_is_stored",
        "tiers",
        r"is said to be on tiers 7, its data is on 3",
        _stored_otherwise,
    ),
    TierDamage(
        "a_node_is_noted_as_moved_and_is_not",
        "transfers",
        r"is noted as moved by \d+, which is not so",
        _moved("mirror", BACKING),
    ),
    TierDamage(
        "a_node_is_moved_and_not_noted",
        "transfers",
        r"is noted as moved by 0, which is not so",
        _moved("coming", LOADING),
    ),
    TierDamage(
        "a_transfer_uses_a_node_that_is_gone",
        "transfers",
        r"backup \d+ uses Node.*, which is gone",
        _strange_node,
    ),
    TierDamage(
        "what_is_on_its_way_is_miscounted",
        "transfers",
        r"units on their way: .*really",
        _more_units,
    ),
    TierDamage(
        "a_transfer_is_forgotten",
        "transfers",
        r"has pins \(1, 0\), jobs make \(0, 0\)",
        _forgotten_job,
    ),
)
