"""Cells: an actor's mailbox and the delivery of messages to it.

A cell gives its actor one message at a time, either from the mailbox, drained in batches by one
loop callback, or, when the cell is idle and nothing intercepts, at once in the sender's stack. The
order is the same on both paths, because a cell is idle only while its mailbox is empty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from time import perf_counter
from typing import TYPE_CHECKING, Any

from radixtide.actors.actor import Actor
from radixtide.actors.envelope import PARKED, REDELIVER, Envelope, Sentinel
from radixtide.actors.timings import Timings
from radixtide.components.api import ActorStats
from radixtide.configs.errors import ActorFailed, CacheClosed, RadixtideError

if TYPE_CHECKING:
    from radixtide.actors.system import ActorSystem

RUNTIME = "runtime"
"""The sender of the runtime's own notices, which repair what a fault has done."""
MUST_DELIVERIES = 1000
"""Deliveries after which a question of an operation that must go on is failed all the same."""
DEAD_MAX = 32
"""Withdrawn messages that may wait in a mailbox before it is cleared of them."""
SAMPLE = 64
"""Every so many direct deliveries one is timed; queued ones are all timed."""


class Stream:
    """What one sender tells one actor: handled in the order of sending, whatever comes first.

    What is told is sent until it has arrived, so a gap closes.
    """

    __slots__ = ("_early", "_next", "_sent")

    def __init__(self) -> None:
        self._sent = 0
        self._next = 0
        self._early: dict[int, Envelope] = {}

    @property
    def whole(self) -> bool:
        """Whether all that was sent has arrived."""
        return self._next == self._sent

    def take_place(self) -> int:
        """Return the place of one more message."""
        self._sent += 1
        return self._sent - 1

    def arrived(self, envelope: Envelope) -> list[Envelope]:
        """Note an arrival; return what can be handled now, in order."""
        assert envelope.place is not None
        if envelope.place < self._next:
            # Once more: whether it was handled is seen when its turn comes.
            return [envelope]
        self._early[envelope.place] = envelope
        ready = []
        while (following := self._early.pop(self._next, None)) is not None:
            self._next += 1
            ready.append(following)
        return ready

    def take_early(self) -> list[Envelope]:
        """Take out what has arrived too early, in order."""
        early = [self._early[place] for place in sorted(self._early)]
        self._early.clear()
        return early


