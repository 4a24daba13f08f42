"""The actor that hosts one component: it turns messages into hook calls.

It is the only writer of its component's records, sizes, order and slots, and takes mail only from
the coordinator, which waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radixtide.actors.actor import Actor, Handler
from radixtide.actors.messages import (
    Audit,
    CheckInsert,
    CheckRelease,
    Clear,
    CommitInsert,
    CommitMatch,
    Describe,
    EvictNodes,
    GetSizes,
    LetGo,
    Lock,
    LockSplit,
    PathSlots,
    Propose,
    Rebuild,
    Release,
    Reserve,
    Settle,
    Unlock,
    Unreserve,
    Validate,
)
from radixtide.components.api import Slots, Violation
from radixtide.components.base import Reserved, Shortage, Sizes, TreeComponent
from radixtide.components.insertion import InsertPart
from radixtide.tree.node import Node


class ComponentActor(Actor):
    """One component behind a mailbox."""

    def __init__(self, component: TreeComponent) -> None:
        self.component = component
        self.name = component.name

    def handlers(self) -> Mapping[type, Handler]:
        """Return one handler a message of :mod:`radixtide.actors.messages`."""
        component = self.component
        return {
            Validate: self.validate,
            CommitMatch: self.commit_match,
            CheckInsert: self.check_insert,
            CommitInsert: self.commit_insert,
            Lock: self.lock,
            LockSplit: self.lock_split,
            Unlock: self.unlock,
            Settle: self.settle,
            LetGo: self.let_go,
            Propose: self.propose,
            EvictNodes: self.evict_nodes,
            Reserve: self.reserve,
            Unreserve: self.unreserve,
            CheckRelease: self.check_release,
            Release: self.release,
            PathSlots: self.path_slots,
            GetSizes: lambda _: component.sizes(),
            Describe: self.describe,
            Audit: self.audit,
            Rebuild: self.rebuild,
            Clear: lambda _: component.reset(),
        }

    def lru_lengths(self) -> tuple[int | None, int | None]:
        """Return the lengths of the component's device and host order."""
        return self.component.lru_lengths()

    def sizes(self) -> Sizes:
        """Return the component's sizes, an immutable record, for statistics."""
        return self.component.sizes()

    def give_back(self, message: Any, reply: Any) -> Any:
        """Undo a Reserved that the coordinator no longer waits for."""
        if isinstance(message, Reserve) and isinstance(reply, Reserved):
            return Unreserve(reply.slots, message.holder, reply.position, message.slots)
        return None

    # -- match --------------------------------------------------------------------

    def validate(self, m: Validate) -> Sequence[int]:
        """Answer how many steps of the path may be reused."""
        return self.component.validate_path(m.path, m.inside, m.inside_units, True)

    def commit_match(self, m: CommitMatch) -> tuple[Slots | None, Any]:
        """Split, lock, finalise."""
        component = self.component
        if m.split is not None:
            component.redistribute_on_node_split(*m.split)
        path = m.path
        record = component.acquire_component_lock(path[-1]) if m.lock else None
        return component.finalize_match_result(path), record

    # -- insert -------------------------------------------------------------------

    def check_insert(self, m: CheckInsert) -> Any:
        """Refuse slots that are not the caller's to give."""
        return self.component.check_insert(m.job)

    def commit_insert(self, m: CommitInsert) -> InsertPart:
        """Split and take over the slots."""
        if m.split is not None:
            self.component.redistribute_on_node_split(*m.split)
        return self.component.apply_insert(m.job)

    def path_slots(self, m: PathSlots) -> Slots:
        """Answer the slots along a path."""
        return self.component.path_slots(m.path)

    # -- lock ---------------------------------------------------------------------

    def lock(self, m: Lock) -> Any:
        """Protect what a user of the node needs."""
        return self.component.acquire_component_lock(m.node)

    def lock_split(self, m: LockSplit) -> Any:
        """Follow a split, then protect its prefix."""
        self.component.redistribute_on_node_split(*m.split)
        return self.component.acquire_component_lock(m.node)

    def unlock(self, m: Unlock) -> int:
        """Undo one lock."""
        component = self.component
        return component.release_component_lock(m.node, m.records[component.index])

    def settle(self, m: Settle) -> tuple[Any, int]:
        """Lock the new before the old is released; then free."""
        component = self.component
        record = component.acquire_component_lock(m.lock)
        if m.unlock is not None:
            component.release_component_lock(m.unlock, m.record)
        freed = 0
        if m.free is not None:
            component.allocator.release(m.free)
            freed = len(m.free)
        return record, freed

    def let_go(self, m: LetGo) -> int:
        """Unlock and free what a request holds."""
        component = self.component
        if m.unlock is not None:
            component.release_component_lock(m.unlock, m.record)
        freed = 0
        if m.free is not None:
            component.allocator.release(m.free)
            freed = len(m.free)
        if m.holder is not None:
            freed += component.release_holding(m.holder)
        return freed

    # -- evict --------------------------------------------------------------------

    def propose(self, m: Propose) -> list[Node]:
        """Choose victims."""
        return self.component.drive_eviction(m.target)

    def evict_nodes(self, m: EvictNodes) -> int:
        """Free the device data of nodes."""
        return self.component.evict_nodes(m.nodes)

    # -- slots --------------------------------------------------------------------

    def reserve(self, m: Reserve) -> Reserved | Shortage:
        """Take slots, all or nothing."""
        return self.component.reserve(m.slots, m.holder)

    def unreserve(self, m: Unreserve) -> bool:
        """Give back slots that nobody took."""
        return self.component.unreserve(m.slots, m.holder, m.position, m.used)

    def check_release(self, m: CheckRelease) -> None:
        """Refuse slots that are not the caller's to free."""
        self.component.allocator.check(m.slots, m.holder)

    def release(self, m: Release) -> None:
        """Free checked slots."""
        self.component.allocator.release(m.slots)

    # -- soundness ------------------------------------------------------------------

    def describe(self, m: Describe) -> dict[int, str]:
        """Say a few words on each node."""
        return {node.id: self.component.describe(node) for node in m.nodes}

    def audit(self, m: Audit) -> list[Violation]:
        """Recount everything."""
        return self.component.audit(m.locked, m.ledger)

    def rebuild(self, m: Rebuild) -> list[Node]:
        """Repair after a crash."""
        return self.component.rebuild(m.locked, m.holders)
