"""The x axis that all charts of a replay share, and how numbers are written at axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from radixtide.cli.replay_metrics import Sample


class Axis(msgspec.Struct, frozen=True):
    """``xs``: where each sample is. ``name``: what of. ``show``: how a place is written.

    ``is_clock``: xs are seconds.
    """

    xs: list[float]
    name: str
    show: Callable[[float], str]
    is_clock: bool

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Axis:
        """Return virtual time as the axis of `samples`, or, where there is none, requests."""
        if samples and samples[-1].at_ns > samples[0].at_ns:
            return cls([one.at_ns / 1e9 for one in samples], "virtual time", show_clock, True)
        # A trace whose requests all arrive at once has no time to speak of.
        return cls([float(one.requests) for one in samples], "requests served", show_count, False)


def show_count(value: float) -> str:
    """Return a number as axes have it: 12.5k."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:,.4g}{letter}"
    return f"{value:,.4g}"


def show_clock(seconds: float) -> str:
    """Return seconds as minutes and seconds, with hours where there are any."""
    whole = round(seconds)
    if whole < 60 and seconds != whole:
        return f"{seconds:.3g} s"
    hours, rest = divmod(whole, 3600)
    if hours:
        return f"{hours}:{rest // 60:02}:{rest % 60:02}"
    return f"{rest // 60}:{rest % 60:02}"


__all__ = ("Axis", "show_clock", "show_count")
