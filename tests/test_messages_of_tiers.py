"""What each call costs in messages where there are tiers, as docs/messages.md says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from radixtide import EvictParams, MatchPrefixParams, Request, UnifiedRadixCache
from radixtide.configs.schema import StorageConfig
from support.actors import until
from support.caches import Delivery, settled, state_of, system_of
from support.held_engine import TURNS_MAX
from support.interceptors import Recorder
from support.message_tables import ended, handled, names, table
from support.tier_cases import in_storage, on_host, to_insert
from support.tier_config import SETS, tier_config
from support.tiered import Tiers

Call = Callable[[], Awaitable[Any]]
Situation = Callable[[Tiers], Awaitable[Call]]
SITUATIONS: Final[dict[tuple[str, str], tuple[Situation, dict[str, Any]]]] = {}
ACTORS: Final = ("coordinator", "full", "swa", "mamba", "tiering")
STORED: Final[dict[str, Any]] = {
    "url": "memory:",
    "storage": {"prefetch_policy": "wait_complete"},
}


def situation(call: str, words: str, **config: Any) -> Callable[[Situation], Situation]:
    """Register a situation: a coroutine that prepares a cache and returns the call to measure."""

    def register(prepare: Situation) -> Situation:
        SITUATIONS[call, words] = prepare, config
        return prepare

    return register


async def idle(t: Tiers) -> None:
    """Let the loop run until no transfer is under way and none waits."""
    books = state_of(t.cache).tiers
    assert books is not None
    system = system_of(t.cache)
    await until(lambda: books.idle and system.quiet, TURNS_MAX)


# -- match_prefix, insert, evict -----------------------------------------------------------------


@situation("match_prefix", "a hit on the device")
async def _(t: Tiers) -> Call:
    await t.put(t.key(4))
    await t.settle()
    return lambda: t.cache.match_prefix(MatchPrefixParams(key=t.key(4)))


@situation("match_prefix", "a hit that goes on, or begins, on the host")
async def _(t: Tiers) -> Call:
    await on_host(t, 4, 8)
    await t.load(t.key(4))
    return lambda: t.cache.match_prefix(MatchPrefixParams(key=t.key(8)))


@situation("insert", "new, or in part new, and the backup of it")
async def _(t: Tiers) -> Call:
    await t.put(t.key(2))
    await t.settle()
    insert = await to_insert(t, t.span(4), 2)

    async def call() -> None:
        await insert()
        await idle(t)

    return call


@situation("insert", "and the store that follows a backup", **STORED)
async def _(t: Tiers) -> Call:
    insert = await to_insert(t, t.span(4))

    async def call() -> None:
        await insert()
        await idle(t)

    return call


@situation("insert", "what has a copy already")
async def _(t: Tiers) -> Call:
    await t.put(t.key(4))
    await t.settle()
    return await to_insert(t, t.span(4))


@situation("evict", "of mirrors, however many")
async def _(t: Tiers) -> Call:
    await t.put(t.key(4))
    await t.put(t.key(t.span(4, 100)))
    await t.settle()
    return lambda: t.cache.evict(EvictParams(num_tokens=10**6))


@situation("evict", "under `write_back`, of what is saved first", policy="write_back")
async def _(t: Tiers) -> Call:
    await t.put(t.key(4))
    return lambda: t.cache.evict(EvictParams(num_tokens=4))


# -- loads ---------------------------------------------------------------------------------------


@situation("load_back", "there is nothing to load")
async def _(t: Tiers) -> Call:
    await t.put(t.key(4))
    await t.settle()
    found = await t.match(t.key(4))
    return lambda: _closed(t, found)


async def _closed(t: Tiers, found: Any) -> None:
    async with await t.cache.load_back(found):
        pass


@situation("load_back", "there is room, and the copy")
async def _(t: Tiers) -> Call:
    await on_host(t, 4)
    found = await t.match(t.key(4))

    async def call() -> None:
        async with await t.cache.load_back(found):
            await idle(t)

    return call


@situation("load_back", "leaves are evicted for it", pages=4, swa_pages=4, states=2)
async def _(t: Tiers) -> Call:
    await on_host(t, 4)
    await t.put(t.key(t.span(4, 100)))
    await t.settle()
    found = await t.match(t.key(4))

    async def call() -> None:
        async with await t.cache.load_back(found):
            await idle(t)

    return call


@situation("load_back", "it shares the copy of another")
async def _(t: Tiers) -> Call:
    await on_host(t, 4)
    found = await t.match(t.key(4))
    t.engine.hold("load")
    t.other = await t.cache.load_back(found)  # type: ignore[attr-defined]  # kept for its end
    await t.engine.arrived(1)
    return lambda: _closed(t, found)


@situation("load_back", "for a request that has a lock, and the copy")
async def _(t: Tiers) -> Call:
    await on_host(t, 4)
    req = Request("r", t.span(4))
    found = await t.match(t.key(4), req=req, lock=True)

    async def call() -> None:
        await t.cache.load_back(found, req)
        await idle(t)

    return call


# -- storage -------------------------------------------------------------------------------------


@situation("prefetch", "there is nothing to fetch", **STORED)
async def _(t: Tiers) -> Call:
    await t.put(t.key(4))
    await t.settle()

    async def call() -> None:
        async with await t.cache.prefetch(t.key(4)):
            pass

    return call


@situation("prefetch", "storage has it, and the fetch", **STORED)
async def _(t: Tiers) -> Call:
    await in_storage(t, 4)

    async def call() -> None:
        async with await t.cache.prefetch(t.key(4)) as fetch:
            await fetch.wait()

    return call


@situation("prefetch", "storage has nothing of it", **STORED)
async def _(t: Tiers) -> Call:
    await t.put(t.key(2))
    await t.settle()

    async def call() -> None:
        async with await t.cache.prefetch(t.key(4)):
            await idle(t)

    return call


@situation("attach_storage", "the host has nothing")
async def _(t: Tiers) -> Call:
    return lambda: t.cache.attach_storage(StorageConfig(url="memory:"))


@situation("detach_storage", "there is one", **STORED)
async def _(t: Tiers) -> Call:
    return t.cache.detach_storage


# -- the whole -----------------------------------------------------------------------------------


@situation("drain", "nothing moves, or something does")
async def _(t: Tiers) -> Call:
    return t.cache.drain


@situation("flush", "of the device")
async def _(t: Tiers) -> Call:
    await t.put(t.key(4))
    await t.settle()
    return lambda: t.cache.flush("device")


@situation("flush", "of the host")
async def _(t: Tiers) -> Call:
    await t.put(t.key(4))
    await t.settle()
    return lambda: t.cache.flush("host")


@situation("flush", "of the storage", **STORED)
async def _(t: Tiers) -> Call:
    await t.put(t.key(4))
    await t.settle()
    return lambda: t.cache.flush("storage")


@situation("step", "on one rank")
async def _(t: Tiers) -> Call:
    return t.cache.step


@situation("audit", "always")
async def _(t: Tiers) -> Call:
    return t.cache.audit


# -- the comparison ------------------------------------------------------------------------------

TABLE: Final = table(11)


def test_every_situation_is_in_the_document_and_the_other_way_round() -> None:
    assert list(TABLE) == list(SITUATIONS)


async def measured(
    name: tuple[str, str], components: tuple[str, ...], delivery: Delivery
) -> tuple[dict[str, list[str]], Recorder]:
    """Return the messages of a situation by actor."""
    prepare, config = SITUATIONS[name]
    fields = {"page_size": 4, "delivery": delivery, **config}
    async with UnifiedRadixCache(tier_config(components, **fields)) as cache:
        t = Tiers(cache)
        call = await prepare(t)
        await settled(cache)
        record = Recorder()
        cache.add_interceptor(record)
        await ended(call)
        await settled(cache)
        cache.remove_interceptor(record)
        sent: dict[str, list[str]] = {actor: [] for actor in ACTORS}
        for message, actor in record.sent:
            sent[actor].append(message)
        await _end(t)
        return sent, record


async def _end(t: Tiers) -> None:
    """Let go of what a situation keeps."""
    other = getattr(t, "other", None)
    t.engine.hold_no_more()
    t.engine.release()
    if other is not None:
        await other.close()


@pytest.mark.parametrize("components", SETS, ids="+".join)
@pytest.mark.parametrize("name", SITUATIONS, ids=": ".join)
async def test_a_call_costs_the_messages_that_the_document_says(
    name: tuple[str, str], components: tuple[str, ...]
) -> None:
    row = TABLE[name]
    sent, record = await measured(name, components, "queued")
    there = ("coordinator", *components, "tiering")
    for actor, cell in zip(ACTORS, row[:5], strict=True):
        assert sent[actor] == (names(cell) if actor in there else []), actor
    assert str(len(record.sent)) == row[5 + SETS.index(components)]
    # What stands in a line is taken up more than once.
    assert Counter(record.handled) >= Counter(record.sent)


@pytest.mark.parametrize("name", SITUATIONS, ids=": ".join)
async def test_the_counters_of_a_direct_call_agree_with_the_document(
    name: tuple[str, str],
) -> None:
    """With direct delivery the same are handled, and none more."""
    prepare, config = SITUATIONS[name]
    async with UnifiedRadixCache(tier_config(page_size=4, delivery="direct", **config)) as cache:
        t = Tiers(cache)
        call = await prepare(t)
        await settled(cache)
        before = await handled(cache)
        await ended(call)
        await settled(cache)
        after = await handled(cache)
        await _end(t)
    for actor, cell in zip(ACTORS[1:], TABLE[name][1:5], strict=True):
        assert after[actor] - before[actor] == len(names(cell)), actor
