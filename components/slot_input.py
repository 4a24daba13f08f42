"""Slot indices as callers give them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from radixtide.components.api import SlotInput, Slots
from radixtide.configs.errors import SlotError


def as_slots(indices: SlotInput | Sequence[int]) -> Slots:
    """Return `indices` as an int64 array, without a copy where it is one.

    Raises:
        SlotError: not a tensor or array of int64 with one dimension on the CPU.
    """
    if isinstance(indices, torch.Tensor):
        if not indices.is_cpu:
            raise SlotError(f"slot indices are on {indices.device}; pass indices.cpu()")
        if indices.dtype != torch.int64:
            raise SlotError(f"slot indices must be int64, not {indices.dtype}")
        return _one_dimensional(indices.numpy())
    if not isinstance(indices, np.ndarray):
        raise SlotError(
            f"slot indices must be an int64 tensor or array, not {type(indices).__name__}"
        )
    if indices.dtype != np.int64:
        raise SlotError(f"slot indices must be int64, not {indices.dtype}")
    return _one_dimensional(indices)


def _one_dimensional(indices: Slots) -> Slots:
    if indices.ndim != 1:
        raise SlotError(f"slot indices must have one dimension, not shape {indices.shape}")
    return indices
