"""Unusable arguments: a typed error that says what to do, and nothing changed."""

from __future__ import annotations

import math
from array import array
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import torch

from radixtide import (
    AllocateParams,
    DoubleFree,
    EvictParams,
    InsertParams,
    InvalidInput,
    InvalidKey,
    MatchPrefixParams,
    OutOfSlots,
    PinRefused,
    RadixKey,
    RadixtideError,
    Request,
    SlotError,
    UnifiedRadixCache,
)
from radixtide.configs.schema import LimitsConfig
from support.caches import MakeCache, key, match, slots, store, take, tokens
from support.lively import full_of_life as full_of_life
from support.snapshots import as_int64, refused_and_unchanged

Call = Callable[[UnifiedRadixCache], Awaitable[Any]]


# -- token ids -----------------------------------------------------------------------------------


BAD_TOKENS: dict[str, tuple[Any, str]] = {
    "a negative id in a list": ([3, -1, 5], "-1 at position 1 is negative"),
    "a negative id in a tuple": ((-7,), "-7 at position 0 is negative"),
    "a negative id in int64": (as_int64(1, 2, -3), "-3 at position 2 is negative"),
    "a negative id in int8": (np.array([-1], dtype=np.int8), "-1 at position 0 is negative"),
    "a negative id in an array": (array("q", [1, -2]), "-2 at position 1 is negative"),
    "a negative id in a tensor": (torch.tensor([1, -2]), "-2 at position 1 is negative"),
    "an oversized id in a list": ([2**63], r"integers in \[0, 2\*\*63\)"),
    "an oversized id in uint64": (
        np.array([1, 2**63], dtype=np.uint64),
        "9223372036854775808 is not below",
    ),
    "floats in a list": ([1.0, 2.0], "must be integers"),
    "floats in an array": (np.array([1.0, 2.0]), "must be integers, not float64"),
    "floats in a tensor": (torch.tensor([1.0]), "must be integers, not float32"),
    "booleans in an array": (np.array([True, False]), "must be integers, not bool"),
    "booleans in a tensor": (torch.tensor([True]), "must be integers, not bool"),
    "complex numbers": (np.array([1j]), "must be integers, not complex128"),
    "objects": (np.array([1, None], dtype=object), "must be integers, not object"),
    "a nested list": ([[1, 2], [3, 4]], "must be integers"),
    "a matrix": (np.ones((2, 2), dtype=np.int64), r"one dimension, not shape \(2, 2\)"),
    "a scalar tensor": (torch.tensor(5), r"one dimension, not shape \(\)"),
    "text": ("hello", "not str"),
    "words in a list": (["a", "b"], "must be integers"),
    "bytes": (b"hello", "not bytes"),
    "None": (None, "not NoneType"),
    "None in a list": ([1, None], "must be integers"),
    "a set": ({1, 2}, "not set"),
    "a generator": ((one for one in (1, 2)), "not generator"),
    "a number": (5, "not int"),
    "a tensor elsewhere": (torch.ones(3, dtype=torch.int64, device="meta"), r"meta.*\.cpu\(\)"),
}


@pytest.mark.parametrize(("token_ids", "says"), BAD_TOKENS.values(), ids=BAD_TOKENS)
def test_a_key_of_bad_token_ids_can_not_be_made(token_ids: Any, says: str) -> None:
    with pytest.raises(InvalidKey, match=says) as caught:
        RadixKey(token_ids)
    assert isinstance(caught.value, RadixtideError)


@pytest.mark.parametrize(
    "token_ids",
    [[1.5, 2.5], np.array([1.5, 2.5]), [-1, 2], [2**63, 1], np.array([2**63], dtype=np.uint64)],
    ids=["floats", "float array", "negative", "oversized", "oversized array"],
)
def test_a_request_of_bad_token_ids_has_no_key(token_ids: Any) -> None:
    with pytest.raises(InvalidKey):
        Request(rid="r", origin_input_ids=token_ids).key()


@pytest.mark.parametrize("name", ["extra_key", "cache_salt"])
@pytest.mark.parametrize("value", [5, b"tenant", ["a"], 1.5], ids=repr)
def test_a_namespace_is_a_string(name: str, value: Any) -> None:
    with pytest.raises(InvalidKey, match=f"{name} must be a string or None"):
        RadixKey([1], **{name: value})


# -- keys against a cache ------------------------------------------------------------------------


def _match(wanted: Any) -> Call:
    return lambda cache: cache.match_prefix(MatchPrefixParams(key=wanted))


def _insert(wanted: Any, value: Any = None, **fields: Any) -> Call:
    given = as_int64(*range(8)) if value is None else value
    return lambda cache: cache.insert(InsertParams(key=wanted, value=given, **fields))


