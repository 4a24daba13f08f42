"""Actors and the cells they live in: mailbox, delivery, conversations.

An :class:`Actor` is state and handlers. Its :class:`Cell` gives it one message at a time, either
from the mailbox, drained in batches by one loop callback, or, when the cell is idle and nothing
intercepts, at once in the sender's stack. The order is the same on both paths, because a cell is
idle only while its mailbox is empty.

A handler is a function of the message that returns the reply. A handler that must ask others is a
generator, a *conversation*: it yields what it wants answered, ``(cell, message)`` or a list of such
pairs, and gets the reply or the replies. It runs straight through while answers are there at once;
otherwise the cell is busy, its mail waiting, until they come. A caller that goes away never touches
a conversation: only its reply is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from time import perf_counter
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from radixtide.actors.envelope import PARKED, REDELIVER, Envelope
from radixtide.actors.timings import Timings
from radixtide.components.api import ActorStats
from radixtide.configs.errors import ActorFailed, CacheClosed, RadixtideError

if TYPE_CHECKING:
    from radixtide.actors.system import ActorSystem

Conversation = Generator[Any, Any, Any]
Handler = Callable[[Any], Any]

SAMPLE = 64
"""Every so many direct deliveries one is timed; queued ones are all timed."""


class Actor:
    """State and handlers; everything else is the cell's."""

    name: str = "actor"
    converses: bool = True
    """Whether a handler may be a conversation. False promises plain functions that send nothing,
    which a direct delivery can call without marking the cell busy."""

    def handlers(self) -> Mapping[type, Handler]:
        """Return the handler of each message type."""
        return {}

    def on_start(self) -> None:
        """Run before the first message."""

    def on_stop(self) -> None:
        """Run after the last message, once."""

    def on_restart(self, error: BaseException) -> None:
        """Run after a crash, before the message in hand comes again. State is kept."""

    def give_back(self, message: Any, reply: Any) -> Any:
        """Return the message to itself that undoes a `reply` nobody took, or None."""
        return None

    def lru_lengths(self) -> tuple[int | None, int | None]:
        """Return the lengths of device and host LRU, for statistics."""
        return None, None


class Exchange:
    """A conversation that waits for answers.

    ``replies`` has (reply, error) or None for each call; ``awaiting`` the envelopes of those that
    are None. ``applied``: something was changed, so the conversation must run to its end.
    """

    __slots__ = ("applied", "awaiting", "envelope", "generator", "many", "replies")

    def __init__(self, envelope: Envelope, generator: Conversation) -> None:
        self.envelope = envelope
        self.generator = generator
        self.applied = False
        self.many = False
        self.awaiting: list[Envelope | None] = []
        self.replies: list[tuple[Any, BaseException | None] | None] = []


