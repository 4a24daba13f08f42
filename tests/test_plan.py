"""``radixtide plan``: what fits where, and hits of caches of all sizes from one reading."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from radixtide.cli.main import app
from radixtide.cli.plan_distance import HitCurve, Recency, hit_curve
from radixtide.cli.plan_gain import gain_of
from radixtide.cli.plan_sizes import find_config, make_plan, parse_bytes, show_bytes
from radixtide.cli.replay_source import TraceRequest
from radixtide.cli.replay_trace import TraceFile
from radixtide.configs.errors import ConfigError, InvalidInput, TraceError
from radixtide.configs.loader import parse_config
from support.rooms import ROOT
from support.traces import (
    Prompt,
    conversations,
    endless_hits,
    prompts,
    public_trace,
    write_trace,
)

LINES = conversations(300, seed=5)
PUBLIC = public_trace()
GIB = 2**30


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write_trace(tmp_path / "trace.jsonl", LINES)


def call(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def told(*arguments: str | Path | int) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    data = json.loads(result.stdout)
    assert isinstance(data, dict)
    return data


# Amounts of memory


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("40GiB", 40 * GIB),
        ("16GB", 16_000_000_000),
        ("1.5 TiB", 3 * 2**39),
        (".5kib", 512),
        ("1048576", 2**20),
        ("7 b", 7),
        (" 2PiB ", 2**51),
        ("0", 0),
    ],
)
def test_an_amount_of_memory_is_read(text: str, size: int) -> None:
    assert parse_bytes(text, "--x") == size


@pytest.mark.parametrize("text", ["", "GiB", "4xiB", "-1GiB", "4 G i B", "1e9", "4,0GiB", "nan"])
def test_what_is_no_amount_is_refused_with_advice(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"--x .*: no amount of memory; write .* 40GiB"):
        parse_bytes(text, "--x")


@given(st.integers(0, 2**52))
def test_what_is_shown_reads_back_about_equal(size: int) -> None:
    assert parse_bytes(show_bytes(size).replace(",", ""), "--x") == pytest.approx(size, rel=1e-3)


# What fits


def test_full_attention_takes_all_of_each_tier() -> None:
    plan = make_plan(find_config("llama-3.1-8b"), 40 * GIB, 16 * GIB, 200 * GIB, 2048 * GIB)
    (pool,) = plan.pools
    assert (pool.bytes_each, pool.kind) == (128 * 1024, "token")
    assert (pool.device, pool.host, pool.storage) == (24 * 8192, 200 * 8192, 2048 * 8192)
    assert plan.memory == {"device": 24 * GIB, "host": 200 * GIB, "storage": 2048 * GIB}
    assert plan.blocks("host", 512) == 200 * 16
    assert plan.bytes_for("host", 200 * 16, 512) == 200 * GIB


def test_sizes_are_whole_pages() -> None:
    plan = make_plan(find_config("llama-3.1-8b"), 131_072 * 33)
    assert plan.pools[0].device == 32
    assert plan.pools[0].host is None
    assert plan.tiers == ("device",)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "qwen3-next-80b", "phi-4-mini-flash"])
def test_pools_share_a_tier_as_the_config_has_them(name: str) -> None:
    config = find_config(name)
    plan = make_plan(config, 64 * GIB, 0, 256 * GIB)
    sizes = {name: getattr(config.pools, name).size for name in config.components}
    for tier in ("device", "host"):
        used = sum((pool.slots(tier) or 0) * pool.bytes_each for pool in plan.pools)
        assert 0.999 * plan.memory[tier] < used <= plan.memory[tier]
        for pool in plan.pools:
            share = (pool.slots(tier) or 0) / (plan.pools[0].slots(tier) or 1)
            assert share == pytest.approx(sizes[pool.name] / sizes["full"], rel=1e-2)


def test_host_pools_of_the_config_say_how_the_host_is_shared() -> None:
    plan = make_plan(find_config("hicache-gpt-oss-20b"), 64 * GIB, 0, 256 * GIB, 512 * GIB)
    full, swa = plan.pools
    assert swa.device / full.device == pytest.approx(1 / 6, rel=1e-3)
    for tier in ("host", "storage"):
        assert (swa.slots(tier) or 0) / (full.slots(tier) or 1) == pytest.approx(1 / 3, rel=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((8 * GIB, 8 * GIB), "leave nothing of it to the cache"),
        ((1024,), "of device memory: the share of pool full is 0 slots, and it needs 16"),
        ((GIB, 0, 1024), "of host memory: the share of pool full is 0 slots"),
    ],
)
def test_memory_that_holds_nothing_is_refused(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make_plan(find_config("llama-3.1-8b"), *arguments)


def test_a_window_must_fit(tmp_path: Path) -> None:
    text = (
        "components = ['full', 'swa']\nwindow = 128\n[pools.full]\nsize = 65536\n"
        "[pools.swa]\nsize = 128\n"
    )
    with pytest.raises(InvalidInput, match="pool swa is 112 slots, and it needs 128"):
        make_plan(parse_config(text), 2 * 64 * 2 * 65536)


def test_a_config_is_a_file_or_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "cache.toml"
    path.write_text("[pools.full]\nsize = 64\n")
    assert find_config(str(path)).pools.full.size == 64
    with pytest.raises(ConfigError, match=r"neither a file nor a preset; presets: .*llama-3\.1-8b"):
        find_config("lama")
    with pytest.raises(ConfigError, match=r"absent\.toml: can not be read"):
        find_config("absent.toml")


# Hits of caches of all sizes


def lru_hits(trace: Iterable[Prompt], capacity: int) -> int:
    """Return the hits of a plain LRU over blocks; of a prompt, the first are the most recent."""
    kept: list[tuple[int, ...]] = []
    hits = 0
    for prompt in trace:
        prefixes = [tuple(prompt[: end + 1]) for end in range(len(prompt))]
        found = [prefix in kept for prefix in prefixes]
        hits += [*found, False].index(False)
        kept = (prefixes + [one for one in kept if one not in set(prefixes)])[:capacity]
    return hits


def curve_of(path: Path, limit: int | None = None) -> HitCurve:
    source = TraceFile(path, limit)
    return hit_curve(source, source.block)


def test_every_size_has_the_hits_that_a_cache_of_that_size_has(trace: Path) -> None:
    curve = curve_of(trace)
    hits = [lru_hits(prompts(LINES), size) for size in (7, 15, 40, 100)]
    assert len(set(hits)) == 4
    for capacity in (0, 1, 2, 7, 15, 40, 100, 250, 10**6):
        assert curve.hits(capacity) == lru_hits(prompts(LINES), capacity)
    assert curve.endless == endless_hits(prompts(LINES))
    assert curve.blocks == sum(map(len, prompts(LINES)))
    assert curve.distinct == len({tuple(p[: n + 1]) for p in prompts(LINES) for n in range(len(p))})


@st.composite
def small_traces(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Draw prompts of few different blocks, so that they share a lot."""
    return draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple)))


