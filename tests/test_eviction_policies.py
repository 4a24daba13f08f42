"""Every eviction policy at a full pool: who goes, against a hand-made table and brute force."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.driver import Setup
from support.driver_calls import Steps
from support.model import Name
from support.walk import Walk

POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")
PAGE = 4
NAMESPACE = (None, None)


def key_of(letter: str, pages: int = 1) -> tuple[int, ...]:
    """Return a key of whole pages of one token."""
    return (ord(letter),) * (PAGE * pages)


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> Iterator[Steps]:
    """Return a cache of eight pages under the policy that the test names."""
    driver = Steps(Setup(page=PAGE, pages=8, policy=request.param))
    try:
        yield driver
    finally:
        driver.discard()


def store(steps: Steps, key: tuple[int, ...], priority: int = 0) -> None:
    """Allocate for a key and insert it whole."""
    steps.allocate(len(key))
    steps.insert(NAMESPACE, key, 0, priority)


def cached(steps: Steps) -> set[str]:
    """Return the first letter of every cached node, as the real tree has it."""
    return {chr(tokens[0]) for _, tokens in steps.nodes()}


def order_of_going(steps: Steps) -> str:
    """Evict one node after the other; return the letters in the order in which they went."""
    gone = ""
    while left := cached(steps):
        steps.evict(1)
        (letter,) = left - cached(steps)
        gone += letter
    return gone


# Stored a, b, c, d, e in this order with priorities 1, 0, 2, 0, 1; then matched b twice, a, d
# twice, a again. So: recency c, e, b, d, a; hits a 2, b 2, c 0, d 2, e 0.
EXPECTED = {
    "lru": "cebda",
    "mru": "adbec",
    "fifo": "abcde",
    "filo": "edcba",
    "lfu": "cebda",
    "priority": "bdeac",
    "slru": "cebda",
}


@pytest.mark.parametrize(("steps", "expected"), EXPECTED.items(), indirect=["steps"])
def test_leaves_go_in_the_order_of_the_policy(steps: Steps, expected: str) -> None:
    for letter, priority in zip("abcde", (1, 0, 2, 0, 1), strict=True):
        store(steps, key_of(letter), priority)
    for letter in "bbadda":
        steps.match(NAMESPACE, key_of(letter))
    assert order_of_going(steps) == expected


@pytest.mark.parametrize("steps", ["lfu"], indirect=True)
def test_lfu_prefers_hits_to_recency(steps: Steps) -> None:
    for letter in "abc":
        store(steps, key_of(letter))
    for letter in "aaabbc":
        steps.match(NAMESPACE, key_of(letter))
    assert order_of_going(steps) == "cba"


@pytest.mark.parametrize("steps", ["slru"], indirect=True)
def test_slru_lets_go_of_what_was_hit_once_before_what_was_hit_twice(steps: Steps) -> None:
    for letter in "abcd":
        store(steps, key_of(letter))
    # d is the most recent, but a and c have reached the threshold of two hits.
    for letter in "ccaabd":
        steps.match(NAMESPACE, key_of(letter))
    assert order_of_going(steps) == "bdca"


@pytest.mark.parametrize("steps", ["tlru"], indirect=True)
def test_tlru_lets_go_of_safe_tails_first_though_they_are_recent(steps: Steps) -> None:
    # Threshold 8, estimate 4: a leaf is safe when it begins at the highest depth less 4, or later.
    old, head = key_of("a", 3), key_of("b", 2)
    tail = (*head, *key_of("c"))
    for key in (old, head, tail):
        store(steps, key)
    # The tail begins at 8 >= 12 - 4. Its head begins at 0 and remembers the depth of 12: not safe.
    for expected in (tail, old, head):
        names = set(steps.nodes())
        steps.evict(1)
        assert names - set(steps.nodes()) == {(NAMESPACE, expected)}


@pytest.mark.parametrize("steps", ["lru"], indirect=True)
def test_of_one_access_time_the_deeper_node_goes_first_and_the_parent_in_its_own_turn(
    steps: Steps,
) -> None:
    long = (*key_of("a"), *key_of("b"), *key_of("c"))
    for pages in (1, 2, 3):
        steps.allocate(PAGE)
        steps.insert(NAMESPACE, long[: pages * PAGE], (pages - 1) * PAGE, 0)
    store(steps, key_of("z"))
    steps.match(NAMESPACE, long[:PAGE])
    # c and b were touched last together, before z; a was touched after z.
    for expected in (long, long[: 2 * PAGE], key_of("z"), long[:PAGE]):
        names = set(steps.nodes())
        steps.evict(1)
        assert names - set(steps.nodes()) == {(NAMESPACE, expected)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
def test_victims_at_a_full_pool_are_those_of_brute_force(policy: str, seed: int) -> None:
    page = (1, 4, 16)[seed]
    walked = Walk(Setup(page=page, pages=24, policy=policy, bigram=seed == 1), seed, longest=5)
    steps = walked.steps
    walked.run(120)
    for _ in range(200):
        if not steps.model.free:
            break
        walked.insert()
        steps.free(list(steps.loose[4:]))
    # One leaf at a time, then several at once through an allocation, then all that is left.
    one_by_one: list[Name] = []
    for _ in range(4):
        before = set(steps.nodes())
        steps.evict(1)
        one_by_one += before - set(steps.nodes())
    assert one_by_one
    sizes = steps.model.sizes()
    steps.allocate(sizes["free"] + sizes["evictable"] // 2)
    steps.evict(steps.model.size)
    assert steps.model.sizes()["evictable"] == 0
    walked.close()
