"""Envelopes: a message on its way, and the answer that somebody waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from radixtide.actors.cell import Cell

OnReply = Callable[["Envelope", Any, "BaseException | None"], None]


class Sentinel:
    """A reply that is none."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


PARKED: Final = Sentinel("PARKED")
"""Returned instead of a reply by a conversation that waits for others."""
REDELIVER: Final = Sentinel("REDELIVER")
"""Returned instead of a reply when the receiver crashed and was restarted: post the message."""
QUEUE: Final = Sentinel("QUEUE")
"""Stands for a reply where the receiver is not idle: post the message."""

WAIT_FOR_ROOM: Final = Sentinel("WAIT_FOR_ROOM")
WAIT_FOR_IDLE: Final = Sentinel("WAIT_FOR_IDLE")
WAIT_FOR_JOB: Final = Sentinel("WAIT_FOR_JOB")
LINES: Final = frozenset((WAIT_FOR_ROOM, WAIT_FOR_IDLE, WAIT_FOR_JOB))
"""Returned instead of a reply by an operation that holds nothing and has to wait for a transfer:
its message stands in this line, first come first served, until the line is let in again."""


class Envelope:
    """One message between two actors.

    ``sequence``: counts a sender's messages; ``correlation``: names the exchange, the same on every
    delivery of it; ``deadline``: loop time after which nobody waits; ``gives``: ownership passes
    with the message, so it is carried out even if nobody waits.
    ``withdrawn``: need not be handled. ``left``: is handled, but its caller is gone.
    ``settled``: its answer has arrived, or none is wanted. ``place``: among what its sender has
    told its receiver, which is handled in that order; None: it was asked. ``must``: it is a part of
    an operation that has changed something: it comes until it is handled, and is not refused.
    ``waits``: it is in its receiver's mailbox, so that nothing is gained by sending it again.
    ``trace``: opaque context carried along for tracing.
    """

    __slots__ = (
        "correlation",
        "deadline",
        "deliveries",
        "gives",
        "left",
        "message",
        "must",
        "on_reply",
        "place",
        "receiver",
        "sender",
        "sent_at",
        "sequence",
        "settled",
        "trace",
        "waits",
        "withdrawn",
    )

    def __init__(
        self,
        sender: str,
        receiver: Cell,
        sequence: int,
        correlation: int,
        message: Any,
        deadline: float | None,
        gives: bool,
        sent_at: float,
        on_reply: OnReply | None,
    ) -> None:
        self.sender = sender
        self.receiver = receiver
        self.sequence = sequence
        self.correlation = correlation
        self.message = message
        self.deadline = deadline
        self.gives = gives
        self.sent_at = sent_at
        self.on_reply = on_reply
        self.deliveries = 0
        self.place: int | None = None
        self.must = False
        self.waits = False
        self.withdrawn = False
        self.left = False
        self.settled = False
        self.trace: Any = None

    def arrived(self, reply: Any, error: BaseException | None) -> None:
        """Give the sender an answer, unless it has one."""
        if not self.settled and self.on_reply is not None:
            self.settled = True
            self.on_reply(self, reply, error)

    def __repr__(self) -> str:
        kind = type(self.message).__name__
        return f"<{kind} #{self.correlation} {self.sender} -> {self.receiver.name}>"


class Interceptor(Protocol):
    """The seam for journals and faults. While one is installed, every message is queued.

    ``on_send`` and ``on_reply`` get a ``deliver`` to call: not at all (drop), now, later (delay,
    stall), or more than once (duplicate); ``on_send`` may raise MailboxFull where a call that takes
    is sent. ``before_handle`` and ``after_handle`` may raise, which crashes the receiver at that
    point; a RadixtideError that ``before_handle`` raises is the answer instead, as if the handler
    had refused: not for messages that apply or must be handled (``envelope.must``).
    """

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        """See an envelope on its way to the mailbox."""

    def on_reply(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        """See the reply to an envelope on its way back."""

    def before_handle(self, envelope: Envelope) -> None:
        """See an envelope that is about to be handled."""

    def after_handle(self, envelope: Envelope) -> None:
        """See an envelope that was handled, before its reply leaves."""


class PassThrough:
    """An interceptor that changes nothing: a base for those that do, and a way to force queues."""

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        """Deliver at once."""
        deliver(envelope)

    def on_reply(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        """Deliver at once."""
        deliver()

    def before_handle(self, envelope: Envelope) -> None:
        """Do nothing."""

    def after_handle(self, envelope: Envelope) -> None:
        """Do nothing."""