def _pin(wanted: Any) -> Call:
    return lambda cache: cache.pin(wanted, 1.0)


def _unpin(wanted: Any) -> Call:
    return lambda cache: cache.unpin(wanted)


KEYED = pytest.mark.parametrize("call", [_match, _insert, _pin, _unpin])


@KEYED
async def test_an_empty_key_is_refused(
    full_of_life: UnifiedRadixCache, call: Callable[[Any], Call]
) -> None:
    async with refused_and_unchanged(full_of_life, InvalidKey, "empty"):
        await call(RadixKey([]))(full_of_life)


@KEYED
async def test_a_key_of_the_other_unit_kind_is_refused(
    full_of_life: UnifiedRadixCache, call: Callable[[Any], Call]
) -> None:
    async with refused_and_unchanged(full_of_life, InvalidKey, "is_bigram=False"):
        await call(RadixKey(tokens(8), is_bigram=True))(full_of_life)


@KEYED
async def test_a_key_longer_than_the_limit_is_refused(
    make_cache: MakeCache, call: Callable[[Any], Call]
) -> None:
    async with make_cache(limits=LimitsConfig(key_units_max=8), pin_budget=8) as cache:
        await store(cache, key(8))
        async with refused_and_unchanged(cache, InvalidKey, "9 units, more than .*= 8"):
            await call(key(9))(cache)


async def test_a_plain_key_is_refused_by_a_tree_of_bigrams(make_cache: MakeCache) -> None:
    async with make_cache(bigram=True) as cache:
        await store(cache, RadixKey(tokens(9), is_bigram=True))
        async with refused_and_unchanged(cache, InvalidKey, "is_bigram=True"):
            await match(cache, key(8))


async def test_a_key_longer_than_the_pool_matches_and_can_not_be_allocated_for(
    full_of_life: UnifiedRadixCache,
) -> None:
    cache = full_of_life
    assert len((await match(cache, key(100))).device_indices) == 8
    async with refused_and_unchanged(cache, OutOfSlots, "wanted 100, free .* of 64"):
        await take(cache, 100)
    async with refused_and_unchanged(cache, InvalidInput, "100 units .* only 8 slots"):
        await _insert(key(100))(cache)


# -- slots ---------------------------------------------------------------------------------------


BAD_SLOTS: dict[str, tuple[Any, type[RadixtideError], str]] = {
    "a list": ([0, 1, 2, 3], SlotError, "must be an int64 tensor or array, not list"),
    "None": (None, SlotError, "not NoneType"),
    "int32": (np.arange(8, dtype=np.int32), SlotError, "must be int64, not int32"),
    "float64": (np.arange(8.0), SlotError, "must be int64, not float64"),
    "bool": (np.ones(8, dtype=bool), SlotError, "must be int64, not bool"),
    "int32 tensor": (torch.arange(8, dtype=torch.int32), SlotError, "must be int64"),
    "float tensor": (torch.arange(8.0), SlotError, "must be int64"),
    "tensor elsewhere": (torch.arange(8, device="meta"), SlotError, r"on meta; pass .*\.cpu\(\)"),
    "matrix": (np.zeros((2, 4), dtype=np.int64), SlotError, "one dimension"),
    "matrix tensor": (torch.zeros((2, 4), dtype=torch.int64), SlotError, "one dimension"),
    "scalar": (np.array(3), SlotError, "one dimension"),
}
INSERT_SLOTS: dict[str, tuple[Any, type[RadixtideError], str]] = {
    **BAD_SLOTS,
    "too few": (as_int64(0, 1, 2, 3), InvalidInput, "8 units .* with only 4 slots"),
    "none at all": (as_int64(), InvalidInput, "only 0 slots"),
}


@pytest.mark.parametrize(("value", "kind", "says"), INSERT_SLOTS.values(), ids=INSERT_SLOTS)
async def test_an_insert_of_unusable_slots_is_refused(
    full_of_life: UnifiedRadixCache, value: Any, kind: type[RadixtideError], says: str
) -> None:
    async with refused_and_unchanged(full_of_life, kind, says):
        await full_of_life.insert(InsertParams(key=key(tokens(8, 900)), value=value))


@pytest.mark.parametrize(("value", "kind", "says"), BAD_SLOTS.values(), ids=BAD_SLOTS)
async def test_a_free_of_unusable_slots_is_refused(
    full_of_life: UnifiedRadixCache, value: Any, kind: type[RadixtideError], says: str
) -> None:
    async with refused_and_unchanged(full_of_life, kind, says):
        await full_of_life.free(value)


