"""Faults that users of other caches reported: storage and whose it is (kinds K11 and K13).

The table in test_fault_cases_of_backup.py says which case is where.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from radixtide import MissReason
from radixtide.configs.schema import StorageConfig
from radixtide.tiers.page_hash import page_hashes
from radixtide.tiers.storage.base import PageKey
from support.actors import until
from support.caches import Delivery
from support.held_engine import TURNS_MAX
from support.tier_config import Components, everywhere, policies
from support.tiered import Tiers, tiers

PATIENT: dict[str, Any] = {"prefetch_policy": "wait_complete", "timeout_s": 60.0}


def address(folder: Path) -> str:
    return f"file:{folder / 'store'}"


def chains(t: Tiers, count: int = 16, **namespace: Any) -> list[str]:
    """Return the hashes of the pages of ``t.key(...)`` in the default namespace."""
    hashes = page_hashes(t.key(count).raw, t.page, False, None)
    return [hashes[at : at + 32].hex() for at in range(0, len(hashes), 32)]


def number(t: Tiers, key: PageKey) -> int:
    """Return which page of ``t.key(...)`` a stored page belongs to."""
    return chains(t).index(key.chain.partition("-")[0])


async def fetched(t: Tiers, wanted: Any) -> int:
    """Fetch a key, and return how many pages that brought."""
    async with await t.cache.prefetch(wanted) as fetch:
        return await fetch.wait() // t.page


@everywhere
async def test_k11_9_a_write_that_fails_in_part_counts_as_far_as_it_came_and_no_farther(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """Page 2 of 8 is refused: no node beyond it is marked, two pages are a hit, and it goes on."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    async with tiers(delivery, components, **fields) as t:
        assert t.store is not None
        t.store.refuses = lambda key: number(t, key) == 2
        await t.put(t.key(2))
        await t.put(t.key(8), prev=2)
        await t.settle()
        marked = {end for _, end, bits in t.picture() if "S" in bits}
        assert marked == {2}
        assert await t.count("store_failures") > 0
        tries = max(t.store.calls.values())
        assert tries < 20, "retries are bounded"
        t.store.refuses = lambda _: False
        other = t.key(t.span(4, 500))
        await t.put(other)
        await t.settle()
        assert (0, 4, "DHS") in t.picture()
        # Used again it is written again.
        await t.match(t.key(8))
        await t.settle()
    async with tiers(delivery, components, **fields) as t:
        assert await fetched(t, t.key(8)) in (2, 8)
        await t.load(t.key(8))
        assert await fetched(t, t.key(t.span(4, 500))) == 4


@everywhere
@pytest.mark.parametrize("count", [1, 2, 4])
async def test_k11_9_a_store_that_raises_stops_nothing_and_leaks_nothing(
    delivery: Delivery, components: Components, page_size: int, count: int, tmp_path: Path
) -> None:
    """Writes, look-ups and reads raise, half done: what comes later works, all slots are there."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    async with tiers(delivery, components, **fields) as t:
        assert t.store is not None
        t.store.fails["put_from"] = count
        await t.put(t.key(8))
        await t.settle()
        for turn in range(3):
            await t.put(t.key(t.span(4, 500 + 100 * turn)))
            await t.settle()
        assert (4, "DHS") in [(end, bits) for _, end, bits in t.picture()]
        last = t.key(t.span(4, 700))
    async with tiers(delivery, components, **fields) as t:
        assert t.store is not None
        for operation in ("exists", "get_into"):
            t.store.fails[operation] = 1
            assert await fetched(t, last) == 0
            assert (await t.pool()).free == (await t.pool()).size
            await t.sound()
        assert await fetched(t, last) == 4
        assert await t.load(last) == 4


@everywhere
async def test_k11_11_what_is_stored_once_more_brings_a_parent_back_that_the_store_has_lost(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """A node that got more is written again, and what comes before it is gone: both are written."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    async with tiers(delivery, components, **fields) as t:
        await t.put(t.key(4))
        await t.put(t.key(8), prev=4)
        await t.settle()
        for path in (tmp_path / "store").rglob("*"):
            if path.is_file() and path.name.startswith(tuple(chains(t, 4))):
                path.unlink()
        books = t.cache._state.tiers
        assert books is not None
        (leaf,) = (node for node in t.cache._tree if node.length == node.start == 4 * t.page)
        books.again_stored.add(leaf)
        books.queue_store(leaf)
        await t.settle()
        assert [end for _, end, bits in t.picture() if "S" in bits] == [4, 8]
        assert not books.orphans
    async with tiers(delivery, components, **fields) as t:
        assert await fetched(t, t.key(8)) == 8
        assert await t.load(t.key(8)) == 8


