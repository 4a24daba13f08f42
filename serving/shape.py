"""What the scheduler has to know of a cache: pages, windows and states; and where chunks end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from radixtide.components.api import ComponentType
from radixtide.configs.errors import ConfigError
from radixtide.configs.schema import CacheConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """A cache's pages, windows and states.

    ``page``: tokens a page. ``full_size``, ``window_size``, ``state_size``: slots of the pools.
    ``window``: tokens that sliding attention sees, None where the model has none; ``reach``: that
    in whole pages, 0 where none. ``states``: slots of states that a request has, 0 where the model
    has none; ``grid``: a state can be kept at multiples of it, 0 likewise. ``has_ring``: states are
    kept in the slots of a ring; else the working state is what is kept. ``loads``, ``fetches``:
    whether there is a host tier, and a storage.
    """

    page: int
    full_size: int
    window: int | None
    reach: int
    window_size: int
    states: int
    grid: int
    has_ring: bool
    state_size: int
    loads: bool
    fetches: bool

    @classmethod
    def of(cls, config: CacheConfig) -> Self:
        """Return what a config comes to.

        Raises:
            ConfigError: a pool is too small for even one request, or units are no tokens.
        """
        page = config.page_size
        names = config.components
        pools = config.pools
        if config.bigram:
            raise ConfigError("bigram: the engine has no draft model; its cache must be of tokens")
        window, reach, window_size = None, 0, 0
        if ComponentType.SWA in names and pools.swa is not None and config.window is not None:
            window = config.window
            reach = -(-window // page) * page
            window_size = pools.swa.size // page * page
            # The window of its prompt, which is locked, that of its answer, and room to grow.
            least = 2 * (reach + page)
            if window_size < least:
                raise ConfigError(
                    f"pools.swa.size: {pools.swa.size} slots are too few: one request may need "
                    f"{least} (two windows in whole pages, and two pages)"
                )
        states, grid, ring, state_size = 0, 0, False, 0
        if ComponentType.MAMBA in names and pools.mamba is not None:
            ring = pools.mamba.extra_buffer
            states = 3 if ring else 1
            grid = math.lcm(pools.mamba.chunk, page) if ring else page
            state_size = pools.mamba.size
            if state_size < states + 1:
                raise ConfigError(
                    f"pools.mamba.size: {state_size} states are too few: a request has {states}, "
                    "and the cache needs one more to keep any"
                )
        return cls(
            page,
            pools.full.size // page * page,
            window,
            reach,
            window_size,
            states,
            grid,
            ring,
            state_size,
            config.host is not None,
            config.host is not None and config.storage is not None,
        )

    def pages_up(self, tokens: int) -> int:
        """Return `tokens` rounded up to whole pages."""
        return -(-tokens // self.page) * self.page

    @property
    def chunk_max(self) -> int:
        """Most tokens of one request in one pass: its window and they must fit into its pool."""
        if self.window is None:
            return self.full_size
        return self.window_size - self.reach - self.page

    def window_start(self, length: int) -> int:
        """Return the first position that a token at position `length` sees through its window."""
        assert self.window is not None
        return max(length - self.window + 1, 0)


def chunk_end(start: int, total: int, most: int, grid: int, marks: Iterable[int] = ()) -> int:
    """Return where a chunk ends that begins at `start`: at most `most` tokens on, and at `total`.

    Where states are kept (at multiples of `grid`, 0: nowhere), it ends at such a multiple if there
    is one within its reach: the first of `marks` (lengths at which a state is worth keeping), else
    the last one before `total`. At `total` itself a state is of no use to the same prompt again, of
    which the last token is always computed.

    >>> chunk_end(0, 100, 512, 0), chunk_end(0, 128, 512, 64), chunk_end(64, 128, 512, 64)
    (100, 64, 128)
    """
    end = min(total, start + most)
    if not grid:
        return end
    for mark in sorted(marks):
        if start < mark <= end and not mark % grid:
            return mark
    last = min(end, total - 1)
    last -= last % grid
    return last if last > start else end


__all__ = ("Shape", "chunk_end")
