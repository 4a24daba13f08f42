"""A component or the coordinator crashes at any message of a call over three components.

Before it handles the message, or after and before the answer leaves; once, or so often that the
caller hears of it and tries again. The audit is clean after the restart, and in the end everything
can be let go and evicted, with the same sizes as without the crash.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from radixtide import AllocateParams, InsertParams, LockReceipt, Request
from radixtide.actors.cache import UnifiedRadixCache
from support.caches import key, match, tokens
from support.crashes import Case, Plant, Stage, disturbed, run, undisturbed
from support.hybrids import admit, compute, pool, put, to_evict
from support.interceptors import CrashAfter, CrashBefore


async def lock(cache: UnifiedRadixCache, length: int) -> LockReceipt:
    """Match the first `length` tokens with a lock."""
    receipt = (await match(cache, key(length), lock=True)).receipt
    assert receipt is not None
    return receipt


async def insert_with_splits_and_tombstones(cache: UnifiedRadixCache) -> Stage:
    """Repair half of a locked tombstone, split a locked node, and bring a state along."""
    await put(cache, key(16), evicted=8, state=True)
    receipt = await lock(cache, 16)
    given = await cache.allocate(AllocateParams(num_tokens=16, mamba_num=1))
    params = InsertParams(
        key([*tokens(12), *tokens(4, 900)]),
        given.indices,
        mamba_value=given.mamba_indices,
        component_evicted_seqlens={"swa": 4},
    )
    return Stage(lambda: cache.insert(params), lambda _: cache.dec_lock_ref(receipt))


async def insert_of_what_is_there(cache: UnifiedRadixCache) -> Stage:
    """Insert duplicates only: tombstones are repaired, the state is freed."""
    await put(cache, key(16), evicted=8, state=True)
    given = await cache.allocate(AllocateParams(num_tokens=16, mamba_num=1))
    params = InsertParams(key(16), given.indices, mamba_value=given.mamba_indices)
    return Stage(lambda: cache.insert(params))


async def match_with_lock_and_copy(cache: UnifiedRadixCache) -> Stage:
    """Let the window begin inside a node, and evict for the slot of the copy."""
    await put(cache, key(12))
    await put(cache, key(16), prev=12, state=True)
    await put(cache, key(tokens(8, 500)), state=True)
    req = Request("r", tokens(20), req_pool_idx=cache.req_to_token_pool.alloc())
    wanted = {"req": req, "lock": True, "cow_mamba": True}
    return Stage(lambda: match(cache, req.key(), **wanted), lambda _: cache.abort_req(req))


async def split_by_lock(cache: UnifiedRadixCache) -> Stage:
    """Lock a handle whose window begins inside a node that others hold."""
    await put(cache, key(16), state=True)
    inner = await put(cache, key(12), state=True)
    receipt = await lock(cache, 16)

    async def let_go(mine: LockReceipt) -> None:
        await cache.dec_lock_ref(mine)
        await cache.dec_lock_ref(receipt)

    return Stage(lambda: cache.inc_lock_ref(inner.node), let_go)


async def split_by_pin(cache: UnifiedRadixCache) -> Stage:
    """Pin a key that ends inside a node, with a window that begins inside another."""
    await put(cache, key(16), state=True)
    receipt = await lock(cache, 16)

    async def let_go(_: Any) -> None:
        await cache.unpin(key(12))
        await cache.dec_lock_ref(receipt)

    return Stage(lambda: cache.pin(key(12), 1000.0), let_go)


async def allocate_over_three_pools(cache: UnifiedRadixCache) -> Stage:
    """Let each pool be short of something, so that each evicts for itself."""
    await put(cache, key(tokens(12, 500)), state=True)
    await put(cache, key(16), state=True)
    await put(cache, key(24), prev=16, live=0, state=True)
    req = Request("r", tokens(20, 300), req_pool_idx=cache.req_to_token_pool.alloc())
    params = AllocateParams(num_tokens=8, swa_num_tokens=8, mamba_num=2, req=req)
    return Stage(lambda: cache.allocate(params), lambda _: cache.abort_req(req))


async def allocate_loose(cache: UnifiedRadixCache) -> Stage:
    """Do the same without a request."""
    await allocate_over_three_pools(cache)
    row = next(row for row in range(16) if cache.req_to_token_pool.is_taken(row))
    cache.req_to_token_pool.free(row)

    async def let_go(given: Any) -> None:
        await cache.free(given.indices)
        await cache.free(given.mamba_indices, "mamba")

    params = AllocateParams(num_tokens=8, mamba_num=2)
    return Stage(lambda: cache.allocate(params), let_go)


def evict(**wanted: int) -> Any:
    """Return a case that evicts, with leaves and inner nodes, tombstones and locks around."""

    async def prepare(cache: UnifiedRadixCache) -> Stage:
        await put(cache, key(8), state=True)
        await put(cache, key(16), prev=8, state=True)
        await put(cache, key([*tokens(8), *tokens(8, 700)]), prev=8, state=True)
        await put(cache, key(tokens(8, 500)), live=0, state=True)
        receipt = await lock(cache, 16)
        params = to_evict(**wanted)
        return Stage(lambda: cache.evict(params), lambda _: cache.dec_lock_ref(receipt))

    return prepare


async def running(cache: UnifiedRadixCache) -> Request:
    """Prepare a request whose prompt another has cached in part, and which has no spare state."""
    req = await admit(cache, "r", tokens(16), row=True)
    await put(cache, key(12), evicted=8)
    start = 500
    while (await pool(cache, "mamba")).free:
        await put(cache, key(tokens(4, start)), state=True)
        start += 100
    compute(cache, req, 16)
    return req


async def unfinished(cache: UnifiedRadixCache) -> Stage:
    """Bring duplicates, a new leaf, and a state to donate; row and lock move on."""
    req = await running(cache)
    return Stage(lambda: cache.cache_unfinished_req(req), lambda _: cache.abort_req(req))


async def finished(cache: UnifiedRadixCache) -> Stage:
    """Do the same for the last time."""
    req = await running(cache)
    return Stage(lambda: cache.cache_finished_req(req), lambda _: cache.abort_req(req))


async def finished_by_its_row(cache: UnifiedRadixCache) -> Stage:
    """Let the scheduler allocate and write the row itself, with a tail and duplicates."""
    await put(cache, key(8), evicted=4)
    pool_of_rows = cache.req_to_token_pool
    req = Request("r", tokens(16), req_pool_idx=pool_of_rows.alloc(), kv_committed_len=15)
    await match(cache, req.key(), req=req, lock=True, cow_mamba=True)
    assert req.req_pool_idx is not None
    given = await cache.allocate(AllocateParams(num_tokens=16))
    pool_of_rows.rows[req.req_pool_idx, :16] = given.indices.int()
    if cache.page_size == 1:
        # Committed is all that it has: its pages are of one token.
        await cache.free(given.indices[15:])
    return Stage(lambda: cache.cache_finished_req(req), lambda _: cache.abort_req(req))


async def finished_without_insert(cache: UnifiedRadixCache) -> Stage:
    """Free all of it."""
    req = await running(cache)
    return Stage(lambda: cache.cache_finished_req(req, is_insert=False))


async def aborted(cache: UnifiedRadixCache) -> Stage:
    """Abort in the middle: part of it is the tree's."""
    req = await admit(cache, "r", tokens(16), row=True)
    compute(cache, req, 8)
    await cache.cache_unfinished_req(req)
    return Stage(lambda: cache.abort_req(req))


