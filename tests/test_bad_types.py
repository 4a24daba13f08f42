"""Objects of the wrong type, wherever one can be passed: refused, and nothing changed.

Checkers find these; a scheduler that is not checked must get an error and not a dead cache.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from radixtide import (
    AllocateParams,
    EvictParams,
    InsertParams,
    InvalidInput,
    LockReceipt,
    MatchPrefixParams,
    NodeHandle,
    RadixtideError,
    Request,
    UnifiedRadixCache,
)
from support.caches import MakeCache, key, match, state_of, store, take, tokens
from support.snapshots import as_int64, refused_and_unchanged

Call = Callable[[UnifiedRadixCache], Awaitable[Any]]

ARGUMENTS: dict[str, Callable[[UnifiedRadixCache, Any], Awaitable[Any]]] = {
    "match_prefix": lambda c, x: c.match_prefix(x),
    "insert": lambda c, x: c.insert(x),
    "allocate": lambda c, x: c.allocate(x),
    "free": lambda c, x: c.free(x),
    "evict": lambda c, x: c.evict(x),
    "inc_lock_ref": lambda c, x: c.inc_lock_ref(x),
    "dec_lock_ref": lambda c, x: c.dec_lock_ref(x),
    "device_indices": lambda c, x: c.device_indices(x),
    "hold": lambda c, x: c.hold(x).__aenter__(),
    "cache_unfinished_req": lambda c, x: c.cache_unfinished_req(x),
    "cache_finished_req": lambda c, x: c.cache_finished_req(x),
    "abort_req": lambda c, x: c.abort_req(x),
    "pin": lambda c, x: c.pin(x, 1.0),
    "unpin": lambda c, x: c.unpin(x),
}


@pytest.mark.parametrize("wrong", [None, 5, "key", [1, 2], {}], ids=repr)
@pytest.mark.parametrize("call", ARGUMENTS.values(), ids=ARGUMENTS)
async def test_an_argument_of_the_wrong_type_is_refused(
    make_cache: MakeCache, call: Callable[..., Awaitable[Any]], wrong: Any
) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        async with refused_and_unchanged(cache, InvalidInput, type(wrong).__name__):
            await call(cache, wrong)


def make(kind: Callable[..., Any], **fields: Any) -> Any:
    """Build a parameter object without a checker's eye."""
    return kind(**fields)


def _match(**fields: Any) -> Call:
    return lambda c: c.match_prefix(make(MatchPrefixParams, **{"key": key(8), **fields}))


def _insert(**fields: Any) -> Call:
    usual = {"key": key(8), "value": as_int64(*range(8)), "prev_prefix_len": 8}
    return lambda c: c.insert(make(InsertParams, **{**usual, **fields}))


def _allocate(**fields: Any) -> Call:
    return lambda c: c.allocate(make(AllocateParams, **{"num_tokens": 4, **fields}))


def _evict(**fields: Any) -> Call:
    return lambda c: c.evict(make(EvictParams, **fields))


def _lock(*fields: Any) -> Call:
    return lambda c: c.inc_lock_ref(NodeHandle(*fields))


def _unlock(**fields: Any) -> Call:
    usual = {"id": 1, "node": NodeHandle(1, 0, 0)}
    return lambda c: c.dec_lock_ref(
        make(LockReceipt, **{"cache": state_of(c).cache_id, **usual, **fields})
    )


FIELDS: dict[str, Call] = {
    "match: key is a list": _match(key=[1, 2]),
    "match: key is None": _match(key=None),
    "match: req is text": _match(req="r"),
    "match: lock with req of a number": _match(req=5, lock=True),
    "insert: key is None": _insert(key=None),
    "insert: key is text": _insert(key="abc"),
    "insert: priority is text": _insert(priority="high"),
    "insert: priority is a fraction": _insert(priority=1.5),
    "insert: priority is None": _insert(priority=None),
    "insert: prev is None": _insert(prev_prefix_len=None),
    "insert: prev is a fraction": _insert(prev_prefix_len=4.0),
    "insert: prev is text": _insert(prev_prefix_len="4"),
    "insert: evicted lengths are a number": _insert(component_evicted_seqlens=5),
    "insert: evicted lengths are None": _insert(component_evicted_seqlens=None),
    "allocate: count is text": _allocate(num_tokens="4"),
    "allocate: count is a fraction": _allocate(num_tokens=1.5),
    "allocate: count is not a number": _allocate(num_tokens=math.nan),
    "allocate: count is endless": _allocate(num_tokens=math.inf),
    "allocate: count is None": _allocate(num_tokens=None),
    "allocate: count is a list": _allocate(num_tokens=[4]),
    "allocate: count is an array": _allocate(num_tokens=np.ones(2, dtype=np.int64)),
    "allocate: mamba count is text": _allocate(mamba_num="1"),
    "allocate: req is text": _allocate(req="r"),
    "allocate: req is a key": _allocate(req=key(4)),
    "evict: count is text": _evict(num_tokens="4"),
    "evict: count is a fraction": _evict(num_tokens=1.5),
    "evict: count is not a number": _evict(num_tokens=math.nan),
    "evict: count is None": _evict(num_tokens=None),
    "evict: swa count is text": _evict(swa_num_tokens="4"),
    "lock: id is text": _lock("1", 0, 0),
    "lock: id is a list": _lock([1], 0, 0),
    "lock: id is None": _lock(None, 0, 0),
    "lock: generation is text": _lock(1, "0", 0),
    "lock: epoch is None": _lock(1, 0, None),
    "print: count is text": lambda c: make(c.pretty_print, max_nodes="all"),
    "print: count is None": lambda c: make(c.pretty_print, max_nodes=None),
    "picture: count is text": lambda c: make(c.picture, nodes_max="all"),
    "reset: timeout is text": lambda c: make(c.reset, timeout="soon"),
    "reset: timeout is not a number": lambda c: c.reset(timeout=math.nan),
    "timeout is text": lambda c: make(c.audit, timeout="soon"),
    "timeout is not a number": lambda c: c.audit(timeout=math.nan),
    "timeout is a list": lambda c: make(c.audit, timeout=[1.0]),
    "free: component is a list": lambda c: make(c.free, indices=as_int64(), component=["full"]),
}


