"""What a replay shows of its tiers: hits and sizes of each, and what moved between them."""

from __future__ import annotations

from typing import Any, Final

from radixtide.cli.page import chart
from radixtide.cli.plan_sizes import show_bytes
from radixtide.cli.replay_chart import Line, area_chart, line_chart
from radixtide.cli.replay_chart_axis import Axis
from radixtide.cli.replay_metrics import TIERS, Sample
from radixtide.cli.replay_run import ReplayResult
from radixtide.configs.host import bytes_per_slot, host_slots
from radixtide.configs.tier_rules import device_pools

LINKS: Final = {
    "backup_bytes": "device to host",
    "load_bytes": "host to device",
    "stored_bytes": "host to storage",
    "fetched_bytes": "storage to host",
}
"""The cache's counters of bytes moved, and between which tiers."""

_INTO: Final = {"device": "load_bytes", "host": "backup_bytes", "storage": "stored_bytes"}
_OUT: Final = {"host": "load_bytes", "storage": "fetched_bytes"}


def tiers_of(result: ReplayResult) -> list[str]:
    """Return the tiers that the replay had, from the fastest on."""
    config = result.config
    there = {"device": True, "host": config.host, "storage": config.storage}
    return [tier for tier in TIERS if there[tier]]


def tiers_json(result: ReplayResult) -> dict[str, Any]:
    """Return what ``--json`` tells of each tier: key ``tiers``, and, with a host, ``transfers``."""
    tally = result.recording.tally
    data: dict[str, Any] = {}
    for tier in tiers_of(result):
        told: dict[str, Any] = {
            "hits": tally.tier_blocks[tier],
            "hit_ratio": _ratio(tally.tier_blocks[tier], tally.blocks),
            "hit_tokens": tally.tier_tokens[tier],
        }
        if tier == "storage":
            told |= _stored(result)
        else:
            told |= {"bytes": _memory(result, tier)}
            sizes = result.pools if tier == "device" else result.hosts
            told["pools"] = {
                name: {"size": one.size, "free": one.free, "used": one.size - one.free}
                for name, one in sizes.items()
            }
        data[tier] = told
    if len(data) == 1:
        return {"tiers": data}
    return {
        "tiers": data,
        "transfers": {
            name: {"bytes": moved, "bytes_per_s": round(_ratio(moved, result.transfer_s))}
            for name, moved in _moved(result).items()
        },
    }


def _stored(result: ReplayResult) -> dict[str, Any]:
    stats, start = result.storage, result.storage_at_start
    assert stats is not None and start is not None
    return {
        "backend": stats.backend,
        "pages_at_start": start.values,
        "pages": stats.values,
        "bytes": stats.bytes,
        "bad": stats.bad,
        "evicted": stats.evicted,
        "failures": stats.failures + stats.timeouts,
    }


def tier_rows(result: ReplayResult) -> list[tuple[str, ...]]:
    """Return the table of tiers: its heading, a row each, and one for all together."""
    tally = result.recording.tally
    rows: list[tuple[str, ...]] = [("tier", "capacity", "used", "hits", "hit ratio", "in", "out")]
    moved = _moved(result)
    for tier in tiers_of(result):
        if tier == "storage":
            assert result.storage is not None
            limit = result.storage.max_bytes
            capacity = show_bytes(limit) if limit else "no limit"
            used = "unknown" if result.storage.bytes is None else show_bytes(result.storage.bytes)
        else:
            pool = (result.pools if tier == "device" else result.hosts)["full"]
            capacity = f"{pool.size // result.block:,} blocks"
            used = f"{(pool.size - pool.free) // result.block:,}"
        hits = tally.tier_blocks[tier]
        rows.append(
            (
                tier,
                capacity,
                used,
                f"{hits:,}",
                f"{100 * _ratio(hits, tally.blocks):.2f} %",
                show_bytes(moved[_INTO[tier]]),
                show_bytes(moved[_OUT[tier]]) if tier in _OUT else "",
            )
        )
    together = f"{100 * _ratio(tally.block_hits, tally.blocks):.2f} %"
    rows.append(("together", "", "", f"{tally.block_hits:,}", together, "", ""))
    return rows


