"""The recency list against an ordinary list."""

from __future__ import annotations

import random

import pytest

from radixtide.tree import Link, LruList


def entries(count: int) -> list[Link]:
    return [Link() for _ in range(count)]


def test_an_empty_list_has_no_ends() -> None:
    lru: LruList[Link] = LruList()
    assert (len(lru), lru.oldest, lru.newest, list(lru)) == (0, None, None, [])


def test_what_is_appended_is_the_newest() -> None:
    lru: LruList[Link] = LruList()
    one, two, three = entries(3)
    for entry in (one, two, three):
        assert entry not in lru
        lru.append(entry)
        assert entry in lru
        assert lru.newest is entry
    assert lru.oldest is one
    assert list(lru) == [one, two, three]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_entry_can_be_taken_out_anywhere(at: int) -> None:
    lru: LruList[Link] = LruList()
    made = entries(3)
    for entry in made:
        lru.append(entry)
    gone = made.pop(at)
    lru.remove(gone)
    assert gone not in lru
    assert list(lru) == made
    lru.append(gone)
    assert list(lru) == [*made, gone]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_what_is_promoted_becomes_the_newest(at: int) -> None:
    lru: LruList[Link] = LruList()
    made = entries(3)
    for entry in made:
        lru.append(entry)
    used = made.pop(at)
    lru.promote(used)
    assert list(lru) == [*made, used]
    assert len(lru) == 3


def test_the_entry_just_yielded_may_be_removed() -> None:
    lru: LruList[Link] = LruList()
    made = entries(4)
    for entry in made:
        lru.append(entry)
    for entry in lru:
        lru.remove(entry)
    assert len(lru) == 0
    assert lru.oldest is None


def test_an_entry_is_in_one_list_at_a_time() -> None:
    first: LruList[Link] = LruList()
    second: LruList[Link] = LruList()
    (entry,) = entries(1)
    first.append(entry)
    with pytest.raises(AssertionError):
        second.append(entry)
    first.remove(entry)
    with pytest.raises(AssertionError):
        first.remove(entry)
    second.append(entry)
    assert list(second) == [entry]


def test_any_sequence_of_changes_gives_what_a_plain_list_gives() -> None:
    dice = random.Random(0)
    lru: LruList[Link] = LruList()
    plain: list[Link] = []
    pool = entries(12)
    for _ in range(3000):
        entry = dice.choice(pool)
        if entry not in plain:
            lru.append(entry)
            plain.append(entry)
        elif dice.random() < 0.5:
            lru.promote(entry)
            plain.remove(entry)
            plain.append(entry)
        else:
            lru.remove(entry)
            plain.remove(entry)
        assert list(lru) == plain
        assert len(lru) == len(plain)
        assert lru.newest is (plain[-1] if plain else None)
        assert lru.oldest is (plain[0] if plain else None)
