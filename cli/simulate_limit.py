"""A limit of wall time for code that may never end."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType
from typing import Final, NoReturn

FRAMES_MAX: Final = 4
"""Innermost frames that a report of a hang names."""


class Hangs(KeyboardInterrupt):
    """Code ran for longer than it may; ``where`` are its innermost frames, innermost first.

    It is of the one kind of exception that nothing on the way takes for a crash of an actor, and
    that event loops let through.
    """

    def __init__(self, seconds: float, frame: FrameType | None) -> None:
        super().__init__(f"not done after {seconds:g} s")
        frames = traceback.extract_stack(frame)[-FRAMES_MAX:]
        self.where = tuple(
            f"{one.name} ({one.filename.rpartition('/')[2]}:{one.lineno})" for one in frames[::-1]
        )


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`Hangs` in the block when it has run for `seconds` of wall time.

    Python code is stopped wherever it is. A call into native code that never returns is not:
    whoever started the process has to end it. Only for the main thread; without interval timers
    (Windows) there is no limit. A limit that stood before is put back, with the time that is left
    of it.
    """
    if sys.platform == "win32":
        yield
        return

    def stop(_number: int, frame: FrameType | None) -> NoReturn:
        raise Hangs(seconds, frame)

    before = signal.signal(signal.SIGALRM, stop)
    began = monotonic()
    # It comes again: the first may hit code that loses any exception (a destructor).
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.001, left - (monotonic() - began)), interval)


__all__ = ("Hangs", "time_limit")
