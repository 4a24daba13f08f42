"""A replay's result as data for machines and as tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from radixtide.cli.replay_metrics import Histogram
from radixtide.cli.replay_run import ReplayResult


def as_json(result: ReplayResult) -> dict[str, Any]:
    """Return the object that ``--json`` prints; keys are told in docs/replay.md."""
    tally, recording = result.recording.tally, result.recording
    return {
        "source": result.source,
        "mode": "sequential" if result.sequential else "concurrent",
        "seed": result.limits.seed,
        "interrupted": result.interrupted,
        "requests": tally.requests,
        "completed": tally.completed,
        "refused": tally.refused,
        "aborted": tally.aborted,
        "retracted": tally.retracted,
        "deferred": tally.deferred,
        "blocks": {
            "total": tally.blocks,
            "hits": tally.block_hits,
            "hit_ratio": _ratio(tally.block_hits, tally.blocks),
            "size": result.block,
        },
        "tokens": {
            "total": tally.tokens,
            "hits": tally.token_hits,
            "hit_ratio": _ratio(tally.token_hits, tally.tokens),
            "prefilled": tally.prefilled_tokens,
            "generated": tally.output_tokens,
        },
        "evicted": {"tokens": tally.evicted_tokens},
        "held": {"slots": result.held_slots, "locks": result.held_locks},
        "audit": {"violations": len(result.violations), "messages": list(result.violations)},
        "miss_reasons": dict(sorted(tally.miss_reasons.items())),
        "calls": {name: _call(times) for name, times in sorted(recording.calls.total.items())},
        "wall_s": round(result.wall_s, 3),
        "requests_per_s": round(_ratio(tally.requests, result.wall_s), 1),
        "tokens_per_s": round(_ratio(tally.tokens + tally.output_tokens, result.wall_s)),
        "peak_rss_bytes": result.peak_rss_bytes,
        "virtual": _virtual(result),
        "pool": {
            "slots": result.config.pools.full.size,
            "page_size": result.config.page_size,
            "policy": result.config.eviction.policy,
            "delivery": result.config.delivery,
            "loop": result.loop,
        },
    }


def as_tables(result: ReplayResult) -> RenderableType:
    """Return what a person sees at the end."""
    return Group(*(_table(title, rows) for title, rows in sections(result)), _calls_table(result))


def sections(result: ReplayResult) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the figures in groups: title, then name and value of each."""
    tally, recording = result.recording.tally, result.recording
    config = result.config
    outcome = [
        ("requests", f"{tally.requests:,}"),
        ("completed", f"{tally.completed:,}"),
        ("refused (can never fit)", f"{tally.refused:,}"),
        ("aborted by the client", f"{tally.aborted:,}"),
    ]
    if not result.sequential:
        outcome += [
            ("retracted, to run again", f"{tally.retracted:,}"),
            ("admission put off", f"{tally.deferred:,}"),
        ]
    cache = [
        ("hit ratio, blocks", _share(tally.block_hits, tally.blocks)),
        ("hit ratio, tokens", _share(tally.token_hits, tally.tokens)),
        ("tokens evicted", f"{tally.evicted_tokens:,}"),
        *(
            (f"not longer: {reason.replace('_', ' ')}", f"{count:,}")
            for reason, count in tally.miss_reasons.most_common()
        ),
    ]
    run = [
        ("pool", f"{config.pools.full.size:,} slots, page {config.page_size}"),
        ("policy, delivery, loop", f"{config.eviction.policy}, {config.delivery}, {result.loop}"),
        ("wall time", f"{result.wall_s:.1f} s"),
        ("throughput", _throughput(result)),
        ("peak memory", f"{result.peak_rss_bytes / 2**20:,.0f} MiB"),
    ]
    if not result.sequential:
        run += [
            ("virtual time", f"{recording.now_ns / 1e9:,.1f} s"),
            ("first token, p50 / p99", _times(recording.first_token)),
            ("whole request, p50 / p99", _times(recording.whole)),
        ]
    state = [
        ("slots held", f"{result.held_slots:,}"),
        ("locks held", f"{result.held_locks:,}"),
        ("audit", f"{len(result.violations)} violations" if result.violations else "sound"),
    ]
    return [("Requests", outcome), ("Cache", cache), ("Run", run), ("At the end", state)]


def call_rows(result: ReplayResult) -> list[tuple[str, str, str, str]]:
    """Return name, count, p50 and p99 in microseconds of each call, most frequent first."""
    calls = sorted(result.recording.calls.total.items(), key=lambda item: -item[1].count)
    return [
        (
            name,
            f"{times.count:,}",
            f"{times.percentile(50) / 1e3:,.1f}",
            f"{times.percentile(99) / 1e3:,.1f}",
        )
        for name, times in calls
    ]


def _table(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, min_width=60)
    table.add_column()
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _calls_table(result: ReplayResult) -> Table:
    table = Table(title="Calls of the cache", title_justify="left", min_width=60)
    table.add_column("call")
    for heading in ("count", "p50 µs", "p99 µs"):
        table.add_column(heading, justify="right")
    for row in call_rows(result):
        table.add_row(*row)
    return table


def _virtual(result: ReplayResult) -> dict[str, Any]:
    """Return what the scheduler's virtual time tells; one request at a time has only a span."""
    recording = result.recording
    span: dict[str, Any] = {"span_s": round(recording.now_ns / 1e9, 3)}
    if not result.sequential:
        span["first_token_ms"] = _milliseconds(recording.first_token)
        span["whole_ms"] = _milliseconds(recording.whole)
    return span


def _call(times: Histogram) -> dict[str, float]:
    return {
        "count": times.count,
        "p50_us": times.percentile(50) / 1e3,
        "p99_us": times.percentile(99) / 1e3,
    }


def _milliseconds(times: Histogram) -> dict[str, float]:
    return {"p50": times.percentile(50) / 1e6, "p99": times.percentile(99) / 1e6}


def _times(times: Histogram) -> str:
    return f"{times.percentile(50) / 1e9:,.2f} s / {times.percentile(99) / 1e9:,.2f} s"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _share(part: int, whole: int) -> str:
    return f"{100 * _ratio(part, whole):.2f} %  ({part:,} of {whole:,})"


def _throughput(result: ReplayResult) -> str:
    tally = result.recording.tally
    requests = _ratio(tally.requests, result.wall_s)
    tokens = _ratio(tally.tokens + tally.output_tokens, result.wall_s)
    return f"{requests:,.0f} requests/s, {tokens / 1e6:,.2f} M tokens/s"


__all__ = ("as_json", "as_tables", "call_rows", "sections")
