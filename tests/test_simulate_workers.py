"""Seeds run side by side: one whose process dies or hangs is named, and no other is lost."""

from __future__ import annotations

import signal
import time

import pytest

from radixtide.cli.simulate_limit import Hangs, time_limit
from radixtide.cli.simulate_tasks import MakeSmall, Ran, RunSeed, Small
from radixtide.cli.simulate_totals import Totals
from radixtide.cli.simulate_workers import Workers
from radixtide.simulation.plan import FaultPlan
from radixtide.simulation.setup import Setup
from support.unsteady import DIES, DIES_SMALL, EXITS, HANGS, work

LIMIT_S = 0.5


def job(seed: int) -> RunSeed:
    return RunSeed(seed=seed, steps=16, plan=FaultPlan.none(), limit_s=LIMIT_S)


def run(seeds: range, count: int) -> dict[int, Ran]:
    with Workers(count, work, grace_s=20.0 if HANGS not in seeds else 0.5) as workers:
        found = list(workers.run(map(job, seeds)))
    assert len(found) == len(seeds)
    return {ran.seed: ran for ran in found}


def test_every_seed_is_answered_and_no_process_is_started_for_nothing() -> None:
    found = run(range(3), 2)
    assert sorted(found) == [0, 1, 2]
    assert not any(ran.found for ran in found.values())
    assert len({ran.digest for ran in found.values()}) <= 2


@pytest.mark.parametrize(
    ("seed", "told"),
    [
        (DIES, "died: SIGKILL, perhaps out of memory"),
        (EXITS, "died: exit status 17"),
        (HANGS, "hangs"),
    ],
)
def test_a_process_that_dies_or_hangs_is_named_with_its_seed(seed: int, told: str) -> None:
    seeds = range(seed - 1, seed + 2)
    found = run(seeds, 1)
    assert [one for one in seeds if found[one].found] == [seed]
    (violation,) = found[seed].violations
    assert told in violation
    assert found[seed].lost
    # Another process took over.
    assert found[seed - 1].digest != found[seed + 1].digest


def test_what_was_made_small_before_the_process_died_is_kept() -> None:
    told: list[Small] = []
    for seed, steps in ((DIES_SMALL, 8), (0, 4)):
        task = MakeSmall(job=job(seed), violations=("lost: 1 slot",), seconds=20.0)
        with Workers(1, work) as workers:
            small = workers.make_small(task, told.append)
            assert small is not None
            assert small.case.steps == steps
            # It serves on.
            assert [ran.seed for ran in workers.run([job(1)])] == [1]
    assert [one.case.steps for one in told] == [8, 8, 4]


# A limit of wall time


def test_what_never_ends_is_stopped_and_named() -> None:
    def spin() -> None:
        while True:
            pass

    with pytest.raises(Hangs, match=r"not done after 0\.05 s") as caught, time_limit(0.05):
        spin()
    assert "spin (test_simulate_workers.py:" in caught.value.where[0]


def test_what_loses_one_exception_is_stopped_by_the_next() -> None:
    lost: list[Hangs] = []

    def swallow_the_first() -> None:
        while True:
            try:
                while True:
                    pass
            except Hangs as hang:
                lost.append(hang)
                if len(lost) > 1:
                    raise

    with pytest.raises(Hangs), time_limit(0.05):
        swallow_the_first()
    assert len(lost) == 2


def test_a_limit_that_stood_before_is_put_back() -> None:
    hits: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, _: hits.append(number))
    left = signal.setitimer(signal.ITIMER_REAL, 30.0)
    try:
        with time_limit(5.0):
            pass
        now, interval = signal.getitimer(signal.ITIMER_REAL)
        assert 25.0 < now <= 30.0
        assert interval == 0.0
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        until = time.monotonic() + 5.0
        while not hits and time.monotonic() < until:
            pass
        assert hits == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *left)


# Sums


def test_totals_are_the_same_in_any_order() -> None:
    full, all_three = Setup(), Setup(components=("full", "swa", "mamba"), tiers="host")
    results = [
        Ran(
            seed=1, setup=full, steps=10, faults_injected=3, faults_by_kind={"drop": 3}, digest="a"
        ),
        Ran(seed=2, setup=all_three, steps=7, faults_by_kind={"drop": 1, "kill": 2}, digest="b"),
        Ran(seed=0, setup=full, faults_by_kind={"kill": 1, "drop": 0}, found=2, violations=("x",)),
    ]
    one, other = Totals(), Totals()
    for ran in results:
        one.add(ran)
    for ran in reversed(results):
        other.add(ran)
    assert vars(one) | {"_failed": one.failed} == vars(other) | {"_failed": other.failed}
    assert one.digest == other.digest
    assert one.failed == [0]
    assert one.violations == 2
    assert one.faults_by_kind == {"drop": 4, "kill": 3}
    assert one.seeds_with == {"drop": 2, "kill": 2}
    assert one.survived == {"drop": 2, "kill": 1}
    assert one.drawn == {("full", "device"): 2, ("full, swa, mamba", "host"): 1}


def test_another_answer_is_another_digest() -> None:
    digests = set()
    for digest in ("a", "b"):
        totals = Totals()
        totals.add(Ran(seed=1, digest=digest))
        totals.add(Ran(seed=2, digest="c"))
        digests.add(totals.digest)
    assert len(digests) == 2
