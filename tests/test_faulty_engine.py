"""Around a real copy engine: copies that fail and are late keep their place and their promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from radixtide.configs.errors import CacheClosed, InvalidInput, LoadFailed
from radixtide.simulation.faulty_engine import FaultyEngine
from radixtide.simulation.plan import Fault
from radixtide.tiers.copy_engine import CopyEngine, CopyJob, CopyResult, LayerGate, Transfer
from radixtide.tiers.copy_modelled import ModelledEngine
from radixtide.tiers.copy_threads import ThreadCopyEngine
from support.copies import Bed, round_trip
from support.virtual import injector, now, pass_time, virtual


@asynccontextmanager
async def faulty(*faults: Fault) -> AsyncGenerator[Bed]:
    """Open a bed whose engine has these faults."""
    loop = asyncio.get_running_loop()
    happens = injector(*faults)
    bed = Bed(lambda pools: FaultyEngine(ThreadCopyEngine(pools, True, 1, 256), happens, loop))
    yield bed
    await asyncio.to_thread(bed.engine.close)


async def answers(bed: Bed, count: int) -> list[CopyResult]:
    """Return the next results, letting the loop run meanwhile."""
    return [await asyncio.to_thread(bed.answer) for _ in range(count)]


async def test_without_a_fault_every_byte_is_moved() -> None:
    async with faulty(Fault(kind="copy_fail", pool="another")) as bed:
        await asyncio.to_thread(round_trip, bed, 1)


async def test_a_backup_that_fails_moves_no_byte() -> None:
    async with faulty(Fault(kind="copy_fail", direction="backup", count=1)) as bed:
        bed.stamp("mha", range(4), range(4))
        before = bed.host_bytes("mha", range(8))
        for _ in range(2):
            bed.submit("backup", bed.transfer("mha", range(4), range(4)))
        failed, made = await answers(bed, 2)
        assert not failed.ok
        assert failed.error is not None
        assert "failed by a fault plan" in failed.error
        assert failed.digests == {}
        assert made.ok
        assert np.array_equal(bed.host_bytes("mha", range(4)), bed.device_bytes("mha", range(4)))
        assert np.array_equal(bed.host_bytes("mha", range(4, 8)), before[4:])


async def test_the_gate_of_a_load_that_fails_fails() -> None:
    async with faulty(Fault(kind="copy_fail", direction="load")) as bed:
        gate = LayerGate(3)
        bed.submit("load", bed.transfer("mha", range(4), range(4)), layers=gate)
        (failed,) = await answers(bed, 1)
        assert not failed.ok
        with pytest.raises(LoadFailed, match="failed by a fault plan"):
            gate.wait_layer(0)


async def test_a_late_copy_holds_up_those_behind_it_and_none_beside_it() -> None:
    loop = asyncio.get_running_loop()
    async with faulty(Fault(kind="copy_slow", direction="backup", count=1, seconds=0.1)) as bed:
        began = loop.time()
        late = bed.submit("backup", bed.transfer("mha", range(2), range(2)))
        behind = bed.submit("backup", bed.transfer("mha", range(2, 4), range(2, 4)))
        beside = bed.submit("load", bed.transfer("mha", range(8, 10), range(8, 10)))
        assert [(one.number, one.ok) for one in await answers(bed, 3)] == [
            (beside, True),
            (late, True),
            (behind, True),
        ]
        assert loop.time() - began >= 0.1


async def test_a_late_copy_waits_for_what_it_had_to_wait_for() -> None:
    loop = asyncio.get_running_loop()
    async with faulty(Fault(kind="copy_slow", seconds=0.0)) as bed:
        written = loop.create_future()
        began = loop.time()
        loop.call_later(0.1, written.set_result, None)
        bed.submit("backup", bed.transfer("mha", range(2), range(2)), after=(written,))
        (made,) = await answers(bed, 1)
        assert made.ok
        assert loop.time() - began >= 0.1


async def test_a_late_copy_can_be_cancelled() -> None:
    async with faulty(Fault(kind="copy_slow", count=1, seconds=600.0)) as bed:
        number = bed.submit("backup", bed.transfer("mha", range(2), range(2)))
        assert bed.engine.cancel(number)
        (cancelled,) = await answers(bed, 1)
        assert not cancelled.ok
        assert not bed.engine.cancel(number)


async def test_closing_ends_a_late_copy() -> None:
    async with faulty(Fault(kind="copy_slow", count=1, seconds=600.0)) as bed:
        bed.submit("backup", bed.transfer("mha", range(2), range(2)))
        await asyncio.to_thread(bed.engine.close)
        (ended,) = await answers(bed, 1)
        assert not ended.ok
        with pytest.raises(CacheClosed):
            bed.submit("backup", bed.transfer("mha", range(2), range(2)))


async def test_a_job_that_is_refused_is_not_begun_later() -> None:
    async with faulty(Fault(kind="copy_slow", seconds=0.0)) as bed:
        with pytest.raises(InvalidInput):
            bed.submit("backup", bed.transfer("mha", range(2), range(3)))
        bed.submit("backup", bed.transfer("mha", range(2), range(2)))
        (made,) = await answers(bed, 1)
        assert made.ok
        assert made.number == 2


def submit(engine: CopyEngine, number: int, done: list[Any]) -> None:
    """Back up one page on an engine without bytes."""
    slots = np.arange(4)

    def on_done(result: CopyResult) -> None:
        done.append((result.number, result.ok, now()))

    engine.submit(CopyJob(number, "backup", (Transfer("full", slots, slots),), on_done))


@virtual
async def test_modelled_copies_fail_and_are_late_in_the_loops_time() -> None:
    loop = asyncio.get_running_loop()
    faults = injector(
        Fault(kind="copy_fail", skip=1, count=1), Fault(kind="copy_slow", skip=1, seconds=0.5)
    )
    engine = FaultyEngine(ModelledEngine(loop, {"full": 1}), faults, loop)
    done: list[Any] = []
    began = now()
    for number in range(3):
        submit(engine, number, done)
    await pass_time(2.0)
    assert [(number, ok) for number, ok, _ in done] == [(0, True), (1, False), (2, True)]
    assert [round(at - began, 1) for *_, at in done] == [0.0, 0.0, 0.5]
    engine.close()
