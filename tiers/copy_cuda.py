"""The copy engine on CUDA: two streams beside the compute stream, and no launch for each page.

A backup gathers pages of a part into a staging buffer on the device (one ``index_select``), then
copies that to pinned host memory; a load copies to the staging buffer and spreads it over its pages
(one ``index_copy_``). All of it is put on the stream of its direction, which runs it in order, so
that a staging buffer may be used again at once; the copy itself runs beside computing.

* Before: a stream waits for the CUDA events of a job (``wait_event``); for futures, a thread does.
* After: an event at the end of a job, on which a thread of the lane waits. Nothing ever waits for
  the whole device.
* Layers: a load in layer_first goes layer by layer and gives the gate an event for each. In
  page_first whole pages come at once, so the layers open together, as the last pages arrive.
* Host pages that follow one another are one copy. Where they lie scattered in pieces so small that
  copies would be many, they go through pinned staging memory, and a thread sorts them in or out.
* Digests are taken and checked by threads over host memory: after a backup, and before a load, so
  that no wrong page ever reaches the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from math import gcd
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from radixtide.configs.errors import InvalidInput
from radixtide.tiers.copy_engine import Direction, LayerGate
from radixtide.tiers.copy_lanes import LaneEngine, Moved, PoolCopy, PoolPairs, Ticket, empty_digests
from radixtide.tiers.digests import NO_DIGESTS, Digests
from radixtide.tiers.host_pool import HostPool
from radixtide.tiers.page_rows import as_run, runs_of
from radixtide.tiers.slots import Pages

STAGE_BYTES: Final = 2**25
STAGES: Final = 3
DIGEST_THREADS: Final = 4
DIRECT_BYTES: Final = 2**17
"""Runs of host pages of this mean size, or longer, are copied one by one, without sorting."""

WORDS: Final = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class CudaCopyEngine(LaneEngine):
    """Copies on CUDA streams.

    Memory besides the pools, for each direction: `stages` buffers of `stage_bytes` on the device,
    and as many pinned ones on the host once scattered pages need them.

    Args:
        pools: per pool its device tensors (all on one CUDA device) and its HostPool, pinned.
        verify: take a digest of each page on backups and compare them on loads.
        stage_bytes: of one staging buffer; a page (of a part, in layer_first) must fit.
        stages: staging buffers, and jobs that may be in flight, of each direction.
        digest_threads: threads that take digests, for both directions together.

    Raises:
        InvalidInput: tensors that are not on one CUDA device or not those of the host pool, a
            buffer that is too small for a page, or numbers below one.
    """

    def __init__(
        self,
        pools: PoolPairs,
        verify: bool = True,
        stage_bytes: int = STAGE_BYTES,
        stages: int = STAGES,
        digest_threads: int = DIGEST_THREADS,
    ) -> None:
        if min(stage_bytes, stages, digest_threads) < 1:
            raise InvalidInput("stage_bytes, stages and digest_threads must be positive")
        devices = {part.device for parts, _ in pools.values() for layer in parts for part in layer}
        if len(devices) != 1 or next(iter(devices)).type != "cuda":
            raise InvalidInput(
                f"pools must be on one CUDA device, not on {sorted(map(str, devices))}"
            )
        self._device = devices.pop()
        # Buffers begin and end on a word.
        stage_bytes = -(-stage_bytes // 8) * 8
        self._digesters = ThreadPoolExecutor(digest_threads, "radixtide-digest")
        self._digest_threads = digest_threads
        self._streams: dict[Direction, Any] = {}
        self._stages: dict[Direction, _Stages] = {}
        for direction in ("backup", "load"):
            stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # no types
            self._streams[direction] = stream
            with torch.cuda.stream(stream):
                self._stages[direction] = _Stages(stage_bytes, stages, self._device)
        super().__init__(pools, verify, in_flight=stages)
        self._units = {
            name: _units_of(device, host) for name, (device, host) in self._pools.items()
        }
        for name, units in self._units.items():
            widest = max(unit.width for unit in units)
            if widest > stage_bytes:
                self.close()
                raise InvalidInput(f"stage_bytes of {stage_bytes} is less than a page of {name}")

    def close(self) -> None:  # noqa: D102  # as in CopyEngine
        super().close()
        self._digesters.shutdown()

    def begin(self, ticket: Ticket) -> Callable[[], Moved]:  # noqa: D102  # as in LaneEngine
        job = ticket.job
        moved = Moved()
        if job.direction == "load" and self.verify:
            for copy in ticket.copies:
                if copy.expected is not None:
                    copy.settle(self._digest(copy.host, copy.host_pages), 0, "load", moved)
            if moved.bad:
                # Nothing of such a load is used, so nothing is moved.
                return lambda: moved
        stream = self._streams[job.direction]
        stages = self._stages[job.direction]
        done = _event()
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            for wait in (*ticket.waits, *ticket.fences):
                if wait.event is not None:
                    stream.wait_event(wait.event)
            try:
                held = self._launch(ticket, stages)
            except BaseException:
                # What is on the stream already still reads and writes the job's slots.
                done.record(stream)
                done.synchronize()
                stages.settle_all()
                raise
            done.record(stream)

        def rest() -> Moved:
            done.synchronize()
            stages.settle_all()
            # The indices on the device must live until the copies have run.
            held.clear()
            if job.direction == "backup" and self.verify:
                moved.digests = empty_digests(ticket.copies)
                for copy in ticket.copies:
                    copy.settle(self._digest(copy.host, copy.host_pages), 0, "backup", moved)
            return moved

        return rest

    def _launch(self, ticket: Ticket, stages: _Stages) -> list[torch.Tensor]:
        """Put the copies of a job on the current stream; return what must live until they ran."""
        held: list[torch.Tensor] = []
        backup = ticket.job.direction == "backup"
        work: list[tuple[int, _Unit, PoolCopy, torch.Tensor]] = []
        for copy in ticket.copies:
            if not len(copy.host_pages):
                continue
            index = torch.from_numpy(copy.device_pages.copy()).pin_memory()
            on_device = index.to(self._device, non_blocking=True)
            held += [index, on_device]
            work += [(unit.last, unit, copy, on_device) for unit in self._units[copy.pool]]
        # By the layer that a unit completes; the order of pools within a layer stays.
        work.sort(key=lambda one: one[0])
        gate = _GateKeeper(None if backup else ticket.job.layers)
        firsts = [unit.columns[0].layer for _, unit, _, _ in work]
        # firsts[i]: the first layer that anything from i on touches.
        firsts = list(accumulate(reversed(firsts), min))[::-1]
        for at, (_, unit, copy, index) in enumerate(work):
            gate.reached(firsts[at])
            step = stages.size // unit.width
            count = len(copy.host_pages)
            for start in range(0, count, step):
                ticket.check()
                stop = min(start + step, count)
                span = _Span(copy.host_pages[start:stop], index[start:stop])
                if backup:
                    stages.backup(unit, span)
                else:
                    final = stop == count and at == len(work) - 1
                    stages.load(unit, span, gate if final else None)
        gate.finish()
        return held

    def _digest(self, host: HostPool, pages: Pages) -> Digests:
        """Take digests with several threads."""
        if not len(pages):
            return NO_DIGESTS
        parts = np.array_split(pages, min(self._digest_threads, len(pages)))
        return np.concatenate(list(self._digesters.map(host.digests, parts)))


def _event() -> Any:
    # Whoever waits for it sleeps, instead of turning a core hot.
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # it has no types


class _Column(NamedTuple):
    """A part of the device in words, (pages, words), and its place in a row of its unit."""

    layer: int
    rows: torch.Tensor
    first: int
    stop: int


class _Unit(NamedTuple):
    """Host memory whose pages are one piece each: a part of a layer, or a whole page.

    ``host``: uint8 (pages, width), contiguous. ``array``: the same for NumPy. ``last``: the layer
    that is complete with it.
    """

    host: torch.Tensor
    array: Any
    width: int
    word: torch.dtype
    columns: list[_Column]
    last: int


class _Span(NamedTuple):
    """Pages of a unit that go at a time: on the host, and as an index on the device."""

    host: Pages
    where: torch.Tensor


class _GateKeeper:
    """Gives a gate the events of its layers."""

    def __init__(self, gate: LayerGate | None) -> None:
        self._gate = gate
        self._next = 0

    def reached(self, layer: int) -> None:
        """Layers before `layer` are complete with what is on the stream now."""
        if self._gate is None or layer <= self._next:
            return
        event = _event()
        event.record()
        while self._next < min(layer, self._gate.layers):
            self._gate.open(self._next, event)
            self._next += 1

    def finish(self) -> None:
        """Every layer is complete with what is on the stream now."""
        if self._gate is not None:
            self.reached(self._gate.layers)


class _Stage:
    """A staging buffer on the device and, once it is needed, a pinned one on the host."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.device = torch.empty(size, dtype=torch.uint8, device=device)
        self._pinned: torch.Tensor | None = None
        self._event: Any = None
        self._action: Callable[[], None] | None = None
        # The lane's two threads may both come to settle it.
        self._lock = threading.Lock()

    def pinned(self) -> torch.Tensor:
        """Return the host's buffer, which nothing uses any more."""
        self.settle()
        if self._pinned is None:
            self._pinned = torch.empty(self.size, dtype=torch.uint8, pin_memory=True)
        return self._pinned

    def pending(self, action: Callable[[], None] | None) -> None:
        """Note that the host's buffer is in use up to here; `action` is to be done then."""
        event = _event()
        event.record()
        with self._lock:
            self._event, self._action = event, action

    def settle(self) -> None:
        """Wait until the host's buffer is free."""
        with self._lock:
            if self._event is None:
                return
            self._event.synchronize()
            if self._action is not None:
                self._action()
            self._event = self._action = None


