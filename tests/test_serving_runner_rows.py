"""Rows that are wrong are refused, by name, before anything is computed or written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from radixtide.serving.errors import InvalidRow
from radixtide.serving.rows import Row
from support.serving_rows import STATES, TOKENS, Table, loaded, random_tokens


def row(table: Table, **changes: Any) -> Row:
    """Return a row of 20 tokens behind 30 others, with some fields changed."""
    text = table.deal(random_tokens(3, 50))
    text.computed = 30
    return table.row(text, 20, **changes)


def slots(*numbers: int, length: int = 50) -> np.ndarray[Any, Any]:
    """Return that many slots, those of `numbers` last."""
    return np.array([*range(100, 100 + length - len(numbers)), *numbers], dtype=np.int64)


WRONG: list[tuple[str, Callable[[], dict[str, Any]], str]] = [
    ("random:llama", lambda: {"tokens": slots(length=0)}, "has no tokens to compute"),
    ("random:llama", lambda: {"tokens": np.arange(51)}, "has 50 slots for 51 tokens"),
    ("random:llama", lambda: {"tokens": [1, 2]}, "tokens must be int64 of one dimension, not list"),
    ("random:llama", lambda: {"tokens": np.zeros(2, np.int32)}, "not int32 of shape"),
    ("random:llama", lambda: {"tokens": np.zeros((1, 2), np.int64)}, r"of shape \(1, 2\)"),
    ("random:llama", lambda: {"tokens": np.array([3, -1])}, r"has token -1, which is not in \[0, "),
    (
        "random:llama",
        lambda: {"tokens": np.array([260])},
        r"has token 260, which is not in \[0, 260",
    ),
    (
        "random:llama",
        lambda: {"slots": slots(TOKENS)},
        rf"slots: {TOKENS} is not in \[0, {TOKENS}\)",
    ),
    ("random:llama", lambda: {"slots": slots(-1)}, r"slots: -1 is not in"),
    ("random:llama", lambda: {"slots": slots(7, 7)}, "slots: 7 is written twice in one pass"),
    ("random:llama", lambda: {"slots": slots(length=8193) % 512}, "the model takes 8192 at most"),
    ("random:llama", lambda: {"keep_state": 1}, "asks to keep a state, and the model has none"),
    ("random:gemma3", lambda: {"window_slots": None}, "has no window_slots"),
    ("random:gemma3", lambda: {"window_start": 8}, "window_start is 8, and the window .* at 7"),
    ("random:gemma3", lambda: {"window_start": -1}, "window_start is -1"),
    (
        "random:gemma3",
        lambda: {"window_start": 4},
        "has 48 window_slots, and from window_start on 46",
    ),
    (
        "random:gemma3",
        lambda: {"window_slots": slots(TOKENS, length=48)},
        f"window_slots: {TOKENS}",
    ),
    (
        "random:gemma3",
        lambda: {"window_slots": slots(9, 9, length=48)},
        "window slots: 9 is written",
    ),
    ("random:lfm2", lambda: {"state": None}, "has no state"),
    ("random:lfm2", lambda: {"state": STATES}, rf"state {STATES} is not in \[0, {STATES}\)"),
    ("random:lfm2", lambda: {"keep_state": -1}, "keep_state -1 is not in"),
    ("random:lfm2", lambda: {"state": 3, "keep_state": 3}, "states: 3 is written twice"),
]


@pytest.mark.parametrize(("spec", "changes", "message"), WRONG)
def test_a_row_that_is_wrong_is_refused_and_nothing_written(
    spec: str, changes: Callable[[], dict[str, Any]], message: str
) -> None:
    table = Table(loaded(spec))
    good = row(table)
    with pytest.raises(InvalidRow, match=message):
        table.forward(good, row(table, **changes()))
    assert all(bool(part.isnan().all()) for part in table.parts())


def test_two_rows_that_write_the_same_slot_are_both_named() -> None:
    table = Table(loaded("random:llama"))
    first = row(table)
    second = row(table, slots=first.slots)
    with pytest.raises(InvalidRow, match=r"written twice in one pass \('text-0', 'text-1'\)"):
        table.forward(first, second)


def test_requests_may_share_what_they_only_read() -> None:
    table = Table(loaded("random:llama"))
    first, second = row(table), row(table)
    for part in table.parts():
        part.zero_()
    shared = np.concatenate((first.slots[:30], second.slots[30:]))
    outcomes = table.forward(first, dataclasses.replace(second, slots=shared))
    assert outcomes[0].logits is not None
    assert outcomes[1].logits is not None
    assert torch.equal(outcomes[0].logits, outcomes[1].logits)
