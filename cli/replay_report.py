"""``--report FILE.html``: one page about a replay, with charts and tables."""

from __future__ import annotations

import math
from html import escape
from pathlib import Path
from typing import Final

from radixtide.cli.page import chart, headed_table, page, tiles, write_page
from radixtide.cli.replay_chart import Line, area_chart, line_chart
from radixtide.cli.replay_chart_axis import Axis, show_count
from radixtide.cli.replay_metrics import Sample
from radixtide.cli.replay_run import ReplayResult
from radixtide.cli.replay_summary import (
    call_rows,
    component_rows,
    lost_rows,
    sections,
    tier_tables,
)
from radixtide.cli.replay_tier_view import tier_charts

_TIMED: Final = ("match_prefix", "allocate", "cache_unfinished_req", "cache_finished_req")
"""Calls whose latency is drawn; the table has them all."""

_OTHER_POOLS: Final = {"swa": "windows", "mamba": "states"}
"""Pools beside Full's, and what they hold."""


def write_report(result: ReplayResult, path: Path) -> None:
    """Write the page about `result` to `path`, whole or not at all."""
    write_page(render_report(result), path)


def render_report(result: ReplayResult) -> str:
    """Return the page as text."""
    mode = "one request at a time" if result.sequential else "concurrent"
    notes = ""
    if result.interrupted:
        notes += '<p class="warn">Interrupted: these are the figures up to then.</p>'
    notes += "".join(f'<p class="warn">audit: {escape(found)}</p>' for found in result.violations)
    return page(
        "Radixtide replay",
        f"{result.source}, {mode}",
        f"{notes}{_tiles(result)}{_charts(result)}{_tables(result)}",
    )


def _tiles(result: ReplayResult) -> str:
    tally = result.recording.tally
    return tiles(
        [
            (f"{100 * tally.hit_ratio:.1f} %", "of prompt tokens were cached"),
            (f"{tally.requests:,}", "requests"),
            (f"{tally.evicted_tokens:,}", "tokens evicted"),
            (f"{result.wall_s:.1f} s", "wall time"),
            ("sound" if not result.violations else f"{len(result.violations)} faults", "audit"),
        ]
    )


def _charts(result: ReplayResult) -> str:
    samples = result.recording.series.samples
    axis = Axis.of(samples)
    xs, x_format, x_name, is_clock = axis.xs, axis.show, axis.name, axis.is_clock
    hits = _hit_lines(samples, has_others=len(result.config.components) > 1)
    most = max((value for line in hits for value in line.values if value is not None), default=1.0)
    top = max(math.ceil(10 * most), 1) / 10
    drawn = [
        chart(
            "Hit ratio",
            f"Share of prompt tokens that were cached, over {x_name}.",
            line_chart(xs, hits, x_format, _percent, is_clock=is_clock, y_top=top),
        ),
        chart(
            "Pool",
            f"Slots of the device pool by state, over {x_name}.",
            area_chart(xs, _pool_lines(samples, "full"), x_format, show_count, is_clock=is_clock),
        ),
        *(
            chart(
                f"Pool of {what}",
                f"The {name} pool by state, over {x_name}.",
                area_chart(xs, _pool_lines(samples, name), x_format, show_count, is_clock=is_clock),
            )
            for name, what in _OTHER_POOLS.items()
            if name in result.pools
        ),
        chart(
            "Latency of the cache's calls",
            f"Wall time of each call in microseconds, logarithmic, over {x_name}.",
            line_chart(
                xs, _latency_lines(samples), x_format, _microseconds, is_clock=is_clock, log=True
            ),
        ),
    ]
    drawn[1:1] = tier_charts(result, axis)
    if not result.sequential:
        batch = [
            Line("running", 0, [float(sample.running) for sample in samples]),
            Line("waiting", 1, [float(sample.waiting) for sample in samples]),
        ]
        drawn.append(
            chart(
                "Requests under way",
                f"In the batch and in the queue, over {x_name}.",
                line_chart(xs, batch, x_format, show_count, is_clock=is_clock),
            )
        )
    return "".join(drawn)


def _hit_lines(samples: list[Sample], has_others: bool) -> list[Line]:
    so_far: list[float | None] = []
    lately: list[float | None] = []
    looked_up = hits = 0
    for sample in samples:
        so_far.append(sample.token_hits / sample.looked_up if sample.looked_up else None)
        new = sample.looked_up - looked_up
        lately.append((sample.token_hits - hits) / new if new else None)
        looked_up, hits = sample.looked_up, sample.token_hits
    lines = [Line("since the last point", 4, lately), Line("so far", 0, so_far)]
    if has_others:
        full = [one.full_hits / one.looked_up if one.looked_up else None for one in samples]
        lines.append(Line("so far, if there were Full alone", 2, full, dashed=True))
    return lines


def _pool_lines(samples: list[Sample], name: str) -> list[Line]:
    pools = [sample.pools[name] for sample in samples]
    return [
        Line("held by requests", 1, [float(pool.held) for pool in pools]),
        Line("cached, locked", 3, [float(pool.protected) for pool in pools]),
        Line("cached, evictable", 0, [float(pool.evictable) for pool in pools]),
        Line("free", 4, [float(pool.free) for pool in pools]),
    ]


def _latency_lines(samples: list[Sample]) -> list[Line]:
    lines: list[Line] = []
    for colour, name in enumerate(_TIMED):
        times = [sample.latency.get(name) for sample in samples]
        if any(times):
            for percent in (50, 99):
                values = [time.percentile(percent) / 1e3 if time else None for time in times]
                lines.append(Line(f"{name} p{percent}", colour, values, dashed=percent == 99))
    return lines


def _tables(result: ReplayResult) -> str:
    parts = [
        f"<div><h2>{escape(title)}</h2><table>"
        + "".join(f"<tr><td>{escape(k)}</td><td>{escape(v)}</td></tr>" for k, v in rows)
        + "</table></div>"
        for title, rows in sections(result)
    ]
    heading = ("call", "count", "p50 µs", "p99 µs")
    return (
        f'<div class="tables">{"".join(parts)}</div>'
        + "".join(headed_table(title, rows) for title, rows in tier_tables(result))
        + headed_table("Components", component_rows(result))
        + headed_table("Lost hits", lost_rows(result))
        + headed_table("Calls of the cache", [heading, *call_rows(result)])
    )


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"


def _microseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


__all__ = ("render_report", "write_report")
