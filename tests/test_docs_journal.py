"""What docs/journal.md says of options, records and code is so."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
from typer.main import get_command

from radixtide import UnifiedRadixCache
from radixtide.cli.inspect_diagram import Diagram, draw, make_diagram
from radixtide.cli.inspect_events import Filter, events, tag_of
from radixtide.cli.main import app
from radixtide.simulation.dice import dice
from radixtide.simulation.injector import Injector
from radixtide.simulation.journal import JournalWriter
from radixtide.simulation.journal_records import MAGIC, Record
from radixtide.simulation.loop import SimulatedLoop
from radixtide.simulation.plan import Fault, FaultPlan
from support.caches import key, make_config, match, store
from support.journals import few_calls, journalled, records
from support.rooms import ROOT

TEXT = (ROOT / "docs" / "journal.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table that begins with a heading."""
    table = TEXT[TEXT.index(f"| {heading} |") :].split("\n\n")[0]
    return [
        [cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines()[2:]
    ]


def test_every_option_on_the_page_is_one_and_the_other_way_round() -> None:
    command: Any = get_command(app)
    options = {
        name
        for parameter in command.commands["inspect"].params
        for name in parameter.opts
        if name.startswith("--")
    }
    named = {name for row in rows("option") for name in re.findall(r"--[a-z]+", row[0])}
    assert named == options - {"--help"}


def test_every_kind_of_record_is_on_the_page() -> None:
    told: dict[str, str] = {}
    for kinds, classes, _ in rows("`type`"):
        found = zip(re.findall(r"`(\w+)`", kinds), re.findall(r"`(\w+)`", classes), strict=True)
        told.update(found)
    there = {str(kind.__struct_config__.tag): kind.__name__ for kind in get_args(Record)}
    assert told == there
    assert {tag_of(one) for one in records(journalled())} <= set(told)


def test_the_first_bytes_are_those_of_the_page() -> None:
    (magic,) = re.findall(r"eight bytes `(.*?)`", TEXT)
    assert magic.encode("latin-1").decode("unicode_escape").encode("latin-1") == MAGIC


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)


def test_the_code_on_the_page_writes_a_journal_and_reads_it(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks():
        exec(compile(block, "docs/journal.md", "exec"), names)
    loop = SimulatedLoop(1)
    path = tmp_path / "run.journal"

    async def calls(cache: UnifiedRadixCache) -> None:
        await store(cache, key(8))
        found = await match(cache, key(8))
        await cache.dec_lock_ref(await cache.inc_lock_ref(found.last_device_node))

    async def run() -> None:
        async with UnifiedRadixCache(make_config()) as cache:
            await names["watched"](cache, path, loop.time, calls)

    loop.run(run())
    assert [node for _, node in names["locks"](path)] == [1]


def drawn() -> str:
    """Return the diagram of a step of a run that loses a message, without details."""

    async def scene(cache: UnifiedRadixCache, journal: JournalWriter) -> None:
        plan = FaultPlan(faults=(Fault(kind="drop", message="Unlock", count=1),))
        loop = asyncio.get_running_loop()
        Injector(plan, dice(1, "faults"), loop, journal.note_fault).install(cache)
        await few_calls(cache, journal)

    chosen = Filter(first=3, last=3).choose(events(records(journalled(scene))))
    diagram = make_diagram(chosen)
    rows = [msgspec.structs.replace(row, detail="") for row in diagram.rows]
    calls = [row.text for row in rows].index("AllocateParams #13")
    shown = draw(Diagram(diagram.actors, rows[:calls]), 86)
    return "".join(f"{line.plain}\n" for line in shown)


def test_a_diagram_is_drawn_as_on_the_page() -> None:
    (shown,) = re.findall(r"```text\n(.*?)```", TEXT, flags=re.DOTALL)
    assert drawn() == shown
