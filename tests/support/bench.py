"""A Full component on a tree of its own: hooks are called as the component's actor would."""

from __future__ import annotations

from typing import Any

from radixtide import RadixKey, Violation
from radixtide.components.api import Slots
from radixtide.components.full import FullComponent
from radixtide.components.insertion import Insertion, InsertPart
from radixtide.components.outcomes import Reserved
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
        given = full.reserve(len(tokens) - len(tokens) % tree.page_size, ANONYMOUS)
        assert isinstance(given, Reserved)
        job = self.job(tokens, given.slots, prev=prev, **fields)
        walk = job.walk
        assert walk.limit == len(given.slots)
        job.checked = [full.check_insert(job)]
        matched = walk.matched
        if walk.inside is not None and walk.inside_units:
            inside = walk.inside
            prefix = tree.split(inside, walk.inside_units)
            full.redistribute_on_node_split(prefix, inside)
            walk.path.append(prefix)
            walk.last = prefix
        tree.clock += 1
        tree.root.touch = tree.clock
        for node in walk.path:
            node.touch = tree.clock
        if matched < walk.limit:
            leaf = tree.add_leaf(walk.last, walk, matched)
            leaf.touch = tree.clock
            job.leaves = (leaf,)
            return leaf, full.apply_insert(job)
        return walk.last, full.apply_insert(job)

    def job(
        self,
        tokens: list[int],
        value: Slots | None,
        holder: int = ANONYMOUS,
        prev: int = 0,
        start: Node | None = None,
        running: bool = False,
    ) -> Insertion:
        """Return an insert that was not checked yet."""
        walk = self.tree.walk(RadixKey(tokens, is_bigram=self.tree.bigram), start)
        return Insertion(walk, value, holder, prev, prev, 0, running, walk.matched, walk.start)

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
