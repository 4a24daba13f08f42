"""The request as scheduler and cache share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from radixtide.tree.key import RadixKey, TokenIds, token_bytes

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

    def forget(self) -> None:
        """Clear what the cache wrote: the request holds nothing any more."""
        self.prefix_indices = None
        self.last_node = None
        self.cache_protected_len = 0
        self.lock = None
        self.counted_len = 0

    def tokens(self) -> npt.NDArray[np.int64]:
        """Return input and output tokens, int64, shape (N,). Cost O(N). Raises InvalidKey."""
        return self.segment(0, len(self.origin_input_ids) + len(self.output_ids))

    def segment(self, start: int, end: int) -> npt.NDArray[np.int64]:
        """Return tokens ``[start, end)`` of input and output. Cost O(end - start).

        Raises:
            InvalidKey: a token is no integer in [0, 2**63).
        """
        split = len(self.origin_input_ids)
        raw = b""
        if start < split:
            raw = token_bytes(self.origin_input_ids[start : min(end, split)])
        if end > split:
            raw += token_bytes(self.output_ids[max(start - split, 0) : end - split])
        return np.frombuffer(raw, dtype=np.int64)

    def key(self, length: int | None = None, is_bigram: bool = False) -> RadixKey:
        """Return the key of the first `length` tokens (None: all)."""
        whole = len(self.origin_input_ids) + len(self.output_ids)
        tokens = self.segment(0, whole if length is None else min(length, whole))
        return RadixKey(tokens, self.extra_key, self.cache_salt, is_bigram)
