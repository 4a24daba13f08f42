"""Messages about the tiers below the device: to components, to the tiering actor, and back.

Those to components are plans and applies as in :mod:`radixtide.actors.messages`. The tiering actor
is told, never asked: the coordinator does not wait for it. Each job has a number, and what comes
twice under the same number acts once.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from radixtide.actors.calls import Call
from radixtide.actors.messages import Apply, Plan, Splits
from radixtide.components.api import Slots
from radixtide.tiers.copy_engine import Direction
from radixtide.tree.node import Node

# -- coordinator to components ------------------------------------------------------


class ValidateTiers(Plan, frozen=True, tag=True):
    """As Validate, for device and host. Reply: (accepted from the device, from either)."""

    path: list[Node]
    inside: Node | None = None
    inside_units: int = 0


class UseHost(Apply, frozen=True, tag=True):
    """Note that a match used what the host has of `path`, but for the first of its nodes.

    Reply: slots of this component that a load of it takes on the device.
    """

    path: list[Node]
    first: int


class BackupNeed(Plan, frozen=True, tag=True):
    """Ask what backing up `nodes` takes. Reply: (host slots, host slots that are free)."""

    nodes: list[Node]


class BeginBackup(Apply, frozen=True, tag=True):
    """Take host slots for `nodes`, and protect them while they are read. Reply: Moving."""

    nodes: list[Node]
    job: int


class EndBackup(Apply, frozen=True, tag=True):
    """Attach the host copies of `nodes`, or (`keep` false) give their slots back. Unprotects.

    `digests`: by component, one a page in order.
    """

    nodes: list[Node]
    keep: bool
    digests: dict[str, Any]


class PinHost(Apply, frozen=True, tag=True):
    """Protect the host copies of `nodes`."""

    nodes: list[Node]


class UnpinHost(Apply, frozen=True, tag=True):
    """Undo one PinHost of each of `nodes`."""

    nodes: list[Node]


class LoadNeeds(Plan, frozen=True, tag=True):
    """Ask what a match that ends with `path` needs from the host. Reply: LoadNeed.

    `first`: how many of the path are usable from the device.
    """

    path: list[Node]
    first: int


class BeginLoad(Apply, frozen=True, tag=True):
    """Take device slots for what comes from the host. Reply: Moving.

    `nodes`: by component. `carriers`: by node, the carrier's slots of the nodes that it loads.
    """

    nodes: dict[str, list[Node]]
    job: int
    carriers: dict[int, Slots]


class EndLoad(Apply, frozen=True, tag=True):
    """Attach what a job has loaded, or (`keep` false) give the device slots back."""

    nodes: list[Node]
    keep: bool
    job: int


class ProposeHost(Plan, frozen=True, tag=True):
    """Ask for nodes, but for those to spare, whose host copies free `target` host slots."""

    target: int
    spare: tuple[Node, ...] = ()


class EvictHost(Apply, frozen=True, tag=True):
    """Free the host copies of `nodes`, children first. Reply: host slots freed."""

    nodes: list[Node]


class NoteStored(Apply, frozen=True, tag=True):
    """The host copies of `nodes` are in storage too, or (`stored` false) no longer."""

    nodes: list[Node]
    stored: bool = True


class ReserveHost(Apply, frozen=True, tag=True):
    """Take host slots for pages to be fetched. Reply: slots, or Shortage with nothing changed.

    What was taken for one component has to be given back or used, so it is no plan.
    """

    pages: int
    job: int


class ReleaseHost(Apply, frozen=True, tag=True):
    """Give back host slots of a fetch. `slots`: by component."""

    slots: dict[str, Slots]


class CommitFetch(Apply, frozen=True, tag=True):
    """Follow splits, then give host slots to new nodes. `slots`, `digests`: by component."""

    nodes: list[Node]
    splits: Splits
    slots: dict[str, Slots]
    digests: dict[str, Any]


class HostSlots(Plan, frozen=True, tag=True):
    """Ask for the host slots of `nodes`. Reply: (slots, digests or None) for each node."""

    nodes: list[Node]


class HostSizes(Plan, frozen=True, tag=True):
    """Ask for the sizes of the host pool. Reply: Sizes, or None where there is none."""


# -- coordinator to the tiering actor -------------------------------------------------


class Told(msgspec.Struct, frozen=True, tag=True):
    """Base of what the tiering actor is told. It comes until it is handled.

    What is about storage carries the one it is about: another may be attached meanwhile.
    """

    applies: ClassVar[bool] = True


class StartCopy(Told, frozen=True, tag=True):
    """Copy slots between device and host. Report: CopyDone."""

    job: int
    direction: Direction
    transfers: list[Any]
    after: tuple[Any, ...] = ()
    digests: dict[str, Any] | None = None
    gate: Any = None


class StartStore(Told, frozen=True, tag=True):
    """Write host pages to storage. Report: StoreDone.

    `raw`: tokens of the node. `previous`: hash of the page before it, or (`first`) what begins the
    chains of its namespace, or None. `items`: by component, (host slots, digests): they belong to
    the last pages of the node.
    """

    job: int
    storage: Any
    raw: bytes
    previous: bytes | None
    first: bool
    items: dict[str, tuple[Slots, Any]]


class Lookup(Told, frozen=True, tag=True):
    """Ask storage how much of a key is there. Report: Found.

    `raw`: tokens of the whole key. `skip`: pages of it that need not be looked for.
    """

    job: int
    storage: Any
    raw: bytes
    seed: bytes | None
    skip: int


class StartFetch(Told, frozen=True, tag=True):
    """Read pages that were found into host slots. Report: FetchDone.

    `slots`: by component, those of the pages that end with the last one fetched.
    """

    job: int
    storage: Any
    pages: int
    slots: dict[str, Slots]


class StopFetch(Told, frozen=True, tag=True):
    """Take what has arrived, and read no more. Report: FetchDone."""

    job: int
    storage: Any


class Fence(Told, frozen=True, tag=True):
    """What is loaded from now on waits for `event`."""

    event: Any


# -- tiering actor to the coordinator ---------------------------------------------------


class Report(Call, frozen=True, tag=True, gc=False):
    """Base of the reports: `job` names what is reported on.

    They come until they are handled: a job that is over must end.
    """

    applies: ClassVar[bool] = True

    job: int


class CopyDone(Report, frozen=True, tag=True):
    """A copy is over. `digests`: by component. `bad`: pages that were not what they should be."""

    ok: bool
    error: str | None = None
    digests: dict[str, Any] = msgspec.field(default_factory=dict)
    bad: dict[str, list[int]] = msgspec.field(default_factory=dict)


class StoreDone(Report, frozen=True, tag=True):
    """A node was written. `pages`: leading pages that are stored with all that belongs to them.

    `orphan`: none, as the store has not the page before them.
    """

    pages: int
    hashes: bytes
    orphan: bool = False


class Found(Report, frozen=True, tag=True):
    """What storage has, in pages of the whole key.

    `parts`: by component, how many of the last of these pages are to be fetched.
    """

    pages: int
    parts: dict[str, int]


class FetchDone(Report, frozen=True, tag=True):
    """A fetch is over. `pages`: how many leading ones arrived; `digests`: by component."""

    pages: int
    digests: dict[str, Any] = msgspec.field(default_factory=dict)
    hashes: bytes = b""
