"""An event loop whose time is virtual and whose choices are seeded.

Time stands still but for a small tick that each callback costs; when nothing is ready it jumps to
the next timer. Which of the ready callbacks runs next is drawn, so that one seed is one order of
events, the same whenever it is run, and many seeds are many orders: also those that an event loop
which keeps the order of ``call_soon`` shows only when a machine is busy. There are no threads and
no files: what another thread would do happens in the loop's own, later in virtual time.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import sys
import threading
import weakref
from asyncio import events
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, TypeVarTuple

from radixtide.configs.errors import InvalidInput
from radixtide.simulation.dice import dice
from radixtide.simulation.handles import Call, Timer, where

log = logging.getLogger("radixtide.simulation")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Order = Literal["drawn", "fifo"]

START_S: Final = 1000.0
"""When a loop's time begins."""
OLDEST_EVERY: Final = 32
"""With fairness each so many turns belong to the callback that has been ready for longest."""
THREAD_S: Final = 1e-3
"""What a function takes at most that is run in an executor, and its answer on the way back."""
FEW: Final = 64
"""Fewer cancelled timers are not worth looking for."""


class Deadlock(RuntimeError):
    """Nothing is ready, no timer is set, and somebody waits: for ever, on this loop."""


if TYPE_CHECKING:
    # The checker wants every method of the abstract class; that class itself refuses what a
    # simulated loop has not: sockets, processes, signals.
    Base = asyncio.BaseEventLoop
else:
    Base = asyncio.AbstractEventLoop


