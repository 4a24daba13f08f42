"""The simulated copy engine: what every engine must do, at drawn moments of virtual time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch

from radixtide.configs.errors import CacheClosed
from radixtide.simulation.decisions import CopyFault
from radixtide.simulation.plan import Operation
from radixtide.tiers.copy_engine import CopyJob, LayerGate
from support.simulated_beds import SimulatedBed
from support.suites import again

MakeBed = Callable[..., SimulatedBed]

# What is asked of the engines with threads, but for what a thread and its steps have to do with.
globals().update(
    again(
        "test_copy_engine",
        ("make_bed",),
        without=("test_steps_and_threads_of_any_number_move_the_same",),
    )
)
globals().update(
    again(
        "test_copy_engine_order",
        ("make_bed",),
        without=(
            "test_a_backup_waits_for_an_event_of_the_device",
            "test_futures_of_the_loop_are_waited_for_without_blocking_it",
            "test_loads_wait_for_fences_before_them_and_backups_do_not",
            "test_a_job_under_way_stops_between_two_steps",
            "test_what_lies_behind_an_open_layer_is_there",
        ),
    )
)


@pytest.fixture(params=range(2))
def make_bed(request: pytest.FixtureRequest) -> MakeBed:
    """Return a function that makes pools with a simulated engine."""

    def make(**more: Any) -> SimulatedBed:
        return SimulatedBed(seed=request.param, **more)

    return make


class Event:
    """Has the part of a CUDA event that an engine may use."""

    def __init__(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        raise AssertionError("a simulated engine must not block")


class Planted:
    """Decides that one thing happens to every copy."""

    def __init__(self, fault: CopyFault) -> None:
        self.fault = fault
        self.asked: list[int] = []

    def copy(self, job: CopyJob) -> CopyFault | None:
        self.asked.append(job.number)
        return self.fault

    def storage(self, operation: Operation, count: int) -> None:
        raise AssertionError("this is no store")

    def refuses_host(self, component: str) -> bool:
        raise AssertionError("this has no host memory")

    def skew(self, rank: int) -> float:
        raise AssertionError("this is no rank")


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def test_a_job_waits_for_events_of_a_device_and_loads_for_fences(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.stamp("mha", [0], [5])
    written, freed, also = Event(), Event(), Future[None]()
    bed.submit("backup", bed.transfer("mha", [0], [0]), after=(None, written))
    bed.pass_time(1.0)
    assert bed.answers.empty()
    bed.stamp("mha", [0], [6])
    wanted = bed.device_bytes("mha", [0])
    written.passed = True
    assert bed.answer().ok
    for fence in (freed, also, None):
        bed.engine.fence(fence)
    bed.submit("load", bed.transfer("mha", [2], [0]))
    # Backups do not wait for fences.
    assert bed.run("backup", bed.transfer("mha", [0], [3])).ok
    also.set_exception(ValueError("work that failed has ended as well"))
    bed.pass_time(1.0)
    assert bed.answers.empty()
    freed.passed = True
    assert bed.answer().ok
    assert np.array_equal(bed.device_bytes("mha", [2]), wanted)


def test_layers_open_at_moments_apart_and_what_is_behind_them_is_there(make_bed: MakeBed) -> None:
    bed = make_bed(layers=8)
    bed.stamp("mha", range(8), range(8))
    out = bed.run("backup", bed.transfer("mha", range(8), range(8)))
    wanted = [[part.clone() for part in layer] for layer in bed.parts["mha"]]
    bed.stamp("mha", range(8), range(50, 58))
    gate = LayerGate(8)
    bed.submit("load", bed.transfer("mha", range(8), range(8)), digests=out.digests, layers=gate)
    times = []
    for layer, parts in enumerate(bed.parts["mha"]):
        while gate.opened <= layer:
            bed.pass_time(1e-4)
        times.append(bed.loop.time())
        assert all(same_bytes(*pair) for pair in zip(parts, wanted[layer], strict=True))
        if layer < 6:
            # What is loaded later is not there yet.
            assert not same_bytes(bed.parts["mha"][7][0], wanted[7][0])
    assert bed.answer().ok
    assert sorted(times) == times
    assert len(set(times)) > 4


def test_a_slot_that_is_reused_under_a_backup_shows(make_bed: MakeBed) -> None:
    shown = set()
    for at in range(40):
        bed = make_bed(layers=3)
        bed.stamp("mha", [1], [1])
        old = bed.device_bytes("mha", [1])
        bed.submit("backup", bed.transfer("mha", [1], [4]))
        bed.pass_time(at * 5e-5)
        reused_in_time = bed.answers.empty()
        bed.stamp("mha", [1], [2])
        new = bed.device_bytes("mha", [1])
        assert bed.answer().ok
        found = bed.host_bytes("mha", [4])
        whole = "old" if np.array_equal(found, old) else "new" if np.array_equal(found, new) else ""
        shown.add(whole or "torn")
        assert reused_in_time or whole == "old"
    assert shown == {"old", "new", "torn"}


def test_a_slot_that_is_reused_under_a_load_is_written_over(make_bed: MakeBed) -> None:
    spoilt = 0
    for at in range(20):
        bed = make_bed()
        bed.stamp("mha", [1], [1])
        bed.run("backup", bed.transfer("mha", [1], [1]))
        bed.submit("load", bed.transfer("mha", [2], [1]))
        bed.pass_time(at * 5e-5)
        bed.stamp("mha", [2], [7])
        mine = bed.device_bytes("mha", [2])
        early = bed.answers.empty()
        bed.answer()
        spoilt += not np.array_equal(bed.device_bytes("mha", [2]), mine)
        assert early or np.array_equal(bed.device_bytes("mha", [2]), mine)
    assert spoilt > 5


def test_a_job_under_way_can_be_cancelled_and_leaves_its_slots_alone(make_bed: MakeBed) -> None:
    stopped = 0
    for at in range(20):
        bed = make_bed(layers=4)
        bed.stamp("mha", range(8), range(8))
        number = bed.submit("backup", bed.transfer("mha", range(8), range(8)))
        bed.pass_time(at * 1e-4)
        there = bed.engine.cancel(number)
        result = bed.answer()
        assert there or result.ok
        stopped += not result.ok
        assert result.ok or (result.error is not None and "cancelled" in result.error)
        after = bed.host_bytes("mha", range(8))
        bed.stamp("mha", range(8), range(50, 58))
        bed.pass_time(1.0)
        assert np.array_equal(bed.host_bytes("mha", range(8)), after)
    assert 0 < stopped < 20


def test_a_killed_engine_moves_nothing_more_and_answers_nobody() -> None:
    moved = 0
    for seed in range(20):
        bed = SimulatedBed(seed=seed, layers=4)
        bed.stamp("mha", range(8), range(8))
        for _ in range(3):
            bed.submit("backup", bed.transfer("mha", range(8), range(8)))
            bed.submit("load", bed.transfer("mha", range(9, 17), range(8, 16)), after=(Event(),))
        bed.pass_time(5e-4)
        bed.engine.crash()
        before = bed.answers.qsize()
        at_once = bed.host_bytes("mha", range(8))
        moved += bool(at_once.any())
        bed.stamp("mha", range(8), range(50, 58))
        bed.engine.close()
        with pytest.raises(CacheClosed):
            bed.submit("backup", bed.transfer("mha", range(8), range(8)))
        bed.pass_time(1.0)
        assert bed.answers.qsize() == before
        assert np.array_equal(bed.host_bytes("mha", range(8)), at_once)
    assert moved


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_copy_that_is_to_fail_fails_after_a_share_of_its_bytes(share: float) -> None:
    faults = Planted(CopyFault(kind="copy_fail", share=share))
    bed = SimulatedBed(faults=faults, layers=4)
    bed.stamp("mha", range(8), range(8))
    number = bed.submit("backup", bed.transfer("mha", range(8), range(8)))
    second = bed.submit("backup", bed.transfer("mha", range(8), range(8, 16)))
    failed = bed.answer()
    assert (failed.number, failed.ok, failed.digests) == (number, False, {})
    moved = int(np.count_nonzero(bed.host_bytes("mha", range(8))))
    assert moved == 0 if not share else moved > 0
    assert bed.answer().number == second
    assert faults.asked == [number, second]


def test_a_copy_that_is_to_be_slow_holds_up_those_behind_it() -> None:
    bed = SimulatedBed(faults=Planted(CopyFault(kind="copy_slow", seconds=2.0)))
    begun = bed.loop.time()
    for _ in range(2):
        bed.submit("backup", bed.transfer("mha", [1], [1]))
    assert bed.answer().ok
    assert 2.0 < bed.loop.time() - begun < 2.5
    assert bed.answer().ok
    assert 4.0 < bed.loop.time() - begun < 4.5


def test_one_seed_is_one_course_of_events_and_it_is_told() -> None:
    def course(seed: int) -> list[tuple[str, int, str | None, float]]:
        told: list[tuple[str, int, str | None, float]] = []
        bed = SimulatedBed(
            seed=seed,
            note=lambda what, job, error: told.append((what, job.number, error, bed.loop.time())),
        )
        for at in range(8):
            bed.submit("backup", bed.transfer("mha", [at], [at]))
            bed.submit("load", bed.transfer("mha", [at + 8], [at + 8]))
        bed.engine.cancel(5)
        for _ in range(16):
            bed.answer()
        return told

    first = course(1)
    assert first == course(1)
    assert first != course(2)
    assert sorted({what for what, *_ in first}) == ["begin", "done", "submit"]
    assert [error for what, number, error, _ in first if (what, number) == ("done", 5)] == [
        "the copy was cancelled"
    ]
    backups = [number for what, number, *_ in first if what == "done" and number % 2]
    assert backups == sorted(backups)
