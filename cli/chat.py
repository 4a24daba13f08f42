"""``radixtide chat``: talk to a model in the terminal, and see what the cache saved each turn."""

from __future__ import annotations

import sys
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radixtide.cli.serve import Config, Model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from radixtide.cli.chat_talkers import Message, Taken, Talker

HELP = "/new forgets the conversation, /help shows this, /quit ends; Ctrl-C stops an answer"


def chat(
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Of a running server: http://127.0.0.1:8000. Without it, a model is loaded here.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    model: Model = None,
    system: Annotated[
        str, typer.Option(help="What the model is told before the conversation.")
    ] = "You are a helpful assistant.",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 512,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the likeliest.")] = 0.7,
    api_key: Annotated[
        str,
        typer.Option(envvar="RADIXTIDE_API_KEY", help="Key of the server.", show_default=False),
    ] = "",
) -> None:
    """Chat with a model; each turn shows how much of it was cached, and the time to first token.

    Where stdin is no terminal, each of its lines is a turn. Answers go to stdout, all else to
    stderr. Exit status: 0; 1 for a wrong config, a server that can not be reached, or a turn that
    failed where nobody can say it again.
    """
    if url is not None and (config is not None or model is not None):
        raise typer.BadParameter("--url talks to a server's own model; leave out --config, --model")
    with _talker(url, config, model, api_key, max_tokens, temperature) as talker:
        _note(f"{talker.name}: {HELP}" if sys.stdin.isatty() else talker.name)
        _talk(talker, system)


@contextmanager
def _talker(
    url: str | None,
    config: Path | None,
    model: str | None,
    api_key: str,
    max_tokens: int,
    temperature: float,
) -> Iterator[Talker]:
    from radixtide.cli.chat_talkers import ServerTalker

    if url is not None:
        yield ServerTalker(url, api_key, max_tokens, temperature)
        return
    from rich.console import Console

    from radixtide.cli.serve import needs_extra, with_model

    needs_extra()
    from radixtide.serving.http.config import load_serve_config

    found = with_model(load_serve_config(config), model)
    with ExitStack() as opened:
        with Console(stderr=True).status(f"loading {found.model}"):
            from radixtide.cli.chat_engine import open_engine

            talker = opened.enter_context(open_engine(found, max_tokens, temperature))
        yield talker


def _talk(talker: Talker, system: str) -> None:
    """Take turns until there is no more to say."""
    from radixtide.configs.errors import RadixtideError

    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    said = list(opening)
    for line in _lines():
        match line.strip():
            case "":
                continue
            case "/quit":
                return
            case "/help":
                _note(HELP)
                continue
            case "/new":
                said = list(opening)
                _note("a new conversation")
                continue
        said.append({"role": "user", "content": line})
        try:
            answer, taken = _answer(talker, said)
        except RadixtideError as error:
            if not sys.stdin.isatty():
                raise
            said.pop()
            typer.echo(f"error: {error}", err=True)
            continue
        said.append({"role": "assistant", "content": answer})
        _note(str(taken))


def _answer(talker: Talker, said: list[Message]) -> tuple[str, Taken]:
    """Write the next answer as it comes; return it, and what it took. Ctrl-C ends it early."""
    texts: list[str] = []
    try:
        with closing(talker.answer(said)) as pieces:
            for piece in pieces:
                texts.append(piece)
                typer.echo(piece, nl=False)
                sys.stdout.flush()
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    typer.echo()
    return "".join(texts), talker.taken


def _lines() -> Iterator[str]:
    """Yield what the user says, line by line, to the end of stdin."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    try:
        # With it, input() has a history and keys to edit.
        import readline  # noqa: F401 - importing it is what it takes
    except ImportError:
        pass
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            typer.echo(err=True)
            return


def _note(line: str) -> None:
    """Write a line that is no part of the conversation."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, emoji=False)
    console.print(line, style="dim", markup=False, soft_wrap=True)
