"""``--report FILE.html``: one page with charts and tables, complete in itself.

It needs no script, no network and no other file, and follows the reader's light or dark setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final

from radixtide.cli.replay_chart import Line, area_chart, line_chart
from radixtide.cli.replay_metrics import Sample
from radixtide.cli.replay_run import ReplayResult
from radixtide.cli.replay_summary import call_rows, component_rows, lost_rows, sections
from radixtide.configs.errors import InvalidInput

_TIMED: Final = ("match_prefix", "allocate", "cache_unfinished_req", "cache_finished_req")
"""Calls whose latency is drawn; the table has them all."""

_OTHER_POOLS: Final = {"swa": "windows", "mamba": "states"}
"""Pools beside Full's, and what they hold."""

_STYLE: Final = """
:root { color-scheme: light dark; --bg: #ffffff; --fg: #1b1f24; --muted: #5c6670; --card: #f5f7f9;
  --grid: #dde2e7; --c0: #0b6bcb; --c1: #d9730d; --c2: #2a8c55; --c3: #8a4fc7; --c4: #a8b3bd;
  --c5: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --bg: #14181d; --fg: #e6eaee; --muted: #97a3ae;
  --card: #1d232a; --grid: #323b45; --c0: #5aa9f5; --c1: #f2a154; --c2: #5fc48b; --c3: #bb90ec;
  --c4: #56626e; --c5: #ef7d70; } }
body { margin: 0 auto; padding: 24px 16px 48px; max-width: 1000px; background: var(--bg);
  color: var(--fg); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 17px; margin: 32px 0 4px; }
p { margin: 4px 0; color: var(--muted); overflow-wrap: anywhere; }
.warn { color: var(--c5); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 20px 0; }
.tile { background: var(--card); border-radius: 8px; padding: 12px 16px; }
.tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: 13px; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--muted); font: 12px system-ui, sans-serif; }
.grid { stroke: var(--grid); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.area { opacity: .85; }
.hover { fill: transparent; } .hover:hover { fill: var(--fg); fill-opacity: .08; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--muted);
  margin: 4px 0 6px; }
.key i { display: inline-block; width: 18px; margin-right: 6px; vertical-align: middle;
  border-top: 3px solid; } .key i.dash { border-top-style: dashed; }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr));
  gap: 0 32px; align-items: start; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 4px 6px; border-bottom: 1px solid var(--grid); text-align: left;
  font-weight: normal; } th { color: var(--muted); } td + td, th + th { text-align: right; }
"""


def check_report_path(path: Path) -> None:
    """Raise :class:`InvalidInput` unless a report can be written to `path`."""
    if path.suffix.lower() != ".html":
        raise InvalidInput(
            f"--report {path}: a report is one self-contained HTML page; "
            f"name a file that ends in .html, for instance {path.with_suffix('.html')}"
        )
    if not path.absolute().parent.is_dir():
        raise InvalidInput(f"--report {path}: there is no folder {path.parent}; make it first")


def write_report(result: ReplayResult, path: Path) -> None:
    """Write the page about `result` to `path`, whole or not at all."""
    draft = path.with_name(path.name + ".part")
    try:
        draft.write_text(render_report(result), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InvalidInput(f"--report {path}: can not be written: {error.strerror}") from None


def render_report(result: ReplayResult) -> str:
    """Return the page as text."""
    mode = "one request at a time" if result.sequential else "concurrent"
    notes = ""
    if result.interrupted:
        notes += '<p class="warn">Interrupted: these are the figures up to then.</p>'
    notes += "".join(f'<p class="warn">audit: {escape(found)}</p>' for found in result.violations)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Radixtide replay</title><style>{_STYLE}</style></head><body>"
        f"<h1>Radixtide replay</h1><p>{escape(result.source)}, {mode}</p>{notes}"
        f"{_tiles(result)}{_charts(result)}{_tables(result)}</body></html>\n"
    )


def _tiles(result: ReplayResult) -> str:
    tally = result.recording.tally
    tiles = [
        (f"{100 * tally.hit_ratio:.1f} %", "of prompt tokens were cached"),
        (f"{tally.requests:,}", "requests"),
        (f"{tally.evicted_tokens:,}", "tokens evicted"),
        (f"{result.wall_s:.1f} s", "wall time"),
        ("sound" if not result.violations else f"{len(result.violations)} faults", "audit"),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
            for value, name in tiles
        )
        + "</div>"
    )


def _charts(result: ReplayResult) -> str:
    samples = result.recording.series.samples
    xs, is_clock = _x_axis(samples)
    x_format, x_name = (_clock, "virtual time") if is_clock else (_count, "requests served")
    hits = _hit_lines(samples, has_others=len(result.config.components) > 1)
    most = max((value for line in hits for value in line.values if value is not None), default=1.0)
    page = [
        "<h2>Hit ratio</h2>",
        f"<p>Share of prompt tokens that were cached, over {x_name}.</p>",
        line_chart(
            xs, hits, x_format, _percent, is_clock=is_clock, y_top=max(math.ceil(10 * most), 1) / 10
        ),
        "<h2>Pool</h2>",
        f"<p>Slots of the device pool by state, over {x_name}.</p>",
        area_chart(xs, _pool_lines(samples, "full"), x_format, _count, is_clock=is_clock),
    ]
    for name, what in _OTHER_POOLS.items():
        if name in result.pools:
            page += [
                f"<h2>Pool of {what}</h2>",
                f"<p>The {name} pool by state, over {x_name}.</p>",
                area_chart(xs, _pool_lines(samples, name), x_format, _count, is_clock=is_clock),
            ]
    page += [
        "<h2>Latency of the cache's calls</h2>",
        f"<p>Wall time of each call in microseconds, logarithmic, over {x_name}.</p>",
        line_chart(
            xs, _latency_lines(samples), x_format, _microseconds, is_clock=is_clock, log=True
        ),
    ]
    if not result.sequential:
        batch = [
            Line("running", 0, [float(sample.running) for sample in samples]),
            Line("waiting", 1, [float(sample.waiting) for sample in samples]),
        ]
        page += [
            "<h2>Requests under way</h2>",
            f"<p>In the batch and in the queue, over {x_name}.</p>",
            line_chart(xs, batch, x_format, _count, is_clock=is_clock),
        ]
    return "".join(page)


def _x_axis(samples: list[Sample]) -> tuple[list[float], bool]:
    """Return x of each sample, and whether that is virtual time in seconds."""
    if samples and samples[-1].at_ns > samples[0].at_ns:
        return [sample.at_ns / 1e9 for sample in samples], True
    # A trace whose requests all arrive at once has no time to speak of.
    return [float(sample.requests) for sample in samples], False


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
        + _headed_table("Components", component_rows(result))
        + _headed_table("Lost hits", lost_rows(result))
        + _headed_table("Calls of the cache", [heading, *call_rows(result)])
    )


def _headed_table(title: str, rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table whose first row is its heading."""
    lines = [
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * len(rows)], rows, strict=False)
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<h2>{escape(title)}</h2><table>{body}</table>"


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"


def _microseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _count(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:,.4g}{letter}"
    return f"{value:,.4g}"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60 and seconds != whole:
        return f"{seconds:.3g} s"
    hours, rest = divmod(whole, 3600)
    if hours:
        return f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{rest // 60}:{rest % 60:02}"


__all__ = ("check_report_path", "render_report", "write_report")
