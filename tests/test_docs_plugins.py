"""docs/plugins.md: each piece of code is the example's own, or runs as it stands."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from textwrap import indent
from types import FunctionType
from typing import Any, Final

import pytest

from radixtide import AuxiliaryComponent, EvictParams, MissReason, TreeComponent, UnifiedRadixCache
from radixtide.configs.loader import parse_config
from support.caches import Delivery, key, make_config, match, open_cache, store
from support.plugin import EXAMPLE, NAME, SETS, page_ids, registered, with_sidecar
from support.plugin_walk import PluginSetup, both_deliveries_agree
from support.rooms import ROOT

PAGE: Final = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
SOURCE: Final = (ROOT / "examples" / "compressed_sidecar.py").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """Return the page's blocks in a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def is_piece(block: str) -> bool:
    """Return whether each definition in a block stands in the example, word for word."""
    return block in SOURCE or all(
        indent(part, "    ", lambda line: bool(line.strip())) in SOURCE
        for part in re.split(r"\n(?=def )", block)
    )


PIECES: Final = [block for block in blocks("python") if is_piece(block)]
OWN: Final = [block for block in blocks("python") if not is_piece(block)]


def test_most_of_the_code_is_the_example() -> None:
    assert len(PIECES) >= 12
    first = [block.strip().splitlines()[0] for block in OWN]
    assert [line.partition("(")[0] for line in first] == [
        "evicted = await cache.evict",
        "class NeededSidecar",
    ]


def test_the_page_shows_every_method_of_the_example() -> None:
    shown = set(re.findall(r"def (\w+)", "".join(PIECES)))
    methods = set(re.findall(r"    def (\w+)", SOURCE))
    assert methods - shown == {"use", "describe"}


def test_the_output_is_the_examples() -> None:
    (console,) = blocks("console")
    command, printed = console.split("\n", 1)
    assert command == "$ python examples/compressed_sidecar.py"
    result = subprocess.run(
        [sys.executable, *command.split()[2:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.stdout, result.stderr) == (printed, "")


async def run(block: str, names: dict[str, Any]) -> None:
    """Execute a block that may await; its names end up in `names`."""
    program = compile(block, "plugins.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = FunctionType(program, names)()
    if inspect.isawaitable(made):
        await made


async def test_the_eviction_that_is_shown_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with registered():
        async with open_cache(**with_sidecar(page_size=16, size=1024)) as cache:
            await store(cache, key(400))
            await run(OWN[0], {"cache": cache, "EvictParams": EvictParams})
    assert capsys.readouterr().out == "3 0\n"


def test_the_section_that_is_shown_makes_a_cache() -> None:
    section, entry_point = blocks("toml")
    with registered():
        cache = UnifiedRadixCache(parse_config(section, components=[NAME]))
    assert [part.name for part in cache._components] == ["full", NAME]
    points = tomllib.loads(entry_point)["project"]["entry-points"]["radixtide.components"]
    assert points == {NAME: "your_package:Sidecar"}


@pytest.fixture
async def needed() -> Any:
    """Return the class that the page derives for copies that must be there."""
    names = dict(vars(EXAMPLE))
    await run(OWN[1], names)
    return names["NeededSidecar"]


async def test_a_component_that_votes_cuts_a_match_and_says_so(
    delivery: Delivery, needed: Any
) -> None:
    with registered(needed):
        fields = with_sidecar(ids=2, page_size=16, size=2048)
        async with open_cache(delivery=delivery, **fields) as cache:
            await store(cache, key(500))
            found = await match(cache, key(500), lock=True)
            assert len(found.device_indices) == 256
            assert found.full_kv_hit_length == 496
            assert found.miss_reason is MissReason.COMPONENT
            assert await page_ids(cache, found) == [0, 1]
            # What is behind may be matched as far as no group ends in it.
            assert len((await match(cache, key(240))).device_indices) == 240
            assert found.receipt is not None
            await cache.dec_lock_ref(found.receipt)
            await cache.evict(EvictParams(others={NAME: 2}))
            assert (await match(cache, key(500))).device_indices.tolist() == []


@pytest.mark.slow
@pytest.mark.parametrize("components", SETS, ids="+".join)
async def test_a_component_that_votes_stays_true_on_a_walk(
    components: tuple[str, ...], needed: Any
) -> None:
    with registered(needed):
        await both_deliveries_agree(PluginSetup(components, page=16), seed=1, steps=80)


def hooks(kind: type) -> set[str]:
    """Return the public methods of a class."""
    return {
        name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))
    }


def test_the_table_of_hooks_names_what_there_is() -> None:
    table = PAGE.partition("## All hooks")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", table, flags=re.MULTILINE)
    listed = {name: flags for names, flags in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(listed) <= hooks(AuxiliaryComponent)
    abstract = AuxiliaryComponent.__abstractmethods__
    assert {name for name, flags in listed.items() if "A" in flags} == set(abstract)
    assert TreeComponent.__abstractmethods__ <= set(listed) | {"evict_component"}


def test_every_name_is_where_the_page_says() -> None:
    table = PAGE.partition("## Where the names are")[2]
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|$", table, flags=re.MULTILINE)
    assert len(rows) == 6
    for module, names in rows:
        room = import_module(module)
        for name in re.findall(r"`(\w+)`", names):
            value = getattr(room, name)
            # Its home, or a room that shows it; not one that happens to import it.
            at_home = not isinstance(value, type) or value.__module__ == module
            assert at_home or name in room.__all__, (module, name)


def test_both_attributes_that_the_page_explains_are_the_classes() -> None:
    assert (TreeComponent.votes, TreeComponent.independent) == (True, False)
    assert (EXAMPLE.Sidecar.votes, EXAMPLE.Sidecar.independent) == (False, True)
    assert make_config().plugins == {}
