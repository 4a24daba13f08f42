"""``radixtide simulate``: what it prints, what it exits with, and that a run can be run again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from radixtide.cli.main import app
from radixtide.cli.simulate_progress import SimulateProgress
from radixtide.cli.simulate_tasks import Ran, Small
from radixtide.cli.simulate_totals import Totals
from radixtide.components.mamba import MambaComponent
from radixtide.configs.errors import InvalidInput
from radixtide.simulation.case import Case, draw_case
from radixtide.simulation.frames import FrameError
from radixtide.simulation.journal import JournalWriter
from radixtide.simulation.journal_reading import read_journal
from radixtide.simulation.journal_records import Header
from radixtide.simulation.plan import KINDS, FaultPlan
from radixtide.simulation.run import run_case

KEYS = (
    "seeds",
    "steps",
    "faults_injected",
    "faults_by_kind",
    "answers_compared",
    "violations",
    "failed",
)
"""What programs may rely on."""

SEEDS = "0..3"
STEPS = 80


def call(*arguments: str | Path | int) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def told(*arguments: str | Path | int, status: int = 0) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == status, result.output
    data = json.loads(result.stdout)
    assert isinstance(data, dict)
    return data


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "radixtide.cli.main", "simulate", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=100,
    )


# Figures


@pytest.fixture(scope="module")
def few() -> dict[str, Any]:
    return told("--seeds", SEEDS, "--steps", STEPS, "--jobs", 1, "--no-shrink")


def test_the_object_has_what_programs_rely_on(few: dict[str, Any]) -> None:
    assert set(KEYS) <= set(few)
    assert few["seeds"] == 4
    assert few["steps"] == 4 * STEPS
    assert few["violations"] == 0
    assert few["failed"] == []
    assert set(few["faults_by_kind"]) == set(KINDS)
    assert sum(few["faults_by_kind"].values()) == few["faults_injected"] > 0
    assert few["answers_compared"] > 100
    assert few["messages"] > 20 * 4


def test_figures_are_those_of_the_runs(few: dict[str, Any]) -> None:
    plan = FaultPlan.heavy()
    outcomes = [run_case(draw_case(seed, STEPS, plan)) for seed in range(4)]
    assert few["faults_injected"] == sum(outcome.faults_injected for outcome in outcomes)
    assert few["answers_compared"] == sum(outcome.answers_compared for outcome in outcomes)
    assert few["messages"] == sum(outcome.messages for outcome in outcomes)


@pytest.mark.nightly
def test_several_processes_find_the_same(few: dict[str, Any]) -> None:
    result = program("--seeds", SEEDS, "--steps", str(STEPS), "--jobs", "2", "--json",
                     PYTHONHASHSEED="77")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert json.loads(result.stdout) == few


def test_one_seed_of_many_is_the_same_by_itself(few: dict[str, Any]) -> None:
    alone = [told("--seed", seed, "--steps", STEPS) for seed in range(4)]
    assert sum(one["faults_injected"] for one in alone) == few["faults_injected"]
    assert len({one["digest"] for one in alone}) == 4


def test_what_is_given_is_not_drawn() -> None:
    result = call("--seeds", "0..2", "--steps", 20, "--components", "mamba, full", "--tiers",
                  "host", "--faults", "none", "--jobs", 1)  # fmt: skip
    assert result.exit_code == 0, result.output
    row = next(line for line in result.stdout.splitlines() if "full, mamba" in line)
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == [
        "full, mamba",
        "host",
        "3",
        "0",
    ]


@pytest.mark.parametrize("kind", ["drop", "corrupt", "crash_before", "crash_after"])
def test_a_plan_under_which_no_run_could_end_is_refused(tmp_path: Path, kind: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(f'[[fault]]\nkind = "{kind}"\n')
    result = call("--seed", 0, "--steps", 5, "--faults", plan)
    assert result.exit_code == 2
    assert f"fault 1 ({kind})" in result.output
    plan.write_text(f'[[fault]]\nkind = "{kind}"\ncount = 2\n')
    assert told("--seed", 0, "--steps", 5, "--faults", plan)["violations"] == 0


def test_a_plan_from_a_file_is_what_is_injected(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[[fault]]\nkind = "duplicate"\nprobability = 0.2\n')
    data = told("--seed", 1, "--steps", STEPS, "--faults", plan)
    assert data["faults_by_kind"]["duplicate"] == data["faults_injected"] > 0


def test_tables_tell_what_was_injected_and_survived(few: dict[str, Any]) -> None:
    result = call("--seeds", SEEDS, "--steps", STEPS, "--jobs", 1)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for kind, count in few["faults_by_kind"].items():
        rows = [line for line in result.stdout.splitlines() if f" {kind} " in line]
        assert [f" {count:,} " in row for row in rows] == ([True] if count else [])
    assert f" {few['answers_compared']:,} " in result.stdout
    assert "4 of 4" in result.stdout


# Wrong use


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--seed", "1", "--seeds", "0..3"], "not both"),
        (["--seeds", "3..0"], "write 0..3"),
        (["--seeds", "7"], "0..99"),
        (["--seeds", "-1..4"], "0..99"),
        (["--seed", "-1"], "--seed"),
        (["--steps", "0"], "--steps"),
        (["--jobs", "0"], "--jobs"),
        (["--faults", "hevy"], "light, heavy, none"),
        (["--faults", "WRONG"], "kind"),
        (["--components", "full,sva"], "full,swa"),
        (["--components", "swa"], "full,swa"),
        (["--tiers", "disk"], "storage"),
        (["--seeds", "0..3", "--journal", "x.journal"], "one seed"),
        (["--journal", "no/such/folder/x"], "no folder"),
        (["--journal", "."], "is a folder"),
        (["--out", "no/such/folder"], "no folder"),
        (["--replay", "no-such-file"], "no file"),
        (["--replay", "WRONG", "--seed", "1", "--steps", "9"], "leave out --seed, --steps"),
        (["--faults", "EMPTY"], "names no fault"),
        (["--faults", "NOBODY"], "no actor is called"),
        (["--faults", "FOREVER"], "write at most 10"),
    ],
)
def test_a_wrong_use_is_told_and_runs_nothing(
    tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    files = {
        "WRONG": '[[fault]]\nkind = "dorp"\n',
        "EMPTY": "",
        "NOBODY": '[[fault]]\nkind = "drop"\nreceiver = "nobody"\n',
        "FOREVER": '[[fault]]\nkind = "stall"\nseconds = 3000.0\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    result = call(*(str(tmp_path / word) if word in files else word for word in arguments))
    assert result.exit_code == 2
    assert result.stdout == ""
    said = " ".join(result.stderr.replace("│", " ").split())
    assert complaint in said


# Journals


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journals") / "seed-2.journal"
    told("--seed", 2, "--steps", 40, "--journal", path)
    return path


def test_a_journal_is_of_the_run_and_can_be_run_again(journal: Path) -> None:
    records = list(read_journal(journal))
    assert len(records) > 200
    header = records[0]
    assert isinstance(header, Header)
    assert header.case is not None
    assert Case.from_json(header.case) == draw_case(2, 40, FaultPlan.heavy())
    result = call("--replay", journal)
    assert result.exit_code == 0, result.output
    assert f"the same, byte for byte: {len(records):,} records" in result.stdout
    assert f"{journal.stat().st_size:,} bytes" in result.stdout


def test_a_replay_prints_one_object_on_stdout(journal: Path) -> None:
    result = call("--replay", journal, "--json")
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert set(KEYS) <= set(data)
    assert data["same"] is True
    assert data["differs"] is None
    assert data["seeds"] == 1
    assert "byte for byte" in result.stderr


def test_the_same_seed_writes_the_same_bytes_in_any_process(journal: Path, tmp_path: Path) -> None:
    for hash_seed in ("0", "4711"):
        path = tmp_path / hash_seed
        result = program("--seed", "2", "--steps", "40", "--journal", str(path),
                         PYTHONHASHSEED=hash_seed)  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert path.read_bytes() == journal.read_bytes()


def test_the_first_record_that_differs_is_named(journal: Path, tmp_path: Path) -> None:
    records = list(read_journal(journal))
    other = tmp_path / "other.journal"
    header = records[0]
    assert isinstance(header, Header)
    with contextlib.closing(JournalWriter(other, lambda: 0.0, header)) as writer:
        writer.note("this never happened")
    result = call("--replay", other, "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["same"] is False
    assert data["differs"] == 1
    assert "this never happened" in result.stderr
    assert type(records[1]).__name__ in result.stderr


def test_a_journal_that_ends_early_differs_where_it_ends(journal: Path, tmp_path: Path) -> None:
    ends: list[int] = []
    with read_journal(journal) as reader:
        for _ in reader:
            ends.append(reader.position)
    short = tmp_path / "short.journal"
    short.write_bytes(journal.read_bytes()[: ends[-3]])
    assert told("--replay", short, status=1)["differs"] == len(ends) - 2


def test_a_torn_journal_is_compared_as_far_as_it_goes(journal: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn.journal"
    torn.write_bytes(journal.read_bytes()[:-3])
    result = call("--replay", torn)
    assert result.exit_code == 0, result.output
    assert "torn" in result.stdout


def test_what_is_no_journal_ends_as_it_does_in_inspect(tmp_path: Path) -> None:
    other = tmp_path / "other.journal"
    other.write_bytes(b"something else")
    for command in (["simulate", "--replay"], ["inspect"]):
        done = subprocess.run(
            [sys.executable, "-m", "radixtide.cli.main", *command, str(other)],
            capture_output=True,
            check=False,
            text=True,
        )
        assert done.returncode == 1
        assert done.stdout == ""
        assert done.stderr.startswith(f"error: {other} is no journal")


def test_a_wrong_use_is_told_without_loading_torch() -> None:
    code = (
        "import sys; from radixtide.cli.main import app\n"
        "for words in (['--seeds', '9..1'], ['--faults', 'hevy'], ['--components', 'x']):\n"
        "    try: app(['simulate', *words])\n"
        "    except SystemExit as end: assert end.code == 2\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_damaged_journal_and_one_without_a_case_are_refused(
    journal: Path, tmp_path: Path
) -> None:
    raw = bytearray(journal.read_bytes())
    raw[len(raw) // 2] ^= 1
    damaged = tmp_path / "damaged.journal"
    damaged.write_bytes(raw)
    result = call("--replay", damaged)
    assert result.exit_code == 1
    assert isinstance(result.exception, FrameError)
    assert "damaged" in str(result.exception)
    bare = tmp_path / "bare.journal"
    JournalWriter(bare, lambda: 0.0, Header(seed=1)).close()
    result = call("--replay", bare)
    assert isinstance(result.exception, InvalidInput)
    assert "no case" in str(result.exception)


# Failures


@contextlib.contextmanager
def states_are_not_locked() -> Iterator[None]:
    """Plant a bug: a lock does not cover the state of its node."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MambaComponent, "acquire_component_lock", lambda _component, _node: None)
        yield


