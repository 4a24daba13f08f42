"""Which components there are, and how a cache gets its set.

A component of somebody else's comes in by call (:func:`register_component`) or by an entry point of
the group ``radixtide.components`` whose name is the component's and whose object is its factory.
docs/plugins.md takes a reader through writing one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from radixtide.components.api import ComponentType
from radixtide.components.base import TreeComponent
from radixtide.components.full import FullComponent
from radixtide.components.mamba import MambaComponent
from radixtide.components.policies import make_policy
from radixtide.components.swa import SwaComponent
from radixtide.configs.errors import ConfigError
from radixtide.configs.schema import CacheConfig
from radixtide.configs.sections import ENTRY_POINTS
from radixtide.tree.radix_tree import RadixTree

ComponentFactory = Callable[[CacheConfig, RadixTree, int], TreeComponent]

_BUILT_IN: Final[dict[str, ComponentFactory]] = {
    ComponentType.FULL: FullComponent,
    ComponentType.SWA: SwaComponent,
    ComponentType.MAMBA: MambaComponent,
}
_FACTORIES: dict[str, ComponentFactory] = dict(_BUILT_IN)
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]*")
_OTHER_ACTORS: Final = ("coordinator", "tiering")
"""An actor has its component's name, so these are taken."""


def register_component(name: str, make: ComponentFactory) -> None:
    """Make a component known under `name`, for ``components`` in a config.

    `make(config, tree, index)` returns a :class:`TreeComponent` of that name; a class that takes
    these three will do. Its own settings are ``config.plugins[name]``. For this process; before an
    entry point of the same name. The same `make` once more changes nothing.

    Raises:
        ConfigError: the name is no word, another component's or an actor's already, or `make` can
            not be called.
    """
    _check_name(name)
    if name in _FACTORIES and name not in _BUILT_IN and _FACTORIES[name] is make:
        return
    if name in _FACTORIES:
        what = "built in" if name in _BUILT_IN else "already registered"
        raise ConfigError(f"component {name!r} is {what}; choose another name")
    if not callable(make):
        raise ConfigError(f"component {name!r}: its factory {make!r} can not be called")
    _FACTORIES[name] = make


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"component {name!r}: a name has lower-case letters, digits, - and _, a letter first"
        )
    if name in _OTHER_ACTORS:
        raise ConfigError(f"component {name!r}: an actor has that name; choose another")


def plugin_components() -> tuple[str, ...]:
    """Return the names of all components that are not built in, those of entry points included."""
    return tuple(dict.fromkeys([*list(_FACTORIES)[len(_BUILT_IN) :], *_installed()]))


def _installed() -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of installed distributions, by component."""
    return _read_entry_points(tuple(sys.path))


@lru_cache(maxsize=1)
def _read_entry_points(path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:
    """Read the metadata of every distribution on `path`: tens of milliseconds, so only once.

    What is installed while the process runs is seen by the next process.
    """
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in entry_points(group=ENTRY_POINTS):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def _factory(name: str) -> ComponentFactory:
    known = _FACTORIES.get(name)
    if known is not None:
        return known
    points = _installed().get(name, ())
    if not points:
        names = ", ".join((*_BUILT_IN, *plugin_components()))
        raise ConfigError(f"components: {name!r} is unknown; one of {names}")
    _check_name(name)
    if len(points) > 1:
        rivals = " and ".join(map(_origin, points))
        raise ConfigError(f"components: {name!r} is offered by {rivals}; uninstall all but one")
    (point,) = points
    try:
        made: ComponentFactory = point.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"components: {name!r} can not be loaded from {_origin(point)}: {error}"
        ) from error
    if not callable(made):
        raise ConfigError(f"components: {name!r} of {_origin(point)} can not be called")
    return made


def _origin(point: EntryPoint) -> str:
    """Return an entry point in words: its object and its distribution."""
    dist = point.dist
    return point.value if dist is None else f"{point.value} of {dist.name} {dist.version}"


def make_components(config: CacheConfig) -> tuple[list[TreeComponent], RadixTree]:
    """Return the components that `config` names, and the tree they share.

    Raises:
        ConfigError: a component is unknown or can not be loaded, its section is wrong, or its
            factory makes something else.
    """
    tree = RadixTree(
        config.page_size,
        len(config.components),
        config.bigram,
        high_water=make_policy(config.eviction).needs_high_water,
    )
    made: list[TreeComponent] = []
    for index, name in enumerate(config.components):
        component: object = _factory(name)(config, tree, index)
        if not isinstance(component, TreeComponent) or component.name != name:
            raise ConfigError(
                f"components[{index}]: the factory of {name!r} made {component!r}, which is no "
                "TreeComponent of that name"
            )
        made.append(component)
    return made, tree
