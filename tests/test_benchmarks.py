"""The benchmark commands: what they print, and that what they time is right.

No figure is asserted: tests run on busy machines.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rich.console
import torch
import typer
from typer.testing import CliRunner, Result

from radixtide import UnifiedRadixCache
from radixtide.tiers.state_pool import StatePool

ROOT = Path(__file__).resolve().parent.parent
Row = dict[str, Any]

REQUEST = {"match+indices", "lock", "insert", "unlock"}
SMALL = {
    "multi_turn": REQUEST | {"indices_after_insert"},
    "fan_out": REQUEST,
    "deep_chain": REQUEST,
    "long_doc": REQUEST,
    "evict_pressure_n40": REQUEST | {"evict", "evict_for_alloc"},
}
"""The small workloads and the calls that each must have timed."""


def load_package() -> None:
    """Make ``benchmarks`` importable without putting the root of the checkout on the path."""
    folder = ROOT / "benchmarks"
    spec = importlib.util.spec_from_file_location(
        "benchmarks", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchmarks"] = module
    spec.loader.exec_module(module)


def run(module: str, *arguments: str) -> Result:
    """Run ``python -m benchmarks.MODULE`` in this process."""
    if "benchmarks" not in sys.modules:
        load_package()
    command = typer.Typer()
    command.command()(importlib.import_module(f"benchmarks.{module}").main)
    return CliRunner().invoke(command, arguments)


def rows_of(done: Result) -> list[Row]:
    assert done.exit_code == 0, (done.stderr, done.exception)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module", params=[1, pytest.param(16, marks=pytest.mark.nightly)])
def verified(request: pytest.FixtureRequest) -> list[Row]:
    """All small workloads, both deliveries, every list of indices checked, audited at the end."""
    names, page = ",".join(SMALL), str(request.param)
    return rows_of(
        run("calls", "--small", "--workload", names, "--page", page, "--verify", "--json")
    )


def test_every_call_is_reported_for_both_ways_of_delivery(verified: list[Row]) -> None:
    for impl in ("radixtide", "radixtide-queued"):
        for workload, expected in SMALL.items():
            mine = [
                row
                for row in verified
                if (row["impl"], row["workload"]) == (impl, workload) and row["op"] != "_summary"
            ]
            calls = {row["op"].partition("[")[0] for row in mine}
            bare = {call.partition("_")[0] if "match" in call else call for call in calls}
            assert expected <= bare
            for row in mine:
                assert row["n"] > 0
                assert 0 < row["p50_us"] <= row["p99_us"] or row["op"].startswith("indices")


def test_a_hit_a_partial_hit_and_a_miss_are_told_apart(verified: list[Row]) -> None:
    ops = {row["op"] for row in verified if row["workload"] == "fan_out"}
    assert {"match+indices_hit", "match+indices_miss", "match+indices_partial[midnode]"} <= ops


def test_direct_and_queued_delivery_do_the_same(verified: list[Row]) -> None:
    for workload in SMALL:
        direct, queued = (
            row for row in verified if row["workload"] == workload and row["op"] == "_summary"
        )
        assert (direct["impl"], queued["impl"]) == ("radixtide", "radixtide-queued")
        for figure in ("digest", "matches", "matched_tokens", "evicted", "checked"):
            assert direct[figure] == queued[figure]
        assert direct["checked"] > 0
        assert 0 < direct["matched_tokens"] < direct["query_tokens"]


def test_pressure_evicts(verified: list[Row]) -> None:
    pressed = [row for row in verified if row["workload"] == "evict_pressure_n40"]
    assert all(row["evicted"] > 0 for row in pressed if row["op"] == "_summary")


def test_the_seed_decides_the_stream() -> None:
    digests = [
        rows_of(
            run("calls", "--small", "--impls", "direct", "--seed", seed, "--gc", "off", "--json")
        )[-1]["digest"]
        for seed in ("1", "1", "2")
    ]
    assert digests[0] == digests[1] != digests[2]


def test_from_the_root_of_a_checkout_the_command_prints_a_table() -> None:
    command = [sys.executable, "-m", "benchmarks.calls", "--small", "--impls", "direct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "p50" in done.stdout
    assert "insert[finish]" in done.stdout


# -- windows and states ----------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[1, 16])
def hybrids(request: pytest.FixtureRequest) -> dict[str, dict[str, list[Row]]]:
    """Summaries by set of components and workload, each verified in both ways of delivery."""
    page = ("--page", str(request.param))
    found: dict[str, dict[str, list[Row]]] = {}
    for components in ("full", "full_swa", "full_mamba", "full_swa_mamba"):
        rows = rows_of(
            run(
                *("calls", "--small", "--workload", "multi_turn,fan_out,evict_pressure_n40", *page),
                *("--components", components, "--verify", "--json"),
            )
        )
        assert {row["components"] for row in rows} == {components}
        found[components] = {}
        for row in rows:
            if row["op"] == "_summary":
                found[components].setdefault(row["workload"], []).append(row)
    return found


@pytest.mark.nightly
def test_each_set_of_components_does_the_same_in_both_ways_of_delivery(
    hybrids: dict[str, dict[str, list[Row]]],
) -> None:
    for components, workloads in hybrids.items():
        for name, (direct, queued) in workloads.items():
            assert (direct["impl"], queued["impl"]) == ("radixtide", "radixtide-queued")
            for figure in ("digest", "matches", "matched_tokens", "evicted", "checked"):
                assert direct[figure] == queued[figure], (components, name)
            assert direct["checked"] > 0


@pytest.mark.nightly
def test_windows_and_states_shorten_matches_and_together_most(
    hybrids: dict[str, dict[str, list[Row]]],
) -> None:
    matched = {
        components: workloads["fan_out"][0]["matched_tokens"]
        for components, workloads in hybrids.items()
    }
    assert 0 < matched["full_mamba"] < matched["full"]
    assert 0 < matched["full_swa"] < matched["full"]
    assert matched["full_swa_mamba"] <= min(matched["full_swa"], matched["full_mamba"])


@pytest.mark.parametrize("planted", ["a hole", "another token"])
def test_verifying_sees_a_wrong_slot_of_a_window(
    planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = UnifiedRadixCache.component_slots

    async def answer(self: UnifiedRadixCache, name: str, indices: torch.Tensor) -> torch.Tensor:
        slots = (await ask(self, name, indices)).clone()
        if len(slots) > 1:
            slots[-1] = -1 if planted == "a hole" else slots[-2]
        return slots

    monkeypatch.setattr(UnifiedRadixCache, "component_slots", answer)
    done = run("calls", "--small", "--components", "full_swa", "--verify", "--impls", "direct")
    assert done.exit_code == 1
    wrong = "all of their last window" if planted == "a hole" else "are not those tokens'"
    assert wrong in str(done.exception)


def test_verifying_sees_a_state_of_other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = StatePool.copy

    def copy_another(self: StatePool, source: int, target: int) -> None:
        copy(self, (source + 1) % self.size, target)

    monkeypatch.setattr(StatePool, "copy", copy_another)
    done = run("calls", "--small", "--components", "full_mamba", "--verify", "--impls", "direct")
    assert done.exit_code == 1
    assert "is not that of those tokens" in str(done.exception)


@pytest.mark.parametrize("components", ["full_swa", "full_mamba", "full_swa_mamba"])
def test_memory_is_measured_with_windows_and_states(components: str) -> None:
    (row,) = rows_of(
        run("memory", "--nodes", "1000", "--page", "16", "--components", components, "--json")
    )
    assert row["components"] == components
    assert row["bytes_per_node"] > 512


def test_memory_with_states_wants_nodes_that_can_have_one() -> None:
    done = run("memory", "--nodes", "10", "--tokens", "80", "--components", "full_mamba")
    assert done.exit_code == 2
    assert "no multiple of 64" in done.stderr


def test_an_unknown_name_is_refused_with_the_choices() -> None:
    for arguments, choice in (
        (("--workload", "nosuch"), "fan_out"),
        (("--components", "nosuch"), "full"),
        (("--impls", "nosuch"), "queued"),
        (("--gc", "nosuch"), "freeze"),
    ):
        done = run("calls", "--small", *arguments)
        assert done.exit_code == 2
        assert "nosuch" in done.stderr
        assert choice in done.stderr


def test_memory_counts_at_least_what_a_node_must_hold() -> None:
    (row,) = rows_of(run("memory", "--nodes", "4000", "--tokens", "64", "--page", "16", "--json"))
    # 64 tokens of 8 bytes each are there in any case; the allocator may reuse some of the rest.
    assert row["bytes_per_node"] > 512
    assert (row["nodes"], row["tokens"], row["page"]) == (4000, 64, 16)


# -- the comparison --------------------------------------------------------------------------------

WORKLOADS = """
from benchmarks.generators import SMALL

