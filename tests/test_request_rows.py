"""At every moment a request's row names the slots that tree and ledger say it has."""

from __future__ import annotations

import random

import pytest

from radixtide import (
    AllocateParams,
    EvictParams,
    MatchPrefixParams,
    OutOfSlots,
    Request,
    UnifiedRadixCache,
)
from support.caches import MakeCache, assert_nothing_held, assert_sound, state_of


class Running:
    """A request and how far it is, as its scheduler knows it."""

    def __init__(self, req: Request, slots: int) -> None:
        self.req = req
        self.slots = slots

    @property
    def length(self) -> int:
        return len(self.req.origin_input_ids) + len(self.req.output_ids)


def check_row(cache: UnifiedRadixCache, running: Running) -> None:
    """Assert that row, prefix, tree and ledger agree on every slot of a request."""
    state, full = state_of(cache), cache._components[0]
    req = running.req
    entry = state.ledger.get(req)
    if entry is None:
        assert running.slots == 0
        return
    path = state.path_to(entry.node) if entry.node is not None else []
    holding = full.holdings.get(entry.holder)
    own = holding.slots()[: holding.used].tolist() if holding is not None else []
    expected = full.path_slots(path).tolist() + own
    assert entry.protected == req.cache_protected_len == len(expected) - len(own)
    assert len(expected) == running.slots
    row = entry.indices(state.rows, len(expected))
    assert row[: len(expected)].tolist() == expected
    if req.prefix_indices is not None:
        assert req.prefix_indices.tolist() == expected[: len(req.prefix_indices)]
    assert len(set(expected)) == len(expected)


@pytest.mark.parametrize("bigram", [False, True], ids=["tokens", "bigrams"])
@pytest.mark.parametrize("page_size", [1, 4])
@pytest.mark.parametrize("seed", range(3))
async def test_rows_name_what_tree_and_ledger_say(
    make_cache: MakeCache, seed: int, page_size: int, bigram: bool
) -> None:
    dice = random.Random(seed)
    prompts = [
        [*range(dice.randrange(1, 20)), *range(100 * n, 100 * n + dice.randrange(1, 12))]
        for n in range(1, 6)
    ]
    async with make_cache(size=96, page_size=page_size, bigram=bigram) as cache:
        running: list[Running] = []
        for step in range(120):
            action = dice.randrange(8)
            one = dice.choice(running) if running else None
            if action <= 1 and len(running) < 6:
                req = Request(rid=f"r{step}", origin_input_ids=dice.choice(prompts))
                if dice.random() < 0.5:
                    req.req_pool_idx = cache.req_to_token_pool.alloc()
                key = req.key(is_bigram=bigram)
                found = await cache.match_prefix(MatchPrefixParams(key=key, req=req, lock=True))
                running.append(Running(req, len(found.device_indices)))
            elif one is not None and action <= 3:
                missing = max(one.length - one.slots, 0)
                count = dice.randint(0, missing) if dice.random() < 0.5 else missing
                try:
                    given = await cache.allocate(AllocateParams(num_tokens=count, req=one.req))
                except OutOfSlots:
                    continue
                assert len(given.indices) >= count
                one.slots += count
            elif one is not None and action == 4:
                one.req.output_ids.append(dice.randrange(3))
            elif one is not None and action == 5:
                done = min(one.length, one.slots)
                one.req.kv_committed_len = dice.randint(one.req.cache_protected_len, done)
                await cache.cache_unfinished_req(one.req, chunked=True)
            elif one is not None and action == 6:
                running.remove(one)
                one.req.kv_committed_len = None
                if dice.random() < 0.6:
                    await cache.cache_finished_req(one.req, is_insert=dice.random() < 0.8)
                else:
                    await cache.abort_req(one.req)
            elif action == 7:
                await cache.evict(EvictParams(num_tokens=dice.randrange(8)))
            for each in running:
                check_row(cache, each)
            await assert_sound(cache)
        for one in running:
            await cache.abort_req(one.req)
        await assert_nothing_held(cache)
        assert cache.req_to_token_pool.available == 16