@everywhere
@policies
async def test_k11_11_parents_are_stored_before_their_children_and_all_of_them(
    delivery: Delivery, components: Components, page_size: int, policy: str, tmp_path: Path
) -> None:
    """A root that is always in use reaches storage with its leaves; a restart finds all."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    async with tiers(delivery, components, policy=policy, **fields) as t:
        assert t.store is not None
        await t.put(t.key(4))
        held = await t.match(t.key(4), lock=True)
        await t.put(t.key(8), prev=4)
        await t.put(t.key([*t.span(4), *t.span(4, 300)]), prev=4)
        await t.match(t.key(8))
        await t.settle()
        await t.demote()
        await t.settle()
        if policy != "write_through_selective":
            assert [end for _, end, bits in t.picture() if "S" in bits] == [4, 8, 8]
        place = {name: at for at, name in enumerate(t.store.order)}
        names = chains(t, 8)
        for before, after in itertools.pairwise(names):
            for name, at in place.items():
                if name.startswith(after):
                    assert min(k for n, k in place.items() if n.startswith(before)) < at
        assert held.receipt is not None
        await t.cache.dec_lock_ref(held.receipt)
        stored = [end for _, end, bits in t.picture() if "S" in bits]
    async with tiers(delivery, components, **fields) as t:
        assert await fetched(t, t.key(8)) == max(stored, default=0)
        assert await t.load(t.key(8)) == max(stored, default=0)


@everywhere
async def test_k11_11_what_the_host_has_is_not_fetched_and_what_comes_goes_behind_it(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """Two pages on the host and two in storage are four, in order, and only two are read."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    fields["window"] = 2
    async with tiers(delivery, components, **fields) as t:
        await t.put(t.key(2))
        await t.put(t.key(4), prev=2)
        await t.settle()
    async with tiers(delivery, components, **fields) as t:
        assert t.store is not None
        assert await fetched(t, t.key(2)) == 2
        t.store.reads.clear()
        assert await fetched(t, t.key(4)) == 2
        read = {number(t, PageKey(name.rpartition(".")[0], None, "x")) for name in t.store.reads}
        assert read == {2, 3}
        assert t.picture() == [(0, 2, "HS"), (2, 4, "HS")]
        assert await t.hit(t.key(4)) == (0, 4)
        assert await t.load(t.key(4)) == 4


@everywhere
@pytest.mark.parametrize("wrong", [0, 2, 3])
async def test_k11_12_bytes_that_are_another_pages_are_found_and_are_a_miss(
    delivery: Delivery, components: Components, page_size: int, wrong: int, tmp_path: Path
) -> None:
    """A store answers with reused memory: it never gets to a model, is counted, and goes away."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    fields["window"] = 2
    async with tiers(delivery, components, **fields) as t:
        await t.put(t.key(2))
        await t.put(t.key(4), prev=2)
        await t.settle()
    async with tiers(delivery, components, **fields, drain=False) as t:
        assert t.store is not None
        t.store.lies = lambda key: key.pool == components[-1] and number(t, key) == wrong
        await fetched(t, t.key(4))
        usable = await t.load(t.key(4))
        if t.store.lied:
            assert usable in (0, 2)
            await t.cache.drain()
            assert await t.count("bad_pages") > 0
            assert sum(await t.hit(t.key(4))) < 4, "the wrong copy is gone"
        else:
            assert usable == 4
        t.store.lies = lambda _: False
        await fetched(t, t.key(4))
        await t.load(t.key(4))
        await t.cache.flush("device", timeout=20)
        await t.cache.flush("host", timeout=20)
        assert await fetched(t, t.key(4)) == 4
        assert await t.load(t.key(4)) == 4
        await t.drain_and_check()


@everywhere
async def test_k11_12_a_host_page_that_was_damaged_is_not_served(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """The digest from the device tells: a shorter hit, a count, and the next use computes it."""
    async with tiers(delivery, components, page_size=page_size, window=2, drain=False) as t:
        await t.put(t.key(2))
        await t.put(t.key(4), prev=2)
        await t.settle()
        await t.demote()
        name = components[-1]
        part = t.cache._components[len(components) - 1]
        pool = t.cache.host_pools[name]
        for node in t.cache._state.tree:
            value = part.data(node).host_value
            if node.end == 4 * page_size and value is not None:
                page = int(value[-1]) // pool.page_size
                torn = (await asyncio.to_thread(_pages_of, pool, page)) ^ 0xFF
                pool.write_pages(_one(page), torn)
        found = await t.match(t.key(4))
        assert found.host_hit_length == 4 * page_size
        async with await t.cache.load_back(found) as handle:
            length = await handle.wait()
        assert length in (0, 2 * page_size)
        assert await t.count("bad_pages") == 1
        await t.cache.drain()
        assert sum(await t.hit(t.key(4))) <= 2
        await t.load(t.key(4))
        await t.put(t.key(4))
        await t.settle()
        await t.demote()
        assert await t.load(t.key(4)) == 4
        await t.drain_and_check()


def _one(page: int) -> Any:
    import numpy as np

    return np.array([page], dtype=np.int64)


def _pages_of(pool: Any, page: int) -> Any:
    import numpy as np

    data = np.empty((1, pool.page_bytes), dtype=np.uint8)
    pool.read_pages(_one(page), data)
    return data


@everywhere
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"extra_key": "a"}, {"extra_key": "b"}),
        ({}, {"cache_salt": "a"}),
        ({"extra_key": "x"}, {"cache_salt": "x"}),
        ({"extra_key": "ab", "cache_salt": "c"}, {"extra_key": "a", "cache_salt": "bc"}),
        ({"extra_key": "adapter@1"}, {"extra_key": "adapter@2"}),
    ],
    ids=str,
)
async def test_k13_2_to_5_in_storage_too_a_namespace_finds_its_own_and_nothing_else(
    delivery: Delivery,
    components: Components,
    page_size: int,
    one: dict[str, str],
    other: dict[str, str],
    tmp_path: Path,
) -> None:
    """Paired: under another namespace nothing is found, under the same one all is."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    async with tiers(delivery, components, **fields) as t:
        await t.put(t.key(4, **one))
        await t.settle()
    async with tiers(delivery, components, **fields) as t:
        assert await fetched(t, t.key(4, **other)) == 0
        assert await t.hit(t.key(4, **other)) == (0, 0)
        assert await fetched(t, t.key(4, **one)) == 4
        assert await t.hit(t.key(4, **other)) == (0, 0)
        assert await t.load(t.key(4, **one)) == 4
        assert await t.hit(t.key(4, **other)) == (0, 0)


