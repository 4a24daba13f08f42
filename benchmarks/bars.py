"""The bars: how our medians must stand to those of SGLang's cache with its Rust core.

All are ratios of two medians of one run on one machine, except the memory of a node, which is in
bytes. ``foundation`` is what a release must meet, ``goal`` where the project wants to be.
"""

from __future__ import annotations

from typing import NamedTuple


class Bar(NamedTuple):
    """Upper bounds, both inclusive."""

    foundation: float
    goal: float


TREE_CALLS = ("match+indices", "insert", "lock", "unlock")
EVICTIONS = ("evict[1page]", "evict[1k]", "evict_for_alloc")

WIDE = Bar(0.9, 0.5)
DEEP = Bar(1.5, 0.8)
HYBRID = Bar(0.8, 0.4)
"""The same calls with a second component: Full and SWA, or Full and Mamba."""
HYBRIDS = ("full_swa", "full_mamba")
EVICT = Bar(0.3, 0.1)
EVICT_GROWTH = Bar(1.5, 1.1)
"""Evicting one page among 100,000 nodes over the same among 1,000, ours against ours."""
NODE_BYTES = Bar(2400, 1700)
"""Bytes a node of 64 tokens, page 16, Full only."""


def bar_for(workload: str, op: str, components: str = "full") -> Bar | None:
    """Return the bar of one reported row, or None where the row has none."""
    if op.startswith(EVICTIONS):
        return EVICT if workload == "evict_pressure_n10000" and components == "full" else None
    name = op.partition("[")[0]
    # Rows of matches end in how they went: match+indices_hit, _partial, _miss.
    if name.partition("_")[0] not in TREE_CALLS:
        return None
    if components != "full":
        return HYBRID if components in HYBRIDS else None
    if workload in ("multi_turn", "fan_out", "long_doc"):
        return WIDE
    return DEEP if workload == "deep_chain" else None


__all__ = ("EVICT_GROWTH", "NODE_BYTES", "Bar", "bar_for")
