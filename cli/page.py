"""A page for a browser: charts and tables, complete in itself.

It needs no script, no network and no other file, and follows the reader's light or dark setting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Final

from radixtide.configs.errors import InvalidInput

_STYLE: Final = """
:root { color-scheme: light dark; --bg: #ffffff; --fg: #1b1f24; --muted: #5c6670; --card: #f5f7f9;
  --grid: #dde2e7; --c0: #0b6bcb; --c1: #d9730d; --c2: #2a8c55; --c3: #8a4fc7; --c4: #a8b3bd;
  --c5: #c0392b; }
@media (prefers-color-scheme: dark) { :root { --bg: #14181d; --fg: #e6eaee; --muted: #97a3ae;
  --card: #1d232a; --grid: #323b45; --c0: #5aa9f5; --c1: #f2a154; --c2: #5fc48b; --c3: #bb90ec;
  --c4: #56626e; --c5: #ef7d70; } }
body { margin: 0 auto; padding: 24px 16px 48px; max-width: 1000px; background: var(--bg);
  color: var(--fg); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 17px; margin: 32px 0 4px; }
p { margin: 4px 0; color: var(--muted); overflow-wrap: anywhere; }
.warn { color: var(--c5); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
  margin: 20px 0; }
.tile { background: var(--card); border-radius: 8px; padding: 12px 16px; }
.tile b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: 13px; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--muted); font: 12px system-ui, sans-serif; }
.grid { stroke: var(--grid); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.area { opacity: .85; }
.hover { fill: transparent; } .hover:hover { fill: var(--fg); fill-opacity: .08; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 13px; color: var(--muted);
  margin: 4px 0 6px; }
.key i { display: inline-block; width: 18px; margin-right: 6px; vertical-align: middle;
  border-top: 3px solid; } .key i.dash { border-top-style: dashed; }
.tables { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr));
  gap: 0 32px; align-items: start; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: 4px 6px; border-bottom: 1px solid var(--grid); text-align: left;
  font-weight: normal; } th { color: var(--muted); } td + td, th + th { text-align: right; }
.words td, .words th { text-align: left; vertical-align: top; }
"""


def check_report_path(path: Path, option: str = "--report") -> None:
    """Raise :class:`InvalidInput` unless the page of `option` can be written to `path`."""
    if path.suffix.lower() != ".html":
        raise InvalidInput(
            f"{option} {path}: this is one self-contained HTML page; "
            f"name a file that ends in .html, for instance {path.with_suffix('.html')}"
        )
    if not path.absolute().parent.is_dir():
        raise InvalidInput(f"{option} {path}: there is no folder {path.parent}; make it first")


def write_page(text: str, path: Path, option: str = "--report") -> None:
    """Write the page `text` to `path`, whole or not at all."""
    draft = path.with_name(path.name + ".part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise InvalidInput(f"{option} {path}: can not be written: {error.strerror}") from None


def page(title: str, about: str, body: str) -> str:
    """Return a whole page: its title, a line about it, and `body`, which is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{escape(about)}</p>{body}</body></html>\n"
    )


def tiles(figures: Iterable[tuple[str, str]]) -> str:
    """Return the figures that matter most: value and name of each."""
    drawn = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name in figures
    )
    return f'<div class="tiles">{drawn}</div>'


def chart(title: str, about: str, svg: str) -> str:
    """Return a picture under its heading."""
    return f"<h2>{escape(title)}</h2><p>{escape(about)}</p>{svg}"


def headed_table(title: str, rows: Sequence[tuple[str, ...]], words: bool = False) -> str:
    """Return a table whose first row is its heading; `words`: it has no numbers."""
    lines = [
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * len(rows)], rows, strict=False)
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    kind = ' class="words"' if words else ""
    return f"<h2>{escape(title)}</h2><table{kind}>{body}</table>"


__all__ = ("chart", "check_report_path", "headed_table", "page", "tiles", "write_page")
