"""``python -m benchmarks.calls``: what each call of the async API costs.

Runs one workload in one event loop, first with direct delivery (``radixtide``), then with queued
delivery (``radixtide-queued``), and prints one JSON object a line:
``{impl, workload, op, n, tokens, p50_us, p99_us, mean_us, page, components}``. ``tokens`` is the
mean number of tokens a call covered. The line with op ``_summary`` has the digest of what the cache
did, hits, wall and CPU seconds, and the growth of resident memory.

``match+indices`` is one ``await match_prefix`` with the device indices in hand; since there is no
second step, ``match`` is the same figure and ``indices`` next to nothing.
``indices_after_insert`` is ``await device_indices`` of the node that an insert ended at.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.driver import Driver, Totals, summary
from benchmarks.generators import OWN, SMALL, Factory, Workload, load
from benchmarks.recorder import Recorder, resident_bytes, settle
from benchmarks.sets import COMPONENTS, Delivery, config_for
from radixtide import UnifiedRadixCache

IMPLS: dict[str, Delivery] = {"direct": "direct", "queued": "queued"}
COLLECTORS = ("default", "freeze", "off")
DEFAULT_WORKLOADS = Path("../shared/bench")

Row = dict[str, Any]
_T = TypeVar("_T")


def run_async(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run `main` on uvloop where it is installed, else on asyncio."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.run(main())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def measure(
    workload: Workload,
    page: int,
    components: str = "full",
    delivery: Delivery = "direct",
    *,
    verify: bool = False,
    collector: str = "default",
) -> Iterator[Row]:
    """Run `workload` once against a fresh cache and yield its rows, the summary last."""
    impl = "radixtide" if delivery == "direct" else f"radixtide-{delivery}"
    config = config_for(workload, page, components, delivery, verify=verify)
    recorder = Recorder()
    spent: Row = {}

    async def main() -> Totals:
        async with UnifiedRadixCache(config) as cache:
            driver = Driver(workload, cache, recorder, verify)
            settle(collector)
            before = resident_bytes()
            cpu, start = time.process_time(), time.perf_counter()
            totals = await driver.run()
            spent["wall_s"] = round(time.perf_counter() - start, 2)
            spent["cpu_s"] = round(time.process_time() - cpu, 2)
            spent["rss_mb"] = round((resident_bytes() - before) / 2**20, 1)
        return totals

    try:
        totals = run_async(main)
    finally:
        gc.unfreeze()
        gc.enable()
    common = {"impl": impl, "workload": workload.name}
    where = {"page": page, "components": components}
    for row in recorder.rows():
        yield {**common, **row, **where}
    yield {
        **common,
        "op": "_summary",
        **where,
        **summary(totals),
        **spent,
        "load": round(os.getloadavg()[0], 2),
        "gc": collector,
    }


def workloads_in(folder: Path, own: bool, small: bool) -> dict[str, Factory]:
    """Return the workloads to choose from: small ones, our own, or those of `folder`."""
    if small:
        return dict(SMALL)
    return dict(OWN if own else load(folder))


def choose(option: str, name: str, choices: Iterable[str]) -> None:
    """Refuse `name` unless it is one of `choices`."""
    if name not in choices:
        raise typer.BadParameter(f"{option}: {name!r} is none of {', '.join(choices)}")


def table(rows: list[Row]) -> Table:
    """Return `rows` as a table for a terminal, impls side by side in the order they ran."""
    shown = Table("impl", "op", "n", "tokens", "p50 µs", "p99 µs", "mean µs")
    for row in rows:
        if row["op"] != "_summary":
            figures = (row["n"], row["tokens"], row["p50_us"], row["p99_us"], row["mean_us"])
            # The brackets of "insert[finish]" are no markup.
            op = Text(row["op"])
            shown.add_row(row["impl"], op, *(f"{value:,}" for value in figures))
    return shown


def main(
    *,
    workload: Annotated[str, typer.Option(help="One name, or several with commas.")] = "multi_turn",
    page: Annotated[int, typer.Option(min=1, help="Tokens a page.")] = 16,
    components: Annotated[
        str, typer.Option(help="Kinds of state: full, full_swa, full_mamba or full_swa_mamba.")
    ] = "full",
    impls: Annotated[str, typer.Option(help="Ways of delivery, in order.")] = "direct,queued",
    seed: Annotated[int, typer.Option(help="Seed of the stream.")] = 0,
    collector: Annotated[
        str, typer.Option("--gc", help="Garbage collector: default, freeze or off.")
    ] = "default",
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every list of indices; audit at the end.")
    ] = False,
    workloads_dir: Annotated[
        Path, typer.Option(help="Folder with a workloads.py; without one: our own generators.")
    ] = DEFAULT_WORKLOADS,
    own: Annotated[bool, typer.Option("--own", help="Our own generators in any case.")] = False,
    small: Annotated[
        bool, typer.Option("--small", help="Tiny workloads: to see that everything runs.")
    ] = False,
    peer: Annotated[
        bool, typer.Option("--peer", help="Also SGLang's cache in the same run, with ratios.")
    ] = False,
    peer_python: Annotated[
        str,
        typer.Option(envvar="PEER_PYTHON", help="The interpreter that has SGLang installed."),
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of ours and theirs (--peer).")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")] = False,
) -> None:
    """Time every call of the async API under a workload."""
    names = [name for name in workload.split(",") if name]
    if peer:
        # Imported late: comparing is made of runs of this very command.
        from benchmarks.compare import compare_and_print, peers_for  # noqa: PLC0415

        peers = peers_for(peer_python, workloads_dir, components, seed)
        compare_and_print(peers, names, [page], rounds, as_json=as_json)
        return
    known = workloads_in(workloads_dir, own, small)
    for name in names:
        choose("--workload", name, known)
    for name in impls.split(","):
        choose("--impls", name, IMPLS)
    choose("--components", components, COMPONENTS)
    choose("--gc", collector, COLLECTORS)
    torch.set_num_threads(1)
    for name in names:
        stream = known[name](seed=seed)
        rows: list[Row] = []
        for impl in impls.split(","):
            for row in measure(
                stream, page, components, IMPLS[impl], verify=verify, collector=collector
            ):
                rows.append(row)
                if as_json:
                    print(json.dumps(row), flush=True)
        if not as_json:
            console = Console()
            console.print(table(rows), *(row for row in rows if row["op"] == "_summary"))


if __name__ == "__main__":
    typer.run(main)
