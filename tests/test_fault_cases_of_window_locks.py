"""Faults that users of other caches reported: receipts over windows (kind K1), and what locks pin.

The table in test_fault_cases_of_windows.py says which case is where.
"""

from __future__ import annotations

import random

import pytest

from radixtide import (
    AllocateParams,
    Busy,
    EvictParams,
    ForeignReceipt,
    InvalidInput,
    LockReceipt,
    OutOfSlots,
    ReceiptReleased,
    Request,
    UnifiedRadixCache,
)
from support.caches import Delivery, key, match, take, tokens
from support.hybrids import (
    ALL,
    BOTH,
    admit,
    audited,
    build,
    chunk,
    drain,
    has,
    lock_counts,
    pool,
    protected,
    put,
    squeeze,
    to_evict,
    windows,
)

sets = pytest.mark.parametrize("components", [BOTH, ALL], ids=["swa", "swa+mamba"])
pages = pytest.mark.parametrize("page_size", [1, 2, 4])
Components = tuple[str, ...]


async def locked(cache: UnifiedRadixCache, length: int) -> LockReceipt:
    """Match the first `length` tokens with a lock."""
    receipt = (await match(cache, key(length), lock=True)).receipt
    assert receipt is not None
    return receipt


@sets
@pages
@pytest.mark.parametrize("window", [4, 6])
async def test_k1_1_a_short_lock_with_copy_on_write_leaves_every_count_as_it_was(
    delivery: Delivery, components: Components, page_size: int, window: int
) -> None:
    """B locks A's leaf for a copy and lets it go: A's window is as protected as before."""
    async with audited(delivery, components, page_size=page_size, window=window) as cache:
        state = has(cache, "mamba")
        leaf = await put(cache, key(16), state=state)
        mine = await locked(cache, 16)
        before, sizes = lock_counts(cache), await protected(cache)
        if state:
            req = Request("b", tokens(20))
            await match(cache, req.key(), req=req, lock=True, cow_mamba=True)
            assert req.mamba_pool_idx is not None
            await cache.abort_req(req)
        else:
            await cache.dec_lock_ref(await locked(cache, 16))
        assert lock_counts(cache) == before
        assert await protected(cache) == sizes
        await cache.evict(EvictParams(swa_num_tokens=4))
        await squeeze(cache)
        live = -(-window // page_size)
        assert await windows(cache, leaf.node) == "." * (16 // page_size - live) + "#" * live
        assert (await protected(cache))[:2] == (16, live * page_size)
        with pytest.raises(InvalidInput):
            await cache.dec_lock_ref(leaf.node)  # type: ignore[arg-type]  # what must be refused
        assert lock_counts(cache) == {
            one: count for one, count in before.items() if one in lock_counts(cache)
        }
        await cache.dec_lock_ref(mine)
        await drain(cache)


@pages
async def test_k1_1_a_copy_that_evicts_another_state_for_its_slot_weakens_no_lock(
    delivery: Delivery, page_size: int
) -> None:
    """The eviction inside of a copy-on-write takes a loose state; the locked ones stay."""
    async with audited(delivery, ALL, page_size=page_size, states=2) as cache:
        await put(cache, key(tokens(8, 500)), state=True)
        await put(cache, key(16), state=True)
        mine = await locked(cache, 16)
        before = await protected(cache)
        req = Request("b", tokens(20))
        found = await match(cache, req.key(), req=req, lock=True, cow_mamba=True)
        assert len(found.device_indices) == 16
        assert (await pool(cache, "mamba")).held == 1
        assert len((await match(cache, key(tokens(8, 500)))).device_indices) == 0
        assert await protected(cache) == before
        await cache.abort_req(req)
        assert await protected(cache) == before
        await squeeze(cache)
        assert await protected(cache) == before
        await cache.dec_lock_ref(mine)
        await drain(cache)


@sets
@pages
async def test_k1_1_a_short_lock_whose_window_begins_elsewhere_leaves_the_longer_lived(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Above and below on one path: a release uncovers only what is not the other's, never more."""
    async with audited(delivery, components, page_size=page_size, window=8, states=24) as cache:
        pattern = ("s" if "mamba" in components else "#") * (24 // page_size)
        await build(cache, pattern)
        mine = await locked(cache, 12)
        before, covered = lock_counts(cache), set(range(4, 12))
        for length in (4, 8, 12, 16, 20, 24):
            receipt = await locked(cache, length)
            both = covered | set(range(max(length - 8, 0), length))
            assert (await protected(cache))[:2] == (max(12, length), len(both))
            moved = (await cache.dec_lock_ref(receipt)).unprotected
            assert (moved["full"], moved["swa"]) == (max(length - 12, 0), len(both - covered))
            assert lock_counts(cache) == before
            assert (await protected(cache))[:2] == (12, 8)
        await cache.evict(EvictParams(swa_num_tokens=16))
        live = await windows(cache, mine.node)
        assert live == "." * (4 // page_size) + "#" * (8 // page_size)
        assert (await pool(cache, "swa")).evictable == 0
        await cache.dec_lock_ref(mine)
        await drain(cache)


@sets
@pages
@pytest.mark.parametrize("early", [True, False], ids=["early", "whole"])
@pytest.mark.parametrize("own", ["anonymous", "request"])
async def test_k1_3_a_release_of_one_who_locked_a_tombstone_leaves_the_one_who_locked_its_repair(
    delivery: Delivery, components: Components, page_size: int, early: bool, own: str
) -> None:
    """A locks a tombstone, an insert repairs it, B locks: A's release is A's alone."""
    async with audited(delivery, components, page_size=page_size, window=8) as cache:
        state = has(cache, "mamba")
        leaf = await put(cache, key(8), evicted=8, state=state)
        first = await cache.inc_lock_ref(leaf.node)
        assert (await protected(cache))[:2] == (8, 0)
        await put(cache, key(8))
        # Protected from its first moment: A's lock counted the tombstone.
        assert (await protected(cache))[:2] == (8, 8)
        req = Request("b", tokens(12))
        second = None
        if own == "request":
            await match(cache, req.key(), req=req, lock=True, cow_mamba=state)
            assert req.cache_protected_len == 8
        else:
            second = await locked(cache, 8)
        if early:
            assert (await cache.dec_swa_lock_only(first)).unprotected["swa"] == 0
        else:
            assert (await cache.dec_lock_ref(first)).unprotected["swa"] == 0
        assert (await protected(cache))[:2] == (8, 8)
        await squeeze(cache)
        assert await windows(cache, leaf.node) == "#" * (8 // page_size)
        if second is not None:
            assert (await cache.dec_lock_ref(second)).unprotected["swa"] == 8
        else:
            await cache.abort_req(req)
        if early:
            assert (await cache.dec_lock_ref(first)).unprotected["swa"] == 0
        await drain(cache)


@sets
@pages
async def test_k1_3_a_tombstone_in_the_middle_of_two_windows_is_repaired_and_split_under_them(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """The repaired part of a locked tombstone is counted by both locks, whoever goes first."""
    for first_goes in (True, False):
        async with audited(delivery, components, page_size=page_size, window=12) as cache:
            leaf = await put(cache, key(16), evicted=8, state=has(cache, "mamba"))
            receipts = [await cache.inc_lock_ref(leaf.node) for _ in range(2)]
            assert (await protected(cache))[:2] == (16, 8)
            again = await put(cache, key(16), evicted=4)
            assert again.result.component_adopted["swa"] == ((4, 8),)
            assert (await protected(cache))[:2] == (16, 12)
            one, other = receipts if first_goes else receipts[::-1]
            assert (await cache.dec_swa_lock_only(one)).unprotected["swa"] == 0
            assert (await protected(cache))[:2] == (16, 12)
            assert (await cache.dec_swa_lock_only(other)).unprotected["swa"] == 12
            await cache.evict(EvictParams(swa_num_tokens=64))
            assert await windows(cache, leaf.node) == "." * (16 // page_size)
            assert (await protected(cache))[:2] == (16, 0)
            for receipt in receipts:
                await cache.dec_lock_ref(receipt)
            await drain(cache)


@pytest.mark.parametrize("components", [BOTH, ALL, ("full", "mamba")], ids="+".join)
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("seed", range(4))
async def test_k1_4_no_sequence_of_legal_calls_makes_a_count_of_any_component_negative(
    delivery: Delivery, components: Components, page_size: int, seed: int
) -> None:
    """Random lock, early release, chunk, split and finish over deep shared prompts."""
    dice = random.Random(seed)
    prompts = [
        [*tokens(4 * dice.randrange(1, 16)), *tokens(dice.randrange(1, 20), 1000 * turn)]
        for turn in range(8)
    ]
    fields = {"size": 512, "swa_size": 192, "states": 16, "window": dice.choice([3, 8, 13])}
    async with audited(delivery, components, page_size=page_size, **fields) as cache:
        running: list[tuple[Request, int]] = []
        receipts: list[LockReceipt] = []
        for step in range(60):
            action = dice.randrange(8)
            prompt = dice.choice(prompts)
            if action == 0 and len(running) < 4:
                try:
                    req = await admit(cache, f"r{step}", prompt)
                except OutOfSlots:
                    continue
                running.append((req, req.cache_protected_len))
            elif action == 1 and running:
                at = dice.randrange(len(running))
                req, done = running[at]
                done = dice.randint(max(done, req.cache_protected_len), len(prompt_of(req)))
                await chunk(cache, req, done)
                running[at] = req, done
            elif action == 2 and running:
                req, _ = running.pop(dice.randrange(len(running)))
                req.kv_committed_len = None
                await (
                    cache.cache_finished_req(req) if dice.random() < 0.7 else cache.abort_req(req)
                )
            elif action == 3:
                receipts.append(await locked_key(cache, prompt[: dice.randint(1, len(prompt))]))
            elif action == 4 and receipts:
                await cache.dec_lock_ref(receipts.pop(dice.randrange(len(receipts))))
            elif action == 5:
                mine = [*receipts, *(req.lock for req, _ in running if req.lock is not None)]
                if mine:
                    await cache.dec_swa_lock_only(dice.choice(mine))
            elif action == 6 and running:
                req, done = dice.choice(running)
                await cache.release_window(req, max(done, req.cache_protected_len))
            else:
                names = cache.config.components
                await cache.evict(to_evict(**{name: dice.choice([0, 1, 9, 40]) for name in names}))
            assert min(lock_counts(cache).values(), default=0) >= 0
        for req, _ in running:
            req.kv_committed_len = None
            await cache.cache_finished_req(req)
        for receipt in receipts:
            await cache.dec_lock_ref(receipt)
        await drain(cache)


def prompt_of(req: Request) -> list[int]:
    """Return the prompt of a request."""
    return list(req.origin_input_ids)


async def locked_key(cache: UnifiedRadixCache, prompt: list[int]) -> LockReceipt:
    """Match a prompt with a lock."""
    receipt = (await match(cache, key(prompt), lock=True)).receipt
    assert receipt is not None
    return receipt


@sets
@pages
@pytest.mark.parametrize("is_insert", [False, True])
async def test_k1_6_a_finish_of_a_request_that_never_matched_frees_all_its_pools(
    delivery: Delivery, components: Components, page_size: int, is_insert: bool
) -> None:
    """A profiling request owns slots of every pool and no lock."""
    async with audited(delivery, components, page_size=page_size) as cache:
        await put(cache, key(8), state=has(cache, "mamba"))
        before, sizes = lock_counts(cache), await protected(cache)
        req = Request("probe", tokens(8, 50))
        states = 0 if "mamba" not in components else 1 if page_size == 1 else 3
        await cache.allocate(AllocateParams(num_tokens=8, mamba_num=states, req=req))
        done = await cache.cache_finished_req(req, is_insert=is_insert)
        assert done.inserted_len == (8 if is_insert else 0)
        assert done.freed == (0 if is_insert else 8)
        counts = lock_counts(cache)
        assert {one: counts[one] for one in before} == before
        assert await protected(cache) == sizes
        assert req.mamba_pool_idx is None
        await drain(cache)


@sets
async def test_k1_7_a_receipt_from_before_a_reset_touches_no_window(
    delivery: Delivery, components: Components
) -> None:
    """Neither whole nor early: the old tree's receipt is recognised, the new counts stay."""
    async with audited(delivery, components, page_size=2) as cache:
        state = has(cache, "mamba")
        await put(cache, key(8), state=state)
        old = await locked(cache, 8)
        with pytest.raises(Busy, match="receipt"):
            await cache.reset()
        await cache.dec_swa_lock_only(old)
        with pytest.raises(Busy, match="receipt"):
            await cache.reset()
        await cache.dec_lock_ref(old)
        for release in (cache.dec_lock_ref, cache.dec_swa_lock_only):
            with pytest.raises(ReceiptReleased):
                await release(old)
        await cache.reset()
        await put(cache, key(8), state=state)
        mine = await locked(cache, 8)
        before = lock_counts(cache)
        for release in (cache.dec_lock_ref, cache.dec_swa_lock_only):
            with pytest.raises(ForeignReceipt):
                await release(old)
        assert lock_counts(cache) == before
        await cache.dec_lock_ref(mine)
        await drain(cache)


@sets
@pages
async def test_k1_7_a_locked_window_can_not_be_removed_by_any_component(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Eviction for each pool, and allocation under pressure, leave what a receipt stands on."""
    async with audited(delivery, components, page_size=page_size, window=8) as cache:
        leaf = await put(cache, key(16), state=has(cache, "mamba"))
        receipt = await locked(cache, 16)
        await squeeze(cache)
        with pytest.raises(OutOfSlots):
            await take(cache, 64)
        assert await windows(cache, leaf.node) == "." * (8 // page_size) + "#" * (8 // page_size)
        found = await match(cache, key(16))
        assert len(found.device_indices) == 16
        moved = (await cache.dec_lock_ref(receipt)).unprotected
        assert moved == {"full": 16, "swa": 8} | ({"mamba": 1} if has(cache, "mamba") else {})
        await drain(cache)
