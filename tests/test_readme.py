"""What the README shows is what happens."""

import ast
import inspect
import re
import subprocess
import sys
from types import FunctionType

import radixtide
from radixtide.cli import replay as replay_module
from radixtide.cli.replay import replay
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


def test_every_flag_that_is_listed_is_an_option_of_replay() -> None:
    flags = set(re.findall(r"^\| `(--[\w-]+)", README, flags=re.MULTILINE))
    options = set(re.findall(r"--[\w-]+", inspect.getsource(replay_module)))
    names = {f"--{name.replace('_', '-')}" for name in inspect.signature(replay).parameters}
    assert {"--json", "--report", "--sequential"} <= flags
    assert flags <= options | names
