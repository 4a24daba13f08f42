"""``python -m benchmarks.copies``: what copies between the tiers cost on this machine.

Throughput of the copy engine, digests and all, over that of a plain ``tensor.copy_`` of the same
number of bytes, which runs in turn with it; medians of both. And the delay of the event loop while
backups run at their full speed, over the delay when nothing runs.

Rows: layout, bytes of a page in one part of a layer (``piece``), whether the pages follow one
another (``runs``) or lie anywhere at both ends (``scattered``), and the two ratios.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import queue
import statistics
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from radixtide.tiers.copy_engine import CopyJob, CopyResult, Direction, Transfer
from radixtide.tiers.copy_threads import ThreadCopyEngine
from radixtide.tiers.host_pool import HostPool
from radixtide.tiers.slots import Slots

RATIO_BAR: Final = 0.80
DELAY_BAR_MS: Final = 2.0
LAYERS: Final = 8
PAGE: Final = 16
JOBS: Final = 4
"""Jobs that are handed over together, of a batch each."""

Row = dict[str, Any]


class Case(NamedTuple):
    """One line of the table: `parts` tensors a layer, `piece` bytes a page in each."""

    layout: str
    parts: int
    piece: int
    order: str
    barred: bool


CASES: Final = (
    # At least 32 KiB a layer: K and V of 16 KiB, K and V of 32 KiB, one latent of 32 KiB.
    Case("layer_first", 2, 2**14, "runs", True),
    Case("layer_first", 2, 2**14, "scattered", True),
    Case("layer_first", 2, 2**15, "runs", True),
    Case("layer_first", 2, 2**15, "scattered", True),
    Case("layer_first", 1, 2**15, "runs", True),
    Case("layer_first", 1, 2**15, "scattered", True),
    Case("page_first", 2, 2**15, "runs", False),
    Case("page_first", 2, 2**15, "scattered", False),
    Case("layer_first", 2, 2**12, "runs", False),
    Case("layer_first", 2, 2**12, "scattered", False),
    Case("page_first", 2, 2**12, "runs", False),
    Case("layer_first", 2, 2**10, "runs", False),
)


class Bench:
    """An engine over pools that are three times as big as a batch, and the plain copy beside it."""

    def __init__(self, case: Case, batch: int, threads: int, verify: bool) -> None:
        pages = batch // (LAYERS * case.parts * case.piece)
        self.bytes = pages * LAYERS * case.parts * case.piece
        slots = 3 * pages * PAGE
        self.parts = [
            [
                torch.randint(0, 255, (slots, case.piece // PAGE), dtype=torch.uint8)
                for _ in range(case.parts)
            ]
            for _ in range(LAYERS)
        ]
        self.host = HostPool(self.parts, slots, PAGE, case.layout)
        self.engine = ThreadCopyEngine({"kv": (self.parts, self.host)}, verify, threads)
        self.source = torch.randint(0, 255, (self.bytes,), dtype=torch.uint8)
        self.target = torch.zeros_like(self.source)
        choice = np.random.default_rng(0)
        device = choice.permutation(3 * pages)[:pages]
        host = choice.permutation(3 * pages)[:pages]
        if case.order == "runs":
            device, host = np.arange(7, 7 + pages), np.arange(pages)
        self.transfer = Transfer("kv", slots_of(device), slots_of(host))
        self.digests: dict[str, Any] | None = None
        self._number = 0

    def plain(self) -> float:
        """Return the seconds of as many ``tensor.copy_``, with PyTorch's default threads."""
        start = time.perf_counter()
        for _ in range(JOBS):
            self.target.copy_(self.source)
        return time.perf_counter() - start

    def run(self, direction: Direction) -> float:
        """Return the seconds of some jobs, from the first submit to the last answer."""
        done: queue.SimpleQueue[CopyResult] = queue.SimpleQueue()
        start = time.perf_counter()
        for _ in range(JOBS):
            self.submit(direction, done.put)
        results = [done.get() for _ in range(JOBS)]
        spent = time.perf_counter() - start
        for result in results:
            if not result.ok:
                raise RuntimeError(f"a copy failed: {result.error}")
        if direction == "backup":
            self.digests = results[-1].digests or None
        return spent

    def submit(self, direction: Direction, on_done: Callable[[CopyResult], None]) -> None:
        """Hand one job to the engine; a load checks the digests of the last backup."""
        self._number += 1
        digests = self.digests if direction == "load" else None
        self.engine.submit(
            CopyJob(self._number, direction, (self.transfer,), on_done, digests=digests)
        )


def slots_of(pages: Slots) -> Slots:
    """Return the slots of `pages`, in order."""
    return (pages[:, None] * PAGE + np.arange(PAGE)).ravel()


