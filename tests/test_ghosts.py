"""What is remembered of evicted nodes."""

from __future__ import annotations

import pytest

from radixtide import EvictParams, MissReason, RadixKey
from radixtide.configs.schema import EvictionConfig
from radixtide.tree import GhostList, RadixTree
from support.caches import MakeCache, key, match, store, tokens
from support.trees import add


def test_an_evicted_child_is_known_by_its_first_page() -> None:
    tree = RadixTree(1, 1)
    ghosts = GhostList(4)
    leaf = add(tree, RadixKey([1, 2, 3]))
    edge = leaf.edge
    assert not ghosts.knows(tree.root, edge)
    ghosts.remember(leaf)
    assert ghosts.knows(tree.root, edge)
    assert not ghosts.knows(tree.root, RadixKey([2]).raw)
    assert len(ghosts) == 1


def test_the_root_is_no_ghost() -> None:
    tree = RadixTree(1, 1)
    ghosts = GhostList(4)
    ghosts.remember(tree.root)
    assert len(ghosts) == 0


def test_the_oldest_is_forgotten_first() -> None:
    tree = RadixTree(1, 1)
    ghosts = GhostList(2)
    leaves = [add(tree, RadixKey([token])) for token in range(3)]
    for leaf in leaves:
        ghosts.remember(leaf)
    assert [ghosts.knows(tree.root, leaf.edge) for leaf in leaves] == [False, True, True]
    assert len(ghosts) == 2


@pytest.mark.parametrize("capacity", [0, 1])
def test_a_list_holds_at_most_its_capacity(capacity: int) -> None:
    tree = RadixTree(1, 1)
    ghosts = GhostList(capacity)
    for token in range(5):
        ghosts.remember(add(tree, RadixKey([token])))
    assert len(ghosts) == capacity


def test_a_node_that_comes_back_takes_over_the_ghosts_below_it() -> None:
    tree = RadixTree(1, 1)
    ghosts = GhostList(8)
    stem = add(tree, RadixKey([1, 2]))
    leaf = add(tree, RadixKey([1, 2, 3]))
    edge = leaf.edge
    for node in (leaf, stem):
        ghosts.remember(node)
        tree.remove(node)
    back = add(tree, RadixKey([1, 2]))
    assert not ghosts.knows(back, edge)
    ghosts.revive(back)
    assert ghosts.knows(back, edge)
    assert not ghosts.knows(tree.root, back.edge)


def test_a_node_of_another_length_in_the_place_of_a_ghost_is_another_node() -> None:
    tree = RadixTree(1, 1)
    ghosts = GhostList(8)
    stem = add(tree, RadixKey([1, 2]))
    leaf = add(tree, RadixKey([1, 2, 3]))
    edge = leaf.edge
    for node in (leaf, stem):
        ghosts.remember(node)
        tree.remove(node)
    longer = add(tree, RadixKey([1, 9, 9]))
    ghosts.revive(longer)
    assert not ghosts.knows(longer, edge)


def test_a_cleared_list_knows_nothing() -> None:
    tree = RadixTree(1, 1)
    ghosts = GhostList(8)
    leaf = add(tree, RadixKey([1]))
    ghosts.remember(leaf)
    ghosts.clear()
    assert not ghosts.knows(tree.root, leaf.edge)


@pytest.mark.parametrize(("ghosts", "reason"), [(0, "never_stored"), (8, "evicted")])
async def test_a_miss_says_evicted_as_far_as_memory_goes(
    make_cache: MakeCache, ghosts: int, reason: str
) -> None:
    async with make_cache(eviction=EvictionConfig(ghosts=ghosts)) as cache:
        await store(cache, key(16))
        await store(cache, key(tokens(8, 100)))
        await cache.evict(EvictParams(num_tokens=16))
        found = await match(cache, key(16))
        assert (len(found.device_indices), found.miss_reason) == (0, MissReason(reason))


async def test_each_reason_of_a_miss_is_told(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        assert (await match(cache, key(8))).miss_reason is MissReason.COMPLETE
        assert (await match(cache, key(10))).miss_reason is MissReason.UNALIGNED_TAIL
        assert (await match(cache, key(12))).miss_reason is MissReason.NEVER_STORED
        assert (await match(cache, key(3))).miss_reason is MissReason.UNALIGNED_TAIL
        await store(cache, key(16), prev=8)
        await cache.evict(EvictParams(num_tokens=8))
        found = await match(cache, key(18))
        assert (found.miss_reason, found.miss_length) == (MissReason.EVICTED, 10)
        await cache.reset()
        assert (await match(cache, key(16))).miss_reason is MissReason.NEVER_STORED
