"""A case: all that a simulated run follows from, as data that can be kept and made smaller."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from radixtide.configs.errors import ConfigError
from radixtide.simulation.drawing import draw_scripts
from radixtide.simulation.plan import FaultPlan
from radixtide.simulation.script import Script
from radixtide.simulation.setup import Setup, Tiers, draw_setup


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A setup, a plan of faults, a seed, and a script for each scheduler.

    The seed draws interleaving, faults and latencies; scripts and setup are as they are here, so
    a case can be made shorter without another seed.
    """

    setup: Setup
    plan: FaultPlan
    seed: int
    scripts: tuple[Script, ...]

    @property
    def steps(self) -> int:
        """Steps of all scripts."""
        return sum(len(one) for one in self.scripts)

    def to_json(self) -> bytes:
        """Return the case as JSON: the same bytes for the same case."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(raw: bytes | str) -> Case:
        """Return the case of :meth:`to_json`. Raises ConfigError where `raw` is none."""
        try:
            return msgspec.json.decode(raw, type=Case)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"this is no case of a simulation: {error}") from None


def draw_case(
    seed: int,
    steps: int,
    plan: FaultPlan,
    components: Sequence[str] | None = None,
    tiers: Tiers | None = None,
) -> Case:
    """Return the case of a seed: what is not given is drawn. Raises ConfigError. Cost O(steps)."""
    setup = draw_setup(seed, components, tiers)
    return Case(setup=setup, plan=plan, seed=seed, scripts=draw_scripts(seed, setup, steps))