PLANTED: tuple[str | int, ...] = (
    "--seeds", "0..3", "--steps", 200, "--faults", "light", "--components", "full,mamba",
    "--tiers", "device", "--jobs", 1,
)  # fmt: skip


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """Run seeds with a planted bug, which is found and made small."""
    out = tmp_path_factory.mktemp("tests")
    with states_are_not_locked():
        return call(*PLANTED, "--shrink-seconds", 30, "--out", out), out


def verdict(source: str) -> bool:
    """Run a test's source; whether it passes."""
    names: dict[str, Any] = {}
    exec(compile(source, "written.py", "exec"), names)
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    try:
        test()
    except AssertionError:
        return False
    return True


def test_a_failing_seed_is_printed_as_a_small_test(failing: tuple[Result, Path]) -> None:
    result, out = failing
    assert result.exit_code == 1
    source = (out / "simulate-0.py").read_text()
    assert source in result.stdout
    assert source.count("\n") <= 25
    assert verdict(source)
    with states_are_not_locked():
        assert not verdict(source)


def test_the_last_line_is_the_command_that_repeats_the_first_failure(
    failing: tuple[Result, Path],
) -> None:
    result, _ = failing
    assert result.stderr.splitlines()[-1] == (
        "again: radixtide simulate --seed 0 --steps 200 --faults light "
        "--components full,mamba --tiers device"
    )
    assert "made small in" in result.stdout


