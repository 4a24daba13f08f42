"""``radixtide replay`` of models with sliding windows and recurrent states."""

import json
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.cli.main import app
from radixtide.cli.replay_costs import Limits
from radixtide.cli.replay_fit import Shape, fit_config
from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_run import ReplayOptions, run_replay
from radixtide.cli.replay_scheduler import Scheduler
from radixtide.cli.replay_source import Summary, TraceRequest
from radixtide.cli.replay_tiers import Tiers
from radixtide.cli.replay_tokens import output_id
from radixtide.configs.loader import parse_config
from support.traces import Prompt, conversations, prompts, write_trace

LINES = conversations(250, seed=11)

REQUESTS = "[pools.requests]\nmax_requests = 12\nmax_context = 16_000\n"
SHAPES = "layers = 1\nholds_bytes = false\nconv_shape = [2, 3]\nssm_shape = [2, 2]\n"
WINDOW = (
    'components = ["full", "swa"]\npage_size = 16\nwindow = 100\n[pools.full]\nsize = 8_000\n'
    f"[pools.swa]\nsize = 1_600\n{REQUESTS}"
)
STATES = (
    'components = ["full", "mamba"]\npage_size = 16\n[pools.full]\nsize = 8_000\n'
    f"[pools.mamba]\nsize = 40\nextra_buffer = true\nchunk = 64\n{SHAPES}{REQUESTS}"
)
LAST_STATE = (
    'components = ["full", "mamba"]\npage_size = 1\n[pools.full]\nsize = 8_000\n'
    f"[pools.mamba]\nsize = 20\n{SHAPES}{REQUESTS}"
)
BOTH = (
    'components = ["full", "swa", "mamba"]\npage_size = 16\nwindow = 100\n'
    "[pools.full]\nsize = 8_000\n[pools.swa]\nsize = 1_600\n"
    f"[pools.mamba]\nsize = 40\nextra_buffer = true\nchunk = 64\n{SHAPES}{REQUESTS}"
)
CONFIGS = {"window": WINDOW, "states": STATES, "last_state": LAST_STATE, "both": BOTH}
TIMINGS = {"calls", "wall_s", "requests_per_s", "tokens_per_s", "peak_rss_bytes", "pool"}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.jsonl", LINES)


