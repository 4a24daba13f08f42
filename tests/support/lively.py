"""A fixture of a cache in which something of everything is held."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from radixtide import AllocateParams, Request, UnifiedRadixCache
from support.caches import MakeCache, key, match, store, tokens


@pytest.fixture
async def full_of_life(make_cache: MakeCache) -> AsyncGenerator[UnifiedRadixCache, None]:
    """Open a cache where key(8) is stored, another prompt locked, and a request holds slots."""
    async with make_cache(pin_budget=16, max_context=32) as cache:
        await store(cache, key(8))
        await store(cache, key(tokens(8, 100)))
        await match(cache, key(tokens(8, 100)), lock=True)
        req = Request(rid="runs", origin_input_ids=tokens(20))
        await match(cache, req.key(), req=req, lock=True)
        await cache.allocate(AllocateParams(num_tokens=5, req=req))
        yield cache
        await cache.abort_req(req)
