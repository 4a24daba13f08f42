"""The rooms of the package, and who may import whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

ROOMS: Final = (
    "cli",
    "serving",
    "radixtide",
    "simulation",
    "actors",
    "components",
    "tiers",
    "tree",
    "configs",
)
"""Top to bottom: imports point down this list only."""

BLIND: Final = {
    "components": ("asyncio", "anyio", "uvloop"),
    "tiers": ("radixtide.tree",),
    "tree": ("asyncio", "anyio", "uvloop"),
    "configs": ("asyncio", "anyio", "uvloop", "torch"),
}
"""What a room must not know beyond that: the core is synchronous, and pools know no tree."""


def present_rooms(root: Path = ROOT) -> tuple[str, ...]:
    """Return the rooms that exist under `root`, top to bottom."""
    return tuple(room for room in ROOMS if (root / room).is_dir())


def sources(root: Path, folder: str) -> Iterator[Path]:
    """Yield the Python files of a folder, the checkers' links aside."""
    for path in sorted((root / folder).rglob("*.py")):
        if "typing" not in path.relative_to(root).parts:
            yield path


def room_of(module: str) -> str | None:
    """Return the room of a module by its dotted name; None for other people's modules.

    The façade is the room of every name under ``radixtide`` that is no room itself.
    """
    head, _, rest = module.partition(".")
    if head != "radixtide":
        return None
    first = rest.partition(".")[0]
    return first if first in ROOMS else "radixtide"


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of every import, also those in functions and for checkers.

    ``from radixtide import tree`` names the room, so the names count as part of the module there.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if module == "radixtide":
                yield from ((node.lineno, f"radixtide.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def wrong_imports(root: Path) -> list[str]:
    """Return every import under `root` that does not point down, as ``file:line: why``."""
    problems = []
    for room in present_rooms(root):
        for path in sources(root, room):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for line, module in imported(tree):
                why = _objection(room, module)
                if why:
                    problems.append(f"{path.relative_to(root).as_posix()}:{line}: {why}")
    return problems


def _objection(room: str, module: str) -> str | None:
    if module.startswith("."):
        return f"relative import {module}"
    for stranger in BLIND.get(room, ()):
        if module == stranger or module.startswith(f"{stranger}."):
            return f"{room} must not know {stranger}"
    if module.partition(".")[0] in ROOMS and not module.startswith("radixtide"):
        return f"bare import of {module} loads a second copy"
    target = room_of(module)
    if target is not None and ROOMS.index(target) < ROOMS.index(room):
        return f"{room} imports {module}, which lies above it"
    return None