def throughput(case: Case, batch: int, rounds: int, threads: int, verify: bool) -> Row:
    """Time backups and loads of one case, each in turn with a plain copy."""
    bench = Bench(case, batch, threads, verify)
    times: dict[str, list[float]] = {"plain": [], "backup": [], "load": []}
    try:
        for turn in range(rounds + 1):
            for direction in ("backup", "load"):
                plain, ours = bench.plain(), bench.run(direction)
                if turn:
                    times["plain"].append(plain)
                    times[direction].append(ours)
    finally:
        bench.engine.close()
    seconds = {name: statistics.median(values) for name, values in times.items()}
    rate = JOBS * bench.bytes / 2**30
    return {
        "layout": case.layout,
        "parts": case.parts,
        "piece": case.piece,
        "pages": case.order,
        "bytes": bench.bytes,
        "plain_gib_s": round(rate / seconds["plain"], 2),
        "backup_gib_s": round(rate / seconds["backup"], 2),
        "load_gib_s": round(rate / seconds["load"], 2),
        "backup_ratio": round(seconds["plain"] / seconds["backup"], 2),
        "load_ratio": round(seconds["plain"] / seconds["load"], 2),
        "bar": RATIO_BAR if case.barred else None,
    }


async def delays(seconds: float) -> list[float]:
    """Return by how many milliseconds each of many sleeps of 1 ms was late."""
    late: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        await asyncio.sleep(0.001)
        late.append((time.perf_counter() - start) * 1e3 - 1.0)
    return late


def p99(values: list[float]) -> float:
    """Return the value that one in a hundred exceeds."""
    return float(np.percentile(values, 99))


async def busy_delays(bench: Bench, seconds: float) -> tuple[list[float], float]:
    """As :func:`delays`, while one backup after the other runs; also their rate in GiB/s."""
    loop = asyncio.get_running_loop()
    copied = 0
    under_way = 2
    going = True
    over = asyncio.Event()

    def on_done(result: CopyResult) -> None:
        loop.call_soon_threadsafe(again, result)

    def again(result: CopyResult) -> None:
        nonlocal copied, under_way
        copied += bench.bytes if result.ok else 0
        if going:
            bench.submit("backup", on_done)
            return
        under_way -= 1
        if not under_way:
            over.set()

    # Two, so that the engine has the next one when one is done.
    bench.submit("backup", on_done)
    bench.submit("backup", on_done)
    start = time.perf_counter()
    late = await delays(seconds)
    rate = copied / (time.perf_counter() - start) / 2**30
    going = False
    await over.wait()
    return late, rate


def loop_delay(case: Case, batch: int, runs: int, seconds: float, threads: int) -> Row:
    """Measure what backups at full speed cost the event loop, in `runs` pairs of idle and busy."""
    pairs = []
    rates = []
    for _ in range(runs):
        bench = Bench(case, batch, threads, verify=True)
        bench.run("backup")
        try:
            idle = run_async(partial(delays, seconds))
            busy, rate = run_async(partial(busy_delays, bench, seconds))
        finally:
            bench.engine.close()
        pairs.append((p99(idle), p99(busy)))
        rates.append(rate)
    more = [busy - idle for idle, busy in pairs]
    return {
        "loop": "uvloop" if importlib.util.find_spec("uvloop") else "asyncio",
        "layout": case.layout,
        "piece": case.piece,
        "pages": case.order,
        "idle_p99_ms": round(statistics.median(pair[0] for pair in pairs), 2),
        "busy_p99_ms": round(statistics.median(pair[1] for pair in pairs), 2),
        "more_ms": round(statistics.median(more), 2),
        "all_more_ms": [round(value, 2) for value in more],
        "backup_gib_s": round(statistics.median(rates), 2),
        "bar_ms": DELAY_BAR_MS,
    }


def run_async(main: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run `main` on uvloop where it is installed, else on asyncio."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.run(main())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def table(rows: list[Row], title: str) -> Table:
    """Return `rows` as a table for a terminal."""
    shown = Table(*rows[0], title=title)
    for row in rows:
        shown.add_row(*(str(value) for value in row.values()))
    return shown


def main(
    *,
    batch_mib: Annotated[int, typer.Option(min=1, help="MiB a job.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds of each case.")] = 9,
    threads: Annotated[int, typer.Option(min=1, help="Threads that share a job.")] = 2,
    verify: Annotated[bool, typer.Option(help="Take and check digests.")] = True,
    delay_runs: Annotated[int, typer.Option(min=0, help="Runs of the loop's delay.")] = 5,
    delay_s: Annotated[float, typer.Option(help="Seconds of each.")] = 3.0,
    only: Annotated[str, typer.Option(help="Cases with this in their layout or order.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")] = False,
) -> None:
    """Time backups and loads against a plain copy, and the event loop beside them."""
    batch = batch_mib * 2**20
    cases = [case for case in CASES if only in f"{case.layout} {case.order}"]
    rates = []
    for case in cases:
        rates.append(throughput(case, batch, rounds, threads, verify))
        if as_json:
            print(json.dumps(rates[-1]), flush=True)
    waits = []
    for case in [case for case in cases if case.barred][2:4] if delay_runs else []:
        waits.append(loop_delay(case, batch, delay_runs, delay_s, threads))
        if as_json:
            print(json.dumps(waits[-1]), flush=True)
    load = {"load": round(os.getloadavg()[0], 2), "cores": os.cpu_count()}
    if as_json:
        print(json.dumps(load))
        return
    console = Console(width=160)
    console.print(table(rates, "copies over a plain tensor.copy_"))
    if waits:
        console.print(table(waits, "delay of the event loop"))
    console.print(load)


if __name__ == "__main__":
    typer.run(main)
