"""The pages of docs/ speak of things that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.rooms import ROOMS, ROOT, present_rooms

PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_file_that_the_architecture_page_names_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folder = ""
    missing = []
    named = re.findall(r"`([\w/*]+\.(?:py|toml|md))`", text)
    assert len(named) > 30
    for name in named:
        # In a list, a name without a folder is in the folder of the one before.
        folder, _, last = name.rpartition("/") if "/" in name else (folder, "", name)
        if not list(ROOT.glob(f"{folder}/{last}")):
            missing.append(name)
    assert missing == []


def test_the_architecture_page_lists_the_rooms_from_top_to_bottom() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = re.findall(r"^\| `(\w+)/` \|", text, flags=re.MULTILINE)
    assert rooms == [room for room in ROOMS if room in present_rooms()]
