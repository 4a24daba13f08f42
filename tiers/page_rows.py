"""Pages of a pool as rows of bytes: the form in which copies see every tensor.

A part of a pool is a tensor (slots, *row). A page is `page_size` slots one after another, so a part
is also (pages, piece) bytes, where a *piece* is what one page has in one part: `page_size` rows.
Both ends of a copy agree on the pieces whatever the kind of state, its dtype and its shape.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from radixtide.configs.errors import InvalidInput, SlotError
from radixtide.tiers.slots import EMPTY, Pages, Slots

Parts = Sequence[Sequence[torch.Tensor]]
"""Per layer its parts, tensors (slots, *row)."""

PageIndex = Pages | slice
"""Pages in order; a slice where they are one ascending run."""


def rows_of(part: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return `part` (slots, *row) as uint8 (pages, piece), a view of the same memory.

    Slots after the last whole page are left out.

    Raises:
        InvalidInput: the memory of `part` is not contiguous, or it has no bytes.
    """
    if not part.is_contiguous() or part.ndim < 1 or not part.numel():
        raise InvalidInput(
            f"a part of a pool must be contiguous memory of shape (slots, ...), not a tensor of "
            f"shape {tuple(part.shape)} and strides {part.stride()}"
        )
    pages = part.shape[0] // page_size
    flat = part.view(part.shape[0], -1).view(torch.uint8)
    return flat[: pages * page_size].view(pages, page_size * flat.shape[1])


def whole_pages(slots: Slots, page_size: int, pages: int, name: str) -> Pages:
    """Return the pages of `slots`, which must be whole pages in order, of a pool of `pages`.

    Raises:
        SlotError: something else, or a slot that the pool has not.
    """
    if not len(slots):
        return EMPTY
    if len(slots) % page_size:
        raise SlotError(f"{name}: {len(slots)} slots are not whole pages of {page_size}")
    grid = slots.reshape(-1, page_size)
    heads = grid[:, 0]
    if (
        int(heads.min()) < 0
        or int(heads.max()) >= pages * page_size
        or (heads % page_size).any()
        or (grid != heads[:, None] + np.arange(page_size, dtype=np.int64)).any()
    ):
        raise SlotError(
            f"{name}: slots are not whole pages of {page_size} within {pages * page_size} slots"
        )
    return heads // page_size


def as_run(pages: Pages) -> PageIndex:
    """Return `pages` as a slice where each is one more than the one before."""
    count = len(pages)
    if not count:
        return slice(0, 0)
    first = pages.item(0)
    if pages.item(-1) - first == count - 1 and bool((np.diff(pages) == 1).all()):
        return slice(first, first + count)
    return pages


def runs_of(pages: Pages) -> list[tuple[int, int, int]]:
    """Return the ascending runs of `pages`: position of the first, its page, pages."""
    if not len(pages):
        return []
    starts = np.concatenate(([0], np.flatnonzero(np.diff(pages) != 1) + 1))
    lengths = np.diff(np.append(starts, len(pages)))
    return list(zip(starts.tolist(), pages[starts].tolist(), lengths.tolist(), strict=True))


def numpy_rows(rows: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return rows on the CPU as a NumPy array over the same memory."""
    array: npt.NDArray[np.uint8] = rows.numpy()
    return array
