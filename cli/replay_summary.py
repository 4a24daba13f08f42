"""A replay's result as data for machines and as tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from radixtide.cli.replay_metrics import CUT_BY, Histogram
from radixtide.cli.replay_run import ReplayResult
from radixtide.cli.replay_tier_view import (
    storage_rows,
    tier_rows,
    tiers_json,
    tiers_of,
    transfer_rows,
)
from radixtide.components.api import PoolStats

_POOL_PARTS: Final = ("size", "free", "evictable", "protected", "held")


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
        "components": {row.name: _component(row, tally.tokens) for row in components(result)},
        "lost_tokens": dict(sorted(tally.lost.items())),
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
        "pools": {
            name: {part: getattr(pool, part) for part in _POOL_PARTS}
            for name, pool in result.pools.items()
        },
        **_states(result),
        **tiers_json(result),
        "pool": {
            "slots": result.config.pools.full.size,
            "page_size": result.config.page_size,
            "policy": result.config.eviction.policy,
            "delivery": result.config.delivery,
            "loop": result.loop,
        },
    }


class ComponentRow(msgspec.Struct, frozen=True):
    """One component in the table of hit ratios.

    ``hits``: prompt tokens that it, with Full, would have let reuse if it were the only other
    component. ``lost``: what it took from Full's hits. ``evicted``: slots (or states) that
    allocations evicted. ``pool``: its pool at the end.
    """

    name: str
    hits: int
    lost: int
    evicted: int
    pool: PoolStats


def components(result: ReplayResult) -> list[ComponentRow]:
    """Return a row for each component of the config, Full first."""
    tally = result.recording.tally
    rows: list[ComponentRow] = []
    for name in result.config.components:
        hits = tally.component_hits(name)
        lost = tally.full_hits - hits
        rows.append(ComponentRow(name, hits, lost, tally.evicted[name], result.pools[name]))
    return rows


def component_rows(result: ReplayResult) -> list[tuple[str, ...]]:
    """Return the table of components as text: its heading, a row each, and one for all together."""
    tally = result.recording.tally
    heading = ("component", "hit ratio", "hit tokens", "lost", "evicted", "held", "pool")
    rows: list[tuple[str, ...]] = [heading]
    for row in components(result):
        ratio = f"{100 * _ratio(row.hits, tally.tokens):.2f} %"
        figures = (row.hits, row.lost, row.evicted, row.pool.held, row.pool.size)
        rows.append((row.name, ratio, *(f"{figure:,}" for figure in figures)))
    if len(rows) == 2:
        return rows
    together = f"{100 * tally.hit_ratio:.2f} %"
    lost = f"{tally.full_hits - tally.token_hits:,}"
    rows.append(("together", together, f"{tally.token_hits:,}", lost, "", "", ""))
    return rows


def lost_rows(result: ReplayResult) -> list[tuple[str, ...]]:
    """Return the table of lost hits as text: its heading, and a row a reason."""
    tally = result.recording.tally
    rows: list[tuple[str, ...]] = [("why not reused", "tokens", "share of prompts", "whose")]
    for reason, tokens in tally.lost.most_common():
        share = f"{100 * _ratio(tokens, tally.tokens):.2f} %"
        rows.append((reason.replace("_", " "), f"{tokens:,}", share, CUT_BY.get(reason, "full")))
    return rows


def as_tables(result: ReplayResult) -> RenderableType:
    """Return what a person sees at the end."""
    tables = [_table(title, rows) for title, rows in sections(result)]
    heading = ("call", "count", "p50 µs", "p99 µs")
    return Group(
        *tables[:2],
        *(_headed_table(title, rows) for title, rows in tier_tables(result)),
        _headed_table("Components", component_rows(result)),
        _headed_table("Lost hits", lost_rows(result)),
        *tables[2:],
        _headed_table("Calls of the cache", [heading, *call_rows(result)]),
    )


def tier_tables(result: ReplayResult) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Return the tables about tiers, title and rows; none where there is the device alone."""
    if len(tiers_of(result)) == 1:
        return []
    return [("Tiers", tier_rows(result)), ("Transfers", transfer_rows(result))]


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
        *_other_pools(result),
        *storage_rows(result),
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
        *(
            (f"slots held, {name}" if name != "full" else "slots held", f"{pool.held:,}")
            for name, pool in result.pools.items()
        ),
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


def _headed_table(title: str, rows: Sequence[tuple[str, ...]]) -> Table:
    """Return a table whose first row is its heading."""
    table = Table(title=title, title_justify="left", min_width=60)
    for index, heading in enumerate(rows[0]):
        table.add_column(heading, justify="right" if index else "left")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def _component(row: ComponentRow, of: int) -> dict[str, Any]:
    return {
        "hits": row.hits,
        "hit_ratio": _ratio(row.hits, of),
        "lost": row.lost,
        "evicted": row.evicted,
    }


def _states(result: ReplayResult) -> dict[str, Any]:
    """Return what became of states that could not be kept, where the model has any."""
    if "mamba" not in result.pools:
        return {}
    counters = result.counters
    return {
        "states": {
            "donations_skipped": counters.get("donations_skipped", 0),
            "capped": counters.get("states_capped", 0),
        }
    }


def _other_pools(result: ReplayResult) -> list[tuple[str, str]]:
    """Return the lines about windows and states, where the model has them."""
    pools, window = result.config.pools, result.config.window
    rows: list[tuple[str, str]] = []
    if pools.swa is not None:
        rows.append(("pool of windows", f"{pools.swa.size:,} slots, window {window}"))
    if pools.mamba is not None:
        skipped = result.counters.get("donations_skipped", 0)
        rows.append(("pool of states", f"{pools.mamba.size:,} states"))
        rows.append(("states not kept, no slot", f"{skipped:,}"))
    return rows


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


__all__ = (
    "as_json",
    "as_tables",
    "call_rows",
    "component_rows",
    "lost_rows",
    "sections",
    "tier_tables",
)
