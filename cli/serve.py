"""``radixtide serve``: a model behind the cache, and the OpenAI API in front of it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from radixtide.serving.http.config import ServeConfig

Config = Annotated[
    Path | None,
    typer.Option(help="Config of model, engine, cache and server.", show_default="serve.toml"),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="smollm2, a Hugging Face folder, a .gguf file, or random:llama and its like.",
        show_default="the config's",
    ),
]


def serve(
    host: Annotated[
        str | None, typer.Option(help="Where to listen.", show_default="the config's: loopback")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="0: a free one.", show_default="the config's: 8000"),
    ] = None,
    config: Config = None,
    model: Model = None,
    uvloop: Annotated[bool, typer.Option(help="Run on uvloop where it is installed.")] = True,
) -> None:
    """Serve a model over the OpenAI API, with the live tree of the cache at /.

    Writes the server's URL to stdout as soon as it listens; /health answers 200 when the model is
    ready. Ctrl-C or SIGTERM ends it: running answers get their grace (server.grace_s), a second
    one ends it at once. Exit status: 0 after either; 1 for a wrong config, a port that is taken, or
    a model that can not be loaded.
    """
    needs_extra()
    from msgspec.structs import replace

    from radixtide.serving.http.config import check_serve_config, load_serve_config, open_to_others

    found = with_model(load_serve_config(config), model)
    changes = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    server = replace(found.server, **changes)
    found = check_serve_config(replace(found, server=server))
    if open_to_others(server.host) and not server.keys:
        say(
            f"{server.host} can be reached from other machines, and no API key is asked for: "
            "add [server.keys.NAME] to the config"
        )
    from radixtide.serving.http.server import serve as run_server

    with progress() as tell:
        run(lambda: run_server(found, tell), uvloop)


def with_model(config: ServeConfig, model: str | None) -> ServeConfig:
    """Return `config` with another model, under its own name, where one is given."""
    from msgspec.structs import replace

    return config if model is None else replace(config, model=model, model_name="")


def needs_extra() -> None:
    """Raise ConfigError where the packages of the extra `serve` are missing."""
    from importlib.util import find_spec

    from radixtide.configs.errors import ConfigError, how_to_install

    for name in ("starlette", "uvicorn", "prometheus_client", "transformers"):
        if find_spec(name) is None:
            raise ConfigError(f"the package {name} is missing; {how_to_install('serve')}")


def say(line: str) -> None:
    """Write a line for a person."""
    typer.echo(f"radixtide: {line}", err=True)


def run(work: Callable[[], Coroutine[Any, Any, None]], uvloop: bool) -> None:
    """Run `work` to its end, on uvloop if that is wanted and there."""
    import asyncio

    if uvloop and sys.platform != "win32":
        try:
            import uvloop as fast
        except ImportError:
            pass
        else:
            fast.run(work())
            return
    asyncio.run(work())


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show what goes on: yields what takes a line; what goes on for long turns on a terminal.

    The URL goes to stdout, alone on its line, for whoever started the server to read.
    """
    from rich.console import Console

    console = Console(stderr=True, highlight=False, emoji=False)
    status = console.status("starting")

    def tell(line: str) -> None:
        status.stop()
        if line.startswith("listening on "):
            typer.echo(line.removeprefix("listening on ").partition(",")[0])
            sys.stdout.flush()
        console.print(f"radixtide: {line}", markup=False, soft_wrap=True)
        if "loading" in line:
            status.update("loading the model")
            status.start()

    try:
        yield tell
    finally:
        status.stop()
