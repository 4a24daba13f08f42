"""Order of copies: what a job waits for, fences, cancellation, closing, layers as they arrive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from radixtide.configs.errors import CallTimeout, InvalidInput, LoadFailed, RadixtideError
from radixtide.tiers.copy_engine import LayerGate
from radixtide.tiers.copy_threads import ThreadCopyEngine
from support.copies import LAYOUTS, WAIT_S, Bed

MakeBed = Callable[..., Bed]


class Event:
    """Has the part of a CUDA event that the engine uses, over a flag."""

    def __init__(self) -> None:
        self.flag = threading.Event()
        self.asked = threading.Event()

    def query(self) -> bool:
        return self.flag.is_set()

    def synchronize(self) -> None:
        self.asked.set()
        assert self.flag.wait(WAIT_S)


@pytest.fixture
def make_bed() -> Iterator[MakeBed]:
    """Return a function that makes pools with an engine, which is closed at the end."""
    beds: list[Bed] = []

    def make(*, threads: int = 2, step_bytes: int = 256, **more: Any) -> Bed:
        bed = Bed(lambda pools: ThreadCopyEngine(pools, True, threads, step_bytes), **more)
        beds.append(bed)
        return bed

    yield make
    for bed in beds:
        bed.engine.close()


@pytest.fixture(autouse=True)
def share_small_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads share even the small jobs of tests."""
    monkeypatch.setattr("radixtide.tiers.copy_threads.SHARED_BYTES", 1)


def test_a_backup_reads_only_what_was_written_before(make_bed: MakeBed) -> None:
    bed = make_bed()
    written: Future[None] = Future()
    bed.submit("backup", bed.transfer("mha", [1, 2], [3, 4]), after=(None, written))
    bed.stamp("mha", [1, 2], [10, 11])
    assert not bed.host_bytes("mha", [3, 4]).any()
    written.set_result(None)
    assert bed.answer().ok
    assert np.array_equal(bed.host_bytes("mha", [3, 4]), bed.device_bytes("mha", [1, 2]))


def test_a_backup_waits_for_an_event_of_the_device(make_bed: MakeBed) -> None:
    bed = make_bed()
    event = Event()
    bed.submit("backup", bed.transfer("mha", [1], [1]), after=(event,))
    assert event.asked.wait(WAIT_S)
    bed.stamp("mha", [1], [10])
    event.flag.set()
    assert bed.answer().ok
    assert np.array_equal(bed.host_bytes("mha", [1]), bed.device_bytes("mha", [1]))


async def test_futures_of_the_loop_are_waited_for_without_blocking_it(
    make_bed: MakeBed, loops: None, no_blocking: None
) -> None:
    bed = make_bed()
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[bool] = loop.create_future()

    def on_done(result: Any) -> None:
        loop.call_soon_threadsafe(ended.set_result, result.ok)

    written: asyncio.Future[None] = loop.create_future()
    fence: asyncio.Future[None] = loop.create_future()
    bed.engine.fence(fence)
    bed.submit("load", bed.transfer("mha", [1], [1]), after=(written,), on_done=on_done)
    await asyncio.sleep(0)
    written.set_result(None)
    await asyncio.sleep(0)
    assert not ended.done()
    fence.set_result(None)
    assert await ended


@pytest.mark.parametrize("end", ["fails", "is cancelled"])
def test_what_was_never_made_is_not_copied(make_bed: MakeBed, end: str) -> None:
    bed = make_bed()
    bed.stamp("mha", [1], [1])
    written: Future[None] = Future()
    bed.submit("backup", bed.transfer("mha", [1], [1]), after=(written,))
    bed.submit("backup", bed.transfer("mha", [1], [2]))
    if end == "fails":
        written.set_exception(ValueError("no forward pass"))
    else:
        assert written.cancel()
    failed = bed.answer()
    assert not failed.ok
    assert failed.error is not None
    assert ("no forward pass" if end == "fails" else "cancelled") in failed.error
    assert not bed.host_bytes("mha", [1]).any()
    assert bed.answer().ok


