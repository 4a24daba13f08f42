"""Stores with a size limit: the oldest go, children before their parents."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from radixtide.tiers.storage import PageKey, StorageBackend, open_storage
from radixtide.tiers.storage import lmdb_store as lmdb_module
from radixtide.tiers.storage.files import _on_disk
from radixtide.tiers.storage.frame import HEADER
from radixtide.tiers.storage.lmdb_books import footprint
from support.lru_model import LruModel
from support.rooms import ROOT
from support.stores import FileRig, chain, page_bytes, page_keys, targets

LENGTH = 5000
ROOM = 24
"""Pages of LENGTH that the stores below hold."""

KINDS = ("lmdb", "file")


def counted(kind: str, length: int) -> int:
    """Return what a page counts for (its head has a parent's name of 97 letters or none)."""
    return footprint(length) if kind == "lmdb" else _on_disk(length + HEADER)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def limited(kind: str, folder: Path, pages: int = ROOM) -> StorageBackend:
    options = "?sync=0" if kind == "lmdb" else ""
    return open_storage(f"{kind}:{folder}{options}", max_bytes=pages * counted(kind, LENGTH))


async def stored(store: StorageBackend, keys: list[PageKey]) -> list[PageKey]:
    return [key for key, there in zip(keys, await store.exists(keys), strict=True) if there]


async def test_the_oldest_line_goes_from_its_end(kind: str, tmp_path: Path) -> None:
    async with limited(kind, tmp_path) as store:
        for line in range(3):
            assert all(await store.put_from(page_keys(8, line=line), page_bytes(8)))
        assert await store.put_from(page_keys(3, line=3), page_bytes(3)) == [True] * 3
        assert await store.exists(page_keys(8, line=0)) == [True] * 5 + [False] * 3
        for line, count in ((1, 8), (2, 8), (3, 3)):
            assert await store.exists(page_keys(count, line=line)) == [True] * count
        assert store.stats().evicted == 3
        assert store.stats().values == ROOM


async def test_reading_keeps_a_line(kind: str, tmp_path: Path) -> None:
    async with limited(kind, tmp_path) as store:
        for line in range(3):
            await store.put_from(page_keys(8, line=line), page_bytes(8))
        assert all(await store.get_into(page_keys(8, line=0), targets(8)))
        await store.put_from(page_keys(8, line=3), page_bytes(8))
        assert await store.exists(page_keys(8, line=0)) == [True] * 8
        assert not any(await store.exists(page_keys(8, line=1)))


async def test_a_parent_stays_for_its_youngest_child(kind: str, tmp_path: Path) -> None:
    async with limited(kind, tmp_path, pages=8) as store:
        trunk = page_keys(4)
        await store.put_from(trunk, page_bytes(4))
        for n in range(40):
            branch = PageKey(chain(n, 9), trunk[-1].chain, "kv")
            assert await store.put_from([branch], page_bytes(1)) == [True]
            assert await store.exists([*trunk, branch]) == [True] * 5
        assert store.stats().evicted == 36


async def test_the_pools_of_a_page_go_together(kind: str, tmp_path: Path) -> None:
    async with limited(kind, tmp_path) as store:
        pools = ("kv", "window", "state")
        for line in range(5):
            assert all(await store.put_from(page_keys(2, pools, line=line), page_bytes(6)))
        for line, there in ((0, [False] * 6), (1, [True] * 6), (4, [True] * 6)):
            assert await store.exists(page_keys(2, pools, line=line)) == there


async def test_a_node_larger_than_the_store_is_refused(kind: str, tmp_path: Path) -> None:
    async with limited(kind, tmp_path, pages=4) as store:
        await store.put_from(page_keys(2, line=7), page_bytes(2))
        large = page_bytes(1, LENGTH * 8)
        assert await store.put_from(page_keys(1), large) == [False]
        assert await store.exists(page_keys(2, line=7)) == [True] * 2
        assert await store.exists(page_keys(1)) == [False]
        assert store.stats().refused == 1


async def test_a_line_longer_than_the_store_keeps_its_beginning(kind: str, tmp_path: Path) -> None:
    async with limited(kind, tmp_path) as store:
        for at in range(0, ROOM, 4):
            assert await store.put_from(page_keys(4, first=at), page_bytes(4)) == [True] * 4
        for _ in range(2):
            more = page_keys(4, first=ROOM)
            assert await store.put_from(more, page_bytes(4)) == [False] * 4
        assert await store.exists(page_keys(40)) == [True] * ROOM + [False] * (40 - ROOM)
        # The line is what the store is full of; other data makes its end go.
        assert await store.put_from(page_keys(1, line=1), page_bytes(1)) == [True]
        assert await store.exists(page_keys(40)) == [True] * (ROOM - 1) + [False] * (41 - ROOM)


async def test_a_lower_limit_holds_from_the_next_open_on(kind: str, tmp_path: Path) -> None:
    async with limited(kind, tmp_path) as store:
        await store.put_from(page_keys(10, line=0), page_bytes(10))
        await store.put_from(page_keys(10, line=1), page_bytes(10))
    async with limited(kind, tmp_path, pages=12) as store:
        assert store.stats().values == 12
        assert await store.exists(page_keys(10, line=1)) == [True] * 10
        assert await store.exists(page_keys(10, line=0)) == [True] * 2 + [False] * 8


async def test_a_page_whose_parent_comes_later_still_counts_as_its_child(
    kind: str, tmp_path: Path
) -> None:
    async with limited(kind, tmp_path, pages=4) as store:
        keys = page_keys(2)
        await store.put_from(keys[1:], page_bytes(1))
        await store.put_from(keys[:1], page_bytes(1))
        assert all(await store.get_into(keys[1:], targets(1)))
        for line in range(1, 9):
            await store.put_from(page_keys(1, line=line), page_bytes(1))
            await store.get_into(keys[1:], targets(1))
        assert await store.exists(keys) == [True, True]


async def test_deleting_makes_room(kind: str, tmp_path: Path) -> None:
    async with limited(kind, tmp_path, pages=6) as store:
        keys = page_keys(6)
        await store.put_from(keys, page_bytes(6))
        await store.delete(keys[3:])
        assert await store.put_from(page_keys(3, line=1), page_bytes(3)) == [True] * 3
        assert store.stats().evicted == 0
        await store.clear()
        assert (store.stats().values, store.stats().bytes) == (0, 0)
        assert await store.put_from(page_keys(6, line=2), page_bytes(6)) == [True] * 6
        assert store.stats().evicted == 0


@pytest.mark.parametrize("seed", range(3))
async def test_random_trees_are_held_as_the_model_says(
    kind: str, seed: int, tmp_path: Path
) -> None:
    """Lines that share beginnings, several pools, reads, deletions; closed and opened again."""
    dice = random.Random(seed)
    model = LruModel(ROOM * counted(kind, LENGTH), lambda length: counted(kind, length))
    tree: dict[str, str | None] = {}
    every: dict[str, PageKey] = {}
    store = limited(kind, tmp_path)
    await store.open()
    refused = 0
    for step in range(120):
        what = dice.random()
        if what < 0.55 or not tree:
            above = dice.choice([None, *tree])
            keys = []
            for n in range(dice.randint(1, 4)):
                own = chain(step, n)
                tree[own] = above
                pools = ["kv"] + ["state"] * dice.randint(0, 1)
                keys += [PageKey(own, above, pool) for pool in pools]
                above = own
            every |= {key.name: key for key in keys}
            answers = await store.put_from(keys, page_bytes(len(keys), LENGTH, seed=step))
            assert len(set(answers)) == 1 or kind == "file"
            if all(answers):
                assert model.put(keys, LENGTH)
            else:
                refused += 1
                assert not model.put(keys, LENGTH)
                if kind == "file":
                    # It has no transactions: what it stored before there was no room is there.
                    break
        elif what < 0.85:
            keys = [every[name] for name in dice.sample(sorted(every), min(len(every), 3))]
            found = await store.get_into(keys, targets(len(keys)))
            assert found == [key.name in model.names() for key in keys]
            for key, there in zip(keys, found, strict=True):
                if there:
                    model.use(key.chain)
        elif what < 0.92:
            key = every[dice.choice(sorted(every))]
            await store.delete([key])
            model.delete(key)
        elif kind == "lmdb":
            await store.close()
            await store.open()
        assert {key.name for key in await stored(store, list(every.values()))} == model.names()
        assert store.stats().bytes == model.total() <= model.limit
        assert store.stats().values == len(model.names())
    await store.close()
    assert store.stats().evicted > 5


async def test_no_page_is_orphaned_across_restarts(kind: str, tmp_path: Path) -> None:
    dice = random.Random(5)
    keys: dict[str, PageKey] = {}
    for turn in range(6):
        async with limited(kind, tmp_path) as store:
            for step in range(25):
                line = dice.randint(0, 12)
                first = dice.randint(0, 5)
                # As a caller does: only what goes on from what is there.
                while first and not all(await store.exists(page_keys(first, line=line))):
                    first -= 1
                node = page_keys(dice.randint(1, 4), first=first, line=line)
                await store.put_from(node, page_bytes(len(node), LENGTH, seed=turn * 100 + step))
                keys |= {key.chain: key for key in node}
                there = {key.chain for key in await stored(store, list(keys.values()))}
                assert all(keys[one].parent in there for one in there if keys[one].parent)
            assert len(there) <= ROOM
    assert len(there) > ROOM // 2


async def test_pages_of_mixed_sizes_come_and_go_in_a_small_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is free lies in pieces: the store makes room, or says that there is none."""
    monkeypatch.setattr(lmdb_module, "SMALLEST_MAP", 2**17)
    limit = 2**20
    dice = random.Random(3)
    async with open_storage(f"lmdb:{tmp_path}?sync=0", max_bytes=limit) as store:
        good = 0
        for step in range(300):
            size = dice.choice((100, 5000, 60_000, 300_000))
            key, page, out = (
                page_keys(1, line=step),
                page_bytes(1, size, seed=step),
                targets(1, size),
            )
            if await store.put_from(key, page) == [True]:
                good += 1
                assert await store.get_into(key, out) == [True]
                assert out == page
        assert good > 290
        assert (store.stats().bytes or 0) <= limit
    assert (tmp_path / "data.mdb").stat().st_size <= limit + limit // 2 + 2**17


def test_an_unlimited_map_takes_what_address_space_there_is(tmp_path: Path) -> None:
    program = f"""
import asyncio, resource
from support.store_writer import storage
resource.setrlimit(resource.RLIMIT_AS, (2**35, 2**35))
async def main():
    async with storage().open_storage("lmdb:{tmp_path}?sync=0") as store:
        key = [storage().PageKey("a", None, "kv")]
        assert await store.put_from(key, [memoryview(b"x" * 9)]) == [True]
        out = memoryview(bytearray(9))
        assert await store.get_into(key, [out]) == [True] and out == b"x" * 9
asyncio.run(main())
"""
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, check=False, cwd=ROOT / "tests").returncode == 0


async def test_left_over_files_are_removed_and_those_in_use_are_not(tmp_path: Path) -> None:
    import fcntl

    rig = FileRig(tmp_path)
    async with rig.store() as store:
        await store.put_from(page_keys(1), page_bytes(1))
    (page,) = rig.paths()
    left, used = page.with_name(".1-0.tmp"), page.with_name(".2-0.tmp")
    left.write_bytes(b"half a page")
    with used.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        async with rig.store() as store:
            assert sorted(path.name for path in rig.paths()) == [used.name, page.name]
            await store.clear()
            assert [path.name for path in rig.paths()] == [used.name]
    async with rig.store():
        assert rig.paths() == []


async def test_what_is_no_page_of_ours_is_left_out_of_the_books(tmp_path: Path) -> None:
    rig = FileRig(tmp_path)
    async with rig.store(max_bytes=2**20) as store:
        await store.put_from(page_keys(2), page_bytes(2))
    rig.write(page_keys(1, line=5)[0], b"garbage")
    async with rig.store(max_bytes=2**20) as store:
        assert store.stats().values == 2
        assert await store.exists(page_keys(1, line=5)) == [False]


async def test_names_of_pages_do_not_wear_out_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interned strings lie in one table of the process, which many new names make grow anew."""
    interned: list[str] = []
    intern = sys.intern

    def noted(text: str) -> str:
        interned.append(text)
        return intern(text)

    monkeypatch.setattr(sys, "intern", noted)
    for _ in range(2):
        async with limited("file", tmp_path) as store:
            for line in range(4):
                keys = page_keys(8, line=line)
                assert all(await store.put_from(keys, page_bytes(8)))
                assert any(await store.exists(keys))
                assert any(await store.get_into(keys, targets(8)))
            assert store.stats().evicted > 0
            await store.delete(page_keys(8, line=3))
    names = {key.name for line in range(4) for key in page_keys(8, line=line)}
    assert not names.intersection(interned)
