"""What each call costs in messages where there are several components, as docs/messages.md says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

from radixtide import AllocateParams, EvictParams, InsertParams, Request, UnifiedRadixCache
from support.caches import key, match, open_cache, settled, tokens
from support.hybrids import ALL, BOTH, STATES, admit, has, hybrid, put
from support.interceptors import Recorder
from support.message_tables import Call, Situation, ended, handled, names, table

SETS: Final = (BOTH, STATES, ALL)
SITUATIONS: Final[dict[tuple[str, str], tuple[Situation, tuple[tuple[str, ...], ...]]]] = {}
NOT_THERE: Final = "-"


def situation(call: str, words: str, *sets: tuple[str, ...]) -> Callable[[Situation], Situation]:
    """Register a situation of the table; `sets`: where there is such a thing, all by default."""

    def register(prepare: Situation) -> Situation:
        SITUATIONS[call, words] = prepare, sets or SETS
        return prepare

    return register


async def stored(cache: UnifiedRadixCache, wanted: Any, **fields: Any) -> Any:
    """Insert a key, with a state at its end where the cache has such."""
    return await put(cache, key(wanted), state=has(cache, "mamba"), **fields)


async def two_nodes(cache: UnifiedRadixCache) -> None:
    """Cache a path of two nodes that everything is kept of; the inner one is the older."""
    await stored(cache, 8)
    await stored(cache, 16, prev=8)


async def running(cache: UnifiedRadixCache, count: int = 20) -> Request:
    """Return a request that hit 8 units under a lock, and holds slots for the rest."""
    await stored(cache, 8)
    return await admit(cache, "r", tokens(count))


async def take_states(cache: UnifiedRadixCache, left: int) -> None:
    """Hold all free states but `left`."""
    free = (await cache.stats()).pools["mamba"]["device"].free
    await cache.allocate(AllocateParams(mamba_num=free - left))


def copied(cache: UnifiedRadixCache, length: int = 12) -> Call:
    """Return a match with copy-on-write."""
    req = Request("r", tokens(length))
    return lambda: match(cache, req.key(), req=req, cow_mamba=True)


# -- match_prefix ------------------------------------------------------------------------------


@situation("match_prefix", "a hit, whole or in part, with a lock or without")
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, 24)
    return lambda: match(cache, key(28), lock=True)


@situation("match_prefix", "a hit that a component makes shorter")
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, 8)
    await put(cache, key(24), prev=8, live=0)
    return lambda: match(cache, key(24), lock=True)


@situation("match_prefix", "a hit that a component cuts to nothing")
async def _(cache: UnifiedRadixCache) -> Call:
    await put(cache, key(24), live=0)
    return lambda: match(cache, key(24), lock=True)


@situation("match_prefix", "`cow_mamba`, a state slot is free", STATES, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, 8)
    return copied(cache)


@situation("match_prefix", "`cow_mamba`, the state of an inner node is evicted", STATES, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await two_nodes(cache)
    await take_states(cache, 0)
    return copied(cache, 16)


@situation("match_prefix", "`cow_mamba`, a leaf is evicted", STATES, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, tokens(8, 100))
    await stored(cache, 8)
    await take_states(cache, 0)
    return copied(cache)


@situation("match_prefix", "`cow_mamba`, no slot", STATES, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, 8)
    await take_states(cache, 0)
    return copied(cache)


# -- insert ------------------------------------------------------------------------------------


@situation("insert", "new, in part new, or all duplicate, with a state or without")
async def _(cache: UnifiedRadixCache) -> Call:
    await put(cache, key(16), live=0)
    given = await cache.allocate(AllocateParams(num_tokens=32, mamba_num=int(has(cache, "mamba"))))
    return lambda: cache.insert(
        InsertParams(key=key(32), value=given.indices, mamba_value=given.mamba_indices)
    )


# -- slots -------------------------------------------------------------------------------------


def taking(cache: UnifiedRadixCache, count: int = 8, states: int = 1) -> Call:
    """Return an allocation of tokens, and of states where the cache has such."""
    number = states if has(cache, "mamba") else 0
    return lambda: cache.allocate(AllocateParams(num_tokens=count, mamba_num=number))


@situation("allocate", "enough slots are free")
async def _(cache: UnifiedRadixCache) -> Call:
    return taking(cache)


@situation("allocate", "of states alone, enough are free", STATES, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    return taking(cache, count=0)


@situation("allocate", "a leaf has to be evicted for Full, which is enough for all")
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, 60)
    return taking(cache)


@situation("allocate", "window slots of an inner node have to be evicted", BOTH, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await two_nodes(cache)
    await cache.allocate(AllocateParams(num_tokens=16))
    return taking(cache)


@situation("allocate", "the state of an inner node has to be evicted", STATES, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await two_nodes(cache)
    await take_states(cache, 0)
    return taking(cache)


@situation("allocate", "refused: out of slots of a pool")
async def _(cache: UnifiedRadixCache) -> Call:
    return taking(cache, count=128)


@situation("free", "of Full slots")
async def _(cache: UnifiedRadixCache) -> Call:
    mine = (await cache.allocate(AllocateParams(num_tokens=8))).indices
    return lambda: cache.free(mine)


@situation("free", "of window slots alone", BOTH, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    mine = (await cache.allocate(AllocateParams(num_tokens=8))).indices
    return lambda: cache.free(mine, "swa")


@situation("free", "of states", STATES, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    mine = (await cache.allocate(AllocateParams(mamba_num=1))).mamba_indices
    assert mine is not None
    return lambda: cache.free(mine, "mamba")


@situation("evict", "of Full: leaves, however many")
async def _(cache: UnifiedRadixCache) -> Call:
    await two_nodes(cache)
    return lambda: cache.evict(EvictParams(num_tokens=64))


@situation("evict", "of window slots: inner nodes only", BOTH, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await two_nodes(cache)
    return lambda: cache.evict(EvictParams(swa_num_tokens=8))


@situation("evict", "of window slots: leaves too", BOTH, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await two_nodes(cache)
    return lambda: cache.evict(EvictParams(swa_num_tokens=16))


@situation("evict", "of states: inner nodes only", STATES, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await two_nodes(cache)
    return lambda: cache.evict(EvictParams(mamba_num=1))


@situation("evict", "of states: leaves too", STATES, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await two_nodes(cache)
    return lambda: cache.evict(EvictParams(mamba_num=2))


@situation("evict", "of all, where Full's leaves are enough")
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, 8)
    swa, states = (int(has(cache, name)) for name in ("swa", "mamba"))
    return lambda: cache.evict(EvictParams(8, 8 * swa, states))


@situation("evict", "a pin's time is over")
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, 8)
    await cache.pin(key(8), 1e-9)
    return lambda: cache.evict(EvictParams(num_tokens=8))


@situation("component_slots", "always", BOTH, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    mine = (await cache.allocate(AllocateParams(num_tokens=8))).indices
    return lambda: cache.component_slots("swa", mine)


# -- locks -------------------------------------------------------------------------------------


@situation("inc_lock_ref", "of a node")
async def _(cache: UnifiedRadixCache) -> Call:
    node = (await stored(cache, 24)).node
    return lambda: cache.inc_lock_ref(node)


@situation("inc_lock_ref", "its window begins inside a node", BOTH, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await put(cache, key(8))
    node = (await put(cache, key(12), prev=8)).node
    return lambda: cache.inc_lock_ref(node)


@situation("dec_lock_ref", "always")
async def _(cache: UnifiedRadixCache) -> Call:
    receipt = await cache.inc_lock_ref((await stored(cache, 24)).node)
    return lambda: cache.dec_lock_ref(receipt)


@situation("dec_swa_lock_only", "the first time")
async def _(cache: UnifiedRadixCache) -> Call:
    receipt = await cache.inc_lock_ref((await stored(cache, 24)).node)
    return lambda: cache.dec_swa_lock_only(receipt)


@situation("dec_swa_lock_only", "again")
async def _(cache: UnifiedRadixCache) -> Call:
    receipt = await cache.inc_lock_ref((await stored(cache, 24)).node)
    await cache.dec_swa_lock_only(receipt)
    return lambda: cache.dec_swa_lock_only(receipt)


# -- requests ----------------------------------------------------------------------------------


@situation("cache_unfinished_req", "at least one new page, no new state")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    req.kv_committed_len = 16
    return lambda: cache.cache_unfinished_req(req, chunked=True)


@situation("cache_unfinished_req", "a state is given to the tree", STATES, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    req.kv_committed_len = 16
    req.note_state(16)
    return lambda: cache.cache_unfinished_req(req, chunked=True)


@situation("cache_unfinished_req", "and for the slot in its place a leaf is evicted", STATES, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, tokens(8, 100))
    req = await running(cache)
    await take_states(cache, 0)
    req.kv_committed_len = 16
    req.note_state(16)
    return lambda: cache.cache_unfinished_req(req, chunked=True)


@situation("cache_unfinished_req", "no new page")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    req.kv_committed_len = 10
    return lambda: cache.cache_unfinished_req(req, chunked=True)


@situation("cache_finished_req", "at least one new page, with a state or without")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    if has(cache, "mamba"):
        req.note_state(16)
    return lambda: cache.cache_finished_req(req)


@situation("cache_finished_req", "no new page")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    req.kv_committed_len = 10
    return lambda: cache.cache_finished_req(req)


@situation("cache_finished_req", "`is_insert=False`")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    return lambda: cache.cache_finished_req(req, is_insert=False)


@situation("cache_finished_req", "the scheduler wrote the row itself")
async def _(cache: UnifiedRadixCache) -> Call:
    row = cache.req_to_token_pool.alloc()
    mine = (await cache.allocate(AllocateParams(num_tokens=12))).indices
    cache.req_to_token_pool.rows[row, :12] = mine
    req = Request("r", tokens(10), req_pool_idx=row)
    return lambda: cache.cache_finished_req(req)


@situation("abort_req", "it holds something")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    return lambda: cache.abort_req(req)


@situation("release_window", "it has window slots that it needs no more", BOTH, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    return lambda: cache.release_window(req, 20)


@situation("release_window", "it has none")
async def _(cache: UnifiedRadixCache) -> Call:
    req = await running(cache)
    return lambda: cache.release_window(req, 12)


@situation("release_window", "the scheduler wrote the row itself", BOTH, ALL)
async def _(cache: UnifiedRadixCache) -> Call:
    row = cache.req_to_token_pool.alloc()
    mine = (await cache.allocate(AllocateParams(num_tokens=20))).indices
    cache.req_to_token_pool.rows[row, :20] = mine
    req = Request("r", tokens(20), req_pool_idx=row)
    return lambda: cache.release_window(req, 20)


# -- the rest ----------------------------------------------------------------------------------


@situation("pin", "a cached key")
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, 24)
    return lambda: cache.pin(key(24), 1000.0)


@situation("pin", "it splits a node")
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, 8)
    return lambda: cache.pin(key(4), 1000.0)


@situation("unpin", "of a pinned key")
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, 24)
    await cache.pin(key(24), 1000.0)
    return lambda: cache.unpin(key(24))


@situation("reset", "nothing is held")
async def _(cache: UnifiedRadixCache) -> Call:
    await stored(cache, 24)
    return cache.reset


@situation("reset", "refused")
async def _(cache: UnifiedRadixCache) -> Call:
    await cache.allocate(AllocateParams(num_tokens=8))
    return cache.reset


@situation("audit", "always")
async def _(cache: UnifiedRadixCache) -> Call:
    return cache.audit


@situation("pretty_print", "always")
async def _(cache: UnifiedRadixCache) -> Call:
    return cache.pretty_print


@situation("picture", "always")
async def _(cache: UnifiedRadixCache) -> Call:
    return cache.picture


# -- the comparison ----------------------------------------------------------------------------

TABLE: Final = table(8)
MEASURED: Final = [
    pytest.param(name, components, id=f"{'+'.join(components)}-{': '.join(name)}")
    for name, (_, sets) in SITUATIONS.items()
    for components in sets
]
OF_ACTOR: Final = ("full", "swa", "mamba")


def expected(name: tuple[str, str], components: tuple[str, ...]) -> tuple[dict[str, str], str]:
    """Return the messages to each component, and their number with the one to the coordinator."""
    cells = TABLE[name]
    sent = dict(zip(OF_ACTOR, cells[:3], strict=True))
    return {part: sent[part] for part in components}, cells[3 + SETS.index(components)]


def test_every_situation_is_in_the_document_and_the_other_way_round() -> None:
    assert list(TABLE) == list(SITUATIONS)
    for name, (_, sets) in SITUATIONS.items():
        counts = dict(zip(SETS, TABLE[name][3:], strict=True))
        assert {one for one, count in counts.items() if count != NOT_THERE} == set(sets), name


@pytest.mark.parametrize(("name", "components"), MEASURED)
async def test_a_call_costs_the_messages_that_the_document_says(
    name: tuple[str, str], components: tuple[str, ...]
) -> None:
    cells, count = expected(name, components)
    sizes = hybrid(components, page_size=4, window=8, size=64, swa_size=32)
    if name[0] == "allocate" and "for Full" in name[1]:
        sizes = hybrid(components, page_size=4, window=8, size=64, states=1)
    async with open_cache(pin_budget=64, delivery="queued", **sizes) as cache:
        call = await SITUATIONS[name][0](cache)
        record = Recorder()
        cache.add_interceptor(record)
        await ended(call)
        await settled(cache)
        cache.remove_interceptor(record)
        sent: dict[str, list[str]] = {part: [] for part in ("coordinator", *components)}
        for message, actor in record.sent:
            sent[actor].append(message)
        assert len(sent.pop("coordinator")) == 1
        stars = {part: cell.replace("*", "") for part, cell in cells.items()}
        assert {part: ", ".join(texts) for part, texts in sent.items()} == stars
        assert str(len(record.sent)) == count
        assert Counter(record.handled) == Counter(record.sent)
        assert Counter(record.finished) == Counter(record.sent)


@pytest.mark.parametrize(("name", "components"), MEASURED)
async def test_the_counters_of_a_direct_call_agree_with_the_document(
    name: tuple[str, str], components: tuple[str, ...]
) -> None:
    cells, _ = expected(name, components)
    sizes = hybrid(components, page_size=4, window=8, size=64, swa_size=32)
    if name[0] == "allocate" and "for Full" in name[1]:
        sizes = hybrid(components, page_size=4, window=8, size=64, states=1)
    async with open_cache(pin_budget=64, delivery="direct", **sizes) as cache:
        call = await SITUATIONS[name][0](cache)
        before = await handled(cache)
        await ended(call)
        after = await handled(cache)
    assert after["coordinator"] - before["coordinator"] == 1
    for part, cell in cells.items():
        at_once = [one for one in names(cell) if not one.endswith("*")]
        assert after[part] - before[part] == len(at_once), part