@given(small_traces(), st.integers(0, 12))
def test_any_trace_has_the_hits_of_a_plain_lru(trace: list[tuple[int, ...]], size: int) -> None:
    requests = [
        TraceRequest(number, 0, ids, (512,) * len(ids), 0, 0) for number, ids in enumerate(trace)
    ]
    assert hit_curve(requests, 512).hits(size) == lru_hits([list(ids) for ids in trace], size)


def test_places_stay_right_when_stamps_are_given_anew() -> None:
    recency = Recency()
    order: list[int] = []
    for step in range(4000):
        blocks = [(step * 7 + at * 13) % 503 for at in range(19)]
        places = recency.touch(blocks)
        wanted = [order.index(block) + 1 if block in order else 0 for block in blocks]
        assert places.tolist() == wanted
        order = blocks + [block for block in order if block not in blocks]
    assert len(recency) == len(order) == 503


def test_the_fewest_blocks_for_so_many_hits(trace: Path) -> None:
    curve = curve_of(trace)
    for share in (0.0, 0.3, 0.95, 1.0):
        size = curve.capacity_for(share * curve.endless)
        assert curve.hits(size) >= share * curve.endless
        assert size == 0 or curve.hits(size - 1) < share * curve.endless


@pytest.mark.skipif(PUBLIC is None, reason="the public trace is not here: set RADIXTIDE_TRACE")
def test_the_public_trace_has_the_hits_that_are_known_of_it() -> None:
    assert PUBLIC is not None
    curve = curve_of(PUBLIC)
    assert (curve.blocks, curve.distinct, curve.endless) == (288_500, 182_790, 105_710)
    assert [curve.hits(size) for size in (5_000, 45_000, 50_000)] == [32_260, 101_894, 102_290]


# What tiers find


def test_tiers_find_what_the_faster_ones_have_not(trace: Path) -> None:
    curve = curve_of(trace)
    each = 512 * 131_072
    plan = make_plan(find_config("llama-3.1-8b"), 40 * each, 0, 100 * each)
    gain = gain_of(plan, curve, "t")
    assert [(one.name, one.blocks, one.reach) for one in gain.tiers] == [
        ("device", 40, 40),
        ("host", 100, 100),  # it is written through, so it has what the device has
    ]
    assert gain.tiers[0].hits == curve.hits(40)
    assert gain.hits == curve.hits(100) == gain.reached("host")
    stored = gain_of(make_plan(plan.config, 40 * each, 0, 100 * each, 400 * each), curve, "t")
    assert [one.reach for one in stored.tiers] == [40, 140, 400]
    assert stored.hits == curve.hits(400)


