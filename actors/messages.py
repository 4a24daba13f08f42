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
from radixtide.tree.node import Node

Split = tuple[Node, Node]
"""(prefix, suffix): a new node and the one it was cut from."""


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
    """Split, lock, and finalise a match over `path`. Reply: (slots or None, lock record)."""

    path: list[Node]
    split: Split | None = None
    lock: bool = False


class CheckInsert(Plan, frozen=True, tag=True):
    """Ask whether the caller may give these slots. Raises SlotError. Reply: what was found."""

    job: Insertion


class CommitInsert(Apply, frozen=True, tag=True):
    """Split, attach a leaf, and settle every slot of an insert. Reply: InsertPart."""

    job: Insertion
    split: Split | None


class Lock(Opening, frozen=True, tag=True):
    """Protect what a user of `node` needs. Reply: the component's lock record."""

    node: Node


class LockSplit(Apply, frozen=True, tag=True):
    """Follow a split, then protect its prefix. Reply: the component's lock record."""

    node: Node
    split: Split


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
    """Ask for victims that free `target` slots. Reply: nodes in order."""

    target: int


class EvictNodes(Apply, frozen=True, tag=True):
    """Free the device data of `nodes`, children first. Reply: slots freed."""

    nodes: list[Node]


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


class PathSlots(Plan, frozen=True, tag=True):
    """Ask for the slots along `path`. Reply: an array."""

    path: list[Node]


class GetSizes(Plan, frozen=True, tag=True):
    """Ask for the sizes of the pool. Reply: Sizes."""


class Describe(Plan, frozen=True, tag=True):
    """Ask for a few words on each node, for people. Reply: {node id: text}."""

    nodes: list[Node]


class Audit(Plan, frozen=True, tag=True):
    """Ask for a recount. Reply: list of Violation.

    `locked`: receipts by node id; `ledger`: name and slots asked for by holder.
    """

    locked: dict[int, int]
    ledger: dict[int, tuple[str, int]]


class Rebuild(Opening, frozen=True, tag=True):
    """Repair after a crash. Reply: nodes without data, children first."""

    locked: dict[int, int]
    holders: set[int]


class Clear(Opening, frozen=True, tag=True):
    """Forget everything: the tree was reset."""
