"""Every example runs and prints what it always printed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.rooms import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
OUTPUT = {
    "blocking_scheduler": (
        "user 1, turn 0: 20 tokens, 0 of its prompt were cached\n"
        "user 1, turn 1: 20 tokens, 64 of its prompt were cached\n"
        "user 2, turn 0: 20 tokens, 64 of its prompt were cached\n"
        "user 2, turn 1: 20 tokens, 64 of its prompt were cached\n"
        "held 0, cached 256 of 512\n"
        "sound: True\n"
    ),
    "compressed_sidecar": (
        "first: 0 of 400 tokens cached; compressed now: 0 to 384\n"
        "second: 192 of 300 tokens cached; compressed now: 128 to 256\n"
        "tree: 3 nodes, generation 0, page 16, 0 receipts, 0 requests, 0 pins\n"
        "- node 2 [0, 192) touch 3, hits 1, priority 0 | "
        "full: 192 slots, locks 0; sidecar: page ids 0\n"
        "  - node 1 [192, 400) touch 1, hits 0, priority 0 | "
        "full: 208 slots, locks 0; sidecar: page ids 1, 2\n"
        "  - node 3 [192, 288) touch 3, hits 0, priority 0 | "
        "full: 96 slots, locks 0; sidecar: page ids 3\n"
        "first: 400 tokens cached; id 0 (mean 63.5), id 1 (mean 191.5), id 2 (mean 319.5)\n"
        "second: 288 tokens cached; id 0 (mean 63.5), id 3 (mean 979)\n"
        "evicted 3 page ids, 0 tokens\n"
        "first: 400 tokens cached; id 0 (mean 63.5), no copy, no copy\n"
        "first again: 400 of 400 tokens cached; compressed now: 128 to 384\n"
        "page ids: 3 free, 3 in use of 6\n"
        "sound: True\n"
    ),
    "first_match": "48 of 96 tokens; never_stored\n",
    "host_and_storage": (
        "without the device: device 0, host 512 tokens; loaded 512, the same state\n"
        "after a restart:    device 0, host 512 tokens; loaded 512, the same state "
        "(512 from storage)\n"
        "another tenant:     0 from storage\n"
    ),
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


DRIVER = """
import contextlib, io, json, os, runpy, sys
told = {}
for path, where in json.loads(sys.argv[1]):
    os.chdir(where)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(path, run_name="__main__")
    told[path] = out.getvalue()
print(json.dumps(told))
"""
"""Runs examples one after the other: a fresh interpreter each would load PyTorch as often."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run all examples in an interpreter of their own; return what each prints, by name."""
    elsewhere = str(tmp_path_factory.mktemp("elsewhere"))
    # The first reads the preset configs/full.toml; the others run wherever one stands.
    work = [
        (str(path), str(ROOT) if path.stem == "first_match" else elsewhere) for path in EXAMPLES
    ]
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRIVER, json.dumps(work)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return {Path(path).stem: text for path, text in json.loads(result.stdout).items()}


@pytest.mark.parametrize("name", [path.stem for path in EXAMPLES])
def test_an_example_prints_what_it_should(name: str, printed: dict[str, str]) -> None:
    assert printed[name] == OUTPUT[name]


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES} == set(OUTPUT)


def test_the_quickstart_is_short() -> None:
    text = (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
