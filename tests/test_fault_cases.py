"""Faults that users of other caches reported: locks, slots, sizes, bigrams (kinds K1, K5, K6, K7).

Each test is named after a case; the cause of each is a public report on another project. Left out
are cases that need what is not there yet: sliding windows and states (K1-3), write-back (K1-9),
tiers and transfers (K5-7, K5-8, K5-9), external stores (K7-5). Of K1-1, K5-3 and K7-1 the part is
here that full attention can show. The other kinds are in test_fault_cases_of_life.py.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from radixtide import (
    AllocateParams,
    Busy,
    EvictParams,
    ForeignReceipt,
    InsertParams,
    InvalidRequest,
    OutOfSlots,
    RadixKey,
    ReceiptReleased,
    Request,
    SlotError,
    UnifiedRadixCache,
)
from support.caches import (
    MakeCache,
    assert_nothing_held,
    assert_sound,
    key,
    match,
    state_of,
    store,
    take,
    tokens,
)


def lock_counts(cache: UnifiedRadixCache) -> dict[int, int]:
    """Return Full's lock count by node id."""
    full = cache._components[0]
    return {node.id: full.data(node).lock_ref for node in full.tree}


async def test_k1_1_a_second_lock_and_its_release_leave_the_first_as_it_was(
    cache: UnifiedRadixCache,
) -> None:
    """A short lock over the same path, taken and released, must not weaken a longer-lived one."""
    await store(cache, key(16))
    held = (await match(cache, key(16), lock=True)).receipt
    assert held is not None
    before = lock_counts(cache)
    short = (await match(cache, key(8), lock=True)).receipt
    assert short is not None
    await cache.dec_lock_ref(short)
    after = lock_counts(cache)
    assert {node: after[node] for node in before} == before
    assert (await cache.evict(EvictParams(num_tokens=64))).num_tokens_evicted == 0
    await cache.dec_lock_ref(held)
    assert set(lock_counts(cache).values()) == {0}


@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("seed", range(12))
async def test_k1_4_no_sequence_of_legal_calls_makes_a_count_negative(
    make_cache: MakeCache, seed: int, page_size: int
) -> None:
    """Random lock, chunk, split and finish over deep shared prompts, audited after every step."""
    dice = random.Random(seed)
    prompts = [
        [*tokens(4 * dice.randrange(1, 16)), *tokens(dice.randrange(1, 20), 1000 * turn)]
        for turn in range(8)
    ]
    async with make_cache(size=512, page_size=page_size) as cache:
        running: list[tuple[Request, int]] = []
        receipts = []
        for step in range(60):
            action = dice.randrange(6)
            prompt = dice.choice(prompts)
            if action == 0:
                req = Request(rid=f"r{step}", origin_input_ids=prompt)
                found = await match(cache, req.key(), req=req, lock=True)
                have = len(found.device_indices)
                try:
                    await cache.allocate(AllocateParams(num_tokens=len(prompt) - have, req=req))
                except OutOfSlots:
                    await cache.abort_req(req)
                    continue
                running.append((req, have))
            elif action == 1 and running:
                at = dice.randrange(len(running))
                req, done = running[at]
                req.kv_committed_len = dice.randint(done, len(req.origin_input_ids))
                await cache.cache_unfinished_req(req, chunked=True)
                running[at] = req, req.kv_committed_len
            elif action == 2 and running:
                req, _ = running.pop(dice.randrange(len(running)))
                req.kv_committed_len = None
                await (
                    cache.cache_finished_req(req) if dice.random() < 0.7 else cache.abort_req(req)
                )
            elif action == 3:
                cut = dice.randint(1, len(prompt))
                receipt = (await match(cache, key(prompt[:cut]), lock=True)).receipt
                receipts.append(receipt)
            elif action == 4 and receipts:
                receipt = receipts.pop(dice.randrange(len(receipts)))
                assert receipt is not None
                await cache.dec_lock_ref(receipt)
            else:
                await cache.evict(EvictParams(num_tokens=dice.randrange(1, 40)))
            assert min(lock_counts(cache).values(), default=0) >= 0
            await assert_sound(cache)
        for req, _ in running:
            req.kv_committed_len = None
            await cache.cache_finished_req(req)
        for receipt in receipts:
            assert receipt is not None
            await cache.dec_lock_ref(receipt)
        await assert_nothing_held(cache)


