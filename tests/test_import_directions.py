"""Imports point down the list of rooms, never back."""

from pathlib import Path

import pytest

from support.rooms import ROOMS, ROOT, present_rooms, room_of, wrong_imports


def test_every_import_points_down() -> None:
    assert wrong_imports(ROOT) == []


def test_the_check_sees_the_rooms() -> None:
    assert {"actors", "cli", "components", "configs", "radixtide", "tiers", "tree"} <= set(
        present_rooms()
    )


@pytest.mark.parametrize(
    ("room", "line", "complaint"),
    [
        ("tree", "from radixtide.actors.cache import UnifiedRadixCache", "lies above"),
        ("tree", "import radixtide.components.api", "lies above"),
        ("configs", "from radixtide import tree", "lies above"),
        ("actors", "from radixtide import RadixKey", "lies above"),
        ("actors", "import radixtide", "lies above"),
        ("components", "def f():\n    from radixtide.cli import main", "lies above"),
        ("components", "from asyncio import Queue", "must not know asyncio"),
        ("components", "import anyio.abc", "must not know anyio"),
        ("tiers", "from radixtide.tree.key import RadixKey", "must not know radixtide.tree"),
        ("tree", "from .key import RadixKey", "relative import"),
        ("actors", "from tree.key import RadixKey", "second copy"),
    ],
)
def test_a_planted_wrong_import_is_found(
    tmp_path: Path, room: str, line: str, complaint: str
) -> None:
    (tmp_path / room / "deep").mkdir(parents=True)
    (tmp_path / room / "deep" / "planted.py").write_text(f'"""Doc."""\n\n{line}\n')
    (problem,) = wrong_imports(tmp_path)
    assert problem.startswith(f"{room}/deep/planted.py:")
    assert complaint in problem


def test_downward_and_foreign_imports_pass(tmp_path: Path) -> None:
    (tmp_path / "actors").mkdir()
    (tmp_path / "actors" / "fine.py").write_text(
        "import asyncio\nimport torch\nfrom radixtide.tree.key import RadixKey\n"
        "from radixtide.actors.messages import Match\nfrom radixtide import configs\n"
    )
    assert wrong_imports(tmp_path) == []


def test_room_of_names() -> None:
    assert [room_of(f"radixtide.{room}.x") for room in ROOMS] == [
        "radixtide" if room == "radixtide" else room for room in ROOMS
    ]
    assert room_of("radixtide") == "radixtide"
    assert room_of("radixtide.blocking") == "radixtide"
    assert room_of("torch.cuda") is None
