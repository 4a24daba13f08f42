"""Calls of ``radixtide inspect`` in this process."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from radixtide.cli.main import app


def run(*words: str | Path, exit_code: int = 0) -> Result:
    """Run the command; it must end with that status."""
    result = CliRunner().invoke(app, ["inspect", *map(str, words)])
    assert result.exit_code == exit_code, result.output
    return result