async def windows_given_back(cache: UnifiedRadixCache) -> Stage:
    """Let a running request give back SWA of its own tokens."""
    req = await admit(cache, "r", tokens(24), row=True)
    return Stage(lambda: cache.release_window(req, 24), lambda _: cache.abort_req(req))


async def unlocked(cache: UnifiedRadixCache) -> Stage:
    """Release one of two receipts on overlapping windows."""
    await put(cache, key(16), state=True)
    await put(cache, key(12), state=True)
    first, second = await lock(cache, 16), await lock(cache, 12)
    return Stage(lambda: cache.dec_lock_ref(second), lambda _: cache.dec_lock_ref(first))


async def unlocked_early(cache: UnifiedRadixCache) -> Stage:
    """Give up the window of one of two receipts that overlap; release both later."""
    await put(cache, key(16), state=True)
    await put(cache, key(12), state=True)
    first, second = await lock(cache, 16), await lock(cache, 12)

    async def let_go(_: Any) -> None:
        await cache.dec_lock_ref(second)
        await cache.dec_lock_ref(first)

    return Stage(lambda: cache.dec_swa_lock_only(second), let_go)


def free(component: str) -> Any:
    """Return a case that frees loose slots of a pool."""

    async def prepare(cache: UnifiedRadixCache) -> Stage:
        given = await cache.allocate(AllocateParams(num_tokens=8, mamba_num=1))
        states = given.mamba_indices
        assert states is not None
        slots = states if component == "mamba" else given.indices

        async def let_go(_: Any) -> None:
            if component != "full":
                await cache.free(given.indices)
            if component != "mamba":
                await cache.free(states, "mamba")

        def call() -> Awaitable[Any]:
            return cache.free(slots, component)

        return Stage(call, let_go)

    return prepare


