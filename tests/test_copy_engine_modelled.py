"""Modelled copies: no bytes, only the time that they would take, on the clock that is given."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from radixtide.configs.errors import CacheClosed, InvalidInput, LoadFailed
from radixtide.tiers.copy_engine import CopyJob, CopyResult, Direction, LayerGate, Transfer
from radixtide.tiers.copy_modelled import ModelledEngine


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []

    def call_later(self, delay: float, callback: Callable[..., Any], /, *args: Any) -> None:
        heapq.heappush(self._calls, (self.now + delay, len(self._calls), callback, args))

    def run(self, until: float) -> None:
        while self._calls and self._calls[0][0] <= until:
            self.now, _, callback, args = heapq.heappop(self._calls)
            callback(*args)
        self.now = until


class Stage:
    """An engine of pools ``kv`` (10 bytes a slot) and ``ssm`` (100), at 1,000 bytes a second."""

    def __init__(self, bandwidth: float | None = 1000.0) -> None:
        self.clock = Clock()
        self.engine = ModelledEngine(self.clock, {"kv": 10, "ssm": 100}, bandwidth)
        self.ends: list[tuple[float, int, bool]] = []
        self.errors: list[str | None] = []
        self._number = 0

    def submit(self, direction: Direction, kv: int, ssm: int = 0, **more: Any) -> int:
        self._number += 1
        transfers = tuple(
            Transfer(pool, np.arange(slots), np.arange(slots))
            for pool, slots in (("kv", kv), ("ssm", ssm))
        )
        self.engine.submit(CopyJob(self._number, direction, transfers, self.on_done, **more))
        return self._number

    def on_done(self, result: CopyResult) -> None:
        assert (result.digests, result.bad) == ({}, {})
        self.ends.append((round(self.clock.now, 6), result.number, result.ok))
        self.errors.append(result.error)


def test_a_direction_moves_one_job_after_the_other() -> None:
    stage = Stage()
    stage.submit("backup", 100)
    stage.submit("backup", 50, 5)
    stage.submit("load", 20)
    stage.clock.run(10)
    assert stage.ends == [(0.2, 3, True), (1.0, 1, True), (2.0, 2, True)]


def test_without_a_bandwidth_copies_are_over_at_once() -> None:
    stage = Stage(None)
    gate = LayerGate(4)
    stage.submit("load", 10**6, layers=gate)
    assert stage.ends == [(0.0, 1, True)]
    gate.wait_layer(3, 0)


def test_jobs_wait_for_what_is_before_them_in_order() -> None:
    stage = Stage()
    written, freed = Future[None](), Future[None]()
    stage.engine.fence(freed)
    stage.engine.fence(None)
    stage.submit("backup", 100, after=(None, written))
    stage.submit("backup", 100)
    stage.submit("load", 100)
    stage.clock.run(5)
    assert stage.ends == []
    written.set_result(None)
    stage.clock.run(6.5)
    assert stage.ends == [(6.0, 1, True)]
    freed.cancel()
    freed.set_running_or_notify_cancel()
    stage.clock.run(10)
    assert stage.ends[1:] == [(7.0, 2, True), (7.5, 3, True)]
    stage.submit("load", 100)
    stage.clock.run(20)
    assert stage.ends[-1] == (11.0, 4, True)


def test_what_was_never_made_fails_its_job() -> None:
    stage = Stage()
    written: Future[None] = Future()
    gate = LayerGate(1)
    stage.submit("load", 100, after=(written,), layers=gate)
    stage.submit("load", 100)
    written.set_exception(ValueError("planted"))
    stage.clock.run(5)
    assert stage.ends == [(0.0, 1, False), (1.0, 2, True)]
    with pytest.raises(LoadFailed, match="planted"):
        gate.wait_layer(0)


def test_cancelling_and_closing_answer_every_job_once() -> None:
    stage = Stage()
    numbers = [stage.submit("backup", 100) for _ in range(4)]
    stage.clock.run(0.5)
    # The first is under way, the second waits.
    assert stage.engine.cancel(numbers[0])
    assert stage.engine.cancel(numbers[1])
    assert not stage.engine.cancel(numbers[1])
    stage.clock.run(1.6)
    assert stage.ends == [(0.5, 1, False), (0.5, 2, False), (1.5, 3, True)]
    stage.engine.close()
    stage.engine.close()
    stage.clock.run(10)
    assert stage.ends[3:] == [(1.6, 4, False)]
    assert "closed" in str(stage.errors[-1])
    with pytest.raises(CacheClosed):
        stage.submit("backup", 1)


def test_wrong_jobs_are_refused() -> None:
    stage = Stage()
    slots = np.arange(4)
    for direction, transfers in (
        ("sideways", ()),
        ("backup", (Transfer("swa", slots, slots),)),
        ("backup", (Transfer("kv", slots, np.arange(5)),)),
    ):
        with pytest.raises(InvalidInput):
            stage.engine.submit(CopyJob(1, direction, transfers, stage.on_done))  # type: ignore[arg-type]  # wrong on purpose
    stage.submit("backup", 1)
    with pytest.raises(InvalidInput, match="under way"):
        stage.engine.submit(CopyJob(1, "backup", (), stage.on_done))
    with pytest.raises(InvalidInput, match="bandwidth"):
        Stage(0.0)
