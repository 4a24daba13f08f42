"""The page about faults: every kind, its test, its promises; and its examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from radixtide import testing
from radixtide.simulation.plan import KINDS
from radixtide.simulation.plan_reading import read_plan
from support.rooms import ROOT

PAGE = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
TABLE = re.findall(r"^\| `(\w+)` \| (.+) \| (.+) \| `([\w.]+)::(\w+)` \|$", PAGE, re.MULTILINE)


def blocks(language: str) -> list[str]:
    """Return the blocks of the page in a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_kind_of_fault_has_a_row() -> None:
    assert sorted(kind for kind, *_ in TABLE) == sorted(KINDS)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0])
def test_the_test_of_a_row_exists_and_its_promises_do(row: tuple[str, ...]) -> None:
    _, _, promised, file, name = row
    source = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE)
    guarantees = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    numbers = re.findall(r"\bG\d+\b", promised)
    assert numbers
    assert all(f"[{number}]" in guarantees for number in numbers)


def test_the_plan_is_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(blocks("toml")[0])
    plan = read_plan(path)
    assert plan.kinds == ("crash_after", "storage_slow")


def test_every_fixture_is_told() -> None:
    from radixtide.testing import plugin

    table = PAGE.partition("| name | what it is |")[2].partition("\n\n")[0]
    told = set(
        re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)))
    )
    source = Path(plugin.__file__).read_text(encoding="utf-8")
    fixtures = set(re.findall(r"@pytest\.fixture\ndef (\w+)", source))
    assert told == fixtures | {"simulated"}


def test_the_names_of_the_package_exist() -> None:
    line = PAGE.partition("`radixtide.testing` has ")[2].partition(" and more")[0]
    names = re.findall(r"`(\w+)`", line)
    assert len(names) > 8
    assert set(names) <= set(testing.__all__)


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    """As a user would: two files and a config in a folder, and the plugin of the installation."""
    serving, component = blocks("python")
    (tmp_path / "cache.toml").write_text(blocks("toml")[1])
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nasyncio_mode = auto\n")
    (tmp_path / "test_serving.py").write_text(serving)
    (tmp_path / "test_component.py").write_text(component)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "examples")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "15 passed" in ran.stdout


@pytest.mark.nightly
@pytest.mark.slow
def test_the_example_without_its_abort_fails(tmp_path: Path) -> None:
    serving = blocks("python")[0]
    broken = serving.replace("            await cache.abort_req(req)\n", "")
    assert broken != serving
    (tmp_path / "cache.toml").write_text(blocks("toml")[1])
    (tmp_path / "test_serving.py").write_text(broken)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "still held" in ran.stdout
    assert re.search(r"seed \d: again with pytest", ran.stdout)
    assert "faults: cancel_caller" in ran.stdout
