"""This project's own mistakes, found in source text: each check returns what it objects to."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Final

LINES_MAX: Final = 500
"""Soft limit of a file's length; EXCEPTIONS below lists what may be longer, and why."""

EXCEPTIONS: Final[dict[str, str]] = {}
"""File: why it is one concept all the same. At most two entries; none reaches 1,000 lines."""

CORE: Final = ("actors", "components", "tiers", "tree", "configs")
"""Rooms whose behaviour must repeat exactly when their clock and seeds are handed in."""

STOPWATCHES: Final = ("time.perf_counter", "time.perf_counter_ns")
"""What measures how long something took, for metrics, and so decides nothing."""

PRINTERS: Final = ("cli", "benchmarks", "examples")
"""Rooms that talk to a person."""

Check = Callable[[str, str], list[str]]


def prints(path: str, source: str) -> list[str]:
    """Object to print() outside the rooms that talk to a person."""
    if path.partition("/")[0] in PRINTERS:
        return []
    return [
        f"{path}:{node.lineno}: print: raise, return or log"
        for node in _calls(source)
        if isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def clocks_and_dice(path: str, source: str) -> list[str]:
    """Object to clocks and randomness of the core's own: no run could be repeated."""
    if path.partition("/")[0] not in CORE:
        return []
    modules = ("time", "random", "secrets", "uuid")
    problems = [
        f"{path}:{line}: {name}: take the clock or the seed as an argument"
        for line, name in _imports(source)
        if name.partition(".")[0] in modules and name not in STOPWATCHES
    ]
    return problems + [
        f"{path}:{node.lineno}: numpy.random: take a generator as an argument"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr == "random" and _is_numpy(node.value)
    ]


def bare_tasks(path: str, source: str) -> list[str]:
    """Object to tasks that nobody holds: they vanish, or swallow their error.

    The actor system is the owner of those that actors have.
    """
    if path.partition("/")[0] not in CORE or path == "actors/system.py":
        return []
    return [
        f"{path}:{node.lineno}: {ast.unparse(node.func)}: let an actor or a task group own the task"
        for node in _calls(source)
        if getattr(node.func, "attr", getattr(node.func, "id", ""))
        in ("create_task", "ensure_future")
        and "group" not in ast.unparse(node.func)
    ]


def fixed_sleeps(path: str, source: str) -> list[str]:
    """Object to tests that wait for a fixed time: they are slow, and fail on a slow machine.

    Time that is only simulated costs none, and passes at the same pace everywhere.
    """
    if not path.startswith("tests/") or "SimulatedLoop" in source:
        return []
    return [
        f"{path}:{node.lineno}: {ast.unparse(node)}: wait for what must happen instead"
        for node in _calls(source)
        if getattr(node.func, "attr", getattr(node.func, "id", "")) == "sleep"
        and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    ]


def long_files(path: str, source: str) -> list[str]:
    """Object to files that no longer fit in a head."""
    lines, limit = source.count("\n"), 999 if path in EXCEPTIONS else LINES_MAX
    return [f"{path}: {lines} lines; at most {limit}: split it"] if lines > limit else []


def silent_ignores(path: str, source: str) -> list[str]:
    """Object to a rule switched off without its code, or without a reason there or just above."""
    ignore = re.compile(r"# (type: ignore\[[\w, -]+\]|noqa: [A-Z0-9, ]+)(?P<reason>.*)")
    loose = re.compile(r"#\s*(type:\s*ignore|noqa)")
    problems = []
    above = ""
    for number, line in enumerate(source.splitlines(), start=1):
        if loose.search(line) and '"' not in line.partition("#")[2]:
            match = ignore.search(line)
            explained = above.startswith("# ") or (match and len(match["reason"].strip(" -#")) > 7)
            if match is None or not explained:
                problems.append(f"{path}:{number}: name the rule, and the reason beside or above")
        above = line.strip()
    return problems


CHECKS: Final[tuple[Check, ...]] = (
    prints,
    clocks_and_dice,
    bare_tasks,
    fixed_sleeps,
    long_files,
    silent_ignores,
)


def _calls(source: str) -> Iterator[ast.Call]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))


def _imports(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module or ''}.{alias.name}") for alias in node.names)


def _is_numpy(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("np", "numpy")
