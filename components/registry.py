"""Which components there are, and how a cache gets its set."""

from __future__ import annotations

from collections.abc import Callable

from radixtide.components.api import ComponentType
from radixtide.components.base import TreeComponent
from radixtide.components.full import FullComponent
from radixtide.components.policies import make_policy
from radixtide.configs.errors import ConfigError
from radixtide.configs.schema import CacheConfig
from radixtide.tree.radix_tree import RadixTree

ComponentFactory = Callable[[CacheConfig, RadixTree, int], TreeComponent]

_FACTORIES: dict[str, ComponentFactory] = {ComponentType.FULL: FullComponent}


def make_components(config: CacheConfig) -> tuple[list[TreeComponent], RadixTree]:
    """Return the components that `config` names, and the tree they share."""
    tree = RadixTree(
        config.page_size,
        len(config.components),
        config.bigram,
        high_water=make_policy(config.eviction).needs_high_water,
    )
    made: list[TreeComponent] = []
    for index, name in enumerate(config.components):
        factory = _FACTORIES.get(name)
        if factory is None:
            raise ConfigError(f"components: {name!r} is unknown; one of {', '.join(_FACTORIES)}")
        made.append(factory(config, tree, index))
    return made, tree