@pytest.mark.parametrize("is_insert", [False, True])
async def test_k1_6_finish_of_a_request_that_never_matched(
    cache: UnifiedRadixCache, is_insert: bool
) -> None:
    """A profiling request owns slots and no lock: finishing frees them and touches no lock."""
    await store(cache, key(8))
    before = lock_counts(cache)
    req = Request(rid="probe", origin_input_ids=tokens(6, 50))
    await cache.allocate(AllocateParams(num_tokens=6, req=req))
    result = await cache.cache_finished_req(req, is_insert=is_insert)
    assert result.inserted_len == (4 if is_insert else 0)
    assert result.freed == (4 if is_insert else 8)
    counts = lock_counts(cache)
    assert {node: counts[node] for node in before} == before
    await assert_nothing_held(cache)


async def test_k1_7_a_receipt_from_before_a_reset_touches_no_count(
    cache: UnifiedRadixCache,
) -> None:
    """A reset waits for locks; a receipt of the old tree is recognised by its generation."""
    await store(cache, key(8))
    receipt = (await match(cache, key(8), lock=True)).receipt
    assert receipt is not None
    with pytest.raises(Busy, match="receipt"):
        await cache.reset()
    await cache.dec_lock_ref(receipt)
    await cache.reset()
    await store(cache, key(8))
    mine = (await match(cache, key(8), lock=True)).receipt
    assert mine is not None
    before = lock_counts(cache)
    with pytest.raises(ForeignReceipt):
        await cache.dec_lock_ref(receipt)
    assert lock_counts(cache) == before
    await cache.dec_lock_ref(mine)


async def test_k1_7_a_locked_node_can_not_be_removed(cache: UnifiedRadixCache) -> None:
    """Neither eviction nor an allocation under pressure detaches what a receipt stands on."""
    await store(cache, key(16))
    receipt = (await match(cache, key(16), lock=True)).receipt
    assert receipt is not None
    await cache.evict(EvictParams(num_tokens=64))
    with pytest.raises(OutOfSlots):
        await take(cache, 64)
    assert receipt.node.id in state_of(cache).tree.nodes
    assert (await cache.dec_lock_ref(receipt)).unprotected == {"full": 16}


async def test_k5_1_one_release_of_the_last_decode_slot(cache: UnifiedRadixCache) -> None:
    """A slot taken in advance is freed by finishing, once; a later clean-up is refused."""
    req = Request(rid="r", origin_input_ids=tokens(3))
    await match(cache, req.key(), req=req, lock=True)
    given = await cache.allocate(AllocateParams(num_tokens=3, req=req))
    for token in (100, 101):
        await cache.allocate(AllocateParams(num_tokens=1, req=req))
        req.output_ids.append(token)
    await cache.allocate(AllocateParams(num_tokens=1, req=req))
    req.kv_committed_len = 5
    result = await cache.cache_finished_req(req)
    assert (result.inserted_len, result.freed) == (4, 4)
    with pytest.raises(InvalidRequest, match="finished already"):
        await cache.cache_finished_req(req)
    with pytest.raises(SlotError):
        await cache.free(given.indices)
    assert (await cache.abort_req(req)).freed == 0
    await assert_nothing_held(cache)


async def test_k5_3_a_page_is_freed_whole_and_once(cache: UnifiedRadixCache) -> None:
    """Freeing tokens of one page apart must not free the page twice: parts are refused."""
    mine = await take(cache, 4)
    for one in (mine[2:3], mine[3:4]):
        with pytest.raises(SlotError, match="whole pages"):
            await cache.free(one)
    await cache.free(mine)
    with pytest.raises(SlotError, match="is free"):
        await cache.free(mine)
    assert (await cache.stats()).pools["full"]["device"].free == 64


@pytest.mark.parametrize("with_row", [False, True], ids=["no row", "row"])
async def test_k5_5_a_row_names_the_trees_pages_before_duplicates_are_freed(
    cache: UnifiedRadixCache, with_row: bool
) -> None:
    """Two compute one prompt: the second's table is rewritten, so nobody reads freed pages."""
    pool = cache.req_to_token_pool
    first = Request(rid="a", origin_input_ids=tokens(4))
    second = Request(rid="b", origin_input_ids=tokens(4))
    if with_row:
        second.req_pool_idx = pool.alloc()
    for req in (first, second):
        await match(cache, req.key(), req=req, lock=True)
    mine = {}
    for req in (first, second):
        mine[req.rid] = (await cache.allocate(AllocateParams(num_tokens=4, req=req))).indices
    await cache.cache_finished_req(first)
    result = await cache.cache_unfinished_req(second)
    assert result.freed == 4
    later = await take(cache, 60)
    canonical = (await match(cache, key(4))).device_indices
    assert canonical.tolist() == mine["a"].tolist()
    assert second.prefix_indices is not None
    assert second.prefix_indices.tolist() == canonical.tolist()
    if with_row:
        assert pool.rows[second.req_pool_idx, :4].tolist() == canonical.tolist()
    assert not set(second.prefix_indices.tolist()) & set(later.tolist())
    assert set(mine["b"].tolist()) < set(later.tolist())
    await cache.free(later)
    await cache.cache_finished_req(second)
    await assert_nothing_held(cache)


