"""Copies on a CUDA device: bytes, overlap with computing, bandwidth, and no wait for the device.

Run by ``make gpu-test`` on a machine with one card; skipped where there is none.
"""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from radixtide.configs.errors import LoadFailed
from radixtide.tiers.copy_cuda import CudaCopyEngine
from radixtide.tiers.copy_engine import CopyJob, CopyResult, Direction, LayerGate, Transfer
from radixtide.tiers.copy_making import make_engine
from radixtide.tiers.host_pool import HostPool
from support.copies import KINDS, LAYOUTS, WAIT_S, Bed, round_trip, slots_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

MakeBed = Callable[..., Bed]

LAYERS = 16
PAGE = 16
PAGES = 256
"""Of a batch: 1 MiB each, K and V of 8 heads of 128 in bfloat16 in 16 layers."""

STEP_BAR = 1.1
COPY_BAR = 0.8


@pytest.fixture
def make_bed() -> Iterator[MakeBed]:
    """Return a function that makes pools on the device with an engine, closed at the end."""
    beds: list[Bed] = []

    def make(stage_bytes: int = 2**20, **more: Any) -> Bed:
        bed = Bed(lambda pools: CudaCopyEngine(pools, True, stage_bytes), device="cuda", **more)
        beds.append(bed)
        return bed

    yield make
    for bed in beds:
        bed.engine.close()


def event(**options: Any) -> Any:
    """Return a CUDA event."""
    return torch.cuda.Event(**options)  # type: ignore[no-untyped-call]  # it has no types


class Big:
    """A pool of 3 batches, as a model of 8 billion parameters has, and its engine."""

    def __init__(self, layout: str, verify: bool) -> None:
        slots = 3 * PAGES * PAGE
        self.parts = [
            [torch.randn((slots, 8, 128), device="cuda").to(torch.bfloat16) for _ in range(2)]
            for _ in range(LAYERS)
        ]
        self.host = HostPool(self.parts, slots, PAGE, layout)
        self.engine = make_engine({"kv": (self.parts, self.host)}, "auto", verify)
        self.bytes = PAGES * self.host.page_bytes
        choice = np.random.default_rng(0)
        # Pages of the device lie anywhere; the host's allocator hands out runs.
        self.transfer = Transfer(
            "kv",
            slots_of(choice.permutation(3 * PAGES)[:PAGES], PAGE),
            slots_of(np.arange(PAGES), PAGE),
        )
        self._number = 0
        self._lock = threading.Lock()
        # What the pools begin with is there before the first copy.
        torch.cuda.synchronize()

    def submit(
        self, direction: Direction, on_done: Callable[[CopyResult], None], **more: Any
    ) -> None:
        with self._lock:
            self._number += 1
            number = self._number
        self.engine.submit(CopyJob(number, direction, (self.transfer,), on_done, **more))

    def run(self, direction: Direction, jobs: int = 1, **more: Any) -> float:
        """Return the seconds that `jobs` jobs, handed over together, took."""
        left = threading.Semaphore(0)
        failed: list[str] = []

        def on_done(result: CopyResult) -> None:
            if not result.ok:
                failed.append(str(result.error))
            left.release()

        start = time.perf_counter()
        for _ in range(jobs):
            self.submit(direction, on_done, **more)
        for _ in range(jobs):
            assert left.acquire(timeout=WAIT_S)
        spent = time.perf_counter() - start
        assert not failed
        return spent


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_pages_come_back_as_they_left(
    make_bed: MakeBed, kind: str, layout: str, page_size: int
) -> None:
    round_trip(make_bed(kinds=(kind,), layout=layout, page_size=page_size), seed=page_size)


