"""Nothing in the tree and the actors names a component, so that a new one changes neither."""

from __future__ import annotations

import pytest

from support.names import COMPONENTS, ENGLISH, FIELDS, POOL_FILES, mentions
from support.rooms import ROOT, sources

ROOMS = ("tree", "actors", "tiers")


@pytest.mark.parametrize("room", ROOMS)
def test_no_component_is_named(room: str) -> None:
    paths = list(sources(ROOT, room))
    assert len(paths) > 5
    assert [
        problem
        for path in paths
        for problem in mentions(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("full = 1", "full"),
        ("swa_slots = 1", "swa"),
        ("def evict_mamba(): pass", "mamba"),
        ("class SwaThing: pass", "swa"),
        ("x = ComponentType.FULL", "full"),
        ("x = pools.full.size", "full"),
        ("from radixtide.components.mamba import MambaComponent", "mamba"),
        ("f(SWA=1)", "swa"),
        ("x = 'full'", "full"),
        ('x = cells["swa"]', "swa"),
        ('x = f"pool {name} of mamba"', "mamba"),
        ("x = 'see pools.full.size'", "full"),
        ("x = \"the 'full' component\"", "full"),
        ("x = 'Full has no slot'", "full"),
        ("x = 1\nx = 'swa_kept'", "swa"),
        ("x = 'cow_mamba needs mamba'", "mamba"),
        ('def f():\n    """Say full."""\n    return "full"', "full"),
    ],
)
@pytest.mark.parametrize("room", ROOMS)
def test_a_planted_mention_is_found(room: str, source: str, name: str) -> None:
    problems = mentions(f"{room}/planted.py", f"{source}\n")
    assert problems
    assert all(problem.startswith(f"{room}/planted.py:") for problem in problems)
    assert any(problem.endswith(f"names the component {name}") for problem in problems)


@pytest.mark.parametrize(
    "source",
    [
        "# full, swa and mamba",
        '"""Full, swa and mamba."""',
        'def f():\n    """The full pool."""',
        'x = 1\n"""Slots of Full."""',
        "raise MailboxFull('the mailbox is full')",
        "x = np.full(3, -1)",
        "x = torch.full((3,), 0)",
        "x = p.cow_mamba and full_kv_hit_length",
        "x = 'cow_mamba without req'",
        "fully = swallow = careful",
    ],
)
def test_what_is_no_mention_passes(source: str) -> None:
    assert mentions("actors/planted.py", f"{source}\n") == []


def test_a_pool_file_may_name_what_its_pool_is_for_and_nothing_else() -> None:
    assert mentions("tiers/state_pool.py", "class MambaStates: pass\n") == []
    assert mentions("tiers/state_pool.py", "swa = 1\n") != []
    assert mentions("tiers/slots.py", "class MambaStates: pass\n") != []
    for path in POOL_FILES:
        assert (ROOT / path).is_file(), path


def test_every_exception_is_still_needed() -> None:
    text = "\n".join(
        path.read_text(encoding="utf-8")
        for room in ("actors", "components", "configs")
        for path in sources(ROOT, room)
    )
    assert [name for name in sorted(FIELDS | ENGLISH) if name not in text] == []
    assert all(name == name.lower() for name in FIELDS)
    assert all(any(part in name for part in COMPONENTS) for name in FIELDS)
