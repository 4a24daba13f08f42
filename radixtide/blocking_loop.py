"""An event loop in a thread of its own, and how a call from another thread runs on it.

A call is one object that goes to the loop and comes back: the caller's thread posts it and waits
on its lock, the loop runs it and opens the lock. That costs two switches between threads and little
else; a portal with a task and a future a call costs several times as much (docs/blocking.md).

What is hard is the caller that stops waiting: a signal's handler may raise in it between any two
instructions, with the answer on its way. So a caller that leaves says so on the call, the loop
looks after the call, and whatever it has taken is given back.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401 - see _at_exit
import os
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from threading import get_ident
from typing import Any, Final, TypeVar

from radixtide.configs.errors import CacheClosed, InvalidInput

LEAVING_S: Final = 1.0
"""How long a caller that was interrupted waits until what it took is given back."""
LEAVING_TURNS: Final = 64
"""Turns of the loop within which what it took is given back, on a loop that is never quiet."""

EXIT_S: Final = 5.0
"""How long the end of a program that did not close its cache waits for queued calls."""

NOT_OPEN: Final = "the cache is not open; use `with UnifiedRadixCache(...)`, or start()"
CLOSED: Final = "the cache is closed"
CUT_OFF: Final = "the cache was closed before the call was answered"
FORKED: Final = (
    "the cache is another process's: this one was forked from it, and the cache's thread was not "
    "copied; make a cache after the fork"
)

T = TypeVar("T")

Undo = Callable[[Any], None]
Closing = Callable[[float], Coroutine[Any, Any, None]]


class Call:
    """One call. Its function returns a coroutine that needs no task for its first steps.

    Most calls never wait: those are over when ``begin`` returns, and no task is made for them.

    ``answered`` is locked until there is a ``result`` or an ``error``. ``undo``: what gives back a
    result that nobody takes; a call that has it is not begun once its caller is gone, while one
    that gives is. ``left``: the caller waits no more; ``gone`` is then set when nothing of the call
    is left. The caller's thread writes these two, the loop's all else.
    """

    __slots__ = (
        "_attended",
        "_function",
        "_owner",
        "_task",
        "_undo",
        "_undone",
        "answered",
        "error",
        "gone",
        "left",
        "over",
        "result",
    )

    def __init__(self, owner: LoopThread, function: Callable[[], Any], undo: Undo | None) -> None:
        self._owner = owner
        self._function = function
        self._undo = undo
        self._undone = False
        self._task: asyncio.Task[None] | None = None
        self._attended = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.answered = threading.Lock()
        self.answered.acquire()
        self.left = False
        self.over = False
        self.gone: threading.Event | None = None

    def begin(self) -> None:
        """Run the call up to its first wait."""
        if self.left and self._undo is not None:
            self._end()
            return
        try:
            coroutine = self._function()
            waits_for = coroutine.send(None)
        except StopIteration as stop:
            self.answer(stop.value)
        except BaseException as error:  # noqa: BLE001 - it is the caller's, whatever it is
            self.fail(error)
        else:
            self._go_on(_rest(coroutine, waits_for))

    def _go_on(self, work: Coroutine[Any, Any, Any]) -> None:
        def ended(_: asyncio.Task[None]) -> None:
            if not self.over:
                # The end of the loop came before the first step of the task.
                work.close()
                self.fail(asyncio.CancelledError())

        self._task = asyncio.get_running_loop().create_task(self._attend(work))
        self._task.add_done_callback(ended)

    async def _attend(self, work: Coroutine[Any, Any, Any]) -> None:
        self._attended = True
        try:
            result = await work
        except BaseException as error:  # noqa: BLE001 - as in begin
            self.fail(error)
        else:
            self.answer(result)

    def answer(self, result: Any) -> None:
        """Hand the result over, or give it back when nobody waits."""
        self.result = result
        self._end()

    def fail(self, error: BaseException) -> None:
        """Let the caller raise `error`."""
        if not self.over:
            if isinstance(error, asyncio.CancelledError) and not self.left:
                # Nobody cancels a call but the end of the loop.
                error = CacheClosed(CUT_OFF)
            self.error = error
            self._end()

    def _end(self) -> None:
        self.over = True
        self._owner.calls.discard(self)
        if self.left:
            self.abandon()
        else:
            self.answered.release()

    def abandon(self) -> None:
        """See the caller off: cancel what it waited for, or give back what it was answered."""
        if not self.over:
            if self._task is None:
                self._end()  # it was not even posted
            elif not self._attended:
                # A task that is cancelled before its first step would not let the call know.
                asyncio.get_running_loop().call_soon(self.abandon)
            elif not self._task.cancelling():
                self._task.cancel()
            return
        if not self._undone:
            self._undone = True
            if self.error is None and self._undo is not None and self.result is not None:
                self._undo(self.result)
            self.result = None
        if self.gone is not None:
            self._owner.when_quiet(self.gone.set)


class TaskCall(Call):
    """A call that uses what only a task has, such as a scope with a deadline."""

    __slots__ = ()

    def begin(self) -> None:
        """Run the call in a task."""
        if self.left and self._undo is not None:
            self._end()
            return
        try:
            self._go_on(self._function())
        except BaseException as error:  # noqa: BLE001 - as in Call.begin
            self.fail(error)


class PlainCall(Call):
    """A call of a plain function."""

    __slots__ = ()

    def begin(self) -> None:
        """Run the call."""
        try:
            result = self._function()
        except BaseException as error:  # noqa: BLE001 - as in Call.begin
            self.fail(error)
        else:
            self.answer(result)


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that was run to its first wait."""
    while True:
        try:
            value = yield waits_for
        except BaseException as error:  # noqa: BLE001 - thrown in at the wait, as it came
            thrown: BaseException | None = error
        else:
            thrown = None
        try:
            waits_for = coroutine.send(value) if thrown is None else coroutine.throw(thrown)
        except StopIteration as stop:
            return stop.value


