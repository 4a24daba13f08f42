"""Pools with a simulated engine over them, for tests that are written for engines with threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from radixtide.simulation.decisions import Faults
from radixtide.simulation.dice import dice
from radixtide.simulation.engine import OnCopy, SimulatedEngine
from radixtide.simulation.loop import SimulatedLoop
from radixtide.tiers.copy_engine import CopyResult
from support.copies import Bed

LONG_S: Final = 10.0
"""Nothing here takes so long in virtual time; who waits longer waits for ever."""


class SimulatedBed(Bed):
    """A bed whose time passes while somebody waits for an answer."""

    engine: SimulatedEngine

    def __init__(
        self,
        *,
        seed: int = 0,
        verify: bool = True,
        faults: Faults | None = None,
        note: OnCopy | None = None,
        **more: Any,
    ) -> None:
        self.loop = SimulatedLoop(seed)
        super().__init__(
            lambda pools: SimulatedEngine(
                self.loop, pools, dice(seed, "copies"), faults, note, verify
            ),
            **more,
        )

    def answer(self) -> CopyResult:
        self.pass_until(lambda: not self.answers.empty())
        return self.answers.get_nowait()

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def pass_until(self, there: Callable[[], bool]) -> None:
        """Let time pass until something is there, which must be."""
        end = self.loop.time() + LONG_S
        while not there():
            assert self.loop.time() < end
            self.pass_time(1e-4)
