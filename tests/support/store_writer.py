"""A process that stores nodes until it is killed: ``python -m support.store_writer URL...``.

Each URL is a store (``URL#BYTES`` one with a size limit); all are written side by side, a node a
call: the line `n`, pages that follow each other, two pools. After each node that is stored it
prints ``STORE LINE``.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

SIZES = (2000, 30_000)
POOLS = ("kv", "state")
NODE_MAX = 4


def storage() -> Any:
    """Return the storage package, loaded without its neighbours, which load torch for seconds."""
    if "radixtide.tiers" not in sys.modules:
        package = ModuleType("radixtide.tiers")
        package.__path__ = [str(Path(__file__).resolve().parents[2] / "tiers")]
        sys.modules["radixtide.tiers"] = package
    return importlib.import_module("radixtide.tiers.storage")


def node(line: int, first: int) -> tuple[list[tuple[str, str | None, str]], list[bytes]]:
    """Return names (chain, parent, pool) and pages of a node, made from their numbers alone."""
    keys, pages = [], []
    for n in range(first, first + 1 + (line + first) % NODE_MAX):
        parent = f"{line:08x}{n - 1:08x}" if n else None
        for pool, size in zip(POOLS, SIZES, strict=True):
            keys.append((f"{line:08x}{n:08x}", parent, pool))
            pages.append(random.Random(f"{line} {n} {pool}").randbytes(size))
    return keys, pages


async def write(place: int, url: str) -> None:
    """Write line after line to one store, each of two nodes; for ever, or until it fails."""
    url, _, limit = url.partition("#")
    store = storage().open_storage(url, max_bytes=int(limit or 0))
    await store.open()
    for line in range(10_000):
        first = 0
        for _ in range(2):
            names, pages = node(line, first)
            keys = [storage().PageKey(*name) for name in names]
            stored = await store.put_from(keys, [memoryview(page) for page in pages])
            first += len(names) // len(POOLS)
            if all(stored):
                sys.stdout.write(f"{place} {line} {first}\n")
                sys.stdout.flush()


async def main(urls: list[str]) -> None:
    async with asyncio.TaskGroup() as group:
        for place, url in enumerate(urls):
            group.create_task(write(place, url))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
