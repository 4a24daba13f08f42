"""A headless Chromium for tests of pages, and what a page said that it should not have."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from support.servers import unavailable

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
WAIT_MS: Final = 60_000


@contextmanager
def browser() -> Iterator[Browser]:
    """Open a browser; without Playwright and a Chromium the test is skipped (see `unavailable`).

    ``RADIXTIDE_CHROMIUM`` names the program where it is not on the path.
    """
    program = os.environ.get("RADIXTIDE_CHROMIUM") or next(
        (found for name in PROGRAMS if (found := shutil.which(name))), None
    )
    if program is None:
        unavailable("no Chromium: install the package chromium, or set RADIXTIDE_CHROMIUM")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("no Playwright: pip install playwright")
    with sync_playwright() as player:
        opened = player.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def page(opened: Browser, *, complaints: bool = False, **options: Any) -> Iterator[Page]:
    """Open a page of its own; at its end, nothing may have gone wrong on it.

    `complaints`: the browser may tell of requests that failed, as where the server was away.
    `options`: of the context: ``color_scheme``, ``viewport`` and others.
    """
    # Without motion a page is drawn once a change, which a slow machine is glad of.
    usual = {"viewport": {"width": 1440, "height": 1000}, "reduced_motion": "reduce"}
    context = opened.new_context(**{**usual, **options})
    shown = context.new_page()
    shown.set_default_timeout(WAIT_MS)
    said: list[str] = []
    shown.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
    shown.on("pageerror", lambda error: said.append(f"raised: {error}"))
    try:
        yield shown
    finally:
        context.close()
    wrong = [one for one in said if not (complaints and one.startswith("Failed to load resource"))]
    assert wrong == []
