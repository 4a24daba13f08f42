"""``radixtide session``: several users, one long system prompt, and what the cache saves them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from radixtide.cli.session_record import SessionResult

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 and the signal's number."""


def session(
    model: Annotated[
        str,
        typer.Option(
            help="smollm2, a folder of Hugging Face, a .gguf file, or random:llama, random:gemma3, "
            "random:qwen3_next, random:lfm2."
        ),
    ] = "smollm2",
    prompt_tokens: Annotated[
        int, typer.Option(min=64, max=8192, help="Length of the shared system prompt, about.")
    ] = 1000,
    samples: Annotated[
        int, typer.Option(min=1, max=20, help="Questions of each case; the table has medians.")
    ] = 3,
    answer_tokens: Annotated[
        int, typer.Option(min=1, max=512, help="Most tokens of an answer.")
    ] = 16,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, and nothing else, on stdout.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Write the figures as a page to this .html file.", show_default=False),
    ] = None,
) -> None:
    """Serve a scripted session and show the time to first token by where the prompt was.

    Users share a long system prompt and each asks something else: cold, with the prompt on the
    device, in host memory alone, and in storage alone after a restart. Ends with an audit. Exit
    status: 0; 1 where something is still held, the audit found a violation, or an answer failed;
    130 after Ctrl-C.
    """
    from rich.console import Console

    from radixtide.cli.page import check_report_path
    from radixtide.cli.serve import needs_extra
    from radixtide.cli.session_progress import SessionProgress

    needs_extra()
    if report is not None:
        check_report_path(report)
    # Models need PyTorch and transformers, whose import takes seconds.
    with Console(stderr=True).status("starting"):
        from radixtide.cli.session_run import SessionOptions, run_session
    options = SessionOptions(
        model=model, prompt_tokens=prompt_tokens, samples=samples, answer_tokens=answer_tokens
    )
    progress = SessionProgress(Console(stderr=True), options.steps)
    try:
        with progress.shown():
            result = run_session(options, progress.step)
    except KeyboardInterrupt:
        typer.echo("interrupted: nothing was measured to the end", err=True)
        raise typer.Exit(INTERRUPTED) from None
    _show(result, json, report)
    if result.problems:
        raise typer.Exit(1)


def _show(result: SessionResult, as_object: bool, report: Path | None) -> None:
    """Print the result, write the report, and name on stderr what went wrong."""
    from rich.console import Console

    from radixtide.cli.session_view import as_json, as_page, as_tables

    if as_object:
        from json import dumps

        typer.echo(dumps(as_json(result), indent=2, ensure_ascii=False))
    else:
        Console().print(as_tables(result))
    for problem in result.problems:
        typer.echo(problem, err=True)
    if report is not None:
        from radixtide.cli.page import write_page

        write_page(as_page(result), report)
        if not as_object:
            typer.echo(f"report: {report}", file=sys.stderr)


__all__ = ("session",)
