"""How many hits a cache of every size would have, from one reading of a trace.

For a cache that gives up the least recently used block first, whatever it holds at one size it also
holds at every larger one. So one list, the most recently used block first, stands for the caches of
all sizes at once: a block that stands at place d is a hit wherever there is room for d blocks or
more (R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9,
1970). A prompt's blocks are touched last to first, so that a block is never more recent than the
one before it; the hits of a prompt are then always its leading blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from radixtide.cli.replay_source import TraceRequest

_CHUNK: Final = 512
"""Stamps whose live ones are counted together."""

Places = npt.NDArray[np.int64]


class Recency:
    """Blocks by how recently they were used. ``len()``: how many different ones there were.

    Each use of a block gets a stamp, and the stamp of the use before dies; a block's place is how
    many live stamps are not older than its own. Touching n blocks costs O(n), and a look at the
    counts of all chunks: O(distinct blocks / 512), both vectorised.
    """

    def __init__(self) -> None:
        self._stamp: dict[int, int] = {}
        self._next = 0
        self._live = np.zeros(64 * _CHUNK, dtype=np.uint8)
        self._counts = np.zeros(64, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._stamp)

    def touch(self, blocks: Sequence[int]) -> Places:
        """Return each block's place, from 1, and 0 for a new one; then make them the most recent.

        `blocks`, of one prompt, are all different; the first becomes the most recent.
        """
        if self._next + len(blocks) > len(self._live):
            self._renumber(len(blocks))
        stamps = np.array([self._stamp.get(block, -1) for block in blocks], dtype=np.int64)
        known = stamps[stamps >= 0]
        places = np.zeros(len(blocks), dtype=np.int64)
        if len(known):
            places[stamps >= 0] = self._places(known)
            self._live[known] = 0
            np.subtract.at(self._counts, known // _CHUNK, 1)
        first = self._next
        self._next += len(blocks)
        fresh = np.arange(first, self._next)
        self._live[fresh] = 1
        np.add.at(self._counts, fresh // _CHUNK, 1)
        for at, block in enumerate(reversed(blocks)):
            self._stamp[block] = first + at
        return places

    def _places(self, stamps: Places) -> Places:
        """Return how many live stamps there are from each of `stamps` on."""
        behind = np.cumsum(self._counts[::-1])[::-1]
        chunks, inside = stamps // _CHUNK, stamps % _CHUNK
        rows = self._live.reshape(-1, _CHUNK)[chunks]
        before = np.where(np.arange(_CHUNK) < inside[:, None], rows, 0).sum(axis=1, dtype=np.int64)
        places: Places = behind[chunks] - before
        return places

    def _renumber(self, more: int) -> None:
        """Give all blocks new stamps without gaps, and room for at least as many again."""
        order = sorted(self._stamp, key=self._stamp.__getitem__)
        self._stamp = {block: at for at, block in enumerate(order)}
        self._next = len(order)
        chunks = -(-2 * (len(order) + more) // _CHUNK) + 64
        self._live = np.zeros(chunks * _CHUNK, dtype=np.uint8)
        self._live[: self._next] = 1
        self._counts = self._live.reshape(-1, _CHUNK).sum(axis=1, dtype=np.int64)


class HitCurve(msgspec.Struct, frozen=True):
    """Hits of a trace by the size of the cache, in blocks.

    ``blocks``: blocks of all prompts. ``distinct``: different ones, each with all before it.
    ``within``: int64, hits of a cache of so many blocks, shape (deepest hit + 1,).
    ``requests``: prompts. ``block``: tokens of a block.
    """

    blocks: int
    distinct: int
    within: Places
    requests: int
    block: int

    @property
    def endless(self) -> int:
        """Hits of a cache that never gives anything up."""
        return int(self.within[-1])

    def hits(self, capacity: int) -> int:
        """Return the hits of a cache of `capacity` blocks."""
        return int(self.within[min(max(capacity, 0), len(self.within) - 1)])

    def ratio(self, capacity: int) -> float:
        """Return the hits of a cache of `capacity` blocks for each block that was asked for."""
        return self.hits(capacity) / self.blocks if self.blocks else 0.0

    def capacity_for(self, hits: float) -> int:
        """Return the fewest blocks with which a cache has at least so many hits."""
        return int(np.searchsorted(self.within, hits, side="left"))


def hit_curve(requests: Iterable[TraceRequest], block: int) -> HitCurve:
    """Read `requests` to the end and return the hits of caches of all sizes, exactly.

    Each prompt is looked up, then all its blocks are kept: what ``radixtide replay --sequential``
    does, one block a page. Cost O(blocks) and one entry of memory a different block.
    """
    recency = Recency()
    found = np.zeros(1024, dtype=np.int64)
    count = blocks = 0
    for request in requests:
        chain, chains = 0, []
        for one in request.ids:
            # An id may name a block's content alone: a block is known by what precedes it too.
            chain = hash((chain, one))
            chains.append(chain)
        places = recency.touch(chains)
        deepest = int(places.max(initial=0))
        if deepest >= len(found):
            found = np.concatenate((found, np.zeros(max(deepest, len(found)), dtype=np.int64)))
        np.add.at(found, places[places > 0], 1)
        count += 1
        blocks += len(chains)
    last = int(np.flatnonzero(found).max(initial=0))
    return HitCurve(blocks, len(recency), np.cumsum(found[: last + 1]), count, block)


__all__ = ("HitCurve", "Recency", "hit_curve")
