"""The oracle of hybrid caches by itself: what it says about small cases that are plain to see."""

from __future__ import annotations

import pytest

from support.oracle import FULL, MAMBA, SWA, Namespace, Oracle, Pair, Tokens

NS: Namespace = (None, None)
BOTH = (FULL, SWA, MAMBA)


def keep(
    oracle: Oracle, tokens: Tokens, without_swa: frozenset[int] = frozenset(), evicted: int = 0
) -> None:
    """Insert a key; the pages numbered in `without_swa` have no SWA."""
    count = len(tokens) // oracle.page
    free = len(oracle.pages) + 100
    given = [Pair(free + at, None if at in without_swa else free + at) for at in range(count)]
    oracle.insert(NS, tokens, given, 0, count * oracle.page, evicted)


def usable(oracle: Oracle, tokens: Tokens) -> list[int]:
    """Return every length from which all components can go on."""
    path = oracle.path(NS, tokens)
    return [page.depth for page in path if not oracle.refusals(path, page.depth)]


def test_with_full_alone_every_cached_page_ends_a_usable_prefix() -> None:
    oracle = Oracle((FULL,), 2, None)
    keep(oracle, (1, 2, 3, 4, 5))
    assert usable(oracle, (1, 2, 3, 4, 5)) == [2, 4]
    assert usable(oracle, (1, 2, 9, 9)) == [2]
    assert usable(oracle, (9, 2, 3, 4)) == []


@pytest.mark.parametrize(
    ("window", "lengths"),
    [(1, [2, 6, 8, 10]), (2, [2, 6, 8, 10]), (3, [2, 8, 10]), (4, [2, 8, 10]), (5, [2, 10])],
)
def test_a_gap_is_behind_once_a_whole_window_follows_it(window: int, lengths: list[int]) -> None:
    oracle = Oracle((FULL, SWA), 2, window)
    tokens = tuple(range(10))
    keep(oracle, tokens)
    oracle.path(NS, tokens)[1].swa = None
    assert usable(oracle, tokens) == lengths


def test_a_path_that_is_whole_from_the_root_may_be_shorter_than_the_window() -> None:
    oracle = Oracle((FULL, SWA), 1, 100)
    keep(oracle, (1, 2, 3))
    assert usable(oracle, (1, 2, 3)) == [1, 2, 3]


def test_a_state_serves_at_its_own_length_only() -> None:
    oracle = Oracle((FULL, MAMBA), 1, None)
    keep(oracle, (1, 2, 3, 4))
    oracle.path(NS, (1, 2, 3))[-1].state = 7
    assert usable(oracle, (1, 2, 3, 4)) == [3]
    assert usable(oracle, (1, 2, 4)) == []


def test_all_components_must_accept_the_same_length() -> None:
    oracle = Oracle(BOTH, 1, 2)
    keep(oracle, (1, 2, 3, 4, 5), evicted=2)
    path = oracle.path(NS, (1, 2, 3, 4, 5))
    assert [page.swa is not None for page in path] == [False, False, True, True, True]
    path[1].state = path[3].state = 7
    assert usable(oracle, (1, 2, 3, 4, 5)) == [4]
    assert oracle.longest(path, (1, 2, 3, 5)) == 0


def test_swa_of_an_insert_is_live_where_it_comes_last_without_a_gap() -> None:
    oracle = Oracle((FULL, SWA), 1, 2)
    done = oracle.insert(NS, (1, 2, 3, 4), [Pair(1, 1), Pair(2), Pair(3, 3), Pair(4, 4)], 0, 4)
    assert done.swa_adopted == ((2, 4),)
    assert done.freed_swa == [1]
    # A later insert repairs what is missing, and its Full pages are duplicates.
    done = oracle.insert(NS, (1, 2, 3), [Pair(5, 5), Pair(6, 6), Pair(7, 7)], 0, 3, evicted=1)
    assert (done.adopted, done.duplicate, done.swa_adopted) == ((), ((0, 3),), ((1, 2),))
    assert (done.freed_full, done.freed_swa) == ([5, 6, 7], [5, 7])


def test_a_lock_covers_all_full_one_window_in_whole_pages_and_one_state() -> None:
    oracle = Oracle(BOTH, 2, 3)
    tokens = tuple(range(10))
    keep(oracle, tokens, without_swa=frozenset({0}))
    path = oracle.path(NS, tokens)
    path[-1].state = 1
    lock = oracle.lock(path, 10)
    assert (oracle.protected(FULL), oracle.protected(SWA), oracle.protected(MAMBA)) == (10, 4, 1)
    assert oracle.release(lock, SWA, MAMBA) == {FULL: 0, SWA: 4, MAMBA: 1}
    assert oracle.release(lock, SWA, MAMBA) == {FULL: 0, SWA: 0, MAMBA: 0}
    assert oracle.release(lock) == {FULL: 10, SWA: 0, MAMBA: 0}
    assert oracle.evictable(FULL) == 10


def test_what_appears_under_a_lock_is_protected_at_once() -> None:
    oracle = Oracle((FULL, SWA), 1, 2)
    keep(oracle, (1, 2, 3), evicted=3)
    path = oracle.path(NS, (1, 2, 3))
    oracle.lock(path, 3)
    keep(oracle, (1, 2, 3))
    assert (oracle.protected(SWA), oracle.evictable(SWA)) == (2, 1)
