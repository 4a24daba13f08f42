"""Which fault of a plan happens to an event: counts, probabilities, and what is drawn with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Literal, Protocol

import msgspec

from radixtide.actors.envelope import Envelope
from radixtide.simulation.happened import Happened
from radixtide.simulation.plan import Fault, FaultKind, FaultPlan, Operation
from radixtide.tiers.copy_engine import CopyJob

Subject = Envelope | CopyJob | str
"""What a fault happened to: a message, a copy, or in words a call of a store, a pool, a rank."""
Note = Callable[[Fault, Subject], None]
"""Told of each fault that happens, just before it does."""


class CopyFault(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a copy.

    ``seconds``: it begins so much later. ``share``: in [0, 1), how far it gets before it fails.
    """

    kind: Literal["copy_fail", "copy_slow"]
    seconds: float = 0.0
    share: float = 0.0


class StorageFault(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a call of a store.

    ``seconds``: it begins so much later. ``page``: which of the call's pages is damaged.
    ``share``: in [0, 1), which of its bytes is altered, or how much of it is whole. ``done``: of a
    call that fails, whether the store has carried it out all the same.
    """

    kind: Literal["storage_fail", "storage_slow", "storage_corrupt", "storage_torn"]
    seconds: float = 0.0
    page: int = 0
    share: float = 0.0
    done: bool = False


class Faults(Protocol):
    """What an engine, a store, host memory and an agreement ask: the injector, or a test's own."""

    def copy(self, job: CopyJob) -> CopyFault | None:
        """Return what happens to a copy that is about to be begun; None: nothing."""

    def storage(self, operation: Operation, count: int) -> StorageFault | None:
        """Return what happens to a store's call for `count` pages; None: nothing."""

    def refuses_host(self, component: str) -> bool:
        """Return whether a component that looks for host memory shall find none."""

    def skew(self, rank: int) -> float:
        """Return by how many seconds a rank comes late to an agreement."""


class Armed:
    """A fault of a plan with what is left of its counts, and random numbers of its own.

    ``fired``: how often it has happened. ``order``: its place in the plan. ``drawn``: how long it
    lasted, by the number of the time that it happened, where that was drawn.
    """

    __slots__ = (
        "_bounded",
        "_dice",
        "_draw",
        "_left",
        "_probability",
        "_remembers",
        "_skip",
        "drawn",
        "fault",
        "fired",
        "kind",
        "order",
    )

    def __init__(self, fault: Fault, dice: Random, order: int = 0, remembers: bool = True) -> None:
        self.fault = fault
        self.order = order
        self.drawn: dict[int, float] = {}
        self._remembers = remembers
        self.kind = fault.kind
        self.fired = 0
        self._dice = dice
        self._draw = dice.random
        self._probability = fault.probability
        self._skip = fault.skip
        self._left = fault.count
        self._bounded = fault.skip > 0 or fault.count is not None

    def fires(self) -> bool:
        """Return whether it happens to an event that it chooses; draws once.

        About 0.1 us: it is asked of each fault of a plan at each message.
        """
        if self._bounded and not self._may_happen():
            return False
        if self._probability < 1.0 and self._draw() >= self._probability:
            return False
        if self._left is not None:
            self._left -= 1
        self.fired += 1
        return True

    def _may_happen(self) -> bool:
        """Return whether its counts let it happen now: no more to pass over, not at its end."""
        if self._left == 0:
            return False
        if self._skip:
            self._skip -= 1
            return False
        return True

    def seconds(self, otherwise: float = 0.0) -> float:
        """Return how long it lasts this time."""
        least, most = self.fault.seconds, self.fault.seconds_max
        if least is None:
            return otherwise
        if most is None:
            return least
        seconds = self._dice.uniform(least, most)
        if self._remembers:
            self.drawn[self.fired] = seconds
        return seconds

    def share(self) -> float:
        """Return a number in [0, 1)."""
        return self._dice.random()

    def below(self, count: int) -> int:
        """Return an integer in [0, count)."""
        return self._dice.randrange(count)


def arm(plan: FaultPlan, dice: Random, remembers: bool = True) -> list[Armed]:
    """Return the faults of a plan, ready to happen, in its order.

    `remembers`: whether they keep how long they lasted each time.

    Each draws from a stream of its own, named by what it says and not by its place: so a plan from
    which faults are taken away does what is left of it at the same events, as far as these are the
    same.
    """
    run = dice.getrandbits(64)
    known: Counter[bytes] = Counter()
    armed = []
    for order, fault in enumerate(plan.faults):
        words = msgspec.json.encode(fault)
        known[words] += 1
        stream = f"{run}/{words.decode()}/{known[words]}"
        armed.append(Armed(fault, Random(stream), order, remembers))  # noqa: S311  # nothing here is secret
    return armed


class Deciding:
    """What the faults of a plan do below the actors; counts and tells of all that happen.

    ``counts``: how often faults of each kind have happened. Nothing happens while `active` is
    false. ``remembers``: whether each fault that happens is kept for :meth:`exact`, about half a
    KiB; false where a run has no end.
    """

    def __init__(
        self, plan: FaultPlan, dice: Random, note: Note | None, remembers: bool = True
    ) -> None:
        self.plan = plan
        self.remembers = remembers
        self.note = note
        self.active = True
        self.counts: Counter[FaultKind] = Counter()
        self._armed = arm(plan, dice, remembers)
        self._hits = Happened()
        self._copies = self._of("copy_fail", "copy_slow")
        self._stores = self._of("storage_fail", "storage_slow", "storage_corrupt", "storage_torn")
        self._refusals = self._of("host_refuse")
        self._skews = self._of("rank_skew")

    def _of(self, *kinds: FaultKind) -> tuple[Armed, ...]:
        return tuple(one for one in self._armed if one.kind in kinds)

    @property
    def fired(self) -> tuple[int, ...]:
        """How often each fault of the plan has happened, in its order."""
        return tuple(one.fired for one in self._armed)

    def exact(self) -> FaultPlan:
        """Return a plan of what has happened, each fault named by what it hit.

        Empty where nothing is remembered.
        """
        return self._hits.exact()

    def _fires(self, armed: Armed, field: str, value: object) -> bool:
        """Return whether a fault happens to an event below the actors, named by one field."""
        key = (armed.order, value)
        before = self._hits.count(key)
        if not armed.fires():
            return False
        if self.remembers:
            self._hits.hit(armed, key, ((field, value),), before, own=True)
        return True

    def _happened(self, armed: Armed, subject: Subject) -> None:
        self.counts[armed.kind] += 1
        if self.note is not None:
            self.note(armed.fault, subject)

    def copy(self, job: CopyJob) -> CopyFault | None:
        """Return what happens to a copy that is about to be begun; None: nothing."""
        if not self.active:
            return None
        for armed in self._copies:
            fault = armed.fault
            if fault.direction is not None and fault.direction != job.direction:
                continue
            if fault.pool is not None and all(one.pool != fault.pool for one in job.transfers):
                continue
            if self._fires(armed, "direction", job.direction):
                self._happened(armed, job)
                if armed.kind == "copy_fail":
                    return CopyFault(kind="copy_fail", share=armed.share())
                return CopyFault(kind="copy_slow", seconds=armed.seconds())
        return None

    def storage(self, operation: Operation, count: int) -> StorageFault | None:
        """Return what happens to a store's call for `count` pages; None: nothing."""
        if not self.active:
            return None
        for armed in self._stores:
            wanted = armed.fault.operation
            if wanted is not None and wanted != operation:
                continue
            harms = armed.kind in {"storage_corrupt", "storage_torn"}
            if harms and (operation not in {"get", "put"} or not count):
                continue
            if not self._fires(armed, "operation", operation):
                continue
            self._happened(armed, f"{operation} of {count} pages")
            if armed.kind == "storage_slow":
                return StorageFault(kind="storage_slow", seconds=armed.seconds())
            if armed.kind == "storage_fail":
                return StorageFault(kind="storage_fail", done=armed.share() < 0.5)
            page = armed.below(count)
            if armed.kind == "storage_torn":
                return StorageFault(kind="storage_torn", page=page, share=armed.share())
            return StorageFault(kind="storage_corrupt", page=page, share=armed.share())
        return None

    def refuses_host(self, component: str) -> bool:
        """Return whether a component that looks for host memory shall find none."""
        if not self.active:
            return False
        for armed in self._refusals:
            if armed.fault.pool not in {None, component}:
                continue
            if self._fires(armed, "pool", component):
                self._happened(armed, f"host memory of {component}")
                return True
        return False

    def skew(self, rank: int) -> float:
        """Return by how many seconds a rank comes late to an agreement."""
        if not self.active:
            return 0.0
        for armed in self._skews:
            if armed.fault.rank in {None, rank} and self._fires(armed, "rank", rank):
                self._happened(armed, f"rank {rank}")
                return armed.seconds()
        return 0.0


__all__ = ("Armed", "CopyFault", "Deciding", "Faults", "Note", "StorageFault", "Subject", "arm")
