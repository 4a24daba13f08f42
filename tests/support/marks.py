"""Marks in the bytes of all pools: what the state of every token and of every length must be.

The mark of a unit depends on the namespace and on all tokens up to it, so what is read under one
key is right only if it was written for it. From the mark follow the numbers in each layer and part
of a pool. Everything is computed for whole keys at once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from radixtide import UnifiedRadixCache
from radixtide.components.api import Slots
from radixtide.tree.key import RadixKey

MarkArray = npt.NDArray[np.uint64]
"""One mark a unit, shape (n,)."""

_ODD: Final = tuple(
    np.uint64(number)
    for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)
)


def _mixed(numbers: MarkArray) -> MarkArray:
    """Scatter numbers over all 64 bits; different ones stay different."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * _ODD[1]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _ODD[2]
    return mixed ^ (mixed >> np.uint64(31))


def marks_of(raw: bytes, namespace: bytes, bigram: bool = False) -> MarkArray:
    """Return the mark of each unit of a key: `raw` are its tokens, int64."""
    tokens = np.frombuffer(raw, dtype=np.uint64)
    # The sum over all tokens up to one, each times a power of its place, wraps at 64 bits.
    powers = np.cumprod(np.full(len(tokens), _ODD[0], dtype=np.uint64), dtype=np.uint64)
    sums = np.cumsum(_mixed(tokens + _ODD[3]) * powers, dtype=np.uint64)
    # The state of a pair depends on both of its tokens.
    return _mixed((sums[1:] if bigram else sums) + np.uint64(xxhash.xxh3_64_intdigest(namespace)))


def key_marks(key: RadixKey) -> MarkArray:
    """Return the mark of each unit of a key."""
    return marks_of(key.raw, key.namespace, key.is_bigram)


class Marks:
    """Writes and checks the device pools of one cache; they hold float32.

    A float32 holds whole numbers below 2**24 exactly, so numbers are compared exactly.
    """

    def __init__(self, cache: UnifiedRadixCache) -> None:
        self.page_size = cache.page_size
        self.parts: dict[str, list[list[torch.Tensor]]] = {}
        for name, memory in cache.memory.items():
            assert memory is not None, f"{name} has no bytes"
            self.parts[name] = memory.parts()
            assert {part.dtype for layer in self.parts[name] for part in layer} == {torch.float32}

    def page_of(self, component: str) -> int:
        """Return the slots of a page: a state is a page of its own."""
        return 1 if component == "mamba" else self.page_size

    def numbers(
        self, component: str, layer: int, part: int, marks: MarkArray
    ) -> npt.NDArray[np.float32]:
        """Return what the rows of `marks` are in one tensor of a pool, shape (n, row's size)."""
        width = self.parts[component][layer][part][0].numel()
        salt = np.uint64(xxhash.xxh3_64_intdigest(f"{component} {layer} {part}".encode()))
        places = np.arange(width, dtype=np.uint64) * _ODD[0] + salt
        return (_mixed(marks[:, None] + places) >> np.uint64(40)).astype(np.float32)

    def write(self, component: str, slots: Slots | torch.Tensor, marks: MarkArray) -> None:
        """Write the rows of `marks` to `slots`, in all layers."""
        index = torch.as_tensor(slots)
        assert len(index) == len(marks)
        for at, layer in enumerate(self.parts[component]):
            for which, part in enumerate(layer):
                rows = self.numbers(component, at, which, marks)
                part[index] = torch.from_numpy(rows).reshape(len(marks), *part.shape[1:])

    def scribble(self, component: str, slots: Slots | torch.Tensor) -> None:
        """Overwrite `slots` as their new owner would at any time."""
        index = torch.as_tensor(slots)
        for layer in self.parts[component]:
            for part in layer:
                part[index] = -7.0

    def wrong(
        self,
        component: str,
        slots: Slots | torch.Tensor,
        marks: MarkArray,
        layers: range | None = None,
    ) -> list[int]:
        """Return the places of `slots` that do not have the rows of `marks` in all of `layers`."""
        index = torch.as_tensor(slots)
        assert len(index) == len(marks)
        good = np.ones(len(marks), dtype=bool)
        for at in layers or range(len(self.parts[component])):
            for which, part in enumerate(self.parts[component][at]):
                rows = part[index].reshape(len(marks), part[0].numel()).numpy()
                good &= (rows == self.numbers(component, at, which, marks)).all(axis=1)
        return np.flatnonzero(~good).tolist()

    def check(
        self,
        component: str,
        slots: Slots | torch.Tensor,
        marks: MarkArray,
        layers: range | None = None,
    ) -> None:
        """Assert that `slots` have the rows of `marks`."""
        wrong = self.wrong(component, slots, marks, layers)
        assert not wrong, f"{component}: wrong bytes at {wrong[:9]} of {len(marks)}"

    def page_bytes(self, component: str, marks: MarkArray) -> npt.NDArray[np.uint8]:
        """Return the bytes of whole pages in canonical order, uint8 (pages, bytes of a page)."""
        page = self.page_of(component)
        assert not len(marks) % page
        pieces: list[Any] = [
            self.numbers(component, at, which, marks).reshape(len(marks) // page, -1)
            for at, layer in enumerate(self.parts[component])
            for which in range(len(layer))
        ]
        return np.ascontiguousarray(np.concatenate(pieces, axis=1)).view(np.uint8)
