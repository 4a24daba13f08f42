"""A simulated store as a rig, for tests that are written for real stores."""

from __future__ import annotations

import asyncio
from typing import Any

from radixtide.simulation.decisions import Faults
from radixtide.simulation.dice import dice
from radixtide.simulation.store import Disk, OnStored, SimulatedStore
from radixtide.tiers.storage import PageKey
from support.stores import Rig


class SimulatedRig(Rig):
    """A disk; stores on it take the time of the running loop."""

    kind = "simulated"

    def __init__(self, seed: int = 0, max_bytes: int = 0) -> None:
        self.disk = Disk(max_bytes)
        self._seed = seed
        self._made = 0

    def store(
        self, *, faults: Faults | None = None, note: OnStored | None = None, **_: Any
    ) -> SimulatedStore:
        self._made += 1
        luck = dice(self._seed, f"storage/{self._made}")
        return SimulatedStore(asyncio.get_running_loop(), self.disk, luck, faults, note)

    def read(self, key: PageKey) -> bytes | None:
        return self.disk.frames.get(key.name)

    def write(self, key: PageKey, frame: bytes) -> None:
        self.disk.frames[key.name] = frame
