"""Writing a journal: every message of a run, and what else happened, to a file.

A :class:`JournalWriter` is an interceptor. Install it before what injects faults: it then sees each
message as it was sent, before a fault has it, and each answer that came through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Self
from weakref import WeakKeyDictionary

import msgspec
import xxhash

from radixtide.actors.cell import RUNTIME, Cell
from radixtide.actors.coordinator import Coordinator
from radixtide.actors.envelope import Envelope
from radixtide.actors.system import ActorSystem
from radixtide.simulation.codec import clean_text, pack
from radixtide.simulation.frames import seal
from radixtide.simulation.journal_reading import JournalReader, plain, read_journal
from radixtide.simulation.journal_records import (
    MAGIC,
    NOTHING,
    Answered,
    Audit,
    Copy,
    Crash,
    Delivered,
    Fault,
    Handled,
    Header,
    Note,
    Record,
    Restart,
    Sent,
    StepBegan,
    StepEnded,
    Store,
)
from radixtide.tiers.copy_engine import CopyJob

log = logging.getLogger("radixtide.simulation")

_encode: Final = msgspec.msgpack.Encoder().encode


class JournalWriter:
    """Writes one record a thing that happens, in constant memory, in the order of the loop.

    Equal runs write equal bytes, whatever the process did before: see
    :mod:`radixtide.simulation.codec`. What can not be written does not disturb the run: the journal
    ends there, and `close` raises the error. What was written is flushed at the beginning of each
    step, so a run that hangs or dies leaves all but its last step.

    Args:
        target: a path (made anew), an open binary file (not closed here), or None: nothing is
            written, only ``digest`` is taken.
        clock: returns loop time in seconds, for instance ``loop.time``.
        header: the first record.
        base_cache: number that receipts of caches are counted from; None: that of the first cache
            whose messages are seen.

    Cost of a message: about 0.1 ms for its four records, plus its bytes at memory speed.

    Raises:
        OSError: the file can not be made.
    """

    def __init__(
        self,
        target: Path | BinaryIO | None,
        clock: Callable[[], float],
        header: Header | None = None,
        *,
        base_cache: int | None = None,
    ) -> None:
        self._clock = clock
        self._base = base_cache or 0
        self._based = base_cache is not None
        self._sources: WeakKeyDictionary[ActorSystem, int] = WeakKeyDictionary()
        self._sources_seen = 0
        self._system: ActorSystem | None = None
        self._source = 0
        self._failures: WeakKeyDictionary[Cell, int] = WeakKeyDictionary()
        self._digest = xxhash.xxh3_64()
        self._owns = isinstance(target, Path)
        self._file: BinaryIO | None = target.open("wb") if isinstance(target, Path) else target
        self._error: Exception | None = None
        self.records = 0
        self.bytes = 0
        self._put(MAGIC)
        self.write(header if header is not None else Header())

    # -- the file -------------------------------------------------------------------

    @property
    def digest(self) -> str:
        """XXH3-64 of all that was written so far, 16 hex digits."""
        return self._digest.hexdigest()

    def write(self, record: Record) -> None:
        """Append `record`."""
        self.records += 1
        self._put(seal(_encode(record)))

    def _put(self, data: bytes) -> None:
        self._digest.update(data)
        self.bytes += len(data)
        if self._file is None:
            return
        try:
            self._file.write(data)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        log.error("the journal ends here, as it can not be written: %s", error)
        self._error = error
        file, self._file = self._file, None
        if self._owns and file is not None:
            try:
                file.close()
            except OSError:
                # What is left in its buffer can not be written either.
                pass

    def flush(self) -> None:
        """Bring what was written to the file."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._fail(error)

    def close(self) -> None:
        """Flush, and close what was opened here. Idempotent. Raises what ended it early."""
        self.flush()
        file, self._file = self._file, None
        if self._owns and file is not None:
            file.close()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- as an interceptor ------------------------------------------------------------

    def on_send(self, envelope: Envelope, deliver: Callable[[Envelope], None]) -> None:
        """Note that a message leaves."""
        self._note_sent(envelope)
        deliver(envelope)

    def on_reply(self, envelope: Envelope, deliver: Callable[[], None]) -> None:
        """Note that an answer arrives."""
        receiver = envelope.receiver
        source = self._look_at(receiver)
        known = receiver.answered.get(envelope.correlation)
        if known is not None:
            error = None if known[1] is None else type(known[1]).__name__
        elif receiver.open:
            # It was never handled to its end: a crash has failed it.
            error = "ActorFailed"
        else:
            error = type(receiver.error).__name__
        self.write(
            Answered(
                self._clock(),
                envelope.correlation,
                envelope.sender,
                receiver.name,
                envelope.message.__class__.__name__,
                error,
                source,
            )
        )
        deliver()

    def before_handle(self, envelope: Envelope) -> None:
        """Note that a message is taken up."""
        receiver = envelope.receiver
        if envelope.sender == RUNTIME and envelope.deliveries == 1:
            self._note_sent(envelope)
        self.write(
            Delivered(
                self._clock(),
                envelope.correlation,
                receiver.name,
                envelope.message.__class__.__name__,
                envelope.deliveries,
                self._look_at(receiver),
            )
        )

    def after_handle(self, envelope: Envelope) -> None:
        """Note what the answer is."""
        receiver = envelope.receiver
        known = receiver.answered.get(envelope.correlation)
        reply, error, text = NOTHING, None, None
        if known is not None:
            if known[1] is not None:
                error, text = type(known[1]).__name__, clean_text(str(known[1]))
            elif known[0] is not None:
                reply = self._raw(known[0])
        self.write(
            Handled(
                self._clock(),
                envelope.correlation,
                receiver.name,
                envelope.message.__class__.__name__,
                reply,
                error,
                text,
                self._look_at(receiver),
            )
        )

    def _note_sent(self, envelope: Envelope) -> None:
        receiver = envelope.receiver
        source = self._look_at(receiver)
        message = envelope.message
        self.write(
            Sent(
                self._clock(),
                envelope.correlation,
                envelope.sender,
                receiver.name,
                message.__class__.__name__,
                self._raw(message),
                envelope.gives,
                envelope.deadline,
                source,
            )
        )

    def _look_at(self, cell: Cell) -> int:
        """Return the number of the cell's cache, having noted what crashed it meanwhile."""
        if cell.system is not self._system:
            self._turn_to(cell.system)
        if not self._based and isinstance(cell.actor, Coordinator):
            self._base = cell.actor.state.cache_id
            self._based = True
        if cell.failures and cell.failures != self._failures.get(cell):
            self._failures[cell] = cell.failures
            self.write(Crash(self._clock(), cell.name, cell.failures, not cell.open, self._source))
        return self._source

    def _turn_to(self, system: ActorSystem) -> None:
        number = self._sources.get(system)
        if number is None:
            number = self._sources[system] = self._sources_seen
            self._sources_seen += 1
        self._system = system
        self._source = number

    # -- what else happens ------------------------------------------------------------

    def note_fault(self, fault: Any, subject: Any = None) -> None:
        """Note an injected fault: its kind or plan entry, and the envelope or job that it hit."""
        kind = fault if isinstance(fault, str) else str(fault.kind)
        detail = NOTHING
        if not isinstance(fault, str):
            detail = self._raw(fault)
        number, about, source = None, NOTHING, self._source
        if isinstance(subject, Envelope):
            source = self._look_at(subject.receiver)
            number = subject.correlation
            about = self._raw(
                {
                    "sender": subject.sender,
                    "receiver": subject.receiver.name,
                    "message": subject.message.__class__.__name__,
                }
            )
        elif isinstance(subject, CopyJob):
            about = self._raw({"copy": subject.number, "direction": subject.direction})
        elif subject is not None:
            about = self._raw(subject)
        self.write(Fault(self._clock(), kind, number, about, detail, source))

    def note_step_began(self, step: int, scheduler: int, call: str, args: Any = None) -> None:
        """Note that a scheduler makes a call; flushes what was before."""
        self.flush()
        self.write(StepBegan(self._clock(), step, scheduler, call, self._raw(args)))

    def note_step_ended(
        self, step: int, scheduler: int, answer: Any = None, error: BaseException | None = None
    ) -> None:
        """Note how a call ended."""
        name = None if error is None else type(error).__name__
        text = None if error is None else clean_text(str(error))
        self.write(StepEnded(self._clock(), step, scheduler, self._raw(answer), name, text))

    def note_copy(self, number: int, direction: str, event: str, error: str | None = None) -> None:
        """Note what becomes of a copy between device and host: "submit", "begin", "done"."""
        words = None if error is None else clean_text(error)
        self.write(Copy(self._clock(), number, direction, event, words, self._source))

    def note_store(
        self, operation: str, event: str, pages: int = 0, error: str | None = None
    ) -> None:
        """Note what becomes of a call of a store, about so many pages."""
        words = None if error is None else clean_text(error)
        self.write(Store(self._clock(), operation, event, pages, words, self._source))

    def note_restart(self, how: str) -> None:
        """Note that another cache takes the place of the last one."""
        self.write(Restart(self._clock(), how, self._source))

    def note_audit(self, violations: Sequence[Any]) -> None:
        """Note a recount: violations (or their words), none where all is sound."""
        words = [
            one if isinstance(one, str) else f"{one.clause}: {one.message}" for one in violations
        ]
        self.write(Audit(self._clock(), [clean_text(one) for one in words], self._source))

    def note(self, text: str, detail: Any = None) -> None:
        """Note anything else."""
        self.write(Note(self._clock(), clean_text(text), self._raw(detail)))

    def _raw(self, value: Any) -> msgspec.Raw:
        if value is None:
            return NOTHING
        if isinstance(value, str):
            value = clean_text(value)
        try:
            return msgspec.Raw(pack(value, self._base))
        except Exception as error:  # noqa: BLE001  # raised here it would crash the actor
            self._fail(error)
            return NOTHING


__all__ = ("JournalReader", "JournalWriter", "plain", "read_journal")
