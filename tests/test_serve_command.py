"""``radixtide serve`` as people run it: its port, its messages, its signals, its exit status."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import httpx
import openai
import pytest
from typer.testing import CliRunner

from radixtide.cli.main import app
from radixtide.configs.errors import ConfigError
from support.server import MODEL, Command
from support.servers import free_port, wait_for

READY_S = 90.0
ARGUMENTS = ("serve", "--port", "0", "--model", MODEL)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    with Command(*ARGUMENTS, folder=tmp_path) as started:
        yield started


def url_of(command: Command) -> str:
    """Return where it listens: the only line on stdout."""
    command.wait_for_line(r"listening on http", READY_S)
    wait_for(lambda: command.output.read_text().endswith("\n"), "no URL on stdout")
    (line,) = command.output.read_text().splitlines()
    return line


def test_it_serves_from_the_first_moment_to_the_last(command: Command) -> None:
    url = url_of(command)
    first = httpx.get(f"{url}/health")
    assert first.json()["status"] in ("loading", "ready")
    assert first.status_code == (200 if first.json()["status"] == "ready" else 503)
    command.wait_for_line(f"ready: {MODEL}", READY_S)
    assert httpx.get(f"{url}/health").status_code == 200
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    stream = client.completions.create(
        model=MODEL, prompt="end", max_tokens=60, stream=True, extra_body={"ignore_eos": True}
    )
    chunks = list(islice(stream, 2))
    command.signal(signal.SIGTERM)
    chunks += stream
    assert chunks[-1].choices[0].finish_reason == "length"
    assert command.end() == 0
    assert "ending when running answers have" in command.errors.read_text()
    assert "Traceback" not in command.text()


def test_ctrl_c_while_the_model_loads_ends_it(command: Command) -> None:
    url_of(command)
    command.signal(signal.SIGINT)
    assert command.end() == 0
    assert "Traceback" not in command.text()


def test_a_model_that_is_not_there_ends_it_with_a_reason(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.gguf")
    result = CliRunner().invoke(app, ["serve", "--port", "0", "--model", missing])
    assert isinstance(result.exception, ConfigError)
    assert "none.gguf" in str(result.exception)
    assert "listening on http://127.0.0.1:" in result.stderr


def test_a_wrong_config_is_told_before_anything_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text("[server]\nprot = 1\n")
    result = CliRunner().invoke(app, ["serve", "--config", str(path)])
    assert isinstance(result.exception, ConfigError)
    assert "server.prot: unknown key; did you mean port?" in str(result.exception)


def test_a_port_that_is_taken_ends_it_with_a_reason(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["serve", "--port", str(port), "--model", MODEL])
    assert isinstance(result.exception, ConfigError)
    assert "choose another port" in str(result.exception)


def test_help_of_both_commands_loads_neither_torch_nor_a_server() -> None:
    program = (
        "import sys\n"
        "from radixtide.cli.main import app\n"
        "from typer.testing import CliRunner\n"
        "for name in ('serve', 'chat'):\n"
        "    result = CliRunner().invoke(app, [name, '--help'])\n"
        "    assert result.exit_code == 0, result.output\n"
        "heavy = {'torch', 'transformers', 'starlette', 'uvicorn', 'prometheus_client'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
