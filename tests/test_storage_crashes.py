"""Processes killed with -9 in the middle of writing, ours and the server's: no wrong page, ever."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from radixtide.tiers.storage import PageKey, StorageBackend, StorageFailed, open_storage
from radixtide.tiers.storage.files import TEMPORARY
from support.rooms import ROOT
from support.servers import Server
from support.store_writer import NODE_MAX, POOLS, SIZES, node
from support.stores import FileRig, page_bytes, page_keys, targets

LIMIT = 2**20
ATOMIC = ("lmdb", "lmdb without sync", "lmdb with a limit", "redis")
"""Where the pages of a call are there together or not at all."""


class Killed(NamedTuple):
    """A place that a killed process wrote to: its URL, and pages of each line that were stored."""

    url: str
    limit: int
    told: dict[int, int]


@pytest.fixture(scope="module")
def killed(
    tmp_path_factory: pytest.TempPathFactory,
    redis_server: Server,
    s3_server: Server,
    mooncake_server: Server,
    mooncake_shared: StorageBackend,
) -> dict[str, Killed]:
    """Let a process write to stores of every kind, twice, and kill it in the middle each time."""
    folder = tmp_path_factory.mktemp("killed")
    urls = {
        "lmdb": f"lmdb:{folder}/synced",
        "lmdb without sync": f"lmdb:{folder}/lmdb?sync=0",
        "lmdb with a limit": f"lmdb:{folder}/lmdb-limit?sync=0#{LIMIT}",
        "file": f"file:{folder}/files",
        "file with a limit": f"file:{folder}/files-limit#{LIMIT}",
        "object+file": f"object+file:{folder}/objects",
        "redis": f"redis://{redis_server.address}/2",
        "s3": f"s3://pages/killed?endpoint=http://{s3_server.address}&region=us-east-1",
        "mooncake": f"mooncake://{mooncake_server.address}?segment=0&buffer=8MiB",
    }
    told: list[dict[int, int]] = [{} for _ in urls]
    for lines in (90, 25):
        with subprocess.Popen(
            [sys.executable, "-m", "support.store_writer", *urls.values()],
            cwd=ROOT / "tests",
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            seen = [0] * len(urls)
            for text in process.stdout:
                place, line, pages = map(int, text.split())
                told[place][line] = max(told[place].get(line, 0), pages)
                seen[place] += 1
                if min(seen) > 3 and sum(seen) > lines:
                    break
            process.kill()
    return {
        kind: Killed(url.partition("#")[0], int(url.partition("#")[2] or 0), told[place])
        for place, (kind, url) in enumerate(urls.items())
    }


KINDS = (*ATOMIC, "file", "file with a limit", "object+file", "s3", "mooncake")


@pytest.mark.parametrize("kind", KINDS)
async def test_after_our_own_death_pages_are_right_or_missing(
    kind: str, killed: dict[str, Killed]
) -> None:
    url, limit, told = killed[kind]
    async with open_storage(url, max_bytes=limit) as store:
        right = 0
        orphaned = []
        # Beyond what it told lies what it was at when it died.
        for line in range(max(told) + 3):
            there: dict[PageKey, bool] = {}
            first = 0
            for _ in range(2):
                names, pages = node(line, first)
                keys = [PageKey(*name) for name in names]
                out = [memoryview(bytearray(len(page))) for page in pages]
                found = await store.get_into(keys, out)
                assert [bytes(o) for o, f in zip(out, found, strict=True) if f] == [
                    p for p, f in zip(pages, found, strict=True) if f
                ]
                right += sum(found)
                there |= dict(zip(keys, found, strict=True))
                first += len(names) // len(POOLS)
                if kind in ATOMIC and not limit:
                    assert len(set(found)) == 1, (line, found)
                if not limit and kind != "mooncake" and told.get(line, 0) >= first:
                    # What was stored is there: a crash of ours loses what was under way.
                    # (Mooncake also loses what was being replaced.)
                    assert all(found), (line, found)
            stored = {key.chain for key, found_one in there.items() if found_one}
            if not all(key.parent in stored for key in there if there[key] and key.parent):
                orphaned.append(line)
        # Only Mooncake may lose a node before those that follow it (readers take what leads only):
        # the one that the second process was replacing when it died.
        assert len(orphaned) <= (kind == "mooncake"), orphaned
        assert right > 10
        assert store.stats().bad == 0
        if limit:
            assert store.stats().evicted == 0
            assert (store.stats().bytes or 0) <= limit
        # And it goes on.
        assert await store.put_from(page_keys(2, line=99), page_bytes(2)) == [True] * 2


def test_what_a_killed_writer_left_is_cleaned_up(tmp_path: Path) -> None:
    """A process is killed while its file has its temporary name: the next to open removes it."""
    program = f"""
