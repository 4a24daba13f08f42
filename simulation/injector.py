"""The injector: makes the faults of a plan happen, at the seam of the actors and below it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final

from radixtide.actors.cell import Cell
from radixtide.actors.envelope import Envelope
from radixtide.configs.errors import CacheClosed, InvariantError, MailboxFull, RadixtideError
from radixtide.simulation.codec import FrameError, decode, encode
from radixtide.simulation.decisions import Armed, Deciding, Note, Subject
from radixtide.simulation.happened import Address
from radixtide.simulation.held import SWAP_S, Held
from radixtide.simulation.plan import BOTH_WAYS, Fault, FaultKind, FaultPlan
from radixtide.simulation.plan_reading import check_names

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache

CANCELLED: Final = "cancelled by a fault plan"
"""The message of the CancelledError that a caller gets from ``cancel_caller``."""

CALLERS_MAX: Final = 128
"""Calls whose callers are remembered, before it is looked which of them are over."""

_SEND: Final = 0
_REPLY: Final = 1
_BEFORE: Final = 2
_AFTER: Final = 3
_ON_THE_WAY: Final = frozenset(
    {
        "drop",
        "delay",
        "duplicate",
        "reorder",
        "stall",
        "cancel_caller",
        "corrupt",
        "kill",
        "mailbox_full",
    }
)
_CONDITIONAL: Final = frozenset({"handler_error", "cancel_caller", "mailbox_full"})
_HANDLING: Final = {"crash_before": _BEFORE, "handler_error": _BEFORE, "crash_after": _AFTER}


SPARED_AFTER: Final = 100
"""Deliveries of a message after which it crashes nobody any more: else a plan that crashes each
time would never let an operation end that must."""


class InjectedCrash(Exception):
    """What an actor dies of where a plan says so; it does not count against the restart limit."""

    counts = False


class InjectedError(RadixtideError):
    """A handler refused its message, having changed nothing, because a plan says so."""


class Injector(Deciding):
    """An interceptor that makes the faults of a plan happen.

    One injector may serve several caches on one loop (the ranks of a group, or a cache and the one
    that is made after it). Nothing happens while `active` is false.

    Args:
        plan: which faults.
        dice: decides; each fault gets a stream of its own from it.
        loop: whose time counts, where all caches run.
        note: told of each fault that happens.
        remembers: whether :meth:`exact` is wanted; costs half a KiB for each fault that happens.

    ``counts``: how often faults of each kind happened. ``messages``: how many messages were sent,
    those that were sent again included.
    """

    def __init__(
        self,
        plan: FaultPlan,
        dice: Random,
        loop: asyncio.AbstractEventLoop,
        note: Note | None = None,
        *,
        remembers: bool = True,
    ) -> None:
        super().__init__(plan, dice, note, remembers)
        self.messages = 0
        self._loop = loop
        self._held = Held(loop)
        self._chosen: dict[tuple[int, type, str, str], tuple[Armed, ...]] = {}
        self._in_hand: dict[tuple[Any, str], Envelope] = {}
        self._callers: dict[Envelope, asyncio.Task[Any]] = {}
        self._callers_max = CALLERS_MAX
        self._cancels_by_reply = any(
            one.kind == "cancel_caller" and one.fault.where != "request" for one in self._armed
        )

    # -- life -----------------------------------------------------------------------

    def install(self, cache: UnifiedRadixCache) -> None:
        """Let faults happen to an open cache: to its messages and its host memory.

        Its engine and store are given theirs where they are made. Raises ConfigError where the plan
        names a message, or an actor, that there is not.
        """
        check_names(self.plan, [one.name for one in cache._components])
        cache.add_interceptor(self)
        if self._refusals:
            cache.refuse_host = self.refuses_host

    def uninstall(self, cache: UnifiedRadixCache) -> None:
        """Leave a cache alone, and let go what is held back of its mail; it may be closed."""
        with suppress(CacheClosed):
            cache.remove_interceptor(self)
            cache.refuse_host = None
        self._held.let_go(cache._system)
        for key in [one for one in self._in_hand if one[0] is cache._system]:
            del self._in_hand[key]

    def heal(self) -> None:
        """Inject nothing from now on, and let go all that is held back, in order."""
        self.active = False
        self._held.let_go()

    @property
    def held(self) -> int:
        """How many messages and ends of faults wait for their time."""
        return len(self._held)

    # -- messages -------------------------------------------------------------------

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        """Let a message pass, or make one fault happen to it."""
        self.messages += 1
        cell = envelope.receiver
        if self._cancels_by_reply:
            self._note_caller(envelope)
        armed = self._choose(_SEND, envelope) if self.active else None
        if armed is None and not self._held.in_the_way:
            deliver(envelope)
            return

        def arrive() -> None:
            self._held.arrive(cell, cell, lambda: deliver(envelope))

        if armed is None:
            arrive()
            return
        match armed.kind:
            case "drop":
                pass
            case "corrupt":
                self._garble(armed, envelope.message)
            case "stall":
                self._held.stall(cell, armed.seconds())
                arrive()
            case "kill":
                self._loop.call_soon(self._kill, cell)
                arrive()
            case "mailbox_full":
                self._held.fill(cell, armed.seconds())
                if not envelope.gives:
                    raise MailboxFull(
                        f"the mailbox of actor {cell.name} is full; nothing was done, "
                        "try again later"
                    )
                arrive()
            case "cancel_caller":
                self._cancel_later(armed, envelope)
                arrive()
            case _:
                self._move(armed, envelope, cell, arrive)

    def on_reply(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        """Let a reply pass, or make one fault happen to it."""
        lane = (envelope.receiver.system, envelope.sender)

        def arrive() -> None:
            self._held.arrive(lane, None, deliver)

        armed = self._choose(_REPLY, envelope) if self.active else None
        if armed is not None and armed.kind == "cancel_caller":
            self._cancel_now(envelope, arrive)
            return
        self._callers.pop(envelope, None)
        if armed is None:
            arrive()
        elif armed.kind == "corrupt":
            self._garble(armed, envelope.receiver.answered.get(envelope.correlation))
        elif armed.kind != "drop":
            self._move(armed, envelope, lane, arrive)

    def before_handle(self, envelope: Envelope) -> None:
        """Let a message be handled, or crash its receiver, or have it refused."""
        cell = envelope.receiver
        if cell.actor.converses:
            self._in_hand[cell.system, cell.name] = envelope
        if not self.active or envelope.deliveries > SPARED_AFTER:
            return
        armed = self._choose(_BEFORE, envelope)
        if armed is None:
            return
        if armed.kind == "handler_error":
            raise InjectedError(f"{cell.name} refused {type(envelope.message).__name__}")
        raise InjectedCrash(f"before {envelope!r}")

    def after_handle(self, envelope: Envelope) -> None:
        """Let a reply leave, or crash its sender before."""
        if envelope.deliveries > SPARED_AFTER:
            return
        if self.active and self._choose(_AFTER, envelope) is not None:
            raise InjectedCrash(f"after {envelope!r}")

    def _move(
        self, armed: Armed, envelope: Envelope, lane: Any, arrive: Callable[[], None]
    ) -> None:
        """Deliver later, or twice."""
        owner = envelope.receiver.system
        if armed.kind == "duplicate":
            arrive()
            seconds = armed.seconds()
            if not seconds:
                arrive()
                return
            self._held.later(owner, seconds, arrive)
        elif armed.kind == "reorder":
            self._held.swap(lane, owner, armed.seconds(SWAP_S), arrive)
        else:
            self._held.later(owner, armed.seconds(), arrive)

    def _kill(self, cell: Cell) -> None:
        if self.active:
            cell.kill(InjectedCrash(f"{cell.name} was killed"))

    def _cancel_later(self, armed: Armed, envelope: Envelope) -> None:
        """Cancel the task that awaits this call, unless it is over by then."""
        task = asyncio.current_task(self._loop)
        assert task is not None

        def cancel() -> None:
            if self.active and self._is_awaited(envelope):
                task.cancel(CANCELLED)

        seconds = armed.seconds()
        if seconds:
            self._held.later(envelope.receiver.system, seconds, cancel)
        else:
            self._loop.call_soon(cancel)

    def _cancel_now(self, envelope: Envelope, arrive: Callable[[], None]) -> None:
        """Cancel the task that awaits this call in the very turn in which its answer comes."""
        task = self._callers.get(envelope)
        awaited = self._is_awaited(envelope)
        arrive()
        if task is not None and awaited and envelope.settled:
            task.cancel(CANCELLED)

    def _is_awaited(self, envelope: Envelope) -> bool:
        # A task whose call is over does something else by now, and must not be cancelled there.
        over = envelope.settled or envelope.withdrawn or envelope.left
        assert envelope.deadline is not None
        return not over and self._loop.time() < envelope.deadline

    def _note_caller(self, envelope: Envelope) -> None:
        """Remember the task that awaits this call, where it may be cancelled by its answer."""
        if self._is_asked_now(envelope):
            task = asyncio.current_task(self._loop)
            assert task is not None
            self._callers[envelope] = task
            if len(self._callers) > self._callers_max:
                # Calls that ended without an answer: their keys need no memory any more.
                left = {one: by for one, by in self._callers.items() if self._is_awaited(one)}
                self._callers = left
                self._callers_max = max(CALLERS_MAX, 2 * len(left))

    def _garble(self, armed: Armed, content: Any) -> None:
        """Encode a message, alter one byte, and see that it can not be read: so it is lost."""
        frame = bytearray(encode(content))
        frame[int(armed.share() * len(frame))] ^= 1 << armed.below(8)
        try:
            decode(bytes(frame))
        except FrameError:
            return
        raise InvariantError([f"an altered byte of {type(content).__name__} was not found"])

    # -- choosing -------------------------------------------------------------------

    def _choose(self, phase: int, envelope: Envelope) -> Armed | None:
        key = (phase, type(envelope.message), envelope.sender, envelope.receiver.name)
        candidates = self._chosen.get(key)
        if candidates is None:
            candidates = tuple(one for one in self._armed if _concerns(one.fault, *key))
            self._chosen[key] = candidates
        if not candidates:
            return None
        event = self._hits.count(key)
        for armed in candidates:
            before, own = event, armed.kind in _CONDITIONAL
            if own:
                if not self._possible(phase, armed.kind, envelope):
                    continue
                before = self._hits.count((armed.order, key))
            if armed.fires():
                if self.remembers:
                    self._hits.hit(armed, key, _address(armed.kind, *key), before, own=own)
                self._happened(armed, envelope)
                return armed
        return None

    def _possible(self, phase: int, kind: FaultKind, envelope: Envelope) -> bool:
        """Return whether a fault of this kind can happen to this very message."""
        if kind == "handler_error":
            return self._may_be_refused(envelope)
        if phase == _REPLY:
            return envelope in self._callers and self._is_awaited(envelope)
        return self._is_asked_now(envelope)

    def _is_asked_now(self, envelope: Envelope) -> bool:
        """Return whether a caller's task sends this right now, and will wait for the answer."""
        if envelope.sender != "face" or envelope.deadline is None:
            return False
        task = asyncio.current_task(self._loop)
        # What is sent again is sent by a timer, in no task.
        return task is not None and not envelope.receiver.system.owns(task)

    def _may_be_refused(self, envelope: Envelope) -> bool:
        """Return whether a refusal reaches a caller who then knows that nothing was done.

        What gives is carried out even if its caller has left, so nobody may refuse it; nor what is
        sent by an operation that has changed something already.
        """
        if envelope.must:
            return False
        root = self._in_hand.get((envelope.receiver.system, envelope.sender), envelope)
        return root.sender == "face" and root.deadline is not None and not root.gives


def _address(kind: FaultKind, phase: int, message: type, sender: str, receiver: str) -> Address:
    """Return the fields of a fault that chooses messages of this type between these two only."""
    address: Address = (
        ("message", message.__name__),
        ("sender", sender),
        ("receiver", receiver),
    )
    if kind in BOTH_WAYS:
        return (*address, ("where", "reply" if phase == _REPLY else "request"))
    return address


def _concerns(fault: Fault, phase: int, message: type, sender: str, receiver: str) -> bool:
    """Return whether a fault chooses messages of this type between these two, in this phase."""
    handled = _HANDLING.get(fault.kind)
    if handled is not None:
        if handled != phase:
            return False
        if fault.kind == "handler_error" and getattr(message, "applies", False):
            return False
    elif fault.kind not in _ON_THE_WAY or phase not in _PHASES[fault.where]:
        return False
    names = fault.messages
    return (
        (names is None or message.__name__ in names)
        and fault.sender in {None, sender}
        and fault.receiver in {None, receiver}
    )


_PHASES: Final = {"request": (_SEND,), "reply": (_REPLY,), "both": (_SEND, _REPLY)}

__all__ = ("CANCELLED", "InjectedCrash", "InjectedError", "Injector", "Note", "Subject")
