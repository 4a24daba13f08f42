"""Which components there are, and how a cache gets its set.

A component of somebody else's comes in by call (:func:`register_component`) or by an entry point of
the group ``radixtide.components`` whose name is the component's and whose object is its factory.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Final

from radixtide.components.api import ComponentType
from radixtide.components.base import TreeComponent
from radixtide.components.full import FullComponent
from radixtide.components.mamba import MambaComponent
from radixtide.components.policies import make_policy
from radixtide.components.swa import SwaComponent
from radixtide.configs.errors import ConfigError
from radixtide.configs.schema import CacheConfig
from radixtide.tree.radix_tree import RadixTree

ComponentFactory = Callable[[CacheConfig, RadixTree, int], TreeComponent]

ENTRY_POINTS: Final = "radixtide.components"

_BUILT_IN: Final[dict[str, ComponentFactory]] = {
    ComponentType.FULL: FullComponent,
    ComponentType.SWA: SwaComponent,
    ComponentType.MAMBA: MambaComponent,
}
_FACTORIES: dict[str, ComponentFactory] = dict(_BUILT_IN)


def register_component(name: str, make: ComponentFactory) -> None:
    """Make a component known under `name`, for ``components`` in a config.

    `make(config, tree, index)` returns a :class:`TreeComponent` of that name. Its own settings are
    ``config.plugins[name]``.

    Raises:
        ConfigError: the name is empty, or another component's already.
    """
    if not name or name in _FACTORIES:
        raise ConfigError(f"component {name!r} is empty or already registered")
    _FACTORIES[name] = make


def plugin_components() -> tuple[str, ...]:
    """Return the names of all components that are not built in, those of entry points included."""
    found = [point.name for point in entry_points(group=ENTRY_POINTS)]
    return tuple(dict.fromkeys([*list(_FACTORIES)[len(_BUILT_IN) :], *found]))


def _factory(name: str) -> ComponentFactory:
    known = _FACTORIES.get(name)
    if known is not None:
        return known
    for point in entry_points(group=ENTRY_POINTS, name=name):
        made: ComponentFactory = point.load()
        return made
    names = ", ".join((*_FACTORIES, *plugin_components()))
    raise ConfigError(f"components: {name!r} is unknown; one of {names}")


def make_components(config: CacheConfig) -> tuple[list[TreeComponent], RadixTree]:
    """Return the components that `config` names, and the tree they share."""
    tree = RadixTree(
        config.page_size,
        len(config.components),
        config.bigram,
        high_water=make_policy(config.eviction).needs_high_water,
    )
    made = [_factory(name)(config, tree, index) for index, name in enumerate(config.components)]
    return made, tree
