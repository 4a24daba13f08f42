"""The transfers that tests plant faults into; see support/tier_crashes.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from radixtide import AllocateParams, InsertParams, MatchPrefixParams, Request
from radixtide.actors.tier_handles import LoadBack
from radixtide.configs.schema import StorageConfig
from support.actors import until
from support.held_engine import TURNS_MAX
from support.marks import key_marks
from support.tier_crashes import Prepare, Stage, Step, TierCase
from support.tiered import Tiers

STORED: dict[str, Any] = {"url": "memory:", "storage": {"prefetch_policy": "wait_complete"}}


async def on_host(t: Tiers, *ends: int) -> None:
    """Have the pages of ``t.key(...)`` on the host only, each of `ends` the end of a node."""
    begin = 0
    for end in ends:
        await t.put(t.key(end), prev=begin)
        begin = end
    await t.settle()
    await t.demote()


async def in_storage(t: Tiers, *ends: int) -> None:
    """Have them in storage only."""
    await on_host(t, *ends)
    await t.cache.flush("host", 20.0)
    assert (await t.cache.stats()).nodes == 0


async def to_insert(t: Tiers, tokens: list[int], begin: int = 0) -> Step:
    """Return the insert of a key; its slots from page `begin` on are written."""
    wanted = t.key(tokens)
    given = await t.cache.allocate(
        AllocateParams(num_tokens=wanted.units - begin * t.page, mamba_num=int(t.has("mamba")))
    )
    state = None if given.mamba_indices is None else int(given.mamba_indices[0])
    await t.write(given.indices, key_marks(wanted)[begin * t.page :], state)
    value = np.concatenate((np.zeros(begin * t.page, dtype=np.int64), given.indices.numpy()))
    params = InsertParams(wanted, value, given.mamba_indices, begin * t.page)
    return lambda: t.cache.insert(params)


def using(t: Tiers, length: int) -> Any:
    """Return a coroutine function that uses a key again, which backs up what is not."""

    async def use() -> None:
        await t.match(t.key(length))

    return use


def loaded(t: Tiers, length: int) -> Any:
    """Return a coroutine function that has the first pages on the device in the end."""

    async def load() -> None:
        assert await t.load(t.key(length)) == length

    return load


# -- backups -------------------------------------------------------------------------------------


async def backup(t: Tiers) -> Stage:
    """Back two nodes up, behind one that is a mirror."""
    await t.put(t.key(2))
    await t.settle()
    first, second = await to_insert(t, t.span(4), 2), await to_insert(t, t.span(6), 4)
    return Stage([first, second, t.cache.drain], using(t, 6))


async def backup_evicts(t: Tiers) -> Stage:
    """Let the host be full of mirrors, which make room."""
    for at in range(4):
        await t.put(t.key(t.span(2, 100 * at)))
    await t.settle()
    insert = await to_insert(t, t.span(2, 900))

    async def use() -> None:
        await t.match(t.key(t.span(2, 900)))

    return Stage([insert, t.cache.drain], use)


async def backup_split(t: Tiers) -> Stage:
    """Split a node while its copy is under way."""
    t.engine.hold("backup", how="copied")
    await t.put(t.key(4))
    await t.engine.arrived(1)
    fork = [*t.span(2), *t.span(1, 700)]
    cut = await to_insert(t, fork)

    async def let_go() -> None:
        t.engine.hold_no_more()
        t.engine.release()
        await t.cache.drain(5.0)

    async def use() -> None:
        await t.match(t.key(4))
        await t.match(t.key(fork))

    return Stage([cut, let_go], use)


async def backup_fails(t: Tiers) -> Stage:
    """Let the copy fail; it is made when the node is used again."""
    t.engine.hold("backup")
    await t.put(t.key(4))
    await t.engine.arrived(1)

    async def fail() -> None:
        t.engine.hold_no_more()
        t.engine.fail()
        await t.cache.drain(5.0)

    return Stage([fail], using(t, 4))


async def write_back(t: Tiers) -> Stage:
    """Evict a leaf and its parent, each after it was copied."""
    await t.put(t.key(2))
    await t.put(t.key(4), prev=2)

    async def evict() -> None:
        await t.evict(full=4)

    async def again() -> None:
        if sum(await t.hit(t.key(4))) < 4:
            # Its copy failed, so it was evicted without one.
            await t.put(t.key(2))
            await t.put(t.key(4), prev=2)
        await t.evict(full=4)

    return Stage([evict], again)


# -- loads ---------------------------------------------------------------------------------------


async def load(t: Tiers) -> Stage:
    """Load two nodes, evicting others for them, and wait for it."""
    await on_host(t, 4, 8)
    await t.put(t.key(t.span(4, 300)))
    await t.settle()
    handles: list[LoadBack] = []

    async def begin() -> None:
        handles.append(await t.cache.load_back(await t.match(t.key(8))))

    async def wait() -> None:
        await handles[-1].wait()

    async def close() -> None:
        await handles[-1].close()

    async def every() -> None:
        for one in handles:
            await one.close()

    return Stage([begin, wait, close], loaded(t, 8), every)


async def load_inside(t: Tiers) -> Stage:
    """Load the part of a node that a key ends in."""
    await on_host(t, 8)
    wanted = t.key([*t.span(4), *t.span(2, 500)])

    async def all_of_it() -> None:
        async with await t.cache.load_back(await t.match(wanted)) as handle:
            await handle.wait()

    return Stage([all_of_it], loaded(t, 8))


async def load_for_request(t: Tiers) -> Stage:
    """Load for a request that has a lock, which then gets slots and ends."""
    await on_host(t, 4, 8)
    await t.load(t.key(4))
    wanted = t.key(10)
    req = Request("r", t.span(10), req_pool_idx=t.cache.req_to_token_pool.alloc())
    await t.cache.match_prefix(MatchPrefixParams(key=wanted, req=req, lock=True))

    async def begin() -> None:
        handle = await t.cache.load_back(await t.match(wanted), req)
        await handle.wait()

    async def end() -> None:
        await t.cache.abort_req(req)

    return Stage([begin, end], loaded(t, 8))


async def load_fails(t: Tiers) -> Stage:
    """Let a load fail that two wait for, one of them a request."""
    await on_host(t, 4, 8)
    await t.load(t.key(4))
    t.engine.hold("load")
    req = Request("r", t.span(8))
    await t.match(t.key(8), req=req, lock=True)
    handles = [await t.cache.load_back(await t.match(t.key(8)))]
    handles.append(await t.cache.load_back(await t.match(t.key(8)), req))

    async def fail() -> None:
        t.engine.hold_no_more()
        t.engine.fail()
        assert [await one.wait() for one in handles] == [4 * t.page] * 2
        assert req.cache_protected_len == 4 * t.page

    async def close() -> None:
        await handles[0].close()

    async def end() -> None:
        await t.cache.abort_req(req)

    return Stage([fail, close, end], loaded(t, 8))


# -- storage -------------------------------------------------------------------------------------


async def store(t: Tiers) -> Stage:
    """Write two nodes to storage, the parent first."""
    first, second = await to_insert(t, t.span(2)), await to_insert(t, t.span(4), 2)

    async def again() -> None:
        # What was not written is written when a storage is attached anew.
        if any(bits != "DHS" for _, _, bits in t.picture()):
            await using(t, 4)()
            await t.cache.drain()
            await t.cache.detach_storage()
            assert t.config.storage is not None
            await t.cache.attach_storage(t.config.storage)
            await t.cache.drain()

    return Stage([first, second, t.cache.drain], again)


async def fetch(t: Tiers) -> Stage:
    """Fetch a key behind a part that is a mirror."""
    await in_storage(t, 4, 8)
    await t.put(t.key(2))
    await t.settle()

    async def all_of_it() -> None:
        async with await t.cache.prefetch(t.key(8)) as handle:
            await handle.wait()

    async def again() -> None:
        if sum(await t.hit(t.key(8))) < 8:
            await all_of_it()
        assert sum(await t.hit(t.key(8))) == 8

    return Stage([all_of_it], again)


async def fetch_given_up(t: Tiers) -> Stage:
    """Give a fetch up while its pages are read."""
    await in_storage(t, 8)
    store = t.store
    assert store is not None
    store.hold("get_into")
    handle = await t.cache.prefetch(t.key(8))
    await until(lambda: store.waiting("get_into") > 0, TURNS_MAX)

    async def drained() -> None:
        store.release()
        await t.cache.drain(5.0)

    return Stage([handle.close, drained])


async def flush(t: Tiers) -> Stage:
    """Flush all three tiers, one after the other."""
    await t.put(t.key(4))
    await t.put(t.key(t.span(4, 100)))
    await t.settle()
    tiers = ("device", "storage", "host")
    return Stage([lambda tier=tier: t.cache.flush(tier, 5.0) for tier in tiers])  # type: ignore[misc]  # a lambda with a default has no type


async def exchange(t: Tiers) -> Stage:
    """Detach a storage and attach another; the host's pages are written to that."""
    await t.put(t.key(2))
    await t.put(t.key(4), prev=2)
    await t.settle()
    await t.cache.detach_storage()

    async def attach() -> None:
        if not t.cache._state.tiers.storing:  # type: ignore[union-attr]  # there is a host tier
            await t.cache.attach_storage(StorageConfig(url="memory:"))
        await t.cache.drain(5.0)

    async def again() -> None:
        if any(bits != "DHS" for _, _, bits in t.picture()):
            await t.cache.detach_storage()
            await attach()

    return Stage([attach, t.cache.detach_storage, attach], again)


