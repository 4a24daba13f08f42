"""What the rows of a forward pass must be, so that a slip of the scheduler is told, not computed.

A pass that wrote a slot twice, or read one past its pool, would answer something; so each row is
looked at before anything is computed. Cost: some microseconds a row and thousand slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from radixtide.serving.errors import InvalidRow
from radixtide.serving.models import LoadedModel
from radixtide.serving.rows import Row


def check_rows(rows: Sequence[Row], model: LoadedModel, sizes: Mapping[str, int]) -> None:
    """Refuse rows that contradict themselves, `model`, the pools of `sizes` slots, or each other.

    Raises:
        InvalidRow: says which row, and what is wrong with it.
    """
    for row in rows:
        _check_tokens(row, model)
        _check_slots(row, "slots", row.slots, sizes["full"])
        _check_window(row, model, sizes.get("swa"))
        _check_state(row, sizes.get("mamba"))
    _check_apart(rows, "slots", [row.slots[row.start :] for row in rows])
    if "swa" in sizes:
        written = [
            row.window_slots[-len(row.tokens) :] for row in rows if row.window_slots is not None
        ]
        _check_apart(rows, "window slots", written)
    if "mamba" in sizes:
        states = [one for row in rows for one in (row.state, row.keep_state) if one is not None]
        _check_apart(rows, "states", [np.array(states, dtype=np.int64)])


def _check_tokens(row: Row, model: LoadedModel) -> None:
    _check_array(row, "tokens", row.tokens)
    count, whole = len(row.tokens), len(row.slots)
    if count < 1:
        raise _wrong(row, "has no tokens to compute; a row has one at least")
    if whole < count:
        raise _wrong(
            row, f"has {whole} slots for {count} tokens; it needs one for each, and those before"
        )
    if whole > model.max_context:
        raise _wrong(row, f"has {whole} tokens, and the model takes {model.max_context} at most")
    low, high = int(row.tokens.min()), int(row.tokens.max())
    if low < 0 or high >= model.vocabulary:
        token = low if low < 0 else high
        raise _wrong(row, f"has token {token}, which is not in [0, {model.vocabulary})")


def _check_slots(row: Row, name: str, slots: Any, size: int) -> None:
    _check_array(row, name, slots)
    low, high = int(slots.min()), int(slots.max())
    if low < 0 or high >= size:
        raise _wrong(row, f"{name}: {low if low < 0 else high} is not in [0, {size})")


def _check_window(row: Row, model: LoadedModel, size: int | None) -> None:
    if size is None:
        return
    if row.window_slots is None:
        raise _wrong(row, "has no window_slots, and the model has layers with a sliding window")
    assert model.window is not None
    latest = max(row.start - model.window + 1, 0)
    if not 0 <= row.window_start <= latest:
        raise _wrong(
            row, f"window_start is {row.window_start}, and the window before it begins at {latest}"
        )
    wanted = len(row.slots) - row.window_start
    if len(row.window_slots) != wanted:
        raise _wrong(
            row,
            f"has {len(row.window_slots)} window_slots, and from window_start on {wanted} tokens",
        )
    _check_slots(row, "window_slots", row.window_slots, size)


def _check_state(row: Row, size: int | None) -> None:
    if size is None:
        if row.keep_state is not None:
            raise _wrong(row, "asks to keep a state, and the model has none")
        return
    if row.state is None:
        raise _wrong(row, "has no state, and the model has layers with a recurrence")
    for name, slot in (("state", row.state), ("keep_state", row.keep_state)):
        if slot is not None and not 0 <= slot < size:
            raise _wrong(row, f"{name} {slot} is not in [0, {size})")


def _check_apart(rows: Sequence[Row], what: str, written: Sequence[Any]) -> None:
    """No slot is written twice in a pass."""
    every = np.concatenate(written) if len(written) else np.empty(0, dtype=np.int64)
    slots, counts = np.unique(every, return_counts=True)
    if len(slots) < len(every):
        twice = int(slots[counts > 1][0])
        names = [row.rid for row, one in zip(rows, written, strict=False) if twice in one]
        whose = f" ({', '.join(repr(name) for name in names)})" if len(names) > 1 else ""
        raise InvalidRow(f"{what}: {twice} is written twice in one pass{whose}")


def _check_array(row: Row, name: str, array: Any) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != np.int64 or array.ndim != 1:
        shape = getattr(array, "shape", None)
        kind = getattr(array, "dtype", type(array).__name__)
        raise _wrong(row, f"{name} must be int64 of one dimension, not {kind} of shape {shape}")


def _wrong(row: Row, what: str) -> InvalidRow:
    return InvalidRow(f"row of request {row.rid!r}: {what}")
