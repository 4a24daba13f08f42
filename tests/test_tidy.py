"""Rules of the house that no linter knows, and for each a planted mistake that it must find."""

from collections.abc import Iterator

import pytest

from support.rooms import ROOT, present_rooms, sources
from support.tidy import (
    CHECKS,
    EXCEPTIONS,
    LINES_MAX,
    Check,
    bare_tasks,
    clocks_and_dice,
    fixed_sleeps,
    long_files,
    prints,
    silent_ignores,
)

FOLDERS = (*present_rooms(), "tests", "benchmarks", "examples")


def files() -> Iterator[str]:
    for folder in FOLDERS:
        for path in sources(ROOT, folder):
            yield path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_no_file_breaks_a_rule(check: Check) -> None:
    paths = list(files())
    assert len(paths) > 30
    assert [
        problem
        for path in paths
        for problem in check(path, (ROOT / path).read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("check", "path", "source"),
    [
        (prints, "actors/a.py", "def f():\n    print(1)\n"),
        (clocks_and_dice, "tree/a.py", "import time\n"),
        (clocks_and_dice, "actors/a.py", "from time import monotonic\n"),
        (clocks_and_dice, "components/a.py", "import random\n"),
        (clocks_and_dice, "tiers/a.py", "import numpy as np\nx = np.random.default_rng()\n"),
        (bare_tasks, "actors/a.py", "asyncio.create_task(f())\n"),
        (bare_tasks, "actors/a.py", "loop.create_task(f())\n"),
        (bare_tasks, "tiers/a.py", "from asyncio import ensure_future\nensure_future(f())\n"),
        (fixed_sleeps, "tests/a.py", "await asyncio.sleep(0.1)\n"),
        (fixed_sleeps, "tests/a.py", "time.sleep(1)\n"),
        (long_files, "tree/a.py", "\n" * (LINES_MAX + 1)),
        (silent_ignores, "tree/a.py", "x = 1  # type: ignore\n"),
        (silent_ignores, "tree/a.py", "# one line is a table\nx = 1  # noqa\n"),
        (silent_ignores, "tree/a.py", "x = 1  # noqa: E501\n"),
        (silent_ignores, "tree/a.py", "x = f()  # type: ignore[no-any-return]\n"),
    ],
)
def test_a_planted_mistake_is_found(check: Check, path: str, source: str) -> None:
    (problem,) = check(path, source)
    assert problem.startswith(path)


@pytest.mark.parametrize(
    ("check", "path", "source"),
    [
        (prints, "cli/a.py", "print(1)\n"),
        (clocks_and_dice, "benchmarks/a.py", "import time, random\n"),
        (clocks_and_dice, "actors/a.py", "from datetime import timedelta\nself.clock.time()\n"),
        (clocks_and_dice, "actors/a.py", "from time import perf_counter\n"),
        (bare_tasks, "cli/a.py", "asyncio.create_task(f())\n"),
        (bare_tasks, "actors/a.py", "task_group.create_task(f())\n"),
        (fixed_sleeps, "tests/a.py", "await asyncio.sleep(0)\n"),
        (long_files, "tree/a.py", "\n" * LINES_MAX),
        (
            silent_ignores,
            "tree/a.py",
            "x = f()  # type: ignore[no-any-return]  # untyped library\n",
        ),
        (silent_ignores, "tree/a.py", "x = f()  # noqa: E501 - a table reads better in one line\n"),
    ],
)
def test_what_is_allowed_passes(check: Check, path: str, source: str) -> None:
    assert check(path, source) == []


def test_exceptions_are_few_and_needed() -> None:
    assert len(EXCEPTIONS) <= 2
    for path in EXCEPTIONS:
        assert (ROOT / path).read_text(encoding="utf-8").count("\n") > LINES_MAX, path
