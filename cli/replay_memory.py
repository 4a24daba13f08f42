"""How the memory of this process goes while a long replay runs: samples, and their slope."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Final

import msgspec

STATM: Final = Path("/proc/self/statm")
SAMPLES_MAX: Final = 512
"""Samples that are kept; when there are more, every other one goes."""
WARM_UP: Final = 0.25
"""Share of the time in which pools, tables and allocators grow to their size: it is left out."""


class MemorySample(msgspec.Struct, frozen=True):
    """Resident memory at a time: ``at_s`` since the start, ``rss_bytes``."""

    at_s: float
    rss_bytes: int


class Memory:
    """Samples of this process's resident memory, as many as fit in a constant."""

    def __init__(self) -> None:
        self.samples: list[MemorySample] = []
        self._every = 1
        self._seen = 0

    def sample(self, at_s: float, rss_bytes: int | None = None) -> None:
        """Add what the memory is `at_s` seconds after the start."""
        if self._seen % self._every == 0:
            rss = resident_bytes() if rss_bytes is None else rss_bytes
            self.samples.append(MemorySample(at_s, rss))
            if len(self.samples) > SAMPLES_MAX:
                self.samples = self.samples[::2]
                self._every *= 2
        self._seen += 1

    @property
    def slope(self) -> float:
        """Bytes a minute: the straight line nearest to all samples but those of the warm-up.

        0.0 where there are fewer than two of these.
        """
        if not self.samples:
            return 0.0
        begin = self.samples[-1].at_s * WARM_UP
        points = [(one.at_s, one.rss_bytes) for one in self.samples if one.at_s >= begin]
        count = len(points)
        mean_at = sum(at for at, _ in points) / count
        mean_rss = sum(rss for _, rss in points) / count
        spread = sum((at - mean_at) ** 2 for at, _ in points)
        if not spread:
            return 0.0
        together = sum((at - mean_at) * (rss - mean_rss) for at, rss in points)
        return together / spread * 60.0


def resident_bytes() -> int:
    """Return the resident memory of this process; where the system does not tell, its peak."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


__all__ = ("Memory", "MemorySample", "resident_bytes")
