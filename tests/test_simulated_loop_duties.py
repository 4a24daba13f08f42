"""The simulated loop as an event loop: errors, contexts, generators, what asyncio builds on it."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from radixtide.simulation.loop import START_S, SimulatedLoop
from support.actors import turns

SEEDS = range(20)


def test_errors_that_nobody_awaits_are_collected(caplog: pytest.LogCaptureFixture) -> None:
    loop = SimulatedLoop(1)

    async def main() -> None:
        loop.call_soon(lambda: 1 // 0)
        task = loop.create_task(asyncio.sleep(0, 1 // 1))
        await task
        lost = loop.create_future()
        lost.set_exception(ValueError("lost"))
        del lost
        gc.collect()
        await turns(3)

    with caplog.at_level(logging.ERROR):
        loop.run(main())
    kinds = [type(context["exception"]) for context in loop.errors]
    assert sorted(kinds, key=str) == [ValueError, ZeroDivisionError]
    assert "never retrieved" in caplog.text


def test_an_exception_handler_is_told_instead_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    loop = SimulatedLoop(1)
    told: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    assert loop.get_exception_handler() is not None

    async def main() -> None:
        loop.call_soon(lambda: 1 // 0)
        await turns(2)

    loop.run(main())
    assert told == loop.errors
    assert len(told) == 1
    assert not caplog.records


def test_what_a_main_leaves_behind_is_cancelled_and_closed() -> None:
    ended: list[str] = []
    loop = SimulatedLoop(1)

    async def stays() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            ended.append("task")

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            ended.append("generator")

    kept = numbers()

    async def main() -> str:
        loop.create_task(stays())
        async for _ in kept:
            break
        await asyncio.sleep(0)
        return "done"

    assert loop.run(main()) == "done"
    assert sorted(ended) == ["generator", "task"]
    assert loop.is_closed()
    assert loop.errors == []
    for call in (lambda: loop.call_soon(int), lambda: loop.call_later(1, int), loop.run_forever):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_a_generator_that_is_dropped_is_closed_on_the_loop() -> None:
    ended: list[float] = []
    loop = SimulatedLoop(1)

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0.5)
            ended.append(loop.time())

    async def main() -> None:
        generator = numbers()
        await anext(generator)
        del generator
        await asyncio.sleep(1.0)

    loop.run(main())
    assert ended == [pytest.approx(START_S + 0.5, abs=0.001)]


def test_callbacks_run_in_the_context_in_which_they_were_set() -> None:
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="none")
    seen: list[str] = []
    loop = SimulatedLoop(1)

    async def work(own: str) -> None:
        name.set(own)
        loop.call_later(0.1, lambda: seen.append(name.get()))
        await asyncio.sleep(0)
        assert name.get() == own

    async def main() -> None:
        await asyncio.gather(work("a"), work("b"))
        await asyncio.sleep(1.0)
        assert name.get() == "none"

    loop.run(main())
    assert sorted(seen) == ["a", "b"]


def test_an_interrupt_comes_out() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    async def main() -> None:
        asyncio.get_running_loop().call_soon(interrupt)
        await asyncio.sleep(1.0)

    with pytest.raises(KeyboardInterrupt):
        SimulatedLoop(1).run(main())
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_loops_do_not_run_inside_each_other() -> None:
    async def main() -> None:
        inner = SimulatedLoop(2)
        with pytest.raises(RuntimeError, match="another loop"):
            inner.run_forever()
        inner.close()
        with pytest.raises(RuntimeError, match="running"):
            asyncio.get_running_loop().close()

    SimulatedLoop(1).run(main())


def test_asyncios_own_runner_can_use_it() -> None:
    with asyncio.Runner(loop_factory=lambda: SimulatedLoop(3)) as runner:
        assert runner.run(asyncio.sleep(60.0, "slept")) == "slept"
        assert runner.get_loop().time() >= START_S + 60.0


def test_tasks_are_made_by_a_factory_where_there_is_one() -> None:
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
        made.append(coro.__qualname__)
        return asyncio.Task(coro, loop=loop, **more)

    loop = SimulatedLoop(1)
    loop.set_task_factory(factory)
    assert loop.get_task_factory() is factory

    async def main() -> str:
        return (await loop.create_task(turns(1), name="spinning"), "x")[1]

    assert loop.run(main()) == "x"
    assert "turns" in made


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_with_eager_tasks_it_works_as_well() -> None:
    loop = SimulatedLoop(1)
    loop.set_task_factory(vars(asyncio)["eager_task_factory"])
    assert loop.run(asyncio.to_thread(lambda: 4)) == 4


def test_locks_queues_and_semaphores_of_asyncio_work_whatever_the_order() -> None:
    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(2)
        lock, limit = asyncio.Lock(), asyncio.Semaphore(3)
        got: list[int] = []
        inside = 0

        async def produce(first: int) -> None:
            for at in range(first, first + 10):
                async with limit:
                    await queue.put(at)

        async def consume() -> None:
            nonlocal inside
            while True:
                item = await queue.get()
                async with lock:
                    inside += 1
                    assert inside == 1
                    await turns(item % 3)
                    inside -= 1
                got.append(item)
                queue.task_done()

        consumers = [asyncio.create_task(consume()) for _ in range(3)]
        await asyncio.gather(*(produce(10 * at) for at in range(5)))
        await queue.join()
        for one in consumers:
            one.cancel()
        return got

    for seed in SEEDS:
        assert sorted(SimulatedLoop(seed).run(main())) == list(range(50))