@pytest.mark.parametrize("direct", [1, 2**30], ids=["by runs", "sorted by a thread"])
@pytest.mark.parametrize("stage_bytes", [8192, 2**22])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_staging_of_any_size_moves_the_same(
    make_bed: MakeBed,
    layout: str,
    stage_bytes: int,
    direct: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("radixtide.tiers.copy_cuda.DIRECT_BYTES", direct)
    round_trip(make_bed(stage_bytes, kinds=KINDS, layout=layout), seed=1, batches=8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_page_that_changed_on_the_host_never_reaches_the_device(
    make_bed: MakeBed, layout: str
) -> None:
    bed = make_bed(layout=layout)
    bed.stamp("mha", range(8), range(8))
    out = bed.run("backup", bed.transfer("mha", range(8), range(8)))
    bed.hosts["mha"].arrays[1][0][5, 2] ^= 1
    kept = bed.device_bytes("mha", range(24))
    gate = LayerGate(3)
    back = bed.run(
        "load", bed.transfer("mha", range(8, 16), range(8)), digests=out.digests, layers=gate
    )
    assert back.bad == {"mha": [5]}
    assert np.array_equal(bed.device_bytes("mha", range(24)), kept)
    with pytest.raises(LoadFailed):
        gate.wait_layer(0, WAIT_S)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_backup_reads_what_the_event_before_it_stands_for(layout: str) -> None:
    big = Big(layout, verify=True)
    try:
        weights = torch.randn((4096, 4096), device="cuda")
        for value in (1.0, 2.0):
            result = weights
            for _ in range(20):
                result = result @ weights
            # The writes come long after the submit.
            for part in (part for layer in big.parts for part in layer):
                part.fill_(value)
            written = event()
            written.record()
            big.run("backup", after=(written,))
            wanted = torch.full((8,), value, dtype=torch.bfloat16).view(torch.uint8).numpy()
            out = np.empty((PAGES, big.host.page_bytes), dtype=np.uint8)
            big.host.read_pages(np.arange(PAGES), out)
            assert (out.reshape(-1, wanted.size) == wanted).all()
    finally:
        big.engine.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_reader_of_layers_gets_each_as_it_arrives(layout: str) -> None:
    big = Big(layout, verify=True)
    try:
        taken: queue.SimpleQueue[CopyResult] = queue.SimpleQueue()
        big.submit("backup", taken.put)
        out = taken.get(timeout=WAIT_S)
        index = torch.from_numpy(big.transfer.device).cuda()
        wanted = [[part[index].clone() for part in layer] for layer in big.parts]
        for layer in big.parts:
            for part in layer:
                part.zero_()
        cleared = event()
        cleared.record()
        gate = LayerGate(LAYERS)
        big.submit("load", taken.put, after=(cleared,), layers=gate, digests=out.digests)
        found = []
        for number, layer in enumerate(big.parts):
            gate.wait_layer(number, WAIT_S)
            found.append([part[index] for part in layer])
        for mine, right in zip(found, wanted, strict=True):
            for part, whole in zip(mine, right, strict=True):
                assert torch.equal(part.view(torch.int16), whole.view(torch.int16))
        assert taken.get(timeout=WAIT_S).ok
    finally:
        big.engine.close()


def test_a_serving_step_is_hardly_slower_while_backups_run() -> None:
    big = Big("layer_first", verify=True)
    weights = torch.randn((8192, 8192), device="cuda").to(torch.bfloat16)
    going = threading.Event()

    def again(result: CopyResult) -> None:
        assert result.ok
        if going.is_set():
            big.submit("backup", again)

    def step() -> float:
        """Return the milliseconds of some matrix products on the compute stream."""
        start, end = event(enable_timing=True), event(enable_timing=True)
        start.record()
        state = weights
        for _ in range(20):
            state = state @ weights
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    try:
        for _ in range(5):
            step()
        ratios = []
        for _ in range(5):
            alone = statistics.median(step() for _ in range(20))
            going.set()
            for _ in range(2):
                big.submit("backup", again)
            beside = statistics.median(step() for _ in range(20))
            going.clear()
            # It comes behind those under way, so they are over after it.
            big.run("backup")
            ratios.append(beside / alone)
        assert statistics.median(ratios) <= STEP_BAR, ratios
    finally:
        going.clear()
        big.engine.close()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("direction", ["backup", "load"])
def test_copies_are_nearly_as_fast_as_a_plain_pinned_copy(
    layout: str, direction: Direction, record_property: Callable[[str, object], None]
) -> None:
    big = Big(layout, verify=False)
    checked = Big(layout, verify=True)
    try:
        there = torch.empty(big.bytes, dtype=torch.uint8, device="cuda")
        here = torch.empty(big.bytes, dtype=torch.uint8, pin_memory=True)
        ends = (here, there) if direction == "backup" else (there, here)
        jobs = 8

        def plain() -> float:
            done = event()
            start = time.perf_counter()
            for _ in range(jobs):
                ends[0].copy_(ends[1], non_blocking=True)
            done.record()
            done.synchronize()
            return time.perf_counter() - start

        plain(), big.run(direction, jobs), checked.run(direction, jobs)
        runs = [(plain(), big.run(direction, jobs), checked.run(direction, jobs)) for _ in range(7)]
        ratio = statistics.median(alone / ours for alone, ours, _ in runs)
        record_property("ratio", round(ratio, 3))
        record_property(
            "ratio with digests",
            round(statistics.median(alone / ours for alone, _, ours in runs), 3),
        )
        assert ratio >= COPY_BAR, runs
    finally:
        big.engine.close()
        checked.engine.close()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_waits_for_the_whole_device(layout: str) -> None:
    from torch.profiler import ProfilerActivity, profile, record_function

    big = Big(layout, verify=True)
    try:
        # What is made once (staging, plans) is made now.
        big.run("backup", 4)
        big.run("load", 4)
        kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=kinds) as trace, record_function("copies under way"):
            big.run("backup", 4)
            big.run("load", 4)
        events = trace.events()
        (window,) = [
            event
            for event in events
            if event.name == "copies under way" and event.device_type.name == "CPU"
        ]
        # The profiler itself waits for the device when it ends, after the window.
        inside = [
            event.name
            for event in events
            if window.time_range.start <= event.time_range.start <= window.time_range.end
        ]
        assert any("emcpy" in name for name in inside), "the trace has no copies"
        assert not [name for name in inside if "DeviceSynchronize" in name]
        # A gather or a spread for a part of a layer, not for a page.
        launches = sum("LaunchKernel" in name for name in inside)
        assert launches <= 8 * (4 * LAYERS * 2 + 16), launches
    finally:
        big.engine.close()
