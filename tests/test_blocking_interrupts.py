"""KeyboardInterrupt in the middle of a blocking call: nothing leaks, and the next call works.

Signals come from another thread, at moments that differ from run to run, and at chosen ones: while
a call waits, and with its answer on the way.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import pytest

import radixtide
from radixtide import (
    AllocateParams,
    DoubleFree,
    InsertParams,
    LockReceipt,
    MatchPrefixParams,
    OutOfSlots,
    RadixKey,
    Request,
)
from radixtide.actors.envelope import Envelope
from radixtide.blocking import UnifiedRadixCache
from radixtide.blocking_loop import Call, TaskCall
from support.blocking import blocking_cache, found, nothing_held, put, until
from support.caches import tokens
from support.interceptors import Recorder, Stall
from support.tier_config import SETS, tier_config

KEY = RadixKey(tokens(16))


class Interrupts:
    """Raises KeyboardInterrupt in the main thread, while it is armed."""

    def __init__(self) -> None:
        self.armed = False
        self.seen = 0
        self.orders: SimpleQueue[float | None] = SimpleQueue()
        self.sent: SimpleQueue[None] = SimpleQueue()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise once."""
        if self.armed:
            self.armed = False
            self.seen += 1
            raise KeyboardInterrupt

    def send(self) -> None:
        """Send the signal from any thread."""
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def send_when(self, true: Callable[[], bool]) -> None:
        """Send it as soon as `true()`."""
        until(true)
        self.send()

    def serve(self) -> None:
        """Send one after each delay that is ordered, in seconds; in a thread of its own."""
        waiting = threading.Event()
        while (seconds := self.orders.get()) is not None:
            waiting.wait(seconds)
            self.send()
            self.sent.put(None)

    def during(self, call: Callable[..., Any], seconds: float) -> Any:
        """Make a call with an interrupt on its way; return its answer, or None if it was hit.

        `call` is a plain function: when one that is written in C returns, such as a partial, the
        interpreter looks for signals before its caller has the answer.
        """
        answer = None
        self.orders.put(seconds)
        try:
            self.armed = True
            answer = call()
            self.armed = False
        except KeyboardInterrupt:
            pass
        self.sent.get()
        return answer


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    made = Interrupts()
    before = signal.signal(signal.SIGINT, made.handle)
    interval = sys.getswitchinterval()
    # Threads take turns often, so that a signal comes at all kinds of moments.
    sys.setswitchinterval(1e-5)
    sender = threading.Thread(target=made.serve)
    sender.start()
    try:
        yield made
    finally:
        made.orders.put(None)
        sender.join()
        sys.setswitchinterval(interval)
        signal.signal(signal.SIGINT, before)


@contextmanager
def small_cache(delivery: Any = "direct", **more: Any) -> Iterator[UnifiedRadixCache]:
    with blocking_cache(tier_config(SETS[0], page_size=4, delivery=delivery, **more)) as cache:
        put(cache, tokens(16))
        cache.drain()
        yield cache


def turns(interrupts: Interrupts, hits: int = 12, most: int = 6000) -> Iterator[float]:
    """Yield delays until so many calls were hit."""
    dice = random.Random(hits)
    for _ in range(most):
        if interrupts.seen >= hits:
            return
        yield dice.random() ** 2 * 4e-4
    pytest.fail(f"only {interrupts.seen} of {most} calls were hit")


def lock(cache: UnifiedRadixCache) -> LockReceipt | None:
    return cache.match_prefix(MatchPrefixParams(key=KEY, lock=True)).receipt


def books(cache: UnifiedRadixCache) -> tuple[int, int, int]:
    stats = cache.stats()
    return stats.receipts, stats.requests, stats.pools["full"]["device"].held


both = pytest.mark.parametrize("delivery", ["direct", "queued"])


@pytest.mark.slow
@both
def test_an_interrupted_match_leaves_no_lock(interrupts: Interrupts, delivery: Any) -> None:
    with small_cache(delivery) as cache:
        for seconds in turns(interrupts):
            receipt = interrupts.during(lambda: lock(cache), seconds)
            if receipt is not None:
                cache.dec_lock_ref(receipt)
            assert books(cache) == (0, 0, 0)
        nothing_held(cache)


