"""Crashes of actors now and then, never twice at the same message: so no call has to fail."""

from __future__ import annotations

import random

from radixtide.actors.envelope import Envelope, PassThrough
from support.interceptors import Crash


class OnceInAWhile(PassThrough):
    """Crashes the receiver of one in `every` messages, before or after it is handled.

    ``dice``: set anew for each step of a walk.
    """

    def __init__(self, every: int = 60) -> None:
        self.every = every
        self.dice = random.Random(0)
        self.quiet = False
        self.crashes = 0
        self._met: dict[int, Envelope] = {}

    def _crash(self, envelope: Envelope, when: str) -> None:
        if self.quiet or id(envelope) in self._met or self.dice.randrange(self.every):
            return
        # Kept, so that no other envelope gets its number.
        self._met[id(envelope)] = envelope
        self.crashes += 1
        raise Crash(f"{when} {envelope!r}")

    def before_handle(self, envelope: Envelope) -> None:
        self._crash(envelope, "before")

    def after_handle(self, envelope: Envelope) -> None:
        self._crash(envelope, "after")
