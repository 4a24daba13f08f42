"""Faults that users of other caches reported: life, namespaces, cost (kinds K8, K13, K15).

Each test is named after a case; the cause of each is a public report on another project. Left out
are cases that need what is not there yet: windows and states (K8-1), sessions (K8-4, K8-6), remote
look-ups and tiers (K8-7, K13-4, K15-8). Of K8-10 and K13-7 the part is here that needs no tiers.
"""

from __future__ import annotations

import asyncio

import pytest

from radixtide import (
    AllocateParams,
    Busy,
    EvictParams,
    InvalidRequest,
    MissReason,
    OutOfSlots,
    PinRefused,
    Request,
    UnifiedRadixCache,
)
from support.caches import (
    MakeCache,
    assert_nothing_held,
    checked,
    key,
    make_config,
    match,
    state_of,
    store,
    take,
    tokens,
)
from support.work import bytes_needed, lines_run

POLICIES = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru", "tlru")


async def start(cache: UnifiedRadixCache, rid: str, prompt: list[int]) -> Request:
    """Admit a request: match with a lock, and slots for the rest."""
    req = Request(rid=rid, origin_input_ids=prompt)
    found = await match(cache, req.key(), req=req, lock=True)
    rest = len(prompt) - len(found.device_indices)
    await cache.allocate(AllocateParams(num_tokens=rest, req=req))
    return req


async def test_k8_3_the_result_of_a_chunk_that_comes_after_an_abort_is_refused(
    cache: UnifiedRadixCache,
) -> None:
    """An abort is the end: a late chunk caches nothing, leaks nothing, gets one answer."""
    req = await start(cache, "r", tokens(12))
    req.kv_committed_len = 4
    await cache.cache_unfinished_req(req, chunked=True)
    await cache.abort_req(req)
    req.kv_committed_len = 8
    with pytest.raises(InvalidRequest, match="holds nothing"):
        await cache.cache_unfinished_req(req, chunked=True)
    assert (await cache.abort_req(req)).freed == 0
    assert len((await match(cache, key(12))).device_indices) == 4
    await assert_nothing_held(cache)


async def test_k8_8_a_look_up_that_is_not_used_leaves_nothing_behind(
    make_cache: MakeCache,
) -> None:
    """Look-ups never pin; pins have a budget and a deadline, so the pool never fills up."""
    async with make_cache(pin_budget=16) as cache:
        now = 0.0
        state_of(cache).clock = lambda: now
        for turn in range(12):
            prompt = tokens(8, 100 * turn)
            await store(cache, key(prompt))
            await match(cache, key(prompt))
            await match(cache, key(prompt))
            try:
                await cache.pin(key(prompt), ttl=1.5)
            except PinRefused:
                assert (await cache.stats()).pinned == 16
            now += 1.0
        now += 10.0
        await cache.evict(EvictParams(num_tokens=64))
        await assert_nothing_held(cache)


async def test_k8_8_a_request_id_can_be_used_again_after_the_end(cache: UnifiedRadixCache) -> None:
    """The same id, many times: nothing of an earlier life counts in a later one."""
    for _ in range(20):
        req = await start(cache, "same", tokens(12))
        await cache.cache_finished_req(req)
        await assert_nothing_held(cache)


async def test_k8_9_an_abort_of_a_request_that_was_never_scheduled(
    cache: UnifiedRadixCache,
) -> None:
    """Aborting what only waited in a queue is trivial, with and without a row."""
    before = (await cache.stats()).pools
    await cache.abort_req(Request(rid="queued", origin_input_ids=tokens(12)))
    with_row = Request(rid="row", origin_input_ids=tokens(12))
    with_row.req_pool_idx = cache.req_to_token_pool.alloc()
    await cache.abort_req(with_row)
    assert cache.req_to_token_pool.available == 16
    assert (await cache.stats()).pools == before
    await assert_nothing_held(cache)


async def test_k8_10_a_retracted_request_is_admitted_again_and_finds_its_work(
    cache: UnifiedRadixCache,
) -> None:
    """Retraction caches what is computed and lets everything go; the new life starts from there."""
    req = await start(cache, "r", tokens(16))
    req.kv_committed_len = 10
    assert (await cache.cache_finished_req(req)).inserted_len == 8
    await assert_nothing_held(cache)
    again = await start(cache, "r", tokens(16))
    assert again.cache_protected_len == 8
    assert (await cache.cache_finished_req(again)).inserted_len == 16
    await assert_nothing_held(cache)


async def test_k8_12_a_reset_waits_or_is_refused_and_says_the_truth(
    cache: UnifiedRadixCache,
) -> None:
    """While something is held a reset is refused by name; a second one meanwhile is refused too."""
    req = await start(cache, "busy", tokens(8))
    with pytest.raises(Busy, match="'busy'"):
        await cache.reset()
    waiting = asyncio.ensure_future(cache.reset(timeout=20))
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="another reset"):
        await cache.reset()
    assert not waiting.done()
    await cache.cache_finished_req(req)
    await waiting
    stats = await cache.stats()
    assert (stats.generation, stats.nodes) == (1, 0)
    assert stats.pools["full"]["device"].free == 64
    await cache.reset()
    assert (await cache.stats()).generation == 2