@pytest.mark.slow
@both
def test_an_interrupted_lock_leaves_no_lock(interrupts: Interrupts, delivery: Any) -> None:
    with small_cache(delivery) as cache:
        node = cache.match_prefix(MatchPrefixParams(key=KEY)).last_device_node
        for seconds in turns(interrupts):
            receipt = interrupts.during(lambda: cache.inc_lock_ref(node), seconds)
            if receipt is not None:
                cache.dec_lock_ref(receipt)
            assert books(cache) == (0, 0, 0)
        nothing_held(cache)


@pytest.mark.slow
@both
def test_an_interrupted_allocation_leaves_no_slot(interrupts: Interrupts, delivery: Any) -> None:
    with small_cache(delivery) as cache:
        params = AllocateParams(num_tokens=8)
        for seconds in turns(interrupts):
            room = interrupts.during(lambda: cache.allocate(params), seconds)
            if room is not None:
                cache.free(room.indices)
            assert books(cache) == (0, 0, 0)
        nothing_held(cache)


@pytest.mark.slow
@both
def test_an_interrupted_load_leaves_no_lock(interrupts: Interrupts, delivery: Any) -> None:
    with small_cache(delivery) as cache:
        match = cache.match_prefix(MatchPrefixParams(key=KEY))
        for seconds in turns(interrupts):
            cache.drain()
            cache.flush("device")
            load = interrupts.during(lambda: cache.load_back(match), seconds)
            if load is not None:
                load.close()
            assert books(cache) == (0, 0, 0)
        cache.drain()
        nothing_held(cache)


@pytest.mark.slow
@both
def test_a_request_whose_match_and_room_are_interrupted_has_neither(
    interrupts: Interrupts, delivery: Any
) -> None:
    with small_cache(delivery) as cache:
        for number, seconds in enumerate(turns(interrupts)):
            req = Request(rid=str(number), origin_input_ids=tokens(20))
            params = MatchPrefixParams(key=KEY, req=req, lock=True)
            match = interrupts.during(lambda params=params: cache.match_prefix(params), seconds)
            assert (match is None) == (req.lock is None)
            assert books(cache)[:2] == ((0, 0) if match is None else (1, 1))
            more = AllocateParams(num_tokens=4, req=req)
            room = interrupts.during(lambda more=more: cache.allocate(more), seconds)
            assert books(cache)[2] == (0 if room is None else 4)
            cache.abort_req(req)
        nothing_held(cache)


@pytest.mark.slow
@both
def test_a_call_that_gives_and_is_interrupted_was_carried_out_or_never_made(
    interrupts: Interrupts, delivery: Any
) -> None:
    with small_cache(delivery) as cache:
        for seconds in turns(interrupts):
            slots = cache.allocate(AllocateParams(num_tokens=8)).indices
            hits = interrupts.seen
            interrupts.during(lambda slots=slots: cache.free(slots), seconds)
            if interrupts.seen > hits:
                with suppress(DoubleFree):
                    cache.free(slots)
            assert books(cache) == (0, 0, 0)
        nothing_held(cache)


@pytest.mark.slow
def test_a_block_that_is_interrupted_anywhere_releases_its_lock(interrupts: Interrupts) -> None:
    with small_cache() as cache:
        match = cache.match_prefix(MatchPrefixParams(key=KEY))

        def block() -> None:
            with cache.hold(match):
                found(cache, tokens(4))

        for seconds in turns(interrupts, 30):
            interrupts.during(block, seconds)
            until(lambda: cache.stats().receipts == 0)
        nothing_held(cache)


def test_a_call_that_waits_is_left_at_once(interrupts: Interrupts) -> None:
    with small_cache() as cache:
        stall = Stall(kind="CommitMatch")
        cache.add_interceptor(stall)
        until_waiting = threading.Thread(
            target=interrupts.send_when, args=(lambda: bool(stall.held),)
        )
        until_waiting.start()
        interrupts.armed = True
        with pytest.raises(KeyboardInterrupt):
            cache.match_prefix(MatchPrefixParams(key=KEY, lock=True))
        until_waiting.join()
        cache._thread.ask(stall.release)
        cache.remove_interceptor(stall)
        nothing_held(cache)
        assert found(cache, tokens(16)) == 16


