"""Eviction policies: who goes first, end to end, and policies of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from radixtide import AllocateParams, ConfigError, EvictParams, Request, UnifiedRadixCache
from radixtide.components import policies
from radixtide.components.policies import (
    EvictionPolicy,
    make_policy,
    plugin_policies,
    register_policy,
)
from radixtide.configs.schema import EvictionConfig
from radixtide.tree import Node
from support.caches import MakeCache, key, make_config, match, store, tokens
from support.trees import lone_node

PROMPTS = {name: tokens(4, 100 * number) for number, name in enumerate("abcd")}


async def fill(cache: UnifiedRadixCache, **priorities: int) -> None:
    """Store a, b, c, d; then match a twice, and b once."""
    for name, prompt in PROMPTS.items():
        await store(cache, key(prompt), priority=priorities.get(name, 0))
    for name in "aba":
        await match(cache, key(PROMPTS[name]))


async def victims(cache: UnifiedRadixCache) -> str:
    """Return the names of the prompts in the order in which they are evicted."""
    state = cache._state
    names = {key(prompt).raw: name for name, prompt in PROMPTS.items()}
    gone = ""
    while True:
        before = {node.piece for node in state.tree}
        if not (await cache.evict(EvictParams(num_tokens=1))).num_tokens_evicted:
            return gone
        (lost,) = before - {node.piece for node in state.tree}
        gone += names[lost]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("lru", "cdba"),
        ("mru", "abdc"),
        ("fifo", "abcd"),
        ("filo", "dcba"),
        ("lfu", "cdba"),
        ("slru", "cdba"),
        ("tlru", "cdba"),
    ],
)
async def test_a_policy_evicts_in_its_order(
    make_cache: MakeCache, policy: str, expected: str
) -> None:
    async with make_cache(policy=policy) as cache:
        await fill(cache)
        assert await victims(cache) == expected


async def test_lower_priority_goes_first_then_the_older(make_cache: MakeCache) -> None:
    async with make_cache(policy="priority") as cache:
        await fill(cache, a=1, b=2, c=1)
        assert await victims(cache) == "dcab"


async def test_an_insert_raises_the_priority_of_its_path_and_never_lowers_it(
    make_cache: MakeCache,
) -> None:
    async with make_cache(policy="priority") as cache:
        await fill(cache, a=1, b=1, c=1, d=1)
        await store(cache, key(PROMPTS["d"]), priority=5)
        await store(cache, key(PROMPTS["d"]), priority=2)
        assert await victims(cache) == "cbad"


async def test_a_request_brings_its_priority(make_cache: MakeCache) -> None:
    async with make_cache(policy="priority") as cache:
        await fill(cache)
        prompt = [*PROMPTS["c"], *tokens(4, 900)]
        req = Request(rid="r", origin_input_ids=prompt, priority=7)
        await match(cache, req.key(), req=req, lock=True)
        await cache.allocate(AllocateParams(num_tokens=4, req=req))
        await cache.cache_finished_req(req)
        for _ in range(3):
            await cache.evict(EvictParams(num_tokens=1))
        assert len((await match(cache, key(prompt))).device_indices) == 8


async def test_lfu_evicts_the_less_used_before_the_older(make_cache: MakeCache) -> None:
    async with make_cache(policy="lfu") as cache:
        await fill(cache)
        for _ in range(3):
            await match(cache, key(PROMPTS["c"]))
        await match(cache, key(PROMPTS["d"]))
        assert await victims(cache) == "bdac"


async def test_slru_keeps_a_leaf_that_is_used_often_although_it_is_older(
    make_cache: MakeCache,
) -> None:
    eviction = EvictionConfig(policy="slru", slru_protected_threshold=2)
    async with make_cache(eviction=eviction) as cache:
        await fill(cache)
        await match(cache, key(PROMPTS["c"]))
        await match(cache, key(PROMPTS["d"]))
        assert await victims(cache) == "bcda"


async def test_tlru_evicts_tails_that_a_conversation_can_spare_first(
    make_cache: MakeCache,
) -> None:
    eviction = EvictionConfig(policy="tlru", tlru_threshold=8, tlru_next_prompt_estimate=4)
    async with make_cache(eviction=eviction) as cache:
        await store(cache, key(8))
        await store(cache, key(16), prev=8)
        await store(cache, key(tokens(4, 500)))
        await match(cache, key(16))
        await cache.evict(EvictParams(num_tokens=1))
        assert len((await match(cache, key(16))).device_indices) == 16
        await store(cache, key(20), prev=16)
        await match(cache, key(tokens(4, 500)))
        await match(cache, key(20))
        await cache.evict(EvictParams(num_tokens=1))
        assert len((await match(cache, key(20))).device_indices) == 16


def node(start: int, end: int, high_water: int, touch: int = 5) -> Node:
    made = lone_node(end, lone_node(start))
    made.high_water, made.touch = high_water, touch
    return made


@pytest.mark.parametrize(
    ("start", "high_water", "safe"),
    [(10, 12, True), (9, 12, True), (8, 12, True), (7, 12, False), (0, 3, True), (0, 5, False)],
)
def test_a_tail_is_safe_when_the_tokens_before_it_reach_the_budget(
    start: int, high_water: int, safe: bool
) -> None:
    config = EvictionConfig(policy="tlru", tlru_threshold=10, tlru_next_prompt_estimate=6)
    assert make_policy(config).key(node(start, 12, high_water)) == (int(not safe), 5)


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'best' is unknown; one of lru, lfu"):
        make_policy(EvictionConfig(policy="best"))
    with pytest.raises(ConfigError, match="best"):
        UnifiedRadixCache(make_config(policy="best"))


def test_a_base_policy_has_no_order() -> None:
    with pytest.raises(NotImplementedError):
        EvictionPolicy(EvictionConfig()).key(node(0, 4, 4))


class Shortest(EvictionPolicy):
    """The shortest leaf first."""

    name = "shortest"

    def key(self, node: Node) -> Any:
        return node.length


@pytest.fixture
def registered() -> Iterator[None]:
    """Register a policy of our own, for one test."""
    register_policy("shortest", Shortest)
    yield
    del policies._POLICIES["shortest"]


@pytest.mark.usefixtures("registered")
async def test_a_policy_of_ones_own_is_a_small_class(make_cache: MakeCache) -> None:
    assert plugin_policies() == ("shortest",)
    async with make_cache(policy="shortest") as cache:
        for number, length in enumerate((12, 4, 8)):
            await store(cache, key(tokens(length, 100 * number)))
        sizes = [(await cache.evict(EvictParams(num_tokens=1))).num_tokens_evicted for _ in "abc"]
        assert sizes == [4, 8, 12]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["", "lru", "shortest"])
def test_a_policy_needs_a_name_of_its_own(name: str) -> None:
    with pytest.raises(ConfigError, match="empty or already registered"):
        register_policy(name, Shortest)
