"""Messages from the face to the coordinator that are not public parameter objects."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from radixtide.components.api import LockReceipt, NodeHandle, Slots
from radixtide.components.request import Request
from radixtide.tree.key import RadixKey


class Call(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Base of the calls.

    ``final``: what it comes to is written down before its first message, so once begun it is never
    given up and done anew, as other operations are that have only planned.
    """

    final: ClassVar[bool] = False


class Free(Call, frozen=True, tag=True, gc=False):
    """Free slots held outside of any request."""

    slots: Slots
    component: str
    after: Any = None


class IncLockRef(Call, frozen=True, tag=True, gc=False):
    """Lock a node. Reply: LockReceipt."""

    node: NodeHandle


class DecLockRef(Call, frozen=True, tag=True, gc=False):
    """Release a receipt. Reply: DecLockRefResult."""

    receipt: LockReceipt


class CacheFinishedReq(Call, frozen=True, tag=True, gc=False):
    """A request is done. Reply: CacheReqResult."""

    req: Request
    is_insert: bool
    ready: Any = None


class CacheUnfinishedReq(Call, frozen=True, tag=True, gc=False):
    """A chunk of a request is done. Reply: CacheReqResult."""

    req: Request
    is_insert: bool
    ready: Any = None


class AbortReq(Call, frozen=True, tag=True, gc=False):
    """A request is given up. Reply: CacheReqResult."""

    req: Request
    after: Any = None


class UndoMatch(Call, frozen=True, tag=True, gc=False):
    """Nobody took the answer of a locking match: release the lock."""

    receipt: LockReceipt | None
    req: Request | None
    copied: bool = False


class UndoAllocate(Call, frozen=True, tag=True, gc=False):
    """Nobody took the answer of an allocation: give the slots back."""

    slots: Slots
    req: Request | None
    used: int
    own: dict[str, Slots]


class DecWindowLock(Call, frozen=True, tag=True, gc=False):
    """Give up the windows of a receipt. Reply: DecLockRefResult."""

    receipt: LockReceipt


class ReleaseWindow(Call, frozen=True, tag=True, gc=False):
    """A running request has `length` tokens: free what no window needs. Reply: slots freed."""

    req: Request
    length: int


class ComponentSlots(Call, frozen=True, tag=True, gc=False):
    """The slots of a component that are bound to slots of the carrier. Reply: tensor."""

    component: str
    slots: Slots


class DeviceIndices(Call, frozen=True, tag=True, gc=False):
    """The slots of a component from the root to a node. Reply: tensor."""

    node: NodeHandle
    component: str


class PinKey(Call, frozen=True, tag=True, gc=False):
    """Keep a cached key from eviction for a time. Reply: PinResult."""

    key: RadixKey
    ttl_s: float


class UnpinKey(Call, frozen=True, tag=True, gc=False):
    """Let a pinned key go. Reply: whether it was pinned."""

    key: RadixKey


class Reset(Call, frozen=True, tag=True, gc=False):
    """Drop everything, if nothing is held. Reply: None."""


class AuditAll(Call, frozen=True, tag=True, gc=False):
    """Recount everything. Reply: AuditReport."""


class Print(Call, frozen=True, tag=True, gc=False):
    """Draw the tree. Reply: text."""

    max_nodes: int


class Picture(Call, frozen=True, tag=True, gc=False):
    """Show the most recently used nodes. Reply: TreePicture."""

    nodes_max: int


class Repair(Call, frozen=True, tag=True, gc=False):
    """An actor crashed: make the records true again. Reply: None."""

    actor: str
