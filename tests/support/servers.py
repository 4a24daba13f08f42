"""Real servers for tests of storage: on loopback, on ports that are free, killed at the end.

A test asks for one with a fixture (`redis_server`, `s3_server`, `mooncake_server`); a process has
one of each, and a test that kills it starts it again. Where a program is missing the test is
skipped and says what to install; with ``CI`` or ``RADIXTIDE_REQUIRE_SERVERS`` in the environment it
fails instead.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from radixtide.tiers.storage import StorageBackend

START_S = 30.0
PAUSE_S = 0.02
LOOPBACK = "127.0.0.1"


def unavailable(reason: str) -> NoReturn:
    """Skip the test, or fail it where everything must be there."""
    if os.environ.get("CI") or os.environ.get("RADIXTIDE_REQUIRE_SERVERS"):
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    """Return a port of the loopback that nobody listens on now."""
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return int(found.getsockname()[1])


def wait_for(condition: Callable[[], bool], what: str, limit_s: float = START_S) -> None:
    """Return when `condition` holds, looked at every few milliseconds; TimeoutError after that."""
    pause = threading.Event()
    for _ in range(int(limit_s / PAUSE_S)):
        if condition():
            return
        pause.wait(PAUSE_S)
    raise TimeoutError(what)


class Server:
    """A server program that can be killed and started again with what it kept."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    @property
    def address(self) -> str:
        """Host and port, as in a URL."""
        return f"{LOOPBACK}:{self.port}"

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it, and return when it answers."""
        with self._turn, (self.folder / f"{self.name}.log").open("ab") as log:
            assert self.process is None
            self.process = subprocess.Popen(
                self.command(), stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )
        wait_for(self.answers, f"{self.name} does not answer; see {self.folder}")

    def answers(self) -> bool:
        """Whether it takes connections."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} ended; see its log in {self.folder}"
        try:
            socket.create_connection((LOOPBACK, self.port), timeout=1.0).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """End it as a crash does: nothing is written any more."""
        with self._turn:
            if self.process is not None:
                self.process.kill()
                self.process.wait()
                self.process = None


class RedisServer(Server):
    """Debian's ``redis-server``, with a log of what it was told, so that a restart has it."""

    def command(self) -> list[str]:
        return [
            _program("redis-server", "apt-get install redis-server"),
            *("--port", str(self.port), "--bind", LOOPBACK, "--dir", str(self.folder)),
            *("--appendonly", "yes", "--save", "", "--databases", "4"),
        ]


class S3Server(Server):
    """``moto``: S3 in memory; a restart has an empty bucket."""

    bucket = "pages"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", LOOPBACK, "-p", str(self.port)]

    def start(self) -> None:
        super().start()
        connection = HTTPConnection(LOOPBACK, self.port, timeout=START_S)
        connection.request("PUT", f"/{self.bucket}")
        assert connection.getresponse().status == 200
        connection.close()


class MooncakeMaster(Server):
    """Mooncake's master; the memory belongs to its clients."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.metrics = free_port()

    def command(self) -> list[str]:
        return [
            _program("mooncake_master", "pip install mooncake-transfer-engine-non-cuda"),
            *(f"-rpc_port={self.port}", f"-rpc_address={LOOPBACK}", "-rpc_thread_num=2"),
            *(f"-metrics_port={self.metrics}", f"-metrics_host={LOOPBACK}"),
            "-client_ttl=3",
        ]


def _program(name: str, how: str) -> str:
    """Return where a program is: in the path, or beside this interpreter."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        unavailable(f"{name} is not installed ({how})")
    return found


def _serve(server: Server) -> Iterator[Server]:
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a Redis server."""
    yield from _serve(RedisServer("redis", tmp_path_factory.mktemp("redis")))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start an S3 server with a bucket, and credentials in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "tests")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
        yield from _serve(S3Server("s3", tmp_path_factory.mktemp("s3")))


@pytest.fixture(scope="session")
def mooncake_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a Mooncake master."""
    try:
        importlib.import_module("mooncake.store")
    except ImportError as error:
        unavailable(
            f"Mooncake's client can not be loaded: {error} (pip install "
            "mooncake-transfer-engine-non-cuda; apt-get install libibverbs1 libnl-3-200 "
            "libnl-route-3-200)"
        )
    yield from _serve(MooncakeMaster("mooncake", tmp_path_factory.mktemp("mooncake")))


@pytest.fixture(scope="session")
def mooncake_shared(mooncake_server: Server) -> Iterator[StorageBackend]:
    """Open a Mooncake client that lends memory, for all tests."""
    from radixtide.tiers.storage import open_storage

    store = open_storage(f"mooncake://{mooncake_server.address}?segment=128MiB&buffer=8MiB")
    asyncio.run(store.open())
    yield store
    asyncio.run(store.close())
