"""Every example runs and prints what it always printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.rooms import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
OUTPUT = {
    "first_match": "48 of 96 tokens; never_stored\n",
    "hybrid_models": (
        "first: 0 tokens found (never_stored), 80 window slots held\n"
        "second: 320 tokens found (never_stored), 80 window slots held\n"
        "full: 576 of 4096 slots cached\n"
        "swa: 448 of 1024 slots cached\n"
        "mamba: 1 of 16 slots cached\n"
        "sound: True\n"
    ),
    "quickstart": (
        "first: 0 of 68 tokens cached, 64 now, 16 freed\n"
        "second: 48 of 78 tokens cached, 80 now, 16 freed\n"
        "first again: 64 of 68 tokens cached, 64 now, 16 freed\n"
        "sound: True\n"
    ),
    "scheduler_loop": (
        "chat-1: 60 tokens, 0 found in the cache, retracted 0 times\n"
        "chat-2: 60 tokens, 32 found in the cache, retracted 0 times\n"
        "chat-3: 60 tokens, 80 found in the cache, retracted 1 times\n"
        "chat-4: 60 tokens, 80 found in the cache, retracted 1 times\n"
        "chat-5: 60 tokens, 80 found in the cache, retracted 1 times\n"
        "held 0, protected 0, cached 280 of 288\n"
        "sound: True\n"
    ),
}


def run(example: Path, where: Path) -> str:
    """Run an example in a fresh interpreter; return what it prints."""
    result = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=where,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_it_should(example: Path, tmp_path: Path) -> None:
    # The first reads the preset configs/full.toml; the others run wherever one stands.
    where = ROOT if example.stem == "first_match" else tmp_path
    assert run(example, where) == OUTPUT[example.stem]


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES} == set(OUTPUT)


def test_the_quickstart_is_short() -> None:
    text = (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