class SimulatedLoop(Base):
    """A deterministic event loop.

    A turn (one callback) costs about a microsecond besides the callback itself. Not thread-safe:
    a call from another thread is an error, as its moment would be drawn by the machine.

    Args:
        seed: of the order of callbacks and of how long executors take.
        tick_s: virtual seconds that each callback costs.
        fair: no ready callback is passed over for ever: each one runs after at most twice
            ``OLDEST_EVERY`` turns for itself and each that was ready before it.
        order: ``drawn``, or ``fifo`` to keep the order of ``call_soon`` as asyncio does.

    Raises:
        InvalidInput: no such order, or a tick that is not positive (a loop that waits for time to
            pass, turn by turn, would never end).
    """

    def __init__(
        self, seed: int, *, tick_s: float = 1e-5, fair: bool = True, order: Order = "drawn"
    ) -> None:
        if order not in {"drawn", "fifo"}:
            raise InvalidInput(f"the order is drawn or fifo, not {order!r}")
        if not tick_s > 0:
            raise InvalidInput(f"tick_s must be positive, in seconds, not {tick_s}")
        self.seed = seed
        self.tick_s = tick_s
        self.order: Order = order
        self.turns = 0
        """Callbacks that were run."""
        self.errors: list[dict[str, Any]] = []
        """What was told to :meth:`call_exception_handler`."""
        self._fair = fair
        self._now = START_S
        self._dice = dice(seed, "loop")
        self._ready: list[Call | Timer] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._set = 0
        self._cancelled = 0
        self._tasks_made = 0
        self._stopping = False
        self._running = False
        self._closed = False
        self._debug = False
        self._thread = threading.get_ident()
        self._factory: Any = None
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._generators: weakref.WeakValueDictionary[int, AsyncGenerator[Any, Any]] = (
            weakref.WeakValueDictionary()
        )
        self._generators_seen = 0

    def __repr__(self) -> str:
        return f"<SimulatedLoop seed {self.seed}, {self._now:.5f} s, {self.turns} turns>"

    # -- time and calls -------------------------------------------------------------

    def time(self) -> float:
        """Return the virtual time in seconds; the first turn is at 1000."""
        return self._now

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Run `callback` in a turn to come."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        call = Call(callback, args, copy_context() if context is None else context)
        self._ready.append(call)
        return call

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Do as :meth:`call_soon`; RuntimeError from any thread but the loop's own."""
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "a simulated loop was called from another thread; what runs on it must not use "
                "threads, or a seed would not be one order of events"
            )
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` when `delay` seconds of virtual time have passed."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run `callback` at a virtual time; calls of one time run in the order they were set."""
        if self._closed:
            raise RuntimeError("Event loop is closed")
        context = copy_context() if context is None else context
        timer = Timer(callback, args, context, when, self._timer_cancelled)
        self._set += 1
        heapq.heappush(self._timers, (when, self._set, timer))
        return timer

    def _timer_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > FEW and 2 * self._cancelled > len(self._timers):
            # Calls that were answered in time leave a timer each, which is due much later.
            self._timers[:] = [entry for entry in self._timers if not entry[2].dropped]
            heapq.heapify(self._timers)
            self._cancelled = 0

    # -- running --------------------------------------------------------------------

    def run_forever(self) -> None:
        """Run until :meth:`stop`.

        Raises:
            Deadlock: nothing can happen any more.
            RuntimeError: the loop is closed, or a loop runs in this thread.
        """
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if self._running or events._get_running_loop() is not None:
            raise RuntimeError("Cannot run the event loop while another loop is running")
        self._thread = threading.get_ident()
        self._running = True
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._first_iteration, finalizer=self._finalize)
        events._set_running_loop(self)
        try:
            self._turn_until_stopped()
        finally:
            self._stopping = False
            self._running = False
            events._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _turn_until_stopped(self) -> None:
        ready, timers = self._ready, self._timers
        draw, tick = self._dice.random, self.tick_s
        drawn, fair = self.order == "drawn", self._fair
        while not self._stopping:
            due = False
            while timers and timers[0][0] <= self._now:
                if timers[0][2].dropped:
                    heapq.heappop(timers)
                    self._cancelled -= 1
                elif drawn:
                    # One more to choose from; those behind it wait, to keep to the order of time.
                    due = True
                    break
                else:
                    ready.append(self._pop_timer())
            choices = len(ready) + due
            if choices == 1:
                at = 0
            elif not choices:
                if not timers:
                    raise Deadlock(self._what_waits())
                self._now = timers[0][0]
                continue
            elif not drawn:
                at = 0
            elif fair and not (self.turns + 1) % OLDEST_EVERY:
                at = len(ready) if due and (self.turns + 1) % (2 * OLDEST_EVERY) else 0
            else:
                at = int(draw() * choices)
            call: Call | Timer = ready.pop(at) if at < len(ready) else self._pop_timer()
            if call.dropped:
                continue
            self.turns += 1
            self._now += tick
            try:
                call.context.run(call.callback, *call.arguments)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # as asyncio
                # Only what means to end the program ends the loop; so does a test's timeout.
                self.call_exception_handler(
                    {"message": f"Exception in callback {call!r}", "exception": error}
                )

    def _pop_timer(self) -> Timer:
        timer = heapq.heappop(self._timers)[2]
        timer.in_heap = False
        return timer

    def run_until_complete(self, future: Any) -> Any:
        """Run until `future` (or a task of this coroutine) is done; return its result.

        Raises:
            Deadlock: it can not be done any more.
            RuntimeError: as :meth:`run_forever`, or the loop was stopped before.
        """
        if self._closed:
            raise RuntimeError("Event loop is closed")
        waited = asyncio.ensure_future(future, loop=self)
        waited.add_done_callback(self._stop_when_done)
        try:
            self.run_forever()
        finally:
            waited.remove_done_callback(self._stop_when_done)
        if not waited.done():
            raise RuntimeError("Event loop stopped before Future completed.")
        return waited.result()

    def _stop_when_done(self, future: asyncio.Future[Any]) -> None:
        self.stop()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main`, cancel the tasks that it leaves, close what is open, and close the loop.

        Raises:
            Deadlock: `main` can not end any more.
        """
        task = self.create_task(main)
        try:
            result: T = self.run_until_complete(task)
            return result
        finally:
            try:
                self._cancel_all()
                self.run_until_complete(self.shutdown_asyncgens())
            finally:
                self.close()

    def _cancel_all(self) -> None:
        tasks = self.tasks()
        for task in tasks:
            task.cancel()
        if tasks:
            self.run_until_complete(asyncio.wait(tasks))
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                self.call_exception_handler(
                    {
                        "message": "a task that was cancelled failed",
                        "exception": error,
                        "task": task,
                    }
                )

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that are not done, in the order they were made."""
        return sorted(
            asyncio.all_tasks(self), key=lambda task: (len(task.get_name()), task.get_name())
        )

    def _what_waits(self) -> str:
        waiting = [f"{task.get_name()}: {where(task)}" for task in self.tasks()]
        listed = "\n  ".join(waiting) if waiting else "no task at all"
        return f"nothing is ready and no timer is set at {self._now:.5f} s; waiting:\n  {listed}"

    def stop(self) -> None:
        """Let :meth:`run_forever` return after the callback in hand."""
        self._stopping = True

    def is_running(self) -> bool:
        """Return whether callbacks are being run."""
        return self._running

    def is_closed(self) -> bool:
        """Return whether the loop was closed."""
        return self._closed

    def close(self) -> None:
        """Drop all that is ready or set. Idempotent; RuntimeError while it runs."""
        if self._running:
            raise RuntimeError("Cannot close a running event loop")
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    # -- tasks and futures ----------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Any,
        *,
        name: object = None,
        context: Context | None = None,
        **kwargs: Any,
    ) -> asyncio.Task[Any]:
        """Return a task; its default name counts the tasks of this loop, not of the process."""
        self._tasks_made += 1
        name = f"task-{self._tasks_made}" if name is None else str(name)
        if self._factory is not None:
            task: asyncio.Task[Any] = self._factory(self, coro, context=context, **kwargs)
            task.set_name(name)
            return task
        return asyncio.Task(coro, loop=self, name=name, context=context, **kwargs)

    def set_task_factory(self, factory: Any) -> None:
        """Let `factory` make the tasks; None: asyncio's own."""
        self._factory = factory

    def get_task_factory(self) -> Any:
        """Return what makes the tasks, or None."""
        return self._factory

    # -- what would be a thread -----------------------------------------------------

    def run_in_executor(
        self, executor: Any, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run ``func(*args)`` as a thread would, but in the loop's: at a drawn moment to come.

        Its answer arrives at a later moment still. As with a thread that was idle, a cancelled call
        is carried out all the same, most of the time. Which executor it is makes no difference.
        """
        answer: asyncio.Future[T] = self.create_future()
        begins = self._dice.random() < 7 / 8
        self.call_later(THREAD_S * self._dice.random(), self._execute, answer, begins, func, args)
        return answer

    def _execute(
        self, answer: asyncio.Future[T], begins: bool, func: Callable[..., T], args: Any
    ) -> None:
        if answer.cancelled() and not begins:
            return
        result, problem = None, None
        # There is no running loop in a thread.
        events._set_running_loop(None)
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001  # any failure is the call's answer
            problem = error
        finally:
            events._set_running_loop(self)

        def deliver() -> None:
            if answer.done():
                return
            if problem is not None:
                answer.set_exception(problem)
            else:
                answer.set_result(result)  # type: ignore[arg-type]  # func's own

        self.call_later(THREAD_S * self._dice.random(), deliver)

    def set_default_executor(self, executor: Any) -> None:
        """Do nothing: there are no executors."""

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Do nothing: there are no executors."""

    # -- generators and errors ------------------------------------------------------

    def _first_iteration(self, generator: AsyncGenerator[Any, Any]) -> None:
        self._generators_seen += 1
        self._generators[self._generators_seen] = generator

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        if not self._closed:
            self.call_soon(self._close_generator, generator)

    def _close_generator(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.create_task(generator.aclose())

    async def shutdown_asyncgens(self) -> None:
        """Close the asynchronous generators that were begun and not ended."""
        for generator in list(self._generators.values()):
            try:
                await generator.aclose()
            except Exception as error:  # noqa: BLE001  # told, and the others closed
                self.call_exception_handler(
                    {"message": "an asynchronous generator failed to close", "exception": error}
                )

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        """Let `handler` be told, besides :attr:`errors`."""
        self._handler = handler

    def get_exception_handler(
        self,
    ) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        """Return what is told of errors besides :attr:`errors`, or None."""
        return self._handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an error that nobody awaits."""
        log.error("%s", context.get("message"), exc_info=context.get("exception"))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Collect an error that nobody awaits."""
        self.errors.append(context)
        if self._handler is None:
            self.default_exception_handler(context)
        else:
            self._handler(self, context)

    def get_debug(self) -> bool:
        """Return whether asyncio's own checks are made."""
        return self._debug

    def set_debug(self, enabled: bool) -> None:
        """Have asyncio make its own checks; slower."""
        self._debug = enabled
