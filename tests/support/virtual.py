"""Tests in virtual time: their loop jumps to the next timer, so that seconds cost nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec

from radixtide.simulation.dice import dice
from radixtide.simulation.injector import Injector, Note
from radixtide.simulation.loop import SimulatedLoop
from radixtide.simulation.plan import Fault, FaultPlan

P = ParamSpec("P")


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a simulated loop that keeps the order of callbacks."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = SimulatedLoop(0, order="fifo")
        loop.run(test(*args, **kwargs))
        assert loop.errors == []

    return run


def injector(*faults: Fault, seed: int = 0, note: Note | None = None) -> Injector:
    """Return an injector of these faults on the running loop."""
    loop = asyncio.get_running_loop()
    return Injector(FaultPlan(faults), dice(seed, "faults"), loop, note)


async def pass_time(seconds: float) -> None:
    """Let so much virtual time pass: it takes no other."""
    assert isinstance(asyncio.get_running_loop(), SimulatedLoop)
    await asyncio.sleep(seconds)


def now() -> float:
    """Return the loop's time, in seconds."""
    return asyncio.get_running_loop().time()
