"""``python -m benchmarks.compare``: our calls beside those of SGLang's cache, in one run.

Ours and theirs take turns, each in a process of its own (A B A B), so that a machine that slows
down slows both. A figure is the median over the rounds of each process's median; what counts is the
ratio, never the microseconds of one machine.

SGLang is not a dependency. Give the interpreter of an environment that has it with
``--peer-python``; ``--workloads-dir`` must hold the streams (``workloads.py``) and the script that
drives SGLang with them (``peer_sglang.py``). docs/benchmarks.md says how to make such an
environment.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.bars import EVICT_GROWTH, NODE_BYTES, Bar, bar_for
from benchmarks.calls import DEFAULT_WORKLOADS, Row, choose

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_PLAN = (
    "multi_turn,fan_out,long_doc,deep_chain,"
    "evict_pressure_n1000,evict_pressure_n10000,evict_pressure_n100000"
)
EVICTING = "evict_pressure"
PEER_COMPONENTS = ("full", "full_swa", "full_mamba")
"""Sets of components that ``peer_sglang.py`` can make."""
COLUMNS = (
    *("components", "workload", "page", "op", "n"),
    *("ours", "queued", "peer", "ratio", "queued", "bar"),
)


class RunFailedError(RuntimeError):
    """A measured process ended with an error; carries the end of what it said."""


def run_lines(command: Sequence[str]) -> list[Row]:
    """Run `command` in the root of the checkout and return the JSON objects it printed."""
    # The command is made of our own arguments; no shell is involved.
    done = subprocess.run(  # noqa: S603
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RunFailedError(f"{' '.join(command)}\n{done.stderr.strip()[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Peers:
    """The commands of both sides."""

    def __init__(self, peer_python: str, workloads_dir: Path, components: str, seed: int) -> None:
        folder = workloads_dir if workloads_dir.is_absolute() else ROOT / workloads_dir
        script = folder / "peer_sglang.py"
        if not peer_python or not Path(peer_python).is_file():
            raise typer.BadParameter(
                f"--peer-python: {peer_python!r} is no interpreter; docs/benchmarks.md says how to "
                "make an environment with SGLang"
            )
        if not script.is_file():
            raise typer.BadParameter(f"--workloads-dir: {script} does not exist")
        common = ["--components", components, "--seed", str(seed)]
        self.components = components
        self._theirs = [peer_python, str(script), "--impl", "rust", *common]
        self._ours = [sys.executable, "-m", "benchmarks.calls", "--workloads-dir", str(folder)]
        self._ours += [*common, "--json"]
        self._memory = [sys.executable, "-m", "benchmarks.memory", "--components", components]
        self._memory += ["--seed", str(seed), "--json"]

    def calls(self, workload: str, page: int) -> list[Row]:
        """Run one round of one workload: ours (direct, then queued), then theirs."""
        what = ["--workload", workload, "--page", str(page)]
        return run_lines([*self._ours, *what]) + run_lines([*self._theirs, *what])

    def memory(self, page: int, nodes: int, tokens: int) -> tuple[int, int]:
        """Return bytes a node, ours and theirs."""
        size = ["--page", str(page)]
        (ours,) = run_lines([*self._memory, *size, "--nodes", str(nodes), "--tokens", str(tokens)])
        mem = ["--mem", "rss", "--mem-nodes", str(nodes), "--mem-tokens", str(tokens)]
        (theirs,) = run_lines([*self._theirs, *size, *mem])
        return ours["bytes_per_node"], theirs["rss_per_node"]


def peers_for(peer_python: str, workloads_dir: Path, components: str, seed: int) -> list[Peers]:
    """Return both sides for each set of components in a list with commas."""
    names = components.split(",")
    for name in names:
        choose("--components", name, PEER_COMPONENTS)
    return [Peers(peer_python, workloads_dir, name, seed) for name in names]


def verdict(value: float, bar: Bar | None) -> dict[str, Any]:
    """Return what `value` means against `bar`: both bounds and whether each is met."""
    if bar is None:
        return {}
    return {
        "foundation": bar.foundation,
        "goal": bar.goal,
        "meets_foundation": value <= bar.foundation,
        "meets_goal": value <= bar.goal,
    }


def medians(runs: Sequence[Row]) -> dict[tuple[str, str], Row]:
    """Return, by impl and op, the median over `runs` of p50, with n and tokens of the last run."""
    by_name: dict[tuple[str, str], list[Row]] = {}
    for row in runs:
        by_name.setdefault((row["impl"], row["op"]), []).append(row)
    return {
        name: {**rows[-1], "p50_us": statistics.median(row["p50_us"] for row in rows)}
        for name, rows in by_name.items()
        if name[1] != "_summary"
    }


def ratios(runs: Sequence[Row]) -> Iterator[Row]:
    """Yield one row an operation: both medians, the ratios (direct and queued), the bar."""
    found = medians(runs)
    for (impl, op), theirs in found.items():
        if impl != "sglang-rust":
            continue
        ours = found.get(("radixtide", op))
        if ours is None:
            continue
        ratio = round(ours["p50_us"] / theirs["p50_us"], 3)
        queued = found.get(("radixtide-queued", op))
        yield {
            "workload": ours["workload"],
            "page": ours["page"],
            "components": ours["components"],
            "op": op,
            "n": ours["n"],
            "tokens": ours["tokens"],
            "radixtide_us": round(ours["p50_us"], 2),
            "queued_us": round(queued["p50_us"], 2) if queued else None,
            "peer_us": round(theirs["p50_us"], 2),
            "ratio": ratio,
            "queued_ratio": round(queued["p50_us"] / theirs["p50_us"], 3) if queued else None,
            **verdict(ratio, bar_for(ours["workload"], op, ours["components"])),
        }


def digests(runs: Sequence[Row]) -> Row:
    """Return the digests of one workload by impl, and whether all are the same."""
    summaries = [row for row in runs if row["op"] == "_summary"]
    found = {row["impl"]: row["digest"] for row in summaries}
    return {
        "workload": summaries[0]["workload"],
        "page": summaries[0]["page"],
        "components": summaries[0]["components"],
        "op": "_digest",
        "digests": found,
        "agree": len({row["digest"] for row in summaries}) == 1,
    }


def growth(ours: dict[int, float], components: str) -> Row | None:
    """Return ours at 100,000 nodes over ours at 1,000, evicting one page; None without both."""
    small, large = ours.get(1_000), ours.get(100_000)
    if small is None or large is None:
        return None
    ratio = round(large / small, 3)
    return {
        "workload": "evict_pressure_n100000/n1000",
        "components": components,
        "op": "evict[1page]",
        "radixtide_us": large,
        "peer_us": small,
        "ratio": ratio,
        **verdict(ratio, EVICT_GROWTH if components == "full" else None),
    }


def compare(
    peers: Peers, plan: Sequence[tuple[str, int]], rounds: int, progress: Console
) -> Iterator[Row]:
    """Run `plan` (workload and page) and yield its rows as each workload is done."""
    evictions: dict[int, float] = {}
    for workload, page in plan:
        runs: list[Row] = []
        for turn in range(1, rounds + 1):
            what = f"{workload}, page {page}, {peers.components}"
            progress.print(f"{what}: round {turn} of {rounds}", style="dim")
            runs += peers.calls(workload, page)
        for row in ratios(runs):
            if row["op"] == "evict[1page]":
                evictions[int(workload.rpartition("_n")[2])] = row["radixtide_us"]
            yield row
        yield digests(runs)
    grown = growth(evictions, peers.components)
    if grown:
        yield grown


def memory_row(peers: Peers, page: int, nodes: int, tokens: int) -> Row:
    """Return the row of bytes a node; its bar holds for Full, nodes of 64 tokens, page 16."""
    ours, theirs = peers.memory(page, nodes, tokens)
    has_bar = (peers.components, page, tokens) == ("full", 16, 64)
    return {
        "workload": "memory",
        "page": page,
        "components": peers.components,
        "op": "bytes_per_node",
        "n": nodes,
        "tokens": tokens,
        "radixtide_bytes": ours,
        "peer_bytes": theirs,
        "ratio": round(ours / theirs, 3),
        **(verdict(ours, NODE_BYTES) if has_bar else {}),
    }


def mark(row: Row) -> Text:
    """Return how a row stands to its bar, in a word and a colour."""
    if "goal" not in row:
        return Text("")
    if row["meets_goal"]:
        return Text(f"goal (≤ {row['goal']:,})", "green")
    if row["meets_foundation"]:
        return Text(f"pass (≤ {row['foundation']:,})", "yellow")
    return Text(f"FAIL (> {row['foundation']:,})", "bold red")


def table(rows: Sequence[Row]) -> Table:
    """Return the compared rows as a table for a terminal."""
    shown = Table()
    for name in COLUMNS:
        shown.add_column(name, no_wrap=True)
    for row in rows:
        what = (row.get("components", "full"), row["workload"], str(row.get("page", "")))
        if row["op"] == "_digest":
            if not row["agree"]:
                shown.add_row(*what, Text("digests differ", "bold red"))
            shown.add_section()
            continue
        unit = "bytes" if "radixtide_bytes" in row else "us"
        cells = (
            row.get("n"),
            row[f"radixtide_{unit}"],
            row.get("queued_us"),
            row[f"peer_{unit}"],
            row["ratio"],
            row.get("queued_ratio"),
        )
        texts = ("" if cell is None else f"{cell:,}" for cell in cells)
        # The brackets of "insert[finish]" are no markup.
        op = Text(row["op"])
        shown.add_row(*what, op, *texts, mark(row))
    return shown


def compare_and_print(
    sets: Sequence[Peers],
    workloads: Sequence[str],
    pages: Sequence[int],
    rounds: int,
    *,
    memory_nodes: int = 0,
    as_json: bool = False,
) -> list[Row]:
    """Compare each of `sets`, print JSON lines or a table, and return the rows.

    Workloads that evict run at page 16 alone where that is among `pages`: their streams are made of
    64-token leaves. `memory_nodes` of 0 leaves memory out.
    """
    plan = [
        (workload, page)
        for workload in workloads
        for page in pages
        if page == 16 or 16 not in pages or not workload.startswith(EVICTING)
    ]
    rows: list[Row] = []

    def emit(row: Row) -> None:
        rows.append(row)
        if as_json:
            print(json.dumps(row), flush=True)

    try:
        for peers in sets:
            for row in compare(peers, plan, rounds, Console(stderr=True)):
                emit(row)
            if memory_nodes:
                emit(memory_row(peers, 16, memory_nodes, 64))
    except RunFailedError as error:
        Console(stderr=True).print(f"a measured process failed: {error}", style="red", markup=False)
        raise typer.Exit(1) from None
    if not as_json:
        console = Console()
        # A file or a pipe has no width to fit in; a cut ratio would be of no use there.
        Console(width=None if console.is_terminal else 160).print(table(rows))
    return rows


def main(
    *,
    peer_python: Annotated[
        str, typer.Option(envvar="PEER_PYTHON", help="The interpreter that has SGLang installed.")
    ],
    workloads: Annotated[str, typer.Option(help="Names with commas.")] = DEFAULT_PLAN,
    pages: Annotated[str, typer.Option(help="Page sizes with commas.")] = "1,16,64",
    components: Annotated[
        str, typer.Option(help="Kinds of state: full, full_swa, full_mamba; several with commas.")
    ] = "full",
    rounds: Annotated[int, typer.Option(min=1, help="Times that ours and theirs take turns.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the streams.")] = 0,
    workloads_dir: Annotated[
        Path, typer.Option(help="Folder of workloads.py and peer_sglang.py.")
    ] = DEFAULT_WORKLOADS,
    memory_nodes: Annotated[
        int, typer.Option(min=0, help="Nodes of the memory measurement; 0 leaves it out.")
    ] = 50_000,
    require: Annotated[
        str,
        typer.Option(help="Exit with 1 unless every bar of this name is met: foundation, goal."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")] = False,
) -> None:
    """Compare our calls with those of SGLang's cache, call by call."""
    if require not in ("", "foundation", "goal"):
        raise typer.BadParameter(f"--require: {require!r} is none of foundation, goal")
    try:
        sizes = [int(page) for page in pages.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--pages: {pages!r} is no list of numbers") from None
    rows = compare_and_print(
        peers_for(peer_python, workloads_dir, components, seed),
        [name for name in workloads.split(",") if name],
        sizes,
        rounds,
        memory_nodes=memory_nodes,
        as_json=as_json,
    )
    if require and not all(row.get(f"meets_{require}", True) for row in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
