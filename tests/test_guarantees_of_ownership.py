"""One test a sentence of docs/guarantees.md: who owns what, and what the audit checks."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from radixtide import UnifiedRadixCache
from radixtide.components.api import AllocateParams, EvictParams, InsertParams
from radixtide.components.request import Request
from radixtide.configs.errors import (
    Busy,
    InvalidInput,
    InvalidKey,
    ReceiptReleased,
    SlotError,
    StaleNode,
)
from support.broken import DAMAGES, PIN_BUDGET, populate
from support.broken_host import HOST_DAMAGES, Scene
from support.broken_hybrid import HYBRID_DAMAGES
from support.broken_tiers import TIER_DAMAGES, WORLD, populate_tiers
from support.caches import (
    MakeCache,
    assert_nothing_held,
    key,
    match,
    slots,
    store,
    take,
    tokens,
)
from support.rooms import ROOT
from support.tier_config import tier_config
from support.tiered import Tiers
from support.world_hybrid import HYBRID_WORLD, populate_hybrid


async def test_g32_slots_belong_to_one_holder_until_they_are_given_back(
    cache: UnifiedRadixCache,
) -> None:
    req = Request("r", tokens(20))
    mine = (await take(cache, 20)).tolist()
    requests = (await cache.allocate(AllocateParams(num_tokens=20, req=req))).indices
    others = (await take(cache, 24)).tolist()
    assert sorted([*mine, *requests.tolist(), *others]) == list(range(64))
    with pytest.raises(SlotError):
        await cache.free(requests)
    await cache.free(slots(mine))
    assert sorted((await take(cache, 20)).tolist()) == sorted(mine)
    await cache.abort_req(req)


async def test_g33_a_refused_call_has_changed_nothing(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    mine = await take(cache, 8)
    req = Request("r", tokens(8))
    before = await cache.pretty_print(), (await cache.stats()).pools
    wrong = mine.clone()
    wrong[0] += 4
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: cache.insert(InsertParams(key=key(12), value=mine)),
        lambda: cache.insert(InsertParams(key=key(tokens(8, 70)), value=wrong)),
        lambda: cache.insert(InsertParams(key=key(tokens(8, 70)), value=mine, prev_prefix_len=4)),
        lambda: cache.free(wrong),
        lambda: cache.free(mine[:3]),
        lambda: cache.allocate(AllocateParams(num_tokens=-1)),
        lambda: cache.cache_finished_req(req),
        lambda: match(cache, key([])),
    ]
    for call in calls:
        with pytest.raises((InvalidInput, InvalidKey, SlotError)):
            await call()
        assert (await cache.pretty_print(), (await cache.stats()).pools) == before
    await cache.free(mine)
    await assert_nothing_held(cache)


async def test_g34_an_insert_adopts_what_is_new_and_frees_what_is_not(
    cache: UnifiedRadixCache,
) -> None:
    await store(cache, key(8))
    given = await take(cache, 16)
    result = await cache.insert(InsertParams(key=key(16), value=given))
    assert result.duplicate == ((0, 8),)
    assert result.adopted == ((8, 16),)
    found = (await match(cache, key(16))).device_indices.tolist()
    assert found[8:] == given[8:].tolist()
    assert set(found).isdisjoint(given[:8].tolist())
    assert (await cache.stats()).pools["full"]["device"].free == 48
    await assert_nothing_held(cache)


async def test_g35_slots_past_the_inserted_length_stay_the_callers(
    cache: UnifiedRadixCache,
) -> None:
    given = await take(cache, 12)
    result = await cache.insert(InsertParams(key=key(10), value=given))
    assert result.inserted_len == 8
    assert (await cache.stats()).pools["full"]["device"].held == 4
    await cache.free(given[8:])
    await assert_nothing_held(cache)


async def test_g36_indices_are_copied_in_both_directions(cache: UnifiedRadixCache) -> None:
    given = await take(cache, 8)
    kept = given.tolist()
    await cache.insert(InsertParams(key=key(8), value=given))
    given.zero_()
    found = (await match(cache, key(8))).device_indices
    assert found.tolist() == kept
    found.zero_()
    assert (await match(cache, key(8))).device_indices.tolist() == kept
    taken = await take(cache, 4)
    copy = taken.clone()
    taken.zero_()
    await cache.free(copy)


async def test_g37_a_receipt_is_released_once(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    first = (await match(cache, key(8), lock=True)).receipt
    second = (await match(cache, key(8), lock=True)).receipt
    assert first is not None
    assert second is not None
    await cache.dec_lock_ref(first)
    with pytest.raises(ReceiptReleased):
        await cache.dec_lock_ref(first)
    assert (await cache.stats()).pools["full"]["device"].protected == 8
    await cache.dec_lock_ref(second)
    await assert_nothing_held(cache)


async def test_g38_a_stale_handle_locks_nothing(cache: UnifiedRadixCache) -> None:
    stored = await store(cache, key(8))
    await cache.evict(EvictParams(num_tokens=8))
    await store(cache, key(8))
    with pytest.raises(StaleNode):
        await cache.inc_lock_ref(stored.last_device_node)
    await assert_nothing_held(cache)


async def test_g39_what_is_locked_is_not_evicted(cache: UnifiedRadixCache) -> None:
    await store(cache, key(16))
    locked = await match(cache, key(8), lock=True)
    assert (await cache.evict(EvictParams(num_tokens=64))).num_tokens_evicted == 8
    assert len((await match(cache, key(16))).device_indices) == 8
    assert locked.receipt is not None
    await cache.dec_lock_ref(locked.receipt)
    assert (await cache.evict(EvictParams(num_tokens=64))).num_tokens_evicted == 8


async def test_g40_a_finished_request_holds_nothing_and_its_whole_pages_are_cached(
    cache: UnifiedRadixCache,
) -> None:
    req = Request("r", tokens(10), req_pool_idx=cache.req_to_token_pool.alloc())
    await match(cache, req.key(), req=req, lock=True)
    await cache.allocate(AllocateParams(num_tokens=14, req=req))
    await cache.cache_finished_req(req)
    assert cache.req_to_token_pool.available == 16
    assert len((await match(cache, key(10))).device_indices) == 8
    await assert_nothing_held(cache)


async def test_g41_an_aborted_request_is_freed_once(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    req = Request("r", tokens(20), req_pool_idx=cache.req_to_token_pool.alloc())
    await match(cache, req.key(), req=req, lock=True)
    await cache.allocate(AllocateParams(num_tokens=12, req=req))
    assert (await cache.abort_req(req)).freed == 12
    await assert_nothing_held(cache)
    assert (await cache.abort_req(req)).freed == 0
    assert cache.req_to_token_pool.available == 16
    await assert_nothing_held(cache)


async def test_g42_a_reset_is_refused_while_something_is_held(cache: UnifiedRadixCache) -> None:
    await store(cache, key(8))
    receipt = (await match(cache, key(8), lock=True)).receipt
    assert receipt is not None
    with pytest.raises(Busy, match=f"receipt {receipt.id} "):
        await cache.reset()
    await cache.dec_lock_ref(receipt)
    req = Request("the one", tokens(8))
    await cache.allocate(AllocateParams(num_tokens=8, req=req))
    with pytest.raises(Busy, match="request 'the one'"):
        await cache.reset()
    await cache.abort_req(req)
    mine = await take(cache, 4)
    with pytest.raises(Busy, match="4 slots of pool full"):
        await cache.reset()
    assert (await cache.stats()).nodes == 1
    await cache.free(mine)
    await cache.reset()
    assert (await cache.stats()).nodes == 0


async def test_g43_keys_of_different_namespaces_never_match(cache: UnifiedRadixCache) -> None:
    namespaces: list[dict[str, str]] = [
        {},
        {"extra_key": "a"},
        {"cache_salt": "a"},
        {"extra_key": "a", "cache_salt": "a"},
    ]
    for at, namespace in enumerate(namespaces):
        await store(cache, key(8, **namespace))
        for later in namespaces[at + 1 :]:
            assert len((await match(cache, key(8, **later))).device_indices) == 0
    found = [(await match(cache, key(8, **one))).device_indices.tolist() for one in namespaces]
    assert len({tuple(indices) for indices in found}) == len(namespaces)


CLAUSES: Final = {
    "G50": "structure",
    "G51": "access_times",
    "G52": "counts",
    "G53": "closure",
    "G54": "kept",
    "G55": "leaf_sets",
    "G56": "lru",
    "G57": "receipts",
    "G58": "ledger",
    "G59": "slots",
    "G60": "lost",
    "G61": "sizes",
    "G62": "pins",
    "G63": "pairs",
    "G64": "protection",
    "G65": "windows",
    "G127": "host_sizes",
    "G128": "host_slots",
    "G129": "host_closure",
    "G130": "host_order",
    "G131": "transfers",
    "G132": "tiers",
}


@pytest.mark.parametrize("number", CLAUSES)
async def test_the_audit_names_the_clause_that_does_not_hold(
    make_cache: MakeCache, number: str
) -> None:
    clause = CLAUSES[number]
    damages = [damage for damage in DAMAGES if damage.clause == clause]
    hybrid_damages = [damage for damage in HYBRID_DAMAGES if damage.clause == clause]
    host_damages = [damage for damage in HOST_DAMAGES if damage.clause == clause]
    tier_damages = [damage for damage in TIER_DAMAGES if damage.clause == clause]
    assert [*damages, *hybrid_damages, *host_damages, *tier_damages]
    for damage in damages:
        async with make_cache(pin_budget=PIN_BUDGET, audit=False) as cache:
            world = await populate(cache)
            assert (await cache.audit()).ok
            damage.do(world)
            assert clause in {one.clause for one in (await cache.audit()).violations}
    for hybrid_damage in hybrid_damages:
        async with make_cache(audit=False, **HYBRID_WORLD) as cache:
            hybrid_world = await populate_hybrid(cache)
            assert (await cache.audit()).ok
            hybrid_damage.do(hybrid_world)
            assert clause in {one.clause for one in (await cache.audit()).violations}
    for host_damage in host_damages:
        scene = Scene()
        host_damage.do(scene)
        assert clause in {one.clause for one in scene.world.audit()}
    for tier_damage in tier_damages:
        async with UnifiedRadixCache(tier_config(**WORLD)) as cache:
            tier_world = await populate_tiers(Tiers(cache))
            assert (await cache.audit()).ok
            tier_damage.do(tier_world)
            assert clause in {one.clause for one in (await cache.audit()).violations}


def test_the_document_lists_every_clause_that_can_be_broken() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| \[(G\d+)\] \| `(\w+)` \|", text, flags=re.MULTILINE))
    assert listed == CLAUSES
    broken = {damage.clause for damage in DAMAGES}
    broken |= {damage.clause for damage in HYBRID_DAMAGES}
    broken |= {damage.clause for damage in HOST_DAMAGES}
    broken |= {damage.clause for damage in TIER_DAMAGES}
    assert set(listed.values()) == broken