def test_a_test_can_be_run_by_pytest_from_its_file(failing: tuple[Result, Path]) -> None:
    _, out = failing
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "simulate-0.py"],
        cwd=out,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_what_is_not_to_be_made_small_is_drawn_again_by_its_test() -> None:
    with states_are_not_locked():
        result = call(*PLANTED, "--no-shrink", "--json", "--seed-seconds", 300)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].endswith(" --seed-seconds 300")
    data = json.loads(result.stdout)
    assert data["failed"][0] == data["failures"][0]["seed"] == 0
    assert data["violations"] >= len(data["failed"]) == len(data["failures"])
    source = data["failures"][0]["test"]
    assert "draw_case(" in source
    assert source in result.stderr
    assert verdict(source)
    with states_are_not_locked():
        assert not verdict(source)


def test_a_replay_of_a_failing_journal_fails_as_it_did(tmp_path: Path) -> None:
    path = tmp_path / "failing.journal"
    with states_are_not_locked():
        told(*PLANTED[2:], "--seed", 0, "--no-shrink", "--journal", path, status=1)
        result = call("--replay", path)
        assert result.exit_code == 1
        assert "byte for byte" in result.stdout
        assert "violation: " in result.stderr
    # Mended, it is another run.
    result = call("--replay", path)
    assert result.exit_code == 1
    assert "byte for byte" not in result.stdout


