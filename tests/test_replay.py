"""``radixtide replay`` from the command line to the audit, against plain models of a cache."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from radixtide.cli.main import app
from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_run import ReplayOptions, ReplayResult, run_replay
from radixtide.cli.replay_sequential import SequentialReplay
from radixtide.cli.replay_source import TraceRequest
from radixtide.configs.errors import ConfigError, InvalidInput, TraceError
from support.traces import (
    conversations,
    endless_hits,
    lru_hits,
    prompts,
    public_trace,
    write_trace,
)

LINES = conversations(300, seed=5)
PUBLIC = public_trace()
TIMINGS = {"calls", "wall_s", "requests_per_s", "tokens_per_s", "peak_rss_bytes", "pool"}
"""Keys whose values depend on the machine or on the very thing a test varies."""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.jsonl", LINES)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "cache.toml"
    path.write_text(
        "page_size = 16\n[pools.full]\nsize = 8_000\n"
        "[pools.requests]\nmax_requests = 12\nmax_context = 8_000\n"
    )
    return path


def call(*arguments: str | Path | float) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def told(*arguments: str | Path | float) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    data = json.loads(result.stdout)
    assert isinstance(data, dict)
    return data


def replay(on_step: Callable[[Recording], None] | None = None, **options: Any) -> ReplayResult:
    return run_replay(ReplayOptions(**options), lambda _source, _summary: on_step)


def assert_nothing_is_left(data: dict[str, Any]) -> None:
    assert data["held"] == {"slots": 0, "locks": 0}
    assert data["audit"] == {"violations": 0, "messages": []}


# One request at a time


def test_an_endless_cache_hits_every_block_that_stood_there_before(trace: Path) -> None:
    data = told(trace, "--sequential", "--capacity-blocks", 0)
    blocks = sum(map(len, prompts(LINES)))
    hits = endless_hits(prompts(LINES))
    assert (data["blocks"]["total"], data["blocks"]["hits"]) == (blocks, hits)
    assert (data["tokens"]["total"], data["tokens"]["hits"]) == (512 * blocks, 512 * hits)
    assert data["evicted"]["tokens"] == 0
    assert data["pool"]["page_size"] == 512
    assert_nothing_is_left(data)


@pytest.mark.parametrize("capacity", [40, 100, 250])
def test_a_bounded_cache_hits_about_as_a_block_lru_does(trace: Path, capacity: int) -> None:
    data = told(trace, "--sequential", "--capacity-blocks", capacity)
    assert data["pool"]["slots"] == 512 * capacity
    # A tree keeps heads of prompts longer than a flat LRU, but gives up whole nodes at a time.
    assert data["blocks"]["hits"] >= 0.95 * lru_hits(prompts(LINES), capacity)
    assert data["blocks"]["hits"] <= endless_hits(prompts(LINES))
    assert data["evicted"]["tokens"] > 0
    assert_nothing_is_left(data)


def test_blocks_of_16_tokens_make_pages_of_16(tmp_path: Path) -> None:
    lines = [
        line | {"chat_id": number, "timestamp": number / 2}
        for number, line in enumerate(conversations(100, seed=6, block=16))
    ]
    data = told(write_trace(tmp_path / "chats.jsonl", lines), "--sequential")
    assert data["pool"]["page_size"] == data["blocks"]["size"] == 16
    assert data["blocks"]["hits"] == endless_hits(prompts(lines))


def test_a_prompt_longer_than_the_pool_is_served_as_far_as_it_reaches(tmp_path: Path) -> None:
    line = {"timestamp": 0, "input_length": 4096, "output_length": 1, "hash_ids": list(range(8))}
    path = write_trace(tmp_path / "long.jsonl", [line, line])
    data = told(path, "--sequential", "--capacity-blocks", 3)
    assert (data["blocks"]["total"], data["blocks"]["hits"]) == (16, 3)
    assert_nothing_is_left(data)


def test_a_limit_serves_the_first_requests_only(trace: Path) -> None:
    data = told(trace, "--sequential", "--capacity-blocks", 0, "--limit", 120)
    assert data["requests"] == data["completed"] == 120
    assert data["blocks"]["hits"] == endless_hits(prompts(LINES[:120]))


@pytest.mark.skipif(PUBLIC is None, reason="the public trace is not here: set RADIXTIDE_TRACE")
def test_the_public_trace_hits_as_its_blocks_say() -> None:
    assert PUBLIC is not None
    data = told(PUBLIC, "--sequential", "--capacity-blocks", 0, "--limit", 600)
    with PUBLIC.open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in islice(file, 600)]
    assert data["blocks"]["total"] == sum(map(len, prompts(lines)))
    assert data["blocks"]["hits"] == endless_hits(prompts(lines))
    assert_nothing_is_left(data)


# Many requests at once


def test_every_request_ends_in_one_way_and_leaves_nothing(trace: Path, config: Path) -> None:
    data = told(trace, "--config", config, "--abort-ratio", 0.2)
    assert data["requests"] == 300
    assert data["completed"] + data["refused"] + data["aborted"] == 300
    assert min(data["completed"], data["aborted"], data["refused"]) > 0
    assert data["blocks"]["total"] == sum(map(len, prompts(LINES)))
    assert data["tokens"]["total"] == sum(line["input_length"] for line in LINES)
    assert 0 < data["tokens"]["hits"] < data["tokens"]["total"]
    assert data["evicted"]["tokens"] > 0
    assert sum(data["miss_reasons"].values()) == 300 - data["refused"]
    assert_nothing_is_left(data)


def test_only_what_can_never_fit_is_refused(trace: Path, config: Path) -> None:
    data = told(trace, "--config", config, "--abort-ratio", 0)
    too_long = [
        line for line in LINES if -(-(line["input_length"] + line["output_length"]) // 16) > 500
    ]
    assert data["refused"] == len(too_long) > 0


def test_a_pool_that_runs_out_retracts_the_youngest_and_serves_it_later(tmp_path: Path) -> None:
    # Four prompts fit side by side, what they generate does not.
    lines = [
        {"timestamp": 0, "input_length": 500, "output_length": 900, "hash_ids": [number]}
        for number in range(4)
    ]
    path = write_trace(tmp_path / "growing.jsonl", lines)
    data = told(path, "--capacity-blocks", 6, "--abort-ratio", 0)
    assert data["retracted"] > 0
    assert data["completed"] == 4
    assert data["tokens"]["generated"] == 4 * 900
    # What a retracted request had computed is found again, or it would be computed twice.
    assert data["tokens"]["prefilled"] < 4 * 500 + data["retracted"] * 900
    assert_nothing_is_left(data)


def test_an_endless_pool_evicts_nothing(trace: Path) -> None:
    data = told(trace, "--capacity-blocks", 0)
    assert (data["refused"], data["retracted"], data["evicted"]["tokens"]) == (0, 0, 0)
    assert data["blocks"]["hits"] > 0


def test_all_that_can_be_aborted_is(trace: Path) -> None:
    data = told(trace, "--abort-ratio", 1, "--limit", 60)
    assert (data["completed"], data["aborted"]) == (0, 60)
    assert_nothing_is_left(data)


@pytest.mark.parametrize("mode", [["--sequential"], []])
def test_queued_delivery_and_another_loop_change_no_figure(
    trace: Path, config: Path, mode: list[str]
) -> None:
    runs = [
        told(trace, "--config", config, "--limit", 150, *mode, *more)
        for more in (["--uvloop"], ["--no-uvloop"], ["--delivery", "queued"])
    ]
    plain = [{key: run[key] for key in run.keys() - TIMINGS} for run in runs]
    assert plain[0] == plain[1] == plain[2]
    assert runs[2]["pool"]["delivery"] == "queued"
    assert runs[1]["pool"]["loop"] == "asyncio"


def test_a_seed_repeats_a_run_and_another_gives_another() -> None:
    def run(seed: int) -> dict[str, Any]:
        data = told("--synthetic", "mixed", "--requests", 80, "--seed", seed)
        return {key: data[key] for key in data.keys() - TIMINGS}

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize("kind", ["chat", "shared", "tools", "documents"])
def test_each_kind_of_generated_traffic_finds_much_cached(kind: str, config: Path) -> None:
    data = told("--synthetic", kind, "--requests", 200, "--config", config)
    assert data["requests"] == 200
    assert data["refused"] == 0
    assert data["tokens"]["hit_ratio"] > 0.2
    assert_nothing_is_left(data)


def test_a_pool_with_bytes_replays_alike(trace: Path, config: Path) -> None:
    counted = told(trace, "--config", config, "--limit", 80)
    real = told(trace, "--config", config, "--limit", 80, "--bytes")
    assert real["tokens"] == counted["tokens"]


# What a person meets


def test_the_table_names_the_figures_that_matter(trace: Path) -> None:
    result = call(trace, "--limit", 40)
    assert result.exit_code == 0
    for words in ("hit ratio, blocks", "tokens evicted", "refused", "p99", "peak memory", "sound"):
        assert words in result.stdout
    assert result.stderr == ""  # progress is for terminals


def test_json_stands_alone_on_stdout_with_every_promised_key(trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "replay.html"
    data = told(trace, "--limit", 40, "--report", report)
    for name in ("allocate", "match_prefix", "cache_finished_req", "audit", "stats"):
        assert data["calls"][name].keys() == {"count", "p50_us", "p99_us"}
        assert 0 < data["calls"][name]["p50_us"] <= data["calls"][name]["p99_us"]
    assert data["calls"]["match_prefix"]["count"] >= 40
    assert data["wall_s"] > 0
    assert data["peak_rss_bytes"] > 2**20
    assert report.read_text(encoding="utf-8").count("<svg") == 4


@pytest.mark.parametrize("json_too", [[], ["--json"]])
def test_a_bad_line_far_down_stops_the_replay_before_it_starts(
    tmp_path: Path, json_too: list[str]
) -> None:
    path = write_trace(tmp_path / "bad.jsonl", LINES[:50])
    with path.open("a") as file:
        file.write("{broken\n")
    report = tmp_path / "replay.html"
    result = call(path, "--report", report, *json_too)
    assert isinstance(result.exception, TraceError)
    assert f"{path}:51: not JSON" in str(result.exception)
    assert result.stdout == ""
    assert not report.exists()


def test_errors_end_with_one_line_and_status_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "radixtide.cli.main", "replay", str(tmp_path / "absent")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_asking_for_help_loads_neither_torch_nor_numpy() -> None:
    program = (
        "import sys\nsys.argv = ['radixtide', 'replay', '--help']\n"
        "from radixtide.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True)


def test_a_report_that_is_no_page_is_refused_before_anything_runs(trace: Path) -> None:
    result = call(trace, "--report", "replay.png")
    assert isinstance(result.exception, InvalidInput)
    assert "replay.html" in str(result.exception)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("bigram = true\n[pools.full]\nsize = 64", "bigram"),
        ("[pools.full]\nsise = 64", "sise"),
    ],
)
def test_a_config_that_can_not_be_replayed_says_why(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "cache.toml"
    path.write_text(text)
    result = call("--config", path, "--requests", 1)
    assert isinstance(result.exception, ConfigError)
    assert what in str(result.exception)


def test_bytes_for_a_pool_beyond_this_machines_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.toml"
    path.write_text("[pools.full]\nsize = 1_000_000_000_000\n")
    with pytest.raises(ConfigError, match="leave out --bytes"):
        replay(config=path, holds_bytes=True, requests=1)


def test_what_the_audit_finds_is_printed_and_ends_with_status_one(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = SequentialReplay.run

    async def run_and_break(self: SequentialReplay, requests: Iterable[TraceRequest]) -> None:
        await run(self, requests)
        next(iter(self._cache._tree)).hits = -1

    monkeypatch.setattr(SequentialReplay, "run", run_and_break)
    result = call(trace, "--sequential", "--limit", 20, "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["audit"]["violations"] == 1
    assert result.stderr == f"audit: {data['audit']['messages'][0]}\n"


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("uvloop", [True, False])
def test_ctrl_c_gives_everything_back_and_reports_so_far(
    trace: Path, config: Path, sequential: bool, uvloop: bool
) -> None:
    steps = 0

    def interrupt(_recording: Recording) -> None:
        nonlocal steps
        steps += 1
        if steps == 25:
            signal.raise_signal(signal.SIGINT)

    result = replay(interrupt, trace=trace, config=config, sequential=sequential, uvloop=uvloop)
    assert result.interrupted
    assert 0 < result.recording.tally.requests < 300
    assert (result.held_slots, result.held_locks, result.violations) == (0, 0, ())


def test_after_ctrl_c_the_exit_status_is_130(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(_self: SequentialReplay, _requests: Iterable[TraceRequest]) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(SequentialReplay, "run", interrupted)
    result = call(trace, "--sequential", "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["interrupted"] is True
