"""The radix tree over pages: walking, splitting, adding and removing nodes.

The tree knows keys and structure, nothing of slots. Its owner (the coordinator) is the only writer;
components read the structure while they handle a message of the coordinator.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from radixtide.tree.key import TOKEN_BYTES, RadixKey, common_units
from radixtide.tree.node import HASH_BYTES, NO_CHILDREN, NO_RECORD, ComponentData, Node


class Walk(msgspec.Struct, eq=False, gc=False):
    """Where a key leads: the nodes it covers whole, and the node it ends inside of.

    ``path``: covered nodes from the first below the start.
    ``inside``, ``inside_units``: the node that the key shares some, but not all, whole pages with,
    and how many units those are; None and 0 where the key ends at a node's end or finds no child.
    ``base``: depth of the start. ``limit``: units of the key that took part (page aligned), counted
    from there. ``last``: the last node that is covered whole, or the start. ``matched``: units from
    the root to where the key leaves the tree, whole pages only.
    """

    key: RadixKey
    start: Node
    base: int
    limit: int
    path: list[Node]
    last: Node
    matched: int
    inside: Node | None = None
    inside_units: int = 0

    def cut(self, steps: int) -> None:
        """Keep the first `steps` nodes of the path, which are not fewer, and no part of another."""
        self.inside = None
        self.inside_units = 0
        del self.path[steps:]
        self.last = self.path[-1] if steps else self.start
        self.matched = self.last.end


class RadixTree:
    """A tree of whole pages under one root; namespaces part at the first edge.

    Args:
        page_size: units a page.
        components: records a node has.
        bigram: unit kind of all keys.
        high_water: keep on each node the greatest depth its branch ever had (some policies ask).
    """

    __slots__ = (
        "_next_id",
        "bigram",
        "clock",
        "components",
        "edge_bytes",
        "generation",
        "high_water",
        "lookahead",
        "nodes",
        "page_size",
        "root",
    )

    def __init__(
        self, page_size: int, components: int, bigram: bool = False, high_water: bool = False
    ) -> None:
        self.page_size = page_size
        self.components = components
        self.bigram = bigram
        self.high_water = high_water
        self.lookahead = TOKEN_BYTES if bigram else 0
        self.edge_bytes = page_size * TOKEN_BYTES + self.lookahead
        self.generation = 0
        self.clock = 0
        self._next_id = 0
        self.nodes: dict[int, Node] = {}
        self.root = self._plant()

    def _plant(self) -> Node:
        root = self._new_node(None, b"", b"", 0)
        root.children = {}
        return root

    def _new_node(self, parent: Node | None, piece: bytes, edge: bytes, end: int) -> Node:
        node_id = self._next_id
        self._next_id = node_id + 1
        node = Node(
            piece,
            end,
            NO_CHILDREN,
            parent,
            0,
            0,
            NO_RECORD,
            (),
            node_id,
            edge,
            node_id,
            end,
            node_id,
        )
        node.primary = record = ComponentData(node)
        if self.components == 1:
            node.component_data = (record,)
        else:
            more = [ComponentData(node) for _ in range(self.components - 1)]
            node.component_data = (record, *more)
        self.nodes[node_id] = node
        return node

    @property
    def next_id(self) -> int:
        """The id of the next node; ids below it were given out."""
        return self._next_id

    def __len__(self) -> int:
        """Return the number of nodes, the root not counted."""
        return len(self.nodes) - 1

    def reset(self) -> None:
        """Drop every node and begin a new generation; ids go on."""
        self.nodes = {}
        self.generation += 1
        self.root = self._plant()

    def edge_of(self, walk: Walk, at: int) -> bytes:
        """Return the child name that the walk's key has `at` units after its start.

        It may be shorter than a page where the key ends.
        """
        begin = at * TOKEN_BYTES
        edge = walk.key.raw[begin : begin + self.edge_bytes]
        if walk.base == 0 and at == 0:
            return walk.key.namespace + edge
        return edge

    def walk(self, key: RadixKey, start: Node | None = None) -> Walk:
        """Follow `key` (the units after `start`'s end; the root's by default) down the tree.

        Pure. Cost O(K) memory comparison and O(nodes on the path).
        """
        node = self.root if start is None else start
        limit = key.units - key.units % self.page_size
        path: list[Node] = []
        found = Walk(key, node, node.end, limit, path, node, node.end)
        if not limit:
            return found
        raw = key.raw
        edge_bytes = self.edge_bytes
        base = node.end * TOKEN_BYTES
        stop = limit * TOKEN_BYTES
        position = 0
        edge = raw[:edge_bytes]
        if node.parent is None:
            edge = key.namespace + edge
        inside = 0
        while (child := node.children.get(edge)) is not None:
            end = child.end * TOKEN_BYTES - base
            if end > stop or not raw.startswith(child.piece, position):
                inside = common_units(
                    raw, position // TOKEN_BYTES, limit, child.piece, self.lookahead
                )
                inside -= inside % self.page_size
                if inside:
                    found.inside = child
                    found.inside_units = inside
                break
            path.append(child)
            node = child
            position = end
            while len(children := node.children) == 1 and position < stop:
                # An only child whose whole piece comes next needs no look-up of its first page.
                (child,) = children.values()
                end = child.end * TOKEN_BYTES - base
                if end > stop or not raw.startswith(child.piece, position):
                    break
                path.append(child)
                node = child
                position = end
            if position == stop:
                break
            edge = raw[position : position + edge_bytes]
        found.last = node
        found.matched = node.end + inside
        return found

    def split(self, node: Node, units: int) -> Node:
        """Cut `node` after `units` units; return the new node, which holds the prefix.

        The suffix keeps the identity. The new node takes the node's times, hits and priority.
        Records of components are the caller's to redistribute.
        """
        parent = node.parent
        assert parent is not None and 0 < units < node.length and units % self.page_size == 0
        cut = units * TOKEN_BYTES
        piece = node.piece
        prefix = self._new_node(
            parent, piece[: cut + self.lookahead], node.edge, parent.end + units
        )
        prefix.touch = node.touch
        prefix.created = node.created
        prefix.hits = node.hits
        prefix.priority = node.priority
        prefix.high_water = node.high_water
        prefix.pins = 1 if node.pins else 0
        prefix.tiers = node.tiers
        if node.job:
            prefix.job = node.job
        if node.hashes:
            at = units // self.page_size * HASH_BYTES
            prefix.hashes = node.hashes[:at]
            node.hashes = node.hashes[at:]
        parent.children[node.edge] = prefix
        node.piece = piece[cut:]
        node.edge = node.piece[: self.edge_bytes]
        node.parent = prefix
        prefix.children = {node.edge: node}
        return prefix

    def add_leaf(self, parent: Node, walk: Walk, begin: int, end: int | None = None) -> Node:
        """Add units `begin` to `end` (None: all) of the key after the walk's start, to `parent`."""
        if end is None:
            end = walk.limit
        piece = walk.key.piece(begin, end)
        leaf = self._new_node(parent, piece, self.edge_of(walk, begin), walk.base + end)
        leaf.touch = parent.touch
        if parent.children is NO_CHILDREN:
            parent.children = {}
        parent.children[leaf.edge] = leaf
        if self.high_water:
            above: Node | None = parent
            while above is not None and above.high_water < leaf.end:
                above.high_water = leaf.end
                above = above.parent
        return leaf

    def remove(self, node: Node) -> None:
        """Unlink `node`, which has no children, from its parent and forget it."""
        parent = node.parent
        assert parent is not None and not node.children
        del parent.children[node.edge]
        if not parent.children and parent.parent is not None:
            parent.children = NO_CHILDREN
        del self.nodes[node.id]
        node.parent = None

    def __iter__(self) -> Iterator[Node]:
        """Yield every node, parents first, the root not included. O(N): for audits and prints."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())
