"""A session's result as data for machines, as tables for the terminal, and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from radixtide.cli.page import chart, headed_table, page, tiles
from radixtide.cli.session_record import TITLES, Ask, Case, CaseSummary, SessionResult, summaries

Rows = list[tuple[str, ...]]

BAR: Final = 14
"""Characters of the longest bar."""

_WHOLE, _PARTS = "█", " ▏▎▍▌▋▊▉"

_COLOURS: Final = {
    Case.COLD: "c4",
    Case.DEVICE: "c0",
    Case.HOST: "c1",
    Case.STORAGE: "c2",
    Case.TOGETHER: "c3",
}


def as_json(result: SessionResult) -> dict[str, Any]:
    """Return the object that ``--json`` prints; docs/serving.md tells its keys."""
    cases = {str(row.case): msgspec.to_builtins(row) for row in summaries(result.asks)}
    for row in cases.values():
        del row["case"]
    return {
        "model": result.model,
        "device": result.device,
        "threads": result.threads,
        "shared_tokens": result.shared_tokens,
        "cases": cases,
        "asks": [msgspec.to_builtins(ask) for ask in result.asks],
        "problems": result.problems,
        "held": result.held,
        "audit": {"violations": len(result.violations), "messages": list(result.violations)},
        "load_model_s": result.load_model_s,
        "wall_s": result.wall_s,
    }


def time_rows(rows: Sequence[CaseSummary], bars: bool = True) -> Rows:
    """Return times to first token: a heading, and a row a case, with a bar where wanted."""
    longest = max(row.ttft_s for row in rows)
    table: Rows = [("", "first token", "of cold", "from ... to", "")]
    for row in rows:
        table.append(
            (
                TITLES[row.case],
                _seconds(row.ttft_s),
                _share(row.of_cold),
                f"{_number(row.fastest_s)} to {_seconds(row.slowest_s)}",
                _bar(row.ttft_s / longest),
            )
        )
    return table if bars else [row[:-1] for row in table]


def token_rows(rows: Sequence[CaseSummary]) -> Rows:
    """Return where the tokens of prompts were: a heading, and a row a case."""
    table: Rows = [("", "prompt", "device", "host", "storage", "computed", "why not more")]
    for row in rows:
        counts = (
            row.prompt_tokens,
            row.cached_device,
            row.cached_host,
            row.cached_storage,
            row.computed_tokens,
        )
        reasons = ", ".join(reason.replace("_", " ") for reason in row.miss_reasons)
        table.append((TITLES[row.case], *(f"{count:,}" for count in counts), reasons))
    return table


def chat_rows(asks: Sequence[Ask]) -> Rows:
    """Return the opening question of each user of the shared prompt, and what was answered."""
    table: Rows = [("", "asks", "is answered")]
    strangers = [ask for ask in asks if ask.case is Case.COLD][1:]
    for ask in asks:
        if ask.case is not Case.TOGETHER and ask not in strangers:
            answer = " ".join(ask.answer.split())
            more = "" if ask.finish_reason == "stop" else " …"
            table.append((ask.user, ask.question.partition(". ")[2], f"{answer}{more}"))
    return table


def end_rows(result: SessionResult) -> list[tuple[str, str]]:
    """Return name and value of what there is at the end."""
    audit = f"{len(result.violations)} violations" if result.violations else "sound"
    return [
        ("model", f"{result.model} on {result.device}, threads: {result.threads}"),
        ("shared prompt", f"{result.shared_tokens:,} tokens"),
        ("model read in", f"{result.load_model_s:.1f} s"),
        ("whole session", f"{result.wall_s:.1f} s"),
        *((f"{what} held", f"{count:,}") for what, count in result.held.items()),
        ("audit", audit),
    ]


def as_tables(result: SessionResult) -> RenderableType:
    """Return what a person sees at a terminal."""
    rows = summaries(result.asks)
    return Group(
        *([] if result.is_random else [_table("Who asks what", chat_rows(result.asks), left=3)]),
        _table("Time to first token, by where the shared prompt was", time_rows(rows), left=1),
        _table("Tokens of a prompt, and where they were", token_rows(rows), left=1),
        _table("At the end", [("", ""), *end_rows(result)], left=1, headed=False),
    )


def as_page(result: SessionResult) -> str:
    """Return the page of ``--report``."""
    rows = summaries(result.asks)
    shares = [
        (_share(row.of_cold), f"of a cold prompt's time: {TITLES[row.case]}")
        for row in rows
        if row.case is not Case.COLD
    ]
    found = "".join(f'<p class="warn">{escape(line)}</p>' for line in result.problems)
    body = [
        found,
        tiles([(_seconds(rows[0].ttft_s), "to the first token, cold"), *shares]),
        chart(
            "Time to first token",
            "Median of each case; the line goes from the fastest to the slowest.",
            _picture(rows),
        ),
        headed_table("Time to first token", time_rows(rows, bars=False)),
        headed_table("Tokens of a prompt, and where they were", token_rows(rows)),
        ""
        if result.is_random
        else headed_table("Who asks what", chat_rows(result.asks), words=True),
        headed_table("At the end", [("", ""), *end_rows(result)]),
    ]
    return page(
        "Radixtide session",
        f"{result.model} on {result.device}: users share a system prompt of "
        f"{result.shared_tokens:,} tokens",
        "".join(body),
    )


def _picture(rows: Sequence[CaseSummary]) -> str:
    """Return horizontal bars, one a case."""
    height, left, wide = 34, 230, 520
    longest = max(row.slowest_s for row in rows)
    parts = []
    for number, row in enumerate(rows):
        top = height * number + 8
        middle, width = top + 10, wide * row.ttft_s / longest
        near, far = left + wide * row.fastest_s / longest, left + wide * row.slowest_s / longest
        parts.append(
            f'<text x="{left - 10}" y="{middle + 4}" text-anchor="end">{TITLES[row.case]}</text>'
            f'<rect x="{left}" y="{top}" width="{max(width, 1):.1f}" height="20" rx="3" '
            f'fill="var(--{_COLOURS[row.case]})"/>'
            f'<line class="spread" x1="{near:.1f}" x2="{far:.1f}" y1="{middle}" y2="{middle}" '
            f'stroke="var(--fg)"/>'
            f'<text x="{max(far, left + width) + 8:.1f}" y="{middle + 4}">'
            f"{_seconds(row.ttft_s)}</text>"
        )
    size = f"0 0 {left + wide + 90} {height * len(rows) + 8}"
    return f'<svg viewBox="{size}" role="img">{"".join(parts)}</svg>'


def _table(title: str, rows: Rows, left: int, headed: bool = True) -> Table:
    """Return a table whose first row is its heading; columns from `left` on are numbers."""
    table = Table(title=title, title_justify="left", min_width=60, show_header=headed)
    for at, heading in enumerate(rows[0]):
        words = at < left or heading in ("", "why not more")
        table.add_column(heading, justify="left" if words else "right")
    for row in rows[1:]:
        table.add_row(*row)
    return table


def _bar(share: float) -> str:
    eighths = round(share * BAR * 8)
    return (_WHOLE * (eighths // 8) + _PARTS[eighths % 8]).rstrip()


def _share(value: float) -> str:
    return f"{100 * value:.{0 if value >= 0.995 else 1}f} %"


def _seconds(value: float) -> str:
    return f"{_number(value)} s"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


__all__ = ("as_json", "as_page", "as_tables", "chat_rows", "end_rows", "time_rows", "token_rows")
