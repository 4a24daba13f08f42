"""What a plan of chances did is told as a plan without chance, which does the same again."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from radixtide.simulation.case import Case, draw_case
from radixtide.simulation.decisions import Deciding
from radixtide.simulation.injector import Injector
from radixtide.simulation.plan import Fault, FaultPlan
from radixtide.simulation.run import Outcome, run_case


def watched(case: Case) -> tuple[Outcome, FaultPlan]:
    """Run a case; return what came of it, and the plan of what happened."""
    plans: list[FaultPlan] = []
    heal = Injector.heal

    def look(injector: Injector) -> None:
        plans.append(injector.exact())
        heal(injector)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Injector, "heal", look)
        outcome = run_case(case)
    return outcome, plans[0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tiers", ["device", "host"])
def test_the_named_faults_do_what_the_chances_did(seed: int, tiers: str) -> None:
    heavy = FaultPlan.heavy()
    # How far a copy gets before it fails is drawn anew.
    plan = FaultPlan(tuple(one for one in heavy.faults if one.kind != "copy_fail"))
    case = draw_case(seed, 60, plan, tiers=tiers)  # type: ignore[arg-type]  # a name of Tiers
    first, named = watched(case)
    assert first.faults_injected == len(named.faults) > 0
    assert all(one.count == 1 and one.probability == 1.0 for one in named.faults)
    assert all(one.seconds_max is None for one in named.faults)
    again, same = watched(msgspec.structs.replace(case, plan=named))
    assert again.digest == first.digest
    assert again.faults_by_kind == first.faults_by_kind
    assert same == named


def asked(faults: tuple[Fault, ...], seed: int, events: int) -> tuple[list[str], FaultPlan]:
    """Ask a plan about calls of a store; return what happened, and the plan of that."""
    deciding = Deciding(FaultPlan(faults), Random(seed), None)
    found = []
    for number in range(events):
        fault = deciding.storage("get" if number % 3 else "put", 1)
        found.append("" if fault is None else f"{fault.kind} {fault.seconds}")
    return found, deciding.exact()


@pytest.mark.parametrize("seed", range(20))
def test_faults_that_compete_for_events_are_named_by_those_they_got(seed: int) -> None:
    faults = (
        Fault(kind="storage_slow", seconds=0.1, seconds_max=0.9, probability=0.3),
        Fault(kind="storage_torn", operation="put", probability=0.5, skip=2),
        Fault(kind="storage_slow", seconds=2.0, probability=0.4, count=5),
        Fault(kind="storage_corrupt", probability=0.2),
    )
    found, named = asked(faults, seed, 60)
    again, same = asked(named.faults, seed + 1, 60)
    assert again == found
    assert same == named
    assert len(named.faults) == sum(map(bool, found))
    assert {fault.operation for fault in named.faults} <= {"get", "put"}


def test_a_failing_run_tells_what_happened_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    case = draw_case(1, 20, FaultPlan.heavy(), tiers="device")
    assert run_case(case).plan is None
    monkeypatch.setattr(
        "radixtide.simulation.oracle.Oracle.matched", lambda *_args, **_named: ["planted"]
    )
    outcome = run_case(case)
    assert outcome.violations
    assert outcome.plan is not None
    assert len(outcome.plan.faults) == outcome.faults_injected
