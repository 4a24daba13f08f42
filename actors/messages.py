"""Messages between the coordinator and the component actors.

Each is a frozen Struct with a tag; nodes travel by reference in process and as ids when encoded.
``applies`` marks those that change something on the way: once one is sent, the operation runs to
its end. The others are plans: they may refuse, and change nothing.

How many messages a call costs is tabulated in docs/messages.md, which a test keeps true.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from radixtide.components.api import Slots
from radixtide.components.insertion import Insertion
from radixtide.components.outcomes import Census, Reserved
from radixtide.components.request import Request
from radixtide.tree.node import Node

Split = tuple[Node, Node]
"""(prefix, suffix): a new node and the one it was cut from."""
Splits = tuple[Split, ...]
"""Splits in the order in which they were made: of one node, the deepest first, so that a suffix is
what it will be when the first of them is followed."""


class Plan(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Base of messages that change nothing."""

    applies: ClassVar[bool] = False
    opens: ClassVar[bool] = False


class Apply(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Base of messages that change something and can not be refused."""

    applies: ClassVar[bool] = True
    opens: ClassVar[bool] = False


class Opening(Apply, frozen=True, tag=True, gc=False):
    """Base of those that are an operation's first change: it did nothing before it sends one.

    Until the receiver handles it, such an operation can still be given up.
    """

    opens: ClassVar[bool] = True


class Validate(Plan, frozen=True, tag=True):
    """Ask how much of a path may be reused. Reply: accepted steps, ascending."""

    path: list[Node]
    inside: Node | None = None
    inside_units: int = 0


class CommitMatch(Apply, frozen=True, tag=True):
    """Split, lock, and finalise a match over `path`. Reply: (slots or None, lock record).

    `holder`: who gets a private copy of the state at its end, where there is such a state.
    """

    path: list[Node]
    splits: Splits = ()
    lock: bool = False
    holder: int | None = None


class ReservePrivate(Plan, frozen=True, tag=True):
    """Take a slot for the private copy of a match. Reply: Reserved, or Shortage."""

    holder: int


class CheckInsert(Plan, frozen=True, tag=True):
    """Ask whether the caller may give these slots. Raises SlotError. Reply: InsertCheck."""

    job: Insertion


class CommitInsert(Apply, frozen=True, tag=True):
    """Split, attach a leaf, and settle every slot of an insert. Reply: InsertPart."""

    job: Insertion
    splits: Splits = ()


class Lock(Opening, frozen=True, tag=True):
    """Protect what a user of `node` needs. Reply: the component's lock record."""

    node: Node


class LockSplit(Apply, frozen=True, tag=True):
    """Follow splits, then protect `node`. Reply: the component's lock record."""

    node: Node
    splits: Splits


class Unlock(Opening, frozen=True, tag=True):
    """Undo one lock. `records`: each component's, in order. Reply: slots that became evictable."""

    node: Node
    records: list[Any]


class LetGo(Opening, frozen=True, tag=True):
    """Let go of what a request holds: lock, loose slots, holding. Reply: slots freed."""

    unlock: Node | None
    record: Any
    free: Slots | None
    holder: int | None


class Settle(Apply, frozen=True, tag=True):
    """Move a running request on: lock first, then unlock, then free duplicates.

    Reply: (lock record, slots freed).
    """

    lock: Node
    unlock: Node | None
    record: Any
    free: Slots | None


class Propose(Plan, frozen=True, tag=True):
    """Ask for victims, but for those to spare, that free `target` slots. Reply: nodes in order."""

    target: int
    spare: tuple[Node, ...] = ()


class Judge(Plan, frozen=True, tag=True):
    """Ask the carrier which of `nodes`, in that order, are leaves that can go whole."""

    nodes: list[Node]


class EvictNodes(Apply, frozen=True, tag=True):
    """Free the device data of `nodes`, children first. Reply: slots freed."""

    nodes: list[Node]


class Quote(Plan, frozen=True, tag=True):
    """Ask whether the slots of an allocation are there. Reply: Shortage or None.

    `wanted`: slots by component.
    """

    wanted: dict[str, int]
    holder: int


class Grant(Apply, frozen=True, tag=True):
    """Take what was quoted. Reply: slots, or None when none of this pool were wanted.

    `carrier`: what the holder got of the carrier's pool in the same allocation.
    """

    wanted: dict[str, int]
    holder: int
    carrier: Reserved | None = None


class Ungrant(Opening, frozen=True, tag=True):
    """Give back what a Grant took. `own`: its replies, by component."""

    holder: int
    carrier: Reserved | None
    used: int
    own: dict[str, Slots]


class Reserve(Plan, frozen=True, tag=True):
    """Take slots for a holder. Reply: Reserved, or Shortage with nothing changed.

    It takes rather than edits: a reply that nobody wants any more is given back.
    """

    slots: int
    holder: int


class Unreserve(Opening, frozen=True, tag=True):
    """Give back a Reserved that nobody took. Reply: whether it was still the holder's last."""

    slots: Slots
    holder: int
    position: int
    used: int


class CheckRelease(Plan, frozen=True, tag=True):
    """Ask whether the caller may free these slots. Raises SlotError."""

    slots: Slots
    holder: int


class Release(Apply, frozen=True, tag=True):
    """Free slots that were checked."""

    slots: Slots


class CarrierReleased(Apply, frozen=True, tag=True):
    """Tell that slots of the carrier were freed: what is bound to them goes too."""

    slots: Slots


class PairedSlots(Plan, frozen=True, tag=True):
    """Ask for the slots that are bound to slots of the carrier. Reply: an array, -1 for none."""

    slots: Slots


class ReleasePaired(Opening, frozen=True, tag=True):
    """Free what is bound to the holder's slots ``[begin, end)``. Reply: slots freed."""

    holder: int
    begin: int
    end: int


class Prepare(Plan, frozen=True, tag=True):
    """Ask how much of a request's first `length` units to insert. Reply: a length."""

    req: Request
    start: int
    length: int


class TakeCensus(Plan, frozen=True, tag=True):
    """Ask the carrier whose its slots are. Reply: Census."""


class AuditAgainst(Plan, frozen=True, tag=True):
    """Ask for a comparison with the carrier's slots. Reply: list of Violation."""

    carrier: Census


class PathSlots(Plan, frozen=True, tag=True):
    """Ask for the slots along `path`. Reply: an array."""

    path: list[Node]


class GetSizes(Plan, frozen=True, tag=True):
    """Ask for the sizes of the pool. Reply: Sizes."""


class Describe(Plan, frozen=True, tag=True):
    """Ask for a few words on each node, for people. Reply: {node id: text}."""

    nodes: list[Node]


class Show(Plan, frozen=True, tag=True):
    """Ask what there is of each node, for drawing. Reply: (slots here, on the host, locks) each."""

    nodes: list[Node]


class Audit(Plan, frozen=True, tag=True):
    """Ask for a recount. Reply: list of Violation.

    `locked`: receipts by node id; `ledger`: name and slots asked for by holder; `jobs`: how many
    transfers read a node's device value and use its host slots, by id; None without a host tier.
    """

    locked: dict[int, int]
    ledger: dict[int, tuple[str, int]]
    jobs: dict[int, tuple[int, int]] | None = None


class Rebuild(Opening, frozen=True, tag=True):
    """Repair after a crash. Reply: nodes without data, children first."""

    locked: dict[int, int]
    holders: set[int]
    carrier: Census | None = None
    jobs: dict[int, tuple[int, int]] | None = None


class Clear(Opening, frozen=True, tag=True):
    """Forget everything: the tree was reset."""
