"""What a person watches during a replay, on a terminal's stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from radixtide.cli.replay_recording import Recording

REFRESH_S: Final = 0.1


class ReplayProgress:
    """A bar with requests done, time left and the hit ratio so far; nothing on a plain stream."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            BarColumn(bar_width=20),  # all of it fits in 80 columns
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("[green]{task.fields[hits]}[/]"),
            TextColumn("{task.fields[clock]}"),
            console=console,
            # A thread that redraws would compete with the event loop for the interpreter.
            auto_refresh=False,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("replay", total=None, hits="", clock="")
        self._drawn_at = 0.0
        self._recording: Recording | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Draw the bar while the block runs."""
        with self._bar:
            try:
                yield
            finally:
                if self._recording is not None:
                    self._draw(self._recording)

    def begin(self, requests: int | None) -> None:
        """Say how many requests there will be; None: nobody knows."""
        self._bar.update(self._task, total=requests)

    def step(self, recording: Recording) -> None:
        """Draw what `recording` tells, at most every tenth of a second."""
        now = perf_counter()
        if self._bar.disable or now - self._drawn_at < REFRESH_S:
            return
        self._drawn_at = now
        self._recording = recording
        self._draw(recording)

    def _draw(self, recording: Recording) -> None:
        tally = recording.tally
        self._bar.update(
            self._task,
            completed=tally.requests,
            hits=f"hits {100 * tally.hit_ratio:.1f} %",
            clock=f"virtual {recording.now_ns / 1e9:,.0f} s",
            refresh=True,
        )


__all__ = ("ReplayProgress",)
