"""Prefetch: bring to the host what storage has of a key, while its request waits.

First storage is asked how much it has; then host slots are taken for that, no more; then the pages
are read, and what has arrived becomes nodes on the host. Room for it is made as for a backup. Where
a component needs the end of a key (a window, a state), all of it comes or nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import numpy as np

from radixtide.actors.actor import Conversation
from radixtide.actors.calls import Call
from radixtide.actors.envelope import WAIT_FOR_JOB
from radixtide.actors.jobs import FETCH, Job
from radixtide.actors.messages import Lock, Unlock
from radixtide.actors.op_backup import chain_above, evict_host
from radixtide.actors.state import State
from radixtide.actors.tier_messages import (
    CommitFetch,
    FetchDone,
    Found,
    HostSizes,
    Lookup,
    PinHost,
    ReleaseHost,
    ReserveHost,
    StartFetch,
    StopFetch,
    UnpinHost,
)
from radixtide.actors.tier_state import FetchRecord, TierState
from radixtide.components.api import Slots
from radixtide.components.outcomes import Shortage
from radixtide.components.request import Request
from radixtide.configs.errors import RadixtideError
from radixtide.tiers.page_hash import namespace_seed
from radixtide.tree.key import RadixKey
from radixtide.tree.node import FAILED, HASH_BYTES, IN_STORAGE, ON_DEVICE, ON_HOST, Node


class PrefetchCall(Call, frozen=True, tag=True, gc=False):
    """Fetch what storage has of a key and the cache has not. Reply: FetchStarted."""

    key: RadixKey
    req: Request | None = None


class WaitFetch(Call, frozen=True, tag=True, gc=False):
    """Wait until a fetch is over. Reply: units that it brought."""

    number: int


class EndFetch(Call, frozen=True, tag=True, gc=False):
    """Take what has arrived (`keep`), or nothing; the fetch ends soon. Reply: None."""

    number: int
    keep: bool


class FetchStarted(msgspec.Struct, frozen=True):
    """What ``prefetch`` began. ``number``: 0 when there is nothing to fetch.

    ``pages``: at most so many are fetched.
    """

    number: int
    pages: int


def prefetch(state: State, p: PrefetchCall) -> Conversation:
    """Ask storage for what is missing of a key."""
    tiers = state.tiers
    state.check_key(p.key)
    if p.req is not None:
        state.check_request_key(p.req, p.key)
    if tiers is None or not tiers.storing or tiers.storage is None or tiers.down:
        return FetchStarted(0, 0)
    walk = state.tree.walk(p.key)
    missing = walk.limit - walk.matched
    page = state.page_size
    sizes = yield state.carrier, HostSizes()
    # At most half of the host is for what may not be wanted in the end.
    room = sizes.size // 2 // page * page - tiers.jobs.units[FETCH]
    missing = min(missing, max(room, 0))
    if missing < max(tiers.storage.prefetch_threshold, page):
        return FetchStarted(0, 0)
    if tiers.jobs.count(FETCH) >= tiers.storage.queue_max:
        return FetchStarted(0, 0)
    if walk.inside is not None:
        # What is fetched hangs on to its prefix.
        yield state.all(CommitFetch([], (state.split_inside(walk),), {}, {}))
    number = state.ledger.next_holder()
    anchor = [walk.last] if walk.last.parent is not None else []
    lock = None
    if anchor:
        yield state.all(PinHost(anchor))
        if walk.last.tiers & ON_DEVICE:
            # It may have no host copy yet: then it lives by the device alone.
            lock = walk.last, [(yield state.carrier, Lock(walk.last))]
        for node in chain_above(walk.last):
            # What comes before must be on the host as well.
            tiers.queue(node)
    job = Job(number, FETCH, [], anchor, missing, lock)
    job.key = p.key.prefix(walk.matched + missing)
    job.begin = walk.matched
    job.page = page
    job.store = tiers.store
    tiers.jobs.add(job)
    tiers.fetches[number] = FetchRecord(number, p.req)
    tiers.counters.prefetches += 1
    seed = namespace_seed(p.key.extra_key, p.key.cache_salt)
    tiers.tell(Lookup(number, tiers.store, job.key.raw, seed, walk.matched // page))
    return FetchStarted(number, missing // page)


def found(state: State, job: Job, report: Found) -> Generator[Any, Any, None]:
    """Take host slots for what storage has, and have it read."""
    tiers = state.tiers
    assert tiers is not None
    taken: dict[str, Slots] = {}
    try:
        pages = yield from _room_for(state, tiers, job, report, taken)
    except RadixtideError:
        pages = 0
    if not pages:
        if taken:
            yield state.all(ReleaseHost(taken))
        # Nothing is fetched: what storage noted of the key can go.
        tiers.tell(StopFetch(job.number, job.store))
        yield from _over(state, tiers, job, 0)
        return
    job.slots = taken
    job.pages = pages
    job.report = None
    tiers.tell(StartFetch(job.number, job.store, job.begin // state.page_size + pages, taken))


def _room_for(
    state: State, tiers: TierState, job: Job, report: Found, taken: dict[str, Slots]
) -> Generator[Any, Any, int]:
    """Take host slots, into `taken`, for what was found; return for how many pages, 0 for none."""
    assert tiers.storage is not None
    page = state.page_size
    pages = report.pages - job.begin // page
    if job.stop or pages * page < max(tiers.storage.prefetch_threshold, page):
        tiers.counters.prefetch_misses += not job.stop
        return 0
    spare = tuple(job.pinned)
    free: int = (yield state.carrier, HostSizes()).free
    if free < pages * page:
        yield from evict_host(state, state.carrier, pages * page - free, spare)
        free = (yield state.carrier, HostSizes()).free
    if free < pages * page:
        # Less room than there is to fetch: what needs the end of the key would lack it.
        pages = free // page if len(report.parts) <= 1 else 0
    enough = bool(pages) and pages * page >= tiers.storage.prefetch_threshold
    if enough and (yield from _take_slots(state, job, report, pages, taken)):
        return pages
    tiers.counters.prefetch_dropped += 1
    return 0


def _take_slots(
    state: State, job: Job, report: Found, pages: int, taken: dict[str, Slots]
) -> Generator[Any, Any, bool]:
    """Take the host slots of a fetch, into `taken`; return whether there were enough."""
    for cell in state.cells:
        wanted = pages if cell is state.carrier else report.parts.get(cell.name, 0)
        if not wanted:
            continue
        reply = yield cell, ReserveHost(wanted, job.number)
        if isinstance(reply, Shortage):
            missing = reply.wanted - reply.sizes.free
            yield from evict_host(state, cell, missing, tuple(job.pinned))
            reply = yield cell, ReserveHost(wanted, job.number)
        if isinstance(reply, Shortage):
            return False
        taken[cell.name] = reply
    return True


def end_fetch(state: State, job: Job, report: FetchDone) -> Generator[Any, Any, None]:
    """Make nodes of what has arrived; give back the slots of what has not."""
    tiers = state.tiers
    assert tiers is not None
    page = state.page_size
    pages = min(report.pages, job.pages)
    if len(job.slots) > 1 and pages < job.pages:
        pages = 0
    anchor = job.pinned[-1] if job.pinned else None
    if job.dropped or not pages:
        if not job.dropped and not job.stop:
            tiers.counters.prefetch_misses += 1
        yield state.all(ReleaseHost(job.slots))
        yield from _over(state, tiers, job, 0)
        return
    if anchor is not None and not anchor.tiers & ON_HOST:
        if _is_backed_up_soon(anchor):
            # It may be that the copy of what comes before is still on its way.
            return
        tiers.counters.prefetch_dropped += 1
        yield state.all(ReleaseHost(job.slots))
        yield from _over(state, tiers, job, 0)
        return
    brought = yield from _attach(state, tiers, job, report, pages * page)
    yield from _over(state, tiers, job, brought)


def _is_backed_up_soon(anchor: Node) -> bool:
    at: Node | None = anchor
    while at is not None and at.parent is not None and not at.tiers & ON_HOST:
        if not at.job & ~FAILED:
            return False
        at = at.parent
    return True


def _attach(
    state: State, tiers: TierState, job: Job, report: FetchDone, units: int
) -> Generator[Any, Any, int]:
    """Add nodes for the fetched units that the tree still lacks; return how many those are."""
    page = state.page_size
    key = job.key.prefix(job.begin + units)
    walk = state.tree.walk(key)
    have = walk.matched
    above = walk.last if walk.inside is None else walk.inside
    fits = above.parent is None or above.tiers & ON_HOST
    if have >= walk.limit or have < job.begin or not fits:
        # All of it came another way meanwhile, or what it would hang on to is gone.
        yield state.all(ReleaseHost(job.slots))
        return 0
    splits = (state.split_inside(walk),) if walk.inside is not None else ()
    windows = [trait.name for trait in state.traits if trait.reach is not None]
    borders = {walk.limit - len(job.slots[name]) for name in windows if name in job.slots}
    ends = sorted(depth for depth in borders if have < depth < walk.limit)
    nodes: list[Node] = []
    node = walk.last
    begin = have
    for end in (*ends, walk.limit):
        node = state.tree.add_leaf(node, walk, begin, end)
        node.tiers = ON_HOST | IN_STORAGE
        state.ghosts.revive(node)
        first, stop = begin // page * HASH_BYTES, end // page * HASH_BYTES
        node.hashes = report.hashes[first:stop]
        nodes.append(node)
        begin = end
    mine: dict[str, Slots] = {}
    rest: dict[str, Slots] = {}
    digests: dict[str, Any] = {}
    fresh = walk.limit - have
    for name, slots in job.slots.items():
        # The carrier's are those of all units fetched; a window's, of the last of them.
        stop = units if name == state.carrier.name else len(slots)
        start = max(stop - fresh, 0) if name == state.carrier.name or name in windows else 0
        mine[name] = slots[start:stop]
        if start or stop < len(slots):
            rest[name] = np.concatenate((slots[:start], slots[stop:]))
        known = report.digests.get(name)
        if known is not None and len(known):
            # Those that did not arrive have none: the carrier's last ones may be missing.
            each = page if name == state.carrier.name or name in windows else 1
            digests[name] = known[start // each : stop // each]
    if rest:
        yield state.all(ReleaseHost(rest))
    # Before the commit, in which what is above on the device gets the place of this touch.
    state.touch(state.path_to(node), walk.limit)
    yield state.all(CommitFetch(nodes, splits, mine, digests))
    tiers.counters.prefetched_units += walk.limit - have
    return walk.limit - have


def _over(state: State, tiers: TierState, job: Job, brought: int) -> Generator[Any, Any, None]:
    if job.pinned:
        yield state.all(UnpinHost(list(job.pinned)))
    if job.lock is not None:
        yield state.carrier, Unlock(*job.lock)
    tiers.jobs.remove(job)
    record = tiers.fetches.get(job.number)
    if record is not None:
        record.brought = brought
        record.over = True
        if job.dropped:
            del tiers.fetches[job.number]
    tiers.let_in(WAIT_FOR_JOB)


def wait_fetch(state: State, p: WaitFetch) -> Any:
    """Return what a fetch has brought, once it is over."""
    tiers = state.tiers
    record = tiers.fetches.get(p.number) if tiers is not None else None
    if record is None:
        return 0
    return record.brought if record.over else WAIT_FOR_JOB


def end_early(state: State, p: EndFetch) -> None:
    """Stop a fetch: keep what has arrived, or nothing."""
    tiers = state.tiers
    if tiers is None:
        return
    record = tiers.fetches.get(p.number)
    if record is not None and record.over and not p.keep:
        del tiers.fetches[p.number]
        return
    job = tiers.jobs.get(p.number)
    if state.together and job is not None:
        # Whether it ends is the other ranks' affair too.
        job.wants_end = True
        job.dropped = job.dropped or not p.keep
        return
    stop_fetch(tiers, p.number, p.keep)


def stop_fetch(tiers: TierState, number: int, keep: bool) -> None:
    """Have a fetch end soon; its slots go back when nobody writes to them any more."""
    job = tiers.jobs.get(number)
    if job is None or (job.stop and (keep or job.dropped)):
        return
    job.stop = True
    job.dropped = job.dropped or not keep
    tiers.tell(StopFetch(number, job.store))


def forget_fetches(state: State, req: Request) -> None:
    """Give up the fetches of a request that is gone."""
    tiers = state.tiers
    if tiers is None:
        return
    for number, record in list(tiers.fetches.items()):
        if record.req is not req:
            continue
        if record.over:
            del tiers.fetches[number]
        else:
            end_early(state, EndFetch(number, keep=False))
