"""The tables of docs/messages.md, and what a test needs to measure what they say."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from radixtide import UnifiedRadixCache
from radixtide.configs.errors import RadixtideError
from support.rooms import ROOT

DOC = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")

Call = Callable[[], Awaitable[Any]]
Situation = Callable[[UnifiedRadixCache], Awaitable[Call]]
"""Prepares a cache, and returns the call to measure."""

Rows = dict[tuple[str, str], tuple[str, ...]]


def table(columns: int) -> Rows:
    """Return the rows of the document's table with so many columns: the cells after the first two.

    By call and situation, the two first cells.
    """
    rows: Rows = {}
    for line in DOC.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == columns and re.fullmatch(r"`\w+`", cells[0]):
            name = cells[0].strip("`"), cells[1]
            assert name not in rows, name
            rows[name] = tuple(cell.replace("`", "") for cell in cells[2:])
    return rows


def names(cell: str) -> list[str]:
    """Return the messages that a cell lists."""
    return list(filter(None, cell.split(", ")))


async def handled(cache: UnifiedRadixCache) -> dict[str, int]:
    """Return the counters of handled messages by actor."""
    return {name: actor.handled for name, actor in (await cache.stats()).actors.items()}


async def ended(call: Call) -> None:
    """Await a call, be it refused."""
    try:
        await call()
    except RadixtideError:
        pass
