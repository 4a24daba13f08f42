"""How much work a call does, counted instead of timed: the same on every machine."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Awaitable
from types import FrameType
from typing import Any

from support.rooms import ROOT

PACKAGE = tuple(str(ROOT / room) for room in ("actors", "components", "tiers", "tree"))


async def lines_run(call: Awaitable[Any]) -> int:
    """Return how many lines of the library a call runs; loops in C (numpy, memory) are one each.

    For direct delivery: what runs in other tasks meanwhile would be counted too.
    """
    count = 0

    def inside(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if event == "line":
            count += 1
        return inside

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        return inside if frame.f_code.co_filename.startswith(PACKAGE) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        await call
    finally:
        sys.settrace(before)
    return count


async def bytes_needed(call: Awaitable[Any]) -> int:
    """Return the most memory, in bytes, that a call had in use beyond what was there before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await call
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before
