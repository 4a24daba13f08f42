"""Journals of small runs in virtual time, for tests of the journal and of what reads it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from radixtide import UnifiedRadixCache
from radixtide.actors.envelope import Interceptor
from radixtide.simulation.journal import JournalWriter, read_journal
from radixtide.simulation.journal_records import Header, Record
from radixtide.simulation.loop import SimulatedLoop
from support.caches import key, make_config, match, store, take

Scene = Callable[[UnifiedRadixCache, JournalWriter], Awaitable[Any]]


async def few_calls(cache: UnifiedRadixCache, journal: JournalWriter) -> None:
    """Store a key, match it with a lock, release the lock."""
    journal.note_step_began(1, 0, "insert", {"tokens": 8})
    await store(cache, key(8))
    journal.note_step_ended(1, 0, "done")
    journal.note_step_began(2, 0, "match")
    found = await match(cache, key(8), lock=True)
    assert found.receipt is not None
    journal.note_step_ended(2, 0, found)
    journal.note_step_began(3, 0, "unlock")
    await cache.dec_lock_ref(found.receipt)
    journal.note_step_ended(3, 0)
    await take(cache, 4)


def journalled(
    scene: Scene = few_calls,
    *,
    faults: Sequence[Interceptor] = (),
    target: Any = None,
    header: Header | None = None,
    seed: int = 5,
    **config: Any,
) -> bytes:
    """Run a scene on a cache under faults in virtual time; return its journal."""
    loop = SimulatedLoop(seed)
    file = BytesIO() if target is None else target
    journal = JournalWriter(file, loop.time, header or Header(seed=seed, made_by="a test"))

    async def run() -> None:
        async with UnifiedRadixCache(make_config(**config)) as cache:
            cache.add_interceptor(journal)
            for fault in faults:
                cache.add_interceptor(fault)
            await scene(cache, journal)

    with journal:
        loop.run(run())
    return file.getvalue() if isinstance(file, BytesIO) else b""


def records(data: bytes | Path) -> list[Record]:
    """Return all records of a journal."""
    return list(read_journal(BytesIO(data) if isinstance(data, bytes) else data))


def kinds(data: bytes) -> list[str]:
    """Return the classes of a journal's records."""
    return [type(record).__name__ for record in records(data)]
