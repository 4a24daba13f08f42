"""The evictable leaves of one tier, in the order of an eviction policy.

Two lanes make the common case O(1) and the rest O(log n), with no stale entries in either: a leaf
whose key is not below the newest one's is appended to an intrusive list (under lru every touch
is); any other, such as a parent that becomes a leaf late and takes the place of its own access
time, goes to a sorted list. The first leaf is the smaller of the two heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from sortedcontainers import SortedList

from radixtide.components.policies import EvictionPolicy
from radixtide.tree.lru import LruList
from radixtide.tree.node import ComponentData, HostLink

D = TypeVar("D", ComponentData, HostLink)
"""What a leaf is in the set by: a component's record of it, or that record's link."""


class LeafOrder(Generic[D]):
    """A set of leaves ordered by `policy`; holds exactly what is added and not removed."""

    __slots__ = ("_key", "_lane", "_sorted")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._key = policy.key
        self._lane: LruList[D] = LruList()
        self._sorted: SortedList[tuple[Any, int, D]] = SortedList()

    def __len__(self) -> int:
        return len(self._lane) + len(self._sorted)

    def add(self, data: D) -> None:
        """Add a leaf that is not in the set. O(1), or O(log n) when its key is an old one."""
        node = data.node
        assert node is not None and data.order_key is None
        data.order_key = key = self._key(node)
        lane = self._lane
        ends = lane.ends
        newest: Any = ends.older
        if newest is ends or key >= newest.order_key:
            lane.append(data)
        else:
            self._sorted.add((key, node.id, data))

    def remove(self, data: D) -> None:
        """Take a leaf out. O(1) or O(log n)."""
        if data.newer is not None:
            self._lane.remove(data)
        else:
            assert data.node is not None
            self._sorted.remove((data.order_key, data.node.id, data))
        data.order_key = None

    def refresh(self, data: D) -> None:
        """Give a leaf of the set the place that its present key gives it. O(1) or O(log n)."""
        node = data.node
        assert node is not None
        key = self._key(node)
        if key == data.order_key:
            return
        if data.newer is not None:
            lane = self._lane
            newest: Any = lane.ends.older
            if key >= newest.order_key:
                data.order_key = key
                lane.promote(data)
                return
        self.remove(data)
        self.add(data)

    def __iter__(self) -> Iterator[D]:
        """Yield leaves, first to go first; the set must not change meanwhile."""
        lane = iter(self._lane)
        ordered = iter(self._sorted)
        first = next(lane, None)
        other = next(ordered, None)
        while first is not None or other is not None:
            if other is None or (first is not None and first.order_key <= other[0]):
                assert first is not None
                yield first
                first = next(lane, None)
            else:
                yield other[2]
                other = next(ordered, None)
