"""What must be in the bytes of the pools: a mark for every prefix, and the books of who wrote what.

The mark of a unit depends on the namespace and on all tokens up to it, so what is read under one
key is right only if it was written for it. From the mark follow the numbers in each layer and part
of a pool.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from radixtide.actors.life import CacheLife
from radixtide.components.api import Slots
from radixtide.tiers.slots import ANONYMOUS
from radixtide.tree.key import RadixKey

MarkArray = npt.NDArray[np.uint64]
"""One mark a unit, shape (n,). 0 stands for "not known"."""

Space = tuple[str | None, str | None]
"""A namespace, as callers name it: how the cache frames it is not believed."""

FULL: Final = "full"
SWA: Final = "swa"
MAMBA: Final = "mamba"

_REMEMBERED: Final = 1 << 14
_ODD: Final = tuple(
    np.uint64(number)
    for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0xD6E8FEB86659FD93)
)


def _mixed(numbers: MarkArray) -> MarkArray:
    """Scatter numbers over all 64 bits; different ones stay different."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * _ODD[1]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _ODD[2]
    return mixed ^ (mixed >> np.uint64(31))


@lru_cache(maxsize=_REMEMBERED)
def marks_of(raw: bytes, space: Space, bigram: bool = False) -> MarkArray:
    """Return the mark of each unit of a key of tokens `raw` (int64); not to be written to.

    Cost O(units) the first time; simulated prompts come again and again.
    """
    tokens = np.frombuffer(raw, dtype=np.uint64)
    # The sum over all tokens up to one, each times a power of its place, wraps at 64 bits.
    powers = np.cumprod(np.full(len(tokens), _ODD[0], dtype=np.uint64), dtype=np.uint64)
    sums = np.cumsum(_mixed(tokens + _ODD[3]) * powers, dtype=np.uint64)
    # The state of a pair depends on both of its tokens.
    salt = np.uint64(xxhash.xxh3_64_intdigest(repr(space).encode()))
    marks = _mixed((sums[1:] if bigram else sums) + salt)
    marks.flags.writeable = False
    return marks


def key_marks(key: RadixKey) -> MarkArray:
    """Return the mark of each unit of a key; not to be written to."""
    return marks_of(key.raw, (key.extra_key, key.cache_salt), key.is_bigram)


