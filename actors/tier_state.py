"""What the coordinator owns of the tiers below the device: jobs, what waits, and counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from radixtide.actors.envelope import Sentinel
from radixtide.actors.jobs import Backlog, JobBoard
from radixtide.actors.tier_messages import Fence
from radixtide.configs.schema import HostConfig, StorageConfig
from radixtide.tree.node import FAILED, ON_HOST, QUEUED, Node


class TierCounters(msgspec.Struct):
    """Totals since the start. Units are those of the tree, pages those of storage."""

    backed_nodes: int = 0
    backup_units: int = 0
    backups_failed: int = 0
    backups_refused: int = 0
    backups_skipped: int = 0
    bad_pages: int = 0
    demoted_nodes: int = 0
    dropped_unbacked: int = 0
    host_evicted_nodes: int = 0
    load_units: int = 0
    loads: int = 0
    loads_failed: int = 0
    loads_refused: int = 0
    loads_shared: int = 0
    prefetch_dropped: int = 0
    prefetch_misses: int = 0
    prefetched_units: int = 0
    prefetches: int = 0
    store_failures: int = 0
    stored_nodes: int = 0
    stored_pages: int = 0


class LoadRecord(msgspec.Struct, eq=False):
    """What one call of ``load_back`` has: a lock on ``node``, and jobs to wait for.

    ``receipt``: number of its receipt. ``rid``: the request that took it, or None. ``device``: how
    much was usable on the device when it began. ``length``: how much is when all is done, or, once
    something failed, what is left of it. ``before``: how much the request had locked before it,
    None for nothing. ``gone_on``: it failed when the request had more slots already, so what was to
    be loaded stays its own until it ends.
    """

    number: int
    node: Node
    receipt: int
    rid: str | None
    device: int
    length: int
    jobs: set[int]
    failed: bool = False
    before: int | None = None
    gone_on: bool = False


class FetchRecord(msgspec.Struct, eq=False):
    """What one call of ``prefetch`` waits for. ``brought``: units, once it is over."""

    number: int
    req: Any
    brought: int = 0
    over: bool = False


def is_pending(event: Any) -> bool:
    """Return whether `event` (a CUDA event, a future, None) has not happened yet."""
    if event is None:
        return False
    done = getattr(event, "done", None)
    return not (event.query() if done is None else done())


class TierState:
    """The coordinator's books of host and storage. Only its operations write it.

    ``storage``, ``store``: the config of the storage in use, and what works on it; ``storing``:
    whether there is one. ``condemned``: nodes whose host copy was found damaged. ``again``: nodes
    that have got data since they were copied to the host, ``again_stored``: since they were stored.
    ``after_parent``: by parent, nodes that are stored after it; ``waiting``: the ids of these;
    ``orphans``: of those whose stored parent was gone when their turn came.
    ``ready``: by node, when its state is written, while that has not happened. ``down``: the
    tiering actor has crashed too often, and stays down: nothing new begins.
    ``tell``: brings a message to the tiering actor. ``wake``: has the coordinator look at what
    waits, in a turn of its own. ``let_in``: lets the calls of a line try again. ``in_line``: tells
    whether calls stand in one.
    """

    def __init__(self, host: HostConfig, storage: StorageConfig | None) -> None:
        self.host = host
        self.storage = storage
        self.storing = False
        self.store: Any = None
        self.write_back = host.write_policy == "write_back"
        self.threshold = host.backup_threshold
        self.jobs = JobBoard()
        self.backlog: Backlog = deque()
        self.to_store: Backlog = deque()
        self.after_parent: dict[int, list[Node]] = {}
        self.waiting: set[int] = set()
        self.orphans: set[int] = set()
        self.ready: dict[int, tuple[Any, ...]] = {}
        self.loads: dict[int, LoadRecord] = {}
        self.fetches: dict[int, FetchRecord] = {}
        self.condemned: set[Node] = set()
        self.again: set[Node] = set()
        self.again_stored: set[Node] = set()
        self.counters = TierCounters()
        self.waking = False
        self.down = False
        self.next_number = 0
        self.layers = 1
        self.tell: Callable[[Any], None]
        self.wake: Callable[[], None]
        self.let_in: Callable[[Sentinel], None]
        self.in_line: Callable[[Sentinel], bool]

    def requeue(self, nodes: Iterable[Node]) -> None:
        """Queue those of `nodes` that have got something while they were moved."""
        if self.again and not self.write_back:
            for node in nodes:
                if node in self.again:
                    self.queue(node, again=True)

    def note_ready(self, node: Node, ready: Any) -> None:
        """Note that the state of `node` is written when `ready` has happened, too."""
        if is_pending(ready):
            before = self.ready.get(node.id, ())
            self.ready[node.id] = (*(one for one in before if is_pending(one)), ready)

    def take_ready(self, nodes: Iterable[Node]) -> tuple[Any, ...]:
        """Return what the state of `nodes` still waits for, and forget it."""
        events = [one for node in nodes for one in self.ready.pop(node.id, ())]
        return tuple({id(one): one for one in events if is_pending(one)}.values())

    def fence(self, nodes: Iterable[Node]) -> None:
        """Let loads into the slots of `nodes`, which leave the device, wait for their writers."""
        if not self.ready:
            return
        events = {id(one): one for node in nodes for one in self.ready.get(node.id, ())}
        for event in events.values():
            if is_pending(event):
                self.tell(Fence(event))

    def put_back(self, nodes: list[Node]) -> None:
        """Put what was taken off the backlog in front of it again."""
        for node in reversed(nodes):
            if not node.job & QUEUED:
                node.job |= QUEUED
                self.backlog.appendleft(node)

    def queue(self, node: Node, again: bool = False) -> None:
        """Let `node` wait for its backup.

        The newest are left out when too many wait; they are queued when they are used again.
        `again`: it has got something since its backup began; where it is moved just now, it is
        queued when that is over.
        """
        if again:
            self.again.add(node)
        if (node.tiers & ON_HOST and not again) or node.job & ~FAILED:
            return
        if len(self.backlog) >= self.host.backlog_max:
            self.counters.backups_skipped += 1
            return
        node.job |= QUEUED
        self.backlog.append(node)
        if not self.waking:
            self.wake()

    def forget_node(self, node: Node) -> None:
        """Forget what is noted of `node`, which leaves the tree."""
        self.ready.pop(node.id, None)
        self.orphans.discard(node.id)
        for marked in (self.condemned, self.again, self.again_stored):
            marked.discard(node)

    def queue_store(self, node: Node) -> None:
        """Let `node`, which has a host copy, wait until it is written to storage."""
        self.to_store.append(node)
        if not self.waking:
            self.wake()

    def forget_stores(self) -> None:
        """Forget what waits to be stored."""
        self.to_store.clear()
        self.after_parent.clear()
        self.waiting.clear()
        self.orphans.clear()

    def forget(self) -> None:
        """Forget all nodes: the tree was reset, and no job was under way."""
        for waiting in (self.backlog, self.ready, self.loads):
            waiting.clear()
        self.forget_stores()
        self.fetches.clear()
        for marked in (self.condemned, self.again, self.again_stored):
            marked.clear()

    def split(self, prefix: Node, suffix: Node) -> None:
        """Follow a split: what waits for or moves the one, waits for or moves both."""
        self.jobs.split(prefix, suffix)
        if suffix.job & QUEUED:
            self.backlog.append(prefix)
        ready = self.ready.get(suffix.id)
        if ready is not None:
            self.ready[prefix.id] = ready
        for marked in (self.condemned, self.again, self.again_stored):
            if suffix in marked:
                marked.add(prefix)

    @property
    def idle(self) -> bool:
        """Whether nothing moves and nothing waits to."""
        return not (self.jobs.jobs or self.backlog or self.to_store or self.after_parent)
