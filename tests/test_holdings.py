"""What a request holds: whole pages, room in the last one, a front that goes to the tree."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radixtide.tiers import Holding


def pages(first: int, count: int) -> np.ndarray:
    return np.arange(first * 4, (first + count) * 4, dtype=np.int64)


def test_a_new_holding_is_empty() -> None:
    holding = Holding(3)
    assert (holding.holder, holding.total, holding.used, holding.room) == (3, 0, 0, 0)
    assert holding.slots().tolist() == []
    assert holding.use_room(4).tolist() == []


def test_the_rest_of_the_last_page_is_room() -> None:
    holding = Holding(3)
    holding.extend(pages(5, 2), 5)
    assert (holding.total, holding.used, holding.room) == (8, 5, 3)
    assert holding.use_room(2).tolist() == [25, 26]
    assert holding.use_room(9).tolist() == [27]
    assert holding.room == 0
    assert holding.slots().tolist() == list(range(20, 28))


def test_room_is_found_in_the_last_of_several_parts() -> None:
    holding = Holding(3)
    holding.extend(pages(9, 1), 4)
    holding.extend(pages(2, 2), 6)
    assert holding.use_room(2).tolist() == [14, 15]


def test_room_given_out_is_a_copy() -> None:
    holding = Holding(3)
    holding.extend(pages(0, 1), 1)
    holding.use_room(2)[:] = 99
    assert holding.slots().tolist() == [0, 1, 2, 3]


def test_slots_are_added_only_when_no_room_is_left() -> None:
    holding = Holding(3)
    holding.extend(pages(0, 1), 3)
    with pytest.raises(AssertionError):
        holding.extend(pages(1, 1), 1)


@pytest.mark.parametrize("drop", [0, 4, 8, 12, 16, 20])
def test_a_dropped_front_may_end_in_any_part(drop: int) -> None:
    holding = Holding(3)
    holding.extend(pages(0, 2), 8)
    holding.extend(pages(10, 3), 10)
    holding.drop_front(drop)
    expected = [*range(8), *range(40, 52)][drop:]
    assert holding.slots().tolist() == expected
    assert holding.total == len(expected)
    assert holding.used == max(18 - drop, 0)
    room = 2 if drop < 20 else 0
    assert holding.room == room
    assert holding.use_room(5).tolist() == [50, 51][:room]


@pytest.mark.parametrize(("used", "kept"), [(0, 0), (1, 4), (4, 4), (5, 8), (12, 12)])
def test_shrinking_gives_back_whole_pages(used: int, kept: int) -> None:
    holding = Holding(3)
    holding.extend(pages(0, 1), 4)
    holding.extend(pages(7, 2), 8)
    every = holding.slots().tolist()
    rest = holding.shrink(used, 4)
    assert rest.tolist() == every[kept:]
    assert holding.slots().tolist() == every[:kept]
    assert (holding.total, holding.used, holding.room) == (kept, used, kept - used)


@pytest.mark.parametrize("count", [0, 3, 4, 6, 8])
def test_the_first_slots_come_in_order(count: int) -> None:
    holding = Holding(3)
    holding.extend(pages(3, 1), 4)
    holding.extend(pages(1, 1), 4)
    assert holding.slots(count).tolist() == [12, 13, 14, 15, 4, 5, 6, 7][:count]


def test_any_sequence_of_changes_gives_what_a_plain_list_gives() -> None:
    dice = random.Random(1)
    holding = Holding(3)
    plain: list[int] = []
    used = 0
    fresh = 0
    for _ in range(2000):
        action = dice.randrange(4)
        if action == 0:
            got = holding.use_room(wanted := dice.randrange(6))
            assert got.tolist() == plain[used : used + wanted]
            used += len(got)
        elif action == 1 and used == len(plain):
            count = dice.randrange(1, 4)
            asked = dice.randint(4 * count - 3, 4 * count)
            holding.extend(pages(fresh, count), asked)
            plain += pages(fresh, count).tolist()
            fresh += count
            used += asked
        elif action == 2:
            front = dice.randint(0, used // 4) * 4
            holding.drop_front(front)
            del plain[:front]
            used -= front
        else:
            used = dice.randint(0, used)
            kept = -(-used // 4) * 4
            assert holding.shrink(used, 4).tolist() == plain[kept:]
            del plain[kept:]
        assert holding.slots().tolist() == plain
        assert (holding.total, holding.used) == (len(plain), used)
