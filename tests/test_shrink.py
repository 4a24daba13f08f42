"""A failing case is made small, whatever makes it fail, and written as a test that runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtide.simulation.case import Case, draw_case
from radixtide.simulation.emit import write_drawn_test, write_test
from radixtide.simulation.plan import Fault, FaultPlan
from radixtide.simulation.script import (
    Evict,
    Finish,
    Insert,
    Match,
    Pause,
    Prompt,
    Start,
    Stats,
    Step,
)
from radixtide.simulation.setup import Setup
from radixtide.simulation.shrink import Shrinker, fewest, kind_of, kinds_of, shrink

STEPS = 300


def steps_of(case: Case) -> list[Step]:
    return [step for script in case.scripts for step in script]


def has(case: Case, *kinds: type[Step]) -> bool:
    return all(any(isinstance(step, kind) for step in steps_of(case)) for kind in kinds)


# The fewest items


@given(st.lists(st.integers(0, 40), max_size=60), st.sets(st.integers(0, 40), max_size=5))
def test_exactly_the_items_that_matter_are_left(items: list[int], wanted: set[int]) -> None:
    wanted &= set(items)

    def fails(kept: tuple[int, ...]) -> bool:
        return wanted <= set(kept)

    left = fewest(items, fails)
    assert sorted(left) == sorted(wanted)
    assert is_subsequence(left, items)


@given(st.integers(0, 2**32), st.integers(1, 50))
def test_nothing_that_is_left_can_be_left_out(seed: int, length: int) -> None:
    """Also where items only matter together, and not all the same ones each time."""
    luck = Random(seed)
    items = [luck.randrange(8) for _ in range(length)]

    def fails(kept: tuple[int, ...]) -> bool:
        return sum(kept) >= 9 or kept.count(3) >= 2

    if not fails(tuple(items)):
        return
    left = fewest(items, fails)
    assert fails(left)
    assert not any(fails(left[:at] + left[at + 1 :]) for at in range(len(left)))


def test_few_items_of_many_are_found_in_few_runs() -> None:
    runs = 0

    def fails(kept: tuple[int, ...]) -> bool:
        nonlocal runs
        runs += 1
        return {77, 1234} <= set(kept)

    assert fewest(range(2000), fails) == (77, 1234)
    assert runs < 60


def test_a_search_that_is_stopped_keeps_what_it_found() -> None:
    runs = 0

    def fails(kept: tuple[int, ...]) -> bool:
        nonlocal runs
        runs += 1
        return 5 in kept

    left = fewest(range(1000), fails, lambda: runs >= 4)
    assert 5 in left
    assert len(left) < 1000
    assert runs == 4


def is_subsequence(part: Iterable[int], whole: Iterable[int]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in part)


# The same failure


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (
            "step 7 scheduler 1: match: slot 12 has the content of 'a'",
            "step 140 scheduler 0: match: slot 3 has the content of 'b'",
            True,
        ),
        ("lost: 3 slots of full [1, 2, 3]", "lost: 1 slots of full [9]", True),
        ("took 1.25 s (virtual)", "took 30,000 s (virtual)", True),
        ("match: slot 12 is free", "insert: slot 12 is free", False),
        ("lost: 3 slots of full", "lost: 3 slots of swa", False),
    ],
)
def test_failures_are_the_same_but_for_places_and_numbers(one: str, other: str, same: bool) -> None:
    assert (kind_of(one) == kind_of(other)) is same
    assert kinds_of([one, other]) == {kind_of(one), kind_of(other)}


# Whole cases


def test_what_fails_whatever_is_run_becomes_the_empty_case() -> None:
    case = draw_case(3, STEPS, FaultPlan.heavy())
    small = shrink(case, lambda _: True)
    assert small == Case(setup=Setup(), plan=FaultPlan.none(), seed=3, scripts=((),))


def test_what_fails_in_the_given_case_only_stays_as_it_is() -> None:
    case = draw_case(3, 20, FaultPlan.light())
    search = Shrinker(case, lambda other: other == case)
    assert search.run() == case


@pytest.mark.parametrize("seed", range(6))
def test_steps_schedulers_faults_and_setup_that_matter_are_left(seed: int) -> None:
    case = draw_case(seed, STEPS, FaultPlan.heavy(), tiers="storage")
    drops = [fault for fault in case.plan.faults if fault.kind == "drop"]

    def fails(other: Case) -> bool:
        return (
            has(other, Insert, Evict)
            and other.setup.tiers != "device"
            and any(fault.kind == "drop" for fault in other.plan.faults)
        )

    assert drops
    assert fails(case)
    small = shrink(case, fails)
    assert fails(small)
    assert small.setup == Setup(tiers="host")
    assert small.seed == seed
    assert [len(script) for script in small.scripts] == [2]
    assert {type(step) for step in steps_of(small)} == {Insert, Evict}
    assert Evict() in steps_of(small)
    assert Insert(prompt=Prompt()) in steps_of(small)
    (fault,) = small.plan.faults
    assert msgspec.structs.replace(
        fault, message=None, receiver=None, sender=None, where="request"
    ) == Fault(kind="drop", count=1)


def test_two_schedulers_are_left_where_it_takes_two() -> None:
    case = draw_case(11, STEPS, FaultPlan.none(), tiers="device")
    case = msgspec.structs.replace(case, scripts=(case.scripts[0],) * 3)

    def fails(other: Case) -> bool:
        return sum(any(isinstance(step, Match) for step in one) for one in other.scripts) >= 2

    small = shrink(case, fails)
    assert [[type(step) for step in script] for script in small.scripts] == [[Match], [Match]]
    assert small.setup == Setup(schedulers=2)


def test_the_setup_says_how_many_schedulers_there_are() -> None:
    case = draw_case(2, STEPS, FaultPlan.none())
    seen: list[Case] = []

    def fails(other: Case) -> bool:
        seen.append(other)
        return has(other, Start, Finish)

    shrink(case, fails)
    assert len(seen) > 10
    assert all(one.setup.schedulers == len(one.scripts) for one in seen)


def test_numbers_of_steps_become_as_small_as_they_can() -> None:
    case = Case(
        setup=Setup(),
        plan=FaultPlan.none(),
        seed=0,
        scripts=(
            (Pause(ms=100), Evict(full=29, window=4), Match(prompt=Prompt(2, 5, 3, 2, 9, 1))),
        ),
    )

    def fails(other: Case) -> bool:
        return any(isinstance(s, Evict) and s.full >= 3 for s in steps_of(other)) and any(
            isinstance(s, Match) and s.prompt.tail >= 5 and s.prompt.space for s in steps_of(other)
        )

    small = shrink(case, fails)
    assert small.scripts == ((Evict(full=3), Match(prompt=Prompt(tail=5, space=1))),)


def test_a_fault_by_chance_becomes_one_at_a_place() -> None:
    fault = Fault(kind="drop", message="Match", probability=0.1)
    case = Case(setup=Setup(), plan=FaultPlan((fault,)), seed=0, scripts=((Stats(),),))

    def fails(other: Case) -> bool:
        """Fail where the fifth message is lost, and by chance."""
        return any(one.probability < 1 or one.skip == 4 for one in other.plan.faults)

    assert shrink(case, fails).plan.faults == (
        Fault(kind="drop", message="Match", skip=4, count=1),
    )


def test_faults_by_chance_become_those_that_happened() -> None:
    case = draw_case(4, STEPS, FaultPlan.heavy())
    named = Fault(kind="drop", message="Insert", receiver="coordinator", skip=30, count=1)
    other = Fault(kind="crash_after", message="Match", skip=1, count=1)
    asked: list[int] = []

    def happened() -> FaultPlan:
        asked.append(1)
        return FaultPlan((other, named))

    def fails(smaller: Case) -> bool:
        """Fail by a chance that needs many steps, or by the fault that it comes down to."""
        chance = any(one.probability < 1 for one in smaller.plan.faults)
        return named in smaller.plan.faults or (chance and smaller.steps > 50)

    small = shrink(case, fails, happened=happened)
    assert small.plan == FaultPlan((named,))
    assert small.steps == 0
    assert asked == [1]


def test_a_fault_comes_earlier_when_what_came_before_it_is_left_out() -> None:
    """Each step sends a message, and the fault must hit that of the last one."""
    steps = (Pause(), Stats(), Pause(), Stats(), Pause(), Evict())
    fault = Fault(kind="drop", skip=5, count=1)
    case = Case(setup=Setup(), plan=FaultPlan((fault,)), seed=0, scripts=(steps,))

    def fails(smaller: Case) -> bool:
        last = len(smaller.scripts[0]) - 1
        hit = any(one.skip == last for one in smaller.plan.faults)
        return hit and isinstance(smaller.scripts[0][last], Evict)

    small = shrink(case, fails)
    assert small.scripts == ((Evict(),),)
    assert small.plan.faults == (Fault(kind="drop", count=1),)


def test_no_case_is_run_twice_and_each_smaller_one_is_told() -> None:
    case = draw_case(5, STEPS, FaultPlan.light())
    seen: list[bytes] = []
    told: list[tuple[Case, int]] = []

    def fails(other: Case) -> bool:
        seen.append(other.to_json())
        return has(other, Insert)

    search = Shrinker(case, fails, told=lambda one, runs: told.append((one, runs)))
    small = search.run()
    assert len(set(seen)) == len(seen) == search.runs
    assert told[-1][0] == small
    assert all(fails(one) for one, _ in told)
    assert [runs for _, runs in told] == sorted(runs for _, runs in told)


def test_time_that_is_over_ends_the_search_with_what_it_has() -> None:
    case = draw_case(5, STEPS, FaultPlan.heavy())
    runs = 0

    def fails(other: Case) -> bool:
        nonlocal runs
        runs += 1
        return has(other, Insert)

    small = shrink(case, fails, stop=lambda: runs >= 3)
    assert runs == 3
    assert has(small, Insert)
    assert small.steps < case.steps


def test_a_long_case_that_fails_early_costs_few_long_runs() -> None:
    """The time of a run is its length, so that is what must stay small."""
    case = draw_case(9, 2000, FaultPlan.heavy())
    length = 0

    def fails(other: Case) -> bool:
        nonlocal length
        length += other.steps
        return has(other, Insert, Match)

    small = shrink(case, fails)
    assert small.steps == 2
    assert length < 2000


# As source


class Seen:
    """Stands where a test's source has ``run_case``: keeps the case, and answers as it is told."""

    def __init__(self, violations: list[str]) -> None:
        self.violations = violations
        self.case: Case | None = None

    def __call__(self, case: Case) -> Seen:
        self.case = case
        return self