SMALL_HOST: dict[str, Any] = {"host_pages": 8, "host_swa_pages": 8, "host_states": 4}
SMALL: dict[str, Any] = {"pages": 10, "swa_pages": 10, "states": 4}


def _case(name: str, prepare: Prepare, messages: str, **config: Any) -> TierCase:
    return TierCase(name, prepare, messages.split(), config)


CASES = [
    _case(
        "backup",
        backup,
        "Pump BackupNeed BeginBackup PinHost StartCopy CopyDone EndBackup UnpinHost",
    ),
    _case("backup that evicts", backup_evicts, "ProposeHost EvictHost", **SMALL_HOST),
    _case("split backup", backup_split, "EndBackup"),
    _case("failed backup", backup_fails, "EndBackup"),
    _case(
        "write back",
        write_back,
        "EvictParams BeginBackup StartCopy CopyDone EndBackup EvictNodes",
        policy="write_back",
    ),
    _case(
        "load",
        load,
        "LoadBackCall LockSplit LoadNeeds PinHost BeginLoad EvictNodes PathSlots StartCopy "
        "WaitLoad CopyDone EndLoad UnpinHost Unlock CloseLoad",
        **SMALL,
    ),
    _case("load inside a node", load_inside, "CommitMatch UseHost EndLoad"),
    _case("load for a request", load_for_request, "BeginLoad Unlock AbortReq LetGo"),
    _case("failed load", load_fails, "EndLoad LockSplit Unlock"),
    _case("store", store, "HostSlots PinHost StartStore StoreDone NoteStored", **STORED),
    _case(
        "fetch",
        fetch,
        "PrefetchCall Lookup Found HostSizes ReserveHost StartFetch FetchDone CommitFetch "
        "WaitFetch EndFetch",
        **STORED,
    ),
    _case("fetch given up", fetch_given_up, "StopFetch FetchDone ReleaseHost", **STORED),
    _case("flush", flush, "Flush EvictNodes NoteStored EvictHost", **STORED),
    _case("exchange", exchange, "SetStorage NoteStored StoreDone", **STORED),
]


async def fetched(t: Tiers, length: int, **namespace: Any) -> int:
    """Fetch a key of so many pages, and return how many it brought."""
    async with await t.cache.prefetch(t.key(length, **namespace)) as fetch:
        return await fetch.wait() // t.page
