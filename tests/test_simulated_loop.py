"""The simulated loop: virtual time, drawn and repeatable order, and the duties of an event loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from typing import Any

import anyio
import pytest

from radixtide.configs.errors import InvalidInput
from radixtide.simulation.loop import OLDEST_EVERY, START_S, Deadlock, SimulatedLoop
from support.actors import turns

SEEDS = range(20)


def tangle(seed: int, **options: Any) -> list[str]:
    """Return what some tasks did, in order, with the times."""
    loop = SimulatedLoop(seed, **options)
    done: list[str] = []

    def note(what: str) -> None:
        done.append(f"{what} {loop.time():.6f}")

    async def work(name: str) -> None:
        for at in range(4):
            await turns(at)
            await asyncio.sleep(0.001 * at)
            note(f"{name}{at}")
            await asyncio.to_thread(note, f"{name}{at} thread")

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                group.create_task(work(name))

    loop.run(main())
    return done


# -- time --------------------------------------------------------------------------------------


def test_time_stands_still_but_for_the_turns() -> None:
    loop = SimulatedLoop(1, tick_s=0.25)
    assert loop.time() == START_S
    loop.run(turns(7))
    assert loop.turns == pytest.approx((loop.time() - START_S) / 0.25)
    assert 8 <= loop.turns < 16


def test_time_jumps_to_the_next_timer() -> None:
    loop = SimulatedLoop(1)
    loop.run(asyncio.sleep(3600.0))
    assert loop.time() == pytest.approx(START_S + 3600.0, abs=0.001)
    assert loop.turns < 10


@pytest.mark.parametrize("seed", SEEDS)
def test_timers_fire_in_the_order_of_their_times_and_never_early(seed: int) -> None:
    loop = SimulatedLoop(seed)
    fired: list[tuple[float, float]] = []

    # Many of them are due at once after a turn.
    def note(when: float) -> None:
        fired.append((when, loop.time()))

    times = [START_S + 3e-6 * ((7 * at) % 23) for at in range(23)]

    async def main() -> None:
        for when in times:
            loop.call_at(when, note, when)
        await turns(100)

    loop.run(main())
    assert [when for when, _ in fired] == sorted(times)
    assert all(now >= when for when, now in fired)


def test_timers_of_one_time_fire_in_the_order_they_were_set() -> None:
    loop = SimulatedLoop(1)
    fired: list[int] = []

    async def main() -> None:
        for at in range(50):
            loop.call_at(START_S + 1.0, fired.append, at)
        await asyncio.sleep(2.0)

    loop.run(main())
    assert fired == list(range(50))


def test_a_timeout_is_of_virtual_time() -> None:
    loop = SimulatedLoop(1)

    async def main() -> tuple[float, float]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(100.0):
                await asyncio.Event().wait()
        first = loop.time()
        with anyio.move_on_after(50.0) as scope:
            await asyncio.Event().wait()
        assert scope.cancelled_caught
        return first, loop.time()

    first, second = loop.run(main())
    assert first == pytest.approx(START_S + 100.0, abs=0.001)
    assert second == pytest.approx(START_S + 150.0, abs=0.001)


def test_cancelled_timers_take_no_memory_until_they_would_be_due() -> None:
    loop = SimulatedLoop(1)

    async def main() -> int:
        kept = loop.call_later(500.0, int)
        most = 0
        for _ in range(5000):
            loop.call_later(1000.0, int).cancel()
            most = max(most, len(loop._timers))
            await asyncio.sleep(0)
        assert not kept.cancelled()
        assert kept.when() == pytest.approx(START_S + 500.0, abs=0.001)
        return most

    assert loop.run(main()) < 200


# -- order -------------------------------------------------------------------------------------


def test_one_seed_is_one_order_and_others_are_others() -> None:
    orders = {tuple(tangle(seed)) for seed in SEEDS}
    assert len(orders) == len(SEEDS)
    for seed in SEEDS:
        assert tangle(seed) == tangle(seed)


@pytest.mark.nightly
def test_an_order_does_not_depend_on_how_strings_are_hashed() -> None:
    script = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from test_simulated_loop import tangle\n"
        "print(tangle(5))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert told == {f"{tangle(5)}\n"}


def test_which_of_the_ready_callbacks_runs_is_drawn_evenly() -> None:
    firsts: Counter[int] = Counter()
    for seed in range(400):
        loop = SimulatedLoop(seed)
        order: list[int] = []
        for at in range(4):
            loop.call_soon(order.append, at)
        loop.call_later(1.0, loop.stop)
        loop.run_forever()
        loop.close()
        assert sorted(order) == [0, 1, 2, 3]
        firsts[order[0]] += 1
    assert all(70 < count < 130 for count in firsts.values()), firsts


def test_fifo_keeps_the_order_of_call_soon() -> None:
    for seed in range(5):
        loop = SimulatedLoop(seed, order="fifo")
        order: list[int] = []

        async def main(order: list[int] = order, loop: SimulatedLoop = loop) -> None:
            for at in range(50):
                loop.call_soon(order.append, at)
            await turns(2)

        loop.run(main())
        assert order == list(range(50))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_callback_is_passed_over_for_long(seed: int) -> None:
    loop = SimulatedLoop(seed)
    waited: list[int] = []

    async def main() -> None:
        others = [loop.create_task(turns(10_000)) for _ in range(40)]
        for _ in range(40):
            begun = loop.turns
            await asyncio.sleep(0)
            waited.append(loop.turns - begun)
        # A timer that is due is not passed over either.
        begun = loop.turns
        await asyncio.sleep(1e-9)
        waited.append(loop.turns - begun)
        for other in others:
            other.cancel()

    loop.run(main())
    assert max(waited) <= 2 * OLDEST_EVERY * 41
    assert len(set(waited)) > 10


@pytest.mark.parametrize("options", [{"order": "lifo"}, {"tick_s": 0.0}, {"tick_s": -1.0}])
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        SimulatedLoop(1, **options)


# -- no threads --------------------------------------------------------------------------------


def test_what_goes_to_a_thread_runs_in_this_one_at_a_drawn_moment() -> None:
    def where() -> tuple[int, bool]:
        running = True
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            running = False
        return threading.get_ident(), running

    async def main() -> float:
        begun = asyncio.get_running_loop().time()
        assert await asyncio.to_thread(where) == (threading.get_ident(), False)
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(lambda: 1 // 0)
        return asyncio.get_running_loop().time() - begun

    took = [SimulatedLoop(seed).run(main()) for seed in SEEDS]
    assert len(set(took)) == len(took)
    assert all(0 < one < 0.005 for one in took)


def test_what_was_given_to_a_thread_is_mostly_done_even_if_its_caller_is_cancelled() -> None:
    done: list[int] = []

    async def main(seed: int) -> None:
        call = asyncio.create_task(asyncio.to_thread(done.append, seed))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(1.0)

    for seed in range(200):
        SimulatedLoop(seed).run(main(seed))
    assert 100 < len(done) < 200


def test_another_thread_is_told_to_stay_away() -> None:
    loop = SimulatedLoop(1)
    problems: list[Exception] = []

    def meddle() -> None:
        try:
            loop.call_soon_threadsafe(int)
        except RuntimeError as error:
            problems.append(error)

    async def main() -> None:
        loop.call_soon_threadsafe(problems.clear)
        await turns(2)
        thread = threading.Thread(target=meddle)
        thread.start()
        thread.join()

    loop.run(main())
    assert "another thread" in str(problems[0])


# -- nothing left to happen --------------------------------------------------------------------


def test_a_wait_for_nothing_is_a_deadlock_that_names_who_waits() -> None:
    async def forgotten(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        event = asyncio.Event()
        await asyncio.gather(forgotten(event), asyncio.create_task(event.wait(), name="named"))

    with pytest.raises(Deadlock) as error:
        SimulatedLoop(1).run(main())
    told = str(error.value)
    assert "forgotten, in Event.wait (locks.py:" in told
    assert "named: Event.wait" in told
    assert "task-1: " in told
    assert told.count("\n") == 3


def test_a_loop_that_nobody_stops_and_nothing_happens_on_is_a_deadlock() -> None:
    loop = SimulatedLoop(1)
    loop.call_soon(int)
    with pytest.raises(Deadlock, match="no task at all"):
        loop.run_forever()
    assert not loop.is_running()
    loop.close()
