"""The request as scheduler and cache share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from radixtide.tree.key import RadixKey, TokenIds

if TYPE_CHECKING:
    pass


class Request(msgspec.Struct, kw_only=False, dict=False):
    """One generation request.

    The scheduler writes ``origin_input_ids``, ``output_ids`` and ``kv_committed_len``; the cache
    writes the fields from ``prefix_indices`` on, when a call with this request succeeds. ``rid``
    must be unique among the requests that hold something.

    ``kv_committed_len``: how many leading tokens have their KV written. None means all of
    ``origin_input_ids + output_ids`` that slots were allocated for.
    ``req_pool_idx``: the request's row in ``cache.req_to_token_pool``, or None: the cache then
    keeps the request's slots in its ledger only.
    ``counted_len``: up to where this request's use of cached nodes is counted as hits.
    ``cache_protected_len``: leading units whose slots belong to the tree, under ``lock``.
    """

    rid: str
    origin_input_ids: TokenIds
    output_ids: list[int] = []
    extra_key: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    req_pool_idx: int | None = None
    kv_committed_len: int | None = None
    prefix_indices: torch.Tensor | None = None
    last_node: Any = None  # NodeHandle | None; a forward reference msgspec need not resolve
    cache_protected_len: int = 0
    lock: Any = None  # LockReceipt | None
    mamba_pool_idx: int | None = None
    counted_len: int = 0

    def tokens(self) -> npt.NDArray[np.int64]:
        """Return input and output tokens, int64, shape (N,). Cost O(N)."""
        head = np.asarray(self.origin_input_ids, dtype=np.int64)
        if not self.output_ids:
            return head
        return np.concatenate((head, np.asarray(self.output_ids, dtype=np.int64)))

    def segment(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return tokens ``[start, end)`` of input and output. Cost O(end - start)."""
        head = self.origin_input_ids
        split = len(head)
        if end <= split:
            return np.asarray(head[start:end], dtype=np.int64)
        tail = np.asarray(self.output_ids[max(start - split, 0) : end - split], dtype=np.int64)
        if start >= split:
            return tail
        return np.concatenate((np.asarray(head[start:], dtype=np.int64), tail))

    def key(self, length: int | None = None, is_bigram: bool = False) -> RadixKey:
        """Return the key of the first `length` tokens (None: all)."""
        tokens = self.tokens()
        if length is not None:
            tokens = tokens[:length]
        return RadixKey(tokens, self.extra_key, self.cache_salt, is_bigram)