async def test_k13_2_an_adapter_named_like_a_salt_is_another_namespace(
    cache: UnifiedRadixCache,
) -> None:
    """Adapter and salt are typed parts of the namespace: equal text does not make them equal."""
    await store(cache, key(8, extra_key="x"))
    for other in ({"cache_salt": "x"}, {"extra_key": "x", "cache_salt": ""}, {}):
        assert len((await match(cache, key(8, **other))).device_indices) == 0, other
    assert len((await match(cache, key(8, extra_key="x"))).device_indices) == 8


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"extra_key": "ab", "cache_salt": "c"}, {"extra_key": "a", "cache_salt": "bc"}),
        ({"extra_key": ""}, {}),
        ({"extra_key": "", "cache_salt": "a"}, {"extra_key": "a", "cache_salt": ""}),
        ({"extra_key": "a\0"}, {"extra_key": "a"}),
    ],
)
async def test_k13_5_two_namespaces_never_share_and_one_does(
    cache: UnifiedRadixCache, one: dict[str, str], other: dict[str, str]
) -> None:
    """Paired: with another namespace there is no reuse, with the same one there is."""
    for rid, space, hit in (("a", one, 0), ("b", other, 0), ("c", one, 8), ("d", other, 8)):
        req = Request(rid, tokens(8), extra_key=space.get("extra_key"))
        req.cache_salt = space.get("cache_salt")
        found = await match(cache, req.key(), req=req, lock=True)
        assert len(found.device_indices) == hit, rid
        await cache.allocate(AllocateParams(num_tokens=8 - hit, req=req))
        await cache.cache_finished_req(req)
    await assert_nothing_held(cache)


async def test_k13_3_and_7_a_new_version_of_weights_meets_nothing_of_the_old(
    cache: UnifiedRadixCache,
) -> None:
    """With the version in the namespace, reloaded weights share nothing with the old ones."""
    await store(cache, key(8, extra_key="adapter@1"))
    assert len((await match(cache, key(8, extra_key="adapter@2"))).device_indices) == 0
    stored = await store(cache, key(8, extra_key="adapter@2"))
    assert stored.adopted == ((0, 8),)
    assert len((await match(cache, key(8, extra_key="adapter@1"))).device_indices) == 8


async def test_k13_6_a_guess_under_another_salt_learns_nothing(cache: UnifiedRadixCache) -> None:
    """Neither a hit nor a miss's reason tells one tenant what another has, or has lost."""
    await store(cache, key(16, cache_salt="victim"))
    guess = await match(cache, key(16, cache_salt="attacker"))
    assert (len(guess.device_indices), guess.miss_reason) == (0, MissReason.NEVER_STORED)
    await cache.evict(EvictParams(num_tokens=16))
    guess = await match(cache, key(16, cache_salt="attacker"))
    assert guess.miss_reason is MissReason.NEVER_STORED
    own = await match(cache, key(16, cache_salt="victim"))
    assert own.miss_reason is MissReason.EVICTED
    assert "victim" not in repr(key(16, cache_salt="victim"))
    assert "victim" not in await cache.pretty_print()


async def leaves(cache: UnifiedRadixCache, count: int) -> None:
    """Store `count` prompts that share nothing, four tokens each."""
    for turn in range(count):
        await store(cache, key(tokens(4, 10 * turn)))


async def test_the_counter_of_work_sees_the_library_run(make_cache: MakeCache) -> None:
    """What the tests of cost below count by: a longer path takes more lines, nothing takes none."""
    async with make_cache(delivery="direct") as cache:
        assert await lines_run(asyncio.sleep(0)) == 0
        few = await lines_run(match(cache, key(8)))
        for end in (4, 8):
            await store(cache, key(end))
        assert await lines_run(match(cache, key(8))) > few > 0


async def evict_cost(count: int) -> int:
    """Return the lines that evicting 64 of `count` leaves takes."""
    async with checked(make_config(size=4 * count)) as cache:
        await leaves(cache, count)
        return await lines_run(cache.evict(EvictParams(num_tokens=4 * 64)))


async def test_k15_1_the_cost_of_an_eviction_does_not_grow_with_the_tree() -> None:
    """Evicting 64 leaves takes the same steps among 128 leaves as among 4,096."""
    small, large = await evict_cost(128), await evict_cost(4096)
    assert small > 64
    assert large <= small * 1.05


