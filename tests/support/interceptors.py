"""Interceptors for tests: each does one thing to chosen messages and lets the others pass.

A message is chosen by its type's name, its receiver's name, or both; None chooses every one.
Nothing here waits for a time: what is held back is let go by the test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from radixtide.actors.envelope import Envelope, PassThrough


class Chooser(PassThrough):
    """Base: knows which envelopes are meant, and counts them.

    Args:
        kind: name of the message type, or None.
        actor: name of the receiver, or None.
        skip: so many chosen envelopes pass first.
        count: so many are then meant; None: all.

    ``hits``: envelopes that were meant; ``on_the_way``: of these, those that are still to come.
    """

    def __init__(
        self,
        kind: str | None = None,
        actor: str | None = None,
        *,
        skip: int = 0,
        count: int | None = 1,
    ) -> None:
        self.kind = kind
        self.actor = actor
        self.skip = skip
        self.left = count
        self.hits = 0
        self.on_the_way = 0

    def concerns(self, envelope: Envelope) -> bool:
        """Return whether kind and receiver fit."""
        return (self.kind is None or type(envelope.message).__name__ == self.kind) and (
            self.actor is None or envelope.receiver.name == self.actor
        )

    def takes(self, envelope: Envelope) -> bool:
        """Return whether this envelope is meant, and count it."""
        if not self.concerns(envelope):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.left is not None:
            if not self.left:
                return False
            self.left -= 1
        self.hits += 1
        return True


class Stall(Chooser):
    """Holds back every chosen envelope until :meth:`release`; the order is kept."""

    def __init__(self, actor: str | None = None, kind: str | None = None) -> None:
        super().__init__(kind, actor, count=None)
        self.held: list[tuple[Envelope, Callable[[Envelope], None]]] = []
        self.stalled = True

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        if self.stalled and self.takes(envelope):
            self.held.append((envelope, deliver))
        else:
            deliver(envelope)

    def release(self) -> None:
        """Deliver what is held, and let pass what comes."""
        self.stalled = False
        held, self.held = self.held, []
        for envelope, deliver in held:
            deliver(envelope)


class StallReplies(Chooser):
    """Holds back the replies to every chosen envelope until :meth:`release`."""

    def __init__(self, actor: str | None = None, kind: str | None = None) -> None:
        super().__init__(kind, actor, count=None)
        self.held: list[Callable[[], None]] = []
        self.stalled = True

    def on_reply(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        if self.stalled and self.takes(envelope):
            self.held.append(deliver)
        else:
            deliver()

    def release(self) -> None:
        """Deliver what is held, and let pass what comes."""
        self.stalled = False
        held, self.held = self.held, []
        for deliver in held:
            deliver()


class DropFirst(Chooser):
    """Loses the first chosen envelopes (``count`` of them, after ``skip``)."""

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        if not self.takes(envelope):
            deliver(envelope)


class DropReply(Chooser):
    """Loses the replies to the first chosen envelopes."""

    def on_reply(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        if not self.takes(envelope):
            deliver()


class Duplicate(Chooser):
    """Delivers chosen envelopes twice."""

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        if self.takes(envelope):
            deliver(envelope)
        deliver(envelope)


class DuplicateReply(Chooser):
    """Delivers the replies to chosen envelopes twice."""

    def on_reply(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        if self.takes(envelope):
            deliver()
        deliver()


class Delay(Chooser):
    """Delivers chosen envelopes some turns of the loop later; what follows may overtake them."""

    def __init__(self, *args: Any, turns: int = 3, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.turns = turns

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        if not self.takes(envelope):
            deliver(envelope)
            return
        left = self.turns
        loop = envelope.receiver.system.loop

        def later() -> None:
            nonlocal left
            left -= 1
            if left > 0:
                loop.call_soon(later)
            else:
                deliver(envelope)

        loop.call_soon(later)


class Late(Chooser):
    """Delivers chosen envelopes so late that their receiver is taken for silent."""

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        if not self.takes(envelope):
            deliver(envelope)
            return

        def at_last() -> None:
            self.on_the_way -= 1
            deliver(envelope)

        system = envelope.receiver.system
        self.on_the_way += 1
        system.loop.call_later(1.5 * system.limits.stall_after_s, at_last)


class Crash(Exception):
    """A planted crash."""


class CrashBefore(Chooser):
    """Crashes the receiver before it handles a chosen message."""

    def before_handle(self, envelope: Envelope) -> None:
        if self.takes(envelope):
            raise Crash(f"before {envelope!r}")


class CrashAfter(Chooser):
    """Crashes the receiver after it handled a chosen message, before the reply leaves."""

    def after_handle(self, envelope: Envelope) -> None:
        if self.takes(envelope):
            raise Crash(f"after {envelope!r}")


class Recorder(PassThrough):
    """Writes down every envelope: what was sent, handled and answered, as short texts.

    ``sent``, ``answered``: (message type, receiver); ``handled``: likewise, in the order in which
    handlers began; ``envelopes``: what was sent, for a closer look.
    """

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self.sent: list[tuple[str, str]] = []
        self.handled: list[tuple[str, str]] = []
        self.finished: list[tuple[str, str]] = []
        self.answered: list[tuple[str, str]] = []

    @staticmethod
    def names(envelope: Envelope) -> tuple[str, str]:
        """Return the message type's name and the receiver's."""
        return type(envelope.message).__name__, envelope.receiver.name

    def clear(self) -> None:
        """Forget all."""
        for book in (self.sent, self.handled, self.finished, self.answered):
            book.clear()
        self.envelopes.clear()

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        self.envelopes.append(envelope)
        self.sent.append(self.names(envelope))
        deliver(envelope)

    def on_reply(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        self.answered.append(self.names(envelope))
        deliver()

    def before_handle(self, envelope: Envelope) -> None:
        self.handled.append(self.names(envelope))

    def after_handle(self, envelope: Envelope) -> None:
        self.finished.append(self.names(envelope))
