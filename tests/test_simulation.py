"""Simulated runs: the same each time, sound where nothing is broken, and telling what is not."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from random import Random
from typing import Any

import msgspec
import pytest

from radixtide.actors.system import PendingReply
from radixtide.simulation import script as s
from radixtide.simulation.case import Case, draw_case
from radixtide.simulation.journal_reading import plain, read_journal
from radixtide.simulation.journal_records import StepBegan, StepEnded
from radixtide.simulation.plan import Fault, FaultPlan
from radixtide.simulation.run import Outcome, run_case
from radixtide.simulation.scheduler_device import OnDevice
from radixtide.simulation.setup import SETS, TIERS, Setup, Tiers

PLANS = {"none": FaultPlan.none, "light": FaultPlan.light, "heavy": FaultPlan.heavy}


def journal_of(case: Case) -> tuple[bytes, Outcome]:
    """Return the journal of a run, and what came of it."""
    file = io.BytesIO()
    outcome = run_case(case, journal=file)
    return file.getvalue(), outcome


def answers(case: Case) -> list[str]:
    """Return what the steps of a run were answered, in the order in which they ended."""
    journal, outcome = journal_of(case)
    assert outcome.violations == []
    found = [one for one in read_journal(io.BytesIO(journal)) if isinstance(one, StepEnded)]
    return [str(plain(one.answer)) for one in found]


# -- the same each time ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_case_writes_the_same_journal_each_time(seed: int) -> None:
    case = draw_case(seed, 60, FaultPlan.heavy())
    first, outcome = journal_of(case)
    again, other = journal_of(case)
    assert first == again
    assert outcome.digest == other.digest == run_case(case).digest
    assert outcome.messages == other.messages > 0


@pytest.mark.nightly
def test_the_hash_seed_of_the_process_changes_nothing() -> None:
    code = (
        "import io, hashlib\n"
        "from radixtide.simulation.case import draw_case\n"
        "from radixtide.simulation.plan import FaultPlan\n"
        "from radixtide.simulation.run import run_case\n"
        "for seed in (4, 15):\n"
        "    file = io.BytesIO()\n"
        "    run_case(draw_case(seed, 60, FaultPlan.heavy()), journal=file)\n"
        "    print(hashlib.sha256(file.getvalue()).hexdigest())\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": number},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for number in ("0", "4711")
    }
    assert len(said) == 1
    assert len(said.pop().split()) == 2


def test_another_seed_is_another_run() -> None:
    case = draw_case(1, 60, FaultPlan.none(), tiers="device")
    assert run_case(case).digest != run_case(msgspec.structs.replace(case, seed=2)).digest


# -- sound where nothing is broken -------------------------------------------------------------


@pytest.mark.parametrize("plan", ["none", "heavy"])
@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize("components", SETS, ids="+".join)
def test_a_run_finds_nothing(components: tuple[str, ...], tiers: Tiers, plan: str) -> None:
    seed = 3 * SETS.index(components) + TIERS.index(tiers)
    outcome = run_case(draw_case(seed, 60, PLANS[plan](), components, tiers))
    assert outcome.violations == []
    assert outcome.steps == 60
    assert outcome.answers_compared > 0
    assert bool(outcome.faults_injected) == (plan == "heavy")
    assert outcome.faults_injected == sum(outcome.faults_by_kind.values())


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("tiers", TIERS)
def test_ranks_stay_together(tiers: Tiers, plan: str) -> None:
    case = draw_case(7, 60, PLANS[plan](), None, tiers)
    setup = msgspec.structs.replace(case.setup, ranks=2, schedulers=1)
    outcome = run_case(msgspec.structs.replace(case, setup=setup, scripts=case.scripts[:1]))
    assert outcome.violations == []
    assert outcome.steps == len(case.scripts[0])


@pytest.mark.nightly
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("seed", range(60))
def test_a_longer_run_finds_nothing(seed: int, plan: str) -> None:
    assert run_case(draw_case(seed, 500, PLANS[plan]())).violations == []


def test_any_part_of_a_script_is_a_script() -> None:
    whole = draw_case(11, 80, FaultPlan.none())
    for seed in range(6):
        dice = Random(seed)
        part = tuple(
            tuple(step for step in script if dice.randrange(3)) for script in whole.scripts
        )
        outcome = run_case(msgspec.structs.replace(whole, scripts=part))
        assert outcome.violations == []
        assert outcome.steps == sum(map(len, part))


@pytest.mark.parametrize("scripts", [(), ((),), ((), ())])
def test_a_run_of_no_steps_ends_well(scripts: tuple[s.Script, ...]) -> None:
    outcome = run_case(Case(setup=Setup(), plan=FaultPlan.none(), seed=0, scripts=scripts))
    assert outcome.violations == []
    assert outcome.steps == 0


def test_faults_that_never_end_cost_answers_and_no_hang() -> None:
    """Every message to a component is lost: each call ends at its deadline."""
    plan = FaultPlan((Fault(kind="drop", receiver="full"),), "lost")
    case = draw_case(3, 20, plan, ["full"], "device")
    setup = msgspec.structs.replace(case.setup, ranks=1, call_timeout_s=1.0)
    outcome = run_case(msgspec.structs.replace(case, setup=setup))
    assert outcome.violations == []
    assert outcome.faults_by_kind["drop"] > 0


# -- what is stored outlives the cache ---------------------------------------------------------


@pytest.mark.parametrize("hard", [0, 1])
def test_a_cache_that_is_opened_later_finds_what_was_stored(hard: int) -> None:
    prompt = s.Prompt(shared=5)
    script = (
        s.Insert(prompt=prompt, state=1),
        s.Drain(),
        s.Restart(hard=hard),
        s.Match(prompt=prompt),
        s.Prefetch(prompt=prompt),
        s.LoadBack(prompt=prompt),
    )
    setup = Setup(components=("full", "swa", "mamba"), tiers="storage", window=8)
    said = answers(Case(setup=setup, plan=FaultPlan.none(), seed=1, scripts=(script,)))
    assert said[3].startswith("match MatchResult [] in_storage") or "[]" in said[3]
    assert "wait fetch 20" in said[4]
    assert "wait load 20" in said[5]


def test_a_disk_that_is_new_has_nothing() -> None:
    prompt = s.Prompt(shared=5)
    script = (
        s.Insert(prompt=prompt),
        s.Drain(),
        s.Detach(),
        s.Attach(fresh=1),
        s.Restart(),
        s.Prefetch(prompt=prompt),
    )
    setup = Setup(tiers="storage", write_policy="write_back")
    said = answers(Case(setup=setup, plan=FaultPlan.none(), seed=1, scripts=(script,)))
    assert "wait fetch 0" in said[5]


# -- as far as it is to go ---------------------------------------------------------------------


def test_a_run_stops_where_it_is_to_and_shows_the_tree() -> None:
    case = draw_case(2, 80, FaultPlan.none())
    told: list[int] = []
    outcome = run_case(case, stop_at=17, on_step=told.append)
    assert outcome.steps == 17
    assert told == list(range(1, 18))
    assert outcome.tree is not None
    assert outcome.tree.startswith("tree: ")
    assert run_case(case, stop_at=17).tree == outcome.tree


def test_the_journal_of_a_stopped_run_is_the_beginning_of_the_whole() -> None:
    case = draw_case(2, 40, FaultPlan.light())
    whole, _ = journal_of(case)
    file = io.BytesIO()
    run_case(case, journal=file, stop_at=10)
    stopped = list(read_journal(io.BytesIO(file.getvalue())))
    ended = [at for at, one in enumerate(stopped) if isinstance(one, StepEnded)]
    upto = ended[9]
    assert stopped[: upto + 1] == list(read_journal(io.BytesIO(whole)))[: upto + 1]
    begun = [one.step for one in stopped[:upto] if isinstance(one, StepBegan)]
    assert begun == list(range(1, len(begun) + 1))


# -- it does find what is broken ---------------------------------------------------------------


def locking_case() -> Case:
    """Return a case that locks and unlocks."""
    prompt = s.Prompt(shared=3)
    script = (s.Insert(prompt=prompt), s.Match(prompt=prompt, lock=1), s.Unlock())
    return Case(setup=Setup(), plan=FaultPlan.none(), seed=0, scripts=(script,))


def test_a_lock_that_is_never_released_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_case(locking_case()).violations == []

    async def forget(self: OnDevice, receipt: Any) -> None:
        del self, receipt

    monkeypatch.setattr(OnDevice, "let_go", forget)
    assert any("1 locks" in one for one in run_case(locking_case()).violations)


def test_a_call_that_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PendingReply, "_expire", lambda self, timeout: None)
    plan = FaultPlan((Fault(kind="drop", message="Lock"),), "lost")
    case = locking_case()
    script = (s.Insert(prompt=s.Prompt(shared=3)), s.Lock())
    outcome = run_case(msgspec.structs.replace(case, plan=plan, scripts=(script,)))
    assert any("lock: hangs" in one for one in outcome.violations)
