"""A Full component on a tree of its own: hooks are called as the component's actor would."""

from __future__ import annotations

from typing import Any

from radixtide import RadixKey, Violation
from radixtide.components.base import InsertPart, Reserved
from radixtide.components.full import FullComponent
from radixtide.components.registry import make_components
from radixtide.tiers.slots import ANONYMOUS
from radixtide.tree import Node
from support.caches import make_config


class Bench:
    """A tree, its Full component, and the steps of the coordinator that the hooks need."""

    def __init__(self, **overrides: Any) -> None:
        (component,), self.tree = make_components(make_config(**overrides))
        assert isinstance(component, FullComponent)
        self.full: FullComponent = component

    def insert(self, tokens: list[int], prev: int = 0, **fields: Any) -> tuple[Node, InsertPart]:
        """Walk, split, reserve and insert anonymous slots; return the deepest node and the part."""
        tree, full = self.tree, self.full
        walk = tree.walk(RadixKey(tokens, is_bigram=tree.bigram))
        given = full.reserve(walk.limit, ANONYMOUS)
        assert isinstance(given, Reserved)
        full.check_insert(given.slots, ANONYMOUS, 0, prev, walk.limit, walk.matched)
        matched = walk.matched
        if walk.inside is not None and walk.inside_units:
            inside = walk.inside
            prefix = tree.split(inside, walk.inside_units)
            full.redistribute_on_node_split(prefix, inside)
            walk.path.append(prefix)
        tree.clock += 1
        tree.root.touch = tree.clock
        for node in walk.path:
            node.touch = tree.clock
        leaf = tree.add_leaf(walk.last, walk, matched) if matched < walk.limit else None
        if leaf is not None:
            leaf.touch = tree.clock
        options = {"keep_duplicates": False, "want_indices": False, **fields}
        part = full.apply_insert(
            walk.path, leaf, given.slots, ANONYMOUS, 0, prev, walk.limit, **options
        )
        return leaf if leaf is not None else walk.last, part

    def path(self, node: Node) -> list[Node]:
        """Return the nodes from below the root down to `node`."""
        path: list[Node] = []
        at: Node | None = node
        while at is not None and at.parent is not None:
            path.insert(0, at)
            at = at.parent
        return path

    def evict(self, target: int) -> list[Node]:
        """Choose victims and take them out of the component and the tree."""
        victims = self.full.drive_eviction(target)
        self.full.evict_nodes(victims)
        for node in victims:
            self.tree.remove(node)
        return victims

    def audit(self, **locked: int) -> list[Violation]:
        """Recount; `locked` is receipts by ``n`` and the node's id."""
        receipts = {int(name[1:]): count for name, count in locked.items()}
        ledger = {holder: (f"r{holder}", one.used) for holder, one in self.full.holdings.items()}
        return self.full.audit(receipts, ledger)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(free, evictable, protected, held)."""
        sizes = self.full.sizes()
        return sizes.free, sizes.evictable, sizes.protected, sizes.held
