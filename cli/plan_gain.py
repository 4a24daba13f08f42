"""What a replayed trace would find on each tier of a plan, and what more memory would gain."""

from __future__ import annotations

from typing import Final

import msgspec

from radixtide.cli.plan_distance import HitCurve
from radixtide.cli.plan_sizes import Plan

FACTORS: Final = (0.5, 2.0, 4.0)
"""What the memory of one tier is multiplied with, to see what that changes."""

NEARLY: Final = 0.95
"""Share of the hits of an endless cache from which more memory hardly pays."""


class TierHits(msgspec.Struct, frozen=True):
    """What is found on one tier: in blocks of the trace, and not on a faster one.

    ``reach``: blocks that this tier and the faster ones keep between them.
    """

    name: str
    blocks: int
    reach: int
    hits: int


class Change(msgspec.Struct, frozen=True):
    """What comes of another size of one tier, of ``memory`` bytes.

    ``reached``: hits on this tier and the faster ones. ``hits``: on all tiers together.
    """

    tier: str
    factor: float
    memory: int
    reached: int
    hits: int


class Gain(msgspec.Struct, frozen=True):
    """What a trace would find in a plan.

    ``tiers``: hits by tier. ``changes``: what becomes of all hits with more or less of one tier.
    ``points``: sizes in blocks for a curve, ascending.
    """

    source: str
    curve: HitCurve
    tiers: tuple[TierHits, ...]
    changes: tuple[Change, ...]
    points: tuple[int, ...]

    @property
    def hits(self) -> int:
        """Hits on all tiers together."""
        return sum(tier.hits for tier in self.tiers)

    def reached(self, tier: str) -> int:
        """Return the hits on `tier` and the faster ones."""
        last = [one.name for one in self.tiers].index(tier)
        return sum(one.hits for one in self.tiers[: last + 1])

    @property
    def nearly_all(self) -> int:
        """Blocks with which a cache has nearly all hits of an endless one."""
        return self.curve.capacity_for(NEARLY * self.curve.endless)


def gain_of(plan: Plan, curve: HitCurve, source: str) -> Gain:
    """Return what the trace of `curve` would find in `plan`."""
    tiers: list[TierHits] = []
    found = 0
    for name, blocks, reach in _reaches(plan, curve.block, {}):
        hits = curve.hits(reach)
        tiers.append(TierHits(name, blocks, reach, hits - found))
        found = hits
    changes = tuple(_change(plan, curve, name, factor) for name in plan.tiers for factor in FACTORS)
    return Gain(source, curve, tuple(tiers), changes, _points(curve, tiers))


def _change(plan: Plan, curve: HitCurve, tier: str, factor: float) -> Change:
    reaches = {name: reach for name, _, reach in _reaches(plan, curve.block, {tier: factor})}
    return Change(
        tier,
        factor,
        round(plan.memory[tier] * factor),
        curve.hits(reaches[tier]),
        curve.hits(max(reaches.values())),
    )


def _reaches(plan: Plan, block: int, factors: dict[str, float]) -> list[tuple[str, int, int]]:
    """Return name, blocks, and reach of each tier: how many blocks it and those before it keep.

    Storage has all that was ever on the host, and a host that is written through has what is on the
    device: such a tier reaches as far as it alone does. Only what is written when the device gives
    it up, or what the host may forget because storage has it, adds to the device.
    """
    host = plan.config.host
    apart = (host is not None and host.write_policy == "write_back") or "storage" in plan.memory
    rows: list[tuple[str, int, int]] = []
    reach = 0
    for name in plan.tiers:
        blocks = plan.blocks(name, block, factors.get(name, 1.0))
        adds = name == "host" and apart
        reach = reach + blocks if adds else max(reach, blocks)
        rows.append((name, blocks, reach))
    return rows


def _points(curve: HitCurve, tiers: list[TierHits]) -> tuple[int, ...]:
    """Return sizes for a curve: powers of the square root of 2, and the reaches of the tiers."""
    most = max(curve.distinct, 2)
    points = {most, *(min(tier.reach, most) for tier in tiers if tier.reach)}
    size = float(most)
    while size > max(most / 2**12, 1.0):
        size /= 2**0.5
        points.add(max(round(size), 1))
    return tuple(sorted(points))


__all__ = ("FACTORS", "Change", "Gain", "TierHits", "gain_of")