def ran(source: str, violations: Iterable[str] = ()) -> Case:
    """Run a test's source against a stand-in, and return the case that it made."""
    names: dict[str, Any] = {}
    exec(compile(source, "test_written.py", "exec"), names)
    seen = Seen([*violations])
    names["run_case"] = seen
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    test()
    assert seen.case is not None
    return seen.case


@pytest.mark.parametrize("plan", [FaultPlan.none(), FaultPlan.light(), FaultPlan.heavy()])
@pytest.mark.parametrize("seed", range(8))
def test_the_source_makes_the_same_case(seed: int, plan: FaultPlan) -> None:
    case = draw_case(seed, 40, plan)
    assert ran(write_test(case, ["lost: 1 slot"])) == case


def test_a_plan_that_is_no_preset_is_written_out() -> None:
    faults = (
        Fault(kind="drop", message=("Match", "Commit"), where="reply", skip=3, count=1),
        Fault(kind="delay", seconds=0.25, receiver="coordinator"),
    )
    case = Case(
        setup=Setup(components=("full", "swa"), bigram=True),
        plan=FaultPlan(faults, "mine"),
        seed=1,
        scripts=((Match(prompt=Prompt(1, 2)), Stats()), ()),
    )
    assert ran(write_test(case, [])) == case


def test_a_test_fails_as_long_as_there_is_a_violation() -> None:
    source = write_test(draw_case(1, 5, FaultPlan.none()), ["lost: 1 slot"])
    ran(source)
    with pytest.raises(AssertionError):
        ran(source, ["lost: 1 slot"])


