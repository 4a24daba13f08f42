"""What came of a run under faults, as data for machines and as tables for the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from radixtide.cli.replay_soak import SoakResult

MIB = 2**20


def as_json(result: SoakResult) -> dict[str, Any]:
    """Return the object that ``--json`` prints; keys are told in docs/replay.md."""
    tally = result.recording.tally
    return {
        "source": result.source,
        "mode": "faults",
        "plan": result.plan,
        "interrupted": result.interrupted,
        "clients": result.clients,
        "passes": result.passes,
        "requests": tally.requests,
        "completed": tally.completed,
        "refused": tally.refused,
        "aborted": tally.aborted,
        "retracted": tally.retracted,
        "tokens": {
            "total": tally.tokens,
            "hits": tally.token_hits,
            "hit_ratio": round(tally.hit_ratio, 4),
        },
        "faults": {
            "injected": sum(result.faults.values()),
            "by_kind": result.faults,
            "messages": result.messages,
        },
        "troubles": result.troubles,
        "crashes": result.crashes,
        "audit": {
            "times": result.audits,
            "violations": len(result.violations),
            "messages": list(result.violations),
        },
        "held": list(result.held),
        "memory": _memory(result),
        "wall_s": round(result.wall_s, 3),
        "requests_per_s": round(tally.requests / result.wall_s, 1) if result.wall_s else 0.0,
        "counters": result.counters,
        "loop": result.loop,
    }


def _memory(result: SoakResult) -> dict[str, Any]:
    samples = result.memory.samples
    return {
        "samples": len(samples),
        "first_bytes": samples[0].rss_bytes if samples else 0,
        "last_bytes": samples[-1].rss_bytes if samples else 0,
        "peak_bytes": max((one.rss_bytes for one in samples), default=0),
        "slope_bytes_per_minute": round(result.memory.slope),
        "curve": [[round(one.at_s, 1), one.rss_bytes] for one in samples],
    }


def as_tables(result: SoakResult) -> RenderableType:
    """Return the result as tables."""
    tally = result.recording.tally
    whole = Table("", "", title=f"{result.source} under {result.plan}", show_header=False)
    whole.columns[1].justify = "right"
    for name, value in (
        ("requests", f"{tally.requests:,} in {result.passes:,} passes"),
        (
            "completed, aborted, refused",
            f"{tally.completed:,}, {tally.aborted:,}, {tally.refused:,}",
        ),
        ("began anew for want of slots", f"{tally.retracted:,}"),
        ("hits", f"{100 * tally.hit_ratio:.1f} %"),
        ("time", f"{result.wall_s:,.0f} s, {result.clients} clients"),
        ("messages", f"{result.messages:,}"),
        ("audits, violations", f"{result.audits:,}, {len(result.violations):,}"),
        ("still held", "; ".join(result.held) or "nothing"),
        ("memory", _memory_line(result)),
    ):
        whole.add_row(name, value)
    return Group(
        whole,
        _counts("fault", "injected", result.faults),
        _counts("call and error", "times", result.troubles),
    )


def _memory_line(result: SoakResult) -> str:
    samples = result.memory.samples
    if not samples:
        return "not measured"
    ends = f"{samples[0].rss_bytes / MIB:,.0f} to {samples[-1].rss_bytes / MIB:,.0f} MiB"
    return f"{ends}, {result.memory.slope / MIB:+.3f} MiB a minute"


def _counts(what: str, times: str, counts: dict[str, int]) -> Table:
    table = Table(what, times)
    table.columns[1].justify = "right"
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    return table


__all__ = ("as_json", "as_tables")
