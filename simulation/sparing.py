"""Faults for several ranks: what callers ask is spared."""

from __future__ import annotations

from collections.abc import Callable

from radixtide.actors.envelope import Envelope
from radixtide.simulation.injector import Injector


class Sparing:
    """Lets faults happen to all messages but those of callers.

    Ranks make the same calls in the same order; what came late, or was cancelled, on one of them
    only would be another order there.
    """

    def __init__(self, inner: Injector) -> None:
        self.inner = inner

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        """See an envelope on its way to the mailbox."""
        if envelope.sender == "face":
            deliver(envelope)
        else:
            self.inner.on_send(envelope, deliver)

    def on_reply(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        """See the reply to an envelope on its way back."""
        if envelope.sender == "face":
            deliver()
        else:
            self.inner.on_reply(envelope, deliver)

    def before_handle(self, envelope: Envelope) -> None:
        """See an envelope that is about to be handled."""
        if envelope.sender != "face":
            self.inner.before_handle(envelope)

    def after_handle(self, envelope: Envelope) -> None:
        """See an envelope that was handled."""
        if envelope.sender != "face":
            self.inner.after_handle(envelope)


__all__ = ("Sparing",)
