"""The journal: it has all that happened, it is the same for the same run, damage is seen."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from radixtide import MatchPrefixParams, UnifiedRadixCache
from radixtide.components.api import Violation
from radixtide.configs.errors import (
    ActorFailed,
    CallTimeout,
    InvalidInput,
    ReceiptReleased,
    StaleNode,
)
from radixtide.simulation.frames import HEAD, FrameError, seal
from radixtide.simulation.journal import JournalWriter, plain, read_journal
from radixtide.simulation.journal_compare import JournalComparison
from radixtide.simulation.journal_records import (
    MAGIC,
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
from support.caches import key, make_config, match, store
from support.interceptors import CrashAfter, CrashBefore, DropFirst, DropReply
from support.journals import few_calls, journalled, kinds, records


def of_kind(found: list[Record], kind: str) -> list[Any]:
    return [record for record in found if getattr(record, "kind", None) == kind]


# -- what is written --------------------------------------------------------------------


def test_a_message_has_four_records_in_order() -> None:
    found = of_kind(records(journalled()), "DecLockRef")
    assert [type(record) for record in found] == [Sent, Delivered, Handled, Answered]
    sent, delivered, handled, answered = found
    assert (sent.sender, sent.receiver, sent.gives) == ("face", "coordinator", True)
    assert plain(sent.message)["receipt"]["receipt"] == 1
    assert delivered.times == 1
    assert plain(handled.reply)["unprotected"] == {"full": 8}
    assert answered.error is None
    assert len({record.number for record in found}) == 1
    assert [record.at for record in found] == sorted(record.at for record in found)


def test_steps_stand_around_what_they_cause() -> None:
    found = records(journalled())
    begins = [i for i, record in enumerate(found) if isinstance(record, StepBegan)]
    ends = [i for i, record in enumerate(found) if isinstance(record, StepEnded)]
    assert [found[i].call for i in begins] == ["insert", "match", "unlock"]  # type: ignore[union-attr]  # chosen above
    for begin, end, kind in zip(
        begins, ends, ("InsertParams", "MatchPrefixParams", "DecLockRef"), strict=True
    ):
        assert of_kind(found[begin:end], kind)
    step, over = found[begins[1]], found[ends[1]]
    assert isinstance(step, StepBegan)
    assert isinstance(over, StepEnded)
    assert step.step == 2
    assert plain(over.answer)["miss_reason"] == "complete"


def test_a_refusal_is_told_with_its_words() -> None:
    async def scene(cache: UnifiedRadixCache, journal: JournalWriter) -> None:
        await store(cache, key(8))
        found = await match(cache, key(8), lock=True)
        assert found.receipt is not None
        await cache.dec_lock_ref(found.receipt)
        journal.note_step_began(9, 0, "unlock")
        with pytest.raises(ReceiptReleased) as refused:
            await cache.dec_lock_ref(found.receipt)
        journal.note_step_ended(9, 0, error=refused.value)

    found = records(journalled(scene))
    calls = of_kind(found, "DecLockRef")
    errors = [record.error for record in calls if isinstance(record, Handled | Answered)]
    assert errors == [None, None, "ReceiptReleased", "ReceiptReleased"]
    handled = calls[-2]
    assert "released before" in handled.text
    (ended,) = [record for record in found if isinstance(record, StepEnded)]
    assert (ended.error, ended.text) == ("ReceiptReleased", handled.text)


def test_a_lost_message_is_sent_again_and_delivered_once() -> None:
    found = of_kind(
        records(journalled(faults=[DropFirst("MatchPrefixParams")])), "MatchPrefixParams"
    )
    assert [type(record) for record in found] == [Sent, Sent, Delivered, Handled, Answered]
    assert found[0].message == found[1].message
    assert found[1].at - found[0].at == pytest.approx(1.0, abs=0.1)


def test_a_lost_answer_is_handled_once_and_arrives_once() -> None:
    found = of_kind(
        records(journalled(faults=[DropReply("MatchPrefixParams")])), "MatchPrefixParams"
    )
    assert [type(record) for record in found] == [Sent, Delivered, Handled, Sent, Answered]


@pytest.mark.parametrize("fault", [CrashBefore, CrashAfter])
def test_a_crash_is_told_and_what_repairs_it(fault: Any) -> None:
    found = records(journalled(faults=[fault("CommitMatch", "full")]))
    (crash,) = [record for record in found if isinstance(record, Crash)]
    assert (crash.actor, crash.failures, crash.down) == ("full", 1, False)
    repair = of_kind(found, "Repair")
    assert [type(record) for record in repair] == [Sent, Delivered, Handled]
    assert repair[0].sender == "runtime"
    times = [record.times for record in of_kind(found, "CommitMatch") if type(record) is Delivered]
    assert times == ([1, 2] if fault is CrashBefore else [1])


def test_an_actor_that_stays_down_is_told_and_so_is_who_asked_it() -> None:
    async def scene(cache: UnifiedRadixCache, journal: JournalWriter) -> None:
        await store(cache, key(8))
        for _ in range(cache.config.limits.restarts_max + 1):
            cache.kill("full")
        with pytest.raises(ActorFailed, match="full"):
            await match(cache, key(8))

    found = records(journalled(scene))
    crash = [record for record in found if isinstance(record, Crash)][-1]
    assert (crash.actor, crash.down) == ("full", True)
    answers = [record for record in of_kind(found, "Validate") if isinstance(record, Answered)]
    assert [record.error for record in answers] == ["ActorFailed"]


def test_what_nobody_answers_in_time_has_no_answer() -> None:
    async def scene(cache: UnifiedRadixCache, journal: JournalWriter) -> None:
        with pytest.raises(CallTimeout):
            await cache.match_prefix(MatchPrefixParams(key(8)), timeout=0.5)

    found = records(journalled(scene, faults=[DropFirst("MatchPrefixParams", count=None)]))
    (sent,) = of_kind(found, "MatchPrefixParams")
    assert isinstance(sent, Sent)
    assert sent.deadline == pytest.approx(sent.at + 0.5, abs=0.01)


def test_all_that_can_be_noted_is_read_as_it_was() -> None:
    async def scene(cache: UnifiedRadixCache, journal: JournalWriter) -> None:
        sent: list[Any] = []

        class Seen(DropFirst):
            def on_send(self, envelope: Any, deliver: Any) -> None:
                sent.append(envelope)
                deliver(envelope)

        cache.add_interceptor(Seen())
        await match(cache, key(8))
        journal.note_fault("drop", sent[0])
        journal.note_fault("host_refuse", "full")
        journal.note_copy(3, "backup", "done", f"lost <object {object()!r}>")
        journal.note_store("put", "over", 4)
        journal.note_restart("killed")
        journal.note_audit([Violation("sizes", "7 slots are nobody's"), "words"])
        journal.note_audit([])
        journal.note("seen", [1, 2])

    found = records(journalled(scene))[-8:]
    drop, refuse, copy, store_, restart, audit, sound, note = found
    assert isinstance(drop, Fault)
    assert (drop.kind, drop.number) == ("drop", 1)
    assert plain(drop.subject)["receiver"] == "coordinator"
    assert isinstance(refuse, Fault)
    assert (refuse.number, plain(refuse.subject)) == (None, "full")
    assert isinstance(copy, Copy)
    assert (copy.number, copy.error) == (3, "lost <object <object object>>")
    assert isinstance(store_, Store)
    assert store_.pages == 4
    assert isinstance(restart, Restart)
    assert isinstance(audit, Audit)
    assert audit.violations == ["sizes: 7 slots are nobody's", "words"]
    assert isinstance(sound, Audit)
    assert sound.violations == []
    assert isinstance(note, Note)
    assert plain(note.detail) == [1, 2]


def test_caches_of_one_journal_are_told_apart() -> None:
    async def scene(cache: UnifiedRadixCache, journal: JournalWriter) -> None:
        async with UnifiedRadixCache(cache.config) as other:
            other.add_interceptor(journal)
            for one in (cache, other, cache):
                await match(one, key(8))

    found = of_kind(records(journalled(scene)), "MatchPrefixParams")
    assert [record.source for record in found if isinstance(record, Sent)] == [0, 1, 0]
    assert {record.source for record in found} == {0, 1}


# -- the same run, the same bytes ---------------------------------------------------------


def test_equal_runs_write_equal_bytes_whatever_was_before() -> None:
    first = journalled()
    for _ in range(3):
        UnifiedRadixCache(make_config())
    assert journalled() == first
    assert journalled(page_size=1) != first


@pytest.mark.slow
@pytest.mark.nightly
def test_equal_runs_write_equal_bytes_in_every_process() -> None:
    code = (
        "from support.journals import journalled; import xxhash; "
        "print(xxhash.xxh3_64_hexdigest(journalled()))"
    )
    # This process has another seed of its hashes, or this one.
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": "tests"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        check=True,
        text=True,
    )
    assert done.stdout.strip() == xxhash.xxh3_64_hexdigest(journalled())


def test_the_digest_is_of_all_that_is_written_and_needs_no_file() -> None:
    written, unwritten = (
        JournalWriter(target, lambda: 0.0, Header(seed=1)) for target in (BytesIO(), None)
    )
    for journal in (written, unwritten):
        journal.note("one")
    assert written.digest == unwritten.digest
    before = written.digest
    written.note("two")
    assert written.digest != before
    assert (written.records, unwritten.records) == (3, 2)
    unwritten.close()


# -- reading ----------------------------------------------------------------------------


def test_the_header_comes_first_and_is_there_at_once() -> None:
    data = journalled(header=Header(seed=7, case=b"{}", made_by="radixtide"))
    reader = read_journal(BytesIO(data))
    assert reader.header == Header(seed=7, case=b"{}", made_by="radixtide")
    assert next(reader) == reader.header
    assert kinds(data)[0] == "Header"
    for _ in reader:
        pass
    assert reader.position == len(data)
    assert reader.torn is None


def test_a_torn_journal_is_read_up_to_the_tear(caplog: pytest.LogCaptureFixture) -> None:
    whole = journalled()
    frames = frames_of(whole)
    last = len(frames[-1])
    for cut in range(1, last):
        reader = read_journal(BytesIO(whole[:-cut]))
        assert len(list(reader)) == len(frames) - 1
        assert reader.torn is not None
        assert f"number {len(frames) - 1}" in reader.torn
    assert "the writer was stopped there" in caplog.text
    clean = read_journal(BytesIO(whole[:-last]))
    assert len(list(clean)) == len(frames) - 1
    assert clean.torn is None


def frames_of(data: bytes) -> list[bytes]:
    frames = []
    at = len(MAGIC)
    while at < len(data):
        size = HEAD.size + HEAD.unpack_from(data, at)[0]
        frames.append(data[at : at + size])
        at += size
    return frames


def test_a_last_record_that_is_damaged_counts_as_torn() -> None:
    data = bytearray(journalled())
    data[-1] ^= 1
    reader = read_journal(BytesIO(bytes(data)))
    assert len(list(reader)) == len(frames_of(bytes(data))) - 1
    assert reader.torn is not None
    assert "damaged" in reader.torn


def test_damage_in_the_middle_is_refused_and_located() -> None:
    whole = journalled()
    place = len(whole) // 2
    damaged = bytearray(whole)
    damaged[place] ^= 0x10
    reader = read_journal(BytesIO(bytes(damaged)))
    with pytest.raises(FrameError, match="byte") as found:
        list(reader)
    assert place - 2000 < reader.position <= place
    assert str(reader.position) in str(found.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is no journal"),
        (b"PK\x03\x04 something else", "is no journal"),
        (MAGIC, "without a header"),
        (MAGIC + seal(msgspec.msgpack.encode(Header(version=99))), "version 99"),
        (MAGIC + seal(msgspec.msgpack.encode(Restart(0.0, "x"))), "version"),
    ],
)
def test_what_is_no_journal_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_journal(BytesIO(data))


def test_a_record_of_no_known_kind_is_refused() -> None:
    data = journalled() + seal(msgspec.msgpack.encode({"type": "later"}))
    with pytest.raises(FrameError, match="later"):
        list(read_journal(BytesIO(data)))


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.journal"):
        read_journal(tmp_path / "absent.journal")


# -- files ------------------------------------------------------------------------------


def test_a_path_is_written_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    journalled(target=path)
    assert path.read_bytes() == journalled()
    assert [type(one) for one in records(path)] == [type(one) for one in records(journalled())]


def test_each_step_begins_with_all_before_it_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    journal = JournalWriter(path, lambda: 0.0, Header())
    journal.note("before")
    journal.note_step_began(1, 0, "match")
    # As whoever looks at it after the process was killed.
    assert [type(one) for one in records(path)] == [Header, Note]
    journal.close()
    journal.close()
    assert [type(one) for one in records(path)] == [Header, Note, StepBegan]


class Full(BytesIO):
    """A file on a disk that is full after so many bytes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room

    def write(self, data: Any) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError("no space left on device")
        return super().write(data)


