"""Which events a fault chooses, how often it happens, and that a seed decides."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from random import Random
from typing import Any

import numpy as np
import pytest

from radixtide.simulation.decisions import Armed, CopyFault, StorageFault, arm
from radixtide.simulation.injector import InjectedError, Injector
from radixtide.simulation.plan import KINDS, Fault, FaultPlan
from radixtide.tiers.copy_engine import CopyJob, Direction, Transfer
from support.actors import Look, Note, RelayAll, Stage
from support.virtual import injector, virtual


def fires(armed: Armed, events: int) -> list[int]:
    """Return at which of so many events the fault happens."""
    return [event for event in range(events) if armed.fires()]


def the_one(fault: Fault, seed: int = 0) -> Armed:
    (armed,) = arm(FaultPlan((fault,)), Random(seed))
    return armed


def test_a_fault_happens_to_every_event_it_chooses() -> None:
    assert fires(the_one(Fault(kind="drop")), 4) == [0, 1, 2, 3]


def test_the_first_are_passed_over_and_then_it_happens_so_often() -> None:
    armed = the_one(Fault(kind="drop", skip=2, count=3))
    assert fires(armed, 10) == [2, 3, 4]
    assert armed.fired == 3


def test_a_count_counts_what_happened_not_what_could_have() -> None:
    happened = fires(the_one(Fault(kind="drop", probability=0.1, count=3)), 1000)
    assert len(happened) == 3
    assert happened[2] > 3


def test_a_probability_is_met() -> None:
    assert 2800 < len(fires(the_one(Fault(kind="drop", probability=0.3)), 10_000)) < 3200


def test_a_seed_decides() -> None:
    fault = Fault(kind="drop", probability=0.3)
    assert fires(the_one(fault, 1), 100) == fires(the_one(fault, 1), 100)
    assert fires(the_one(fault, 1), 100) != fires(the_one(fault, 2), 100)


def test_equal_faults_of_a_plan_happen_apart() -> None:
    fault = Fault(kind="drop", probability=0.3)
    one, other = arm(FaultPlan((fault, fault)), Random(0))
    assert fires(one, 100) != fires(other, 100)


def test_what_a_fault_does_does_not_depend_on_the_others_of_its_plan() -> None:
    drop = Fault(kind="drop", probability=0.3)
    others = (Fault(kind="kill", probability=0.3), Fault(kind="delay", seconds=1.0))
    alone = arm(FaultPlan((drop,)), Random(0))[0]
    among = arm(FaultPlan((*others, drop)), Random(0))[2]
    assert fires(alone, 100) == fires(among, 100)


DRAWS = """
from random import Random
from typing import Any
from radixtide.simulation.decisions import arm
from radixtide.simulation.plan import FaultPlan
for one in arm(FaultPlan.heavy(), Random(3)):
    print(one.fault, [event for event in range(400) if one.fires()], one.share())
