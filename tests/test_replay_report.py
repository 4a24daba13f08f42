"""The page and the JSON object, made from a recording that the test filled in itself."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from radixtide.cli.page import check_report_path
from radixtide.cli.replay_chart import Line, area_chart, clock_scale, line_chart, linear_scale
from radixtide.cli.replay_chart import log_scale as logarithmic
from radixtide.cli.replay_costs import Limits
from radixtide.cli.replay_metrics import Histogram, Sample
from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_report import render_report, write_report
from radixtide.cli.replay_run import ReplayResult
from radixtide.cli.replay_source import Summary
from radixtide.cli.replay_summary import as_json
from radixtide.components.api import PoolStats
from radixtide.configs.errors import InvalidInput
from radixtide.configs.schema import CacheConfig, FullPoolConfig, PoolsConfig


def latency(*microseconds: int) -> Histogram:
    histogram = Histogram()
    for value in microseconds:
        histogram.add(value * 1000)
    return histogram


def pool(free: int, evictable: int, protected: int, held: int = 200) -> PoolStats:
    return PoolStats(free, evictable, protected, held, 0, free + evictable + protected + held)


def result(
    *, points: int = 5, sequential: bool = False, violations: tuple[str, ...] = ()
) -> ReplayResult:
    recording = Recording()
    for i in range(points):
        recording.tally.completed += 1
        recording.tally.count_prompt(blocks=2, tokens=1000)
        recording.tally.count_hits(1, 600, "never_stored", of=1000)
        recording.series.add(
            Sample(
                at_ns=i * 60_000_000_000,
                requests=i + 1,
                looked_up=recording.tally.looked_up,
                token_hits=recording.tally.token_hits,
                full_hits=recording.tally.full_hits,
                pools={"full": pool(free=500 - 100 * i, evictable=100 * i, protected=300)},
                running=i,
                waiting=2 * i,
                # The second point saw no allocation: a gap in its line.
                latency={"match_prefix": latency(10, 20)}
                | ({} if i == 1 else {"allocate": latency(3 + i)}),
            )
        )
    recording.calls.recent = {"match_prefix": latency(10, 10, 99)}
    recording.calls.roll()
    return ReplayResult(
        source="traces/<b>.jsonl",
        sequential=sequential,
        block=512,
        config=CacheConfig(pools=PoolsConfig(full=FullPoolConfig(size=1000))),
        limits=Limits(seed=3),
        summary=Summary(),
        recording=recording,
        interrupted=False,
        pools={"full": pool(free=500, evictable=300, protected=200, held=0)},
        held_locks=0,
        counters={},
        violations=violations,
        wall_s=2.0,
        peak_rss_bytes=2**20,
        loop="asyncio",
    )


def pictures(page: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


def test_the_page_needs_nothing_from_outside() -> None:
    page = render_report(result())
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(", page)
    assert "traces/&lt;b&gt;.jsonl" in page
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize(("sequential", "charts"), [(False, 4), (True, 3)])
def test_the_page_draws_hits_pool_and_latency(sequential: bool, charts: int) -> None:
    drawn = pictures(render_report(result(sequential=sequential)))
    assert len(drawn) == charts
    hits, pool, latencies = drawn[:3]
    assert len(hits.findall("polyline")) == 2
    assert len(pool.findall("polygon")) == 4
    # Two curves a call; those of allocate are in two pieces, around the point without any.
    assert len(latencies.findall("polyline")) == 2 + 4
    assert [len(picture.findall("rect")) for picture in drawn] == [5] * charts


def test_hovering_a_point_tells_its_values() -> None:
    hits, pool = pictures(render_report(result()))[:2]
    assert hits.findall("rect")[2].findtext("title") == (
        "2:00\nsince the last point: 60 %\nso far: 60 %"
    )
    assert pool.findall("rect")[4].findtext("title") == (
        "4:00\nheld by requests: 200\ncached, locked: 300\ncached, evictable: 400\nfree: 100"
    )


def test_stacked_areas_fill_the_pool() -> None:
    pool = pictures(render_report(result()))[1]
    top = pool.findall("polygon")[-1].attrib["points"].split()[:5]
    # 500 + 300 + 200 slots at each point: the upper edge is level.
    assert len({point.split(",")[1] for point in top}) == 1


@pytest.mark.parametrize("points", [0, 1])
def test_a_run_of_hardly_any_points_still_makes_a_page(points: int) -> None:
    assert len(pictures(render_report(result(points=points)))) == 4


def test_violations_stand_at_the_head_of_the_page() -> None:
    page = render_report(result(violations=("sizes: 3 slots lost",)))
    assert page.index("audit: sizes: 3 slots lost") < page.index("<svg")


def test_a_report_is_written_whole(tmp_path: Path) -> None:
    write_report(result(), tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == render_report(result())
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


@pytest.mark.parametrize("name", ["r.png", "r.pdf", "r"])
def test_a_report_of_another_kind_is_refused_with_advice(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"r\.html"):
        check_report_path(tmp_path / name)


def test_a_report_into_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="make it first"):
        check_report_path(tmp_path / "absent" / "r.html")


def test_a_report_that_can_not_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "r.html").mkdir()
    with pytest.raises(InvalidInput, match="can not be written"):
        write_report(result(), tmp_path / "r.html")
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_the_json_object_has_the_promised_keys() -> None:
    told = json.loads(json.dumps(as_json(result(violations=("a: b",)))))
    assert (told["requests"], told["completed"], told["refused"], told["aborted"]) == (5, 5, 0, 0)
    assert (told["blocks"]["total"], told["blocks"]["hits"]) == (10, 5)
    assert (told["tokens"]["total"], told["tokens"]["hits"]) == (5000, 3000)
    assert told["evicted"]["tokens"] == 0
    assert told["held"] == {"slots": 0, "locks": 0}
    assert told["audit"] == {"violations": 1, "messages": ["a: b"]}
    assert told["miss_reasons"] == {"never_stored": 5}
    call = told["calls"]["match_prefix"]
    assert call["count"] == 3
    assert call["p50_us"] == pytest.approx(10, rel=0.01)
    assert call["p99_us"] == pytest.approx(99, rel=0.01)
    assert (told["wall_s"], told["peak_rss_bytes"]) == (2.0, 2**20)


def test_ticks_are_round_and_inside() -> None:
    assert linear_scale(0, 320_000, 100).ticks == (0, 100_000, 200_000, 300_000)
    assert linear_scale(0, 0.37, 100).ticks == pytest.approx((0, 0.1, 0.2, 0.3))
    assert clock_scale(0, 3_600, 100).ticks == tuple(600.0 * i for i in range(7))
    assert logarithmic(3, 5_000, 100).ticks == (1, 10, 100, 1_000, 10_000)


def test_scales_map_ends_to_ends() -> None:
    for scale in (linear_scale(2, 12, 100), clock_scale(2, 1200, 100), logarithmic(1, 100, 100)):
        assert scale.at(scale.low) == 0
        assert scale.at(scale.high) == pytest.approx(100)
    assert logarithmic(1, 100, 100).at(10) == pytest.approx(50)


def test_names_are_escaped_in_charts() -> None:
    lines = [Line("<a & b>", 0, [1.0, None, 2.0])]
    for chart in (line_chart([0, 1, 2], lines, str, str), area_chart([0, 1, 2], lines, str, str)):
        assert "<a" not in chart.replace("<area", "")
        assert "&lt;a &amp; b&gt;" in chart
