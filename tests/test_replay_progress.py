"""Progress is drawn for a person at a terminal, and for nobody else."""

import io

import pytest
from rich.console import Console

from radixtide.cli.replay_progress import ReplayProgress
from radixtide.cli.replay_recording import Recording


def drawn(terminal: bool) -> str:
    stream = io.StringIO()
    progress = ReplayProgress(Console(file=stream, force_terminal=terminal, width=80))
    recording = Recording()
    with progress.shown():
        progress.begin(4)
        for _ in range(4):
            recording.tally.completed += 1
            recording.tally.count_prompt(blocks=1, tokens=100)
            recording.tally.count_hits(0, 25, "evicted", of=100)
            progress.step(recording)
    return stream.getvalue()


@pytest.mark.parametrize("told", ["4/4", "hits 25.0 %", "virtual 0 s", "left"])
def test_a_terminal_shows_how_far_it_is_and_the_hits_so_far(told: str) -> None:
    assert told in drawn(terminal=True)


def test_a_plain_stream_stays_empty() -> None:
    assert drawn(terminal=False).strip() == ""
