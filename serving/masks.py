"""Which of the keys that a forward pass reads each of its tokens may see. True: it may."""

from __future__ import annotations

import torch


def causal(start: int, count: int, device: torch.device) -> torch.Tensor:
    """Return the mask of `count` tokens from position `start` on, over the keys of positions 0 on.

    bool, shape (1, 1, count, start + count).
    """
    keys = torch.arange(start + count, device=device)
    return (keys <= keys[start:, None])[None, None]


def windowed(start: int, count: int, first: int, window: int, device: torch.device) -> torch.Tensor:
    """Return the same over the keys of positions `first` on; a token sees the last `window` keys.

    bool, shape (1, 1, count, start + count - first).
    """
    keys = torch.arange(first, start + count, device=device)
    queries = torch.arange(start, start + count, device=device)[:, None]
    return ((keys <= queries) & (keys > queries - window))[None, None]


def padded(lengths: torch.Tensor, longest: int) -> torch.Tensor:
    """Return the mask of one token a row over its first `lengths` keys; the others fill the row up.

    bool, shape (len(lengths), 1, 1, longest).
    """
    keys = torch.arange(longest, device=lengths.device)
    return (keys < lengths[:, None])[:, None, None]