import os, signal
from support.store_writer import storage
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
import asyncio
async def main():
    async with storage().open_storage("file:{tmp_path}") as store:
        await store.put_from([storage().PageKey("a", None, "kv")], [memoryview(b"x" * 9)])
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, cwd=ROOT / "tests")
    assert done.returncode == -9
    rig = FileRig(tmp_path)
    assert [path.name.endswith(TEMPORARY) for path in rig.paths()] == [True]

    async def reopen() -> list[bool]:
        async with rig.store() as store:
            return await store.exists([PageKey("a", None, "kv")])

    assert asyncio.run(reopen()) == [False]
    assert rig.paths() == []


async def written_until_it_fails(store: StorageBackend, stop: Callable[[], None]) -> int:
    """Write lines, `stop` the server in the middle, and return how many were stored before."""
    done = 0

    async def write(line: int) -> None:
        nonlocal done
        if (
            await store.put_from(page_keys(4, line=line), page_bytes(4, 50_000, seed=line))
            == [True] * 4
        ):
            done += 1
            if done == 10:
                await asyncio.to_thread(stop)

    async def writer(first: int) -> None:
        for line in range(first, 400, 4):
            await write(line)

    with pytest.raises(StorageFailed):
        await asyncio.wait_for(asyncio.gather(*map(writer, range(4))), 60)
    return done


@pytest.mark.parametrize("kind", ["redis", "s3", "mooncake"])
async def test_after_the_servers_death_pages_are_right_or_missing(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    shared = request.getfixturevalue("mooncake_shared") if kind == "mooncake" else None
    store = shared or open_storage(
        {
            "redis": f"redis://{server.address}/3",
            "s3": f"s3://pages/dies?endpoint=http://{server.address}&region=us-east-1",
        }[kind],
        timeout_s=2.0,
    )
    await store.open()
    bad = store.stats().bad
    done = await written_until_it_fails(store, server.kill)
    assert done >= 10
    await asyncio.to_thread(server.start)

    # The same store finds the server again.
    for _ in range(400):
        try:
            if await store.put_from(page_keys(2, line=999), page_bytes(2)) == [True] * 2:
                break
        except StorageFailed:
            pass
        await asyncio.to_thread(threading.Event().wait, 0.05)
    out = targets(2)
    assert await store.get_into(page_keys(2, line=999), out) == [True] * 2
    assert out == page_bytes(2)
    right = 0
    for line in range(done + 10):
        out = targets(4, 50_000)
        found = await store.get_into(page_keys(4, line=line), out)
        pages = page_bytes(4, 50_000, seed=line)
        assert [o for o, f in zip(out, found, strict=True) if f] == [
            p for p, f in zip(pages, found, strict=True) if f
        ]
        right += all(found)
        if kind == "redis":
            assert len(set(found)) == 1
    if kind == "redis":
        assert right >= done
    assert store.stats().bad == bad
    if shared is None:
        await store.close()


@pytest.mark.parametrize("kind", ["lmdb", "redis"])
async def test_the_pages_of_a_call_become_visible_together(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if kind == "lmdb":
        url = f"lmdb:{tmp_path}?sync=0"
    else:
        url = f"redis://{request.getfixturevalue('redis_server').address}/1"
    async with open_storage(url) as store:
        await store.clear()
        seen = set()
        for line in range(20):
            keys = page_keys(6, ("kv", "state", "window"), line=line)
            write = asyncio.ensure_future(store.put_from(keys, page_bytes(18, 60_000)))
            while not write.done():
                there = await store.exists(keys)
                assert len(set(there)) == 1, there
                seen.add(there[0])
            assert await write == [True] * 18
        assert seen == {False, True}


def test_the_writer_covers_nodes_of_every_size() -> None:
    assert {len(node(line, 0)[0]) for line in range(8)} == {
        len(POOLS) * n for n in range(1, NODE_MAX + 1)
    }
    assert [len(page) for page in node(3, 0)[1][:2]] == list(SIZES)
