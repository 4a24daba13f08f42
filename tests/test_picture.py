"""`picture()`: a bounded look at the tree, for drawing. It changes nothing and says no secret."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from radixtide import UnifiedRadixCache
from radixtide.components.picture import NodePicture, TreePicture
from radixtide.configs.errors import CacheClosed
from support.caches import Delivery, MakeCache, key, match, state_of, store, tokens
from support.tier_config import SETS
from support.tiered import tiers


def by_id(shown: TreePicture) -> dict[int, NodePicture]:
    """Return the nodes of a picture by their id; each is there once."""
    nodes = {node.id: node for node in shown.nodes}
    assert len(nodes) == len(shown.nodes)
    return nodes


def assert_connected(shown: TreePicture) -> None:
    """Assert that every node comes after its parent, and begins where that ends."""
    ends = {0: 0}
    for node in shown.nodes:
        assert node.start == ends[node.parent]
        assert node.start < node.end
        ends[node.id] = node.end


async def grown(cache: UnifiedRadixCache, branches: int, seed: int = 0) -> None:
    """Store branches that share a beginning, and use some of them again."""
    dice = random.Random(seed)
    keys = [
        key([*tokens(4 * dice.randint(1, 3)), *tokens(4 * dice.randint(1, 4), 1000 * (turn + 1))])
        for turn in range(branches)
    ]
    for one in keys:
        await store(cache, one)
    for one in dice.choices(keys, k=branches):
        await match(cache, one)


async def test_a_picture_has_every_node_with_its_place_and_size(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    await store(cache, key([*tokens(4), *tokens(8, 100)]))
    shown = await cache.picture()
    assert (shown.components, shown.page_size, shown.nodes_total) == (("full",), 4, 3)
    assert shown.left_out == 0
    assert_connected(shown)
    top, *below = shown.nodes
    assert (top.parent, top.start, top.end, top.children, top.device) == (0, 0, 4, 2, (4,))
    assert sorted((node.start, node.end, node.device, node.children) for node in below) == [
        (4, 8, (4,), 0),
        (4, 12, (8,), 0),
    ]
    assert {node.parent for node in below} == {top.id}


async def test_an_empty_tree_has_an_empty_picture(cache: UnifiedRadixCache) -> None:
    shown = await cache.picture()
    assert (shown.nodes, shown.nodes_total, shown.left_out, shown.clock) == ((), 0, 0, 0)


@pytest.mark.parametrize("most", [0, 1, 2, 7, 20, 100])
async def test_of_a_large_tree_the_most_recently_used_part_is_shown(
    make_cache: MakeCache, most: int
) -> None:
    async with make_cache(size=2048) as cache:
        await grown(cache, 40, seed=most)
        every = await cache.picture(10_000)
        shown = await cache.picture(most)
        assert len(shown.nodes) == min(most, every.nodes_total)
        assert shown.left_out == every.nodes_total - len(shown.nodes)
        assert_connected(shown)
        theirs = sorted((node.touch for node in every.nodes), reverse=True)
        assert sorted((node.touch for node in shown.nodes), reverse=True) == theirs[:most]
        whole = by_id(every)
        assert all(whole[node.id] == node for node in shown.nodes)


async def test_of_many_branches_at_one_place_the_latest_are_shown(make_cache: MakeCache) -> None:
    async with make_cache(size=4096) as cache:
        for turn in range(200):
            await store(cache, key(tokens(4, 100 * turn)))
        used = [(await match(cache, key(tokens(4, 100 * turn)))) for turn in (3, 77, 150)]
        shown = await cache.picture(3)
        assert {node.id for node in shown.nodes} == {one.last_device_node.id for one in used}


async def test_it_shows_hits_and_touches(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    old = (await cache.picture()).nodes[0]
    for _ in range(3):
        await match(cache, key(8))
    shown = await cache.picture()
    (node,) = shown.nodes
    assert node.hits == old.hits + 3
    assert old.touch < node.touch == shown.clock


async def test_it_shows_what_is_locked_and_what_is_pinned(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=8) as cache:
        await store(cache, key(8))
        await store(cache, key(tokens(8, 100)))
        free = by_id(await cache.picture())
        assert [(node.locks, node.pinned) for node in free.values()] == [((0,), False)] * 2
        locked = await match(cache, key(8), lock=True)
        await cache.pin(key(tokens(8, 100)), 1000.0)
        shown = await cache.picture()
        nodes = by_id(shown)
        mine = nodes.pop(locked.last_device_node.id)
        (pinned,) = nodes.values()
        assert (mine.locks[0] > 0, mine.pinned) == (True, False)
        assert (pinned.pinned, shown.pinned) == (True, 8)
        assert locked.receipt is not None
        await cache.dec_lock_ref(locked.receipt)
        await cache.unpin(key(tokens(8, 100)))
        assert by_id(await cache.picture()) == {
            one.id: msgspec.structs.replace(free[one.id], touch=one.touch, hits=one.hits)
            for one in (await cache.picture()).nodes
        }


async def test_it_changes_nothing(make_cache: MakeCache) -> None:
    async with make_cache(size=2048) as cache:
        await grown(cache, 20)
        before = await cache.pretty_print(), (await cache.stats()).pools, state_of(cache).tree.clock
        for most in (0, 3, 1000):
            await cache.picture(most)
        after = await cache.pretty_print(), (await cache.stats()).pools, state_of(cache).tree.clock
        assert before == after


async def test_no_token_and_no_name_of_a_tenant_gets_into_it(cache: UnifiedRadixCache) -> None:
    token = 7_654_321
    await store(cache, key([token] * 8, cache_salt="the-tenant", extra_key="the-adapter"))
    assert len((await cache.picture()).nodes) == 1
    text = msgspec.json.encode(await cache.picture()).decode()
    for secret in ("the-tenant", "the-adapter", str(token)):
        assert secret not in text


@pytest.mark.parametrize("components", [SETS[0], SETS[-1]], ids="+".join)
async def test_it_shows_each_tier_as_data_moves_down_and_up(
    delivery: Delivery, components: tuple[str, ...]
) -> None:
    async with tiers(delivery, components, page_size=4, url="memory:") as t:
        wanted = t.key(3)
        await t.put(wanted)
        await t.settle()
        device = [12 if name == "full" else 1 if name == "mamba" else 12 for name in components]
        (node,) = (await t.cache.picture()).nodes
        assert (node.device, node.host, node.stored) == (tuple(device), tuple(device), True)
        await t.demote()
        (below,) = (await t.cache.picture()).nodes
        assert below.device == (0,) * len(components)
        assert (below.id, below.host, below.stored) == (node.id, node.host, True)
        await t.load(wanted)
        await t.settle()
        (again,) = (await t.cache.picture()).nodes
        assert again.device == node.device


async def test_it_shows_what_moves(delivery: Delivery) -> None:
    async with tiers(delivery, SETS[0], page_size=4) as t:
        t.engine.hold()
        await t.put(t.key(3))
        await t.copied()
        shown = await t.cache.picture()
        (node,) = shown.nodes
        assert node.moves == ("backup",)
        assert shown.moving["backup"] == 12
        await t.settle()
        shown = await t.cache.picture()
        assert (shown.nodes[0].moves, shown.moving["backup"]) == ((), 0)


async def test_pictures_taken_while_others_work_are_whole(make_cache: MakeCache) -> None:
    async with make_cache(size=512) as cache:

        async def work(seed: int) -> None:
            await grown(cache, 10, seed)

        async def look() -> list[TreePicture]:
            return [await cache.picture(30) for _ in range(30)]

        looking = asyncio.create_task(look())
        await asyncio.gather(*(work(seed) for seed in range(4)))
        for shown in await looking:
            assert_connected(shown)
            # Full has a slot for each unit of each node.
            assert all(node.device == (node.end - node.start,) for node in shown.nodes)


async def test_a_closed_cache_has_no_picture(make_cache: MakeCache) -> None:
    async with make_cache(audit=False) as cache:
        await store(cache, key(4))
        await cache.close()
        with pytest.raises(CacheClosed):
            await cache.picture()


async def test_the_names_are_public() -> None:
    import radixtide

    names: dict[str, Any] = {"NodePicture": NodePicture, "TreePicture": TreePicture}
    assert {name: getattr(radixtide, name) for name in names} == names
