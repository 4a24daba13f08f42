"""Durations by name of operation, and what the process uses."""

from __future__ import annotations

import ctypes
import gc
import platform
import resource
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

STATM: Final = Path("/proc/self/statm")


class Recorder:
    """Collects nanoseconds per operation; :meth:`rows` sums them up."""

    def __init__(self) -> None:
        self._samples: dict[str, array[int]] = {}
        self._tokens: dict[str, int] = {}

    def add(self, op: str, tag: str | None, ns: int, tokens: int) -> None:
        """Record one call of `ns` nanoseconds over `tokens` tokens; a `tag` of None drops it."""
        if tag is None:
            return
        name = f"{op}[{tag}]" if tag else op
        if name not in self._samples:
            self._samples[name] = array("q")
            self._tokens[name] = 0
        self._samples[name].append(ns)
        self._tokens[name] += tokens

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield op, n, tokens (mean of a call) and p50, p99 and mean in microseconds."""
        for name in sorted(self._samples):
            us = np.frombuffer(self._samples[name], dtype=np.int64) / 1e3
            yield {
                "op": name,
                "n": len(us),
                "tokens": round(self._tokens[name] / len(us)),
                "p50_us": round(float(np.percentile(us, 50)), 2),
                "p99_us": round(float(np.percentile(us, 99)), 2),
                "mean_us": round(float(us.mean()), 2),
            }


def resident_bytes() -> int:
    """Return the resident memory of this process, freed heap given back first.

    Read from ``/proc`` where there is one; elsewhere the peak so far is the best that the standard
    library can tell.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, others do not
    if trim is not None:
        trim(0)
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def settle(mode: str) -> None:
    """Collect garbage, then set the collector as asked: ``default``, ``freeze`` or ``off``."""
    gc.collect()
    if mode == "freeze":
        gc.freeze()
    elif mode == "off":
        gc.disable()


__all__ = ("Recorder", "resident_bytes", "settle")