def whose_slots(cache: UnifiedRadixCache, mine: Any) -> dict[str, tuple[Any, str]]:
    """Return slots that a caller who holds the 8 slots `mine` may not give, and why."""
    full = cache._components[0]
    (holding,) = full.holdings.values()
    request = holding.slots()[:8]
    tree = next(value for node in full.tree if (value := full.data(node).value) is not None)
    return {
        "of the tree": (tree[:8].astype(np.int64), "is the tree's, not the caller's"),
        "of a request": (request, "held by another request"),
        "half of a request": (np.concatenate((mine[:4], request[:4])), "held by another request"),
        "free": (full.allocator.free_pages()[:2].repeat(4) * 4 + np.tile(np.arange(4), 2), "free"),
        "repeated": (np.concatenate((mine[:4], mine[:4])), "given twice"),
        "negative": (mine - 100, r"is not in \[0, 64\)"),
        "too large": (mine + 64, r"is not in \[0, 64\)"),
        "beyond int32": (mine + 2**40, r"is not in \[0, 64\)"),
        "turned round": (mine[::-1].copy(), "breaks its page"),
        "shifted": (np.concatenate((mine[1:], mine[:1])), "breaks its page"),
        "with a page torn": (np.concatenate((mine[:2], mine[4:6], mine[2:4], mine[6:])), "breaks"),
        "all the same": (np.full(8, mine[0]), "breaks its page"),
    }


WHOSE = pytest.mark.parametrize(
    "whose",
    [
        "of the tree",
        "of a request",
        "half of a request",
        "free",
        "repeated",
        "negative",
        "too large",
        "beyond int32",
        "turned round",
        "shifted",
        "with a page torn",
        "all the same",
    ],
)


@WHOSE
async def test_slots_that_are_not_the_callers_can_not_be_inserted(
    full_of_life: UnifiedRadixCache, whose: str
) -> None:
    cache = full_of_life
    mine = (await take(cache, 8)).numpy()
    value, says = whose_slots(cache, mine)[whose]
    async with refused_and_unchanged(cache, SlotError, says):
        await cache.insert(InsertParams(key=key(tokens(8, 900)), value=value))
    await cache.insert(InsertParams(key=key(tokens(8, 900)), value=mine))


@WHOSE
async def test_slots_that_are_not_the_callers_can_not_be_freed(
    full_of_life: UnifiedRadixCache, whose: str
) -> None:
    cache = full_of_life
    mine = (await take(cache, 8)).numpy()
    value, says = whose_slots(cache, mine)[whose]
    async with refused_and_unchanged(cache, SlotError, says):
        await cache.free(value)
    await cache.free(mine)


@pytest.mark.parametrize("count", [1, 3, 5, 7])
async def test_a_part_of_a_page_can_not_be_freed(
    full_of_life: UnifiedRadixCache, count: int
) -> None:
    mine = await take(full_of_life, 8)
    async with refused_and_unchanged(full_of_life, SlotError, "whole pages of 4"):
        await full_of_life.free(mine[:count])
    await full_of_life.free(mine)


async def test_a_second_free_is_refused(full_of_life: UnifiedRadixCache) -> None:
    mine = await take(full_of_life, 8)
    await full_of_life.free(mine)
    async with refused_and_unchanged(full_of_life, DoubleFree, r"slot \d+ is free"):
        await full_of_life.free(mine)


async def test_a_free_that_is_wrong_in_one_page_frees_no_page(
    full_of_life: UnifiedRadixCache,
) -> None:
    mine = await take(full_of_life, 8)
    await full_of_life.free(mine[:4])
    async with refused_and_unchanged(full_of_life, DoubleFree, r"slot \d+ is free"):
        await full_of_life.free(mine)
    await full_of_life.free(mine[4:])


async def test_slots_once_inserted_can_be_neither_freed_nor_inserted_again(
    full_of_life: UnifiedRadixCache,
) -> None:
    cache = full_of_life
    mine = await take(cache, 8)
    await cache.insert(InsertParams(key=key(tokens(8, 900)), value=mine))
    async with refused_and_unchanged(cache, SlotError, "is the tree's"):
        await cache.free(mine)
    async with refused_and_unchanged(cache, SlotError, "is the tree's"):
        await cache.insert(InsertParams(key=key(tokens(8, 700)), value=mine))


@pytest.mark.parametrize("component", ["swa", "mamba", "FULL", "", None, 5], ids=repr)
async def test_slots_of_a_component_that_the_cache_has_not_can_not_be_freed(
    full_of_life: UnifiedRadixCache, component: Any
) -> None:
    mine = await take(full_of_life, 4)
    async with refused_and_unchanged(
        full_of_life, InvalidInput, "no component .* it has full|component must be"
    ):
        await full_of_life.free(mine, component)
    await full_of_life.free(mine)


async def test_a_free_of_nothing_is_fine(full_of_life: UnifiedRadixCache) -> None:
    await full_of_life.free(slots([]))


