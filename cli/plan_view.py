"""A plan as data for machines, as tables for the terminal, and as a page with a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from radixtide.cli.page import chart, headed_table, page, tiles
from radixtide.cli.plan_gain import Gain
from radixtide.cli.plan_sizes import Plan, show_bytes
from radixtide.cli.replay_chart import Line, line_chart

Rows = list[tuple[str, ...]]

BAR: Final = 24
"""Characters of the longest bar of the curve."""

_WHOLE, _PARTS = "█", " ▏▎▍▌▋▊▉"


def as_json(plan: Plan, gain: Gain | None) -> dict[str, Any]:
    """Return the object that ``--json`` prints; keys are told in docs/plan.md."""
    data: dict[str, Any] = {
        "components": list(plan.config.components),
        "page_size": plan.config.page_size,
        "weights": plan.weights,
        "memory": plan.memory,
        "pools": {
            pool.name: {
                "unit": pool.kind,
                "bytes_each": pool.bytes_each,
                **{tier: pool.slots(tier) for tier in plan.tiers},
            }
            for pool in plan.pools
        },
    }
    if gain is not None:
        data["trace"] = _trace(plan, gain)
    return data


def _trace(plan: Plan, gain: Gain) -> dict[str, Any]:
    curve = gain.curve
    block = curve.block

    def hits(count: int) -> dict[str, Any]:
        return {"hits": count, "hit_ratio": count / curve.blocks if curve.blocks else 0.0}

    return {
        "source": gain.source,
        "requests": curve.requests,
        "block": block,
        "blocks": curve.blocks,
        "distinct_blocks": curve.distinct,
        **hits(gain.hits),
        "endless": hits(curve.endless),
        "nearly_endless_blocks": gain.nearly_all,
        "tiers": {
            tier.name: {"blocks": tier.blocks, "reach": tier.reach, **hits(tier.hits)}
            for tier in gain.tiers
        },
        "changes": [
            {
                "tier": one.tier,
                "factor": one.factor,
                "memory": one.memory,
                "reached": hits(one.reached),
                **hits(one.hits),
            }
            for one in gain.changes
        ],
        "curve": [
            {
                "blocks": size,
                "device_bytes": plan.bytes_for("device", size, block),
                **hits(curve.hits(size)),
            }
            for size in gain.points
        ],
    }


def pool_rows(plan: Plan) -> Rows:
    """Return what each pool holds on each tier: a heading, and a row a pool."""
    rows: Rows = [("pool", "each takes", *plan.tiers)]
    for pool in plan.pools:
        held = (f"{pool.slots(tier) or 0:,} {pool.kind}s" for tier in plan.tiers)
        rows.append((pool.name, show_bytes(pool.bytes_each), *held))
    rows.append(("memory", "", *(show_bytes(size) for size in plan.memory.values())))
    context = plan.config.pools.requests.max_context
    fits = ((plan.pools[0].slots(tier) or 0) / context for tier in plan.tiers)
    rows.append((f"contexts of {context:,}", "", *(f"{count:,.1f}" for count in fits)))
    return rows


def tier_rows(plan: Plan, gain: Gain) -> Rows:
    """Return what is found on each tier: a heading, a row a tier, and one for all."""
    curve = gain.curve
    rows: Rows = [("tier", "blocks", "hit ratio", "with the faster ones", "hits")]
    for tier in gain.tiers:
        share = _percent(tier.hits / curve.blocks) if curve.blocks else ""
        reached = _percent(curve.ratio(tier.reach))
        rows.append((tier.name, f"{tier.blocks:,}", share, reached, f"{tier.hits:,}"))
    endless = _percent(curve.ratio(curve.distinct))
    rows.append(("endless", f"{curve.distinct:,}", "", endless, f"{curve.endless:,}"))
    return rows


def change_rows(gain: Gain) -> Rows:
    """Return what another size of each tier changes: a heading, and a row a size."""
    curve = gain.curve
    rows: Rows = [("tier", "memory", "found up to it", "points", "on all", "points")]
    for one in gain.changes:
        reached = one.reached - gain.reached(one.tier)
        rows.append(
            (
                f"{one.tier} x {one.factor:g}",
                show_bytes(one.memory),
                _percent(one.reached / curve.blocks),
                f"{100 * reached / curve.blocks:+.2f}",
                _percent(one.hits / curve.blocks),
                f"{100 * (one.hits - gain.hits) / curve.blocks:+.2f}",
            )
        )
    return rows


def curve_rows(plan: Plan, gain: Gain) -> Rows:
    """Return the curve as text: a heading, and a row a size with a bar."""
    curve, most = gain.curve, max(gain.curve.ratio(gain.curve.distinct), 1e-9)
    marks: dict[int, list[str]] = {}
    for tier in gain.tiers:
        marks.setdefault(min(tier.reach, curve.distinct), []).append(tier.name)
    rows: Rows = [("blocks", "device memory", "hit ratio", "", "")]
    halves = {round(curve.distinct / 2**power) for power in range(12)}
    for size in reversed(gain.points):
        if size not in halves and size not in marks:
            continue
        ratio = curve.ratio(size)
        memory = show_bytes(plan.bytes_for("device", size, curve.block))
        mark = " ◂ " + ", ".join(marks[size]) if size in marks else ""
        rows.insert(1, (f"{size:,}", memory, _percent(ratio), _bar(ratio / most), mark.strip()))
    return rows


def _bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    return (_WHOLE * (eighths // 8) + _PARTS[eighths % 8]).rstrip()


def notes(plan: Plan, gain: Gain | None) -> list[str]:
    """Return what must be known to read the figures."""
    told = []
    if gain is not None:
        curve = gain.curve
        told.append(
            f"{_percent(0.95)} of the hits of an endless cache take {gain.nearly_all:,} blocks of "
            f"{curve.block} tokens."
        )
        if len(plan.pools) > 1:
            others = " and ".join(pool.name for pool in plan.pools[1:])
            told.append(
                f"Hits are those of full attention; {others} can make them fewer: replay the trace "
                "with these sizes to see how many."
            )
    return told


def as_tables(plan: Plan, gain: Gain | None) -> RenderableType:
    """Return what a person sees at a terminal."""
    parts: list[RenderableType] = [_table("What each tier holds", pool_rows(plan))]
    if gain is not None:
        parts += [
            _table(f"Hits of {gain.source}", tier_rows(plan, gain)),
            _table("With another size of one tier", change_rows(gain)),
            _table("Hits by size of the whole cache", curve_rows(plan, gain), bars=True),
        ]
    return Group(*parts, *(Text(note) for note in notes(plan, gain)))


def _table(title: str, rows: Sequence[tuple[str, ...]], bars: bool = False) -> Table:
    table = Table(title=title, title_justify="left", min_width=60)
    for at, heading in enumerate(rows[0]):
        left = (at == 0) != bars or (bars and at > 2)
        table.add_column(heading, justify="left" if left else "right")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def render_plan(plan: Plan, gain: Gain | None) -> str:
    """Return the page of ``--report``."""
    figures = [
        (f"{plan.pools[0].slots(tier) or 0:,}", f"tokens on {tier}, {show_bytes(size)}")
        for tier, size in plan.memory.items()
    ]
    told = "".join(f"<p>{note}</p>" for note in notes(plan, gain))
    body = [tiles(figures), told]
    if gain is not None:
        body += [
            chart(
                "Hits by size of the whole cache",
                "Share of the prompts' blocks that are found, over device memory (logarithmic); "
                "coloured by the tier that reaches so far.",
                _picture(plan, gain),
            ),
            headed_table("Hits by tier", tier_rows(plan, gain)),
            headed_table("With another size of one tier", change_rows(gain)),
        ]
    body.append(headed_table("What each tier holds", pool_rows(plan)))
    about = ", ".join(plan.config.components)
    return page(
        "Radixtide plan", about if gain is None else f"{gain.source}, {about}", "".join(body)
    )


def _picture(plan: Plan, gain: Gain) -> str:
    """Return the curve: a piece of it for each tier, and the rest."""
    curve = gain.curve
    xs = [math.log2(max(plan.bytes_for("device", size, curve.block), 1)) for size in gain.points]
    lines: list[Line] = []
    start = 0
    ends = [(tier.name, min(tier.reach, curve.distinct)) for tier in gain.tiers]
    for colour, (name, end) in enumerate([*ends, ("beyond all tiers", curve.distinct)]):
        values = [curve.ratio(size) if start <= size <= end else None for size in gain.points]
        if end > start:
            lines.append(Line(name, colour if colour < len(ends) else 4, values))
            start = end
    top = max(math.ceil(20 * curve.ratio(curve.distinct)), 1) / 20
    return line_chart(xs, lines, lambda x: show_bytes(2.0**x), _percent, y_top=top)


def _percent(value: float) -> str:
    return f"{100 * value:.4g} %"


__all__ = ("as_json", "as_tables", "render_plan")
