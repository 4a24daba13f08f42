"""Host memory behind a device pool: pages of the same state in CPU memory.

Two layouts:

* ``layer_first``: a tensor (slots, *row) for each part of each layer, as on the device. A copy of
  pages that follow one another is one long copy a part.
* ``page_first``: one uint8 tensor (pages, page_bytes). All bytes of a page lie together, which
  suits a storage that reads and writes pages.

In both the *canonical order* of a page's bytes is layer, part, token, row: what digests are taken
of and what storage keeps, so the layouts can read each other's pages.
"""

from __future__ import annotations

from typing import Final, Literal, cast

import numpy as np
import numpy.typing as npt
import torch

from radixtide.configs.errors import InvalidInput, SlotError
from radixtide.tiers.digests import Bytes, Digests, PageDigests, digest_of
from radixtide.tiers.host_memory import host_memory
from radixtide.tiers.page_rows import Parts, as_run, numpy_rows, rows_of
from radixtide.tiers.slots import Pages

Layout = Literal["layer_first", "page_first"]
LAYOUTS: Final = ("layer_first", "page_first")

ALIGNMENT: Final = 64
GROUP_BYTES: Final = 2**19
"""Bytes that one step of reading or digesting handles: they stay in the cache."""


class HostPool:
    """Host memory of `slots` slots for the state of a device pool.

    All memory is touched when it is made, so that lack of it shows at the start and first copies
    are as fast as later ones; about 0.3 s a GiB. A pool has no lock: who reads or writes a page
    must own its slots.

    Args:
        parts: the device pool's tensors, per layer, each (device slots, *row).
        slots: slots of the host pool; a positive multiple of `page_size`.
        page_size: slots a page.
        layout: ``layer_first`` or ``page_first``.
        pinned: page-lock the memory where CUDA is there; elsewhere it makes no difference.

    Raises:
        InvalidInput: no part, one that is not contiguous, a wrong number of slots, or no such
            layout.
        MemoryError: there is not so much memory.
        ConfigError: CUDA refuses to pin it.
    """

    def __init__(
        self,
        parts: Parts,
        slots: int,
        page_size: int,
        layout: str = "layer_first",
        pinned: bool = True,
    ) -> None:
        if layout not in LAYOUTS:
            raise InvalidInput(f"layout of a host pool must be one of {LAYOUTS}, not {layout!r}")
        if page_size < 1 or slots < page_size or slots % page_size:
            raise InvalidInput(
                f"a host pool of {slots} slots is not a positive number of pages of {page_size}"
            )
        if not parts or not all(parts):
            raise InvalidInput("a host pool needs at least one layer, and a part in each layer")
        self.layout = cast("Layout", layout)
        self.page_size = page_size
        self.slots = slots
        self.pages = slots // page_size
        self.layers = len(parts)
        self.pinned = pinned and torch.cuda.is_available()
        # pieces[layer][part]: bytes that a page has in that part.
        self.pieces: list[list[int]] = [
            [rows_of(part, page_size).shape[1] for part in layer] for layer in parts
        ]
        self.page_bytes = sum(sum(layer) for layer in self.pieces)
        # rows[layer][part]: uint8 (pages, piece), views of the memory.
        self.rows: list[list[torch.Tensor]]
        # tensors[layer][part]: (slots, *row), layer_first only; buffer: (pages, page_bytes), else.
        self.tensors: list[list[torch.Tensor]] = []
        self.buffer: torch.Tensor | None = None
        if layout == "layer_first":
            self.tensors = self._tensors(parts)
            self.rows = [[rows_of(part, page_size) for part in layer] for layer in self.tensors]
        else:
            self.buffer = host_memory(self.nbytes, self.pinned).view(self.pages, self.page_bytes)
            self.rows = []
            at = 0
            for layer in self.pieces:
                views = []
                for piece in layer:
                    views.append(self.buffer[:, at : at + piece])
                    at += piece
                self.rows.append(views)
        # The same for NumPy: copies on the CPU go through it.
        self.arrays: list[list[Bytes]] = [
            [numpy_rows(view) for view in layer] for layer in self.rows
        ]

    def _tensors(self, parts: Parts) -> list[list[torch.Tensor]]:
        """Make tensors like `parts`, of this pool's slots, in one piece of memory."""
        # Each begins on a cache line.
        rooms = [
            [-(-self.pages * piece // ALIGNMENT) * ALIGNMENT for piece in layer]
            for layer in self.pieces
        ]
        memory = host_memory(sum(map(sum, rooms)), self.pinned)
        tensors: list[list[torch.Tensor]] = []
        at = 0
        for layer, pieces, room in zip(parts, self.pieces, rooms, strict=True):
            tensors.append([])
            for part, piece, step in zip(layer, pieces, room, strict=True):
                flat = memory[at : at + self.pages * piece].view(part.dtype)
                tensors[-1].append(flat.view(self.slots, *part.shape[1:]))
                at += step
        return tensors

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the pool takes."""
        return self.pages * self.page_bytes

    def page_view(self, page: int) -> Bytes:
        """Return the bytes of a page, uint8 (page_bytes,): the memory itself, page_first only.

        Raises:
            InvalidInput: the layout is layer_first, where a page's bytes do not lie together.
            SlotError: there is no such page.
        """
        if self.buffer is None:
            raise InvalidInput("only a page_first host pool has the bytes of a page in one piece")
        if not 0 <= page < self.pages:
            raise SlotError(f"host page {page} is not in [0, {self.pages})")
        view: Bytes = self.buffer[page].numpy()
        return view

    def read_pages(self, pages: Pages, out: Bytes) -> None:
        """Copy `pages` into `out`, uint8 (len(pages), page_bytes), each in canonical order.

        Raises:
            SlotError: a page is not in the pool; nothing is copied.
            InvalidInput: shape or dtype of `out` do not fit; nothing is copied.
        """
        self._check(pages, out)
        for start, stop in self._groups(len(pages)):
            index = as_run(pages[start:stop])
            at = 0
            for layer in self.arrays:
                for rows in layer:
                    out[start:stop, at : at + rows.shape[1]] = rows[index]
                    at += rows.shape[1]

    def write_pages(self, pages: Pages, data: Bytes) -> None:
        """Copy `data`, uint8 (len(pages), page_bytes) in canonical order, into `pages`.

        Raises:
            SlotError: a page is not in the pool; nothing is copied.
            InvalidInput: shape or dtype of `data` do not fit; nothing is copied.
        """
        self._check(pages, data)
        for start, stop in self._groups(len(pages)):
            index = as_run(pages[start:stop])
            at = 0
            for layer in self.arrays:
                for rows in layer:
                    rows[index] = data[start:stop, at : at + rows.shape[1]]
                    at += rows.shape[1]

    def digests(self, pages: Pages) -> Digests:
        """Return the digests of what lies in `pages` now, uint64, one a page.

        Costs one pass over their bytes.

        Raises:
            SlotError: a page is not in the pool.
        """
        self._check(pages, None)
        if self.buffer is not None:
            found = [digest_of(self.page_view(page)) for page in pages.tolist()]
            return np.array(found, dtype=np.uint64)
        state = PageDigests(len(pages))
        for update, page in zip(state.updates, pages.tolist(), strict=True):
            for layer in self.arrays:
                for rows in layer:
                    update(rows[page])
        return state.values()

    def _groups(self, count: int) -> list[tuple[int, int]]:
        step = max(1, GROUP_BYTES // self.page_bytes)
        return [(start, min(start + step, count)) for start in range(0, count, step)]

    def _check(self, pages: Pages, data: npt.NDArray[np.uint8] | None) -> None:
        if len(pages) and (int(pages.min()) < 0 or int(pages.max()) >= self.pages):
            raise SlotError(f"host pages {pages.tolist()[:8]}... are not all in [0, {self.pages})")
        if data is not None and (
            data.dtype != np.uint8 or data.shape != (len(pages), self.page_bytes)
        ):
            raise InvalidInput(
                f"bytes of {len(pages)} pages must be uint8 ({len(pages)}, {self.page_bytes}), "
                f"not {data.dtype} {data.shape}"
            )
