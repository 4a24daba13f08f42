"""A real server on loopback for tests: in a thread, or as the command that people run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import anyio
import httpx
from openai import AsyncOpenAI, OpenAI

from radixtide.configs.schema import CacheConfig
from radixtide.serving.config import EngineConfig
from radixtide.serving.engine import Engine
from radixtide.serving.geometry import cache_config
from radixtide.serving.http.app import make_app
from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.server import Server, open_socket, url_of
from radixtide.serving.http.service import Service
from radixtide.serving.models import LoadedModel, load_model
from support.servers import wait_for

START_S = 60.0
MODEL = "random:llama"


class ThreadedServer:
    """A server of a model of random weights, in a thread with its own loop."""

    def __init__(
        self,
        config: ServerConfig | None = None,
        engine: EngineConfig | None = None,
        cache: CacheConfig | None = None,
        *,
        model: LoadedModel | None = None,
        ready: bool = True,
        tokens: int = 8192,
        send_buffer: int | None = None,
    ) -> None:
        self.config = config or ServerConfig(port=0)
        self.model = model or load_model(MODEL)
        self._engine_config = engine or EngineConfig()
        self._cache = cache or cache_config(self.model, tokens=tokens, page_size=8)
        self._ready = ready
        self._send_buffer = send_buffer
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, name="served", daemon=True)
        self._failure: BaseException | None = None
        self.engine: Engine | None = None
        self.service: Service
        self.server: Server
        self.url = ""
        # One client for all: making one reads the certificates of the whole world.
        self._http = httpx.Client(timeout=START_S, trust_env=False, verify=False)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._begun.wait(START_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()
        self.stop()
        self._thread.join(START_S)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Let the server end, as a signal would; returns at once."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.server.stop)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised where the test joins the thread
            self._failure = error
        finally:
            self._begun.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        opened = open_socket(self.config)
        if self._send_buffer is not None:
            # Connections have it from the socket that they came by.
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer)
        self.url = url_of(opened)
        app = make_app(config=self.config)
        self.service = app.state.service
        self.server = Server(app, self.config)
        async with Engine(self.model, self._cache, self._engine_config) as engine:
            self.engine = engine
            if self._ready:
                self.open()
            async with anyio.create_task_group() as group:
                group.start_soon(self.server.serve, [opened])
                await self.server.listening.wait()
                self._begun.set()

    def open(self) -> None:
        """Let the server find its model ready; where that was put off."""
        assert self.engine is not None
        self.service.open(self.engine, self.model)

    def call(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run `work` on the server's loop, and return what it returns."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(START_S)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    @property
    def openai(self) -> OpenAI:
        """The official client, pointed at this server. Tries nothing twice."""
        return OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=START_S)

    @property
    def async_openai(self) -> AsyncOpenAI:
        """The same, for a loop."""
        return AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=START_S
        )

    def get(self, path: str, **options: Any) -> httpx.Response:
        """Ask for `path`."""
        return self._http.get(self.url + path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        """Send `body` to `path`: bytes as they are, all else as JSON."""
        if isinstance(body, bytes):
            return self._http.post(self.url + path, content=body, **options)
        return self._http.post(self.url + path, json=body, **options)

    def stats(self) -> dict[str, Any]:
        """Return what ``/stats`` says, to an admin where the server has keys."""
        answer = self.get("/stats", headers=self._as_admin()).raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def _as_admin(self) -> dict[str, str]:
        admins = [one.key for one in self.service.config.keys.values() if one.admin]
        return {"authorization": f"Bearer {admins[0]}"} if admins else {}

    def settled(self) -> dict[str, Any]:
        """Return ``/stats`` once no request is left, and what they held is given back."""
        found: list[dict[str, Any]] = []

        def quiet() -> bool:
            found.append(self.stats())
            return bool(found[-1]["running"] == found[-1]["waiting"] == 0)

        wait_for(quiet, "requests go on for ever")
        return found[-1]

    def assert_nothing_held(self) -> None:
        """Fail where anything is held, with nobody there."""
        assert self.settled()["held"] == {"slots": 0, "receipts": 0, "requests": 0}

    def assert_clean(self) -> None:
        """Fail where anything is held, or the cache is not sound, with nobody there."""
        self.assert_nothing_held()
        answer = self.post("/admin/audit", {}, headers=self._as_admin())
        assert answer.json() == {"ok": True, "violations": []}


@contextmanager
def raw(server: ThreadedServer) -> Iterator[socket.socket]:
    """Open a bare connection to the server."""
    with socket.create_connection(server.address, timeout=START_S) as opened:
        yield opened


def request_bytes(path: str, body: bytes, **headers: str) -> bytes:
    """Return a POST as bytes, its length told rightly unless `headers` say otherwise."""
    told = {
        "host": "here",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in told.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def read_answer(opened: socket.socket) -> tuple[int, dict[str, Any]]:
    """Return status and JSON of the answer on a connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = opened.recv(65_536)
        assert part, f"closed without an answer, after {data!r}"
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    assert length is not None, head
    while len(body) < int(length[1]):
        body += opened.recv(65_536)
    return int(head.split()[1]), json.loads(body)


class Command:
    """``radixtide`` with arguments as a process, with its output as it comes."""

    def __init__(self, *arguments: str, folder: Path, **environment: str) -> None:
        self.output = folder / "stdout"
        self.errors = folder / "stderr"
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                (sys.executable, "-m", "radixtide.cli.main", *arguments),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env={**os.environ, **environment},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()

    def wait_for_line(self, pattern: str, limit_s: float = START_S) -> re.Match[str]:
        """Return the first match of `pattern` in what it has written, once there is one."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            match = re.search(pattern, self.text())
            if match is not None:
                found.append(match)
            elif self.process.poll() is not None:
                raise AssertionError(f"it ended with {self.process.returncode}: {self.text()}")
            return bool(found)

        wait_for(look, f"{pattern} is not in {self.text()}", limit_s)
        return found[0]

    def text(self) -> str:
        """Return all it has written."""
        return self.output.read_text() + self.errors.read_text()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self, limit_s: float = START_S) -> int:
        """Return its exit status, once it has ended."""
        return self.process.wait(limit_s)