def test_a_fault_of_the_simulator_is_a_failure_of_its_seed() -> None:
    def fails(_case: Case, **_: object) -> None:
        raise LookupError("no such thing")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("radixtide.cli.simulate_jobs.run_case", fails)
        data = told("--seeds", "3..4", "--jobs", 1, status=1)
    assert data["failed"] == [3, 4]
    assert "LookupError: no such thing" in data["failures"][0]["violations"][0]


def test_a_run_that_hangs_is_a_failure_of_its_seed() -> None:
    def hangs(_case: Case, **_: object) -> None:
        while True:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("radixtide.cli.simulate_jobs.run_case", hangs)
        data = told("--seed", 3, "--seed-seconds", 1, status=1)
    assert data["failed"] == [3]
    (violation,) = data["failures"][0]["violations"]
    assert violation.startswith("hangs: not done after 1 s; it was in hangs")


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_shows_what_was_run_until_then(jobs: int) -> None:
    def press(_: SimulateProgress, totals: Totals) -> None:
        if totals.seeds == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulateProgress, "ran", press)
        result = call("--seeds", "0..99999", "--steps", 10, "--jobs", jobs, "--json")
    assert result.exit_code == 130
    data = json.loads(result.stdout)
    assert data["interrupted"] is True
    assert data["seeds"] == 3
    assert "interrupted" in result.stderr


# Progress


def drawn(terminal: bool, seeds: int = 4) -> str:
    stream = io.StringIO()
    progress = SimulateProgress(Console(file=stream, force_terminal=terminal, width=100))
    case = draw_case(1, 12, FaultPlan.none())
    totals = Totals()
    with progress.shown():
        progress.begin(seeds, 300)
        progress.step(150)
        for seed in range(seeds):
            totals.add(Ran(seed=seed, faults_injected=1500, found=seed == 0))
            progress.ran(totals)
        progress.small(0, 2000, None)
        progress.small(0, 2000, Small(case=case, violations=(), runs=34))
    return stream.getvalue()


def test_a_terminal_shows_how_far_it_is() -> None:
    shown = drawn(terminal=True)
    assert "4/4" in shown
    assert "seed 0: 2,000 > 12 steps, 0 faults, 34 runs" in shown
    assert "300/300" in drawn(terminal=True, seeds=1)


def test_a_plain_stream_stays_empty() -> None:
    assert drawn(terminal=False).strip() == ""
