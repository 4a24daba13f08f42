"""``radixtide inspect --step N --tree``: the run again up to a step, and the tree there."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from radixtide.cli.main import app
from radixtide.simulation.case import Case, draw_case
from radixtide.simulation.journal import JournalWriter
from radixtide.simulation.journal_reading import read_journal
from radixtide.simulation.journal_records import StepEnded
from radixtide.simulation.plan import FaultPlan
from radixtide.simulation.run import run_case
from support.inspecting import run
from support.journals import few_calls, journalled


def test_a_journal_that_says_not_what_was_run_can_not_be_run_again(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    path.write_bytes(journalled(few_calls))
    result = CliRunner().invoke(app, ["inspect", str(path), "--step", "2", "--tree"])
    assert "can not be run again" in str(result.exception)


@pytest.fixture(name="simulated", scope="module")
def _simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the journal of a simulated run of one scheduler."""
    drawn = draw_case(3, 80, FaultPlan.none(), ("full",), "device")
    setup = msgspec.structs.replace(drawn.setup, schedulers=1, ranks=1)
    case = msgspec.structs.replace(drawn, setup=setup, scripts=drawn.scripts[:1])
    path = tmp_path_factory.mktemp("simulated") / "run.journal"
    assert run_case(case, journal=path).violations == []
    return path


def test_the_tree_of_a_step_is_that_of_the_run_stopped_there(simulated: Path) -> None:
    with read_journal(simulated) as reader:
        case = reader.header.case
    assert case is not None
    whole = Case.from_json(case)
    trees = []
    for step in (whole.steps // 2, whole.steps - 1):
        stopped = run_case(whole, stop_at=step)
        shown = run(simulated, "--step", str(step), "--tree").stdout
        assert shown == f"{stopped.tree}\n"
        trees.append(shown)
        as_object = json.loads(run(simulated, "--step", str(step), "--tree", "--json").stdout)
        assert as_object == {"step": step, "tree": stopped.tree}
    assert trees[0] != trees[1]
    assert all(tree.startswith("tree: ") for tree in trees)


def test_a_step_that_is_not_there_is_told(simulated: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(simulated), "--step", "5000", "--tree"])
    assert "no step 5000 has ended" in str(result.exception)


def test_a_replay_that_goes_another_way_shows_no_tree(simulated: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.journal"
    with (
        read_journal(simulated) as reader,
        JournalWriter(other, lambda: 0.0, reader.header) as made,
    ):
        for record in islice(reader, 1, None):
            # One answer is another than it was.
            if isinstance(record, StepEnded) and record.step == 5:
                record = msgspec.structs.replace(record, error="SlotError")
            made.write(record)
    result = CliRunner().invoke(app, ["inspect", str(other), "--step", "9", "--tree"])
    assert "the replay differs at record" in str(result.exception)
    assert "in step 5" in str(result.exception)
    assert run(other, "--step", "4", "--tree").stdout.startswith("tree: ")
