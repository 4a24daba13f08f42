"""Trees without a cache."""

from __future__ import annotations

from radixtide import RadixKey
from radixtide.tree import Node, RadixTree


def add(tree: RadixTree, key: RadixKey) -> Node:
    """Insert a key as the coordinator does: walk, split, leaf."""
    walk = tree.walk(key)
    last = walk.last
    if walk.inside is not None and walk.inside_units:
        last = tree.split(walk.inside, walk.inside_units)
    if last.end < walk.limit:
        return tree.add_leaf(last, walk, last.end)
    return last


def lone_node(end: int, parent: Node | None = None, node_id: int = 999) -> Node:
    """Return a node that ends at `end` and is in no tree's register."""
    tree = RadixTree(1, 1)
    node = tree._new_node(parent if parent is not None else tree.root, b"", b"", end)
    node.id = node_id
    return node
