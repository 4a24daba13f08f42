"""What the coordinator owns, and the small steps that its operations share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from radixtide.actors.cell import Cell
from radixtide.actors.ledger import Entry, Ledger
from radixtide.actors.messages import Split, Splits
from radixtide.actors.pins import PinBoard
from radixtide.actors.tier_state import TierState
from radixtide.components.api import BRANCHING, LockReceipt, MissReason, NodeHandle
from radixtide.components.checks import check_handle, check_receipt
from radixtide.components.outcomes import RELEASED, Traits
from radixtide.components.request import Request
from radixtide.configs.errors import (
    ForeignReceipt,
    InvalidInput,
    InvalidKey,
    InvalidRequest,
    ReceiptReleased,
    StaleNode,
    UnknownNode,
)
from radixtide.configs.schema import CacheConfig
from radixtide.tiers.request_pool import ReqToTokenPool
from radixtide.tiers.slots import FIRST_HOLDER
from radixtide.tree.ghosts import GhostList
from radixtide.tree.key import RadixKey, namespace_bytes
from radixtide.tree.node import ON_DEVICE, Node
from radixtide.tree.radix_tree import RadixTree, Walk

_CACHE_IDS: Final = itertools.count(1)


class LiveReceipt(msgspec.Struct, eq=False, gc=False):
    """What a receipt stands for: the node, what each component counted, and whose it is."""

    node: Node
    receipt: LockReceipt
    records: list[Any]
    rid: str | None


class Counters:
    """Totals since the start, in units of the tree."""

    __slots__ = (
        "allocations",
        "asked_units",
        "donations_skipped",
        "evicted_nodes",
        "evicted_units",
        "hit_units",
        "inserts",
        "matches",
        "misses",
        "new_units",
        "refused_allocations",
        "repairs",
    )

    def __init__(self) -> None:
        self.matches = 0
        self.asked_units = 0
        self.hit_units = 0
        self.inserts = 0
        self.new_units = 0
        self.allocations = 0
        self.donations_skipped = 0
        self.refused_allocations = 0
        self.evicted_nodes = 0
        self.evicted_units = 0
        self.repairs = 0
        self.misses = dict.fromkeys(MissReason, 0)

    def as_dict(self) -> dict[str, int]:
        """Return all totals by name; misses as ``miss.REASON``."""
        totals = {name: getattr(self, name) for name in self.__slots__ if name != "misses"}
        totals.update({f"miss.{reason.value}": count for reason, count in self.misses.items()})
        return totals


class State:
    """The coordinator's own data. Only its operations write it."""

    def __init__(
        self,
        config: CacheConfig,
        tree: RadixTree,
        rows: ReqToTokenPool,
        clock: Callable[[], float],
    ) -> None:
        self.config = config
        self.tree = tree
        self.rows = rows
        self.clock = clock
        self.page_size = config.page_size
        self.key_units_max = config.limits.key_units_max
        self.cells: list[Cell] = []
        self.carrier: Cell
        self.others: list[Cell] = []
        self.names: tuple[str, ...] = ()
        self.traits: list[Traits] = []
        self.voters: list[Cell] = []
        self.voter_traits: list[Traits] = []
        self.branchers: tuple[Callable[[int, int], int | None] | None, ...] = ()
        self.reaches: tuple[int, ...] = ()
        self.early: list[int] = []
        self.preparers: list[Cell] = []
        self.private: list[Cell] = []
        self.windowed: list[Cell] = []
        self.ghosts = GhostList(config.eviction.ghosts)
        self.ledger = Ledger(FIRST_HOLDER)
        self.receipts: dict[int, LiveReceipt] = {}
        self.receipts_issued = 0
        self.pins = PinBoard(config.pins.budget)
        self.counters = Counters()
        self.repair_waits = False
        self.tiers: TierState | None = None
        self.together = False
        self.steps = 0
        # By the identity of the call, which is kept here with it.
        self.evicted_before: dict[int, tuple[Any, dict[str, int]]] = {}
        self.cache_id = next(_CACHE_IDS)

    def note_evicted(self, call: Any, freed: dict[str, int]) -> None:
        """Note what a call has evicted before it has to wait; one that left may never come again.

        The oldest is forgotten beyond what a mailbox can hold: it would at most evict more.
        """
        self.evicted_before[id(call)] = call, freed
        if len(self.evicted_before) > self.config.limits.mailbox_capacity:
            del self.evicted_before[next(iter(self.evicted_before))]

    def attach(self, cells: list[Cell], traits: list[Traits]) -> None:
        """Note the cells of the components, in order, and what is known of each.

        The first carries the tree: a node exists while it has data of that one.
        """
        self.cells = cells
        self.carrier = cells[0]
        self.others = cells[1:]
        self.names = tuple(cell.name for cell in cells)
        self.traits = traits
        self.voters = [cell for cell, trait in zip(cells, traits, strict=True) if trait.votes]
        self.voter_traits = [trait for trait in traits if trait.votes]
        by_name = {trait.name: trait.branching for trait in traits}
        self.branchers = tuple(by_name.get(name) for name in BRANCHING)
        # Ascending, so that of one node the deepest border is made first (see Splits).
        self.reaches = tuple(sorted({one.reach for one in traits if one.reach is not None}))
        self.windowed = [
            cell for cell, trait in zip(cells, traits, strict=True) if trait.reach is not None
        ]
        # What decoding can do without: the windows, and what ranks no higher; without a window,
        # everything but the carrier.
        windows = [trait.priority for trait in traits if trait.reach is not None]
        ranks = max(windows, default=max(trait.priority for trait in traits))
        self.early = [
            index
            for index, trait in enumerate(traits)
            if index and trait.priority <= ranks and not trait.independent
        ]
        self.preparers = [cell for cell, trait in zip(cells, traits, strict=True) if trait.prepares]
        self.private = [cell for cell, trait in zip(cells, traits, strict=True) if trait.private]

    def cell(self, component: str) -> Cell:
        """Return the cell of `component`. Raises InvalidRequest when the cache has none."""
        for cell in self.cells:
            if cell.name == component:
                return cell
        names = ", ".join(cell.name for cell in self.cells)
        raise InvalidRequest(f"this cache has no component {component!r}; it has {names}")

    def goes_along(self, cell: Cell) -> list[Cell]:
        """Return the cells of which data goes when that of `cell`, an auxiliary one's, is evicted.

        Its own, and those of auxiliary components that rank no higher and do not stand alone.
        """
        rank = self.traits[self.cells.index(cell)].priority
        return [
            other
            for other, trait in zip(self.cells[1:], self.traits[1:], strict=True)
            if other is cell or (not trait.independent and trait.priority <= rank)
        ]

    def check_pools(self, slots: dict[str, int]) -> None:
        """Raise InvalidInput where slots are named of a component that this cache has not."""
        for name, count in slots.items():
            if count and name not in self.names:
                raise InvalidInput(
                    f"{count} slots of pool {name} were named, but this cache has no {name} "
                    f"component; it has {', '.join(self.names)}"
                )

    # -- messages -----------------------------------------------------------------

    def all(self, message: Any) -> list[tuple[Cell, Any]]:
        """Return what a conversation yields to ask every component the same."""
        if len(self.cells) == 1:
            return [(self.carrier, message)]
        return [(cell, message) for cell in self.cells]

    def each(self, make: Callable[[int], Any]) -> list[tuple[Cell, Any]]:
        """Return what a conversation yields to ask every component something of its own."""
        return [(cell, make(index)) for index, cell in enumerate(self.cells)]

    # -- checks -------------------------------------------------------------------

    def check_key(self, key: RadixKey) -> None:
        """Raise InvalidKey when `key` can not belong to this tree."""
        if key.is_bigram is self.tree.bigram and 0 < key.units <= self.key_units_max:
            return
        if key.is_bigram != self.tree.bigram:
            wanted = "a bigram view" if self.tree.bigram else "plain tokens"
            raise InvalidKey(
                f"this tree's keys are {wanted} (config key `bigram`); "
                f"build the key with is_bigram={self.tree.bigram}"
            )
        if not key.raw:
            raise InvalidKey("the key is empty; a key has at least one token")
        if key.units > self.key_units_max:
            raise InvalidKey(
                f"the key has {key.units} units, more than limits.key_units_max = "
                f"{self.key_units_max}"
            )

    def check_request_key(self, req: Request, key: RadixKey) -> None:
        """Raise InvalidRequest unless `key` is in the request's namespace."""
        if key.namespace != namespace_bytes(req.extra_key, req.cache_salt):
            raise InvalidRequest(
                f"request {req.rid!r} and its key are in different namespaces; "
                "build the key with req.key()"
            )

    # -- handles and receipts -------------------------------------------------------

    def handle(self, node: Node) -> NodeHandle:
        """Return the handle of `node` as it is now."""
        return NodeHandle(node.id, self.tree.generation, node.epoch)

    def resolve(self, handle: NodeHandle) -> Node:
        """Return the node of `handle`. Raises StaleNode or UnknownNode."""
        tree = self.tree
        node = tree.nodes.get(handle.id)
        if node is not None and handle.generation == tree.generation and handle.epoch == node.epoch:
            if node.tiers & ON_DEVICE:
                return node
            raise StaleNode(f"{handle} is on the host only; load it back, or match again")
        check_handle(handle)
        if not 0 <= handle.id < tree.next_id or not 0 <= handle.generation <= tree.generation:
            raise UnknownNode(f"{handle} was never given out by this cache")
        raise StaleNode(
            f"{handle} is stale: the node was evicted, or the tree was reset; match again"
        )

    def issue(
        self, node: Node, handle: NodeHandle, records: list[Any], rid: str | None = None
    ) -> LockReceipt:
        """Write down a lock of `node`, whose handle is `handle`, and return its receipt."""
        self.receipts_issued = number = self.receipts_issued + 1
        receipt = LockReceipt(number, handle, self.cache_id)
        self.receipts[number] = LiveReceipt(node, receipt, records, rid)
        return receipt

    def live(self, receipt: LockReceipt) -> LiveReceipt:
        """Return what `receipt` stands for. Raises ForeignReceipt or ReceiptReleased."""
        held = self.receipts.get(receipt.id)
        if held is not None and (held.receipt is receipt or held.receipt == receipt):
            return held
        check_receipt(receipt)
        if receipt.cache != self.cache_id:
            raise ForeignReceipt(f"receipt {receipt.id} is of another cache")
        if held is None and 0 < receipt.id <= self.receipts_issued:
            if receipt.node.generation == self.tree.generation:
                raise ReceiptReleased(f"receipt {receipt.id} was released before")
            raise ForeignReceipt(f"receipt {receipt.id} is from before the tree was reset")
        raise ForeignReceipt(f"receipt {receipt.id} was not issued in this form by this cache")

    def locked(self, index: int) -> dict[int, int]:
        """Return the number of locks (receipts and pins) of a component by node id."""
        counts: dict[int, int] = {}
        nodes: Iterable[Node] = itertools.chain(
            (
                held.node
                for held in self.receipts.values()
                if not held.records or held.records[index] is not RELEASED
            ),
            self.pins.nodes(),
            self.tiers.jobs.locks(index) if self.tiers is not None else (),
        )
        for node in nodes:
            if node.parent is not None:
                counts[node.id] = counts.get(node.id, 0) + 1
        return counts

    # -- structure ------------------------------------------------------------------

    def path_to(self, node: Node) -> list[Node]:
        """Return the nodes from below the root down to `node`. O(depth)."""
        path: list[Node] = []
        at = node
        while at.parent is not None:
            path.append(at)
            at = at.parent
        path.reverse()
        return path

    def split_inside(self, walk: Walk) -> Split:
        """Split the node that `walk` ends inside of, and put the prefix on its path."""
        inside = walk.inside
        assert inside is not None
        prefix = self.split(inside, walk.inside_units)
        walk.path.append(prefix)
        walk.last = prefix
        walk.inside = None
        walk.inside_units = 0
        return prefix, inside

    def at_depth(self, node: Node, depth: int) -> Node | None:
        """Return the node from `node` upward that `depth` lies inside of; None: it is a border."""
        at = node
        while (parent := at.parent) is not None:
            if parent.end <= depth:
                return at if parent.end < depth < at.end else None
            at = parent
        return None

    def cut(self, node: Node, depth: int) -> Split | None:
        """Make `depth` a border of the path to `node`, if it is none. O(nodes above it)."""
        inside = self.at_depth(node, depth)
        if inside is None:
            return None
        return self.split(inside, depth - inside.start), inside

    def split(self, node: Node, units: int) -> Node:
        """Cut `node` after `units` units; return the new node above it."""
        prefix = self.tree.split(node, units)
        if self.tiers is not None:
            self.tiers.split(prefix, node)
        return prefix

    def lacks_border(self, node: Node) -> bool:
        """Return whether a lock on `node` needs a border that is not there."""
        return any(self.at_depth(node, node.end - reach) is not None for reach in self.reaches)

    def make_borders(self, node: Node) -> Splits:
        """Make the borders that a lock on `node` needs; return the splits."""
        splits = [self.cut(node, node.end - reach) for reach in self.reaches]
        return tuple(split for split in splits if split is not None)

    def touch(self, path: list[Node], hits_beyond: int) -> int:
        """Touch `path` and return the touch number. O(len(path)).

        Counts a hit on each node that ends beyond `hits_beyond`.
        """
        tree = self.tree
        tree.clock = touch = tree.clock + 1
        tree.root.touch = touch
        if hits_beyond <= 0:
            for node in path:
                node.touch = touch
                node.hits += 1
            return touch
        for node in path:
            node.touch = touch
            if node.end > hits_beyond:
                node.hits += 1
        return touch

    def touch_only(self, node: Node) -> None:
        """Touch the path to `node` without counting hits. O(depth)."""
        self.stamp(node, self.touch([], 0), 0)

    def stamp(self, node: Node, touch: int, priority: int) -> None:
        """Give `touch` to `node` and its ancestors, and raise their priority. O(depth)."""
        at = node
        while at.parent is not None:
            at.touch = touch
            if priority and at.priority < priority:
                at.priority = priority
            at = at.parent

    def count_hits(self, path: list[Node], hits_beyond: int) -> None:
        """Count a hit on each node of `path` that ends beyond `hits_beyond`, without a touch."""
        for node in path:
            if node.end > hits_beyond:
                node.hits += 1


def put_on_path(walk: Walk, splits: Splits) -> None:
    """Put the prefix of each split on the walk's path, where its suffix is on it."""
    for prefix, suffix in splits:
        if suffix in walk.path:
            walk.path.insert(walk.path.index(suffix), prefix)


def close_if_empty(state: State, entry: Entry) -> None:
    """Forget a request's entry unless it holds something."""
    empty = entry.receipt is None and not entry.allocated and not entry.states
    if empty and state.ledger.has(entry):
        state.ledger.close(entry)
