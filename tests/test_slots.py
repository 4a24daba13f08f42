"""The books of a pool: who owns which page."""

from __future__ import annotations

import random

import numpy as np
import pytest

from radixtide import DoubleFree, SlotError
from radixtide.tiers.slots import (
    ANONYMOUS,
    FIRST_HOLDER,
    FREE,
    RAMP_SLOTS,
    TREE,
    SlotAllocator,
)
from support.snapshots import as_int64


@pytest.fixture(params=[1, 4])
def books(request: pytest.FixtureRequest) -> SlotAllocator:
    """Make a pool of 64 slots, in pages of 1 and of 4."""
    return SlotAllocator(64, request.param, "full")


def sizes(books: SlotAllocator) -> tuple[int, int, int]:
    return books.free, books.held, books.tree_pages * books.page_size


def test_a_fresh_pool_is_free_and_hands_out_ascending_runs(books: SlotAllocator) -> None:
    assert sizes(books) == (64, 0, 0)
    first = books.take(8 // books.page_size, ANONYMOUS)
    second = books.take(8 // books.page_size, FIRST_HOLDER)
    assert first.tolist() == list(range(8))
    assert second.tolist() == list(range(8, 16))
    assert sizes(books) == (48, 16, 0)


@pytest.mark.parametrize(("size", "page"), [(0, 4), (3, 4), (6, 4), (0, 1)])
def test_a_pool_is_whole_pages_and_not_empty(size: int, page: int) -> None:
    with pytest.raises(SlotError, match=f"size {size} is not a positive multiple"):
        SlotAllocator(size, page, "full")


@pytest.mark.parametrize(("slots", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_slots_are_rounded_up_to_pages(slots: int, pages: int) -> None:
    assert SlotAllocator(64, 4, "full").whole_pages(slots) == pages


def test_what_is_adopted_is_the_trees_until_it_is_released(books: SlotAllocator) -> None:
    slots = books.take(8 // books.page_size, ANONYMOUS)
    books.adopt(books.pages_of(slots))
    assert sizes(books) == (56, 0, 8)
    assert set(books.owners()[books.pages_of(slots)].tolist()) == {TREE}
    books.release_tree(slots)
    assert sizes(books) == (64, 0, 0)
    assert set(books.owners().tolist()) == {FREE}


def test_what_was_released_is_handed_out_again(books: SlotAllocator) -> None:
    every = books.take(books.pages, ANONYMOUS)
    assert sorted(every.tolist()) == list(range(64))
    assert sizes(books) == (0, 64, 0)
    books.release(every[8:16])
    assert books.take(8 // books.page_size, ANONYMOUS).tolist() == list(range(8, 16))


def test_nothing_can_be_taken_and_released(books: SlotAllocator) -> None:
    nothing = books.take(0, ANONYMOUS)
    assert nothing.tolist() == []
    books.check(nothing, ANONYMOUS)
    books.adopt(books.pages_of(nothing))
    books.release(nothing)
    assert sizes(books) == (64, 0, 0)


def test_taking_more_than_is_free_is_a_mistake_of_the_library(books: SlotAllocator) -> None:
    with pytest.raises(AssertionError):
        books.take(books.pages + 1, ANONYMOUS)


def test_a_check_accepts_pages_in_any_order(books: SlotAllocator) -> None:
    slots = books.take(16 // books.page_size, FIRST_HOLDER)
    pages = slots.reshape(-1, books.page_size)
    books.check(pages[::-1].ravel().copy(), FIRST_HOLDER)
    books.check(np.concatenate((slots[8:], slots[:8])), FIRST_HOLDER)
    books.check(slots, ANONYMOUS, FIRST_HOLDER)


@pytest.mark.parametrize("spread", [False, True], ids=["one run", "spread"])
@pytest.mark.parametrize(
    ("owner", "kind", "says"),
    [
        (FREE, DoubleFree, "slot 8 is free; it was given back before"),
        (TREE, SlotError, "slot 8 is the tree's, not the caller's to give"),
        (ANONYMOUS, SlotError, "slot 8 is held outside of any request"),
        (FIRST_HOLDER + 1, SlotError, "slot 8 is held by another request"),
    ],
)
def test_a_check_names_the_first_slot_of_somebody_else(
    books: SlotAllocator, owner: int, kind: type[SlotError], says: str, spread: bool
) -> None:
    slots = books.take(books.pages, FIRST_HOLDER)
    books._owner[8 // books.page_size] = owner
    given = slots[4:24]
    if spread:
        given = np.concatenate((slots[40:44], given, slots[32:36]))
    with pytest.raises(kind, match=says):
        books.check(given, FIRST_HOLDER)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({0: -4}, "slot -4 at position 0 is not in"),
        ({7: 64}, "slot 64 at position 7 is not in"),
        ({3: 2**62}, "at position 3 is not in"),
    ],
)
def test_a_check_refuses_slots_out_of_range(
    books: SlotAllocator, change: dict[int, int], says: str
) -> None:
    slots = books.take(8 // books.page_size, ANONYMOUS)
    for at, value in change.items():
        slots[at] = value
    with pytest.raises(SlotError, match=says):
        books.check(slots, ANONYMOUS)


def test_a_run_that_reaches_beyond_the_pool_is_out_of_range(books: SlotAllocator) -> None:
    books.take(books.pages, ANONYMOUS)
    with pytest.raises(SlotError, match="slot 64 at position 4 is not in"):
        books.check(np.arange(60, 68), ANONYMOUS)
    with pytest.raises(SlotError, match="slot -4 at position 0 is not in"):
        books.check(np.arange(-4, 4), ANONYMOUS)


def test_a_check_refuses_a_page_given_twice(books: SlotAllocator) -> None:
    slots = books.take(12 // books.page_size, ANONYMOUS)
    with pytest.raises(SlotError, match=r"slot 0 at position [08] is given twice"):
        books.check(np.concatenate((slots[:8], slots[:4])), ANONYMOUS)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (as_int64(0, 1, 2), "3 slots are not whole pages of 4"),
        (as_int64(1, 2, 3, 4), "slot 1 at position 0 breaks its page"),
        (as_int64(0, 1, 3, 2), "slot 3 at position 2 breaks its page"),
        (as_int64(0, 1, 2, 3, 4, 5, 6, 8), "slot 8 at position 7 breaks its page"),
        (as_int64(0, 0, 0, 0), "slot 0 at position 1 breaks its page"),
        (as_int64(3, 2, 1, 0), "breaks its page"),
    ],
)
def test_a_check_refuses_torn_pages(given: np.ndarray, says: str) -> None:
    books = SlotAllocator(64, 4, "full")
    books.take(16, ANONYMOUS)
    with pytest.raises(SlotError, match=says):
        books.check(given, ANONYMOUS)


def test_a_long_run_is_checked_like_a_short_one(books: SlotAllocator) -> None:
    large = SlotAllocator(8192, books.page_size, "full")
    slots = large.take(large.pages, ANONYMOUS)
    large.check(slots, ANONYMOUS)
    large.release(slots[-4:])
    with pytest.raises(DoubleFree, match=r"slot 818[89] is free"):
        large.check(slots, ANONYMOUS)


def test_a_rebuild_frees_what_nobody_claims_and_keeps_anonymous_slots() -> None:
    books = SlotAllocator(64, 4, "full")
    anonymous = books.take(2, ANONYMOUS)
    tree = books.take(3, ANONYMOUS)
    books.adopt(books.pages_of(tree))
    lost = books.take(2, FIRST_HOLDER)
    kept = books.take(1, FIRST_HOLDER + 1)
    books._top = 3
    freed = books.rebuild(books.pages_of(tree[:8]), {FIRST_HOLDER + 1: books.pages_of(kept)})
    assert freed == 1 + len(lost) // 4
    assert sizes(books) == (64 - 8 - 8 - 4, 12, 8)
    assert sorted(books.free_pages().tolist()) == [4, 5, 6, *range(8, 16)]
    books.check(anonymous, ANONYMOUS)
    books.check(kept, FIRST_HOLDER + 1)


def test_any_sequence_of_changes_keeps_every_page_with_one_owner(books: SlotAllocator) -> None:
    dice = random.Random(books.page_size)
    held: list[np.ndarray] = []
    tree: list[np.ndarray] = []
    for _ in range(500):
        action = dice.randrange(4)
        if action == 0:
            pages = min(dice.randrange(4), books.free // books.page_size)
            held.append(books.take(pages, ANONYMOUS))
        elif action == 1 and held:
            slots = held.pop(dice.randrange(len(held)))
            books.check(slots, ANONYMOUS)
            books.adopt(books.pages_of(slots))
            tree.append(slots)
        elif action == 2 and held:
            slots = held.pop(dice.randrange(len(held)))
            books.check(slots, ANONYMOUS)
            books.release(slots)
        elif action == 3 and tree:
            books.release_tree(tree.pop(dice.randrange(len(tree))))
        in_tree = [int(slot) for slots in tree for slot in slots]
        in_hands = [int(slot) for slots in held for slot in slots]
        assert len(set(in_tree + in_hands)) == len(in_tree) + len(in_hands)
        assert sizes(books) == (64 - len(in_tree) - len(in_hands), len(in_hands), len(in_tree))
        owned = np.zeros(64, dtype=bool)
        owned[in_tree + in_hands] = True
        free = np.flatnonzero(~owned)[:: books.page_size] // books.page_size
        assert sorted(books.free_pages().tolist()) == free.tolist()


def test_a_run_is_told_beyond_the_ramp_as_well() -> None:
    size = RAMP_SLOTS + 64
    books = SlotAllocator(size, 1, "full")
    books.take(RAMP_SLOTS - 8, ANONYMOUS)
    held = books.take(16, FIRST_HOLDER)
    assert held.tolist() == list(range(RAMP_SLOTS - 8, RAMP_SLOTS + 8))
    assert books.check(held, FIRST_HOLDER) == slice(RAMP_SLOTS - 8, RAMP_SLOTS + 8)
    swapped = held[[0, 2, 1, *range(3, 16)]]
    pages = books.check(swapped, FIRST_HOLDER)
    assert not isinstance(pages, slice)
    assert pages.tolist() == swapped.tolist()
    with pytest.raises(SlotError, match="given twice"):
        books.check(held[[0, 1, 1, *range(3, 16)]], FIRST_HOLDER)