@pytest.mark.parametrize("call", FIELDS.values(), ids=FIELDS)
async def test_a_field_of_the_wrong_type_is_refused(make_cache: MakeCache, call: Call) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        async with refused_and_unchanged(cache, InvalidInput, "."):
            await call(cache)


RECEIPTS: dict[str, Call] = {
    "id is text": _unlock(id="1"),
    "id is a list": _unlock(id=[1]),
    "id is None": _unlock(id=None),
    "node is None": _unlock(node=None),
    "node is a number": _unlock(node=1),
    "node's id is text": _unlock(node=make(NodeHandle, id="1", generation=0, epoch=0)),
    "cache is text": _unlock(cache="1"),
}


@pytest.mark.parametrize("call", RECEIPTS.values(), ids=RECEIPTS)
async def test_a_receipt_with_a_field_of_the_wrong_type_is_refused(
    make_cache: MakeCache, call: Call
) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        receipt = (await match(cache, key(8), lock=True)).receipt
        assert receipt is not None
        async with refused_and_unchanged(cache, RadixtideError, "receipt|LockReceipt|NodeHandle"):
            await call(cache)
        await cache.dec_lock_ref(receipt)


REQUEST_FIELDS: dict[str, dict[str, Any]] = {
    "rid is a list": {"rid": [1]},
    "rid is None": {"rid": None},
    "rid is a number": {"rid": 7},
    "tokens are None": {"origin_input_ids": None},
    "tokens are text": {"origin_input_ids": "abcdefghijkl"},
    "tokens are words": {"origin_input_ids": ["a"] * 12},
    "tokens are fractions": {"origin_input_ids": [1.5] * 12},
    "tokens are fractions in an array": {"origin_input_ids": np.full(12, 1.5)},
    "tokens are negative": {"origin_input_ids": [*range(8), -1, -2, -3, -4]},
    "tokens are oversized": {"origin_input_ids": [2**64] * 12},
    "tokens are a matrix": {"origin_input_ids": np.ones((12, 1), dtype=np.int64)},
    "output is None": {"output_ids": None},
    "output is words": {"output_ids": ["a"]},
    "row is text": {"req_pool_idx": "0"},
    "row is a fraction": {"req_pool_idx": 0.0},
    "row is negative": {"req_pool_idx": -1},
    "row is not taken": {"req_pool_idx": 3},
    "row is beyond the table": {"req_pool_idx": 99},
    "committed length is text": {"kv_committed_len": "12"},
    "committed length is a fraction": {"kv_committed_len": 9.0},
    "committed length is not a number": {"kv_committed_len": math.nan},
    "priority is text": {"priority": "high"},
    "priority is None": {"priority": None},
    "namespace is a number": {"extra_key": 5},
    "salt is bytes": {"cache_salt": b"salt"},
    "counted length is text": {"counted_len": "4"},
}
CACHING: dict[str, Callable[[UnifiedRadixCache, Request], Awaitable[Any]]] = {
    "unfinished": lambda cache, req: cache.cache_unfinished_req(req),
    "finished": lambda cache, req: cache.cache_finished_req(req),
}


@pytest.mark.parametrize("call", CACHING.values(), ids=CACHING)
@pytest.mark.parametrize("fields", REQUEST_FIELDS.values(), ids=REQUEST_FIELDS)
async def test_a_request_that_gets_a_field_of_the_wrong_type_is_not_cached(
    make_cache: MakeCache,
    fields: dict[str, Any],
    call: Callable[[UnifiedRadixCache, Request], Awaitable[Any]],
) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        req = Request(rid="r", origin_input_ids=tokens(12), output_ids=[99])
        await match(cache, req.key(12), req=req, lock=True)
        await cache.allocate(AllocateParams(num_tokens=5, req=req))
        sound = {name: getattr(req, name) for name in fields}
        for name, value in fields.items():
            setattr(req, name, value)
        async with refused_and_unchanged(cache, InvalidInput, "."):
            await call(cache, req)
        for name, value in sound.items():
            setattr(req, name, value)
        assert (await cache.cache_finished_req(req)).inserted_len == 12


MATCHING = {
    name: fields
    for name, fields in REQUEST_FIELDS.items()
    if name.partition(" ")[0] in ("rid", "row", "namespace", "salt", "counted", "priority")
}


@pytest.mark.parametrize("fields", MATCHING.values(), ids=MATCHING)
async def test_a_request_with_a_field_of_the_wrong_type_matches_nothing(
    make_cache: MakeCache, fields: dict[str, Any]
) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        req = Request(**{"rid": "r", "origin_input_ids": tokens(12), **fields})
        async with refused_and_unchanged(cache, InvalidInput, ".", req):
            await match(cache, key(12), req=req, lock=True)


async def test_a_hundred_bad_calls_do_not_take_the_cache_down(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        await store(cache, key(8))
        for _ in range(100):
            with pytest.raises(InvalidInput):
                await cache.allocate(make(AllocateParams, num_tokens="4"))
        assert len(await take(cache, 4)) == 4
        assert all(one.alive and not one.failures for one in (await cache.stats()).actors.values())
