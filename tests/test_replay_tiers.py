"""``radixtide replay`` with tiers below the device: host memory and storage."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.cli.main import app
from radixtide.cli.replay_bytes import WrongBytes
from radixtide.cli.replay_fit import fit_config
from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_run import ReplayOptions, run_replay
from radixtide.cli.replay_source import Summary
from radixtide.cli.replay_tiers import Tiers
from radixtide.configs.errors import ConfigError, InvalidInput
from radixtide.configs.host import bytes_per_slot, slots_per_page
from radixtide.configs.loader import parse_config
from radixtide.configs.tier_rules import device_pools
from support.rooms import ROOT
from support.traces import conversations, endless_hits, lru_hits, prompts, write_trace

LINES = conversations(70, seed=11)
REQUESTS = "[pools.requests]\nmax_requests = 12\nmax_context = 16_000\n"
SHAPES = "layers = 1\nconv_shape = [2, 3]\nssm_shape = [2, 2]\n"
SWA = "[pools.swa]\nsize = 1_600\n"
MAMBA = f"[pools.mamba]\nsize = 40\nextra_buffer = true\nchunk = 64\n{SHAPES}"
CONFIGS = {
    "plain": f"page_size = 16\n[pools.full]\nsize = 8_000\n{REQUESTS}",
    "window": (
        'components = ["full", "swa"]\npage_size = 16\nwindow = 100\n[pools.full]\nsize = 8_000\n'
        f"{SWA}{REQUESTS}"
    ),
    "states": (
        'components = ["full", "mamba"]\npage_size = 16\n[pools.full]\nsize = 8_000\n'
        f"{MAMBA}{REQUESTS}"
    ),
    "both": (
        'components = ["full", "swa", "mamba"]\npage_size = 16\nwindow = 100\n'
        f"[pools.full]\nsize = 8_000\n{SWA}{MAMBA}{REQUESTS}"
    ),
}
TIMINGS = {"calls", "wall_s", "requests_per_s", "tokens_per_s", "peak_rss_bytes"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.jsonl", LINES)


NIGHTLY = pytest.mark.nightly


@pytest.fixture(
    params=["both", *(pytest.param(name, marks=NIGHTLY) for name in ("plain", "window", "states"))]
)
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return written(tmp_path, request.param)


def written(folder: Path, name: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(CONFIGS[name])
    return path


def call(*arguments: str | Path | float) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, arguments)])


def told(*arguments: str | Path | float) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert isinstance(data, dict)
    return data


def assert_sound(data: dict[str, Any]) -> None:
    assert data["held"] == {"slots": 0, "locks": 0}
    assert data["audit"] == {"violations": 0, "messages": []}
    assert data["blocks"]["hits"] == sum(tier["hits"] for tier in data["tiers"].values())
    assert data["tokens"]["hits"] == sum(tier["hit_tokens"] for tier in data["tiers"].values())


# One request at a time


def test_an_endless_host_finds_every_block_that_stood_there_before(trace: Path) -> None:
    data = told(trace, "--sequential", "--capacity-blocks", 40, "--host-blocks", 4_000)
    assert data["blocks"]["hits"] == endless_hits(prompts(LINES))
    assert data["tiers"]["device"]["hits"] > 0
    assert data["tiers"]["host"]["hits"] > 0
    assert data["transfers"]["load_bytes"]["bytes"] > 0
    assert data["tiers"]["host"]["pools"]["full"]["size"] == 4_000 * 512
    assert_sound(data)


@pytest.mark.parametrize("capacity", [40])
def test_a_bounded_host_hits_about_as_a_block_lru_of_its_size_does(
    trace: Path, capacity: int
) -> None:
    alone = told(trace, "--sequential", "--capacity-blocks", 20)
    data = told(trace, "--sequential", "--capacity-blocks", 20, "--host-blocks", capacity)
    assert data["blocks"]["hits"] >= 0.95 * lru_hits(prompts(LINES), capacity)
    assert data["blocks"]["hits"] > 1.1 * alone["blocks"]["hits"]
    assert_sound(data)


@pytest.mark.parametrize("url", ["lmdb:{}", "file:{}"])
def test_storage_finds_all_and_a_second_process_starts_warm(
    trace: Path, tmp_path: Path, url: str
) -> None:
    where = url.format(tmp_path / "pages")
    arguments = (trace, "--sequential", "--capacity-blocks", 20, "--host-blocks", 40)
    cold = call(*arguments, "--storage", where, "--json")
    assert cold.exit_code == 0, cold.output
    data = json.loads(cold.stdout)
    assert data["blocks"]["hits"] == endless_hits(prompts(LINES))
    assert data["tiers"]["storage"]["hits"] > 0
    assert_sound(data)
    warm = call(*arguments, "--storage", where, "--json")
    assert warm.exit_code == 0, warm.output
    again = json.loads(warm.stdout)
    pages = data["tiers"]["storage"]["pages"]
    if pages is not None:  # not every store can say how much it holds
        assert data["tiers"]["storage"]["pages_at_start"] == 0
        assert "it is empty" in cold.stderr
        assert f"{pages:,} pages are there already: it starts warm" in warm.stderr
        assert again["tiers"]["storage"]["pages_at_start"] == pages > 0
    # All of every prompt is found: what was seen once is there.
    assert again["blocks"]["hits"] == again["blocks"]["total"]
    assert again["tiers"]["storage"]["hits"] > data["tiers"]["storage"]["hits"]
    assert_sound(again)


def test_windows_and_states_find_below_the_device_what_an_endless_device_keeps(
    trace: Path, tmp_path: Path, config: Path
) -> None:
    arguments = (trace, "--sequential", "--config", config)
    endless = told(*arguments, "--capacity-blocks", 0)
    sizes = ("--capacity-blocks", 40, "--host-blocks", 2_000)
    host = told(*arguments, *sizes)
    stored = told(*arguments, *sizes, "--storage", f"lmdb:{tmp_path / 'pages'}")
    for data in (host, stored):
        assert_sound(data)
        assert data["blocks"]["hits"] == endless["blocks"]["hits"]
        assert data["tiers"]["host"]["hits"] > 0
    again = told(*arguments, *sizes, "--storage", f"lmdb:{tmp_path / 'pages'}")
    assert_sound(again)
    assert again["tiers"]["storage"]["hits"] > 0
    assert again["blocks"]["hits"] > endless["blocks"]["hits"]


def test_copies_that_take_time_are_waited_for_in_virtual_time(trace: Path) -> None:
    arguments = (trace, "--sequential", "--capacity-blocks", 30, "--host-blocks", 150)
    timeless = told(*arguments)
    timed = told(*arguments, "--bandwidth", "1GB")
    assert timed["blocks"] == timeless["blocks"]
    assert timed["transfers"]["backup_bytes"]["bytes_per_s"] <= 10**9
    assert_sound(timed)


# Many requests at once


@pytest.mark.parametrize(
    "bandwidth", ["2MB", *(pytest.param(one, marks=NIGHTLY) for one in (None, "100MB"))]
)
def test_a_host_tier_serves_many_requests_at_once(
    trace: Path, config: Path, bandwidth: str | None
) -> None:
    arguments = (trace, "--config", config, "--abort-ratio", 0.1)
    more = ["--bandwidth", bandwidth] if bandwidth is not None else []
    data = told(*arguments, "--host-blocks", 500, *more)
    assert_sound(data)
    assert data["requests"] == len(LINES)
    assert min(data["completed"], data["aborted"]) > 0
    assert data["tiers"]["host"]["hits"] > 0
    alone = told(*arguments)
    assert data["blocks"]["hits"] >= alone["blocks"]["hits"]
    assert data["refused"] == alone["refused"]


def test_a_slow_link_costs_time(trace: Path) -> None:
    arguments = (trace, "--capacity-blocks", 30, "--host-blocks", 300, "--abort-ratio", 0)
    fast = told(*arguments, "--bandwidth", "50GB")
    slow = told(*arguments, "--bandwidth", "500MB")
    assert slow["virtual"]["first_token_ms"]["p99"] > 2 * fast["virtual"]["first_token_ms"]["p99"]
    for data in (fast, slow):
        assert data["transfers"]["load_bytes"]["bytes"] > 0
        assert_sound(data)
    assert slow["transfers"]["backup_bytes"]["bytes_per_s"] <= 5e8


@pytest.mark.parametrize("mode", [["--sequential"], []])
def test_modelled_copies_repeat_exactly(trace: Path, mode: list[str]) -> None:
    # How many turns of the loop a call takes decides which copies go together: of requests side by
    # side, only a run of the same kind is the same.
    others = [["--no-uvloop"], ["--delivery", "queued"]] if mode else [[]]
    runs = [
        told(
            trace, *mode, "--capacity-blocks", 60, "--host-blocks", 200, "--bandwidth", "5GB", *more
        )
        for more in ([], *others)
    ]
    plain = [{key: run[key] for key in run.keys() - TIMINGS - {"pool"}} for run in runs]
    assert all(one == plain[0] for one in plain)


def test_storage_serves_many_requests_at_once_with_the_right_bytes(
    trace: Path, tmp_path: Path, config: Path
) -> None:
    arguments = (
        *(trace, "--config", config, "--host-blocks", 60),
        *("--storage", f"lmdb:{tmp_path / 'pages'}", "--limit", 40),
    )
    first = told(*arguments)
    assert_sound(first)
    again = told(*arguments)
    assert_sound(again)
    assert again["tiers"]["storage"]["hits"] > 0
    assert again["blocks"]["hits"] > first["blocks"]["hits"]
    assert again["tiers"]["storage"]["bad"] == 0


@pytest.mark.parametrize(
    "name",
    [
        "hicache-write-back",
        *(
            pytest.param(name, marks=NIGHTLY)
            for name in ("hicache-host", "hicache-gpt-oss-20b", "hicache-lmdb")
        ),
    ],
)
def test_presets_with_tiers_replay(trace: Path, tmp_path: Path, name: str) -> None:
    config = ROOT / "configs" / f"{name}.toml"
    more = ["--storage", f"lmdb:{tmp_path / 'pages'}"] if name == "hicache-lmdb" else []
    data = told(trace, "--config", config, "--capacity-blocks", 30, *more)
    assert_sound(data)
    assert data["tiers"]["host"]["hits"] > 0


# Bytes


@pytest.mark.parametrize("mode", [["--sequential"], []])
def test_one_wrong_byte_ends_the_replay(
    trace: Path, tmp_path: Path, mode: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_now = Tiers.write_now

    def write_and_damage(self: Tiers, row: Any, marks: Any, start: int, end: int, w: Any) -> None:
        write_now(self, row, marks, start, end, w)
        if not start:  # of a prompt that others begin with too
            assert self._cache.kv_pool is not None
            self._cache.kv_pool.parts()[0][0][row[0]] ^= 1

    monkeypatch.setattr(Tiers, "write_now", write_and_damage)
    sizes = ("--capacity-blocks", 400, "--host-blocks", 800)
    result = call(trace, *mode, *sizes, "--storage", f"lmdb:{tmp_path / 'pages'}")
    assert isinstance(result.exception, WrongBytes)
    assert re.match(r"request \d+: slot \d+ of pool full, \d+ of \d+", str(result.exception))


@pytest.mark.parametrize(
    ("name", "page"), [("plain", 1), ("plain", 16), ("both", 48), ("both", 512)]
)
def test_a_page_of_any_size_has_enough_bytes_to_tell(name: str, page: int) -> None:
    text = CONFIGS[name].replace("page_size = 16", f"page_size = {page}")
    options = ReplayOptions(host_blocks=40, storage="memory:")
    config = fit_config(parse_config(text), options, 512, Summary())
    for component, pool in device_pools(config):
        assert pool.holds_bytes
        assert 64 <= bytes_per_slot(pool) * slots_per_page(config, component) <= 1024


# What a person meets


def test_tables_and_pictures_show_the_tiers(trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "replay.html"
    result = call(
        *(trace, "--sequential", "--capacity-blocks", 30, "--host-blocks", 60),
        *("--storage", f"lmdb:{tmp_path / 'pages'}", "--report", report),
    )
    assert result.exit_code == 0, result.output
    for words in ("60 blocks", "no limit", "storage to host", "pages in it at the start"):
        assert words in result.stdout
    assert "it is empty" in result.stderr
    page = report.read_text(encoding="utf-8")
    for words in ("Hits by tier", "Host pool", "Traffic between tiers", "host to storage"):
        assert words in page
    assert page.count("<svg") == 6


def test_without_tiers_nothing_speaks_of_them(trace: Path) -> None:
    result = call(trace, "--sequential", "--capacity-blocks", 30)
    assert "Transfers" not in result.stdout
    data = told(trace, "--sequential", "--capacity-blocks", 30)
    assert list(data["tiers"]) == ["device"]
    assert "transfers" not in data
    assert data["tiers"]["device"]["hits"] == data["blocks"]["hits"]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["--storage", "memory:"], ConfigError, "--storage: there is no host tier; name its size"),
        (["--bandwidth", "1GB"], ConfigError, "--bandwidth: there is no host tier"),
        (["--bandwidth", "0"], InvalidInput, "nothing would ever arrive"),
        (["--bandwidth", "fast"], InvalidInput, "--bandwidth fast: no amount of memory"),
        (
            ["--host-blocks", "0", "--storage", "memory:"],
            ConfigError,
            "--host-blocks 0 leaves that",
        ),
        (
            ["--host-blocks", "9", "--storage", "memory:", "--bandwidth", "1GB"],
            ConfigError,
            "--bandwidth: models copies between pools without bytes",
        ),
        (["--host-blocks", "9", "--storage", "lmbd:x"], ConfigError, "did you mean lmdb"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    trace: Path, arguments: list[str], kind: type[Exception], message: str
) -> None:
    result = call(trace, "--sequential", "--capacity-blocks", 30, *arguments)
    assert isinstance(result.exception, kind)
    assert message in str(result.exception)


def test_a_host_tier_with_bytes_beyond_this_machines_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.toml"
    path.write_text("[pools.full]\nsize = 1_000\n[host]\nratio = 1e9\n")
    with pytest.raises(ConfigError, match=r"host\.pools\.full 992,000,000,000 of 4 bytes"):
        run_replay(
            ReplayOptions(config=path, storage="memory:", requests=1),
            lambda _source, _summary: None,
        )


def test_no_host_blocks_leave_out_the_tiers_of_a_config(trace: Path) -> None:
    config = ROOT / "configs" / "hicache-redis.toml"
    data = told(trace, "--config", config, "--host-blocks", 0, "--limit", 20)
    assert list(data["tiers"]) == ["device"]


def test_other_host_pools_follow_in_the_proportion_of_the_config(trace: Path) -> None:
    config = ROOT / "configs" / "hicache-gpt-oss-20b.toml"
    data = told(
        *(trace, "--config", config, "--capacity-blocks", 96, "--host-blocks", 192),
        *("--limit", 5, "--sequential"),
    )
    host = data["tiers"]["host"]["pools"]
    # Twice and four times the device pools, which are six to one.
    assert (host["full"]["size"], host["swa"]["size"]) == (192 * 512, 64 * 512)


@pytest.mark.parametrize(
    ("sequential", "bandwidth", "store"),
    [
        (True, None, True),
        (False, 1e6, False),
        *(
            pytest.param(*one, marks=NIGHTLY)
            for one in ((False, None, True), (True, 1e6, False), (True, None, False))
        ),
    ],
)
def test_ctrl_c_gives_everything_back(
    trace: Path, tmp_path: Path, sequential: bool, bandwidth: float | None, store: bool
) -> None:
    steps = 0

    def interrupt(_recording: Recording) -> None:
        nonlocal steps
        steps += 1
        if steps == 15:
            signal.raise_signal(signal.SIGINT)

    result = run_replay(
        ReplayOptions(
            trace=trace,
            config=written(tmp_path, "both"),
            sequential=sequential,
            host_blocks=60,
            bandwidth=bandwidth,
            storage=f"lmdb:{tmp_path / 'pages'}" if store else None,
        ),
        lambda _source, _summary: interrupt,
    )
    assert result.interrupted
    assert 0 < result.recording.tally.requests < len(LINES)
    assert (result.held_slots, result.held_locks, result.violations) == (0, 0, ())


def test_the_face_of_the_cache_is_all_that_a_replay_uses() -> None:
    source = (ROOT / "cli" / "replay_tiers.py").read_text(encoding="utf-8")
    used = set(re.findall(r"self\._cache\.(\w+)", source))
    assert {name for name in used if name.startswith("_")} == set()
    assert {name for name in used if not hasattr(UnifiedRadixCache, name)} == set()
