"""The sequence diagram as a page for a browser."""

from __future__ import annotations

from html import escape
from typing import Final

from radixtide.cli.inspect_diagram import Diagram, Row
from radixtide.cli.page import page

_COLUMN: Final = 190
_LEFT: Final = 120
"""Room for time and step, in units of the picture."""
_LINE: Final = 26
_AGAIN: Final = 40
"""The names are repeated after so many lines."""
_COLOURS: Final = {"message": "--c0", "answer": "--c2", "mark": "--c1", "rule": "--c3"}


def render_diagram(diagram: Diagram, title: str, about: str) -> str:
    """Return a whole page that shows a diagram. What does not fit into a line shows on hover."""
    if not diagram.rows:
        return page(title, about, "<p>Nothing of the journal is meant by these filters.</p>")
    places = {
        name: _LEFT + _COLUMN // 2 + index * _COLUMN for index, name in enumerate(diagram.actors)
    }
    width = _LEFT + _COLUMN * max(len(places), 2)
    parts: list[str] = []
    y = 0
    for index, row in enumerate(diagram.rows):
        if index % _AGAIN == 0:
            y += _LINE
            parts += [_text(x, y, name, "middle", bold=True) for name, x in places.items()]
        y += _LINE
        parts.append(_row(row, places, y, width))
    height = y + _LINE
    lifelines = [
        f'<line class="grid" x1="{x}" x2="{x}" y1="{_LINE + 6}" y2="{height}"/>'
        for x in places.values()
    ]
    picture = (
        f'<svg viewBox="0 0 {width} {height}" style="min-width: {width * 3 // 4}px" role="img" '
        f'aria-label="Sequence diagram">{"".join(lifelines)}{"".join(parts)}</svg>'
    )
    return page(title, about, f'<div style="overflow-x: auto">{picture}</div>')


def _text(x: int, y: int, words: str, anchor: str = "start", *, bold: bool = False) -> str:
    style = "fill: var(--fg); font-weight: 600" if bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" style="{style}">{escape(words)}</text>'


def _row(row: Row, places: dict[str, int], y: int, width: int) -> str:
    colour = f"var({'--c5' if row.bad else _COLOURS[row.shape]})"
    step = "" if row.step is None else f"  {row.step}"
    parts = [f"<title>{escape(f'{row.text}  {row.detail}'.strip())}</title>"]
    parts.append(_text(0, y, f"{row.at:.6f}{step}"))
    if row.shape == "rule":
        parts.append(
            f'<line x1="{_LEFT}" x2="{width}" y1="{y + 5}" y2="{y + 5}" '
            f'style="stroke: {colour}" stroke-dasharray="2 3"/>'
        )
        parts.append(_coloured(_LEFT, y, f"{row.text}  {row.detail}", colour))
    elif row.sender == row.receiver:
        x = places[row.sender]
        parts.append(f'<circle cx="{x}" cy="{y - 4}" r="4" style="fill: {colour}"/>')
        parts.append(_coloured(x + 8, y, row.text, colour))
    else:
        begin, end = places[row.sender], places[row.receiver]
        dash = ' stroke-dasharray="5 4"' if row.shape == "answer" else ""
        tip = -6 if end > begin else 6
        parts.append(
            f'<line x1="{begin}" x2="{end}" y1="{y + 4}" y2="{y + 4}" '
            f'style="stroke: {colour}"{dash}/>'
        )
        parts.append(
            f'<path d="M{end} {y + 4} l{tip} -4 v8 z" style="fill: {colour}; stroke: none"/>'
        )
        parts.append(_coloured((begin + end) // 2, y, row.text, colour, "middle"))
    parts.append(
        f'<rect class="hover" x="0" y="{y - _LINE // 2}" width="{width}" height="{_LINE}"/>'
    )
    return f"<g>{''.join(parts)}</g>"


def _coloured(x: int, y: int, words: str, colour: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" style="fill: {colour}">'
        f"{escape(words)}</text>"
    )
