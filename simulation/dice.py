"""Seeded randomness, one stream for each purpose.

Streams are apart so that one part of a run draws the same numbers whatever another part draws:
a script that is made shorter meets the same faults, as far as that can be.
"""

from __future__ import annotations

from random import Random


def dice(seed: int, stream: str) -> Random:
    """Return the random numbers of one purpose: the same on every machine and Python."""
    # A text is hashed with SHA-512 by `random`, whatever PYTHONHASHSEED says.
    return Random(f"{seed}/{stream}")  # noqa: S311  # nothing here is secret