# -- insert --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prev", [-4, 1, 2, 3, 7])
async def test_an_unaligned_or_negative_prev_prefix_len_is_refused(
    full_of_life: UnifiedRadixCache, prev: int
) -> None:
    cache = full_of_life
    mine = (await take(cache, 16)).numpy()
    async with refused_and_unchanged(
        cache, InvalidInput, rf"prev_prefix_len .*{prev}|prev_prefix_len {prev} "
    ):
        await cache.insert(InsertParams(key=key(16), value=mine, prev_prefix_len=prev))
    await cache.free(mine)


@pytest.mark.parametrize("prev", [12, 16, 400])
async def test_a_prev_prefix_len_beyond_what_is_cached_is_refused(
    full_of_life: UnifiedRadixCache, prev: int
) -> None:
    cache = full_of_life
    mine = (await take(cache, 16)).numpy()
    async with refused_and_unchanged(cache, InvalidInput, f"{prev} is beyond the 8 units"):
        await cache.insert(InsertParams(key=key(16), value=mine, prev_prefix_len=prev))
    await cache.free(mine)


async def test_what_belongs_to_other_components_is_refused(
    full_of_life: UnifiedRadixCache,
) -> None:
    cache = full_of_life
    mine = (await take(cache, 8)).numpy()
    wanted = key(tokens(8, 900))
    async with refused_and_unchanged(cache, InvalidInput, "no mamba component"):
        await cache.insert(InsertParams(key=wanted, value=mine, mamba_value=as_int64(0)))
    async with refused_and_unchanged(cache, InvalidInput, "no component 'swa'"):
        await cache.insert(
            InsertParams(key=wanted, value=mine, component_evicted_seqlens={"swa": 4})
        )
    async with refused_and_unchanged(
        cache, InvalidInput, "this cache has no (swa|mamba) component"
    ):
        await cache.allocate(AllocateParams(num_tokens=4, swa_num_tokens=4))
    async with refused_and_unchanged(
        cache, InvalidInput, "this cache has no (swa|mamba) component"
    ):
        await cache.allocate(AllocateParams(mamba_num=1))
    async with refused_and_unchanged(
        cache, InvalidInput, "this cache has no (swa|mamba) component"
    ):
        await cache.evict(EvictParams(swa_num_tokens=4))
    async with refused_and_unchanged(
        cache, InvalidInput, "this cache has no (swa|mamba) component"
    ):
        await cache.evict(EvictParams(mamba_num=1))
    await cache.free(mine)


# -- counts --------------------------------------------------------------------------------------


NEGATIVE: dict[str, tuple[Call, str]] = {
    "allocate": (lambda c: c.allocate(AllocateParams(num_tokens=-1)), "num_tokens.*-1"),
    "allocate swa": (lambda c: c.allocate(AllocateParams(swa_num_tokens=-1)), "swa"),
    "allocate mamba": (lambda c: c.allocate(AllocateParams(mamba_num=-1)), "mamba"),
    "evict": (lambda c: c.evict(EvictParams(num_tokens=-4)), "num_tokens.*-4"),
    "evict swa": (lambda c: c.evict(EvictParams(swa_num_tokens=-4)), "swa_num_tokens.*-4"),
    "evict mamba": (lambda c: c.evict(EvictParams(mamba_num=-1)), "mamba_num.*-1"),
    "print": (lambda c: c.pretty_print(-1), "max_nodes"),
    "picture": (lambda c: c.picture(-1), "nodes_max"),
}


@pytest.mark.parametrize(("call", "says"), NEGATIVE.values(), ids=NEGATIVE)
async def test_a_negative_count_is_refused(
    full_of_life: UnifiedRadixCache, call: Call, says: str
) -> None:
    async with refused_and_unchanged(full_of_life, InvalidInput, says):
        await call(full_of_life)


@pytest.mark.parametrize(
    "ttl", [math.nan, math.inf, -math.inf, 0, 0.0, -1, "1", None, [1.0]], ids=repr
)
async def test_a_ttl_is_a_positive_finite_number(full_of_life: UnifiedRadixCache, ttl: Any) -> None:
    async with refused_and_unchanged(full_of_life, InvalidInput, "ttl"):
        await full_of_life.pin(key(8), ttl)


async def test_a_pin_of_nothing_cached_or_beyond_the_budget_is_refused(
    make_cache: MakeCache,
) -> None:
    async with make_cache(pin_budget=4) as cache:
        await store(cache, key(8))
        async with refused_and_unchanged(cache, PinRefused, "insert it first"):
            await cache.pin(key(tokens(8, 50)), 1.0)
        async with refused_and_unchanged(cache, PinRefused, r"exceed the budget: 0 of 4"):
            await cache.pin(key(8), 1.0)
