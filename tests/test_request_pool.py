"""The table of slot indices: rows are taken, given back, and never shared."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from radixtide import InvalidInput, OutOfSlots
from radixtide.tiers import ReqToTokenPool


def test_rows_are_handed_out_once_each() -> None:
    pool = ReqToTokenPool(3, 8)
    assert pool.rows.shape == (3, 8)
    assert pool.rows.dtype == torch.int64
    assert [pool.alloc() for _ in range(3)] == [0, 1, 2]
    assert pool.available == 0
    assert all(pool.is_taken(row) for row in range(3))


def test_a_row_that_was_given_back_is_handed_out_again() -> None:
    pool = ReqToTokenPool(3, 8)
    for _ in range(3):
        pool.alloc()
    pool.free(1)
    assert (pool.available, pool.is_taken(1)) == (1, False)
    assert pool.alloc() == 1


def test_a_table_without_a_free_row_says_how_many_there_are() -> None:
    pool = ReqToTokenPool(1, 8)
    pool.alloc()
    with pytest.raises(OutOfSlots, match=r"requests: wanted 1, free 0, .* held 1 of 1") as caught:
        pool.alloc()
    assert caught.value.pools["requests"]["size"] == 1


@pytest.mark.parametrize("row", [-1, 1, 2, 3, 100])
def test_a_row_that_is_not_taken_can_not_be_given_back(row: int) -> None:
    pool = ReqToTokenPool(3, 8)
    pool.alloc()
    for call in (pool.free, pool.check):
        with pytest.raises(InvalidInput, match=f"row {row} of the request table is not taken"):
            call(row)
    assert not pool.is_taken(row)
    assert pool.available == 2


def test_a_row_is_given_back_once() -> None:
    pool = ReqToTokenPool(3, 8)
    row = pool.alloc()
    pool.free(row)
    with pytest.raises(InvalidInput):
        pool.free(row)
    assert pool.available == 3


def test_threads_that_take_the_last_rows_get_one_each_or_hear_that_there_is_none() -> None:
    pool = ReqToTokenPool(40, 8)

    def take(_: int) -> int | None:
        try:
            return pool.alloc()
        except OutOfSlots:
            return None

    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(take, range(100)))
    assert sorted(row for row in taken if row is not None) == list(range(40))
    assert taken.count(None) == 60
