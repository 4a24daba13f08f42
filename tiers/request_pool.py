"""The table of slot indices: one row a running request, read by attention kernels."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from radixtide.configs.errors import InvalidInput, OutOfSlots


class ReqToTokenPool:
    """``rows``: int64 tensor on the CPU, shape (max_requests, max_context).

    A position that nobody wrote is -1. A scheduler takes a row for a request and sets
    ``req.req_pool_idx``; from then on the cache writes the row, and frees it when the request
    finishes or is aborted.
    """

    def __init__(self, max_requests: int, max_context: int) -> None:
        self.max_requests = max_requests
        self.max_context = max_context
        self.rows = torch.zeros((max_requests, max_context), dtype=torch.int64)
        # The same memory. Written through NumPy: a copy of some kilobytes is not worth the threads
        # that torch would wake for it.
        self.array: npt.NDArray[np.int64] = self.rows.numpy()
        self._free = list(range(max_requests - 1, -1, -1))
        self._taken = [False] * max_requests

    @property
    def available(self) -> int:
        """Rows that are free."""
        return len(self._free)

    def alloc(self) -> int:
        """Take a row, clear it, and return its index. Raises OutOfSlots when all are taken."""
        try:
            # One step of the interpreter: two threads never get the same row.
            row = self._free.pop()
        except IndexError:
            raise OutOfSlots(
                {
                    "requests": {
                        "wanted": 1,
                        "free": 0,
                        "evictable": 0,
                        "protected": 0,
                        "held": self.max_requests,
                        "size": self.max_requests,
                    }
                }
            ) from None
        self._taken[row] = True
        # What an earlier request left must not be taken for slots of this one.
        self.array[row] = -1
        return row

    def free(self, row: int) -> None:
        """Give a row back. Raises InvalidInput when it is not taken."""
        self.check(row)
        self._taken[row] = False
        self._free.append(row)

    def check(self, row: int) -> None:
        """Raise InvalidInput unless `row` is taken."""
        if not 0 <= row < self.max_requests or not self._taken[row]:
            raise InvalidInput(
                f"row {row} of the request table is not taken; rows come from alloc()"
            )

    def is_taken(self, row: int) -> bool:
        """Return whether `row` is taken."""
        return 0 <= row < self.max_requests and self._taken[row]
