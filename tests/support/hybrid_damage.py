"""What the ways to break a hybrid cache are made of; see support/broken_hybrid.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from support.world_hybrid import HybridWorld


class HybridDamage(NamedTuple):
    """One way to break a sound cache of Full, SWA and Mamba, and what the audit must say.

    ``component``: whose records are broken. ``derived``: a rebuild after a crash of it can make it
    good, since nothing was lost but what follows from the rest, or what may be dropped.
    """

    component: str
    name: str
    clause: str
    says: str
    do: Callable[[HybridWorld], object]
    derived: bool = True


Do = Callable[[HybridWorld], object]


def set_field(component: str, node: str, field: str, value: Any) -> Do:
    """Return a damage that sets a field of a record to `value`, or to `value` of what it was."""

    def do(world: HybridWorld) -> None:
        data = world.data(component, node)
        setattr(data, field, value(getattr(data, field)) if callable(value) else value)

    return do


def first_page(world: HybridWorld, component: str, node: str) -> int:
    """Return the first page that a component has on a node."""
    return int(world.value(component, node)[0]) // 4


def set_owner(component: str, page_of: Callable[[HybridWorld], int], owner: int) -> Do:
    """Return a damage that gives a page to `owner` in the books; negative: to the request."""

    def do(world: HybridWorld) -> None:
        number = world.entry.holder if owner < 0 else owner
        world.part(component).allocator._owner[page_of(world)] = number

    return do