class Cell:
    """The runtime's side of an actor whose handlers are plain functions that send nothing."""

    def __init__(self, system: ActorSystem, actor: Actor, capacity: int, batch: int) -> None:
        self.system = system
        self.actor = actor
        self.name = actor.name
        self.handlers = dict(actor.handlers())
        self.mailbox: deque[Envelope] = deque()
        self.capacity = capacity
        self.batch = batch
        self.open = False
        self.error: BaseException | None = None
        self.busy = False
        self.idle = False
        """Whether a message may be handled in the sender's stack right now."""
        self.answered: dict[int, tuple[Any, BaseException | None]] = {}
        self.streams: dict[str, Stream] = {}
        """What each sender has told this actor."""
        self.times = Timings()
        self.handled = 0
        self.failures = 0
        self.crashed_with: BaseException | None = None
        """The last error that crashed it, those that were planned aside."""
        self.restarts = 0
        self.degraded = False
        """Whether the actor was set aside: it answers, and does nothing."""
        self._scheduled = False
        self._depth_max = 0
        self._dead = 0
        """How many of those that wait in the mailbox were withdrawn, or a few more."""

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
        for envelope in self.take_waiting():
            self.reply(envelope, None, error)
        self.actor.on_stop()

    def take_waiting(self) -> list[Envelope]:
        """Take out all that waits for this cell, in order."""
        waiting = list(self.mailbox)
        self.mailbox.clear()
        for stream in self.streams.values():
            waiting.extend(stream.take_early())
        return waiting

    @property
    def waiting(self) -> int:
        """How many messages wait."""
        return len(self.mailbox)

    @property
    def quiet(self) -> bool:
        """Whether nothing waits and nothing is being handled."""
        return not self.mailbox and not self.busy

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do that must be done before the end."""
        return self.quiet

    def settle(self) -> None:
        """Recompute whether the cell is idle."""
        self.idle = self.system.direct and self.open and self.quiet

    def withdraw(self, envelope: Envelope) -> None:
        """Note that nobody waits for `envelope`, which takes: it need not be handled.

        Its place in the mailbox goes to others soon, however long the actor handles nothing: dead
        mail neither fills the mailbox nor keeps keys and callers' frames. Amortised cost O(1).
        """
        envelope.withdrawn = True
        if not envelope.waits:
            return
        self._dead += 1
        if self._dead > DEAD_MAX and 2 * self._dead > len(self.mailbox):
            self._dead = 0
            self.mailbox = deque(left for left in self.mailbox if not left.withdrawn)

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
            degraded=self.degraded,
        )

    # -- direct delivery --------------------------------------------------------

    def handle_now(self, message: Any) -> Any:
        """Handle `message` in the sender's stack; the caller has seen that the cell is idle.

        Returns the reply, or REDELIVER when the handler crashed before it changed anything: then
        post the message. Raises what the handler refuses with.
        """
        self.handled = handled = self.handled + 1
        started = 0.0 if handled % SAMPLE else perf_counter()
        try:
            reply = self.handlers[message.__class__](message)
        except RadixtideError:
            raise
        except Exception as error:  # noqa: BLE001  # any crash is the supervisor's
            return self.crashed_now(message, error)
        if started:
            self.times.add_handling(perf_counter() - started)
        return reply

    def crashed_now(self, message: Any, error: Exception, applied: bool = False) -> Any:
        """Restart after a crash in the sender's stack; REDELIVER, or ActorFailed if `applied`."""
        self.restart(error)
        if applied or not self.open or not self.may_redeliver(message, 1):
            raise self.failure(message, error) from error
        return REDELIVER

    def free(self) -> None:
        """Become ready for the next message."""
        self.busy = False
        if self.mailbox:
            self.schedule()
        else:
            self.settle()

    # -- queued delivery --------------------------------------------------------

    def enqueue(self, envelope: Envelope) -> None:
        """Put `envelope` into the mailbox; what was told waits for what was told before it."""
        if envelope.place is None:
            self._put(envelope, self.mailbox.append)
            return
        for ready in self.streams[envelope.sender].arrived(envelope):
            self._put(ready, self.mailbox.append)

    def enqueue_first(self, envelope: Envelope) -> None:
        """Put `envelope` in front: what undoes comes before what was sent since."""
        self._put(envelope, self.mailbox.appendleft)

    def _put(self, envelope: Envelope, put: Callable[[Envelope], None]) -> None:
        if not self.open:
            # Later, as any queued answer: the sender is not ready for it yet.
            self.system.loop.call_soon(self.reply, envelope, None, self.refusal())
            return
        self.idle = False
        envelope.waits = True
        put(envelope)
        if len(self.mailbox) > self._depth_max:
            self._depth_max = len(self.mailbox)
        if not self.busy:
            self.schedule()

    def put_back(self, envelopes: Collection[Envelope]) -> None:
        """Put what was taken out of the mailbox in front again, in order."""
        for envelope in envelopes:
            envelope.waits = True
        self.mailbox.extendleft(reversed(tuple(envelopes)))

    def refusal(self) -> BaseException:
        """Return a new error for mail that comes while the cell is closed.

        New each time: a shared one would collect the tracebacks of all who raise it.
        """
        if isinstance(self.error, RadixtideError):
            error = type(self.error)(*self.error.args)
            error.__cause__ = self.error.__cause__
            return error
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
            envelope.waits = False
            if envelope.withdrawn:
                self._dead = max(self._dead - 1, 0)
            elif not envelope.settled:
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
                reply, refused = None, None
                try:
                    if self.system.hooked:
                        for interceptor in self.system.interceptors:
                            interceptor.before_handle(envelope)
                    reply = self.run(envelope)
                    if reply.__class__ is Sentinel:
                        if reply is not PARKED:
                            self.busy = False
                            self.stand_in_line(reply, envelope)
                        return
                except RadixtideError as error:
                    refused = error
                self.note_answer(envelope, reply, refused)
        except Exception as error:  # noqa: BLE001  # any crash is the supervisor's
            self.crash(envelope, error)
            return
        self.busy = False
        self.times.add_handling(perf_counter() - started)
        self.reply(envelope, reply, refused)

    def run(self, envelope: Envelope) -> Any:
        """Run the handler of a queued message; return its reply, or PARKED if it comes later."""
        return self.handlers[envelope.message.__class__](envelope.message)

    def stand_in_line(self, line: Sentinel, envelope: Envelope) -> None:
        """Let a message wait until `line` is let in; only what converses ever has to."""
        raise NotImplementedError(line)

    def note_answer(self, envelope: Envelope, reply: Any, error: BaseException | None) -> None:
        """Note the answer before it leaves: a second delivery must not act again."""
        if envelope.on_reply is None:
            envelope.settled = True
        else:
            # Forgotten when the sender has it, or has given up waiting.
            self.answered[envelope.correlation] = (reply, error)
        if self.system.hooked:
            for interceptor in self.system.interceptors:
                interceptor.after_handle(envelope)

    def reply(self, envelope: Envelope, reply: Any, error: BaseException | None) -> None:
        """Send the answer to `envelope` back."""
        if envelope.on_reply is None:
            if error is not None:
                self.system.unheard(envelope, error)
            return
        if envelope.left:
            # Its caller is gone: what the answer owns goes back now, before a repeated call.
            envelope.settled = True
            self.answered.pop(envelope.correlation, None)
            if error is None:
                self.system.dropped(envelope, reply)
            return
        self.system.route_reply(envelope, reply, error)

    # -- failure ----------------------------------------------------------------

    def restart(self, error: BaseException) -> None:
        """Restart the actor in place, or stop it when it has crashed too often."""
        self.busy = False
        if self._revive(error):
            self.free()

    def kill(self, error: BaseException) -> bool:
        """Crash the actor now; False: it is down already.

        Between two messages, or in a conversation that waits for answers, which goes on after.
        """
        if self.open:
            self._revive(error)
            return True
        return False

    def _revive(self, error: BaseException) -> bool:
        """Restart the actor in place; False: it crashed too often, and is stopped.

        One that others can do without is set aside then, and goes on without its state.
        """
        self.failures += 1
        if getattr(error, "counts", True):
            self.crashed_with = error
        if not self.system.may_restart(self, error):
            instead = self.actor.set_aside(error)
            if instead is None:
                failed = ActorFailed(
                    f"actor {self.name} crashed {self.failures} times, last with {error!r}; "
                    "it stays down: open a new cache"
                )
                failed.__cause__ = error
                self.stop(failed)
                return False
            self.degraded = True
            self.handlers.update(instead)
        self.restarts += 1
        self.actor.on_restart(error)
        self.system.restarted(self, error)
        return True

    def may_redeliver(self, message: Any, deliveries: int) -> bool:
        """Return whether a message that crashed its receiver may come again.

        One that applies a plan must arrive: it comes until the restart limit ends the actor.
        """
        return deliveries < self.system.limits.deliveries_max or getattr(message, "applies", False)

    def failure(self, message: Any, error: BaseException) -> ActorFailed:
        """Return the error for the sender of a message that crashed its receiver."""
        failed = ActorFailed(
            f"{type(message).__name__} crashed actor {self.name}: {error!r}; what was in doubt is "
            "repaired"
        )
        failed.__cause__ = error
        return failed

    def crash(self, envelope: Envelope, error: Exception, applied: bool = False) -> None:
        """Restart after a queued message crashed its handler, and deliver it again."""
        known = self.answered.get(envelope.correlation)
        # A notice of the runtime is nobody's to make again, so it comes until it is handled.
        again = not applied and (
            (envelope.must and envelope.deliveries < MUST_DELIVERIES)
            or envelope.sender == RUNTIME
            or self.may_redeliver(envelope.message, envelope.deliveries)
        )
        if again:
            self.put_back((envelope,))
        self.restart(error)
        if known is not None and not again:
            # It was handled before the crash: its sender gets the answer.
            self.reply(envelope, *known)
        elif not again:
            self.reply(envelope, None, self.failure(envelope.message, error))