async def turn_cost(count: int, policy: str) -> tuple[int, int]:
    """Return the lines of one allocate-and-insert at a full pool, and the entries of the order."""
    async with checked(make_config(size=4 * count, policy=policy)) as cache:
        await leaves(cache, count)
        most = 0
        for turn in range(64):
            fresh = key(tokens(4, 10 * (count + turn)))
            most = max(most, await lines_run(store(cache, fresh)))
        entries = cache._components[0].lru_lengths()[0]
        assert entries is not None
        return most, entries


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo"])
async def test_k15_2_a_full_pool_evicts_and_inserts_in_turn_without_rebuilding(
    policy: str,
) -> None:
    """One out, one in, at a full pool: steps do not grow with leaves, no entry is stale."""
    (small, few), (large, many) = await turn_cost(64, policy), await turn_cost(2048, policy)
    assert (few, many) == (64, 2048)
    assert large <= small * 1.3


async def test_k15_4_a_hit_counts_once_a_request_and_never_for_its_own_chunks(
    cache: UnifiedRadixCache,
) -> None:
    """Own chunks are no hits; a second request is one hit on each node; a split copies."""
    req = await start(cache, "first", tokens(16))
    for done in (4, 8, 12, 16):
        req.kv_committed_len = done
        await cache.cache_unfinished_req(req, chunked=True)
    await cache.cache_finished_req(req)
    nodes = state_of(cache).tree
    assert {node.hits for node in nodes} == {0}
    again = await start(cache, "second", tokens(16))
    await match(cache, key(16), req=again)
    await cache.cache_unfinished_req(again, chunked=True)
    await cache.cache_finished_req(again)
    assert {node.hits for node in nodes} == {1}
    await store(cache, key(tokens(16, 100)))
    for _ in range(3):
        await match(cache, key(tokens(16, 100)))
    await match(cache, key(tokens(8, 100)))
    hits = {(node.start, node.hits) for node in nodes if node.hits > 1}
    assert hits == {(0, 4), (8, 3)}


async def chunk_costs(chunks: int, chunk: int, at_once: bool) -> tuple[list[int], list[int]]:
    """Return lines and bytes of the first and the last of `chunks` cached chunks of one prompt."""
    length = chunks * chunk
    async with checked(make_config(size=2 * length, page_size=16, max_context=length)) as cache:
        req = Request(rid="r", origin_input_ids=list(range(length)))
        await match(cache, req.key(), req=req, lock=True)
        if at_once:
            await cache.allocate(AllocateParams(num_tokens=length, req=req))
        lines, peaks = [], []
        for turn in range(chunks):
            if not at_once:
                await cache.allocate(AllocateParams(num_tokens=chunk, req=req))
            req.kv_committed_len = (turn + 1) * chunk
            call = cache.cache_unfinished_req(req, chunked=True)
            if turn in (1, chunks - 1):
                lines.append(await lines_run(call))
            elif turn in (2, chunks - 2):
                peaks.append(await bytes_needed(call))
            else:
                await call
        await cache.cache_finished_req(req)
        return lines, peaks


@pytest.mark.parametrize("at_once", [False, True], ids=["slots by chunk", "slots at once"])
async def test_k15_6_the_work_of_a_chunk_does_not_grow_with_the_length_before_it(
    at_once: bool,
) -> None:
    """The 200th chunk of a prompt runs as many steps, and needs as much memory, as the second."""
    (early, late), (early_peak, late_peak) = await chunk_costs(200, 256, at_once)
    assert late <= early * 1.1
    assert max(early_peak, late_peak) <= 40 * 256 * 8


async def test_k15_7_an_idle_cache_does_nothing(cache: UnifiedRadixCache) -> None:
    """No walk of all nodes runs by itself: turns of the loop without calls handle no message."""
    await leaves(cache, 8)
    before = {name: one.handled for name, one in (await cache.stats()).actors.items()}
    for _ in range(50):
        await asyncio.sleep(0)
    assert {name: one.handled for name, one in (await cache.stats()).actors.items()} == before


@pytest.mark.parametrize("policy", POLICIES)
async def test_k15_9_every_policy_works_at_a_full_pool(make_cache: MakeCache, policy: str) -> None:
    """Each policy serves a full pool for a while: all alive, nothing lost, hits go on."""
    async with make_cache(policy=policy) as cache:
        await store(cache, key(8))
        for turn in range(40):
            if turn % 3 == 0:
                await match(cache, key(8))
            prompt = [*tokens(4 * (turn % 3)), *tokens(8, 1000 + 100 * turn)]
            await store(cache, key(prompt), priority=turn % 4)
            found = await match(cache, key(prompt))
            assert len(found.device_indices) == len(prompt)
        with pytest.raises(OutOfSlots):
            await take(cache, 68)
        await cache.free(await take(cache, 64))
        stats = await cache.stats()
        assert stats.pools["full"]["device"].free == 64
        assert all(one.alive and not one.failures for one in stats.actors.values())
        await assert_nothing_held(cache)