def test_an_answer_that_nobody_took_any_more_is_given_back(interrupts: Interrupts) -> None:
    # The signal is sent while the call is handled; the answer is there before it is looked at.
    class Sends(Recorder):
        def before_handle(self, envelope: Envelope) -> None:
            if type(envelope.message).__name__ == "MatchPrefixParams":
                interrupts.send()

    with small_cache() as cache:
        sends = Sends()
        cache.add_interceptor(sends)
        for _ in range(20):
            interrupts.armed = True
            try:
                lock(cache)
                interrupts.armed = False
                pytest.fail("it was not interrupted")
            except KeyboardInterrupt:
                pass
            assert cache.stats().receipts == 0
        cache.remove_interceptor(sends)
        nothing_held(cache)


def test_several_calls_in_one_are_cancelled_where_they_wait(interrupts: Interrupts) -> None:
    notes: list[Any] = []

    async def many(core: radixtide.UnifiedRadixCache) -> None:
        for _ in range(2):
            notes.append((await core.allocate(AllocateParams(num_tokens=4))).indices)
        try:
            interrupts.send()
            await core.drain(600.0)
        finally:
            notes.append("cancelled")

    with small_cache() as cache:
        slots = cache.allocate(AllocateParams(num_tokens=8)).indices
        gate: Future[None] = Future()
        key = RadixKey(tokens(8, start=500))
        cache.insert(InsertParams(key=key, value=slots), ready=gate)
        interrupts.armed = True
        with pytest.raises(KeyboardInterrupt):
            cache.run(many)
        assert notes.pop() == "cancelled"
        for one in notes:
            cache.free(one)
        gate.set_result(None)
        cache.drain()
        nothing_held(cache)


def test_a_call_is_cancelled_also_before_its_task_has_begun() -> None:
    seen: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    with small_cache() as cache:
        for kind in (Call, TaskCall):
            call = kind(cache._thread, waits, None)
            call.gone = threading.Event()

            def leave(call: Call = call) -> None:
                call.begin()
                call.left = True
                call.abandon()
                call.abandon()

            cache._thread.ask(leave)
            assert call.gone.wait(20.0)
            assert isinstance(call.error, asyncio.CancelledError)
        assert seen == ["cancelled", "cancelled"]


def test_a_second_interrupt_does_no_harm(interrupts: Interrupts) -> None:
    class Twice(Interrupts):
        def handle(self, number: int, frame: FrameType | None) -> None:
            self.seen += 1
            raise KeyboardInterrupt

    twice = Twice()
    before = signal.getsignal(signal.SIGINT)
    with small_cache() as cache:
        stall = Stall(kind="CommitMatch")
        cache.add_interceptor(stall)

        def send() -> None:
            until(lambda: bool(stall.held))
            twice.send()
            until(lambda: twice.seen == 1)
            twice.send()
            until(lambda: twice.seen == 2)

        # What the first interrupt waits for is held up, so that the second finds it there.
        sender = threading.Thread(target=send)
        sender.start()
        signal.signal(signal.SIGINT, twice.handle)
        try:
            with suppress(KeyboardInterrupt):
                lock(cache)
            with suppress(KeyboardInterrupt):
                until(lambda: twice.seen == 2)
        finally:
            sender.join()
            signal.signal(signal.SIGINT, before)
        cache._thread.ask(stall.release)
        cache.remove_interceptor(stall)
        nothing_held(cache)


def test_an_interrupted_close_can_be_made_again(interrupts: Interrupts, tmp_path: Path) -> None:
    cache = UnifiedRadixCache(tier_config(SETS[0], page_size=4, url=f"lmdb:{tmp_path}")).start()
    put(cache, tokens(16))
    interrupts.during(cache.close, 1e-3)
    cache.close()
    assert not any(one.name == "radixtide-loop" for one in threading.enumerate())


def test_any_error_that_a_handler_raises_is_taken_like_an_interrupt() -> None:
    class Alarm(Exception):
        pass

    def ring(number: int, frame: FrameType | None) -> None:
        raise Alarm

    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with small_cache() as cache:
            stall = Stall(kind="CommitMatch")
            cache.add_interceptor(stall)
            ident = threading.main_thread().ident or 0

            def send() -> None:
                until(lambda: bool(stall.held))
                signal.pthread_kill(ident, signal.SIGUSR1)

            sender = threading.Thread(target=send)
            sender.start()
            with pytest.raises(Alarm):
                lock(cache)
            sender.join()
            cache._thread.ask(stall.release)
            cache.remove_interceptor(stall)
            nothing_held(cache)
            with pytest.raises(OutOfSlots):
                cache.allocate(AllocateParams(num_tokens=10_000))
    finally:
        signal.signal(signal.SIGUSR1, before)
