"""Eviction policies: which evictable leaf goes first.

A policy maps a node to an *order key*; the leaf with the smallest key goes first. Keys of one
policy are comparable with each other. Add one with :func:`register_policy`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from radixtide.configs.errors import ConfigError
from radixtide.configs.schema import EvictionConfig
from radixtide.tree.node import Node

OrderKey = Any
"""An int or a tuple of ints; one shape a policy."""


class EvictionPolicy:
    """Base of all policies. ``needs_high_water``: the tree must keep branch depths for it."""

    name = ""
    needs_high_water = False

    def __init__(self, config: EvictionConfig) -> None:
        self.config = config

    def key(self, node: Node) -> OrderKey:
        """Return the order key of `node` as it is now. O(1)."""
        raise NotImplementedError


class Lru(EvictionPolicy):
    """Least recently touched first."""

    name = "lru"

    # The touch number: of one touch only one node can be a leaf at a time. Read in C, without a
    # Python frame: this is asked at every unlock.
    key = staticmethod(attrgetter("touch"))  # type: ignore[assignment]  # called the same way


class Lfu(EvictionPolicy):
    """Fewest hits first, then least recently touched."""

    name = "lfu"

    def key(self, node: Node) -> OrderKey:
        """Return (hits, touch)."""
        return node.hits, node.touch


class Fifo(EvictionPolicy):
    """Oldest first."""

    name = "fifo"

    def key(self, node: Node) -> OrderKey:
        """Return the creation time."""
        return node.created


class Filo(EvictionPolicy):
    """Youngest first."""

    name = "filo"

    def key(self, node: Node) -> OrderKey:
        """Return the creation time, negated."""
        return -node.created


class Mru(EvictionPolicy):
    """Most recently touched first."""

    name = "mru"

    def key(self, node: Node) -> OrderKey:
        """Return the touch number, negated."""
        return -node.touch


class Priority(EvictionPolicy):
    """Lowest priority first, then least recently touched."""

    name = "priority"

    def key(self, node: Node) -> OrderKey:
        """Return (priority, touch)."""
        return node.priority, node.touch


class Slru(EvictionPolicy):
    """Segmented LRU: leaves with fewer hits than the threshold first, each segment by recency."""

    name = "slru"

    def key(self, node: Node) -> OrderKey:
        """Return (protected segment, touch)."""
        return int(node.hits >= self.config.slru_protected_threshold), node.touch


class Tlru(EvictionPolicy):
    """Tail LRU: first the tails that a conversation can lose and still meet its budget.

    With ``budget = max(high_water + next_prompt_estimate - threshold, 0)`` a leaf is tail-safe when
    the tokens before it reach the budget without it.
    """

    name = "tlru"
    needs_high_water = True

    def key(self, node: Node) -> OrderKey:
        """Return (not tail-safe, touch)."""
        config = self.config
        budget = max(node.high_water + config.tlru_next_prompt_estimate - config.tlru_threshold, 0)
        return int(node.start < budget), node.touch


_BUILT_IN = (Lru, Lfu, Fifo, Filo, Mru, Priority, Slru, Tlru)
_POLICIES: dict[str, Callable[[EvictionConfig], EvictionPolicy]] = {
    policy.name: policy for policy in _BUILT_IN
}


def register_policy(name: str, make: Callable[[EvictionConfig], EvictionPolicy]) -> None:
    """Make a policy known under `name`, for ``eviction.policy`` in a config."""
    if not name or name in _POLICIES:
        raise ConfigError(f"eviction policy {name!r} is empty or already registered")
    _POLICIES[name] = make


def plugin_policies() -> tuple[str, ...]:
    """Return the names that were registered beside the built-in ones."""
    return tuple(_POLICIES)[len(_BUILT_IN) :]


def make_policy(config: EvictionConfig) -> EvictionPolicy:
    """Return the policy that `config` names. Raises ConfigError for an unknown name."""
    make = _POLICIES.get(config.policy)
    if make is None:
        raise ConfigError(
            f"eviction.policy: {config.policy!r} is unknown; one of {', '.join(_POLICIES)}"
        )
    return make(config)
