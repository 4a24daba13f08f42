"""The contract of a component: one kind of state on the nodes of the tree.

A component is plain synchronous code. It owns its records on the nodes
(:class:`~radixtide.tree.node.ComponentData`), its sizes, its eviction order and its slots; the
structure of the tree it only reads. Its hooks are called by the component actor that hosts it, and
that actor takes mail only from the coordinator.

Rules for hooks: a hook never waits and never evicts. A hook that can refuse is a *plan* and changes
nothing; a hook that changes something is an *apply* and can not refuse, since its plan was accepted
and nobody else got a turn in between.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from radixtide.components.api import EvictLayer, MissReason, Slots, Violation
from radixtide.components.host import HostHooks
from radixtide.components.insertion import InsertCheck, Insertion, InsertPart
from radixtide.components.outcomes import Census, JobPins, Reserved, Shortage, Sizes, Traits
from radixtide.components.request import Request
from radixtide.configs.errors import InvalidRequest, SlotError
from radixtide.configs.schema import CacheConfig
from radixtide.tiers.holdings import Holding
from radixtide.tiers.slots import ANONYMOUS, EMPTY, Pages, SlotAllocator
from radixtide.tree.node import ComponentData, Node
from radixtide.tree.radix_tree import RadixTree

Validator = Callable[[Node, int], bool]
"""Called for each node of a path in order, with the units of it that match; true where the state
of this component can be reused up to there."""


NOTHING_FOUND: Final = InsertCheck()


class TreeComponent(HostHooks, ABC):
    """Base of all components. See the module's rules; the hooks of the host tier are inherited.

    Args:
        config: the cache's configuration.
        tree: the structure, for reading.
        index: this component's place in ``node.component_data``.
    """

    votes = True
    """Whether this component can shorten a match that may use the device. One that has data on each
    node there, always, or that can do without, need not be asked."""
    independent = False
    """Whether its data comes and goes by itself, as that of an optional copy does: evicting it
    takes nothing along, not even a leaf, and it goes along only when its node goes."""
    reach: int | None = None
    """Units, in whole pages, that a lock protects upward from its node's end; the node in which
    they begin is split for it. None: the lock needs no such border."""
    miss_reason = MissReason.COMPONENT
    """What a match says that this component cut."""
    prepares = False
    """Whether :meth:`prepare_for_caching_req` has a say."""
    private = False
    """Whether a match can give the request a copy of this component's state for its own."""

    def __init__(self, config: CacheConfig, tree: RadixTree, index: int) -> None:
        self.config = config
        self.tree = tree
        self.index = index
        self.page_size = config.page_size
        self.grid = config.page_size
        self.evictable = 0
        self.protected = 0
        self.holdings: dict[int, Holding] = {}
        self.allocator = self.make_allocator()
        self.host_allocator = self.make_host_allocator()

    @abstractmethod
    def make_allocator(self) -> SlotAllocator:
        """Return the books of this component's device pool."""

    def traits(self) -> Traits:
        """Return the component's fixed properties."""
        return Traits(
            self.name,
            self.votes,
            self.independent,
            self.reach,
            self.miss_reason,
            self.prepares,
            self.private,
            self.eviction_priority(False),
            self.branching_seqlen,
        )

    def make_memory(self) -> Any:
        """Return the tensors of the device pool, or None where only its books are kept."""
        return None

    def data(self, node: Node) -> ComponentData:
        """Return this component's record on `node`."""
        return node.component_data[self.index]

    # -- match ------------------------------------------------------------------

    @abstractmethod
    def create_match_validator(self, match_device_only: bool) -> Validator:
        """Return a fresh predicate over the nodes of one path (it may keep state)."""

    def validate_path(
        self, path: Sequence[Node], inside: Node | None, inside_units: int, match_device_only: bool
    ) -> Sequence[int]:
        """Return, ascending, how many leading steps of the path may be reused.

        A step is a node of `path`; the last may be the first `inside_units` units of `inside`.
        The default asks the validator at every step. Cost O(steps).
        """
        accepts = self.create_match_validator(match_device_only)
        votes = [at + 1 for at, node in enumerate(path) if accepts(node, node.length)]
        if inside is not None and accepts(inside, inside_units):
            votes.append(len(path) + 1)
        return votes

    def finalize_match_result(
        self, path: Sequence[Node], holder: int | None = None
    ) -> Slots | None:
        """Return what a match over `path` hands out (Full: its slots), and note the use.

        `holder`: who gets a private copy of the state at the path's end; None: nobody.
        """
        return None

    def branching_seqlen(self, matched: int, full_length: int) -> int | None:
        """Return where data of this component would be worth keeping: beyond a match it cut."""
        length = full_length - full_length % self.grid
        return length if length > matched else None

    # -- insert -----------------------------------------------------------------

    def update_component_on_insert_overlap(
        self, node: Node, value: Slots, evicted_seqlen: int
    ) -> int:
        """Return the offset in `node` from which the caller's slots were consumed.

        `value` holds the caller's slots for the node's units. The default consumes nothing.
        """
        return node.length

    def recover_after_unevict(self, node: Node, value: Slots) -> None:
        """Rebuild this component's data when Full came back to `node` from an insert."""
        return None

    def commit_insert_component_data(self, node: Node, value: Slots | None) -> None:
        """Attach the data of a freshly inserted `node`."""
        return None

    def check_insert(self, job: Insertion) -> InsertCheck:
        """Raise SlotError unless the caller may give the slots of an insert. A plan.

        What it returns comes back in ``job.checked``.
        """
        return NOTHING_FOUND

    @abstractmethod
    def apply_insert(self, job: Insertion) -> InsertPart:
        """Take over the slots of an insert, which was checked."""

    def path_slots(self, path: Sequence[Node]) -> Slots:
        """Return the device slots of `path` in one fresh array. O(units)."""
        return self.slots_on(path)

    def slots_on(self, nodes: Sequence[Node]) -> Slots:
        """Return the device slots of `nodes` in one fresh array, whatever a path is shown as."""
        records = (node.component_data[self.index].value for node in nodes)
        values = [value for value in records if value is not None]
        return np.concatenate(values, dtype=np.int64) if values else EMPTY.copy()

    # -- split ------------------------------------------------------------------

    @abstractmethod
    def redistribute_on_node_split(self, prefix: Node, suffix: Node) -> None:
        """Share `suffix`'s record with `prefix`, the new node above it."""

    # -- evict ------------------------------------------------------------------

    @abstractmethod
    def evict_component(self, node: Node, target: EvictLayer) -> tuple[int, int]:
        """Free this component's data on `node`; return slots freed on device and host."""

    def evict_nodes(self, nodes: Sequence[Node]) -> int:
        """Free this component's device data on `nodes`, children first; return slots freed."""
        return sum(self.evict_component(node, EvictLayer.DEVICE)[0] for node in nodes)

    def eviction_priority(self, is_leaf: bool) -> int:
        """Return the rank in cascades: what is evicted takes all of equal or lower rank along."""
        return 0

    @abstractmethod
    def drive_eviction(self, target: int, spare: tuple[Node, ...] = ()) -> list[Node]:
        """Return victims, in order, that free `target` slots, or all there are. A plan.

        Those to spare are not among them.
        """

    def judge(self, nodes: Sequence[Node]) -> list[bool]:
        """Return which of `nodes`, evicted in that order, are leaves that can go whole. A plan.

        Asked of the first component only.
        """
        raise NotImplementedError

    # -- lock -------------------------------------------------------------------

    @abstractmethod
    def acquire_component_lock(self, node: Node) -> Any:
        """Protect what a user of `node` needs; return the record that undoes it."""

    @abstractmethod
    def release_component_lock(self, node: Node, record: Any) -> int:
        """Undo one acquisition; return how many slots became evictable."""

    # -- requests -----------------------------------------------------------------

    def prepare_for_caching_req(self, req: Request, start: int, length: int) -> int:
        """Return how many of the first `length` units of a request should be inserted. A plan.

        The first `start` are the tree's already.
        """
        return length

    def cleanup_after_caching_req(self, holder: int) -> None:
        """Drop what was kept for the request that is done."""
        return None

    def node_has_component_data(self, node: Node, target: EvictLayer = EvictLayer.DEVICE) -> bool:
        """Return whether `node` has this component's data on the tier(s) of `target`."""
        data = node.component_data[self.index]
        on_device = data.value is not None
        if target is EvictLayer.DEVICE:
            return on_device
        on_host = data.host_value is not None
        return on_host if target is EvictLayer.HOST else on_device or on_host

    # -- slots --------------------------------------------------------------------

    def sizes(self) -> Sizes:
        """Return the sizes of the device pool. O(1)."""
        loading = self.device_arriving
        return Sizes(
            free=self.allocator.free,
            evictable=self.evictable,
            protected=self.protected,
            held=self.allocator.held - loading,
            size=self.allocator.size,
            in_flight=loading,
        )

    def reserve(self, slots: int, holder: int) -> Reserved | Shortage:
        """Take `slots` slots for `holder`: room in its last page first, then whole pages.

        All or nothing: a Shortage has changed nothing.
        """
        allocator = self.allocator
        if holder == ANONYMOUS:
            pages = allocator.whole_pages(slots)
            if pages * allocator.page_size > allocator.free:
                return Shortage(pages * allocator.page_size, self.sizes())
            return Reserved(allocator.take(pages, holder), 0)
        holding = self.holdings.get(holder)
        room = holding.room if holding is not None else 0
        fresh = max(slots - room, 0)
        pages = allocator.whole_pages(fresh)
        if pages * allocator.page_size > allocator.free:
            return Shortage(pages * allocator.page_size, self.sizes())
        if holding is None:
            holding = self.holdings[holder] = Holding(holder)
        position = holding.used
        roomy = holding.use_room(slots)
        if not fresh:
            return Reserved(roomy, position)
        taken = allocator.take(pages, holder)
        holding.extend(taken, fresh)
        if len(roomy):
            return Reserved(np.concatenate((roomy, taken)), position)
        return Reserved(taken.copy(), position)

    def quote(self, wanted: dict[str, int], holder: int) -> Shortage | None:
        """Return why the slots of an allocation could not be taken now, or None. A plan.

        `wanted`: slots by component.
        """
        slots = wanted.get(self.name, 0)
        holding = self.holdings.get(holder)
        room = holding.room if holding is not None else 0
        fresh = self.allocator.whole_pages(max(slots - room, 0)) * self.allocator.page_size
        return Shortage(fresh, self.sizes()) if fresh > self.allocator.free else None

    def grant(self, wanted: dict[str, int], holder: int, carrier: Reserved | None) -> Slots | None:
        """Take what was quoted; None when nothing of this pool was wanted.

        `carrier`: what the holder got of the first component's pool in the same allocation.
        """
        slots = wanted.get(self.name, 0)
        if not slots:
            return None
        reserved = self.reserve(slots, holder)
        assert isinstance(reserved, Reserved), "granted more than was quoted"
        return reserved.slots

    def ungrant(self, holder: int, carrier: Reserved | None, used: int, own: Slots | None) -> None:
        """Undo a grant: `own` is what it returned, `used` what was asked for of the carrier's."""
        if own is not None and len(own):
            self.take_back(own, holder)

    def take_back(self, slots: Slots, holder: int) -> None:
        """Free slots that were reserved and that nobody has used."""
        holding = self.holdings.get(holder)
        if holder != ANONYMOUS and holding is not None:
            kept = holding.total - len(slots)
            holding.shrink(kept, self.allocator.page_size)
            if not holding.total:
                del self.holdings[holder]
        self.allocator.release(slots)

    def reserve_private(self, holder: int) -> Reserved | Shortage:
        """Take what the private copy of a match needs, where the holder has no room for it yet."""
        return Reserved(EMPTY, 0)

    def check_release(self, slots: Slots, holder: int) -> None:
        """Raise unless `holder` may free `slots`, named as its callers name them. A plan."""
        self.allocator.check(slots, holder)

    def release(self, slots: Slots) -> None:
        """Free slots that were checked."""
        self.allocator.release(slots)

    def carrier_released(self, slots: Slots) -> None:
        """Note that the first component's `slots` are free: what is bound to them goes too."""
        return None

    def paired_slots(self, slots: Slots) -> Slots:
        """Return the slots bound to the first component's `slots`, -1 where there is none."""
        raise InvalidRequest(f"component {self.name!r} has no slots bound to those of others")

    def release_paired(self, holder: int, begin: int, end: int) -> int:
        """Free what is bound to the holder's slots ``[begin, end)``; return how many slots."""
        return 0

    def unreserve(self, slots: Slots, holder: int, position: int, used: int) -> bool:
        """Undo a reservation whose answer nobody took; return whether it was undone.

        It is not when the holder went on meanwhile: the slots then stay with the holder.
        """
        if holder == ANONYMOUS:
            self.allocator.check(slots, ANONYMOUS)
            self.allocator.release(slots)
            return True
        holding = self.holdings.get(holder)
        if holding is None or holding.used != position + used:
            return False
        if not np.array_equal(holding.slots()[position : position + len(slots)], slots):
            return False
        self.allocator.release(holding.shrink(position, self.allocator.page_size))
        if not holding.total:
            del self.holdings[holder]
        return True

    def release_holding(self, holder: int) -> int:
        """Free all that `holder` holds; return how many slots. Idempotent."""
        holding = self.holdings.pop(holder, None)
        if holding is None:
            return 0
        slots = holding.slots()
        self.allocator.release(slots)
        return len(slots)

    def held_pages(self) -> dict[int, Pages]:
        """Return the pages of this pool that each holder has. O(slots held): for audits."""
        pages = self.allocator.pages_of
        return {holder: pages(held.slots()) for holder, held in self.holdings.items()}

    def own_slots(self, holder: int, units: int) -> Slots:
        """Return the first `units` slots that `holder` holds. Raises SlotError when short."""
        holding = self.holdings.get(holder)
        have = holding.used if holding is not None else 0
        if have < units:
            raise SlotError(
                f"pool {self.name}: the request has {have} slots allocated past its cached prefix, "
                f"but {units} are to be cached; allocate with req=, or lower kv_committed_len"
            )
        return holding.slots(units) if holding is not None else EMPTY

    # -- soundness ------------------------------------------------------------------

    def counters(self) -> dict[str, int]:
        """Return this component's totals since the start, for statistics."""
        return {}

    def lru_lengths(self) -> tuple[int | None, int | None]:
        """Return the lengths of the device order and the host order; None where there is none."""
        return None, None

    def describe(self, node: Node) -> str:
        """Return a few words on this component's data on `node`, for people."""
        data = node.component_data[self.index]
        held = "tombstone" if data.value is None else f"{len(data.value)} slots"
        return f"{self.name}: {held}, locks {data.lock_ref}"

    @abstractmethod
    def audit(
        self,
        locked: dict[int, int],
        ledger: dict[int, tuple[str, int]],
        jobs: JobPins | None = None,
    ) -> list[Violation]:
        """Recount everything from scratch. O(N + pool).

        `locked` maps node id to live receipts on it, `ledger` maps holder to the request's id and
        the slots it asked for, as the coordinator has them; `jobs`: the pins of its transfers.
        """

    def audit_against(self, carrier: Census) -> list[Violation]:
        """Compare with what the first component says of its slots. O(N + pool)."""
        return []

    @abstractmethod
    def rebuild(
        self,
        locked: dict[int, int],
        holders: set[int],
        carrier: Census | None = None,
        jobs: JobPins | None = None,
    ) -> list[Node]:
        """Repair after a crash: recompute what can be derived; return nodes left without data.

        `carrier`: what the first component says of its slots, None for itself. `jobs`: the pins of
        the transfers under way: what these read and write stays.
        """

    def census(self) -> Census:
        """Return whose the slots are. Asked of the first component only. O(N + pool)."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget all nodes: the tree has a new generation, and its slots are free. O(pool)."""
        self.allocator = self.make_allocator()
        self.host_allocator = self.make_host_allocator()
        self.holdings = {}
        self.evictable = 0
        self.protected = 0
        self.host_evictable = 0
        self.host_protected = 0
        self.device_arriving = 0