def whole(name: str) -> Any:
    """Return a case of a call that concerns the whole cache."""

    async def prepare(cache: UnifiedRadixCache) -> Stage:
        await put(cache, key(16), evicted=8, state=True)
        return Stage(getattr(cache, name))

    return prepare


SMALL = {"size": 36, "swa_size": 28, "states": 3, "window": 8}
FULL_OF_STATES = {"states": 2, "window": 8}
CASES = [
    Case(
        "insert",
        insert_with_splits_and_tombstones,
        ("CheckInsert", "CommitInsert"),
        {"window": 8},
    ),
    Case("insert of duplicates", insert_of_what_is_there, ("CommitInsert",), {"window": 8}),
    Case(
        "match",
        match_with_lock_and_copy,
        ("Validate", "ReservePrivate", "Propose", "Judge", "EvictNodes", "CommitMatch"),
        FULL_OF_STATES,
    ),
    Case("lock", split_by_lock, ("LockSplit",), {"window": 8}),
    Case("pin", split_by_pin, ("LockSplit",), {"window": 8, "pin_budget": 64}),
    Case(
        "allocate",
        allocate_over_three_pools,
        ("Quote", "Propose", "Judge", "EvictNodes", "Reserve", "Grant"),
        SMALL,
    ),
    Case("allocate loose", allocate_loose, ("Quote", "EvictNodes", "Reserve", "Grant"), SMALL),
    Case("evict full", evict(full=20), ("Propose", "EvictNodes"), {"window": 4}),
    Case("evict swa", evict(swa=16), ("Propose", "Judge", "EvictNodes"), {"window": 4}),
    Case("evict mamba", evict(mamba=3), ("Propose", "Judge", "EvictNodes"), {"window": 4}),
    Case(
        "evict all",
        evict(full=12, swa=16, mamba=2),
        ("Propose", "Judge", "EvictNodes"),
        {"window": 4},
        partial=True,
    ),
    Case(
        "unfinished",
        unfinished,
        ("Prepare", "CheckInsert", "Propose", "EvictNodes", "Grant", "CommitInsert", "Settle"),
        {"states": 4, "window": 8},
    ),
    Case(
        "finished",
        finished,
        ("Prepare", "CheckInsert", "CommitInsert", "LetGo"),
        {"states": 4, "window": 8},
    ),
    Case(
        "finished by row",
        finished_by_its_row,
        ("CheckRelease", "CheckInsert", "CommitInsert", "LetGo"),
        {"window": 8},
    ),
    Case("finished, no insert", finished_without_insert, ("LetGo",), {"states": 4}),
    Case("abort", aborted, ("LetGo",)),
    Case("release of a window", windows_given_back, ("ReleasePaired",), {"window": 8}),
    Case("unlock", unlocked, ("Unlock",), {"window": 8}),
    Case("early unlock", unlocked_early, ("Unlock",), {"window": 8}),
    Case("free", free("full"), ("CheckRelease", "Release", "CarrierReleased")),
    Case("free swa", free("swa"), ("CheckRelease", "Release")),
    Case("free mamba", free("mamba"), ("CheckRelease", "Release")),
    Case("reset", whole("reset"), ("GetSizes", "Clear")),
    Case("audit", whole("audit"), ("Audit", "TakeCensus", "AuditAgainst")),
]


@pytest.mark.parametrize("plant", [CrashBefore, CrashAfter])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_crash_at_any_message_of_a_call_leaves_a_sound_cache_and_whole_pools(
    case: Case, page_size: int, times: int, plant: Plant
) -> None:
    await run(case, page_size, plant, times)


@pytest.mark.parametrize("repair", [CrashBefore, CrashAfter])
@pytest.mark.parametrize("name", ["insert", "match", "lock", "evict all", "unfinished", "finished"])
async def test_a_crash_in_the_repair_after_a_crash_leaves_a_sound_cache_too(
    name: str, repair: Plant
) -> None:
    """Each component crashes after the last message to it, and then one does in the repair."""
    case = next(one for one in CASES if one.name == name)
    sent, expected = await undisturbed(case, 4)
    for actor in ("full", "swa", "mamba"):
        last = [kind for kind, receiver in sent if receiver == actor][-1]
        skip = sent.count((last, actor)) - 1
        for kind, other in (
            ("Rebuild", "full"),
            ("Rebuild", "swa"),
            ("TakeCensus", "full"),
            ("Rebuild", "mamba"),
        ):
            pools = await disturbed(
                case, 4, CrashAfter(last, actor, skip=skip), repair(kind, other)
            )
            assert pools == expected, (actor, last, kind, other)
