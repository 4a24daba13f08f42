"""The request as scheduler and cache share it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from radixtide.configs.errors import InvalidRequest
from radixtide.tree.key import RadixKey, TokenIds, token_bytes


class Request(msgspec.Struct, kw_only=False, dict=False):
    """One generation request.

    The scheduler writes ``origin_input_ids``, ``output_ids`` and ``kv_committed_len``; the cache
    writes the fields from ``prefix_indices`` on, when a call with this request succeeds. ``rid``
    must be unique among the requests that hold something.

    ``kv_committed_len``: how many leading tokens have their KV written. None means all of
    ``origin_input_ids + output_ids`` that slots were allocated for.
    ``req_pool_idx``: the request's row in ``cache.req_to_token_pool``, or None: the cache then
    keeps the request's slots in its ledger only.
    ``mamba_pool_idx``: slot of the state that the model writes, where there is such a pool.
    ``mamba_ping_pong``: two slots that keep the states at the last two tracking points, where the
    pool has an extra buffer; ``mamba_next_track``: which of them is written next. The engine calls
    :meth:`note_state` when it has; ``mamba_last_track_seqlen``, ``mamba_prev_track_seqlen``: the
    lengths at which the newest and the one before are valid.
    ``swa_evicted_seqlen``: leading units whose sliding-window slots were given back already.
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
    mamba_ping_pong: list[int] | None = None
    mamba_next_track: int = 0
    mamba_last_track_seqlen: int | None = None
    mamba_prev_track_seqlen: int | None = None
    swa_evicted_seqlen: int = 0
    counted_len: int = 0

    def forget_match(self) -> None:
        """Clear what a match with a lock wrote."""
        self.prefix_indices = None
        self.last_node = None
        self.cache_protected_len = 0
        self.lock = None
        self.counted_len = 0

    def forget(self) -> None:
        """Clear what the cache wrote: the request holds nothing any more."""
        self.forget_match()
        self.mamba_pool_idx = None
        self.mamba_ping_pong = None
        self.mamba_next_track = 0
        self.mamba_last_track_seqlen = None
        self.mamba_prev_track_seqlen = None
        self.swa_evicted_seqlen = 0

    def note_state(self, length: int) -> None:
        """Note that the model has written its state at `length` to the slot that was next.

        Raises:
            InvalidRequest: the request has no ring of slots, or `length` is not beyond the last.
        """
        if self.mamba_ping_pong is None:
            raise InvalidRequest(
                f"request {self.rid!r} has no mamba_ping_pong slots; allocate three states with "
                "req= (pools.mamba.extra_buffer)"
            )
        last = self.mamba_last_track_seqlen
        if last is not None and length <= last:
            raise InvalidRequest(
                f"request {self.rid!r}: a state at {length} is not beyond the last, at {last}"
            )
        self.mamba_prev_track_seqlen = last
        self.mamba_last_track_seqlen = length
        self.mamba_next_track ^= 1

    def take_states(self, slots: Sequence[int]) -> None:
        """Note state slots that the request was given: the working one first, then the ring."""
        left = [slot for slot in slots if slot != self.mamba_pool_idx]
        if left and self.mamba_pool_idx is None:
            self.mamba_pool_idx = left.pop(0)
        if left:
            self.mamba_ping_pong = [*(self.mamba_ping_pong or []), *left][:2]

    def lose_states(self, slots: Sequence[int]) -> None:
        """Note that state slots of the request were given back."""
        if self.mamba_pool_idx in slots:
            self.mamba_pool_idx = None
        ring = [slot for slot in self.mamba_ping_pong or [] if slot not in slots]
        self.mamba_ping_pong = ring or None

    def evicted(self) -> int:
        """Return the depth below which the slots of windows were given back already."""
        return self.swa_evicted_seqlen

    def note_evicted(self, depth: int) -> None:
        """Note that the slots of windows were given back up to `depth`."""
        self.swa_evicted_seqlen = depth

    def swap_state(self, given: int, fresh: int | None) -> None:
        """Note that slot `given` is the tree's now, and that `fresh` took its place."""
        if fresh is not None and self.mamba_ping_pong is not None:
            self.mamba_ping_pong = [
                fresh if slot == given else slot for slot in self.mamba_ping_pong
            ]
            self.mamba_last_track_seqlen = self.mamba_prev_track_seqlen = None

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