class LoopThread:
    """A loop that runs in a thread of its own, from ``start`` to ``close``; uvloop's if installed.

    `closing`: what must be done on the loop before it ends; takes a timeout in seconds. `quiet`:
    whether what was posted has been handled.

    The thread is a daemon, so that a program that forgets to close can end; the loop is then closed
    before the interpreter takes threads away.
    """

    def __init__(self, closing: Closing, quiet: Callable[[], bool]) -> None:
        self._closing = closing
        self._quiet = quiet
        self.calls: set[Call] = set()
        """Calls on their way. Callers add, the loop removes."""
        self._refusal: str | None = NOT_OPEN
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._ident = 0
        self._last: asyncio.Task[None] | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._main, name="radixtide-loop", daemon=True)

    # -- life -----------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread and wait until its loop runs."""
        self._thread.start()
        self._started.wait()

    @property
    def running(self) -> bool:
        """Whether calls can be made."""
        return self._refusal is None

    def close(self, timeout: float) -> None:
        """Do what must be done, end the loop and wait for its thread. Idempotent.

        Calls that are still under way then raise CacheClosed. Does nothing in a forked process.
        """
        if self._thread.ident is not None and self._refusal != FORKED:
            self._started.wait()
            try:
                self.call(partial(self._closing, timeout), kind=TaskCall)
            except CacheClosed:
                pass  # another thread was faster
            self.post(self._end)
            self._thread.join()

    def close_soon(self) -> None:
        """Begin to close, and wait for nothing."""

        async def close() -> None:
            await self._closing(0.0)
            self._end()

        def begin() -> None:
            self._last = asyncio.get_running_loop().create_task(close())

        self.post(begin)

    def _end(self) -> None:
        assert self._ended is not None
        self._ended.set()

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory()) as runner:
                runner.run(self._serve())
        finally:
            _RUNNING.discard(self)
            self._refusal = CLOSED
            self._started.set()
            # A caller adds its call before it looks at the refusal, so that none is missed.
            for call in list(self.calls):
                call.fail(CacheClosed(CUT_OFF))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = ended = asyncio.Event()
        self._ident = get_ident()
        _RUNNING.add(self)
        self._refusal = None
        self._started.set()
        await ended.wait()
        self._refusal = CLOSED

    def forked(self) -> None:
        """Note that this is a copy in a child process, where nothing runs."""
        self._refusal = FORKED
        # Its end would close what the parent's loop waits on.
        _KEPT.append(self._loop)

    # -- calls ------------------------------------------------------------------------

    def call(
        self,
        function: Callable[[], Coroutine[Any, Any, T]],
        *,
        kind: type[Call] = Call,
        undo: Callable[[T], None] | None = None,
    ) -> T:
        """Run a coroutine on the loop and wait for its result. `function` is called there.

        A caller that is interrupted (KeyboardInterrupt, or what else a signal's handler raises)
        cancels it; when it was answered already, `undo` gets the result that nobody took.

        Raises:
            CacheClosed: the loop does not run, or was stopped before the answer came.
            InvalidInput: this is the loop's own thread, which can not wait for itself.
        """
        result: T = self._run(kind(self, function, undo))
        return result

    def ask(self, function: Callable[[], T]) -> T:
        """Run a plain function on the loop and wait for its result. Raises as :meth:`call`."""
        result: T = self._run(PlainCall(self, function, None))
        return result

    def _run(self, call: Call) -> Any:
        if self._refusal is not None or get_ident() == self._ident:
            self.check()
        try:
            self.calls.add(call)
            if self._refusal is not None:
                # It ended just now, and may not have seen the call.
                raise CacheClosed(self._refusal)
            self._post(call.begin)
            call.answered.acquire()
            # From here to the next line of whoever called us the interpreter runs no signal
            # handler: it does so after calls of what is written in C, where functions begin, and
            # where loops go round.
            if call.error is None:
                return call.result
        except BaseException as error:
            call.left = True
            try:
                self._leave(call)
            except BaseException:  # noqa: BLE001 - interrupted again; the first is under way
                self.post(call.abandon)
            if isinstance(error, RuntimeError) and self._refusal is not None:
                raise CacheClosed(self._refusal) from None
            raise
        problem, call.error = call.error, None
        try:
            raise problem
        finally:
            # Its traceback has this frame: no cycle.
            del problem

    def check(self) -> None:
        """Raise CacheClosed unless the loop runs, and InvalidInput on its own thread."""
        if self._refusal is not None:
            raise CacheClosed(self._refusal)
        if get_ident() == self._ident:
            raise InvalidInput(
                "a blocking call from the cache's own thread would wait for itself; what runs "
                "there (interceptors, components) has the cache's messages instead"
            )

    def post(self, function: Callable[..., Any], *args: Any) -> bool:
        """Run a plain function on the loop some time, wait for nothing; False: it does not run."""
        if self._refusal is not None:
            return False
        try:
            self._post(function, *args)
        except RuntimeError:
            return False  # it ended just now
        return True

    def _post(self, function: Callable[..., Any], *args: Any) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(function, *args)

    def when_quiet(self, then: Callable[[], None], turns: int = LEAVING_TURNS) -> None:
        """Call `then` on the loop when all is quiet, or after so many of its turns."""
        if turns and self._refusal is None and not self._quiet():
            assert self._loop is not None
            self._loop.call_soon(self.when_quiet, then, turns - 1)
        else:
            then()

    def _leave(self, call: Call) -> None:
        """Let the loop clear up after a caller that was interrupted; wait a little for that."""
        call.gone = gone = threading.Event()
        if self.post(call.abandon):
            gone.wait(LEAVING_S)
        else:
            self.calls.discard(call)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    try:
        import uvloop  # noqa: PLC0415 - where it is installed
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


# -- the end of the process, and its copies -------------------------------------------------

_RUNNING: Final[set[LoopThread]] = set()
_KEPT: Final[list[Any]] = []


def _close_all() -> None:
    for one in list(_RUNNING):
        one.close(EXIT_S)


def _forked() -> None:
    for one in list(_RUNNING):
        one.forked()
    _RUNNING.clear()


def _at_exit(function: Callable[[], None]) -> None:
    """Let `function` run at the end of the program, while pools of threads still take work.

    They do not any more when `atexit` has its turn, and a cache that closes has work for them. What
    they use themselves is no public name; so there is a second way. It runs the last one first:
    theirs has to be there already.
    """
    register = getattr(threading, "_register_atexit", atexit.register)
    register(function)


_at_exit(_close_all)
os.register_at_fork(after_in_child=_forked)