def owners(cache: UnifiedRadixCache) -> dict[str, set[int]]:
    """Return the slots of the pool by who has them, by identity and not by count."""
    full = cache._components[0]
    page = cache.page_size
    free = {int(head) * page + at for head in full.allocator.free_pages() for at in range(page)}
    tree: list[int] = []
    for node in full.tree:
        value = full.data(node).value
        tree.extend([] if value is None else value.tolist())
    held: list[int] = []
    for holding in full.holdings.values():
        held.extend(holding.slots().tolist())
    assert len(set(tree)) == len(tree)
    assert len(set(held)) == len(held)
    return {"free": free, "tree": set(tree), "held": set(held)}


@pytest.mark.parametrize("page_size", [1, 4])
async def test_k6_1_tree_free_and_requests_have_every_slot_exactly_once(
    make_cache: MakeCache, page_size: int
) -> None:
    """Equal prompts with duplicate slots, then a drain: the sets are disjoint and whole."""
    async with make_cache(page_size=page_size) as cache:
        running = []
        for turn in range(3):
            req = Request(rid=f"r{turn}", origin_input_ids=[*tokens(9), turn])
            await match(cache, req.key(), req=req, lock=True)
            await cache.allocate(AllocateParams(num_tokens=10, req=req))
            running.append(req)
        for req in running:
            req.kv_committed_len = 7
            await cache.cache_unfinished_req(req, chunked=True)
            parts = owners(cache)
            assert sum(map(len, parts.values())) == 64
            assert set.union(*parts.values()) == set(range(64))
        for req in running:
            req.kv_committed_len = 10
            await cache.cache_finished_req(req)
        parts = owners(cache)
        assert parts["held"] == set()
        assert parts["free"] | parts["tree"] == set(range(64))
        assert not parts["free"] & parts["tree"]
        await assert_nothing_held(cache)


async def test_k6_3_a_split_and_a_release_too_many_leave_the_sizes_right(
    make_cache: MakeCache,
) -> None:
    """Siblings of a split, released once too often: refused, and nothing negative."""
    async with make_cache(page_size=1) as cache:
        await store(cache, key([1, 2, 3]))
        await store(cache, key([1, 2, 4]))
        receipts = [(await match(cache, key([1, 2, end]), lock=True)).receipt for end in (3, 4)]
        pool = (await cache.stats()).pools["full"]["device"]
        assert (pool.protected, pool.evictable) == (4, 0)
        for receipt in receipts:
            assert receipt is not None
            await cache.dec_lock_ref(receipt)
        for receipt in receipts:
            assert receipt is not None
            with pytest.raises(ReceiptReleased):
                await cache.dec_lock_ref(receipt)
        pool = (await cache.stats()).pools["full"]["device"]
        assert (pool.protected, pool.evictable) == (0, 4)
        assert set(lock_counts(cache).values()) == {0}


async def test_k6_5_room_in_the_last_page_evicts_nothing(make_cache: MakeCache) -> None:
    """Three requests with room in their last page need one token each: no page is evicted."""
    async with make_cache(size=128, page_size=16) as cache:
        await store(cache, key(tokens(80, 1000)))
        requests = [Request(rid=f"r{n}", origin_input_ids=tokens(10, 100 * n)) for n in range(3)]
        for req in requests:
            await match(cache, req.key(), req=req, lock=True)
            await cache.allocate(AllocateParams(num_tokens=10, req=req))
        assert (await cache.stats()).pools["full"]["device"].free == 0
        for req in requests:
            given = await cache.allocate(AllocateParams(num_tokens=1, req=req))
            assert given.evicted.num_tokens_evicted == 0
        assert (await match(cache, key(tokens(80, 1000)))).full_kv_hit_length == 80
        for req in requests:
            await cache.abort_req(req)


