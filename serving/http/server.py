"""The server as a whole: a socket, connections with bounds, the model's coming and the end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Final

import anyio
import msgspec
import uvicorn
from anyio.abc import TaskStatus
from starlette.applications import Starlette

from radixtide.configs.errors import ConfigError
from radixtide.configs.schema import CacheConfig, PinsConfig
from radixtide.serving.engine import Engine
from radixtide.serving.errors import EngineFailed
from radixtide.serving.geometry import cache_config
from radixtide.serving.http.app import make_app
from radixtide.serving.http.config import ServeConfig, ServerConfig
from radixtide.serving.http.connections import connection_class
from radixtide.serving.http.service import Service
from radixtide.serving.models import LoadedModel, load_model

LOOK_S: Final = 1.0
"""How often it is looked whether the engine still lives."""

DRAIN_LOOK_S: Final = 0.05
"""How often it is looked whether the last answers have ended."""

LAST_S: Final = 2
"""Time that streams have to tell their clients of the end, when their grace is over."""


def open_socket(config: ServerConfig) -> socket.socket:
    """Return a socket that listens where `config` says.

    Raises ConfigError where that can not be: the port is taken, or the host is none of this
    machine.
    """
    where = f"{config.host}:{config.port}"
    try:
        ((family, _, _, _, address), *_) = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        opened = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"server.host: {where} is no address: {error.strerror}") from None
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(config.connections_max)
        opened.setblocking(False)
    except OSError as error:
        opened.close()
        raise ConfigError(
            f"server.port: can not listen on {where}: {error.strerror}; choose another port"
        ) from None
    return opened


class Server(uvicorn.Server):
    """Uvicorn's server that ends in order: running answers get their grace, then are told.

    ``stop`` begins the end; a second one does not wait for anybody. ``listening`` and
    ``ended`` are set when that is so.
    """

    def __init__(self, app: Starlette, config: ServerConfig) -> None:
        service: Service = app.state.service
        self._service = service
        self._grace_s = config.grace_s
        self.listening = anyio.Event()
        self.ended = anyio.Event()
        super().__init__(
            uvicorn.Config(
                app,
                http=connection_class(config),
                ws="none",
                loop="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=config.idle_timeout_s,
                timeout_graceful_shutdown=int(config.grace_s) + 1 + LAST_S,
                h11_max_incomplete_event_size=config.head_bytes_max,
                backlog=config.connections_max,
            )
        )

    def stop(self) -> None:
        """Begin to end; called again, end at once."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on `sockets` until it is stopped."""
        try:
            await super().serve(sockets)
        finally:
            self.ended.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing new, wait for what runs, and tell those that are left.

        The port answers meanwhile, with 503: so a balancer learns that this server is going.
        """
        service = self._service
        service.close()
        async with anyio.create_task_group() as group:
            group.start_soon(self._end_late)
            # ASYNC110: `force_exit` is a flag that uvicorn looks at as well, and no event.
            while (  # noqa: ASYNC110
                service.answering and not service.ended.is_set() and not self.force_exit
            ):
                await anyio.sleep(DRAIN_LOOK_S)
            if self.force_exit:
                # Who still listens is told why, and that it is no use to ask here again.
                service.ended.set()
                await anyio.sleep(DRAIN_LOOK_S)
            await super().shutdown(sockets)
            group.cancel_scope.cancel()

    async def _end_late(self) -> None:
        await anyio.sleep(self._grace_s)
        self._service.ended.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to :func:`serve`, which has the engine to close."""
        yield


Tell = Callable[[str], None]
"""Takes a line that says what is going on, for a person."""


async def serve(config: ServeConfig, tell: Tell) -> None:
    """Load the model, and serve it until SIGINT or SIGTERM; the port answers from the beginning.

    To be run in the main thread. A second signal ends it without waiting for anybody.

    Raises:
        ConfigError: the port, the model or the cache can not be had; says why.
        EngineFailed: it served, and then could no more.
    """
    opened = open_socket(config.server)
    app = make_app(config=config.server)
    server = Server(app, config.server)
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        await group.start(_listen, server, tell)
        # Whoever reads this may send a signal at once.
        tell(f"listening on {url_of(opened)}, loading {config.model}")
        group.start_soon(server.serve, [opened])
        try:
            async with model_behind(config, app.state.service, server.ended) as engine:
                tell(f"ready: {app.state.service.model_name}")
                await until_over(server, engine)
        except StoppedWhileLoading:
            pass
        except Exception as error:  # noqa: BLE001 - raised below, when the server has ended
            failure = error
        server.stop()
        await server.ended.wait()
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


class StoppedWhileLoading(Exception):
    """The server ended before its model was there."""


@asynccontextmanager
async def model_behind(
    config: ServeConfig, service: Service, ended: anyio.Event
) -> AsyncGenerator[Engine]:
    """Load the model, and have an engine serve it for the length of the block.

    Raises:
        ConfigError: it can not be loaded, or no cache can be made for it.
        StoppedWhileLoading: `ended` was set first. The thread that loads ends with the process.
    """
    model = await _load(config, ended)
    async with Engine(model, make_cache_config(model, config), config.engine) as engine:
        service.open(engine, model, config.model_name)
        yield engine


def make_cache_config(model: LoadedModel, config: ServeConfig) -> CacheConfig:
    """Return the cache for `model` with the sizes that `config` names.

    Raises ConfigError where they make no cache.
    """
    sizes = config.cache
    found = cache_config(
        model,
        tokens=sizes.tokens,
        page_size=sizes.page_size,
        window_tokens=sizes.window_tokens,
        states=sizes.states,
        host_ratio=sizes.host_ratio or None,
        storage=sizes.storage,
        max_requests=config.engine.max_running,
    )
    return msgspec.structs.replace(found, pins=PinsConfig(budget=sizes.pin_tokens))


async def _load(config: ServeConfig, ended: anyio.Event) -> LoadedModel:
    """Load the model in a thread that the process does not wait for at its end."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[LoadedModel] = loop.create_future()

    def tell(model: LoadedModel | None, error: Exception | None) -> None:
        if outcome.done():
            return
        if model is not None:
            outcome.set_result(model)
        elif error is not None:
            outcome.set_exception(error)

    def work() -> None:
        model: LoadedModel | None = None
        failure: Exception | None = None
        try:
            model = load_model(config.model, dtype=config.dtype, device=config.device)
        except Exception as error:  # noqa: BLE001 - raised where the model is waited for
            failure = error
        # The loop may be gone by now, as nobody waited.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, model, failure)

    threading.Thread(target=work, name="radixtide-load-model", daemon=True).start()
    waiting = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait((outcome, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not outcome.done():
            outcome.cancel()
    if outcome.cancelled():
        raise StoppedWhileLoading
    return outcome.result()


async def until_over(server: Server, engine: Engine) -> None:
    """Return when the server has ended. Raises EngineFailed where the engine did so before."""
    while not server.ended.is_set():
        if engine.failed:
            raise EngineFailed("the engine has failed: nothing is served any more; see the log")
        with anyio.move_on_after(LOOK_S):
            await server.ended.wait()


async def _listen(
    server: Server, tell: Tell, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            tell("ending at once" if server.should_exit else "ending when running answers have")
            server.stop()


def url_of(opened: socket.socket) -> str:
    """Return the URL of the server that listens on `opened`."""
    host, port = opened.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