def test_a_drawn_test_draws_the_case_of_the_seed() -> None:
    plan = FaultPlan.light()
    source = write_drawn_test(12, 50, plan, ["lost: 1 slot"], ("full", "swa"), "host")
    assert ran(source) == draw_case(12, 50, plan, ("full", "swa"), "host")
    assert ran(write_drawn_test(12, 50, plan, [])) == draw_case(12, 50, plan)
    assert source.count("\n") <= 14


@pytest.mark.parametrize(
    "violation",
    [
        'say "lost"',
        'ends in three """ and goes on',
        "a \\ and a \\n",
        "first line\nsecond line",
        "a violation that goes on and on " * 12,
        "",
    ],
)
def test_whatever_was_found_stands_in_the_docstring(violation: str) -> None:
    source = write_test(draw_case(4, 3, FaultPlan.none()), [violation])
    ran(source)
    assert source.startswith('"""Seed 4: ')
    assert max(map(len, source.splitlines())) <= 100


def test_the_source_is_as_the_formatter_and_the_linter_want_it(tmp_path: Path) -> None:
    for seed in range(12):
        case = draw_case(seed, 1 + 7 * seed, FaultPlan.heavy() if seed % 2 else FaultPlan.none())
        if seed % 3:
            plan = FaultPlan(case.plan.faults[:seed])
            case = msgspec.structs.replace(case, plan=plan)
        path = tmp_path / f"test_seed_{seed}.py"
        path.write_text(write_test(case, ["lost: 1 slot"]), encoding="utf-8")
    config = Path(__file__).parents[1] / "pyproject.toml"
    for words in (["format", "--diff"], ["check", "--ignore", "D"]):
        command = [sys.executable, "-m", "ruff", *words, "--config", str(config), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
