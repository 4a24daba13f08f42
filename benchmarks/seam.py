"""``python -m benchmarks.seam``: what the seam for faults and journals costs while nothing uses it.

The call benchmark is run with the seam as it is, and with it taken out: the loops over
interceptors, the timers that need one, and the question whether host memory is refused are cut from
the source of the methods that have them. After a run of each that does not count, the two take
turns in one process, each first in every other round; a figure is the median over the rounds of
each run's median, and of the ratios within a round; half of the rounds lie between ``low`` and
``high``. The row ``_all`` has the geometric mean over all calls.

Prints one JSON object a line with ``--json``:
``{workload, delivery, page, op, n, with_us, without_us, ratio, low, high, components, rounds}``.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from math import exp, log
from pathlib import Path
from statistics import median, quantiles
from types import FunctionType
from typing import Annotated, Any, Final

import torch
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.calls import DEFAULT_WORKLOADS, IMPLS, choose, measure, workloads_in
from benchmarks.generators import Workload
from benchmarks.sets import COMPONENTS, Delivery
from radixtide.actors.cell import Cell
from radixtide.actors.component_actor import ComponentActor
from radixtide.actors.conversing import ConversingCell
from radixtide.actors.system import ActorSystem

HOOKS: Final = ("hooked", "interceptors", "refuse_host")
"""Attributes that only the seam uses."""
CLASSES: Final = (Cell, ConversingCell, ActorSystem, ComponentActor)
LIFE: Final = ("__init__", "add_interceptor", "remove_interceptor", "_update_direct")
"""Methods that run once, not with every message; they stay as they are."""

Row = dict[str, Any]


class NothingTakenOut(Exception):
    """The seam is not where this program looks for it, so it would compare a thing with itself."""


class _WithoutHooks(ast.NodeTransformer):
    """Cuts what asks for hooks; ``cut`` counts."""

    def __init__(self) -> None:
        self.cut = 0

    def visit_For(self, node: ast.For) -> ast.AST | None:
        """Cut a loop over interceptors."""
        return None if self._hooks(node.iter) else self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt] | None:
        """Cut what is done only with interceptors; keep what is done only without."""
        if not self._hooks(node.test):
            return self.generic_visit(node)
        without = isinstance(node.test, ast.UnaryOp) and isinstance(node.test.op, ast.Not)
        return node.body if without else node.orelse or None

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        """Answer a question to a hook as it is answered without one."""
        return ast.Constant(False) if self._hooks(node) else self.generic_visit(node)

    def _hooks(self, node: ast.AST) -> bool:
        found = any(
            isinstance(part, ast.Attribute) and part.attr in HOOKS for part in ast.walk(node)
        )
        self.cut += found
        return found


@cache
def without_hooks(method: FunctionType) -> FunctionType | None:
    """Return `method` with its hooks cut from the source, or None if it has none."""
    if not any(name in HOOKS for name in method.__code__.co_names):
        return None
    tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    cutter = _WithoutHooks()
    tree = ast.fix_missing_locations(cutter.visit(tree))
    if not cutter.cut:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not node.body:
            node.body = [ast.Pass(lineno=node.lineno, col_offset=0)]
    code = compile(tree, f"<{method.__qualname__} without its hooks>", "exec")
    names: dict[str, Any] = {}
    exec(code, method.__globals__, names)  # noqa: S102  # it is our own source, cut
    cut: FunctionType = names[method.__name__]
    return cut


@contextlib.contextmanager
def taken_out() -> Iterator[list[str]]:
    """Take the seam out of the runtime; yields the names of the methods that were changed."""
    changed: list[tuple[type, str, Any]] = []
    owner: type
    try:
        for owner in CLASSES:
            for name, method in list(vars(owner).items()):
                if not isinstance(method, FunctionType) or name in LIFE:
                    continue
                cut = without_hooks(method)
                if cut is not None:
                    changed.append((owner, name, method))
                    setattr(owner, name, cut)
        yield [f"{owner.__name__}.{name}" for owner, name, _ in changed]
    finally:
        for owner, name, method in changed:
            setattr(owner, name, method)


def _run(workload: Workload, page: int, components: str, delivery: Delivery) -> dict[str, Row]:
    rows = measure(workload, page, components, delivery, collector="freeze")
    return {row["op"]: row for row in rows if row["op"] != "_summary"}


def _run_without(
    workload: Workload, page: int, components: str, delivery: Delivery
) -> dict[str, Row]:
    with taken_out() as changed:
        if len(changed) < len(HOOKS):
            raise NothingTakenOut(f"only {changed} have hooks")
        return _run(workload, page, components, delivery)


def compare(
    workload: Workload,
    page: int,
    components: str,
    delivery: Delivery,
    rounds: int,
) -> list[Row]:
    """Run with the seam and without it in turns, `rounds` times; return a row for each call."""
    with_it: dict[str, list[float]] = defaultdict(list)
    without: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = {}
    _run(workload, page, components, delivery)
    _run_without(workload, page, components, delivery)
    for number in range(rounds):
        if number % 2:
            first = _run(workload, page, components, delivery)
            second = _run_without(workload, page, components, delivery)
        else:
            second = _run_without(workload, page, components, delivery)
            first = _run(workload, page, components, delivery)
        for op, row in first.items():
            with_it[op].append(row["p50_us"])
            without[op].append(second[op]["p50_us"])
            counts[op] = row["n"]
    rows = []
    total = [0.0] * rounds
    # Next to nothing, measured beside another call; a ratio of it says nothing.
    timed = [op for op in sorted(counts) if min(without[op]) > 1.0]
    for op in timed:
        ratios = [a / b for a, b in zip(with_it[op], without[op], strict=True)]
        total = [sum_ + counts[op] * log(one) for sum_, one in zip(total, ratios, strict=True)]
        rows.append(_row(op, counts[op], median(with_it[op]), median(without[op]), ratios))
    count = sum(counts[op] for op in timed)
    rows.append(_row("_all", count, 0.0, 0.0, [exp(one / count) for one in total]))
    about = {"workload": workload.name, "delivery": delivery, "page": page}
    return [{**about, **row, "components": components, "rounds": rounds} for row in rows]


def _row(op: str, count: int, with_us: float, without_us: float, ratios: list[float]) -> Row:
    low, middle, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return {
        "op": op,
        "n": count,
        "with_us": round(with_us, 2),
        "without_us": round(without_us, 2),
        "ratio": round(middle, 3),
        "low": round(low, 3),
        "high": round(high, 3),
    }


def table(rows: list[Row]) -> Table:
    """Return the rows as a table for a terminal."""
    shown = Table("delivery", "op", "n", "with µs", "without µs", "ratio", "low", "high")
    for row in rows:
        times = [f"{row[name]:,}" if row[name] else "" for name in ("with_us", "without_us")]
        ratios = [f"{row[name]:.2f}" for name in ("ratio", "low", "high")]
        shown.add_row(row["delivery"], Text(row["op"]), f"{row['n']:,}", *times, *ratios)
    return shown


def main(
    *,
    workload: Annotated[str, typer.Option(help="Name of a stream.")] = "multi_turn",
    page: Annotated[int, typer.Option(min=1, help="Tokens a page.")] = 16,
    components: Annotated[
        str, typer.Option(help="Kinds of state: full, full_swa, full_mamba or full_swa_mamba.")
    ] = "full",
    impls: Annotated[str, typer.Option(help="Ways of delivery, in order.")] = "direct,queued",
    rounds: Annotated[int, typer.Option(min=1, help="Pairs of runs.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the stream.")] = 0,
    workloads_dir: Annotated[
        Path, typer.Option(help="Folder with a workloads.py; without one: our own generators.")
    ] = DEFAULT_WORKLOADS,
    own: Annotated[bool, typer.Option("--own", help="Our own generators in any case.")] = False,
    small: Annotated[
        bool, typer.Option("--small", help="Tiny workloads: to see that everything runs.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON lines on stdout.")] = False,
) -> None:
    """Compare each call with the seam for faults and without it."""
    known = workloads_in(workloads_dir, own, small)
    choose("--workload", workload, known)
    choose("--components", components, COMPONENTS)
    for name in impls.split(","):
        choose("--impls", name, IMPLS)
    torch.set_num_threads(1)
    stream = known[workload](seed=seed)
    rows: list[Row] = []
    for name in impls.split(","):
        found = compare(stream, page, components, IMPLS[name], rounds)
        rows.extend(found)
        if as_json:
            for row in found:
                print(json.dumps(row), flush=True)
    if not as_json:
        Console().print(table(rows))


if __name__ == "__main__":
    typer.run(main)
