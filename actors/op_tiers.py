"""Operations on the tiers as a whole: what waits, what is over, drain, flush, steps of ranks."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, ClassVar

from radixtide.actors.actor import Conversation
from radixtide.actors.calls import Call
from radixtide.actors.cascade import evict_one
from radixtide.actors.envelope import WAIT_FOR_IDLE, WAIT_FOR_JOB
from radixtide.actors.jobs import BACKUP, FETCH, STORE
from radixtide.actors.messages import GetSizes
from radixtide.actors.op_backup import begin_backups, end_backup, evict_host
from radixtide.actors.op_fetch import end_fetch, found, stop_fetch
from radixtide.actors.op_load_end import end_loads, purge
from radixtide.actors.op_store import begin_stores, end_store
from radixtide.actors.state import State
from radixtide.actors.tier_messages import (
    Found,
    HostSizes,
    NoteStored,
    Report,
)
from radixtide.actors.tier_state import TierState
from radixtide.configs.errors import Busy, InvalidInput, RadixtideError
from radixtide.configs.schema import StorageConfig
from radixtide.tree.node import IN_STORAGE, ON_HOST

log = logging.getLogger("radixtide.actors")

TIERS = ("device", "host", "storage")


class Pump(Call, frozen=True, tag=True, gc=False):
    """Begin what waits. Reply: None. `agreed`: in a step that all ranks make."""

    applies: ClassVar[bool] = True

    agreed: bool = False


class Drain(Call, frozen=True, tag=True, gc=False):
    """Wait until nothing moves and nothing waits to. Reply: None."""


class Flush(Call, frozen=True, tag=True, gc=False):
    """Drop what is on a tier and not held there. Reply: slots of the carrier, or pages."""

    tier: str


class SetStorage(Call, frozen=True, tag=True, gc=False):
    """Attach a storage that is open, or (None) detach the one there is. Reply: None."""

    config: StorageConfig | None
    storage: Any


def pump(state: State, p: Pump) -> Conversation:
    """Begin the backups and stores that wait."""
    tiers = state.tiers
    if tiers is None:
        return
    tiers.waking = False
    if state.together and not p.agreed:
        # Only a step begins anything: its place among the calls is the same on all ranks.
        if tiers.idle:
            tiers.let_in(WAIT_FOR_IDLE)
        return
    yield from _try(begin_backups(state))
    if tiers.storing:
        yield from _try(begin_stores(state))
    elif tiers.to_store or tiers.after_parent:
        tiers.forget_stores()
    # What hangs on to a backup that was refused will not get it any more.
    yield from _end_fetches(state, tiers)
    yield from _try(purge(state))
    if tiers.idle:
        tiers.let_in(WAIT_FOR_IDLE)
    elif not tiers.jobs.jobs and not tiers.waking:
        # Something was refused for the moment, and no job's end will bring this here again.
        tiers.wake()


def _try(steps: Generator[Any, Any, None]) -> Generator[Any, Any, None]:
    """Do `steps`; what a component that failed keeps from being done must not stop what follows."""
    try:
        yield from steps
    except RadixtideError as error:
        log.warning("a transfer could not be begun or ended: %s", error)


def report(state: State, p: Report) -> Conversation:
    """Take a report of the tiering actor. What is reported again finds nothing to do."""
    tiers = state.tiers
    job = tiers.jobs.get(p.job) if tiers is not None else None
    if tiers is None or job is None or job.report not in (None, p):
        return
    if isinstance(p, Found) and job.slots:
        # It came before: the pages are being read by now.
        return
    if state.together:
        job.arrived = p
        return
    job.report = p
    yield from end_what_is_over(state, tiers)


def end_what_is_over(state: State, tiers: TierState) -> Generator[Any, Any, None]:
    """End jobs that have a report, and begin what they made room for.

    Backups end in the order in which they began, so that a parent's copy is there before a child's.
    """
    for job in [job for job in tiers.jobs if job.kind == BACKUP]:
        if job.report is None:
            break
        yield from _try(end_backup(state, job, job.report))
    yield from _end_fetches(state, tiers)
    for job in [job for job in tiers.jobs if job.kind == STORE and job.report is not None]:
        yield from _try(end_store(state, job, job.report))
    yield from _try(end_loads(state))
    tiers.let_in(WAIT_FOR_JOB)
    yield from pump(state, Pump(agreed=True))


def _end_fetches(state: State, tiers: TierState) -> Generator[Any, Any, None]:
    """Go on with the fetches that have a report: read what was found, or attach what was read."""
    for job in [job for job in tiers.jobs if job.kind == FETCH and job.report is not None]:
        if isinstance(job.report, Found):
            yield from _try(found(state, job, job.report))
        else:
            yield from _try(end_fetch(state, job, job.report))


def drain(state: State, p: Drain) -> Any:
    """Wait until no transfer is under way or waits."""
    tiers = state.tiers
    if tiers is None or tiers.idle:
        return None
    return WAIT_FOR_IDLE


def flush(state: State, p: Flush) -> Conversation:
    """Drop what is on one tier and not held. Raises Busy while transfers use it."""
    tiers = state.tiers
    if p.tier not in TIERS:
        raise InvalidInput(f"tier {p.tier!r} is none of {', '.join(TIERS)}")
    if p.tier == "device":
        sizes = yield state.carrier, GetSizes()
        freed = yield from evict_one(state, state.carrier, sizes.evictable)
        return freed.get(state.carrier.name, 0)
    if tiers is None:
        return 0
    if not tiers.idle:
        kinds = sorted({job.kind for job in tiers.jobs})
        raise Busy(
            f"flush of {p.tier} refused: {len(tiers.jobs)} transfers ({', '.join(kinds) or 'none'})"
            f" are under way and {len(tiers.backlog)} nodes wait; give it a timeout, or drain first"
        )
    if p.tier == "host":
        before = yield state.carrier, HostSizes()
        yield from evict_host(state, state.carrier, before.size)
        after = yield state.carrier, HostSizes()
        return after.free - before.free
    if not tiers.storing:
        return 0
    return (yield from _clear_storage(state, tiers))


def _clear_storage(state: State, tiers: TierState) -> Generator[Any, Any, int]:
    """Note that nothing is in storage any more; the clearing itself is the face's to await."""
    known = [node for node in state.tree if node.tiers & IN_STORAGE]
    yield state.all(NoteStored(known, stored=False))
    for node in known:
        node.tiers &= ~IN_STORAGE
    return sum(node.length for node in known) // state.page_size


def set_storage(state: State, p: SetStorage) -> Conversation:
    """Use a storage from now on, or none, while serving goes on.

    What the host has is written to a new storage; what was known of the old one is forgotten.
    """
    tiers = state.tiers
    if tiers is None:
        raise InvalidInput("a storage needs a host tier: give the config a [host] table")
    busy = tiers.jobs.count(STORE) + tiers.jobs.count(FETCH)
    tiers.storing = False
    tiers.forget_stores()
    for job in list(tiers.jobs):
        if job.kind == FETCH:
            stop_fetch(tiers, job.number, keep=False)
    if busy:
        return WAIT_FOR_JOB
    known = [node for node in state.tree if node.tiers & IN_STORAGE or node.hashes]
    for node in known:
        node.tiers &= ~IN_STORAGE
        node.hashes = b""
    yield state.all(NoteStored(known, stored=False))
    tiers.store = p.storage
    if p.storage is not None:
        tiers.storage = p.config
        tiers.storing = True
        for node in state.tree:
            if node.tiers & ON_HOST:
                tiers.queue_store(node)
    return None