def test_a_host_that_is_written_back_adds_to_the_device(trace: Path) -> None:
    curve = curve_of(trace)
    config = find_config("hicache-write-back")
    each = 512 * 70_272
    gain = gain_of(make_plan(config, 40 * each, 0, 100 * each), curve, "t")
    assert [one.reach for one in gain.tiers] == [40, 140]


def test_another_size_of_a_tier_is_what_a_plan_of_that_size_has(trace: Path) -> None:
    curve = curve_of(trace)
    config, each = find_config("llama-3.1-8b"), 512 * 131_072
    memory = {"device": 4 * each, "host": 12 * each, "storage": 30 * each}
    gain = gain_of(
        make_plan(config, memory["device"], 0, memory["host"], memory["storage"]), curve, "t"
    )
    assert len(gain.changes) == 9
    for change in gain.changes:
        other = {**memory, change.tier: change.memory}
        plan = make_plan(config, other["device"], 0, other["host"], other["storage"])
        again = gain_of(plan, curve, "t")
        assert (change.hits, change.reached) == (again.hits, again.reached(change.tier))
    assert len({change.hits for change in gain.changes}) > 3


# The command


ARGUMENTS = ("--device-memory", "10GiB", "--weights", "2GiB", "--host-memory", "16GiB")


def test_json_has_every_promised_key(trace: Path) -> None:
    data = told(*ARGUMENTS, "--storage", "1TiB", "--trace", trace)
    assert data["pools"]["full"] == {
        "unit": "token",
        "bytes_each": 131_072,
        "device": 65_536,
        "host": 131_072,
        "storage": 8_388_608,
    }
    assert data["memory"] == {"device": 8 * GIB, "host": 16 * GIB, "storage": 1024 * GIB}
    found = data["trace"]
    assert found["blocks"] == sum(map(len, prompts(LINES)))
    assert found["endless"]["hits"] == endless_hits(prompts(LINES))
    assert found["tiers"]["device"]["hits"] == lru_hits(prompts(LINES), 128)
    assert sum(tier["hits"] for tier in found["tiers"].values()) == found["hits"]
    assert found["hit_ratio"] == found["hits"] / found["blocks"]
    sizes = [point["blocks"] for point in found["curve"]]
    assert sizes == sorted(set(sizes))
    assert all(
        a["hits"] <= b["hits"] for a, b in zip(found["curve"], found["curve"][1:], strict=False)
    )
    documented = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    keys = {*data, *found, *found["changes"][0], *found["curve"][0], *found["tiers"]["device"]}
    told_of = set(re.findall(r"[`.](\w+)(?=[`.\[])", documented))
    assert keys - told_of == set()


def test_without_a_trace_there_are_sizes_only() -> None:
    data = told("--device-memory", "40GiB", "--config", "phi-4-mini-flash")
    assert "trace" not in data
    assert set(data["pools"]) == {"full", "swa", "mamba"}
    assert data["pools"]["mamba"]["unit"] == "state"
    assert "host" not in data["pools"]["full"]


def test_a_person_sees_tables_and_the_curve(trace: Path) -> None:
    result = call(*ARGUMENTS, "--trace", trace, "--config", "gpt-oss-20b")
    assert result.exit_code == 0
    for words in ("What each tier holds", "24 KiB", "device x 2", "█", "◂ device", "95 % of"):
        assert words in result.stdout
    assert "swa can make them fewer" in result.stdout


def test_the_report_draws_the_curve_by_tier(trace: Path, tmp_path: Path) -> None:
    report = tmp_path / "plan.html"
    result = call(*ARGUMENTS, "--trace", trace, "--report", report)
    assert (result.exit_code, result.stderr) == (0, f"report: {report}\n")
    page = report.read_text(encoding="utf-8")
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(", page)
    (picture,) = (ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert len(picture.findall("polyline")) == 3
    assert "GiB" in "".join(text.text or "" for text in picture.findall("text"))


def test_a_wrong_line_of_the_trace_is_told(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "bad.jsonl", LINES[:5])
    with path.open("a") as file:
        file.write("{broken\n")
    result = call(*ARGUMENTS, "--trace", path)
    assert isinstance(result.exception, TraceError)
    assert f"{path}:6: not JSON" in str(result.exception)


def test_a_report_that_is_no_page_is_refused(trace: Path) -> None:
    result = call(*ARGUMENTS, "--report", "plan.png")
    assert isinstance(result.exception, InvalidInput)


def test_a_plan_loads_neither_torch_nor_the_cache(trace: Path) -> None:
    program = (
        "import sys\nfrom radixtide.cli.main import main\n"
        f"sys.argv = ['radixtide', 'plan', '--device-memory', '1GiB', '--trace', {str(trace)!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert not {'torch', 'radixtide.actors'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True)
