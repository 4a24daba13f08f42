"""``python -m benchmarks.blocking``: what a call costs through the blocking face.

The same calls on a cache of one prompt of 1,024 tokens: awaited in the cache's own loop
(``awaited``), through ``radixtide.blocking`` (``blocking``), sixteen in one ``run`` (``run of 16``,
a call), and through anyio's portal, which is what the face would be made of otherwise (``portal``).
The ways take turns, so that a busy machine is busy for all of them; a figure is the median over all
rounds. Prints one JSON object a line with ``--json``: ``{way, op, n, p50_us, p90_us}``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Annotated, Any, Final

import typer
from anyio.from_thread import start_blocking_portal
from rich.console import Console
from rich.table import Table

import radixtide
from radixtide import AllocateParams, CacheConfig, InsertParams, MatchPrefixParams, RadixKey
from radixtide.blocking import UnifiedRadixCache
from radixtide.configs.schema import FullPoolConfig, PoolsConfig

TOKENS: Final = 1024
TOGETHER: Final = 16
CONFIG: Final = CacheConfig(
    page_size=16, pools=PoolsConfig(full=FullPoolConfig(size=65_536, holds_bytes=False))
)
KEY: Final = RadixKey([*range(TOKENS)])
MATCH: Final = MatchPrefixParams(key=KEY)
ROOM: Final = AllocateParams(num_tokens=16)

Times = dict[tuple[str, str], list[float]]


async def fill(cache: radixtide.UnifiedRadixCache) -> None:
    """Cache the prompt."""
    slots = await cache.allocate(AllocateParams(num_tokens=TOKENS))
    await cache.insert(InsertParams(key=KEY, value=slots.indices))


async def awaited(cache: radixtide.UnifiedRadixCache, calls: int, times: Times) -> None:
    """Time awaited calls, on the cache's loop."""
    for _ in range(calls):
        start = perf_counter()
        await cache.match_prefix(MATCH)
        matched = perf_counter()
        room = await cache.allocate(ROOM)
        allocated = perf_counter()
        await cache.free(room.indices)
        times["awaited", "match_prefix"].append(matched - start)
        times["awaited", "allocate"].append(allocated - matched)
        times["awaited", "free"].append(perf_counter() - allocated)


def called(way: str, cache: Any, call: Callable[..., Any], calls: int, times: Times) -> None:
    """Time the same calls made from another thread, each by `call(function, *args)`."""
    for _ in range(calls):
        start = perf_counter()
        call(cache.match_prefix, MATCH)
        matched = perf_counter()
        room = call(cache.allocate, ROOM)
        allocated = perf_counter()
        call(cache.free, room.indices)
        times[way, "match_prefix"].append(matched - start)
        times[way, "allocate"].append(allocated - matched)
        times[way, "free"].append(perf_counter() - allocated)


async def several(cache: radixtide.UnifiedRadixCache) -> None:
    """Make several calls, for ``run``."""
    for _ in range(TOGETHER):
        await cache.match_prefix(MATCH)


def measure(calls: int, rounds: int) -> Times:
    """Let the ways take turns; return the seconds of each call, by way and name."""
    times: Times = defaultdict(list)
    other = radixtide.UnifiedRadixCache(CONFIG)
    with (
        UnifiedRadixCache(CONFIG) as cache,
        start_blocking_portal(backend_options={"use_uvloop": True}) as portal,
    ):
        cache.run(fill)
        portal.call(other.__aenter__)
        portal.call(fill, other)
        for _ in range(rounds):
            cache.run(awaited, calls, times)
            called("blocking", cache, lambda function, *args: function(*args), calls, times)
            called("portal", other, portal.call, calls, times)
            for _ in range(calls):
                start = perf_counter()
                cache.run(several)
                spent = (perf_counter() - start) / TOGETHER
                times[f"run of {TOGETHER}", "match_prefix"].append(spent)
        portal.call(other.close)
    return times


def main(
    calls: Annotated[int, typer.Option(min=1, help="Calls of each kind a round.")] = 300,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 10,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print what calls cost awaited, blocking, several at once, and through a portal."""
    measure(min(calls, 20), 1)  # does not count
    table = Table("way", "call", "median us", "p90 us")
    for (way, op), seconds in measure(calls, rounds).items():
        ordered = sorted(seconds)
        p50, p90 = median(ordered) * 1e6, ordered[len(ordered) * 9 // 10] * 1e6
        if json_lines:
            row = {"way": way, "op": op, "n": len(ordered), "p50_us": p50, "p90_us": p90}
            print(json.dumps(row))
        table.add_row(way, op, f"{p50:.1f}", f"{p90:.1f}")
    if not json_lines:
        Console().print(table)


if __name__ == "__main__":
    typer.run(main)
