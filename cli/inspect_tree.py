"""The tree at one moment of a run: the run is replayed up to there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from radixtide.configs.errors import InvalidInput
from radixtide.simulation.case import Case
from radixtide.simulation.journal_compare import JournalComparison
from radixtide.simulation.journal_reading import JournalReader
from radixtide.simulation.journal_records import Record, StepEnded
from radixtide.simulation.run import run_case


def tree_at(path: Path, step: int) -> str:
    """Return the tree at the end of step `step` of the run that a journal is of.

    The run is carried out again up to there, and each record is compared with the journal's.

    Raises:
        InvalidInput: the journal does not say what was run, the run has no such step, or it went
            another way this time.
    """
    with JournalReader(path) as reader:
        case = reader.header.case
        ended = _steps_ended(reader, step)
    if case is None:
        raise InvalidInput(
            f"{path} does not say what was run, as `radixtide simulate --journal` writes it; "
            "so it can not be run again"
        )
    if ended is None:
        raise InvalidInput(f"{path}: no step {step} has ended in it")
    with JournalComparison(path, steps=ended) as comparison:
        outcome = run_case(Case.from_json(case), journal=comparison.file, stop_at=ended)
        difference = comparison.difference
    if difference is not None:
        raise InvalidInput(
            f"{path} is of another run, or of another version: the replay differs at {difference}"
        )
    if outcome.tree is None:
        raise InvalidInput(
            f"an edit was under way when step {step} ended: there was no tree to be seen; "
            "try a step before or after it"
        )
    return outcome.tree


def _steps_ended(records: Iterable[Record], step: int) -> int | None:
    """Return how many steps had ended when `step` had; None: it has not.

    With several schedulers at work steps do not end in the order in which they began.
    """
    ended = 0
    for record in records:
        if isinstance(record, StepEnded):
            ended += 1
            if record.step == step:
                return ended
    return None
