"""What a person watches during a session, on a terminal's stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class SessionProgress:
    """A bar, and what is being done now; nothing on a plain stream."""

    def __init__(self, console: Console, steps: int) -> None:
        self._bar = Progress(
            BarColumn(bar_width=20),  # all of it fits in 80 columns
            TimeElapsedColumn(),
            TextColumn("{task.fields[told]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("session", total=steps, told="starting", completed=-1)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw while the block runs."""
        with self._bar:
            yield

    def step(self, told: str) -> None:
        """Draw what is being done now; what was told before is done."""
        self._bar.update(self._task, advance=1, told=told)


__all__ = ("SessionProgress",)
