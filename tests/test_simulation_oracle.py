"""The oracle of the simulator: it takes right answers, and names each kind of wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from radixtide import AllocateParams, InsertParams, Request
from radixtide.actors.inspection import audit_now
from radixtide.components.api import EvictParams, MatchResult, MissReason
from radixtide.simulation.checks import places
from radixtide.simulation.oracle_books import as_slots
from radixtide.simulation.oracle_content import key_marks, marks_of
from radixtide.simulation.setup import SETS
from radixtide.tiers.host_pool import HostPool
from radixtide.tree.key import RadixKey
from support.caches import system_of
from support.oracle_scene import (
    HYBRID,
    PAGE,
    fresh,
    key,
    opened,
    setup,
)


def test_marks_tell_namespaces_and_every_token_before_apart() -> None:
    whole = key_marks(key(3))
    assert np.array_equal(key_marks(key(2)), whole[: 2 * PAGE])
    assert not np.isin(key_marks(key(3, cache_salt="a")), whole).any()
    assert not np.isin(key_marks(key(1, extra_key="a")), key_marks(key(1, cache_salt="a"))).any()
    other = RadixKey([99, *range(1, 12)])
    assert not np.isin(key_marks(other), whole).any()
    pairs = marks_of(key(2).raw, (None, None), True)
    assert len(pairs) == 2 * PAGE - 1
    with pytest.raises(ValueError, match="read-only"):
        whole[0] = 0


@pytest.mark.parametrize("components", SETS, ids="+".join)
async def test_what_a_right_cache_does_is_right(components: tuple[str, ...]) -> None:
    scene = await opened(setup(components))
    oracle, cache = scene.oracle, scene.cache
    await scene.put(key(3))
    held = await scene.good_match(key(3), lock=True)
    assert len(held.device_indices) == 3 * PAGE
    await scene.put(key(2, 10))
    assert not oracle.look()
    assert not oracle.deep()
    assert not oracle.stats(await cache.stats())
    assert not oracle.idle(await cache.stats())
    # What is locked stays through an eviction of everything, what is not may go.
    params = EvictParams(1000, 1000 * ("swa" in components), 1000 * ("mamba" in components))
    before = oracle.snapshot()
    assert not oracle.evicted(params, await cache.evict(params), before)
    assert len((await scene.good_match(key(3))).device_indices) == 3 * PAGE
    assert not len((await scene.good_match(key(2, 10))).device_indices)
    assert held.receipt is not None
    oracle.unlocked(held.receipt)
    await cache.dec_lock_ref(held.receipt)
    assert not oracle.idle(await cache.stats())
    assert oracle.compared > 8
    await cache.close()


@pytest.mark.parametrize("components", SETS, ids="+".join)
async def test_a_request_is_right_from_its_match_to_its_end(components: tuple[str, ...]) -> None:
    scene = await opened(setup(components, extra_buffer=True))
    oracle, cache = scene.oracle, scene.cache
    await scene.put(key(2))
    req = Request("r", list(range(4 * PAGE)))
    req.req_pool_idx = cache.req_to_token_pool.alloc()
    stateful = scene.stateful
    found = await scene.good_match(req.key(), req=req, lock=True, cow_mamba=stateful)
    have = len(found.device_indices)
    params = AllocateParams(4 * PAGE - have, mamba_num=2 * stateful, req=req)
    before = oracle.snapshot()
    given = await cache.allocate(params)
    assert not oracle.allocated(params, given, before)
    assert not oracle.granted(given.indices, "full", "r")
    own = as_slots(given.indices)
    oracle.wrote(req.key(), have, own)
    assert not oracle.request(req, req.key(), own)
    req.kv_committed_len = 3 * PAGE
    oracle.asked(req.key(), 3 * PAGE)
    oracle.leaving(req)
    oracle.gone(own[: 3 * PAGE - have], "full")
    before = oracle.snapshot()
    done = await cache.cache_unfinished_req(req)
    assert not oracle.cached("chunk", req, req.key(3 * PAGE), done, before, 0, have)
    own = own[req.cache_protected_len - have :]
    assert not oracle.granted(own, "full", "r")
    assert not oracle.request(req, req.key(), own)
    assert not oracle.look()
    oracle.leaving(req, ends=True)
    oracle.gone(own, "full")
    for name in ("mamba",) if stateful else ():
        oracle.gone([req.mamba_pool_idx, *(req.mamba_ping_pong or [])], name)
    req.kv_committed_len = 4 * PAGE
    oracle.asked(req.key(), 4 * PAGE)
    before = oracle.snapshot()
    done = await cache.cache_finished_req(req)
    assert not oracle.cached("finish", req, req.key(), done, before)
    assert not oracle.deep()
    assert not oracle.idle(await cache.stats())
    await cache.close()


def shorter(by: int) -> Callable[[MatchResult], MatchResult]:
    def lie(result: MatchResult) -> MatchResult:
        cut = result.device_indices[: len(result.device_indices) - by]
        return msgspec.structs.replace(
            result,
            device_indices=cut,
            miss_length=result.miss_length + by,
            miss_reason=MissReason.NEVER_STORED,
        )

    return lie


def altered(**fields: Any) -> Callable[[MatchResult], MatchResult]:
    return lambda result: msgspec.structs.replace(result, **fields)


def other_slots(result: MatchResult) -> MatchResult:
    return msgspec.structs.replace(result, device_indices=result.device_indices.flip(0))


LIES: dict[str, tuple[Callable[[MatchResult], MatchResult], str]] = {
    "a page less than is locked": (shorter(PAGE), "8 units, and 12 are locked whole"),
    "not whole pages": (shorter(1), "11 units are not whole pages"),
    "other slots": (other_slots, "unit 0 is in slot 11, under lock"),
    "a wrong rest": (altered(miss_length=3), "miss_length 3 of 12"),
    "a wrong reason": (altered(miss_reason=MissReason.EVICTED), "evicted with 12 of 12 units"),
    "Full is shorter than the match": (altered(full_kv_hit_length=8), "Full has 8"),
    "more on the host than there was": (altered(host_hit_length=4), "16 units of a key of 12"),
}


@pytest.mark.parametrize("lie", LIES, ids=lambda name: name.replace(" ", "_"))
async def test_a_wrong_match_is_named(lie: str) -> None:
    scene = await opened(setup())
    await scene.put(key(3))
    await scene.good_match(key(3), lock=True)
    params, result, before = await scene.match(key(3))
    change, says = LIES[lie]
    found = scene.oracle.matched(params, change(result), before)
    assert any(says in one for one in found), found
    assert not scene.oracle.matched(params, result, before)
    await scene.cache.close()


async def test_a_match_without_a_slot_that_asked_for_none_is_named() -> None:
    scene = await opened(setup())
    params, result, before = await scene.match(key(3))
    wrong = msgspec.structs.replace(result, miss_reason=MissReason.NO_SLOT)
    found = scene.oracle.matched(params, wrong, before)
    assert any("no_slot without cow_mamba" in one for one in found), found
    assert not scene.oracle.matched(params, result, before)
    await scene.cache.close()


async def test_a_match_that_is_shorter_than_what_was_seen_is_named() -> None:
    scene = await opened(setup())
    await scene.put(key(3))
    params, result, before = await scene.match(key(3))
    found = scene.oracle.matched(params, shorter(PAGE)(result), before)
    assert any("12 were there, with nothing dropped since" in one for one in found), found
    # An eviction takes what was seen away: a shorter answer is as good as any.
    await scene.cache.evict(EvictParams(1))
    assert not len((await scene.good_match(key(3))).device_indices)
    await scene.cache.close()


async def test_what_was_seen_after_a_match_was_made_does_not_count_against_it() -> None:
    scene = await opened(setup())
    params, result, before = await scene.match(key(3))
    await scene.put(key(3))
    assert not scene.oracle.matched(params, result, before)
    again = scene.oracle.snapshot()
    found = scene.oracle.matched(params, result, again)
    assert any("12 were there" in one for one in found), found
    await scene.cache.close()


async def test_what_is_pinned_must_be_there_while_it_is_pinned() -> None:
    scene = await opened(setup())
    await scene.put(key(3))
    before = scene.oracle.snapshot()
    pinned = await scene.cache.pin(key(3), 100.0)
    assert not scene.oracle.pinned(key(3), pinned, before)
    await scene.cache.evict(EvictParams(1000))
    params, result, before = await scene.match(key(3))
    wrong = msgspec.structs.replace(shorter(PAGE)(result), full_kv_hit_length=2 * PAGE)
    found = scene.oracle.matched(params, wrong, before)
    assert any("Full has 8 units, 12 are locked or pinned" in one for one in found), found
    scene.oracle.unpinned(key(3))
    await scene.cache.unpin(key(3))
    await scene.cache.evict(EvictParams(1000))
    assert not len((await scene.good_match(key(3))).device_indices)
    await scene.cache.close()


async def test_a_page_with_two_names_in_storage_is_named() -> None:
    scene = await opened(setup(tiers="host"))
    await scene.put(key(2))
    await scene.put(key(2, cache_salt="other"))
    assert not scene.oracle.deep()
    one, other = (place.node for place in places(scene.cache))
    one.hashes = b"a" * 32 + b"b" * 32
    other.hashes = b"c" * 32 + b"d" * 32
    oracle = fresh(scene)
    assert not oracle.deep()
    other.hashes = b"c" * 32 + b"b" * 32
    assert any("the name in storage of another content" in it for it in fresh(scene).deep())
    one.hashes = b"a" * 32 + b"e" * 32
    assert any("another name in storage than before" in it for it in oracle.deep())
    await scene.cache.close()


async def test_what_was_never_given_under_a_namespace_is_named() -> None:
    scene = await opened(setup())
    await scene.put(key(2))
    params, result, before = await scene.match(key(2))
    foreign = msgspec.structs.replace(params, key=key(2, cache_salt="other"))
    found = scene.oracle.matched(foreign, result, before)
    assert any("never given under this namespace" in one for one in found), found
    await scene.cache.close()


async def test_what_was_given_before_a_reset_only_is_named() -> None:
    scene = await opened(setup())
    await scene.put(key(2))
    params, result, _ = await scene.match(key(2))
    await scene.cache.reset()
    assert not len((await scene.good_match(key(2))).device_indices)
    handle = msgspec.structs.replace(result.last_device_node, generation=1)
    again = msgspec.structs.replace(result, last_device_node=handle)
    found = scene.oracle.matched(params, again, scene.oracle.snapshot())
    assert any("before the last reset only" in one for one in found), found
    await scene.cache.close()


@pytest.mark.parametrize("component", HYBRID)
async def test_wrong_bytes_under_a_lock_are_named(component: str) -> None:
    scene = await opened(setup(HYBRID))
    await scene.put(key(3))
    await scene.good_match(key(3), lock=True)
    assert not scene.oracle.look()
    for layer in scene.cache.memory[component].parts():
        for part in layer:
            part[:] = -7.0
    for found in (scene.oracle.look(), scene.oracle.deep()):
        assert any(f"wrong bytes of {component}" in one for one in found), found
    await scene.cache.close()


async def test_slots_of_two_owners_are_named() -> None:
    scene = await opened(setup())
    given = await scene.take(2 * PAGE)
    found = scene.oracle.granted(given.indices[:PAGE], "full", "r1")
    assert any("are held by s0" in one for one in found), found
    await scene.put(key(2))
    held = await scene.good_match(key(2), lock=True)
    found = scene.oracle.granted(held.device_indices, "full", "r1")
    assert any("are under lock" in one for one in found), found
    assert any("are the tree's or free" in one for one in found), found
    await scene.cache.close()


async def test_a_write_to_what_somebody_holds_is_named() -> None:
    scene = await opened(setup())
    given = await scene.take(2 * PAGE)
    scene.oracle.stamped(given.indices, "full")
    assert not scene.oracle.look()
    scene.cache.memory["full"].parts()[0][0][given.indices[1]] = -7.0
    found = scene.oracle.look()
    assert any("of s0 were overwritten" in one for one in found), found
    await scene.cache.close()


async def test_an_insert_that_tells_of_the_wrong_units_is_named() -> None:
    scene = await opened(setup())
    params, result, before = await scene.put(key(3))
    for fields, says in (
        ({"adopted": ((0, 8),)}, "are not [0, 12)"),
        ({"adopted": ((0, 8),), "duplicate": ((4, 12),)}, "are not [0, 12)"),
        ({"inserted_len": 16}, "16 units inserted"),
        ({"prefix_len": 13}, "prefix_len 13"),
    ):
        wrong = msgspec.structs.replace(result, **fields)
        found = scene.oracle.inserted(params, wrong, before)
        assert any(says in one for one in found), found
    await scene.cache.close()


async def test_what_nobody_holds_and_is_held_is_named() -> None:
    scene = await opened(setup())
    given = await scene.take(2 * PAGE)
    scene.oracle.gone(given.indices, "full")
    found = scene.oracle.idle(await scene.cache.stats())
    assert any("8 slots of full are held, and callers hold 0" in one for one in found), found
    await scene.match(key(1), lock=True)
    found = scene.oracle.idle(await scene.cache.stats())
    assert any("1 receipts live, and callers have 0" in one for one in found), found
    # After a call in doubt nobody can tell.
    scene.oracle.lost("match")
    assert not scene.oracle.idle(await scene.cache.stats())
    await scene.cache.close()


async def test_a_window_given_back_too_early_is_named() -> None:
    scene = await opened(setup(("full", "swa"), window=8))
    req = Request("r", list(range(5 * PAGE)))
    given = await scene.take(5 * PAGE, "r", req)
    own = as_slots(given.indices)
    scene.oracle.wrote(req.key(), 0, own)
    await scene.cache.release_window(req, 5 * PAGE)
    assert req.swa_evicted_seqlen == 3 * PAGE
    assert not scene.oracle.request(req, req.key(), own)
    req.swa_evicted_seqlen = 4 * PAGE
    found = scene.oracle.request(req, req.key(), own)
    assert any("given back up to 16, of 20 units" in one for one in found), found
    req.swa_evicted_seqlen = 2 * PAGE
    found = scene.oracle.request(req, req.key(), own)
    assert any("its window has lost slots" in one for one in found), found
    await scene.cache.close()


async def test_a_row_that_names_other_slots_is_named() -> None:
    scene = await opened(setup())
    await scene.put(key(2))
    req = Request("r", list(range(2 * PAGE)))
    req.req_pool_idx = scene.cache.req_to_token_pool.alloc()
    await scene.good_match(key(2), req=req, lock=True)
    assert not scene.oracle.request(req, req.key(), [])
    assert req.prefix_indices is not None
    req.prefix_indices = req.prefix_indices.clone()
    scene.cache.req_to_token_pool.rows[req.req_pool_idx, 0] = 40
    found = scene.oracle.request(req, req.key(), [])
    assert any("its row is [40" in one for one in found), found
    await scene.cache.close()


async def test_a_load_is_right_and_a_wrong_one_is_named() -> None:
    scene = await opened(setup(HYBRID, tiers="host"))
    cache, oracle = scene.cache, scene.oracle
    await scene.put(key(3))
    await cache.drain()
    await cache.evict(EvictParams(1000, 1000, 1000))
    found = await scene.good_match(key(3))
    assert found.host_hit_length == 3 * PAGE
    assert audit_now(cache) is not None
    assert not oracle.deep()
    before = oracle.snapshot()
    handle = await cache.load_back(found)
    assert not oracle.loading(key(3), handle, before)
    # Nothing is read before it is there.
    assert not oracle.look()
    length = await handle.wait()
    assert length == 3 * PAGE
    assert not oracle.loaded(key(3), handle, length)
    assert not oracle.layer(key(3), handle, 1)
    found_wrong = oracle.loaded(key(3), handle, length - PAGE)
    assert any("and its handle says 12" in one for one in found_wrong), found_wrong
    cache.memory["full"].parts()[1][0][handle.device_indices[2]] = -7.0
    assert any("wrong bytes of full" in one for one in oracle.layer(key(3), handle, 1))
    assert not oracle.layer(key(3), handle, 0)
    oracle.load_closed(handle)
    await handle.close()
    await cache.close()


async def test_a_host_copy_with_wrong_bytes_is_named() -> None:
    scene = await opened(setup(tiers="host"))
    await scene.put(key(2))
    await scene.cache.drain()
    pool = scene.cache.host_pools["full"]
    pages = np.arange(2, dtype=np.int64)
    assert not scene.oracle.deep()
    HostPool.write_pages(pool, pages, np.zeros((len(pages), pool.page_bytes), dtype=np.uint8))
    found = scene.oracle.deep()
    assert any("wrong bytes of full on the host" in one for one in found), found
    await scene.cache.close()


async def test_pages_of_the_host_that_nobody_has_are_not_written_nor_read() -> None:
    scene = await opened(setup(tiers="host"))
    await scene.put(key(2))
    await scene.cache.drain()
    pool = scene.cache.host_pools["full"]
    data = np.zeros((2, pool.page_bytes), dtype=np.uint8)
    pool.read_pages(np.arange(2), data)
    assert not scene.oracle.noted()
    # The first two are the tree's, which nothing may write to; those after are free.
    pool.write_pages(np.arange(1), data[:1])
    pool.read_pages(np.array([5]), data[:1])
    assert scene.oracle.noted() == [
        "host pages [0] of full were written, for nobody",
        "host pages [5] of full were read, for nobody",
    ]
    await scene.cache.close()


async def test_an_actor_that_crashes_by_itself_is_named() -> None:
    scene = await opened(setup())
    assert scene.cache.kill("full")
    assert not scene.oracle.noted()
    assert system_of(scene.cache).kill("full", RuntimeError("a bug"))
    assert scene.oracle.noted() == ["actor full crashed by itself: RuntimeError('a bug')"]
    await scene.cache.close()


async def test_what_is_not_written_yet_is_not_read() -> None:
    scene = await opened(setup())
    given = await scene.take(2 * PAGE)
    scene.oracle.unwritten(key(2), 0, 2 * PAGE)
    scene.oracle.asked(key(2), 2 * PAGE)
    scene.oracle.gone(given.indices, "full")
    await scene.cache.insert(InsertParams(key(2), given.indices))
    await scene.good_match(key(2), lock=True)
    assert not scene.oracle.look()
    assert not scene.oracle.deep()
    scene.oracle.wrote(key(2), 0, given.indices)
    assert not scene.oracle.look()
    scene.cache.memory["full"].parts()[0][0][:] = -7.0
    assert scene.oracle.look()
    await scene.cache.close()


def test_slots_are_taken_as_they_come_and_kept_apart() -> None:
    given = torch.tensor([1, 2, 3])
    mine = as_slots(given)
    given[0] = 9
    assert mine.tolist() == [1, 2, 3]
    assert as_slots([]).dtype == np.int64