@pytest.fixture(params=list(CONFIGS))
def config(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return written(tmp_path, CONFIGS[request.param])


def written(folder: Path, text: str) -> Path:
    path = folder / "cache.toml"
    path.write_text(text)
    return path


def told(*arguments: str | Path | float) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["replay", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert isinstance(data, dict)
    return data


def assert_sound(data: dict[str, Any]) -> None:
    assert data["held"] == {"slots": 0, "locks": 0}
    assert data["audit"] == {"violations": 0, "messages": []}
    for pool in data["pools"].values():
        assert (pool["held"], pool["protected"]) == (0, 0)
        assert pool["free"] + pool["evictable"] == pool["size"]


def assert_tables_add_up(data: dict[str, Any], looked_up: int) -> None:
    hits, parts = data["tokens"]["hits"], data["components"]
    assert hits + sum(data["lost_tokens"].values()) == looked_up
    others = [part for name, part in parts.items() if name != "full"]
    lost = [part["lost"] for part in others]
    # Where two components cut the same match, both have lost it.
    assert max(lost) <= parts["full"]["hits"] - hits <= sum(lost)
    cut = ("window_gap", "no_state", "no_slot")
    assert parts["full"]["hits"] - hits == sum(data["lost_tokens"].get(name, 0) for name in cut)
    for part in others:
        assert hits <= part["hits"] == parts["full"]["hits"] - part["lost"]
        assert part["hit_ratio"] == part["hits"] / data["tokens"]["total"]


# One request at a time


def state_hits(trace: Iterable[Prompt]) -> int:
    """Return the block hits where states are kept at prompts' ends and at branch points."""
    seen: set[tuple[int, ...]] = set()
    states: set[tuple[int, ...]] = {()}
    hits = 0
    for prompt in trace:
        prefixes = [tuple(prompt[:end]) for end in range(len(prompt) + 1)]
        cached = max((prefix for prefix in prefixes if prefix in seen), key=len, default=())
        hits += max(
            len(prefix) for prefix in prefixes if prefix in states and len(prefix) <= len(cached)
        )
        states |= {cached, prefixes[-1]}
        seen.update(prefixes)
    return hits


def window_hits(trace: Iterable[Prompt], window: int) -> int:
    """Return the block hits where `window` blocks are kept before ends and branch points."""
    seen: set[tuple[int, ...]] = set()
    kept: set[tuple[int, ...]] = set()
    hits = 0
    for prompt in trace:
        prefixes = [tuple(prompt[:end]) for end in range(1, len(prompt) + 1)]
        full = sum(prefix in seen for prefix in prefixes)
        usable = 0
        for end in range(1, full + 1):
            needed = prefixes[max(end - window, 0) : end]
            if all(prefix in kept for prefix in needed):
                usable = end
        hits += usable
        for start, stop in ((usable, full), (max(usable, full), len(prompt))):
            kept.update(prefixes[max(start, stop - window) : stop])
        seen.update(prefixes)
    return hits


@pytest.mark.parametrize("text", [STATES, LAST_STATE])
def test_an_endless_cache_hits_as_far_as_there_are_states(
    trace: Path, tmp_path: Path, text: str
) -> None:
    data = told(trace, "--config", written(tmp_path, text), "--sequential", "--capacity-blocks", 0)
    assert data["blocks"]["hits"] == state_hits(prompts(LINES)) > 0
    assert data["components"]["mamba"]["evicted"] == 0
    assert data["lost_tokens"].keys() == {"no_state", "never_stored"}
    assert_sound(data)
    assert_tables_add_up(data, data["tokens"]["total"])


@pytest.mark.parametrize(("window", "blocks"), [(100, 1), (513, 2), (2_000, 4)])
def test_an_endless_cache_hits_as_far_as_there_are_windows(
    trace: Path, tmp_path: Path, window: int, blocks: int
) -> None:
    text = WINDOW.replace("window = 100", f"window = {window}").replace("1_600", "8_000")
    data = told(trace, "--config", written(tmp_path, text), "--sequential", "--capacity-blocks", 0)
    assert data["blocks"]["hits"] == window_hits(prompts(LINES), blocks) > 0
    assert data["components"]["swa"]["evicted"] == 0
    assert data["lost_tokens"].keys() == {"window_gap", "never_stored"}
    assert_sound(data)
    assert_tables_add_up(data, data["tokens"]["total"])


@pytest.mark.parametrize("capacity", [12, 60])
def test_bounded_pools_lose_hits_and_nothing_else(trace: Path, config: Path, capacity: int) -> None:
    data = told(trace, "--config", config, "--sequential", "--capacity-blocks", capacity)
    assert data["requests"] == data["completed"] == 250
    assert data["pools"]["full"]["size"] == 512 * capacity
    assert data["components"]["full"]["hits"] > 0
    for name, part in data["components"].items():
        assert part["evicted"] > 0, name
    assert_sound(data)
    # Of a prompt beyond the pool only what could be served was looked up.
    looked_up = sum(512 * min(len(prompt), capacity) for prompt in prompts(LINES))
    assert_tables_add_up(data, looked_up)


def test_prompts_below_the_grid_of_states_are_served_and_not_cached(tmp_path: Path) -> None:
    lines = [
        line | {"chat_id": number, "timestamp": number / 2}
        for number, line in enumerate(conversations(60, seed=6, block=16))
    ]
    path = write_trace(tmp_path / "chats.jsonl", lines)
    data = told(path, "--config", written(tmp_path, STATES), "--sequential")
    assert data["completed"] == 60
    short = sum(16 * (len(prompt) % 4) for prompt in prompts(lines))
    assert data["lost_tokens"]["unaligned_tail"] == short > 0
    assert_sound(data)
    assert_tables_add_up(data, data["tokens"]["total"])


# Many requests at once


def test_every_request_ends_and_no_pool_keeps_anything_back(trace: Path, config: Path) -> None:
    data = told(trace, "--config", config, "--abort-ratio", 0.2)
    assert data["completed"] + data["refused"] + data["aborted"] == 250
    assert min(data["completed"], data["aborted"]) > 0
    assert 0 < data["tokens"]["hits"] <= data["components"]["full"]["hits"]
    for name, part in data["components"].items():
        assert part["evicted"] > 0, name
    assert_sound(data)
    served = sum(data["lost_tokens"].values()) + data["tokens"]["hits"]
    assert_tables_add_up(data, served)
    assert served <= data["tokens"]["total"]


def test_windows_are_given_back_while_a_request_decodes(trace: Path, tmp_path: Path) -> None:
    data = told(trace, "--config", written(tmp_path, WINDOW), "--limit", 60)
    assert data["calls"]["release_window"]["count"] > 0
    line = {"timestamp": 0, "input_length": 300, "output_length": 1_900, "hash_ids": [7]}
    path = write_trace(tmp_path / "long.jsonl", [line])
    small = WINDOW.replace("1_600", "400")
    data = told(path, "--config", written(tmp_path, small), "--abort-ratio", 0)
    # 2,200 tokens went through 400 slots, and nobody had to make room.
    assert (data["completed"], data["tokens"]["generated"]) == (1, 1_900)
    assert data["calls"]["dec_swa_lock_only"]["count"] == 1
    assert_sound(data)


@pytest.mark.parametrize("mode", [["--sequential"], []])
def test_queued_delivery_changes_no_figure(trace: Path, config: Path, mode: list[str]) -> None:
    runs = [
        told(trace, "--config", config, "--limit", 100, "--capacity-blocks", 20, *mode, *more)
        for more in ([], ["--delivery", "queued"])
    ]
    plain = [{key: run[key] for key in run.keys() - TIMINGS} for run in runs]
    assert plain[0] == plain[1]


def test_pools_with_bytes_replay_alike(trace: Path, config: Path) -> None:
    counted = told(trace, "--config", config, "--limit", 60)
    real = told(trace, "--config", config, "--limit", 60, "--bytes")
    assert real["tokens"] == counted["tokens"]
    assert real["pools"] == counted["pools"]


@pytest.mark.parametrize("sequential", [True, False])
def test_ctrl_c_gives_everything_back(trace: Path, config: Path, sequential: bool) -> None:
    steps = 0

    def interrupt(_recording: Recording) -> None:
        nonlocal steps
        steps += 1
        if steps == 25:
            signal.raise_signal(signal.SIGINT)

    options = ReplayOptions(trace=trace, config=config, sequential=sequential)
    result = run_replay(options, lambda _source, _summary: interrupt)
    assert result.interrupted
    assert (result.held_locks, result.violations) == (0, ())
    assert all(pool.held == 0 for pool in result.pools.values())


async def serve(text: str, requests: Iterable[TraceRequest], **limits: Any) -> Recording:
    recording = Recording()
    async with UnifiedRadixCache(parse_config(text)) as cache:
        limit = Limits(abort_ratio=0.0, **limits)
        await Scheduler(cache, 16, limit, recording, Tiers(cache, recording.calls)).run(requests)
        assert (await cache.audit()).ok
    return recording


def request(number: int, arrival_s: int, *blocks: int, output: int = 1) -> TraceRequest:
    lengths = (100,) * len(blocks)
    stream = output_id(number)
    return TraceRequest(number, arrival_s * 10**9, blocks, lengths, stream, output)


async def hits_of(text: str, prompts: Iterable[tuple[int, ...]], **more: Any) -> list[int]:
    """Return the hit tokens of each of `prompts`, served long after one another."""
    found: list[int] = []
    served = [
        request(number, 60 * number, *blocks, **more) for number, blocks in enumerate(prompts)
    ]
    for last in range(1, len(served) + 1):
        recording = await serve(text, served[:last])
        found.append(recording.tally.token_hits - sum(found))
    return found


async def test_a_branch_point_is_worth_nothing_at_first_and_hits_from_then_on() -> None:
    branching = [(1, 2, 3, 4), (1, 2, 3, 9), (1, 2, 3, 8)]
    # 300 tokens are shared: 18 whole pages, of which the grid of states leaves 256.
    assert await hits_of(WINDOW, branching) == [0, 0, 288]
    assert await hits_of(STATES, branching) == [0, 0, 256]
    assert await hits_of(LAST_STATE, branching) == [0, 0, 300]
    assert await hits_of(BOTH, branching) == [0, 0, 256]


async def test_what_goes_on_from_an_end_hits_at_once() -> None:
    growing = [(1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6)]
    assert await hits_of(WINDOW, growing) == [0, 288, 496]
    assert await hits_of(STATES, growing) == [0, 256, 448]
    assert await hits_of(LAST_STATE, growing) == [0, 300, 500]
    assert await hits_of(BOTH, growing) == [0, 256, 448]


async def test_a_prompt_longer_than_the_pool_of_windows_is_computed_in_pieces() -> None:
    long = request(0, 0, *range(20), output=40)
    recording = await serve(WINDOW.replace("1_600", "400"), [long, request(1, 60, *range(20))])
    assert recording.tally.completed == 2
    assert recording.tally.retracted == 0
    assert recording.tally.token_hits == 2_000


async def test_requests_that_crowd_the_pool_of_windows_are_retracted_and_end() -> None:
    crowd = [
        request(number, 0, *range(9 * number, 9 * number + 9), output=200) for number in range(8)
    ]
    recording = await serve(WINDOW.replace("1_600", "500"), crowd)
    assert recording.tally.completed == 8
    assert recording.tally.output_tokens == 8 * 200


# Sizes


def test_scale_divides_the_pools(trace: Path, tmp_path: Path) -> None:
    path = written(tmp_path, BOTH)
    whole, half = (
        told(trace, "--config", path, "--limit", 20, "--scale", scale)["pools"] for scale in (1, 2)
    )
    assert {name: pool["size"] for name, pool in whole.items()} == {
        "full": 8_000,
        "swa": 1_600,
        "mamba": 40,
    }
    assert {name: pool["size"] for name, pool in half.items()} == {
        "full": 4_000,
        "swa": 800,
        "mamba": 20,
    }


def test_pools_of_windows_and_states_keep_what_one_request_needs() -> None:
    config = parse_config(BOTH.replace("1_600", "112").replace("size = 40", "size = 1"))
    fitted = fit_config(config, ReplayOptions(), 512, Summary())
    assert fitted.pools.swa is not None
    assert fitted.pools.mamba is not None
    # Two windows of 112, a step of 16, two pages, what is not cached before the next state at a
    # multiple of 64; three states, one to go on from, one to keep.
    assert (fitted.pools.swa.size, fitted.pools.mamba.size) == (2 * 112 + 16 + 32 + 64, 5)
    assert fitted.pools.full.size == 8_000


def test_a_capacity_in_blocks_sizes_all_pools_alike() -> None:
    fitted = fit_config(parse_config(BOTH), ReplayOptions(capacity_blocks=500), 16, Summary())
    assert fitted.pools == fit_config(parse_config(BOTH), ReplayOptions(), 16, Summary()).pools
    twice = fit_config(parse_config(BOTH), ReplayOptions(capacity_blocks=1_000), 16, Summary())
    assert twice.pools.swa is not None
    assert twice.pools.mamba is not None
    assert (twice.pools.swa.size, twice.pools.mamba.size) == (3_200, 80)


def test_a_frontier_leaves_one_window_in_whole_pages() -> None:
    shape = Shape.of(parse_config(WINDOW))
    assert shape.window == 112
    assert [shape.frontier(length) for length in (0, 112, 127, 128, 500)] == [0, 0, 0, 16, 384]


# What a person sees


def test_tables_tell_each_component_and_why_hits_were_lost(trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "replay.html"
    path = written(tmp_path, BOTH)
    result = CliRunner().invoke(
        app, ["replay", str(trace), "--config", str(path), "--report", str(report)]
    )
    assert result.exit_code == 0, result.output
    page = report.read_text(encoding="utf-8")
    for words in ("Components", "together", "Lost hits", "window gap", "never stored"):
        assert words in result.stdout
        assert words in page
    for words in ("pool of windows", "pool of states", "slots held, swa"):
        assert words in result.stdout
    # Four charts as ever, and one for each further pool.
    assert page.count("<svg") == 6
