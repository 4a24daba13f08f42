"""``radixtide chat``: turns of a conversation, from a pipe or a terminal, here or over a server."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from radixtide.cli.chat_talkers import ServerRefused, Taken
from radixtide.cli.main import app
from radixtide.configs.errors import ConfigError, InvalidInput
from radixtide.serving.http.config import ApiKey, ServerConfig
from support.server import MODEL, ThreadedServer
from support.servers import free_port, wait_for

NOTE = re.compile(
    r"(?P<prompt>[\d,]+) tokens in, (?P<cached>[\d,]+) cached(?: \((?P<tiers>[^)]*)\))?, "
    r"first token after [\d,]+ ms, (?P<out>[\d,]+) out in \d+\.\d s"
)


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    config = ServerConfig(port=0, keys={"me": ApiKey(key="my-own-secret", admin=True)})
    with ThreadedServer(config) as opened:
        yield opened


def run(*arguments: str, said: str, **environment: str) -> Result:
    """Run the command in this process, with `said` on its stdin, which is no terminal."""
    return CliRunner().invoke(
        app, ["chat", "--max-tokens", "8", *arguments], input=said, env=environment
    )


def notes(result: Result) -> list[re.Match[str]]:
    """Return what was told of each turn."""
    return list(NOTE.finditer(result.stderr))


def test_lines_of_a_pipe_are_turns_of_one_conversation() -> None:
    result = run("--model", MODEL, "--temperature", "0", said="hello\n\nand more\n")
    assert result.exit_code == 0, result.output
    first, second = notes(result)
    assert first["cached"] == "0"
    # The second turn repeats the first, which is in the cache in whole pages.
    assert int(second["cached"]) >= int(first["prompt"]) // 16 * 16
    assert second["tiers"] == f"{second['cached']} from device"
    assert int(second["prompt"]) > int(first["prompt"]) + int(first["out"])
    assert len(result.stdout.encode()) > 2
    assert "tokens in" not in result.stdout


def test_a_conversation_over_a_server(server: ThreadedServer) -> None:
    result = run(
        "--url",
        server.url,
        said="hello\nand more\n/new\nhello\n",
        RADIXTIDE_API_KEY="my-own-secret",
    )
    assert result.exit_code == 0, result.output
    first, second, third = notes(result)
    assert int(second["cached"]) > 0
    assert third["prompt"] == first["prompt"], "/new forgets what was said"
    assert int(third["cached"]) > 0, "the server has not forgotten"


def test_a_path_and_a_missing_scheme_are_no_obstacle(server: ThreadedServer) -> None:
    for url in (f"{server.url}/v1", f"{server.url}/", server.url.removeprefix("http://")):
        result = run("--url", url, "--api-key", "my-own-secret", said="")
        assert result.exit_code == 0, result.output
        assert MODEL in result.stderr


def test_a_refusal_of_the_server_is_told(server: ThreadedServer) -> None:
    result = run("--url", server.url, "--api-key", "another-one", said="hello\n")
    assert isinstance(result.exception, ServerRefused)
    assert "401 the API key is not known here" in str(result.exception)
    result = run("--url", server.url, "--api-key", "my-own-secret", said="x" * 9000 + "\n")
    assert isinstance(result.exception, ServerRefused)
    assert "shorten it" in str(result.exception)


def test_a_server_that_is_not_there_is_told() -> None:
    result = run("--url", f"http://127.0.0.1:{free_port()}", said="hello\n")
    assert isinstance(result.exception, ServerRefused)
    assert "is `radixtide serve` running there?" in str(result.exception)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "//"])
def test_what_is_no_url_is_told(url: str) -> None:
    assert isinstance(run("--url", url, said="").exception, InvalidInput)


def test_a_model_that_is_not_there_is_told() -> None:
    result = run("--model", "/no/such.gguf", said="")
    assert isinstance(result.exception, ConfigError)


def test_a_server_has_its_own_model() -> None:
    result = run("--url", "http://127.0.0.1:1", "--model", MODEL, said="")
    assert result.exit_code == 2
    assert "leave out" in result.stderr


@contextmanager
def scripted(*answers: bytes) -> Iterator[str]:
    """Serve fixed answers to posts, as other servers of the API do, or should not; yields a URL."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(b'{"data": [{"id": "other"}]}', "application/json")

        def do_POST(self) -> None:
            self._send(left.pop(0), "text/event-stream")

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{other.server_address[1]}"
        finally:
            other.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b'data: {"choices": [{"delta": {"content": "half"}}]}\n\n', "the answer broke off"),
        (b'data: {"error": {"message": "no more"}}\n\n', "no more"),
        (b": a comment\n\nevent: x\n\n", "the answer broke off"),
    ],
)
def test_an_answer_that_breaks_off_is_told(answer: bytes, told: str) -> None:
    with scripted(answer) as url:
        result = run("--url", url, said="hello\n")
        assert isinstance(result.exception, ServerRefused)
        assert told in str(result.exception)


