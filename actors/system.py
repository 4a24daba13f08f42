"""The actor system: starts, watches, restarts and stops actors; sends and answers.

It owns the cells in order of start and stops them in reverse. It is the only place that knows the
loop, the interceptors and the correlation numbers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from radixtide.actors.actor import Actor
from radixtide.actors.cell import RUNTIME, Cell, Stream
from radixtide.actors.conversing import ConversingCell, Exchange
from radixtide.actors.envelope import (
    LINES,
    PARKED,
    QUEUE,
    REDELIVER,
    Envelope,
    Interceptor,
    OnReply,
    Sentinel,
)
from radixtide.components.api import ActorStats
from radixtide.configs.errors import (
    CacheClosed,
    CallTimeout,
    MailboxFull,
    RadixtideError,
)
from radixtide.configs.schema import LimitsConfig

log = logging.getLogger("radixtide.actors")

T = TypeVar("T")


class Ping(msgspec.Struct, frozen=True, tag=True):
    """Asks a silent actor for a sign of life."""

    applies = False
    opens = False


class ActorSystem:
    """A supervised, ordered set of actors on one asyncio loop.

    Args:
        loop: the running loop (asyncio's, uvloop's, or a simulated one).
        limits: bounds, see :class:`~radixtide.configs.schema.LimitsConfig`.
        direct: whether an idle actor may get a message in the sender's stack.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: LimitsConfig, direct: bool = True
    ) -> None:
        self.loop = loop
        self.limits = limits
        self.interceptors: list[Interceptor] = []
        self.hooked = False
        """Whether there is an interceptor: asked once where a message would pass them all."""
        self.direct = direct
        self.on_restarted: Callable[[Cell], None] | None = None
        self.sets_aside = True
        """Whether an operation that waits for a silent actor lets others go first."""
        self._allow_direct = direct
        self._cells: list[Cell] = []
        self._sequence = 0
        self._correlation = 0
        self._crashes: dict[Cell, deque[float]] = {}
        self.unheard_errors = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def resend_after_s(self) -> float:
        """An answer missing for so long is asked for again, under the same correlation number."""
        return self.limits.resend_after_s

    # -- life -------------------------------------------------------------------

    def spawn(self, actor: Actor) -> Cell:
        """Start `actor`; it is stopped before those that were started earlier."""
        kind = ConversingCell if actor.converses else Cell
        cell = kind(self, actor, self.limits.mailbox_capacity, self.limits.batch)
        cell.handlers.setdefault(Ping, lambda _: None)
        cell.start()
        self._cells.append(cell)
        return cell

    def stop(self) -> None:
        """Stop all actors, last started first; what waits is answered with CacheClosed."""
        for cell in reversed(self._cells):
            cell.stop(CacheClosed("the cache was closed before the call was handled"))

    def statistics(self) -> dict[str, ActorStats]:
        """Return one record an actor, in order of start."""
        return {cell.name: cell.statistics() for cell in self._cells}

    @property
    def quiet(self) -> bool:
        """Whether no message waits and no conversation runs."""
        return all(cell.finished for cell in self._cells if cell.open)

    def own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in a task that nobody else has to keep; wait for it with :meth:`attend`."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def attend(self, task: asyncio.Task[T], what: str, timeout: float | None = None) -> T:
        """Return the result of a task of :meth:`own`, which goes on whoever stops waiting for it.

        Then there is nobody else to hear its error, which is logged. Raises CallTimeout.
        """
        left = True
        try:
            left = not (await asyncio.wait((task,), timeout=timeout))[0]
        finally:
            if left:
                task.add_done_callback(partial(self._ended_unattended, what))
        if left:
            raise CallTimeout(f"{what} was not over within {timeout:g} s; it is still carried out")
        return task.result()

    def _ended_unattended(self, what: str, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.unheard(what, error)

    def owns(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether `task` is one of :meth:`own`: nobody's but the system's."""
        return task in self._tasks

    def kill(self, name: str, error: BaseException) -> bool:
        """Crash the actor of that name now; False: there is none, or it is down."""
        return any(cell.kill(error) for cell in self._cells if cell.name == name)

    def may_restart(self, cell: Cell, error: BaseException) -> bool:
        """Count a crash; return whether the restart limit still allows a restart.

        An error whose class says ``counts = False`` was planned, and says nothing of the actor.
        """
        if not getattr(error, "counts", True):
            return True
        now = self.loop.time()
        crashes = self._crashes.setdefault(cell, deque())
        crashes.append(now)
        while crashes[0] < now - self.limits.restart_window_s:
            crashes.popleft()
        return len(crashes) <= self.limits.restarts_max

    def restarted(self, cell: Cell, error: BaseException) -> None:
        """Let the owner repair what is in doubt after a crash of `cell`."""
        log.warning("actor %s was restarted after %r", cell.name, error)
        if self.on_restarted is not None:
            self.on_restarted(cell)

    # -- interceptors -------------------------------------------------------------

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """Let `interceptor` see every message from now on; all delivery is queued meanwhile."""
        self.interceptors.append(interceptor)
        self._update_direct()

    def remove_interceptor(self, interceptor: Interceptor) -> None:
        """Take `interceptor` out; what it holds back is its own to deliver."""
        self.interceptors.remove(interceptor)
        self._update_direct()

    def _update_direct(self) -> None:
        self.hooked = bool(self.interceptors)
        self.direct = self._allow_direct and not self.hooked
        for cell in self._cells:
            cell.settle()

    # -- sending ------------------------------------------------------------------

    def envelope(
        self,
        sender: str,
        cell: Cell,
        message: Any,
        *,
        deadline: float | None = None,
        gives: bool = False,
        on_reply: OnReply | None = None,
    ) -> Envelope:
        """Return a new envelope with the next sequence and correlation numbers."""
        self._sequence += 1
        self._correlation += 1
        return Envelope(
            sender,
            cell,
            self._sequence,
            self._correlation,
            message,
            deadline,
            gives,
            perf_counter(),
            on_reply,
        )

    def send(self, envelope: Envelope) -> None:
        """Bring `envelope` to its receiver's mailbox, through the interceptors."""
        if not self.hooked:
            envelope.receiver.enqueue(envelope)
            return
        deliver: Callable[[Envelope], None] = envelope.receiver.enqueue
        for interceptor in reversed(self.interceptors):
            deliver = _through(interceptor, deliver)
        deliver(envelope)

    def route_reply(self, envelope: Envelope, reply: Any, error: BaseException | None) -> None:
        """Bring a reply back, through the interceptors; the first that arrives counts."""
        if not self.hooked:
            envelope.arrived(reply, error)
            return
        deliver: Callable[[], None] = partial(envelope.arrived, reply, error)
        for interceptor in self.interceptors:
            deliver = _back_through(interceptor, envelope, deliver)
        deliver()

    def tell(
        self,
        cell: Cell,
        message: Any,
        sender: str = "face",
        on_error: Callable[[Any, BaseException], None] | None = None,
    ) -> None:
        """Send a message that nobody waits for; it has room beyond the mailbox's limit.

        What one sender tells one actor is handled in the order of sending, whatever is lost or
        held back on the way.

        `on_error`: called with the message and its error, also when its receiver is gone.
        """
        envelope = self.envelope(sender, cell, message, gives=True)

        def told(answered: Envelope, reply: Any, error: BaseException | None) -> None:
            answered.receiver.answered.pop(answered.correlation, None)
            if error is not None:
                self.unheard(answered, error)
                if on_error is not None:
                    on_error(message, error)

        stream = cell.streams.get(sender)
        if stream is None:
            stream = cell.streams[sender] = Stream()
        if cell.idle and stream.whole:
            try:
                outcome = cell.handle_now(message)
            except RadixtideError as error:
                told(envelope, None, error)
                return
            if outcome is not REDELIVER:
                return
            envelope.deliveries = 1
        envelope.on_reply = told
        envelope.place = stream.take_place()
        self.send(envelope)
        self.resend(envelope)

    def resend(self, envelope: Envelope) -> None:
        """Send `envelope` again from time to time, while it may be lost and is still wanted."""
        if self.hooked:
            # Without interceptors nothing is lost or held back: no timers are needed.
            self.loop.call_later(self.resend_after_s, self._send_again, envelope)

    def _send_again(self, envelope: Envelope) -> None:
        if envelope.settled or envelope.withdrawn:
            return
        cell = envelope.receiver
        if not cell.open:
            # What was on its way, or its answer, when its receiver stopped: nobody else tells.
            known = cell.answered.get(envelope.correlation)
            envelope.arrived(*((None, cell.refusal()) if known is None else known))
            return
        if not envelope.waits:
            # Else it has arrived, and its receiver has much to do: no reason to send more.
            self.send(envelope)
        self.loop.call_later(self.resend_after_s, self._send_again, envelope)

    def ask(
        self, cell: Cell, message: Any, timeout: float, gives: bool = False, sender: str = "face"
    ) -> Any:
        """Return the reply, or a :class:`PendingReply` to await when it is not there at once.

        Raises what the handler refuses with, CacheClosed, ActorFailed, or MailboxFull (not for
        messages that give).
        """
        outcome = cell.handle_now(message) if cell.idle else QUEUE
        if outcome.__class__ is not Sentinel:
            return outcome
        return self.pending(cell, message, outcome, timeout, gives, sender)

    def pending(
        self,
        cell: Cell,
        message: Any,
        outcome: Sentinel,
        timeout: float,
        gives: bool,
        sender: str = "face",
    ) -> PendingReply:
        """Return the answer to come of a message whose direct delivery had `outcome`.

        PARKED: it is being handled; QUEUE, REDELIVER: it goes through the mailbox.
        """
        if outcome is PARKED:
            assert isinstance(cell, ConversingCell) and cell.exchange is not None
            return PendingReply(self, cell.exchange.envelope, timeout, gives)
        if outcome in LINES:
            assert isinstance(cell, ConversingCell)
            envelope = self.envelope(sender, cell, message, gives=gives)
            cell.stand_in_line(outcome, envelope)
            return PendingReply(self, envelope, timeout, gives)
        if not cell.open:
            raise cell.refusal()
        if not gives and cell.waiting >= cell.capacity:
            raise MailboxFull(
                f"{cell.waiting} messages wait for actor {cell.name} "
                "(limits.mailbox_capacity); nothing was done, try again later"
            )
        envelope = self.envelope(sender, cell, message, gives=gives)
        envelope.deliveries = int(outcome is REDELIVER)
        pending = PendingReply(self, envelope, timeout, gives)
        try:
            self.send(envelope)
        except MailboxFull:
            pending.refuse()
            raise
        return pending

    # -- what may go wrong ----------------------------------------------------------

    def unheard(self, what: Envelope | str, error: BaseException) -> None:
        """Log an error that nobody waits for."""
        self.unheard_errors += 1
        log.error("%s failed unheard: %s", what, error)

    def dropped(self, envelope: Envelope, reply: Any) -> None:
        """Undo a reply that nobody takes, if it owns something."""
        undo = envelope.receiver.actor.give_back(envelope.message, reply)
        if undo is not None and envelope.receiver.open:
            self.notify(envelope.receiver, undo)

    def notify(self, cell: Cell, message: Any) -> None:
        """Bring the runtime's own notice to an actor: before all mail, and past the interceptors.

        A notice repairs what a fault has done; a fault must not lose it.
        """
        cell.enqueue_first(self.envelope(RUNTIME, cell, message, gives=True))

    def watch(self, cell: ConversingCell, exchange: Exchange) -> None:
        """See that a waiting exchange neither blocks others for long nor waits for lost mail."""
        if not self.hooked:
            return
        if self.sets_aside:
            self.loop.call_later(self.limits.stall_after_s, cell.set_aside, exchange)
        for asked in exchange.awaiting:
            if asked is not None:
                self.resend(asked)

    def probe(self, asker: ConversingCell, silent: Cell) -> None:
        """Ask `silent` for a sign of life until it gives one, then tell `asker`."""

        def alive(envelope: Envelope, reply: Any, error: BaseException | None) -> None:
            silent.answered.pop(envelope.correlation, None)
            asker.revived(silent)

        ping = self.envelope(asker.name, silent, Ping(), gives=True, on_reply=alive)
        self.send(ping)
        self.resend(ping)


class PendingReply:
    """An answer that is not there yet; await :meth:`wait` exactly once."""

    __slots__ = ("_envelope", "_future", "_gives", "_lost", "_system", "_timer")

    def __init__(
        self, system: ActorSystem, envelope: Envelope, timeout: float, gives: bool
    ) -> None:
        self._system = system
        self._envelope = envelope
        self._gives = gives
        self._lost = False
        self._future: asyncio.Future[Any] = system.loop.create_future()
        self._timer = system.loop.call_later(timeout, self._expire, timeout)
        envelope.deadline = system.loop.time() + timeout
        envelope.gives = gives
        envelope.on_reply = self._on_reply
        system.resend(envelope)

    def _on_reply(self, envelope: Envelope, reply: Any, error: BaseException | None) -> None:
        envelope.receiver.answered.pop(envelope.correlation, None)
        if self._lost or self._future.done():
            if error is None and not self._gives:
                self._system.dropped(envelope, reply)
            elif error is not None and self._gives:
                self._system.unheard(envelope, error)
            return
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(reply)

    def refuse(self) -> None:
        """Forget the call: it was not sent."""
        self._timer.cancel()
        self._lost = True
        self._envelope.settled = True

    def _expire(self, timeout: float) -> None:
        if self._future.done():
            return
        self._abandon()
        what = type(self._envelope.message).__name__
        cell = self._envelope.receiver
        after = (
            "it is still carried out; do not give again"
            if self._gives
            else "it has no effect; try again"
        )
        self._future.set_exception(
            CallTimeout(f"{what} was not answered by {cell.name} within {timeout:g} s; {after}")
        )

    def _abandon(self) -> None:
        self._lost = True
        if self._gives:
            return
        envelope = self._envelope
        cell = envelope.receiver
        cell.withdraw(envelope)
        envelope.left = not envelope.withdrawn
        known = cell.answered.pop(envelope.correlation, None)
        if known is not None and not envelope.settled:
            # Handled, but the answer is on its way or lost.
            envelope.settled = True
            if known[1] is None:
                self._system.dropped(envelope, known[0])

    async def wait(self) -> Any:
        """Return the reply or raise its error; CallTimeout at the deadline.

        When cancelled, a call that takes is undone and a call that gives is still carried out.
        """
        try:
            return await self._future
        except asyncio.CancelledError:
            if self._future.done() and not self._future.cancelled():
                # The answer came in the very turn in which the caller was cancelled.
                if self._future.exception() is None and not self._gives:
                    self._system.dropped(self._envelope, self._future.result())
            else:
                self._abandon()
            raise
        finally:
            self._timer.cancel()


def _through(
    interceptor: Interceptor, deliver: Callable[[Envelope], None]
) -> Callable[[Envelope], None]:
    return lambda envelope: interceptor.on_send(envelope, deliver)


def _back_through(
    interceptor: Interceptor, envelope: Envelope, deliver: Callable[[], None]
) -> Callable[[], None]:
    return lambda: interceptor.on_reply(envelope, deliver)


__all__ = ("ActorSystem", "PendingReply", "Ping")
