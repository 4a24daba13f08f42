"""The command ``radixtide``.

Each command lives in a file of its own, which imports the core only when the command runs: so
``radixtide --help`` and ``radixtide config`` answer without loading PyTorch.

Exit status: 0 when all went well, 1 for an error that the message explains, 2 for a command line
that can not be read. Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import gc
import sys
from typing import Annotated, NoReturn

import typer

from radixtide.cli.chat import chat
from radixtide.cli.config import app as config_app
from radixtide.cli.inspect import inspect
from radixtide.cli.plan import plan
from radixtide.cli.replay import replay
from radixtide.cli.serve import serve
from radixtide.cli.session import session
from radixtide.cli.simulate import simulate
from radixtide.configs.errors import RadixtideError

app = typer.Typer(
    name="radixtide",
    help="A radix-tree prefix cache for language-model serving.",
    no_args_is_help=True,
    # Python's own tracebacks: they are short, and show no local variables (which hold prompts).
    pretty_exceptions_enable=False,
)
app.command()(replay)
app.command()(plan)
app.command()(simulate)
app.command()(inspect)
app.command()(serve)
app.command()(chat)
app.command()(session)
app.add_typer(config_app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        from radixtide import __version__

        typer.echo(f"radixtide {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take the options that stand before a command's name."""


def main() -> NoReturn:
    """Run the command line and end the process."""
    try:
        app()
    except RadixtideError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    finally:
        # Else the interpreter's last collection goes through all of torch once more: a second.
        gc.freeze()
    sys.exit(0)


if __name__ == "__main__":
    main()
