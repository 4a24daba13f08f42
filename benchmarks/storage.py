"""``python -m benchmarks.storage [URL...]``: what each store of pages moves a second.

Writes ``--pages`` random pages of ``--size`` KiB in calls of ``--batch``, ``--at-once`` calls
beside each other, reads them back the same way and compares them, and asks whether they are there.
Prints MiB/s of payload, microseconds a page for the question, and by how much a sleep of a
millisecond on the event loop was late meanwhile (99th percentile; the row ``idle`` is without a
store). Everything is read from memory (page cache) where the store has it there.

Without a URL: the stores that need no server, in a temporary directory, and a server of each kind
whose program is installed (``redis-server``, ``mooncake_master``, ``moto``), started on loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.calls import run_async
from radixtide.configs.errors import RadixtideError
from radixtide.tiers.storage import PageKey, StorageBackend, open_storage

MIB = 2**20


class Figures(msgspec.Struct):
    """What one store did."""

    store: str
    put_mib_s: float | None
    get_mib_s: float | None
    exists_us: float | None
    late_p99_ms: float


async def measure(
    store: StorageBackend, name: str, pages: int, size: int, batch: int, at_once: int
) -> Figures:
    """Write, read and ask for `pages` pages of `size` bytes; the answers are checked."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (pages, size), dtype=np.uint8)
    out = np.zeros_like(data)
    digests = np.arange(pages, dtype=np.uint64)
    keys = [
        PageKey(f"{n:064x}", f"{n - 1:064x}" if n % batch else None, "kv") for n in range(pages)
    ]
    parts = [slice(at, at + batch) for at in range(0, pages, batch)]

    async def put(part: slice) -> list[bool]:
        rows = [row.data for row in data[part]]
        return await store.put_from(keys[part], rows, digests[part])

    async def get(part: slice) -> list[bool]:
        return await store.get_into(keys[part], [row.data for row in out[part]])

    async with store:
        await store.clear()
        late: list[float] = []
        done = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            group.create_task(_lateness(late, done))
            put_s = await _timed(put, parts, at_once)
            get_s = await _timed(get, parts, at_once)
            exists_s = await _timed(lambda part: store.exists(keys[part]), parts, at_once)
            done.set()
        assert (data == out).all(), f"{name}: what was read is not what was written"
        await store.clear()
    total = pages * size / MIB
    return Figures(
        name,
        round(total / put_s, 1),
        round(total / get_s, 1),
        round(exists_s / pages * 1e6, 1),
        _p99_ms(late),
    )


async def idle() -> Figures:
    """Return how late the event loop is with nothing to do, in half a second."""
    late: list[float] = []
    done = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(_lateness(late, done))
        await asyncio.sleep(0.5)
        done.set()
    return Figures("idle", None, None, None, _p99_ms(late))


def _p99_ms(late: Sequence[float]) -> float:
    return round(float(np.percentile(late, 99)) * 1e3, 2)


async def _timed(
    call: Callable[[slice], Awaitable[list[bool]]], parts: Sequence[slice], at_once: int
) -> float:
    """Do the calls, so many beside each other, and return the seconds that they took."""
    waiting = list(reversed(parts))

    async def worker() -> None:
        while waiting:
            answers = await call(waiting.pop())
            assert all(answers), "a page was refused, or was not there"

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    return time.perf_counter() - start


async def _lateness(late: list[float], done: asyncio.Event) -> None:
    """Note by how much each sleep of a millisecond was longer."""
    while not done.is_set():
        start = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - start - 0.001)


def local(folder: Path) -> dict[str, str]:
    """Return the stores that need no server, by what they are called in the table."""
    return {
        "lmdb": f"lmdb:{folder}/lmdb",
        "lmdb, no sync": f"lmdb:{folder}/lmdb-no-sync?sync=0",
        "file": f"file:{folder}/file",
        "file, sync": f"file:{folder}/file-sync?sync=1",
        "object+file": f"object+file:{folder}/objects",
        "memory": "memory:",
    }


@contextmanager
def served(folder: Path) -> Iterator[dict[str, str]]:
    """Start the servers that are installed, and yield the URLs of their stores."""
    urls: dict[str, str] = {}
    beside = str(Path(sys.executable).parent)
    path = f"{beside}{os.pathsep}{os.environ.get('PATH', '')}"
    with ExitStack() as stack:

        def start(program: str, *arguments: str) -> bool:
            found = shutil.which(program, path=path)
            if found is None:
                return False
            process = stack.enter_context(
                subprocess.Popen(  # noqa: S603 - servers by name, with arguments of ours
                    [found, *arguments],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd=folder,
                )
            )
            stack.callback(process.kill)
            return True

        port = _free_port()
        here = ("--bind", "127.0.0.1", "--port", str(port))
        if start("redis-server", *here, "--save", "", "--dir", str(folder)):
            _wait_for(port)
            urls["redis"] = f"redis://127.0.0.1:{port}/0"
        port, metrics = _free_port(), _free_port()
        if start(
            "mooncake_master",
            *(f"-rpc_port={port}", "-rpc_address=127.0.0.1"),
            *(f"-metrics_port={metrics}", "-metrics_host=127.0.0.1"),
        ):
            _wait_for(port)
            urls["mooncake"] = f"mooncake://127.0.0.1:{port}?segment=2GiB&buffer=64MiB"
        port = _free_port()
        if start("moto_server", "-H", "127.0.0.1", "-p", str(port)):
            _wait_for(port)
            connection = HTTPConnection("127.0.0.1", port)
            connection.request("PUT", "/pages")
            connection.getresponse()
            os.environ.setdefault("AWS_ACCESS_KEY_ID", "benchmark")
            os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "benchmark")
            urls["s3 (moto)"] = f"s3://pages?endpoint=http://127.0.0.1:{port}&region=us-east-1"
        yield urls


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _wait_for(port: int) -> None:
    for _ in range(1500):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise TimeoutError(f"no server on port {port}")


def main(
    *,
    urls: Annotated[
        list[str] | None, typer.Argument(help="Stores; none: all that are here.")
    ] = None,
    pages: Annotated[int, typer.Option(min=1, help="Pages to write.")] = 256,
    size: Annotated[int, typer.Option(min=1, help="KiB a page.")] = 1024,
    batch: Annotated[int, typer.Option(min=1, help="Pages a call.")] = 16,
    at_once: Annotated[int, typer.Option(min=1, help="Calls beside each other.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a store.")] = False,
) -> None:
    """Measure what each store moves a second."""
    rows = [run_async(idle)]
    console = Console()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        stores = {url: url for url in urls or ()}
        if not stores:
            stores = local(Path(folder)) | stack.enter_context(served(Path(folder)))
        for name, url in stores.items():
            try:
                store = open_storage(url, timeout_s=30.0)
                row = run_async(partial(measure, store, name, pages, size * 1024, batch, at_once))
            except RadixtideError as error:
                console.print(f"{name}: {error}", style="red", markup=False)
                continue
            rows.append(row)
    if as_json:
        for row in rows:
            print(json.dumps(msgspec.to_builtins(row)))
        return
    table = Table("store", "put MiB/s", "get MiB/s", "exists µs/page", "loop late p99 ms")
    for row in rows:
        cells = msgspec.structs.astuple(row)
        table.add_row(*("" if cell is None else str(cell) for cell in cells))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
