"""What the README shows is what happens."""

import ast
import inspect
import re
import subprocess
import sys
from types import FunctionType

from typer.main import get_group

import radixtide
from radixtide.cli import replay as replay_module
from radixtide.cli.main import app
from radixtide.cli.replay import replay
from radixtide.cli.session_record import BARS, Case
from radixtide.configs.schema import FullPoolConfig, PoolsConfig
from support.rooms import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "first_match.py"
SHOWN = ("AllocateParams", "MatchPrefixParams", "Request")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_program_is_the_example_and_prints_what_is_said() -> None:
    assert blocks("python")[0] == EXAMPLE.read_text(encoding="utf-8")
    code = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(code) <= 15
    result = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert blocks("console")[0] == f"$ python examples/first_match.py\n{result.stdout}"


async def test_the_life_of_a_request_runs_as_shown_and_leaves_nothing_held() -> None:
    program = compile(
        blocks("python")[1], "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    )
    tokens = list(range(100))
    async with radixtide.UnifiedRadixCache(
        radixtide.CacheConfig(pools=PoolsConfig(full=FullPoolConfig(size=1024)))
    ) as cache:
        names = {name: getattr(radixtide, name) for name in SHOWN}
        names |= {"cache": cache, "tokens": tokens, "computed": 64, "total": 100}
        await FunctionType(program, names)()
        stats = await cache.stats()
        assert (stats.requests, stats.receipts) == (0, 0)
        assert stats.pools["full"]["device"].evictable == 96
        assert (await cache.audit()).ok


def test_the_check_that_is_shown_answers_as_shown() -> None:
    command, answer = blocks("console")[1].splitlines()[:2]
    arguments = command.removeprefix("$ radixtide ").split()
    result = subprocess.run(
        [sys.executable, "-m", "radixtide.cli.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == f"{answer}\n"


def test_every_linked_file_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_target_that_is_named_is_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`make (\w+)`|^make (\w+)", README, flags=re.MULTILINE))
    targets = {first or second for first, second in named}
    assert {"run", "test", "check"} <= targets
    assert [target for target in targets if f"\n{target}:" not in makefile] == []


def test_every_flag_of_replay_is_told_and_no_other() -> None:
    page = (ROOT / "docs" / "replay.md").read_text(encoding="utf-8")
    flags = set(re.findall(r"`(--[\w-]+)", page))
    options = set(re.findall(r"--[\w-]+", inspect.getsource(replay_module)))
    names = {f"--{name.replace('_', '-')}" for name in inspect.signature(replay).parameters}
    assert {"--json", "--report", "--sequential"} <= flags
    assert flags - {"--no-uvloop"} == (options | names) - {"--trace", "--holds-bytes"}


def test_every_command_that_is_shown_is_one() -> None:
    shown = set(
        re.findall(r"^(?:\$ )?radixtide (\w+)|`radixtide (\w+)", README, flags=re.MULTILINE)
    )
    commands = {first or second for first, second in shown}
    known = set(get_group(app).commands)
    assert {"replay", "simulate", "plan"} <= commands
    assert commands <= known


def test_the_figures_of_the_session_are_within_what_is_promised() -> None:
    row = r"^\| (.+?) \| ([\d.]+) s \| ([\d.]+) % \|"
    rows = {name: (float(a), float(b)) for name, a, b in re.findall(row, README, re.MULTILINE)}
    cold, _ = rows["new: cold"]
    cases = {"cached on the device": Case.DEVICE, "in host memory only": Case.HOST}
    assert len(rows) == 4
    for name, (seconds, share) in rows.items():
        assert abs(100 * seconds / cold - share) < 1, name
        if name in cases:
            assert share <= 100 * BARS[cases[name]], name
