"""docs/serving.md lists every limit with its default, and every file that is to be read."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

from radixtide.cli.chat import chat
from radixtide.cli.serve import serve
from radixtide.cli.session import session
from radixtide.serving.config import EngineConfig
from radixtide.serving.http.app import make_app
from radixtide.serving.http.config import (
    CacheSizes,
    ServeConfig,
    ServerConfig,
    parse_serve_config,
)
from support.rooms import ROOT
from support.server import MODEL, ThreadedServer

PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE, flags=re.MULTILINE))
README = (ROOT / "README.md").read_text(encoding="utf-8")
REAL_NAME = "smollm2-135m-instruct"
CURL = re.compile(r"curl -s http://127\.0\.0\.1:8000(\S+) .*?-d '(.*?)'", re.DOTALL)
SECTIONS = ("server", "engine", "cache")


def shown(default: Any) -> str:
    """Return how the page writes a default."""
    if isinstance(default, bool):
        return str(default).lower()
    return f'`"{default}"`' if isinstance(default, str) else str(default)


def keys(kind: type[msgspec.Struct]) -> list[tuple[str, Any]]:
    fields = msgspec.structs.fields(kind)
    return [(field.name, field.default) for field in fields if field.name not in SECTIONS]


@pytest.mark.parametrize("kind", [ServeConfig, EngineConfig, ServerConfig, CacheSizes])
def test_every_key_is_listed_with_its_default(kind: type[msgspec.Struct]) -> None:
    for name, default in keys(kind):
        assert name in ROWS, f"{name} is not listed"
        if default is None or default is msgspec.NODEFAULT:
            assert ROWS[name] in ("none", "in proportion"), name
        else:
            assert ROWS[name] == shown(default), name


def test_every_listed_key_is_one() -> None:
    known = {
        name
        for kind in (ServeConfig, EngineConfig, ServerConfig, CacheSizes)
        for name, _ in keys(kind)
    }
    assert set(ROWS) == known


def test_every_file_of_the_engine_is_read_or_left_out_by_name() -> None:
    tour = PAGE.split("## Read it in an hour")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+\.py)`", tour))
    files = {path.name for path in (ROOT / "serving").glob("*.py")} - {"__init__.py"}
    assert named == files


def test_the_tour_takes_an_hour() -> None:
    tour = PAGE.split("## Read it in an hour")[1].split("\n## ")[0]
    minutes = [int(number) for number in re.findall(r"^\| (\d+) \|", tour, flags=re.MULTILINE)]
    assert sum(minutes) <= 60
    assert len(minutes) >= 5


def test_the_default_port_and_model_are_those_of_the_examples() -> None:
    assert f"http://127.0.0.1:{ServerConfig().port}/v1" in PAGE
    assert Path(ROOT / "configs" / "serve.toml").is_file()


def blocks(language: str, text: str = PAGE) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    with ThreadedServer() as opened:
        yield opened
        opened.assert_nothing_held()


def test_the_example_of_the_official_client_streams_an_answer(
    server: ThreadedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = blocks("python")
    assert REAL_NAME in example
    ours = example.replace(REAL_NAME, MODEL).replace("http://127.0.0.1:8000", server.url)
    exec(compile(ours, "serving.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("text", [PAGE, README], ids=["serving.md", "README.md"])
def test_what_curl_sends_is_answered(server: ThreadedServer, text: str) -> None:
    path, body = CURL.findall(text)[0]
    asked = json.loads(body)
    assert asked["model"] == REAL_NAME
    answer = server.post(path, asked | {"model": MODEL}).json()
    assert answer["usage"]["completion_tokens"] > 0


def test_the_endpoints_are_those_of_the_app() -> None:
    table = PAGE.split("## The server")[1].split("**Clients.**")[0]
    rows = "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    listed = set(re.findall(r"(/[\w/]*)", rows))
    paths = {route.path for route in make_app().routes if isinstance(route, Route)}
    files = {path for path in paths if path.startswith("/page")}
    assert listed == {path.replace("{name:path}", "NAME") for path in paths - files}


def test_the_clients_in_the_example_are_a_config() -> None:
    (shown,) = blocks("toml")
    keys = parse_serve_config(shown).server.keys
    assert keys["operator"].admin
    assert keys["team-a"].cache_salt == "team-a"


@pytest.mark.parametrize("command", [serve, chat, session], ids=lambda command: command.__name__)
def test_every_flag_of_the_commands_is_told(command: Callable[..., None]) -> None:
    for name in inspect.signature(command).parameters:
        flag = f"--{name.replace('_', '-')}"
        assert flag in PAGE, flag