async def test_k6_6_a_leak_is_told_with_its_slots(make_cache: MakeCache) -> None:
    """When the sum is wrong, the audit says which slots are missing, not only how many."""
    async with make_cache(audit=False) as cache:
        await store(cache, key(8))
        allocator = cache._components[0].allocator
        lost = int(allocator.free_pages()[-1]) * 4
        allocator._top -= 1
        messages = [one.message for one in (await cache.audit()).violations]
        assert f"pool full: slots lost: pages at {lost} belong to nobody" in messages


def bigram(token_ids: list[int]) -> RadixKey:
    """Return the bigram view of tokens."""
    return RadixKey(token_ids, is_bigram=True)


async def test_k7_1_a_chunk_of_bigrams_is_matched_as_far_as_it_was_inserted(
    make_cache: MakeCache,
) -> None:
    """16 tokens are 15 pairs, three pages: caching twice inserts the same 12, frees none."""
    async with make_cache(bigram=True) as cache:
        req = Request(rid="r", origin_input_ids=tokens(16))
        await match(cache, bigram(tokens(16)), req=req, lock=True)
        await cache.allocate(AllocateParams(num_tokens=16, req=req))
        first = await cache.cache_unfinished_req(req, chunked=True)
        assert (first.inserted_len, first.freed) == (12, 0)
        assert len((await match(cache, bigram(tokens(16)))).device_indices) == 12
        second = await cache.cache_unfinished_req(req, chunked=True)
        assert (second.inserted_len, second.freed) == (12, 0)
        assert req.cache_protected_len == 12
        assert (await cache.cache_finished_req(req)).freed == 4
        await assert_nothing_held(cache)


async def test_k7_3_a_rest_shorter_than_a_page_of_pairs_is_no_page(make_cache: MakeCache) -> None:
    """A page of pairs needs one token more than a page: fewer find nothing, no error."""
    async with make_cache(bigram=True) as cache:
        await store(cache, bigram(tokens(13)))
        for length, hit in ((4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)):
            found = await match(cache, bigram(tokens(length)))
            assert len(found.device_indices) == hit, length
        assert len((await match(cache, bigram([1]))).device_indices) == 0


async def test_k7_6_prompts_that_part_at_a_token_share_one_pair_less(
    make_cache: MakeCache,
) -> None:
    """A draft's state depends on the next token, so the last common token is not shared."""
    async with make_cache(bigram=True, page_size=1) as cache:
        first, second = [*tokens(8), 100, 101], [*tokens(8), 200, 201]
        await store(cache, bigram(first))
        found = await match(cache, bigram(second))
        assert len(found.device_indices) == 7
        stored = await store(cache, bigram(second))
        assert stored.prefix_len == 7
        assert stored.duplicate == ((0, 7),)


async def test_k2_5_a_table_key_is_the_first_page_after_every_split(
    cache: UnifiedRadixCache,
) -> None:
    """Keys part at a page border and inside a page; then all is evicted from the bottom."""
    await store(cache, key(24))
    for at in (4, 10, 16, 18):
        await store(cache, key([*tokens(at), *tokens(8, 100 * at)]))
        for node in state_of(cache).tree:
            assert node.parent is not None
            first = np.frombuffer(node.piece, dtype=np.int64)[:4]
            assert node.edge == first.tobytes()
            assert node.parent.children[node.edge] is node
    while (await cache.evict(EvictParams(num_tokens=4))).num_tokens_evicted:
        await assert_sound(cache)
    assert (await cache.stats()).nodes == 0


async def test_an_insert_tells_adopted_and_duplicate_apart(cache: UnifiedRadixCache) -> None:
    """Adopted slots serve the tree, duplicates are free, the tail stays the caller's."""
    await store(cache, key(8))
    mine = await take(cache, 16)
    wanted = key([*tokens(4), *tokens(10, 70)])
    result = await cache.insert(InsertParams(key=wanted, value=mine))
    assert (result.inserted_len, result.prefix_len) == (12, 4)
    assert (result.adopted, result.duplicate) == (((4, 12),), ((0, 4),))
    found = (await match(cache, wanted)).device_indices
    assert found[4:].tolist() == mine[4:12].tolist()
    assert not set(mine[:4].tolist()) & set(found.tolist())
    await cache.free(mine[12:])
    await assert_nothing_held(cache)
