"""A copy engine that fails and is slow where a plan says so: around one that really copies."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from concurrent.futures import Future
from typing import Any

import msgspec

from radixtide.simulation.decisions import Faults
from radixtide.tiers.copy_engine import CopyEngine, CopyJob


class CopyFailed(Exception):
    """What a copy waited for, and what failed it, where a plan says so."""


class FaultyEngine(CopyEngine):
    """`inner`, whose copies fail or begin late as `faults` decides.

    A copy that fails moves no byte; one that is late holds up those of its direction behind it.
    Either way it keeps its place in the order. Delays are timers of `loop`, the loop that submits.
    """

    def __init__(self, inner: CopyEngine, faults: Faults, loop: AbstractEventLoop) -> None:
        self.inner = inner
        self._faults = faults
        self._loop = loop

    def submit(self, job: CopyJob) -> None:  # noqa: D102  # as in CopyEngine
        fault = self._faults.copy(job)
        if fault is None:
            self.inner.submit(job)
            return
        # The engine waits for it in the job's turn, and fails the job with it.
        gate: Future[None] = Future()
        self.inner.submit(msgspec.structs.replace(job, after=(*job.after, gate)))
        if fault.kind == "copy_fail":
            gate.set_exception(CopyFailed("failed by a fault plan"))
        else:
            self._loop.call_later(fault.seconds, gate.set_result, None)

    def fence(self, event: Any) -> None:  # noqa: D102  # as in CopyEngine
        self.inner.fence(event)

    def cancel(self, number: int) -> bool:  # noqa: D102  # as in CopyEngine
        return self.inner.cancel(number)

    def close(self) -> None:  # noqa: D102  # as in CopyEngine
        self.inner.close()


__all__ = ("CopyFailed", "FaultyEngine")