def test_jobs_of_a_direction_keep_their_order_and_the_other_goes_on(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.stamp("mha", range(4), range(4))
    written: Future[None] = Future()
    first = bed.submit("backup", bed.transfer("mha", [0], [0]), after=(written,))
    second = bed.submit("backup", bed.transfer("mha", [1], [1]))
    load = bed.run("load", bed.transfer("mha", [8], [8]))
    assert load.ok
    written.set_result(None)
    assert [bed.answer().number, bed.answer().number] == [first, second]


def test_loads_wait_for_fences_before_them_and_backups_do_not(make_bed: MakeBed) -> None:
    bed = make_bed()
    bed.stamp("mha", [0], [5])
    bed.run("backup", bed.transfer("mha", [0], [0]))
    wanted = bed.device_bytes("mha", [0])
    early = bed.run("load", bed.transfer("mha", [1], [0]))
    assert early.ok
    freed, event = Future[None](), Event()
    bed.engine.fence(freed)
    bed.engine.fence(event)
    bed.engine.fence(None)
    bed.submit("load", bed.transfer("mha", [2], [0]))
    assert bed.run("backup", bed.transfer("mha", [0], [3])).ok
    # The slots' last owner still writes to them; that must not be the last word.
    bed.stamp("mha", [2], [6])
    # Work that failed has ended as well.
    freed.set_exception(ValueError("planted"))
    assert event.asked.wait(WAIT_S)
    bed.stamp("mha", [2], [7])
    event.flag.set()
    assert bed.answer().ok
    assert np.array_equal(bed.device_bytes("mha", [2]), wanted)
    # Fences that have passed are forgotten.
    assert bed.run("load", bed.transfer("mha", [3], [0])).ok
    assert bed.engine._fences == []  # type: ignore[attr-defined]  # the bound on memory


def test_a_job_that_waits_can_be_cancelled(make_bed: MakeBed) -> None:
    bed = make_bed()
    never: Future[None] = Future()
    gate = LayerGate(3)
    bed.stamp("mha", [1], [1])
    first = bed.submit("load", bed.transfer("mha", [1], [1]), after=(never,), layers=gate)
    second = bed.submit("load", bed.transfer("mha", [2], [2]))
    before = bed.device_bytes("mha", [1])
    assert bed.engine.cancel(first)
    result = bed.answer()
    assert (result.number, result.ok) == (first, False)
    assert result.error is not None
    assert "cancelled" in result.error
    assert (bed.answer().number, bed.engine.cancel(first), bed.engine.cancel(999)) == (
        second,
        False,
        False,
    )
    assert np.array_equal(bed.device_bytes("mha", [1]), before)
    with pytest.raises(LoadFailed, match="cancelled"):
        gate.wait_layer(0, WAIT_S)


def test_a_job_under_way_stops_between_two_steps(make_bed: MakeBed) -> None:
    bed = make_bed(threads=1, step_bytes=1, pages=512, page_size=1)
    event = Event()
    number = bed.submit("backup", bed.transfer("mha", range(512), range(512)), after=(event,))
    assert event.asked.wait(WAIT_S)
    # It is past its waiting, and has not copied a byte.
    assert bed.engine.cancel(number)
    event.flag.set()
    result = bed.answer()
    assert (result.ok, result.digests) == (False, {})
    assert not bed.host_bytes("mha", range(512)).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_closing_answers_every_job_once(make_bed: MakeBed, layout: str) -> None:
    bed = make_bed(pages=64, layout=layout)
    bed.stamp("mha", range(64), range(64))
    never: Future[None] = Future()
    numbers = [bed.submit("backup", bed.transfer("mha", range(64), range(64))) for _ in range(8)]
    numbers += [
        bed.submit(direction, bed.transfer("mha", [at], [at]), after=(never,))
        for at in range(4)
        for direction in ("backup", "load")
    ]
    bed.engine.close()
    answers = [bed.answers.get_nowait() for _ in numbers]
    assert bed.answers.empty()
    assert sorted(answer.number for answer in answers) == sorted(numbers)
    for answer in answers:
        assert answer.ok or (answer.error is not None and "closed" in answer.error)
    assert not any(answer.ok for answer in answers if answer.number > 8)
    bed.engine.close()
    names = ("radixtide-backup", "radixtide-load")
    assert not [one for one in threading.enumerate() if one.name.startswith(names)]


def test_layers_open_one_after_the_other_and_the_last_when_all_is_verified(
    make_bed: MakeBed,
) -> None:
    bed = make_bed(kinds=("mha", "state"), layers=4)
    seen: list[int] = []

    class Watching(LayerGate):
        def open(self, layer: int, event: Any = None) -> None:
            seen.append(layer)
            super().open(layer, event)

    for kind in bed.kinds:
        bed.stamp(kind, range(8), range(8))
    both = [bed.transfer(kind, range(8), range(8)) for kind in bed.kinds]
    out = bed.run("backup", *both)
    gate = Watching(4)
    assert bed.run("load", *both, digests=out.digests, layers=gate).ok
    assert seen == [0, 1, 2]
    assert gate.opened == 4
    for layer in range(4):
        gate.wait_layer(layer, 0)
    bed.hosts["state"].arrays[0][0][2, 0] ^= 1
    gate = Watching(4)
    assert not bed.run("load", *both, digests=out.digests, layers=gate).ok
    assert gate.opened == 3
    with pytest.raises(LoadFailed, match="not theirs"):
        gate.wait_layer(3, WAIT_S)


def test_what_lies_behind_an_open_layer_is_there(make_bed: MakeBed) -> None:
    bed = make_bed(pages=64, layers=8)
    bed.stamp("mha", range(64), range(64))
    out = bed.run("backup", bed.transfer("mha", range(64), range(64)))
    wanted = [[part.clone() for part in layer] for layer in bed.parts["mha"]]
    for _ in range(5):
        bed.stamp("mha", range(64), range(100, 164))
        gate = LayerGate(8)
        bed.submit(
            "load", bed.transfer("mha", range(64), range(64)), digests=out.digests, layers=gate
        )
        for layer, parts in enumerate(bed.parts["mha"]):
            gate.wait_layer(layer, WAIT_S)
            assert all(
                bool((part.view(torch.uint8) == right.view(torch.uint8)).all())
                for part, right in zip(parts, wanted[layer], strict=True)
            )
        assert bed.answer().ok


def test_pools_of_fewer_layers_than_the_gate_open_all_of_it(make_bed: MakeBed) -> None:
    bed = make_bed(layers=2)
    gate = LayerGate(6)
    assert bed.run("load", bed.transfer("mha", [1], [1]), layers=gate).ok
    gate.wait_layer(5, 0)
    gate = LayerGate(1)
    assert bed.run("load", bed.transfer("mha", [1], [1]), layers=gate).ok
    gate.wait_layer(0, 0)
    gate = LayerGate(3)
    assert bed.run("load", layers=gate).ok
    gate.wait_layer(2, 0)


def test_a_gate_lets_everybody_who_waits_through() -> None:
    gate = LayerGate(2)
    with ThreadPoolExecutor(3) as readers:
        reads = [readers.submit(gate.wait_layer, 1, WAIT_S) for _ in range(3)]
        gate.open(0)
        gate.wait_layer(0, 0)
        gate.open(1)
        assert [read.result(WAIT_S) for read in reads] == [None] * 3


def test_a_gate_that_fails_lets_nobody_through() -> None:
    gate = LayerGate(2)
    gate.open(0)
    with ThreadPoolExecutor(1) as readers:
        read = readers.submit(gate.wait_layer, 1, WAIT_S)
        gate.fail("planted")
        with pytest.raises(LoadFailed, match="planted"):
            read.result(WAIT_S)
    # Not even to a layer that had arrived.
    with pytest.raises(LoadFailed, match="planted"):
        gate.wait_layer(0)


def test_wrong_waits_at_a_gate() -> None:
    gate = LayerGate(2)
    with pytest.raises(CallTimeout, match="layer 1"):
        gate.wait_layer(1, 0)
    for layer in (-1, 2):
        with pytest.raises(InvalidInput, match="layer"):
            gate.wait_layer(layer)
    with pytest.raises(InvalidInput):
        LayerGate(0)
    assert issubclass(LoadFailed, RadixtideError)


def test_an_event_of_a_layer_is_waited_for_by_the_reader() -> None:
    waited = []

    class OnStream:
        def wait(self) -> None:
            waited.append("here")

    gate = LayerGate(1)
    gate.open(0, OnStream())
    gate.wait_layer(0)
    assert waited == ["here"]