@everywhere
@pytest.mark.parametrize(
    "changed",
    [
        {"weight_version": "2"},
        {"model": "other"},
        {"rank": 1, "ranks": 2},
        {"rank": 0, "ranks": 2},
    ],
    ids=str,
)
async def test_k13_7_other_weights_models_and_shards_find_nothing_in_storage(
    delivery: Delivery,
    components: Components,
    page_size: int,
    changed: dict[str, Any],
    tmp_path: Path,
) -> None:
    """Whose bytes they are is part of their name, also where a cache changes its storage."""
    mine = {**PATIENT, "weight_version": "1", "model": "one"}
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path)}
    async with tiers(delivery, components, storage=mine, **fields) as t:
        await t.put(t.key(4))
        await t.settle()
    async with tiers(delivery, components, storage={**mine, **changed}, **fields) as t:
        assert await fetched(t, t.key(4)) == 0
        await t.cache.detach_storage()
        section = StorageConfig(url=address(tmp_path), prefetch_threshold=0, **mine)
        await t.cache.attach_storage(section)
        assert await fetched(t, t.key(4)) == 4
        assert await t.load(t.key(4)) == 4
    for version, found in (({**mine, **changed}, 0), (mine, 4)):
        async with tiers(delivery, components, storage=version, **fields) as t:
            assert await fetched(t, t.key(4)) == found


@everywhere
async def test_k13_6_a_guess_under_another_salt_learns_nothing_from_any_tier(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """Neither a hit on host or storage nor a reason tells a tenant what another has."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    async with tiers(delivery, components, **fields) as t:
        mine, guess = t.key(4, cache_salt="victim"), t.key(4, cache_salt="attacker")

        async def learns_nothing() -> None:
            found = await t.match(guess)
            assert (len(found.device_indices), found.host_hit_length) == (0, 0)
            assert found.miss_reason is MissReason.NEVER_STORED
            assert (found.swa_host_hit_length, found.mamba_host_hit_length) == (0, 0)
            assert await fetched(t, guess) == 0

        await t.put(mine)
        await t.settle()
        await learns_nothing()
        await t.demote()
        assert (await t.match(mine)).miss_reason is MissReason.ON_HOST
        await learns_nothing()
        await t.cache.flush("host", timeout=20)
        await learns_nothing()
        assert (await t.match(mine)).miss_reason is MissReason.IN_STORAGE
        await learns_nothing()
        assert "victim" not in await t.cache.pretty_print()


@everywhere
async def test_k11_9_stores_that_wait_are_bounded_and_all_come_in_the_end(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """No more writes are under way than the queue allows, however many nodes there are."""
    bounded = {**PATIENT, "queue_max": 3}
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "pages": 80}
    async with tiers(delivery, components, storage=bounded, states=40, **fields) as t:
        store = t.store
        assert store is not None
        store.hold("put_from")
        for at in range(12):
            await t.put(t.key(t.span(2, 100 * at)))
            await t.copied()
        await until(lambda: store.waiting("put_from") == 3, TURNS_MAX)
        await t.sound()
        await t.settle()
        assert {bits for _, _, bits in t.picture()} == {"DHS"}
