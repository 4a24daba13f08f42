"""Charts as SVG text: lines or stacked areas over one axis, readable in light and dark pages.

Colours are the page's CSS variables ``--c0`` to ``--c5``, ``--grid`` and ``--muted``. Hovering a
point shows its values in the browser's own tooltip, without a script.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Final

import msgspec

WIDTH: Final = 960
HEIGHT: Final = 280
LEFT: Final = 64
RIGHT: Final = 12
TOP: Final = 10
BOTTOM: Final = 34


class Line(msgspec.Struct, frozen=True):
    """One curve: its name, a colour (0 to 5), and a value at each x; None: a gap."""

    name: str
    colour: int
    values: Sequence[float | None]
    dashed: bool = False


class Scale(msgspec.Struct, frozen=True):
    """A mapping of ``[low, high]`` to a length in pixels, linear or logarithmic, with its ticks."""

    low: float
    high: float
    pixels: float
    log: bool
    ticks: tuple[float, ...]

    def at(self, value: float) -> float:
        """Return the pixels from the low end to `value`."""
        if self.log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return share * self.pixels


def linear_scale(low: float, high: float, pixels: float, ticks: int = 5) -> Scale:
    """Return a scale over ``[low, high]`` with about `ticks` round ticks."""
    if not high > low:
        high = low + 1.0
    rough = (high - low) / ticks
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * unit for unit in (1, 2, 5, 10) if power * unit >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return Scale(low, high, pixels, False, tuple(step * i for i in range(first, last + 1)))


def clock_scale(low: float, high: float, pixels: float, ticks: int = 8) -> Scale:
    """Return a scale over seconds whose ticks divide minutes, hours or days."""
    steps = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400)
    wanted = (high - low) / ticks
    step = next((step for step in steps if step >= wanted), None)
    if step is None or wanted < 1:
        return linear_scale(low, high, pixels, ticks)
    first = math.ceil(low / step)
    last = math.floor(high / step)
    return Scale(low, high, pixels, False, tuple(float(step * i) for i in range(first, last + 1)))


def log_scale(low: float, high: float, pixels: float) -> Scale:
    """Return a logarithmic scale over whole powers of ten around ``[low, high]``."""
    bottom = math.floor(math.log10(max(low, 1e-9)))
    top = max(math.ceil(math.log10(max(high, 1e-9))), bottom + 1)
    ticks = tuple(10.0**i for i in range(bottom, top + 1))
    return Scale(ticks[0], ticks[-1], pixels, True, ticks)


def line_chart(
    xs: Sequence[float],
    lines: Sequence[Line],
    x_format: Callable[[float], str],
    y_format: Callable[[float], str],
    *,
    is_clock: bool = False,
    log: bool = False,
    y_top: float | None = None,
) -> str:
    """Return an SVG of `lines` over `xs` (ascending).

    ``is_clock``: xs are seconds. ``y_top``: upper end of the y axis; None: the largest value.
    """
    values = [value for line in lines for value in line.values if value is not None]
    high = max(values, default=1.0) if y_top is None else y_top
    room = HEIGHT - TOP - BOTTOM
    if log:
        y = log_scale(min((v for v in values if v > 0), default=1.0), high, room)
    else:
        y = linear_scale(0.0, high, room)
    frame = _Frame(xs, y, x_format, y_format, is_clock)
    curves = "".join(_curve(frame, line) for line in lines)
    return frame.svg(curves, lines)


def area_chart(
    xs: Sequence[float],
    lines: Sequence[Line],
    x_format: Callable[[float], str],
    y_format: Callable[[float], str],
    *,
    is_clock: bool = False,
) -> str:
    """Return an SVG of `lines` as areas stacked upon each other, the first at the bottom."""
    sums = [sum(line.values[i] or 0.0 for line in lines) for i in range(len(xs))]
    y = linear_scale(0.0, max(sums, default=1.0), HEIGHT - TOP - BOTTOM)
    frame = _Frame(xs, y, x_format, y_format, is_clock)
    areas: list[str] = []
    below = [0.0] * len(xs)
    for line in lines:
        above = [base + (value or 0.0) for base, value in zip(below, line.values, strict=True)]
        if xs:
            edge = [frame.point(i, value) for i, value in enumerate(above)]
            back = [frame.point(i, below[i]) for i in reversed(range(len(xs)))]
            areas.append(
                f'<polygon class="area" points="{" ".join(edge + back)}" '
                f'style="fill:var(--c{line.colour})"/>'
            )
        below = above
    return frame.svg("".join(areas), lines)


class _Frame:
    """The axes around a chart, and the tooltips over it."""

    def __init__(
        self,
        xs: Sequence[float],
        y: Scale,
        x_format: Callable[[float], str],
        y_format: Callable[[float], str],
        is_clock: bool,
    ) -> None:
        self.xs = xs
        scale = clock_scale if is_clock else linear_scale
        ends = (xs[0], xs[-1]) if xs else (0.0, 1.0)
        self.x = scale(*ends, WIDTH - LEFT - RIGHT, 8)
        self.y = y
        self._x_format = x_format
        self._y_format = y_format

    def point(self, i: int, value: float) -> str:
        """Return the SVG coordinates of `value` at the i-th x."""
        return f"{LEFT + self.x.at(self.xs[i]):.1f},{HEIGHT - BOTTOM - self.y.at(value):.1f}"

    def svg(self, body: str, lines: Sequence[Line]) -> str:
        """Return the whole picture."""
        legend = "".join(
            f'<span class="key"><i class="{"dash" if line.dashed else "solid"}" '
            f'style="border-color:var(--c{line.colour})"></i>{escape(line.name)}</span>'
            for line in lines
        )
        return (
            f'<div class="legend">{legend}</div>'
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
            f"{self._grid()}{body}{self._tooltips(lines)}</svg>"
        )

    def _grid(self) -> str:
        base = HEIGHT - BOTTOM
        parts: list[str] = []
        for tick in self.y.ticks:
            at = base - self.y.at(tick)
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
                f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">'
                f"{escape(self._y_format(tick))}</text>"
            )
        for tick in self.x.ticks:
            at = LEFT + self.x.at(tick)
            parts.append(
                f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{base}" y2="{base + 5}"/>'
                f'<text x="{at:.1f}" y="{base + 20}" text-anchor="middle">'
                f"{escape(self._x_format(tick))}</text>"
            )
        return "".join(parts)

    def _tooltips(self, lines: Sequence[Line]) -> str:
        """Return one invisible column a point that tells its values when hovered."""
        parts: list[str] = []
        places = [LEFT + self.x.at(x) for x in self.xs]
        for i, place in enumerate(places):
            left = (places[i - 1] + place) / 2 if i else LEFT
            right = (place + places[i + 1]) / 2 if i + 1 < len(places) else WIDTH - RIGHT
            told = [self._x_format(self.xs[i])]
            for line in lines:
                value = line.values[i]
                if value is not None:
                    told.append(f"{line.name}: {self._y_format(value)}")
            width, height = max(right - left, 0.0), HEIGHT - TOP - BOTTOM
            title = escape("\n".join(told))
            parts.append(
                f'<rect class="hover" x="{left:.1f}" y="{TOP}" width="{width:.1f}" '
                f'height="{height}"><title>{title}</title></rect>'
            )
        return "".join(parts)


def _curve(frame: _Frame, line: Line) -> str:
    """Return the polylines of one curve: a new one after each gap."""
    runs: list[list[str]] = [[]]
    for i, value in enumerate(line.values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(frame.point(i, value))
    style = f"stroke:var(--c{line.colour})" + (";stroke-dasharray:5 4" if line.dashed else "")
    return "".join(
        f'<polyline class="line" points="{" ".join(run if len(run) > 1 else run * 2)}" '
        f'style="{style}"/>'
        for run in runs
        if run
    )


__all__ = (
    "Line",
    "Scale",
    "area_chart",
    "clock_scale",
    "line_chart",
    "linear_scale",
    "log_scale",
)
