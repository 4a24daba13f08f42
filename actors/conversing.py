"""Conversations: handlers that ask other actors and wait for the answers.

A conversation is a generator. It runs straight through while answers are there at once; otherwise
its cell is busy, its mail waiting, until they come. One text of an operation so serves direct and
queued delivery. A caller that goes away never touches a conversation: only its reply is dropped.

An operation plans first and applies then. While it has only planned it can be given up or run anew;
from its first message that applies it runs to its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from time import perf_counter
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final

from radixtide.actors.actor import Actor, Conversation, Round, conversation
from radixtide.actors.cell import SAMPLE, Cell
from radixtide.actors.envelope import LINES, PARKED, QUEUE, REDELIVER, Envelope, Sentinel
from radixtide.configs.errors import RadixtideError

if TYPE_CHECKING:
    from radixtide.actors.system import ActorSystem

NOTHING: Final = ()
"""The answers to a question that was not asked yet."""


class Exchange:
    """A conversation that waits for answers.

    ``replies`` has (reply, error) or None for each call; ``awaiting`` the envelopes of those that
    are None. ``applied``: something was changed, so the conversation must run to its end.
    ``applies``: the calls that are awaited change something once they are handled.
    """

    __slots__ = ("applied", "applies", "awaiting", "envelope", "generator", "many", "replies")

    def __init__(self, envelope: Envelope, generator: Conversation) -> None:
        self.envelope = envelope
        self.generator = generator
        self.applied = False
        self.applies = False
        self.many = False
        self.awaiting: list[Envelope | None] = []
        self.replies: list[tuple[Any, BaseException | None] | None] = []


class ConversingCell(Cell):
    """The runtime's side of an actor whose handlers may be conversations."""

    def __init__(self, system: ActorSystem, actor: Actor, capacity: int, batch: int) -> None:
        super().__init__(system, actor, capacity, batch)
        self.exchange: Exchange | None = None
        self.stalled: dict[Cell, deque[Envelope]] = {}
        self.lines: dict[Sentinel, deque[Envelope]] = {}

    @property
    def waiting(self) -> int:
        """How many messages wait, here or for a silent cell."""
        if not self.stalled:
            return len(self.mailbox)
        return len(self.mailbox) + sum(len(queue) for queue in self.stalled.values())

    @property
    def quiet(self) -> bool:
        """Whether nothing waits, here or for a silent cell, and nothing is being handled."""
        return not self.mailbox and not self.busy and not self.stalled

    @property
    def finished(self) -> bool:
        """Whether it is quiet, and nothing stands in line that is carried out in any case."""
        return super().finished and not any(
            envelope.gives for queue in self.lines.values() for envelope in queue
        )

    def take_waiting(self) -> list[Envelope]:
        """Take out all that waits for this cell: the conversation, the mail, the set aside."""
        waiting = super().take_waiting()
        for queue in (*self.stalled.values(), *self.lines.values()):
            waiting.extend(queue)
        self.stalled.clear()
        self.lines.clear()
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.generator.close()
            waiting.insert(0, exchange.envelope)
        return waiting

    # -- running ----------------------------------------------------------------

    def handle_now(self, message: Any) -> Any:
        """As in the base; or PARKED, then ``self.exchange.envelope`` will get the reply."""
        self.handled = handled = self.handled + 1
        started = 0.0 if handled % SAMPLE else perf_counter()
        applied = False
        asked: Cell = self
        request: Any = None
        answers: Sequence[Any] = NOTHING
        try:
            reply = self.handlers[message.__class__](message)
            # `cell.handle_now`, without the call: this is the way of nearly all messages.
            while reply.__class__ is Round:
                if answers:
                    applied = applied or request.applies
                cells = reply.cells
                for cell in cells:
                    if not cell.idle or cell.__class__ is not Cell:
                        break
                else:
                    request = reply.message
                    kind = request.__class__
                    if len(cells) == 1:
                        answers = NOTHING
                        asked = cell
                        cell.handled += 1
                        answers = [cell.handlers[kind](request)]
                    else:
                        answers = []
                        for cell in cells:
                            asked = cell
                            cell.handled += 1
                            answers.append(cell.handlers[kind](request))
                    asked = self
                    then = reply.then
                    reply = then(reply.state, reply.context, answers)
                    continue
                reply = conversation(reply)
                break
            if reply.__class__ is GeneratorType:
                # From here on others get their turn: this cell is taken.
                self.idle = False
                self.busy = True
                applied = applied or is_final(message) or (bool(answers) and request.applies)
                reply = self._drive(reply, None, None, None, None, message, applied)
                if reply is PARKED:
                    return reply
                self.free()
        except RadixtideError:
            self.free()
            raise
        except _Halfway as half:
            return self.crashed_now(message, half.crash, applied=True)
        except Exception as error:  # noqa: BLE001  # any crash is the supervisor's
            if asked is not self:
                return self._ask_again(asked, reply, answers, error, message, applied)
            applied = applied or (bool(answers) and request.applies)
            return self.crashed_now(message, error, applied)
        if started:
            self.times.add_handling(perf_counter() - started)
        return reply

    def _ask_again(
        self,
        asked: Cell,
        question: Round,
        answers: Sequence[Any],
        error: Exception,
        message: Any,
        applied: bool,
    ) -> Any:
        """Go on after `asked` crashed on a question: restart it, and ask through its mailbox.

        `answers`: of those that were asked before it; those after it were not asked yet.
        """
        asked.crashed_now(question.message, error)
        generator = conversation(question)
        calls = generator.send(None)
        later = [QUEUE] * (len(calls) - len(answers) - 1)
        replies = [*answers, REDELIVER, *later]
        exchange = Exchange(self.system.envelope(self.name, self, message), generator)
        exchange.applied = applied or _is_applied(calls, replies)
        exchange.applies = applied or question.message.applies
        exchange.many = True
        self._park(exchange, calls, replies)
        return PARKED

    def run(self, envelope: Envelope) -> Any:
        """As in the base, driving a conversation."""
        message = envelope.message
        reply = self.handlers[message.__class__](message)
        if reply.__class__ is Round:
            reply = conversation(reply)
        if reply.__class__ is GeneratorType:
            return self._drive(reply, None, None, None, envelope, message, is_final(message))
        return reply

    def crash(self, envelope: Envelope, error: Exception, applied: bool = False) -> None:
        """As in the base; what was applied halfway is not run again."""
        self.exchange = None
        if isinstance(error, _Halfway):
            super().crash(envelope, error.crash, applied=True)
        else:
            super().crash(envelope, error, applied)

    # -- asking -----------------------------------------------------------------

    def _drive(
        self,
        generator: Conversation,
        value: Any,
        error: BaseException | None,
        exchange: Exchange | None,
        envelope: Envelope | None,
        message: Any,
        applied: bool = False,
    ) -> Any:
        """Run a conversation until it ends (its reply is returned) or waits (PARKED)."""
        if exchange is not None:
            applied = exchange.applied
        try:
            while True:
                before = applied
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
                    value = QUEUE
                    if cell.idle:
                        try:
                            value = cell.handle_now(request)
                        except RadixtideError as refused:
                            error = error or refused
                            value = refused
                    if value.__class__ is Sentinel:
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
                exchange.applied = before or _is_applied(calls, replies)
                exchange.applies = applied
                exchange.many = many
                self._park(exchange, calls, replies)
                return PARKED
        except StopIteration as stop:
            return stop.value
        except RadixtideError:
            raise
        except Exception as crash:  # any crash is the supervisor's
            if applied:
                raise _Halfway(crash) from crash
            raise

    def _park(self, exchange: Exchange, calls: list[tuple[Cell, Any]], replies: list[Any]) -> None:
        """Send the calls that have no reply yet through the mailboxes, and wait."""
        self.busy = True
        self.idle = False
        if self.stalled and not exchange.applied:
            for cell, _ in calls:
                if cell in self.stalled:
                    exchange.generator.close()
                    self.stalled[cell].append(exchange.envelope)
                    self.free()
                    return
        self.exchange = exchange
        exchange.replies = [_known(reply) for reply in replies]
        system = self.system

        def on_reply(answered: Envelope, reply: Any, error: BaseException | None) -> None:
            if self.exchange is not exchange or answered.withdrawn:
                answered.receiver.answered.pop(answered.correlation, None)
                if error is None:
                    system.dropped(answered, reply)
                return
            exchange.replies[exchange.awaiting.index(answered)] = (reply, error)
            if None not in exchange.replies:
                self._resume(exchange)

        exchange.awaiting = []
        for known, reply, (cell, request) in zip(exchange.replies, replies, calls, strict=True):
            outgoing = None
            if reply is PARKED:
                # It is being handled: only its answer has to find its way.
                assert isinstance(cell, ConversingCell) and cell.exchange is not None
                outgoing = cell.exchange.envelope
                outgoing.on_reply = on_reply
            elif known is None:
                outgoing = system.envelope(self.name, cell, request, gives=True, on_reply=on_reply)
                outgoing.deliveries = int(reply is REDELIVER)
                outgoing.must = exchange.applied
            exchange.awaiting.append(outgoing)
        for outgoing, reply in zip(list(exchange.awaiting), replies, strict=True):
            if outgoing is not None and reply is not PARKED:
                system.send(outgoing)
        if self.exchange is exchange:
            system.watch(self, exchange)

    def _resume(self, exchange: Exchange) -> None:
        self.exchange = None
        exchange.applied = exchange.applied or exchange.applies
        for asked in exchange.awaiting:
            if asked is not None:
                asked.receiver.answered.pop(asked.correlation, None)
        value, error = _combine(exchange.replies, exchange.many)
        envelope = exchange.envelope
        refused: BaseException | None = None
        started = perf_counter()
        try:
            try:
                value = self._drive(
                    exchange.generator, value, error, exchange, envelope, envelope.message
                )
                if value is PARKED:
                    return
            except RadixtideError as failed:
                value, refused = None, failed
            if value.__class__ is Sentinel and value in LINES:
                self.stand_in_line(value, envelope)
                self.free()
                return
            self.note_answer(envelope, value, refused)
        except Exception as crash:  # noqa: BLE001  # any crash is the supervisor's
            self.crash(envelope, crash)
            return
        self.times.add_handling(perf_counter() - started)
        self.reply(envelope, value, refused)
        self.free()

    def set_aside(self, exchange: Exchange) -> None:
        """Stop waiting for a silent cell, if nothing is applied yet, and serve others meanwhile.

        The message waits in line for that cell and is handled anew when it answers again.
        """
        if self.exchange is not exchange or not _may_give_up(exchange):
            return
        silent = self._abandon(exchange)[0]
        self.stalled.setdefault(silent.receiver, deque()).append(exchange.envelope)
        self.system.probe(self, silent.receiver)
        self.free()

    def withdraw(self, envelope: Envelope) -> None:
        """As in the base; a conversation that has only planned is given up."""
        exchange = self.exchange
        if exchange is None or exchange.envelope is not envelope:
            super().withdraw(envelope)
        elif _may_give_up(exchange):
            envelope.withdrawn = True
            self._abandon(exchange)
            self.free()
            return
        for queue in (*self.stalled.values(), *self.lines.values()):
            if envelope in queue:
                queue.remove(envelope)

    def _abandon(self, exchange: Exchange) -> list[Envelope]:
        """End an exchange that has applied nothing; return the envelopes not answered."""
        exchange.generator.close()
        self.exchange = None
        silent = []
        for asked, reply in zip(exchange.awaiting, exchange.replies, strict=True):
            if asked is None:
                continue
            asked.withdrawn = True
            known = asked.receiver.answered.pop(asked.correlation, None)
            if reply is None:
                silent.append(asked)
                # Handled, but the answer is on its way or lost: what it owns goes back.
                reply = known
                asked.settled = known is not None
            if reply is not None and reply[1] is None:
                self.system.dropped(asked, reply[0])
        return silent

    def stand_in_line(self, line: Sentinel, envelope: Envelope) -> None:
        """Let a message wait, holding nothing, until `line` is let in."""
        queue = self.lines.setdefault(line, deque())
        if envelope not in queue:
            queue.append(envelope)
        # Being taken up again is no delivery after a crash.
        envelope.deliveries = max(envelope.deliveries - 1, 0)

    def let_in(self, line: Sentinel) -> None:
        """Take up, in order and before all other mail, what stands in `line`."""
        waiting = self.lines.pop(line, None)
        if waiting is None:
            return
        self.put_back(waiting)
        self.idle = False
        if not self.busy:
            self.free()

    def revived(self, cell: Cell) -> None:
        """Take up, in order, what waited for `cell`, which answers again."""
        waiting = self.stalled.pop(cell, None)
        if waiting is None:
            return
        self.put_back(waiting)
        if not self.busy:
            self.free()


def is_final(message: Any) -> bool:
    """Return whether an operation must run to its end from its beginning on."""
    return getattr(message, "final", False)


def _is_applied(calls: list[tuple[Cell, Any]], replies: list[Any]) -> bool:
    """Return whether calls that are to wait have changed something, or can not be taken back.

    A call that *opens* is an operation's first change: until its receiver handles it, nothing has
    happened, and it can be withdrawn.
    """
    return any(
        request.applies and not (request.opens and reply.__class__ is Sentinel)
        for (_, request), reply in zip(calls, replies, strict=True)
    )


def _may_give_up(exchange: Exchange) -> bool:
    """Return whether nothing was applied, and nothing awaited has been handled that applies."""
    return not exchange.applied and not any(
        asked is not None and asked.message.applies and asked.correlation in asked.receiver.answered
        for asked in exchange.awaiting
    )


def _known(reply: Any) -> tuple[Any, BaseException | None] | None:
    """Return what is known of a call: (reply, error), or None while it has to be posted."""
    if reply.__class__ is Sentinel:
        return None
    if isinstance(reply, RadixtideError):
        return None, reply
    return reply, None


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
