"""The tree: keys, nodes, splits, LRU lists. Plain synchronous code that knows nothing else."""

from radixtide.tree.ghosts import GhostList as GhostList
from radixtide.tree.key import RadixKey as RadixKey
from radixtide.tree.lru import Link as Link
from radixtide.tree.lru import LruList as LruList
from radixtide.tree.node import ComponentData as ComponentData
from radixtide.tree.node import HostLink as HostLink
from radixtide.tree.node import Node as Node
from radixtide.tree.radix_tree import RadixTree as RadixTree
from radixtide.tree.radix_tree import Walk as Walk

__all__ = (
    "ComponentData",
    "GhostList",
    "HostLink",
    "Link",
    "LruList",
    "Node",
    "RadixKey",
    "RadixTree",
    "Walk",
)
