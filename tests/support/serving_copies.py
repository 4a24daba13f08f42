"""A copy engine whose loads arrive as late as they may: a layer comes when somebody asks for it.

A load that is read before it has arrived may go unseen: its slots can still hold, from their time
before, the very bytes that are on their way. So what a load is to fill is overwritten first, and
each layer is kept back until a reader waits for it, or until `patience` is over, as nobody has to.
"""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final

import msgspec

from radixtide.tiers.copy_engine import CopyEngine, CopyJob, LayerGate

RUBBISH: Final = 40.0
PATIENCE_S: Final = 0.1


class JustInTime(CopyEngine):
    """`inner`, whose loads arrive layer by layer, each when it is asked for.

    Args:
        inner: the real engine.
        memory: the device pools, by name.
        loop: that submits.
        patience: seconds after which a layer comes that nobody asked for.

    ``loads``: jobs of that direction. ``awaited``: layers that a reader had to wait for.
    ``damage``: loads are found to be of other bytes than what left the device.
    """

    def __init__(
        self,
        inner: CopyEngine,
        memory: Mapping[str, Any],
        loop: AbstractEventLoop,
        patience: float = PATIENCE_S,
    ) -> None:
        self.inner = inner
        self.memory = memory
        self.loop = loop
        self.patience = patience
        self.loads = 0
        self.awaited = 0
        self.damage = False

    def submit(self, job: CopyJob) -> None:
        gate = job.layers
        if job.direction != "load" or gate is None:
            self.inner.submit(job)
            return
        self.loads += 1
        for transfer in job.transfers:
            for layer in self.memory[transfer.pool].parts():
                for part in layer:
                    part[transfer.device] = RUBBISH
        if self.damage and job.digests is not None:
            wrong = {pool: digests + 1 for pool, digests in job.digests.items()}
            job = msgspec.structs.replace(job, digests=wrong)
        first: Future[None] = Future()
        self._delay(gate, first)
        self.inner.submit(msgspec.structs.replace(job, after=(*job.after, first)))

    def _delay(self, gate: LayerGate, first: Future[None]) -> None:
        asked = [threading.Event() for _ in range(gate.layers)]
        opens, waits = gate.open, gate.wait_layer

        def begin() -> None:
            if not first.done():
                first.set_result(None)

        def open_late(layer: int, event: Any = None) -> None:
            opens(layer, event)
            if layer + 1 < gate.layers:
                asked[layer + 1].wait(self.patience)

        def ask(layer: int, timeout: float | None = None) -> None:
            if not asked[layer].is_set() and not gate.settled:
                self.awaited += 1
                asked[layer].set()
                self.loop.call_soon_threadsafe(begin)
            waits(layer, timeout)

        gate.open = open_late  # type: ignore[method-assign]  # the seam of this test's engine
        gate.wait_layer = ask  # type: ignore[method-assign]  # the seam of this test's engine
        self.loop.call_later(self.patience, begin)

    def fence(self, event: Any) -> None:
        self.inner.fence(event)

    def cancel(self, number: int) -> bool:
        return self.inner.cancel(number)

    def close(self) -> None:
        self.inner.close()


__all__ = ("PATIENCE_S", "RUBBISH", "JustInTime")