class _Stages:
    """The staging buffers of one direction, used in turn."""

    def __init__(self, size: int, count: int, device: torch.device) -> None:
        self.size = size
        self._all = [_Stage(size, device) for _ in range(count)]
        self._turn = 0

    def _next(self) -> _Stage:
        self._turn = (self._turn + 1) % len(self._all)
        return self._all[self._turn]

    def settle_all(self) -> None:
        """Sort in what has arrived on the host and lies in staging memory."""
        for stage in self._all:
            stage.settle()

    def backup(self, unit: _Unit, span: _Span) -> None:
        """Gather pages of the device and copy them to the host."""
        stage = self._next()
        count = len(span.host)
        staged = stage.device[: count * unit.width].view(count, unit.width)
        words = staged.view(unit.word)
        for column in unit.columns:
            if len(unit.columns) == 1:
                torch.index_select(column.rows, 0, span.where, out=words)
            else:
                words[:, column.first : column.stop].copy_(column.rows.index_select(0, span.where))
        if _copied_by_runs(unit, span):
            for at, page, length in runs_of(span.host):
                unit.host[page : page + length].copy_(staged[at : at + length], non_blocking=True)
            return
        pinned = stage.pinned()[: count * unit.width].view(count, unit.width)
        pinned.copy_(staged, non_blocking=True)
        target, pages, source = unit.array, as_run(span.host), pinned.numpy()

        def sort_in() -> None:
            target[pages] = source

        stage.pending(sort_in)

    def load(self, unit: _Unit, span: _Span, gate: _GateKeeper | None) -> None:
        """Copy pages of the host to the device and spread them; `gate`: they are the last."""
        stage = self._next()
        count = len(span.host)
        staged = stage.device[: count * unit.width].view(count, unit.width)
        if _copied_by_runs(unit, span):
            for at, page, length in runs_of(span.host):
                staged[at : at + length].copy_(unit.host[page : page + length], non_blocking=True)
        else:
            pinned = stage.pinned()[: count * unit.width].view(count, unit.width)
            np.take(unit.array, span.host, axis=0, out=pinned.numpy(), mode="clip")
            staged.copy_(pinned, non_blocking=True)
            stage.pending(None)
        words = staged.view(unit.word)
        for column in unit.columns:
            if gate is not None:
                gate.reached(column.layer)
            column.rows.index_copy_(0, span.where, words[:, column.first : column.stop])


