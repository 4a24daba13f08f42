"""Sums of waiting and handling times of one actor."""

from __future__ import annotations


class Timings:
    """Seconds in the mailbox and in handlers; a few additions a message, no history."""

    __slots__ = ("handling_max_s", "handling_s", "timed", "wait_max_s", "wait_s", "waited")

    def __init__(self) -> None:
        self.timed = 0
        self.handling_s = 0.0
        self.handling_max_s = 0.0
        self.waited = 0
        self.wait_s = 0.0
        self.wait_max_s = 0.0

    def add_wait(self, seconds: float) -> None:
        """Count one message that waited `seconds`."""
        self.waited += 1
        self.wait_s += seconds
        if seconds > self.wait_max_s:
            self.wait_max_s = seconds

    def add_handling(self, seconds: float) -> None:
        """Count one handler that ran `seconds`."""
        self.timed += 1
        self.handling_s += seconds
        if seconds > self.handling_max_s:
            self.handling_max_s = seconds
