"""The actor that hosts one component: it turns messages into hook calls.

It is the only writer of its component's records, sizes, order and slots, and takes mail only from
the coordinator, which waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from radixtide.actors.actor import Actor, Handler
from radixtide.actors.messages import (
    Audit,
    AuditAgainst,
    CarrierReleased,
    CheckInsert,
    CheckRelease,
    Clear,
    CommitInsert,
    CommitMatch,
    Describe,
    EvictNodes,
    GetSizes,
    Grant,
    Judge,
    LetGo,
    Lock,
    LockSplit,
    PairedSlots,
    PathSlots,
    Prepare,
    Propose,
    Quote,
    Rebuild,
    Release,
    ReleasePaired,
    Reserve,
    ReservePrivate,
    Settle,
    Show,
    TakeCensus,
    Ungrant,
    Unlock,
    Unreserve,
    Validate,
)
from radixtide.actors.set_aside import SetAside
from radixtide.actors.tier_messages import (
    BackupNeed,
    BeginBackup,
    BeginLoad,
    CommitFetch,
    EndBackup,
    EndLoad,
    EvictHost,
    HostSizes,
    HostSlots,
    LoadNeeds,
    NoteStored,
    PinHost,
    ProposeHost,
    ReleaseHost,
    ReserveHost,
    UnpinHost,
    UseHost,
    ValidateTiers,
)
from radixtide.components.api import Slots, Violation
from radixtide.components.base import TreeComponent
from radixtide.components.insertion import InsertPart
from radixtide.components.outcomes import NO_SIZES, Moving, Reserved, Shortage, Sizes
from radixtide.tiers.slots import EMPTY
from radixtide.tree.node import Node


class ComponentActor(Actor):
    """One component behind a mailbox."""

    def __init__(self, component: TreeComponent) -> None:
        self.component = component
        self.name = component.name
        self.refuse_host: Callable[[str], bool] | None = None
        """See the cache's attribute of that name."""
        self._aside: SetAside | None = None

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
            Show: self.show,
            Audit: self.audit,
            Rebuild: self.rebuild,
            TakeCensus: lambda _: component.census(),
            AuditAgainst: self.audit_against,
            ReservePrivate: self.reserve_private,
            Prepare: self.prepare,
            Judge: self.judge,
            Quote: self.quote,
            Grant: self.grant,
            Ungrant: self.ungrant,
            CarrierReleased: self.carrier_released,
            ReleasePaired: self.release_paired,
            PairedSlots: self.paired_slots,
            Clear: lambda _: component.reset(),
            ValidateTiers: self.validate_tiers,
            UseHost: lambda m: component.finalize_host_match(m.path, m.first),
            BackupNeed: self.backup_need,
            BeginBackup: lambda m: component.begin_backup(m.nodes, m.job),
            EndBackup: self.end_backup,
            PinHost: lambda m: component.pin_host(m.nodes),
            UnpinHost: lambda m: component.unpin_host(m.nodes),
            LoadNeeds: lambda m: component.load_need(m.path, m.first),
            BeginLoad: self.begin_load,
            EndLoad: self.end_load,
            ProposeHost: lambda m: component.drive_host_eviction(m.target, m.spare),
            EvictHost: lambda m: component.evict_host_nodes(m.nodes),
            NoteStored: lambda m: component.note_stored(m.nodes, m.stored),
            ReserveHost: self.reserve_host,
            ReleaseHost: self.release_host,
            CommitFetch: self.commit_fetch,
            HostSlots: lambda m: component.host_slots_of(m.nodes),
            HostSizes: lambda _: component.host_sizes(),
        }

    def lru_lengths(self) -> tuple[int | None, int | None]:
        """Return the lengths of the component's device and host order."""
        return (None, None) if self._aside is not None else self.component.lru_lengths()

    def set_aside(self, error: BaseException) -> Mapping[type, Handler] | None:
        """Go on without this component, where the others can do without it."""
        if not self.component.independent or self._aside is not None:
            return None
        self._aside = SetAside(self.component)
        return self._aside.handlers()

    def sizes(self) -> Sizes:
        """Return the component's sizes, an immutable record, for statistics."""
        return self.component.sizes()

    def give_back(self, message: Any, reply: Any) -> Any:
        """Undo a Reserved that the coordinator no longer waits for."""
        if not isinstance(reply, Reserved):
            return None
        if isinstance(message, Reserve):
            return Unreserve(reply.slots, message.holder, reply.position, message.slots)
        if isinstance(message, ReservePrivate):
            return Ungrant(message.holder, None, 0, {self.name: reply.slots})
        return None

    # -- match --------------------------------------------------------------------

    def validate(self, m: Validate) -> Sequence[int]:
        """Answer how many steps of the path may be reused."""
        return self.component.validate_path(m.path, m.inside, m.inside_units, True)

    def commit_match(self, m: CommitMatch) -> tuple[Slots | None, Any]:
        """Split, lock, finalise."""
        component = self.component
        for split in m.splits:
            component.redistribute_on_node_split(*split)
        path = m.path
        if not path:
            # All that was matched is on the host.
            return (EMPTY.copy() if component.index == 0 else None), None
        record = component.acquire_component_lock(path[-1]) if m.lock else None
        return component.finalize_match_result(path, m.holder), record

    def reserve_private(self, m: ReservePrivate) -> Reserved | Shortage:
        """Take a slot for a copy."""
        return self.component.reserve_private(m.holder)

    # -- insert -------------------------------------------------------------------

    def check_insert(self, m: CheckInsert) -> Any:
        """Refuse slots that are not the caller's to give."""
        return self.component.check_insert(m.job)

    def commit_insert(self, m: CommitInsert) -> InsertPart:
        """Split and take over the slots."""
        for split in m.splits:
            self.component.redistribute_on_node_split(*split)
        return self.component.apply_insert(m.job)

    def prepare(self, m: Prepare) -> int:
        """Say how much of a request to insert."""
        return self.component.prepare_for_caching_req(m.req, m.start, m.length)

    def path_slots(self, m: PathSlots) -> Slots:
        """Answer the slots along a path."""
        return self.component.path_slots(m.path)

    # -- lock ---------------------------------------------------------------------

    def lock(self, m: Lock) -> Any:
        """Protect what a user of the node needs."""
        return self.component.acquire_component_lock(m.node)

    def lock_split(self, m: LockSplit) -> Any:
        """Follow splits, then protect."""
        for split in m.splits:
            self.component.redistribute_on_node_split(*split)
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
        return record, self._free(m.free)

    def let_go(self, m: LetGo) -> int:
        """Unlock and free what a request holds."""
        component = self.component
        if m.unlock is not None:
            component.release_component_lock(m.unlock, m.record)
        freed = self._free(m.free)
        if m.holder is not None:
            freed += component.release_holding(m.holder)
            component.cleanup_after_caching_req(m.holder)
        return freed

    def _free(self, slots: Slots | None) -> int:
        """Free slots of the carrier, or what is bound to them here."""
        if slots is None:
            return 0
        if self.component.index == 0:
            self.component.release(slots)
            return len(slots)
        self.component.carrier_released(slots)
        return 0

    # -- evict --------------------------------------------------------------------

    def propose(self, m: Propose) -> list[Node]:
        """Choose victims."""
        return self.component.drive_eviction(m.target, m.spare)

    def judge(self, m: Judge) -> list[bool]:
        """Tell the leaves among nodes."""
        return self.component.judge(m.nodes)

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
        self.component.check_release(m.slots, m.holder)

    def release(self, m: Release) -> None:
        """Free checked slots."""
        self.component.release(m.slots)

    def carrier_released(self, m: CarrierReleased) -> None:
        """Let go of what is bound to freed slots."""
        self.component.carrier_released(m.slots)

    def quote(self, m: Quote) -> Shortage | None:
        """Say whether slots are there."""
        return self.component.quote(m.wanted, m.holder)

    def grant(self, m: Grant) -> Slots | None:
        """Take slots that were quoted."""
        return self.component.grant(m.wanted, m.holder, m.carrier)

    def ungrant(self, m: Ungrant) -> None:
        """Give back slots that nobody took."""
        self.component.ungrant(m.holder, m.carrier, m.used, m.own.get(self.name))

    def release_paired(self, m: ReleasePaired) -> int:
        """Free what is bound to a holder's slots."""
        return self.component.release_paired(m.holder, m.begin, m.end)

    def paired_slots(self, m: PairedSlots) -> Slots:
        """Answer the slots bound to others."""
        return self.component.paired_slots(m.slots)

    # -- host -----------------------------------------------------------------------

    def validate_tiers(self, m: ValidateTiers) -> tuple[Sequence[int], Sequence[int]]:
        """Answer how many steps may be reused from the device, and from device or host."""
        validate = self.component.validate_path
        return (
            validate(m.path, m.inside, m.inside_units, True),
            validate(m.path, m.inside, m.inside_units, False),
        )

    def backup_need(self, m: BackupNeed) -> tuple[int, int]:
        """Answer what a backup takes, and what is free."""
        sizes = self.component.host_sizes()
        free = 0 if sizes is None or self._no_host() else sizes.free
        return self.component.backup_need(m.nodes), free

    def _no_host(self) -> bool:
        return self.refuse_host is not None and self.refuse_host(self.name)

    def end_backup(self, m: EndBackup) -> None:
        """Attach host copies, or give them up."""
        if m.keep:
            self.component.commit_backup(m.nodes, m.digests.get(self.name))
        else:
            self.component.abort_backup(m.nodes)

    def begin_load(self, m: BeginLoad) -> Moving:
        """Take device slots for what comes from the host."""
        component = self.component
        carriers = None if component.index == 0 else m.carriers
        return component.begin_load(m.nodes.get(self.name, []), m.job, carriers)

    def end_load(self, m: EndLoad) -> None:
        """Attach what was loaded, or give it up."""
        if m.keep:
            self.component.commit_load(m.nodes, m.job)
        else:
            self.component.abort_load(m.nodes, m.job)

    def reserve_host(self, m: ReserveHost) -> Slots | Shortage:
        """Take host slots for pages."""
        books = self.component.host_allocator
        page = books.page_size if books is not None else 1
        if self._no_host():
            return Shortage(m.pages * page, self.component.host_sizes() or NO_SIZES)
        return self.component.reserve_host(m.pages * page, m.job)

    def release_host(self, m: ReleaseHost) -> None:
        """Give host slots back."""
        slots = m.slots.get(self.name)
        if slots is not None:
            self.component.release_host(slots)

    def commit_fetch(self, m: CommitFetch) -> None:
        """Split, and give host slots to new nodes."""
        for split in m.splits:
            self.component.redistribute_on_node_split(*split)
        slots = m.slots.get(self.name)
        if slots is not None and len(slots):
            self.component.commit_fetch(m.nodes, slots, m.digests.get(self.name))

    # -- soundness ------------------------------------------------------------------

    def describe(self, m: Describe) -> dict[int, str]:
        """Say a few words on each node."""
        return {node.id: self.component.describe(node) for node in m.nodes}

    def show(self, m: Show) -> list[tuple[int, int, int]]:
        """Return the slots of each node on the device, on the host, and its locks."""
        index = self.component.index
        shown = []
        for node in m.nodes:
            data = node.component_data[index]
            value, below = data.value, data.host_value
            shown.append(
                (
                    0 if value is None else len(value),
                    0 if below is None else len(below),
                    data.lock_ref,
                )
            )
        return shown

    def audit(self, m: Audit) -> list[Violation]:
        """Recount everything."""
        return self.component.audit(m.locked, m.ledger, m.jobs)

    def rebuild(self, m: Rebuild) -> list[Node]:
        """Repair after a crash."""
        return self.component.rebuild(m.locked, m.holders, m.carrier, m.jobs)

    def audit_against(self, m: AuditAgainst) -> list[Violation]:
        """Compare with the carrier."""
        return self.component.audit_against(m.carrier)