def transfer_rows(result: ReplayResult) -> list[tuple[str, ...]]:
    """Return the table of transfers: its heading, and a row a direction."""
    modelled = not result.config.pools.full.holds_bytes
    rows: list[tuple[str, ...]] = [
        ("transfer", "bytes", "a second, virtual" if modelled else "a second"),
    ]
    for name, moved in _moved(result).items():
        rows.append(
            (LINKS[name], show_bytes(moved), f"{show_bytes(_ratio(moved, result.transfer_s))}/s")
        )
    return rows


def storage_rows(result: ReplayResult) -> list[tuple[str, str]]:
    """Return the figures of the storage, where there is one."""
    stats, start = result.storage, result.storage_at_start
    if stats is None or start is None:
        return []
    rows = [
        ("storage", result.config.storage.url if result.config.storage is not None else ""),
        ("pages in it at the start", _known(start.values)),
        ("pages in it now", _known(stats.values)),
        ("hits from storage, blocks", f"{result.recording.tally.tier_blocks['storage']:,}"),
        ("bad pages found", f"{stats.bad:,}"),
    ]
    if stats.failures + stats.timeouts:
        rows.append(("calls of the store that failed", f"{stats.failures + stats.timeouts:,}"))
    return rows


def tier_charts(result: ReplayResult, axis: Axis) -> list[str]:
    """Return the pictures of tiers; none where there is the device alone."""
    samples = result.recording.series.samples
    names = tiers_of(result)
    if len(names) == 1:
        return []
    shares = [
        Line(
            tier,
            colour,
            [100 * _ratio(one.tier_tokens.get(tier, 0), one.looked_up) for one in samples],
        )
        for colour, tier in enumerate(names)
    ]
    return [
        chart(
            "Hits by tier",
            f"Share of prompt tokens found on each tier so far, in percent, over {axis.name}.",
            area_chart(axis.xs, shares, axis.show, "{:.3g} %".format, is_clock=axis.is_clock),
        ),
        chart(
            "Host pool",
            f"Slots of Full's host pool by state, over {axis.name}.",
            area_chart(axis.xs, _host_lines(samples), axis.show, _count, is_clock=axis.is_clock),
        ),
        chart(
            "Traffic between tiers",
            f"Bytes {'a second' if axis.is_clock else 'a request'} since the point before, over "
            f"{axis.name}.",
            line_chart(
                axis.xs,
                _traffic_lines(samples, axis.xs, "storage" in names),
                axis.show,
                show_bytes,
                is_clock=axis.is_clock,
            ),
        ),
    ]


def _host_lines(samples: list[Sample]) -> list[Line]:
    pools = [sample.hosts["full"] for sample in samples]
    return [
        Line("being filled", 1, [float(pool.in_flight) for pool in pools]),
        Line("kept, in use", 3, [float(pool.protected) for pool in pools]),
        Line("kept, evictable", 0, [float(pool.evictable) for pool in pools]),
        Line("free", 4, [float(pool.free) for pool in pools]),
    ]


def _traffic_lines(samples: list[Sample], xs: list[float], storage: bool) -> list[Line]:
    """Return a line a direction: bytes for each step of x, since the point before."""
    lines: list[Line] = []
    for colour, (name, link) in enumerate(LINKS.items()):
        if colour > 1 and not storage:
            break
        values: list[float | None] = []
        before, x_before = 0, 0.0
        for sample, x in zip(samples, xs, strict=True):
            moved = sample.moved.get(name, 0)
            values.append((moved - before) / (x - x_before) if x > x_before else None)
            before, x_before = moved, x
        lines.append(Line(link, colour, values))
    return lines


def _memory(result: ReplayResult, tier: str) -> int:
    """Return the bytes that the pools of a tier have, or would have."""
    total = 0
    for name, pool in device_pools(result.config):
        each = bytes_per_slot(pool)
        total += each * (pool.size if tier == "device" else host_slots(result.config, name, each))
    return total


def _moved(result: ReplayResult) -> dict[str, int]:
    """Return the bytes that moved, by the cache's counter; those to storage where there is one."""
    names = list(LINKS)[: 4 if result.config.storage is not None else 2]
    return {name: result.counters.get(name, 0) for name in names}


def _known(count: int | None) -> str:
    return "only the server knows" if count is None else f"{count:,}"


def _count(value: float) -> str:
    return f"{value:,.4g}"


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


__all__ = (
    "storage_rows",
    "tier_charts",
    "tier_rows",
    "tiers_json",
    "tiers_of",
    "transfer_rows",
)