WORKLOADS = {"multi_turn": SMALL["multi_turn"], "elsewhere": SMALL["fan_out"]}
"""

PEER = """
import json, sys

argument = dict(zip(sys.argv[1::2], sys.argv[2::2]))
common = {"impl": "sglang-rust", "page": int(argument["--page"])}
common["components"] = argument["--components"]
if "--mem" in argument:
    print(json.dumps({**common, "op": "bytes_per_node", "rss_per_node": 2000}))
    raise SystemExit
common["workload"] = argument["--workload"]
for op, p50 in (("insert[finish]", 1e9), ("lock", 1e-9), ("only_theirs", 1.0)):
    print(json.dumps({**common, "op": op, "n": 1, "tokens": 1, "p50_us": p50}))
print(json.dumps({**common, "op": "_summary", "digest": "theirs"}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Workloads and a peer of which the answers are known: slow to insert, fast to lock."""
    (tmp_path / "workloads.py").write_text(WORKLOADS)
    (tmp_path / "peer_sglang.py").write_text(PEER)
    return tmp_path


def test_a_folder_with_workloads_takes_the_place_of_ours(folder: Path) -> None:
    rows = rows_of(
        run(
            *("calls", "--workloads-dir", str(folder), "--workload", "elsewhere"),
            *("--impls", "direct", "--json"),
        )
    )
    assert {row["workload"] for row in rows} == {"fan_out"}
    assert run("calls", "--workloads-dir", str(folder), "--workload", "deep_chain").exit_code == 2


def test_the_comparison_holds_ratios_to_the_bars(folder: Path) -> None:
    done = run(
        *("compare", "--workloads-dir", str(folder), "--peer-python", sys.executable),
        *("--workloads", "multi_turn", "--pages", "16", "--rounds", "1", "--memory-nodes", "200"),
        *("--require", "foundation", "--json"),
    )
    assert done.exit_code == 1
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    by_op = {row["op"]: row for row in rows}
    assert set(by_op) == {"insert[finish]", "lock", "_digest", "bytes_per_node"}
    assert by_op["insert[finish]"]["meets_goal"]
    assert not by_op["lock"]["meets_foundation"]
    assert by_op["lock"]["queued_ratio"] > 1
    assert not by_op["_digest"]["agree"]
    assert by_op["bytes_per_node"]["peer_bytes"] == 2000

    shown = io.StringIO()
    rich.console.Console(file=shown, width=160).print(
        importlib.import_module("benchmarks.compare").table(rows)
    )
    for cell in ("insert[finish]", "goal (≤ 0.5)", "FAIL (> 0.9)", "digests differ"):
        assert cell in shown.getvalue()


@pytest.mark.nightly
def test_windows_and_states_are_compared_and_have_bars_of_their_own(folder: Path) -> None:
    rows = rows_of(
        run(
            *("calls", "--peer", "--peer-python", sys.executable, "--workloads-dir", str(folder)),
            *("--workload", "multi_turn", "--components", "full_swa", "--rounds", "1", "--json"),
        )
    )
    assert [(row["components"], row["op"]) for row in rows] == [
        ("full_swa", "insert[finish]"),
        ("full_swa", "lock"),
        ("full_swa", "_digest"),
    ]
    assert all((row["foundation"], row["goal"]) == (0.8, 0.4) for row in rows[:2])


def test_a_list_of_sets_is_compared_one_after_the_other(folder: Path) -> None:
    compare = importlib.import_module("benchmarks.compare")
    sets = compare.peers_for(sys.executable, folder, "full_mamba,full", 0)
    assert [one.components for one in sets] == ["full_mamba", "full"]


def test_each_row_has_its_bar() -> None:
    bar_for = importlib.import_module("benchmarks.bars").bar_for
    assert bar_for("multi_turn", "match+indices_hit", "full") == (0.9, 0.5)
    for components in ("full_swa", "full_mamba"):
        assert bar_for("deep_chain", "unlock[full_depth]", components) == (0.8, 0.4)
        assert bar_for("evict_pressure_n10000", "evict[1page]", components) is None
    assert bar_for("multi_turn", "insert[finish]", "full_swa_mamba") is None


def test_a_set_of_components_that_the_peer_has_not_is_refused(folder: Path) -> None:
    done = run(
        *("compare", "--workloads-dir", str(folder), "--peer-python", sys.executable),
        *("--components", "full,full_swa_mamba"),
    )
    assert done.exit_code == 2
    assert "full_swa_mamba" in done.stderr


@pytest.mark.nightly
def test_calls_with_a_peer_is_the_same_comparison(folder: Path) -> None:
    rows = rows_of(
        run(
            *("calls", "--peer", "--peer-python", sys.executable, "--workloads-dir", str(folder)),
            *("--workload", "multi_turn", "--rounds", "1", "--json"),
        )
    )
    assert [row["op"] for row in rows] == ["insert[finish]", "lock", "_digest"]


def test_a_peer_that_is_not_there_is_said_so(folder: Path) -> None:
    done = run("calls", "--peer", "--workloads-dir", str(folder))
    assert done.exit_code == 2
    assert "--peer-python" in done.stderr


@pytest.mark.nightly
def test_a_peer_that_fails_is_quoted(folder: Path) -> None:
    (folder / "peer_sglang.py").write_text("raise SystemExit('the peer is out of order')")
    done = run(
        *("compare", "--workloads-dir", str(folder), "--peer-python", sys.executable),
        *("--workloads", "multi_turn", "--pages", "16", "--rounds", "1"),
    )
    assert done.exit_code == 1
    assert "the peer is out of order" in done.stderr


def test_stores_are_measured_and_what_they_return_is_compared(tmp_path: Path) -> None:
    stores = ("memory:", f"file:{tmp_path}/files", f"lmdb:{tmp_path}/lmdb")
    rows = rows_of(
        run("storage", *stores, "--pages", "20", "--size", "8", "--batch", "6", "--json")
    )
    assert [row["store"] for row in rows] == ["idle", *stores]
    assert all(row["put_mib_s"] > 0 and row["get_mib_s"] > 0 for row in rows[1:])
    table = run("storage", "memory:", "redis://127.0.0.1:1/0", "--pages", "2", "--size", "1")
    assert table.exit_code == 0
    assert "memory:" in table.stdout
    assert "redis://127.0.0.1:1/0: redis:" in table.stdout