def test_a_full_disk_ends_the_journal_and_not_the_run() -> None:
    ended = []

    async def scene(cache: UnifiedRadixCache, journal: JournalWriter) -> None:
        await few_calls(cache, journal)
        stats = await cache.stats()
        ended.append(sum(one.failures for one in stats.actors.values()))

    file = Full(4000)
    with pytest.raises(OSError, match="no space"):
        journalled(scene, target=file)
    assert ended == [0]
    whole = journalled(scene)
    assert 3000 < len(file.getvalue()) <= 4000
    assert whole.startswith(file.getvalue())


def test_what_can_not_be_written_ends_the_journal_and_crashes_nobody() -> None:
    class Unruly(int):
        @property
        def __class__(self) -> Any:
            raise StaleNode("it has no class")

        @__class__.setter
        def __class__(self, value: Any) -> None: ...

    journal = JournalWriter(BytesIO(), lambda: 0.0)
    journal.note("fine")
    journal.note("odd", [Unruly()])
    journal.note("after")
    with pytest.raises(StaleNode):
        journal.close()


def test_memory_does_not_grow_with_the_journal() -> None:
    journal = JournalWriter(None, lambda: 0.0)
    sizes = []
    tracemalloc.start()
    try:
        for count in range(4000):
            journal.note("a note that is as long as any other note", list(range(50)))
            if count % 1000 == 999:
                sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert journal.bytes > 400_000
    assert sizes[-1] - sizes[0] < 20_000


