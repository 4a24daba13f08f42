"""The component of examples/compressed_sidecar.py in small caches, and what is seen of it.

The example is loaded by its path, as a user would who copied the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from radixtide import UnifiedRadixCache, register_component
from radixtide.components import registry
from radixtide.components.api import InsertResult, MatchResult
from radixtide.components.registry import ComponentFactory
from support.caches import state_of
from support.hybrids import hybrid
from support.rooms import ROOT

if TYPE_CHECKING:
    from examples.compressed_sidecar import Sidecar

NAME: Final = "sidecar"
GROUP: Final = 128
SETS: Final = (("full",), ("full", "swa"), ("full", "mamba"), ("full", "swa", "mamba"))
"""Every set of built-in components."""


def _load() -> ModuleType:
    spec = spec_from_file_location(
        "compressed_sidecar", ROOT / "examples" / "compressed_sidecar.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


EXAMPLE: Final = _load()
SidecarClass: Final[type[Sidecar]] = EXAMPLE.Sidecar


@contextmanager
def registered(make: ComponentFactory = SidecarClass, name: str = NAME) -> Iterator[None]:
    """Register a component for the length of a block."""
    register_component(name, make)
    try:
        yield
    finally:
        del registry._FACTORIES[name]


def with_sidecar(
    components: tuple[str, ...] = ("full",),
    *,
    ids: int = 16,
    group: int = GROUP,
    **fields: Any,
) -> dict[str, Any]:
    """Return the fields of a config that has the component beside built-in ones.

    `fields` as for ``support.hybrids.hybrid``.
    """
    section = {"size": ids, "tokens_per_id": group}
    return hybrid((*components, NAME), plugins={NAME: section}, **fields)


def sidecar_of(cache: UnifiedRadixCache) -> Sidecar:
    """Return the component of an open cache, to look behind the calls."""
    (found,) = (part for part in cache._components if part.name == NAME)
    assert isinstance(found, SidecarClass)
    return found


class GroupName(NamedTuple):
    """A group by what it stands for: the whole prefix up to its end, namespace included."""

    prefix: bytes
    end: int


def copies(cache: UnifiedRadixCache) -> dict[GroupName, int]:
    """Return the page id of every group that has one. O(tree)."""
    sidecar = sidecar_of(cache)
    tokens = sidecar.section.tokens_per_id
    tree = state_of(cache).tree
    prefixes = {tree.root.id: b""}
    found: dict[GroupName, int] = {}
    for node in tree:
        assert node.parent is not None
        above = prefixes[node.parent.id]
        if node.parent.parent is None:
            # The edge below the root begins with the namespace.
            above = node.edge.removesuffix(node.piece[: tree.edge_bytes])
        prefixes[node.id] = whole = above + node.piece
        value = sidecar.data(node).value
        if value is None:
            continue
        first = node.start // tokens
        for at, slot in enumerate(value.tolist()):
            end = (first + at + 1) * tokens
            cut = len(whole) - 8 * (node.end - end)
            found[GroupName(whole[:cut], end)] = slot
    return found


async def page_ids(cache: UnifiedRadixCache, found: MatchResult | InsertResult) -> list[int]:
    """Return what the public call tells of the copies of a prefix, -1 where there is none."""
    ids = await cache.device_indices(found.last_device_node, NAME)
    return [int(at) for at in ids]


async def spare_ids(cache: UnifiedRadixCache) -> tuple[int, int, int]:
    """Return how many page ids are free, evictable and protected."""
    sizes = (await cache.stats()).pools[NAME]["device"]
    assert sizes.held == 0
    return sizes.free, sizes.evictable, sizes.protected