"""


@pytest.mark.nightly
def test_the_draws_are_the_same_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    exec(DRAWS, {})
    here = capsys.readouterr().out
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    there = subprocess.run(
        [sys.executable, "-c", DRAWS],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    assert there.stdout == here
    assert here.count("\n") == len(FaultPlan.heavy().faults)


@virtual
async def test_a_message_is_chosen_by_type_sender_and_receiver() -> None:
    at = Stage(direct=True, keepers=2)
    seen: list[str] = []
    faults = injector(
        Fault(kind="delay", message=("Look", "Grab"), sender="boss", seconds=0.0),
        Fault(kind="delay", receiver="keeper1", message="Look", seconds=0.0),
        note=lambda fault, subject: seen.append(f"{fault.sender} {subject}"),
    )
    at.system.add_interceptor(faults)
    await at.ask(at.cells[0], Look())
    assert seen == []
    await at.ask(at.cells[1], Look())
    assert seen == ["None <Look #2 face -> keeper1>"]
    seen.clear()
    await at.ask(at.boss, RelayAll(Look()))
    assert seen == ["boss <Look #4 boss -> keeper>", "boss <Look #5 boss -> keeper1>"]
    seen.clear()
    await at.ask(at.boss, RelayAll(Note("no")))
    assert seen == []


@virtual
async def test_counts_are_by_kind_and_messages_are_those_sent() -> None:
    at = Stage(direct=True)
    faults = injector(
        Fault(kind="duplicate", message="Look", count=2),
        Fault(kind="drop", message="Note", count=1),
        Fault(kind="kill", message="Grab"),
    )
    at.system.add_interceptor(faults)
    for _ in range(3):
        await at.ask(at.cell, Look())
    await at.ask(at.cell, Note("sent twice"))
    assert faults.counts == {"duplicate": 2, "drop": 1}
    assert faults.fired == (2, 1, 0)
    assert faults.messages == 5


@virtual
async def test_nothing_is_kept_of_what_happens_where_it_is_not_to_be_remembered() -> None:
    plan = FaultPlan((Fault(kind="delay", seconds=0.0, seconds_max=1e-4),))
    for remembers in (True, False):
        at = Stage(direct=True)
        loop = asyncio.get_running_loop()
        faults = Injector(plan, Random(0), loop, remembers=remembers)
        at.system.add_interceptor(faults)
        for _ in range(5):
            await at.ask(at.cell, Look())
        assert faults.counts == {"delay": 5}
        assert len(faults.exact().faults) == 5 * remembers


@virtual
async def test_a_refusal_is_for_the_call_in_hand_not_for_one_before_it() -> None:
    at = Stage(direct=True)
    at.system.add_interceptor(injector(Fault(kind="handler_error", message="Look")))
    assert await at.ask(at.boss, RelayAll(Look()), gives=True) == [[]]
    with pytest.raises(InjectedError):
        await at.ask(at.boss, RelayAll(Look()))
    assert await at.ask(at.boss, RelayAll(Look()), gives=True) == [[]]


# -- below the actors ------------------------------------------------------------------


def job(number: int = 1, direction: Direction = "load", *pools: str) -> CopyJob:
    slots = np.zeros(1, np.int64)
    transfers = tuple(Transfer(pool, slots, slots) for pool in pools or ("full",))
    return CopyJob(number, direction, transfers, lambda _: None)


@virtual
async def test_copies_are_chosen_by_direction_and_pool() -> None:
    faults = injector(
        Fault(kind="copy_fail", direction="backup"),
        Fault(kind="copy_slow", pool="swa", seconds=0.5),
    )
    assert faults.copy(job(1, "load", "full")) is None
    assert faults.copy(job(2, "load", "full", "swa")) == CopyFault(kind="copy_slow", seconds=0.5)
    failed = faults.copy(job(3, "backup", "swa"))
    assert failed is not None
    assert failed.kind == "copy_fail"
    assert 0 <= failed.share < 1
    assert faults.counts == {"copy_fail": 1, "copy_slow": 1}


@virtual
async def test_calls_of_a_store_are_chosen_by_operation() -> None:
    faults = injector(
        Fault(kind="storage_slow", operation="exists", seconds=0.5),
        Fault(kind="storage_fail", operation="clear"),
        Fault(kind="storage_torn", operation="put"),
        Fault(kind="storage_corrupt"),
    )
    assert faults.storage("exists", 3) == StorageFault(kind="storage_slow", seconds=0.5)
    failed = faults.storage("clear", 0)
    assert failed is not None
    assert failed.kind == "storage_fail"
    assert faults.storage("delete", 3) is None
    torn, corrupt = faults.storage("put", 3), faults.storage("get", 3)
    assert torn is not None
    assert corrupt is not None
    assert (torn.kind, corrupt.kind) == ("storage_torn", "storage_corrupt")


@virtual
async def test_a_call_for_no_pages_damages_none() -> None:
    faults = injector(Fault(kind="storage_corrupt"), Fault(kind="storage_torn"))
    assert faults.storage("get", 0) is None
    assert not faults.counts


@virtual
async def test_damage_may_be_in_every_page_and_a_failure_before_or_after() -> None:
    faults = injector(Fault(kind="storage_corrupt", operation="get"), Fault(kind="storage_fail"))
    pages = set()
    shares = []
    for _ in range(100):
        fault = faults.storage("get", 4)
        assert fault is not None
        pages.add(fault.page)
        shares.append(fault.share)
    assert pages == {0, 1, 2, 3}
    assert min(shares) < 0.1
    assert 0.9 < max(shares) < 1.0
    done = {fault.done for _ in range(50) if (fault := faults.storage("put", 1)) is not None}
    assert done == {False, True}


@virtual
async def test_host_memory_is_refused_to_the_component_that_is_named() -> None:
    faults = injector(Fault(kind="host_refuse", pool="swa", count=2))
    assert [faults.refuses_host(name) for name in ("full", "swa", "full", "swa", "swa")] == [
        False,
        True,
        False,
        True,
        False,
    ]


@virtual
async def test_a_rank_is_late() -> None:
    faults = injector(Fault(kind="rank_skew", rank=1, seconds=0.25))
    assert [faults.skew(rank) for rank in range(3)] == [0.0, 0.25, 0.0]


@virtual
async def test_nothing_happens_after_healing() -> None:
    faults = injector(*(Fault(kind=kind, **_needed(kind)) for kind in KINDS))
    faults.heal()
    assert faults.copy(job()) is None
    assert faults.storage("get", 1) is None
    assert not faults.refuses_host("full")
    assert faults.skew(0) == 0.0
    assert not faults.counts


def _needed(kind: str) -> dict[str, Any]:
    lasting = {"delay", "stall", "mailbox_full", "copy_slow", "storage_slow", "rank_skew"}
    return {"seconds": 1.0} if kind in lasting else {}
