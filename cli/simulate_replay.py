"""Run a journal's case again, and find where the two runs part, if they do."""

from __future__ import annotations

from pathlib import Path

import msgspec

from radixtide.cli.simulate_jobs import run_safely
from radixtide.cli.simulate_tasks import Ran
from radixtide.configs.errors import InvalidInput
from radixtide.simulation.case import Case
from radixtide.simulation.journal_compare import JournalComparison
from radixtide.simulation.journal_reading import JournalReader


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a replay. ``differs``: number of the first record that does, the header is 0."""

    ran: Ran
    same: bool
    told: str
    differs: int | None = None


def replay_journal(path: Path, limit_s: float) -> Replayed:
    """Run the case of a journal again, for `limit_s` seconds of wall time at most, and compare.

    A journal whose writer was stopped is compared as far as it goes. Raises InvalidInput where
    `path` is no journal of a simulation, and FrameError where it is damaged.
    """
    with JournalReader(path) as reader:
        raw, records = reader.header.case, sum(1 for _ in reader)
    if raw is None:
        raise InvalidInput(
            f"{path} is no journal of a simulation: it has no case that could be run"
        )
    case = Case.from_json(raw)
    with JournalComparison(path) as comparison:
        ran = run_safely(case, limit_s, comparison.file)
        difference = comparison.difference
        if difference is None:
            told = f"the same, byte for byte: {records:,} records, {reader.position:,} bytes"
            return Replayed(ran=ran, same=True, told=told)
        if reader.torn is not None and comparison.position == reader.position:
            told = f"the same, byte for byte, up to where the journal is torn: {reader.torn}"
            return Replayed(ran=ran, same=True, told=told)
        return Replayed(ran=ran, same=False, told=difference, differs=comparison.records)


__all__ = ("Replayed", "replay_journal")
