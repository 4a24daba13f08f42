"""Rubbish in every slot of a device pool at the moment at which it is given back.

Who reads a slot that is no longer his mostly finds what he left there, and nobody sees the slip.
With this he finds rubbish, at once and each time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pytest
import torch

from radixtide import UnifiedRadixCache
from radixtide.tiers.slots import Pages, SlotAllocator

RUBBISH: Final = 40.0
"""A number like any other, so that what is masked stays masked: zero times it is zero."""


@contextmanager
def poisoned(cache: UnifiedRadixCache) -> Iterator[None]:
    """Overwrite slots of an open cache's device pools as they become free, and those free now."""
    books: dict[int, Any] = {
        id(one.allocator): cache.memory[one.name]
        for one in cache._components
        if hasattr(one, "allocator") and cache.memory[one.name] is not None
    }
    original = SlotAllocator._push

    def fill(self: SlotAllocator, pages: Pages) -> None:
        memory = books.get(id(self))
        if memory is None or not len(pages):
            return
        size = self.page_size
        slots = (np.asarray(pages)[:, None] * size + np.arange(size)).reshape(-1)
        index = torch.from_numpy(slots)
        for layer in memory.parts():
            for part in layer:
                part[index] = RUBBISH

    def push(self: SlotAllocator, pages: Pages) -> None:
        original(self, pages)
        fill(self, pages)

    for one in cache._components:
        if id(one.allocator) in books:
            fill(one.allocator, one.allocator.free_pages())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SlotAllocator, "_push", push)
        yield


__all__ = ("RUBBISH", "poisoned")