def _copied_by_runs(unit: _Unit, span: _Span) -> bool:
    runs = 1 + int(np.count_nonzero(np.diff(span.host) != 1))
    return runs == 1 or len(span.host) * unit.width >= runs * DIRECT_BYTES


def _units_of(device: list[list[torch.Tensor]], host: HostPool) -> list[_Unit]:
    """Return the units of a pool: its parts in layer_first, the one of whole pages else."""
    if host.buffer is None:
        units = []
        for layer, parts in enumerate(device):
            for rows, memory in zip(parts, host.rows[layer], strict=True):
                width = rows.shape[1]
                size = gcd(width, 8)
                column = _Column(layer, rows.view(WORDS[size]), 0, width // size)
                units.append(_Unit(memory, memory.numpy(), width, WORDS[size], [column], layer))
        return units
    size = gcd(8, host.page_bytes, *(piece for layer in host.pieces for piece in layer))
    columns = []
    at = 0
    for layer, parts in enumerate(device):
        for rows in parts:
            width = rows.shape[1] // size
            columns.append(_Column(layer, rows.view(WORDS[size]), at, at + width))
            at += width
    return [
        _Unit(
            host.buffer, host.buffer.numpy(), host.page_bytes, WORDS[size], columns, host.layers - 1
        )
    ]