class Cell:
    """The runtime's side of one actor."""

    def __init__(self, system: ActorSystem, actor: Actor, capacity: int, batch: int) -> None:
        self.system = system
        self.actor = actor
        self.name = actor.name
        self.handlers = dict(actor.handlers())
        self.mailbox: deque[Envelope] = deque()
        self.capacity = capacity
        self.batch = batch
        self.converses = actor.converses
        self.open = False
        self.error: BaseException | None = None
        self.busy = False
        self.idle = False
        """Whether a message may be handled in the sender's stack right now."""
        self.exchange: Exchange | None = None
        self.answered: dict[int, tuple[Any, BaseException | None]] = {}
        self.stalled: dict[Cell, deque[Envelope]] = {}
        self.times = Timings()
        self.handled = 0
        self.failures = 0
        self.restarts = 0
        self._scheduled = False
        self._depth_max = 0

    # -- life -----------------------------------------------------------------

    def start(self) -> None:
        """Run the start hook and accept mail."""
        self.actor.on_start()
        self.open = True
        self.settle()

    def stop(self, error: BaseException) -> None:
        """Refuse mail, answer what waits with `error`, run the stop hook. Idempotent."""
        if not self.open:
            return
        self.open = False
        self.idle = False
        self.error = error
        waiting = list(self.mailbox)
        for queue in self.stalled.values():
            waiting.extend(queue)
        self.mailbox.clear()
        self.stalled.clear()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.generator.close()
            waiting.insert(0, exchange.envelope)
        for envelope in waiting:
            self.reply(envelope, None, error)
        self.actor.on_stop()

    def settle(self) -> None:
        """Recompute whether the cell is idle."""
        self.idle = (
            self.system.direct
            and self.open
            and not self.busy
            and not self.mailbox
            and not self.stalled
        )

    def statistics(self) -> ActorStats:
        """Return what this actor did, as an immutable record."""
        device_lru, host_lru = self.actor.lru_lengths()
        times = self.times
        return ActorStats(
            name=self.name,
            alive=self.open,
            handled=self.handled,
            failures=self.failures,
            restarts=self.restarts,
            mailbox_depth=len(self.mailbox),
            mailbox_depth_max=self._depth_max,
            mailbox_capacity=self.capacity,
            wait_mean_s=times.wait_s / times.waited if times.waited else 0.0,
            wait_max_s=times.wait_max_s,
            handling_mean_s=times.handling_s / times.timed if times.timed else 0.0,
            handling_max_s=times.handling_max_s,
            device_lru=device_lru,
            host_lru=host_lru,
        )

    # -- direct delivery --------------------------------------------------------

    def handle_now(self, message: Any) -> Any:
        """Handle `message` in the sender's stack; the caller has seen that the cell is idle.

        Returns the reply; or PARKED, then ``self.exchange.envelope`` will get it; or REDELIVER,
        when the handler crashed before it changed anything: post the message. Raises what the
        handler refuses with.
        """
        self.handled = handled = self.handled + 1
        started = 0.0 if handled % SAMPLE else perf_counter()
        if not self.converses:
            try:
                result = self.handlers[message.__class__](message)
            except RadixtideError:
                raise
            except Exception as error:  # noqa: BLE001  # any crash is the supervisor's
                return self._crashed_now(message, error)
            if started:
                self.times.add_handling(perf_counter() - started)
            return result
        self.idle = False
        self.busy = True
        try:
            result = self.handlers[message.__class__](message)
            if result.__class__ is GeneratorType:
                result = self._drive(result, None, None, None, None, message)
                if result is PARKED:
                    return result
        except RadixtideError:
            self._free()
            raise
        except Exception as error:  # noqa: BLE001  # any crash is the supervisor's
            return self._crashed_now(message, error)
        if started:
            self.times.add_handling(perf_counter() - started)
        self.busy = False
        if self.mailbox:
            self.schedule()
        else:
            # Nothing else can have changed while one synchronous handler ran.
            self.idle = self.system.direct and self.open
        return result

    def _crashed_now(self, message: Any, error: Exception) -> Any:
        applied = isinstance(error, _Halfway)
        cause = error.crash if isinstance(error, _Halfway) else error
        self._restart(cause)
        if applied or not self.open:
            raise self._failure(message, cause) from cause
        return REDELIVER

    def _free(self) -> None:
        self.busy = False
        if self.mailbox:
            self.schedule()
        else:
            self.settle()

    # -- queued delivery --------------------------------------------------------

    def enqueue(self, envelope: Envelope) -> None:
        """Put `envelope` into the mailbox."""
        if not self.open:
            self.reply(envelope, None, self.refusal())
            return
        self.idle = False
        self.mailbox.append(envelope)
        if len(self.mailbox) > self._depth_max:
            self._depth_max = len(self.mailbox)
        if not self.busy:
            self.schedule()

    def refusal(self) -> BaseException:
        """Return the error for mail that comes while the cell is closed."""
        if isinstance(self.error, RadixtideError):
            return self.error
        return CacheClosed(f"actor {self.name} is not running; open the cache with `async with`")

    def schedule(self) -> None:
        """See that the mailbox is drained soon."""
        if not self._scheduled:
            self._scheduled = True
            self.system.loop.call_soon(self._drain)

    def _drain(self) -> None:
        self._scheduled = False
        left = self.batch
        while self.mailbox and not self.busy and left and self.open:
            left -= 1
            envelope = self.mailbox.popleft()
            if not envelope.withdrawn and not envelope.settled:
                self._handle(envelope)
        if self.busy or not self.open:
            return
        if self.mailbox:
            self.schedule()
        else:
            self.settle()

    def _handle(self, envelope: Envelope) -> None:
        started = perf_counter()
        self.times.add_wait(started - envelope.sent_at)
        envelope.deliveries += 1
        self.busy = True
        self.handled += 1
        try:
            known = self.answered.get(envelope.correlation)
            if known is not None:
                reply, refused = known
            else:
                for interceptor in self.system.interceptors:
                    interceptor.before_handle(envelope)
                reply, refused = None, None
                try:
                    reply = self.handlers[envelope.message.__class__](envelope.message)
                    if reply.__class__ is GeneratorType:
                        reply = self._drive(reply, None, None, None, envelope, envelope.message)
                        if reply is PARKED:
                            return
                except RadixtideError as error:
                    refused = error
                self._handled(envelope, reply, refused)
        except Exception as error:  # noqa: BLE001  # any crash is the supervisor's
            self._crash(envelope, error)
            return
        self.busy = False
        self.times.add_handling(perf_counter() - started)
        self.reply(envelope, reply, refused)

    def _handled(self, envelope: Envelope, reply: Any, error: BaseException | None) -> None:
        """Note the answer before it leaves: a second delivery must not act again."""
        if envelope.on_reply is None:
            envelope.settled = True
        elif self.system.interceptors:
            # Only what intercepts can cause a second delivery.
            self.answered[envelope.correlation] = (reply, error)
        for interceptor in self.system.interceptors:
            interceptor.after_handle(envelope)

    def reply(self, envelope: Envelope, reply: Any, error: BaseException | None) -> None:
        """Send the answer to `envelope` back."""
        if envelope.on_reply is None:
            if error is not None:
                self.system.unheard(envelope, error)
            return

        def deliver() -> None:
            if not envelope.settled and envelope.on_reply is not None:
                envelope.settled = True
                envelope.on_reply(envelope, reply, error)

        self.system.route_reply(envelope, deliver)

    # -- failure ----------------------------------------------------------------

    def _restart(self, error: BaseException) -> None:
        """Restart the actor in place, or stop it when it has crashed too often."""
        self.failures += 1
        self.busy = False
        if not self.system.may_restart(self):
            failed = ActorFailed(
                f"actor {self.name} crashed {self.failures} times, last with {error!r}; "
                "it stays down: open a new cache"
            )
            failed.__cause__ = error
            self.stop(failed)
            return
        self.restarts += 1
        self.actor.on_restart(error)
        self.system.restarted(self)
        self._free()

    def _failure(self, message: Any, error: BaseException) -> ActorFailed:
        failed = ActorFailed(
            f"{type(message).__name__} crashed actor {self.name}: {error!r}; what was in doubt is "
            "repaired"
        )
        failed.__cause__ = error
        return failed

    def _crash(self, envelope: Envelope, error: Exception) -> None:
        """Restart after a queued message crashed its handler, and deliver it again."""
        applied = isinstance(error, _Halfway)
        cause = error.crash if isinstance(error, _Halfway) else error
        self.exchange = None
        again = not applied and envelope.deliveries < self.system.limits.deliveries_max
        if again:
            self.mailbox.appendleft(envelope)
        self._restart(cause)
        if not again:
            self.reply(envelope, None, self._failure(envelope.message, cause))

    # -- conversations ------------------------------------------------------------

    def _drive(
        self,
        generator: Conversation,
        value: Any,
        error: BaseException | None,
        exchange: Exchange | None,
        envelope: Envelope | None,
        message: Any,
    ) -> Any:
        """Run a conversation until it ends (its reply is returned) or waits (PARKED)."""
        applied = exchange is not None and exchange.applied
        try:
            while True:
                if error is None:
                    calls = generator.send(value)
                else:
                    calls = generator.throw(error)
                    error = None
                if calls.__class__ is tuple:
                    many = False
                    calls = [calls]
                else:
                    many = True
                replies: list[Any] = []
                missing = 0
                for cell, request in calls:
                    if request.applies:
                        applied = True
                    value = REDELIVER
                    if cell.idle:
                        try:
                            value = cell.handle_now(request)
                        except RadixtideError as refused:
                            error = error or refused
                            value = refused
                    if value is REDELIVER:
                        missing += 1
                    replies.append(value)
                if not missing:
                    if error is None:
                        value = replies if many else replies[0]
                    continue
                error = None
                if exchange is None:
                    if envelope is None:
                        envelope = self.system.envelope(self.name, self, message)
                    exchange = Exchange(envelope, generator)
                exchange.applied = applied
                exchange.many = many
                exchange.replies = [
                    None
                    if reply is REDELIVER
                    else (None, reply)
                    if isinstance(reply, RadixtideError)
                    else (reply, None)
                    for reply in replies
                ]
                self._park(exchange, calls)
                return PARKED
        except StopIteration as stop:
            return stop.value
        except RadixtideError:
            raise
        except Exception as crash:  # any crash is the supervisor's
            if applied:
                raise _Halfway(crash) from crash
            raise

    def _park(self, exchange: Exchange, calls: list[tuple[Cell, Any]]) -> None:
        """Send the calls that have no reply yet through the mailboxes, and wait."""
        self.busy = True
        self.idle = False
        if self.stalled and not exchange.applied:
            for cell, _ in calls:
                if cell in self.stalled:
                    exchange.generator.close()
                    self.stalled[cell].append(exchange.envelope)
                    self._free()
                    return
        self.exchange = exchange
        system = self.system

        def on_reply(answered: Envelope, reply: Any, error: BaseException | None) -> None:
            if self.exchange is not exchange or answered.withdrawn:
                if error is None:
                    system.dropped(answered, reply)
                return
            exchange.replies[exchange.awaiting.index(answered)] = (reply, error)
            if None not in exchange.replies:
                self._resume(exchange)

        exchange.awaiting = [
            system.envelope(self.name, cell, request, gives=True, on_reply=on_reply)
            if known is None
            else None
            for known, (cell, request) in zip(exchange.replies, calls, strict=True)
        ]
        for outgoing in list(exchange.awaiting):
            if outgoing is not None:
                system.send(outgoing)
        if self.exchange is exchange:
            system.watch(self, exchange)

    def _resume(self, exchange: Exchange) -> None:
        self.exchange = None
        for asked in exchange.awaiting:
            if asked is not None:
                asked.receiver.answered.pop(asked.correlation, None)
        value, error = _combine(exchange.replies, exchange.many)
        envelope = exchange.envelope
        refused: BaseException | None = None
        try:
            try:
                value = self._drive(
                    exchange.generator, value, error, exchange, envelope, envelope.message
                )
                if value is PARKED:
                    return
            except RadixtideError as failed:
                value, refused = None, failed
            self._handled(envelope, value, refused)
        except Exception as crash:  # noqa: BLE001  # any crash is the supervisor's
            self._crash(envelope, crash)
            return
        self.reply(envelope, value, refused)
        self._free()

    def set_aside(self, exchange: Exchange) -> None:
        """Stop waiting for a silent cell, if nothing is applied yet, and serve others meanwhile.

        The message waits in line for that cell and is handled anew when it answers again.
        """
        if self.exchange is not exchange or exchange.applied:
            return
        silent = self._abandon(exchange)[0]
        self.stalled.setdefault(silent.receiver, deque()).append(exchange.envelope)
        self.system.probe(self, silent.receiver)
        self._free()

    def withdraw(self, envelope: Envelope) -> bool:
        """Nobody waits for `envelope` any more; return whether it will have no effect."""
        exchange = self.exchange
        if exchange is not None and exchange.envelope is envelope:
            if exchange.applied:
                return False
            self._abandon(exchange)
            envelope.withdrawn = True
            self._free()
        envelope.withdrawn = True
        return True

    def _abandon(self, exchange: Exchange) -> list[Envelope]:
        """End an exchange that has applied nothing; return the envelopes not answered."""
        exchange.generator.close()
        self.exchange = None
        silent = []
        for asked, reply in zip(exchange.awaiting, exchange.replies, strict=True):
            if asked is None:
                continue
            asked.withdrawn = True
            if reply is None:
                silent.append(asked)
            elif reply[1] is None:
                self.system.dropped(asked, reply[0])
        return silent

    def revived(self, cell: Cell) -> None:
        """Take up, in order, what waited for `cell`, which answers again."""
        waiting = self.stalled.pop(cell, None)
        if waiting is None:
            return
        self.mailbox.extendleft(reversed(waiting))
        if not self.busy:
            self._free()


def _combine(
    replies: list[tuple[Any, BaseException | None] | None], many: bool
) -> tuple[Any, BaseException | None]:
    """Return what a conversation gets: reply or list of replies, or the first refusal."""
    values = []
    for one in replies:
        assert one is not None
        if one[1] is not None:
            return None, one[1]
        values.append(one[0])
    return (values if many else values[0]), None


class _Halfway(Exception):
    """A conversation crashed after it had applied something: it must not run again."""

    def __init__(self, crash: Exception) -> None:
        super().__init__(repr(crash))
        self.crash = crash
