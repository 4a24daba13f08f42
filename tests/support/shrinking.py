"""Shrink a failing walk: leave out steps as long as it still fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter


def shrunk(
    numbers: Sequence[int], fails: Callable[[Sequence[int]], bool], seconds: float
) -> list[int]:
    """Return as few of `numbers` as can be found in `seconds` that still fail, in their order."""
    deadline = perf_counter() + seconds
    kept = list(numbers)
    size = len(kept) // 2
    while size:
        at = 0
        while at < len(kept) and perf_counter() < deadline:
            fewer = kept[:at] + kept[at + size :]
            if fails(fewer):
                kept = fewer
            else:
                at += size
        size //= 2
    return kept