def test_other_servers_tell_less_and_are_understood() -> None:
    answer = (
        b'data: {"choices": [{"delta": {"role": "assistant"}}]}\n\n'
        b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
        b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 1}}\n\n'
        b"data: [DONE]\n\n"
    )
    with scripted(answer) as url:
        result = run("--url", url, said="hello\n")
        assert result.exit_code == 0, result.output
        assert result.stdout == "hi\n"
        assert "9 tokens in, 0 cached" in result.stderr


def test_what_a_turn_took_names_the_tiers_that_had_something() -> None:
    taken = Taken(2000, {"device": 1024, "host": 512, "storage": 0}, 30, 0.0123, 4.56)
    assert str(taken) == (
        "2,000 tokens in, 1,536 cached (1,024 from device, 512 from host), "
        "first token after 12 ms, 30 out in 4.6 s"
    )


class Terminal:
    """``radixtide chat`` on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._mine, theirs = pty.openpty()
        self.process = subprocess.Popen(
            (sys.executable, "-m", "radixtide.cli.main", "chat", *arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(theirs)
        self.seen = ""

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._mine)

    def type(self, text: str) -> None:
        os.write(self._mine, text.encode())

    def expect(self, pattern: str, limit_s: float = 30.0) -> None:
        """Read until `pattern` is there, and forget what stands before its end."""
        while (match := re.search(pattern, self.seen)) is None:
            ready, _, _ = select.select([self._mine], [], [], limit_s)
            assert ready, f"no {pattern!r} in {self.seen!r}"
            try:
                self.seen += os.read(self._mine, 65_536).decode("utf-8", "replace")
            except OSError:
                raise AssertionError(f"ended without {pattern!r}: {self.seen!r}") from None
        self.seen = self.seen[match.end() :]


def test_on_a_terminal_ctrl_c_stops_an_answer_and_a_mistake_can_be_said_again(
    server: ThreadedServer,
) -> None:
    terminal = Terminal("--url", server.url, "--api-key", "my-own-secret", "--max-tokens", "4000")
    try:
        terminal.expect("/quit ends")
        terminal.expect("> ")
        terminal.type("x" * 2500 + "\n")
        # A terminal's line holds 4,096 letters: longer prompts come in several turns.
        terminal.expect("x\r\n")
        # That was the terminal's echo. A Ctrl-C before it is taken would be one at the prompt.
        wait_for(lambda: server.service.answering > 0, "the question does not arrive")
        os.kill(terminal.process.pid, signal.SIGINT)
        terminal.expect("> ")
        terminal.type("/help\n")
        terminal.expect("Ctrl-C stops an answer")
        terminal.expect("> ")
        terminal.type("/new\n")
        terminal.expect("a new conversation")
        terminal.expect("> ")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()
    server.assert_clean()
