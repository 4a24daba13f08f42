"""What every store must do, on real servers where it needs one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import numpy as np
import pytest

from radixtide.configs.errors import InvalidInput
from radixtide.tiers.storage import PageKey, StorageBackend, StorageClosed
from support.stores import Rig, page_bytes, page_keys, targets
from support.stores import rig as rig


@pytest.fixture
async def store(rig: Rig) -> AsyncGenerator[StorageBackend, None]:
    opened = await rig.opened()
    yield opened
    await rig.done(opened)


@pytest.mark.usefixtures("no_blocking")
async def test_what_is_put_comes_back(store: StorageBackend) -> None:
    keys, pages, out = page_keys(9), page_bytes(9), targets(9)
    assert await store.put_from(keys, pages) == [True] * 9
    assert await store.exists(keys) == [True] * 9
    assert await store.get_into(keys, out) == [True] * 9
    assert out == pages


@pytest.mark.usefixtures("no_blocking")
async def test_what_is_missing_is_told_and_its_target_is_not_touched(
    store: StorageBackend,
) -> None:
    keys, pages, out = page_keys(4), page_bytes(4), targets(4)
    await store.put_from(keys[:1] + keys[2:3], pages[:1] + pages[2:3])
    before = store.stats()
    assert await store.exists(keys) == [True, False, True, False]
    assert await store.get_into(keys, out) == [True, False, True, False]
    assert out == [pages[0], targets(1)[0], pages[2], targets(1)[0]]
    assert store.stats().misses - before.misses == 2
    assert store.stats().hits - before.hits == 2
    assert store.stats().bad == before.bad


async def test_pools_of_one_page_are_values_of_their_own(store: StorageBackend) -> None:
    keys, pages = page_keys(3, ("kv", "window", "state")), page_bytes(9)
    await store.put_from(keys, pages)
    out = targets(3)
    assert await store.get_into(keys[1::3], out) == [True] * 3
    assert out == pages[1::3]


async def test_pages_of_one_call_may_differ_in_size(store: StorageBackend) -> None:
    sizes = [1, 63, 64, 4096, 100_000, 1_000_003]
    pages = [page_bytes(1, size)[0] for size in sizes]
    out = [targets(1, size)[0] for size in sizes]
    keys = page_keys(len(sizes))
    assert all(await store.put_from(keys, pages))
    assert all(await store.get_into(keys, out))
    assert out == pages


async def test_digests_travel_with_the_pages(store: StorageBackend) -> None:
    keys, pages = page_keys(3), page_bytes(3)
    given = np.array([0, 2**64 - 1, 7], np.uint64)
    await store.put_from(keys, pages, given)
    found = np.full(4, 99, np.uint64)
    asked = [keys[2], *page_keys(1, first=50), keys[0], keys[1]]
    assert await store.get_into(asked, targets(4), found) == [True, False, True, True]
    assert found.tolist() == [7, 99, 0, 2**64 - 1]


async def test_a_digest_that_was_not_given_is_computed_from_the_bytes(
    store: StorageBackend,
) -> None:
    keys, pages, found = page_keys(2), page_bytes(2), np.zeros(2, np.uint64)
    await store.put_from(keys, [pages[0], pages[0]])
    await store.get_into(keys, targets(2), found)
    assert found[0] == found[1] != 0


async def test_a_page_is_replaced(store: StorageBackend) -> None:
    keys, old, new, out = page_keys(3), page_bytes(3), page_bytes(3, 700, seed=1), targets(3, 700)
    await store.put_from(keys, old)
    assert await store.put_from(keys, new) == [True] * 3
    assert await store.get_into(keys, out) == [True] * 3
    assert out == new


async def test_the_same_page_again_is_stored(store: StorageBackend) -> None:
    keys, pages, out = page_keys(2), page_bytes(2), targets(2)
    for _ in range(3):
        assert await store.put_from(keys, pages) == [True] * 2
    assert all(await store.get_into(keys, out))
    assert out == pages


async def test_one_name_twice_in_a_call_is_one_page(store: StorageBackend) -> None:
    keys, pages, out = page_keys(1), page_bytes(2), targets(2)
    assert await store.put_from(keys * 2, pages) == [True] * 2
    assert all(await store.get_into(keys * 2, out))
    assert out[0] == out[1]
    assert out[0] in pages


async def test_deleted_pages_are_gone_and_others_stay(store: StorageBackend) -> None:
    keys, pages = page_keys(4), page_bytes(4)
    await store.put_from(keys, pages)
    await store.delete([keys[1], keys[3], *page_keys(1, first=77)])
    assert await store.exists(keys) == [True, False, True, False]
    await store.delete(keys[:1])
    assert await store.get_into(keys, targets(4)) == [False, False, True, False]


async def test_clear_removes_all_pages(store: StorageBackend) -> None:
    keys = page_keys(30)
    await store.put_from(keys, page_bytes(30, 100))
    await store.clear()
    assert not any(await store.exists(keys))
    assert not any(await store.get_into(keys, targets(30, 100)))
    assert await store.put_from(keys[:1], page_bytes(1)) == [True]


async def test_a_page_of_another_length_is_bad_and_goes(store: StorageBackend) -> None:
    keys = page_keys(2)
    await store.put_from(keys, page_bytes(2))
    before = store.stats().bad
    assert await store.get_into(keys, [targets(1, 4999)[0], targets(1, 5001)[0]]) == [False] * 2
    assert store.stats().bad - before == 2
    assert await store.exists(keys) == [False] * 2


async def test_nothing_is_asked_for_and_nothing_is_done(store: StorageBackend) -> None:
    assert await store.exists([]) == []
    assert await store.get_into([], []) == []
    assert await store.put_from([], []) == []
    await store.delete([])


async def test_memory_that_can_not_be_used_is_refused(store: StorageBackend) -> None:
    keys, pages = page_keys(2), page_bytes(2)
    with pytest.raises(InvalidInput, match="2 keys with 1"):
        await store.get_into(keys, targets(1))
    with pytest.raises(InvalidInput, match="2 keys with 1"):
        await store.put_from(keys, pages[:1])
    with pytest.raises(InvalidInput, match="digests"):
        await store.put_from(keys, pages, np.zeros(3, np.uint64))
    with pytest.raises(InvalidInput, match="written"):
        await store.get_into(keys[:1], [memoryview(bytes(5000))])
    with pytest.raises(InvalidInput, match="contiguous"):
        await store.put_from(keys[:1], [pages[0][::2]])


async def test_sources_and_targets_may_be_arrays_of_any_type(store: StorageBackend) -> None:
    page = np.arange(600, dtype=np.float32).reshape(20, 30)
    out = np.zeros((3, 200), np.int32)
    key = page_keys(1)
    assert await store.put_from(key, [page.data]) == [True]
    assert await store.get_into(key, [out.data]) == [True]
    assert out.tobytes() == page.tobytes()


@pytest.mark.usefixtures("no_blocking")
async def test_calls_run_side_by_side(store: StorageBackend) -> None:
    lines = [page_keys(4, ("kv", "state"), line=line) for line in range(12)]
    pages = [page_bytes(8, 3000, seed=line) for line in range(12)]
    before = store.stats()

    async def one(line: int) -> None:
        out = targets(8, 3000)
        assert all(await store.put_from(lines[line], pages[line]))
        assert all(await store.exists(lines[line]))
        assert all(await store.get_into(lines[line], out))
        assert out == pages[line]
        await store.delete(lines[line][:2])
        assert await store.exists(lines[line][:4]) == [False, False, True, True]

    await asyncio.gather(*map(one, range(12)))
    after = store.stats()
    assert after.puts - before.puts == after.hits - before.hits == 96
    assert after.put_bytes - before.put_bytes == after.get_bytes - before.get_bytes == 96 * 3000


async def test_writers_of_one_name_leave_one_of_their_pages(store: StorageBackend) -> None:
    key, pages, out = page_keys(1), page_bytes(6, 50_000), targets(1, 50_000)
    await asyncio.gather(*(store.put_from(key, [page]) for page in pages))
    assert await store.get_into(key, out) == [True]
    assert out[0] in pages


@pytest.mark.usefixtures("no_blocking")
async def test_a_closed_store_says_so(rig: Rig) -> None:
    store, keys = rig.store(), page_keys(1)
    with pytest.raises(StorageClosed):
        await store.exists(keys)
    async with store:
        await store.put_from(keys, page_bytes(1))
    for call in (
        lambda: store.exists(keys),
        lambda: store.get_into(keys, targets(1)),
        lambda: store.put_from(keys, page_bytes(1)),
        lambda: store.delete(keys),
        store.clear,
    ):
        with pytest.raises(StorageClosed):
            await call()
    await store.close()
    assert store.stats().puts == 1


async def test_a_later_store_finds_what_an_earlier_one_stored(rig: Rig) -> None:
    keys, pages, out = page_keys(5, ("kv", "state")), page_bytes(10), targets(10)
    async with rig.store() as first:
        await first.put_from(keys, pages)
    async with rig.store() as second:
        assert await second.exists(keys) == [True] * 10
        assert await second.get_into(keys, out) == [True] * 10
    assert out == pages


async def test_a_store_that_is_opened_again_works(rig: Rig) -> None:
    store, keys, pages, out = rig.store(), page_keys(1), page_bytes(1), targets(1)
    async with store:
        await store.put_from(keys, pages)
    async with store:
        await store.open()
        assert await store.get_into(keys, out) == [True]
    assert out == pages


@pytest.mark.parametrize(
    ("chain", "parent", "pool"),
    [
        ("../x", None, "kv"),
        ("a.b", None, "kv"),
        ("", None, "kv"),
        ("a", "b/c", "kv"),
        ("a", None, "k v"),
        ("a", None, ""),
        ("a", "a", "kv"),
        ("a" * 161, None, "kv"),
        ("a\n", None, "kv"),
    ],
)
def test_a_name_that_some_store_could_not_hold_is_refused(
    chain: str, parent: str | None, pool: str
) -> None:
    with pytest.raises(InvalidInput):
        PageKey(chain, parent, pool)
