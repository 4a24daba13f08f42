"""A component that no built-in knows, beside all of them: the sidecar of the example.

It keeps one page id for each group of 128 tokens of a prefix, in the node in which the group ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from radixtide import (
    AllocateParams,
    EvictParams,
    EvictResult,
    InsertParams,
    InvalidInput,
    InvalidRequest,
    MissReason,
    OutOfSlots,
    Request,
    SlotError,
    UnifiedRadixCache,
)
from radixtide.components.api import InsertResult, MatchResult
from support.caches import Delivery, key, match, open_cache, slots, store, tokens
from support.hybrids import audited, chunk, decode, drain, has, put
from support.plugin import (
    GROUP,
    NAME,
    SETS,
    copies,
    page_ids,
    registered,
    sidecar_of,
    spare_ids,
    with_sidecar,
)

PAGES = (16, 64, 128)


@pytest.fixture(autouse=True)
def known() -> Iterator[None]:
    """Register the component for every test."""
    with registered():
        yield


def opened(
    delivery: Delivery,
    components: tuple[str, ...] = ("full",),
    *,
    ids: int = 16,
    page_size: int = 16,
    **fields: Any,
) -> AbstractAsyncContextManager[UnifiedRadixCache]:
    """Open a cache with the sidecar, audited after every call; its pools are roomy."""
    fields = {"size": 4096, "window": 160, "max_context": 2048, **fields}
    plugins = {NAME: {"size": ids}}
    return audited(delivery, (*components, NAME), plugins=plugins, page_size=page_size, **fields)


def branch(shared: int, length: int, start: int = 10_000) -> list[int]:
    """Return a prompt that shares its first tokens with those of ``key(n)``."""
    return [*range(shared), *range(start, start + length - shared)]


async def ids_of(cache: UnifiedRadixCache, prompt: list[int] | int) -> list[int]:
    """Return the page ids of what is cached of a prompt, -1 for a group without a copy."""
    return await page_ids(cache, await match(cache, key(prompt)))


async def held(cache: UnifiedRadixCache, prompt: list[int] | int) -> MatchResult:
    """Match and lock."""
    return await match(cache, key(prompt), lock=True)


def joined(done: InsertResult) -> list[tuple[int, int]]:
    """Return the ranges that got copies, where they touch as one."""
    ranges: list[tuple[int, int]] = []
    for begin, end in done.component_adopted[NAME]:
        if ranges and ranges[-1][1] == begin:
            begin = ranges.pop()[0]
        ranges.append((begin, end))
    return ranges


# -- whose a group is -----------------------------------------------------------------


@pytest.mark.parametrize("components", SETS, ids="+".join)
@pytest.mark.parametrize("page", PAGES)
async def test_each_whole_group_of_a_prefix_has_a_page_id(
    delivery: Delivery, components: tuple[str, ...], page: int
) -> None:
    async with opened(delivery, components, page_size=page) as cache:
        length = 3 * GROUP + (GROUP - page)
        done = await put(cache, key(length), state=has(cache, "mamba"))
        assert joined(done.result) == [(0, 3 * GROUP)]
        assert await page_ids(cache, done.result) == [0, 1, 2]
        assert await spare_ids(cache) == (13, 3, 0)
        found = await match(cache, key(length))
        assert len(found.device_indices) == length
        assert await page_ids(cache, found) == [0, 1, 2]
        await drain(cache)


async def test_a_node_in_which_no_group_ends_is_a_tombstone(delivery: Delivery) -> None:
    async with opened(delivery) as cache:
        done = await store(cache, key(112))
        assert NAME not in done.component_adopted
        assert await page_ids(cache, done) == []
        # The group that began there ends below.
        more = await store(cache, key(272))
        assert more.component_adopted[NAME] == ((0, 256),)
        assert await page_ids(cache, more) == [0, 1]
        assert (await cache.stats()).actors[NAME].device_lru == 1


async def test_branches_have_copies_of_their_own_of_the_group_in_which_they_part(
    delivery: Delivery,
) -> None:
    async with opened(delivery) as cache:
        await store(cache, key(400))
        other = branch(200, 300)
        done = await store(cache, key(other))
        assert done.component_adopted[NAME] == ((128, 256),)
        assert await ids_of(cache, 400) == [0, 1, 2]
        assert await ids_of(cache, other) == [0, 3]


async def test_namespaces_share_no_copy(delivery: Delivery) -> None:
    async with opened(delivery) as cache:
        await store(cache, key(256, extra_key="one"))
        await store(cache, key(256, extra_key="two"))
        assert sorted(copies(cache).values()) == [0, 1, 2, 3]


# -- split --------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("at", [64, 128, 192, 256, 320])
async def test_a_split_shares_the_page_ids_by_depth(delivery: Delivery, page: int, at: int) -> None:
    async with opened(delivery, page_size=page) as cache:
        await store(cache, key(512))
        found = await match(cache, key(branch(at, 640)))
        cut = at // page * page
        assert len(found.device_indices) == cut
        assert await page_ids(cache, found) == [0, 1, 2, 3][: cut // GROUP]
        assert await ids_of(cache, 512) == [0, 1, 2, 3]


async def test_a_split_under_a_lock_keeps_both_halves_protected(delivery: Delivery) -> None:
    async with opened(delivery) as cache:
        await store(cache, key(512))
        lock = await held(cache, 512)
        for at in (192, 320, 48):
            await match(cache, key(branch(at, 512)))
        assert (await cache.stats()).nodes == 4
        assert await spare_ids(cache) == (12, 0, 4)
        assert (await cache.evict(EvictParams(others={NAME: 9}))).others == {}
        assert lock.receipt is not None
        freed = await cache.dec_lock_ref(lock.receipt)
        assert freed.unprotected == {"full": 512, NAME: 4}
        assert await spare_ids(cache) == (12, 4, 0)


# -- a pool that is short ---------------------------------------------------------------


async def test_a_match_is_no_shorter_for_want_of_copies(delivery: Delivery) -> None:
    async with opened(delivery, ids=2) as cache:
        await store(cache, key(600))
        found = await match(cache, key(600))
        assert len(found.device_indices) == 592
        assert found.miss_reason is MissReason.UNALIGNED_TAIL
        assert await page_ids(cache, found) == [0, 1, -1, -1]
        # A border was made where they ran out, so that the first groups have theirs.
        assert (await cache.stats()).nodes == 2


async def test_an_insert_gives_page_ids_to_what_lacked_them(delivery: Delivery) -> None:
    async with opened(delivery) as cache:
        await store(cache, key(400))
        assert (await cache.evict(EvictParams(others={NAME: 1}))).others == {NAME: 3}
        assert await ids_of(cache, 400) == [-1, -1, -1]
        found = await match(cache, key(400))
        done = await cache.insert(
            InsertParams(key=key(400), value=found.device_indices, prev_prefix_len=400)
        )
        assert (done.prefix_len, done.adopted) == (400, ())
        assert done.component_adopted == {NAME: ((0, 384),)}
        assert -1 not in await page_ids(cache, done)


async def test_new_copies_push_out_those_that_were_used_least_lately(delivery: Delivery) -> None:
    async with opened(delivery, ids=4) as cache:
        for start in (0, 1000, 2000, 3000):
            await store(cache, key(tokens(128, start)))
        await match(cache, key(tokens(128, 0)))
        done = await store(cache, key(tokens(256, 4000)))
        assert done.component_adopted[NAME] == ((0, 256),)
        left = [await ids_of(cache, tokens(128, start)) for start in (0, 1000, 2000, 3000)]
        assert [ids != [-1] for ids in left] == [True, False, False, True]


async def test_an_insert_never_takes_the_copies_of_its_own_prefix(delivery: Delivery) -> None:
    async with opened(delivery, ids=3) as cache:
        await store(cache, key(256))
        await store(cache, key(tokens(128, 5000)))
        done = await store(cache, key(640))
        assert done.component_adopted[NAME] == ((256, 384),)
        assert (await page_ids(cache, done))[:2] == [0, 1]
        assert await ids_of(cache, tokens(128, 5000)) == [-1]


async def test_locked_copies_are_never_pushed_out(delivery: Delivery) -> None:
    async with opened(delivery, ids=3) as cache:
        await store(cache, key(400))
        lock = await held(cache, 400)
        done = await store(cache, key(tokens(256, 5000)))
        assert NAME not in done.component_adopted
        assert await page_ids(cache, lock) == [0, 1, 2]
        assert (await cache.stats()).counters["donations_skipped"] == 0


# -- eviction -----------------------------------------------------------------------------


@pytest.mark.parametrize("components", SETS, ids="+".join)
async def test_evicting_copies_takes_nothing_else_along(
    delivery: Delivery, components: tuple[str, ...]
) -> None:
    async with opened(delivery, components) as cache:
        await put(cache, key(512), state=has(cache, "mamba"))
        await put(cache, key(branch(192, 512)), state=has(cache, "mamba"))
        before = (await cache.stats()).pools
        done = await cache.evict(EvictParams(others={NAME: 100}))
        assert done == EvictResult(others={NAME: 7})
        after = (await cache.stats()).pools
        assert {name: after[name] for name in components} == {
            name: before[name] for name in components
        }
        assert await spare_ids(cache) == (16, 0, 0)


@pytest.mark.parametrize("components", SETS[1:], ids="+".join)
async def test_copies_stay_when_others_evict_on_a_node_that_stays(
    delivery: Delivery, components: tuple[str, ...]
) -> None:
    async with opened(delivery, components) as cache:
        for length in (256, 512):
            await put(cache, key(length), state=has(cache, "mamba"))
        lock = await held(cache, 512)
        assert len(lock.device_indices) == 512
        assert lock.receipt is not None
        await cache.dec_swa_lock_only(lock.receipt)
        freed = await cache.evict(EvictParams(swa_num_tokens=0, mamba_num=0, others={NAME: 9}))
        assert freed == EvictResult()
        for wanted in (
            EvictParams(swa_num_tokens=512 if has(cache, "swa") else 0),
            EvictParams(mamba_num=2 if has(cache, "mamba") else 0),
        ):
            assert (await cache.evict(wanted)).others == {}
        assert await page_ids(cache, lock) == [0, 1, 2, 3]
        await cache.dec_lock_ref(lock.receipt)


async def test_copies_go_when_their_node_goes(delivery: Delivery) -> None:
    async with opened(delivery) as cache:
        await store(cache, key(400))
        done = await cache.evict(EvictParams(num_tokens=1))
        assert done == EvictResult(num_tokens_evicted=400, others={NAME: 3})
        assert await spare_ids(cache) == (16, 0, 0)


async def test_what_one_eviction_frees_counts_toward_the_copies_asked_for(
    delivery: Delivery,
) -> None:
    async with opened(delivery) as cache:
        for start in (0, 5000):
            await store(cache, key(tokens(256, start)))
        done = await cache.evict(EvictParams(num_tokens=1, others={NAME: 2}))
        assert done == EvictResult(num_tokens_evicted=256, others={NAME: 2})
        done = await cache.evict(EvictParams(others={NAME: 1}))
        assert done == EvictResult(others={NAME: 2})


async def test_an_allocation_tells_of_the_copies_that_went(delivery: Delivery) -> None:
    async with opened(delivery, size=512) as cache:
        await store(cache, key(512))
        room = await cache.allocate(AllocateParams(num_tokens=512))
        assert room.evicted == EvictResult(num_tokens_evicted=512, others={NAME: 4})
        await cache.free(room.indices)


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"sidecars": 3}, "3 slots of pool sidecars were named, but this cache has no sidecars"),
        ({"full": 3}, "full has a field of its own"),
        ({"mamba": 0}, "mamba has a field of its own"),
        ({NAME: -1}, r"others\['sidecar'\] is negative"),
        ({NAME: 1.0}, r"others\['sidecar'\] must be int, not float"),
        ({NAME: True}, r"others\['sidecar'\] must be int, not bool"),
        ({5: 1}, "a name in others must be str, not int"),
        ([NAME], "others must be dict, not list"),
        (None, "others must be dict, not NoneType"),
    ],
)
async def test_a_wrong_wish_to_evict_is_refused(delivery: Delivery, others: Any, says: str) -> None:
    async with opened(delivery) as cache:
        await store(cache, key(128))
        with pytest.raises(InvalidInput, match=says):
            await cache.evict(EvictParams(others=others))
        assert await spare_ids(cache) == (15, 1, 0)


# -- locks, pins, requests ------------------------------------------------------------------


@pytest.mark.parametrize("components", SETS, ids="+".join)
async def test_a_lock_covers_the_copies_of_the_whole_path(
    delivery: Delivery, components: tuple[str, ...]
) -> None:
    async with opened(delivery, components) as cache:
        for length in (128, 256, 384, 512):
            await put(cache, key(length), state=has(cache, "mamba"))
        await put(cache, key(tokens(128, 5000)), state=has(cache, "mamba"))
        first, second = await held(cache, 384), await held(cache, 512)
        assert await spare_ids(cache) == (11, 1, 4)
        for lock, left in ((second, 3), (first, 0)):
            assert lock.receipt is not None
            # Giving up the window does not give up the copies: decoding goes on reading them.
            await cache.dec_swa_lock_only(lock.receipt)
            await cache.dec_lock_ref(lock.receipt)
            assert (await spare_ids(cache))[2] == left


async def test_a_pin_keeps_copies(delivery: Delivery) -> None:
    async with opened(delivery, pin_budget=256) as cache:
        await store(cache, key(400))
        assert (await cache.pin(key(256), ttl=1000.0)).pinned_len == 256
        assert (await cache.evict(EvictParams(others={NAME: 9}))).others == {NAME: 1}
        assert await ids_of(cache, 400) == [0, 1, -1]
        await cache.unpin(key(256))
        assert (await cache.evict(EvictParams(others={NAME: 9}))).others == {NAME: 2}


@pytest.mark.parametrize("components", SETS, ids="+".join)
@pytest.mark.parametrize("page", PAGES)
async def test_a_request_gets_copies_as_it_is_cached(
    delivery: Delivery, components: tuple[str, ...], page: int
) -> None:
    async with opened(delivery, components, page_size=page) as cache:
        req = Request("r", tokens(500))
        states = 3 if has(cache, "mamba") else 0
        await match(cache, req.key(), req=req, lock=True)
        await cache.allocate(AllocateParams(num_tokens=500, mamba_num=states, req=req))
        assert await chunk(cache, req, 256) == 256
        assert await spare_ids(cache) == (14, 0, 2)
        done = await chunk(cache, req, 500)
        assert done == 500 // page * page
        assert await spare_ids(cache) == (13, 0, 3)
        for _ in range(150):
            await decode(cache, req)
        req.kv_committed_len = 650
        if states:
            req.note_state(640)
        finished = await cache.cache_finished_req(req)
        assert finished.inserted_len == 640
        assert finished.component_adopted[NAME] == ((384, 640),)
        assert await spare_ids(cache) == (11, 5, 0)
        assert await ids_of(cache, 640) == [0, 1, 2, 3, 4]
        await drain(cache)


async def test_an_abort_frees_no_copy_and_leaks_none(delivery: Delivery) -> None:
    async with opened(delivery) as cache:
        req = Request("r", tokens(500))
        await match(cache, req.key(), req=req, lock=True)
        await cache.allocate(AllocateParams(num_tokens=500, req=req))
        assert await chunk(cache, req, 300) == 288
        await cache.abort_req(req)
        assert await spare_ids(cache) == (14, 2, 0)
        await drain(cache)


async def test_a_reset_frees_every_copy(delivery: Delivery) -> None:
    async with opened(delivery) as cache:
        await store(cache, key(400))
        await cache.reset()
        assert await spare_ids(cache) == (16, 0, 0)
        assert await page_ids(cache, await store(cache, key(400))) == [0, 1, 2]


async def test_nobody_else_can_free_a_page_id(delivery: Delivery) -> None:
    async with opened(delivery) as cache:
        await store(cache, key(400))
        for at in (0, 5):
            with pytest.raises(SlotError):
                await cache.free(slots([at]), NAME)
        with pytest.raises(InvalidRequest, match="no slots bound to those of others"):
            await cache.component_slots(NAME, slots([0]))
        assert await spare_ids(cache) == (13, 3, 0)


async def test_a_pool_that_is_full_refuses_nothing(delivery: Delivery) -> None:
    async with opened(delivery, ids=1, size=512) as cache:
        await store(cache, key(384))
        lock = await held(cache, 384)
        await store(cache, key(tokens(128, 5000)))
        with pytest.raises(OutOfSlots) as caught:
            await cache.allocate(AllocateParams(num_tokens=512))
        assert set(caught.value.pools) == {"full"}
        assert await page_ids(cache, lock) == [0, -1, -1]


# -- what it costs, and what is seen ------------------------------------------------------


async def test_a_component_without_a_vote_is_not_asked_for_one() -> None:
    async with open_cache(**with_sidecar(page_size=16, size=512)) as cache:
        await store(cache, key(400))
        before = (await cache.stats()).actors[NAME].handled
        await match(cache, key(400))
        assert (await cache.stats()).actors[NAME].handled == before + 1


async def test_copies_are_seen_in_the_picture_and_in_the_statistics(delivery: Delivery) -> None:
    async with opened(delivery, ids=4) as cache:
        await store(cache, key(400))
        await store(cache, key(tokens(400, 5000)))
        text = await cache.pretty_print()
        assert "sidecar: 3 groups without a copy" in text
        assert "sidecar: page ids 0, 1, 2" in text
        pool = (await cache.stats()).pools[NAME]["device"]
        assert (pool.free, pool.evictable, pool.size) == (1, 3, 4)
        assert sidecar_of(cache).traits().independent