class PoolBytes:
    """Writes and reads the rows of one device pool of float32.

    A float32 holds whole numbers below 2**24 exactly, so numbers are compared exactly.
    """

    def __init__(self, component: str, memory: Any) -> None:
        parts: list[list[torch.Tensor]] = memory.parts()
        self.tensors: list[npt.NDArray[np.float32]] = []
        self.layers: list[tuple[int, int]] = []
        self.tensor_columns: list[tuple[int, int]] = []
        places: list[MarkArray] = []
        width = 0
        for layer, tensors in enumerate(parts):
            begin = width
            for part, tensor in enumerate(tensors):
                rows = tensor.detach().reshape(tensor.shape[0], -1).numpy()
                assert rows.dtype == np.float32, "marks are written to pools of float32"
                salt = np.uint64(xxhash.xxh3_64_intdigest(f"{component} {layer} {part}".encode()))
                places.append(np.arange(rows.shape[1], dtype=np.uint64) * _ODD[0] + salt)
                self.tensors.append(rows)
                self.tensor_columns.append((width, width + rows.shape[1]))
                width += rows.shape[1]
            self.layers.append((begin, width))
        self.places = np.concatenate(places)

    def rows(self, marks: MarkArray) -> npt.NDArray[np.float32]:
        """Return what the rows of `marks` are, all layers side by side, shape (n, width)."""
        return (_mixed(marks[:, None] + self.places) >> np.uint64(40)).astype(np.float32)

    def write(self, slots: Slots, marks: MarkArray) -> None:
        """Write the rows of `marks` to `slots`, in all layers."""
        rows = self.rows(marks)
        for tensor, (begin, end) in zip(self.tensors, self.tensor_columns, strict=True):
            tensor[slots] = rows[:, begin:end]

    def wrong(self, slots: Slots, marks: MarkArray, layer: int | None = None) -> list[int]:
        """Return the places of `slots` that do not have the rows of `marks` (in `layer`, or all).

        Where the mark is not known nothing is compared.
        """
        found = np.concatenate([tensor[slots] for tensor in self.tensors], axis=1)
        same = found == self.rows(marks)
        if layer is not None:
            begin, end = self.layers[layer]
            same = same[:, begin:end]
        good = same.all(axis=1) | (marks == 0)
        return [] if good.all() else np.flatnonzero(~good).tolist()

    def page_bytes(self, marks: MarkArray, page: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of whole pages as the host has them, uint8 (pages, bytes a page)."""
        rows = self.rows(marks)
        pages = len(marks) // page
        pieces = [rows[:, begin:end].reshape(pages, -1) for begin, end in self.tensor_columns]
        return np.ascontiguousarray(np.concatenate(pieces, axis=1)).view(np.uint8)


class Content:
    """The bytes of one cache, and who holds and wrote which slot.

    ``written``: per component the mark that a holder wrote to each slot, 0 where that is not known.
    ``holder``: per component who holds each slot: 0 for nobody that is known. ``windowed_slots``:
    Full slots behind which there was one of the window when they were written.
    """

    def __init__(self, cache: CacheLife) -> None:
        self.cache = cache
        self.pools: dict[str, PoolBytes] = {}
        self.written: dict[str, MarkArray] = {}
        self.holder: dict[str, npt.NDArray[np.int64]] = {}
        self.names: list[str] = [""]
        self._numbers: dict[str, int] = {}
        self.stamps = 0
        self.windowed_slots = np.zeros(0, dtype=bool)
        self._parts: dict[str, Any] = {}
        for part in cache._components:  # reading past the mailboxes is what an oracle is for
            size = part.allocator.size
            self.written[part.name] = np.zeros(size, dtype=np.uint64)
            self.holder[part.name] = np.zeros(size, dtype=np.int64)
            memory = cache.memory[part.name]
            if memory is not None:
                self.pools[part.name] = PoolBytes(part.name, memory)
            self._parts[part.name] = part
            if part.name == FULL:
                self.windowed_slots = np.zeros(size, dtype=bool)

    def number(self, who: str) -> int:
        """Return the number of a holder."""
        found = self._numbers.get(who)
        if found is None:
            found = self._numbers[who] = len(self.names)
            self.names.append(who)
        return found

    def pairs(self, slots: Slots) -> Slots:
        """Return the window's slots behind Full `slots`, -1 where there is none."""
        # Books and pairs are others after a reset.
        found: Slots = self._parts[SWA].pairing.slots_of(slots)
        return found

    @property
    def windowed(self) -> bool:
        """Whether the cache has a window."""
        return SWA in self.written

    # -- what holders have ------------------------------------------------------------------

    def grant(self, component: str, slots: Slots, who: str) -> list[str]:
        """Note that `who` holds `slots`; return what is wrong with that."""
        holder = self.holder[component]
        size = len(holder)
        if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) < size:
            return [f"{component} slots {slots.tolist()} granted to {who}, of a pool of {size}"]
        wrong: list[str] = []
        if len(np.unique(slots)) != len(slots):
            wrong.append(f"{component} slots {slots.tolist()} were granted to {who} twice at once")
        number = self.number(who)
        taken = (holder[slots] != 0) & (holder[slots] != number)
        if taken.any():
            whose = sorted({self.names[other] for other in holder[slots[taken]]})
            wrong.append(
                f"{component} slots {slots[taken].tolist()} were granted to {who}, and are held by "
                f"{', '.join(whose)}"
            )
        books = self._parts[component].allocator
        owners = books.owners()[slots // books.page_size]
        if (owners < ANONYMOUS).any():
            own = slots[owners < ANONYMOUS].tolist()
            wrong.append(
                f"{component} slots {own} were granted to {who}, and are the tree's or free"
            )
        fresh = slots[holder[slots] != number]
        self.written[component][fresh] = 0
        holder[slots] = number
        return wrong

    def let_go(self, component: str, slots: Slots) -> None:
        """Note that nobody answers for `slots` any more."""
        self.holder[component][slots] = 0
        self.written[component][slots] = 0
        if component == FULL and self.windowed:
            pairs = self.pairs(slots)
            self.written[SWA][pairs[pairs >= 0]] = 0
            self.windowed_slots[slots] = False

    def write(self, slots: Slots, marks: MarkArray, windows: bool) -> None:
        """Write marks to Full `slots` and, with `windows`, to the window's slots behind them."""
        self.pools[FULL].write(slots, marks)
        self._note(FULL, slots, marks)
        if not self.windowed:
            return
        # What the slots had under an earlier holder says nothing of this one.
        self.windowed_slots[slots] = False
        if windows:
            pairs = self.pairs(slots)
            there = pairs >= 0
            self.windowed_slots[slots] = there
            if there.any():
                self.pools[SWA].write(pairs[there], marks[there])

    def write_state(self, slot: int, mark: MarkArray) -> None:
        """Write the state of a length to a slot."""
        slots = np.array([slot], dtype=np.int64)
        self.pools[MAMBA].write(slots, mark)
        self._note(MAMBA, slots, mark)

    def stamp(self, component: str, slots: Slots) -> None:
        """Write to held slots what nothing else has."""
        begin = 2**60 + self.stamps
        self.stamps += len(slots)
        marks = np.arange(begin, begin + len(slots), dtype=np.uint64)
        self.pools[component].write(slots, marks)
        self._note(component, slots, marks)

    def _note(self, component: str, slots: Slots, marks: MarkArray) -> None:
        held = self.holder[component][slots] != 0
        self.written[component][slots[held]] = marks[held]

    def held_wrong(self) -> list[str]:
        """Return what was written to held slots by somebody else than their holder."""
        wrong: list[str] = []
        for component, written in self.written.items():
            slots = np.flatnonzero(written)
            if component == SWA or not len(slots):
                continue
            bad = self.pools[component].wrong(slots, written[slots])
            if bad:
                whose = sorted({self.names[one] for one in self.holder[component][slots[bad]]})
                wrong.append(
                    f"{component} slots {slots[bad].tolist()} of {', '.join(whose)} were "
                    "overwritten by somebody else"
                )
        return wrong

    # -- what keys must have ------------------------------------------------------------------

    def check(
        self,
        what: str,
        component: str,
        slots: Slots,
        marks: MarkArray,
        layer: int | None = None,
    ) -> list[str]:
        """Return what is wrong in the bytes of `slots`, which must have the rows of `marks`."""
        if not len(slots):
            return []
        size = len(self.written[component])
        if not 0 <= int(slots.min()) <= int(slots.max()) < size:
            return [f"{what}: {component} slots {slots.tolist()} are not in a pool of {size}"]
        bad = self.pools[component].wrong(slots, marks, layer)
        if not bad:
            return []
        where = f"{bad[:8]} of {len(slots)}, in slots {slots[bad[:8]].tolist()}"
        return [f"{what}: wrong bytes of {component} at {where}"]

    def check_window(self, what: str, slots: Slots, marks: MarkArray, window: int) -> list[str]:
        """Return what is wrong in the window before the end of `slots`, which must be whole."""
        last = slots[-window:]
        pairs = self.pairs(last)
        if (pairs < 0).any():
            holes = np.flatnonzero(pairs < 0) + len(slots) - len(last)
            return [f"{what}: the window has holes at {holes.tolist()} of {len(slots)}"]
        return self.check(what, SWA, pairs, marks[-window:])

    def check_pairs(self, what: str, slots: Slots, marks: MarkArray) -> list[str]:
        """Return what is wrong in the window's slots behind Full `slots`, where there are any."""
        pairs = self.pairs(slots)
        there = pairs >= 0
        return self.check(what, SWA, pairs[there], marks[there])