# -- comparing --------------------------------------------------------------------------


def compare(path: Path, data: bytes, **how: Any) -> str | None:
    with JournalComparison(path, **how) as comparison:
        comparison.file.write(MAGIC)
        for frame in frames_of(data):
            comparison.file.write(frame)
        return comparison.difference


def test_a_run_that_is_the_same_has_no_difference(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    journalled(target=path)
    with JournalComparison(path) as comparison:
        journalled(target=comparison)
        assert comparison.difference is None
    assert compare(path, path.read_bytes()) is None


def test_the_first_record_that_differs_is_named_with_its_step(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    journalled(target=path)
    frames = frames_of(path.read_bytes())
    at = [type(one) for one in records(path)].index(StepEnded) + 3
    other = list(frames)
    other[at] = seal(msgspec.msgpack.encode(Note(1.0, "something else")))
    difference = compare(path, MAGIC + b"".join(other))
    assert difference is not None
    assert difference.startswith(f"record {at}, in step 2: the journal has Delivered(")
    assert "now it is Note(" in difference
    assert "something else" in difference


def test_a_run_that_ends_early_or_goes_on_differs(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    journalled(target=path)
    data = path.read_bytes()
    shorter = data[: -len(frames_of(data)[-1])]
    ended = compare(path, shorter)
    assert ended is not None
    assert ended.endswith("now it is no more records")
    path.write_bytes(shorter)
    went_on = compare(path, data)
    assert went_on is not None
    assert "the journal has no more records" in went_on


def test_only_so_many_steps_are_compared_where_asked(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    journalled(target=path)
    frames = frames_of(path.read_bytes())
    end = [type(one) for one in records(path)].index(StepEnded) + 1
    begun = MAGIC + b"".join(frames[:end])
    other = begun + seal(msgspec.msgpack.encode(Note(1.0, "given up")))
    assert compare(path, other, steps=1) is None
    assert compare(path, other, steps=2) is not None
    assert compare(path, other) is not None
