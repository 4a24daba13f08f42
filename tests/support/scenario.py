"""A short day of a cache, with every call in it and nothing left at its end but one prompt."""

from __future__ import annotations

from typing import Any

from radixtide import UnifiedRadixCache
from radixtide.components.api import AllocateParams, EvictParams, InsertParams
from radixtide.components.request import Request
from support.caches import key, match, store, take, tokens


async def scenario(cache: UnifiedRadixCache) -> list[Any]:
    """Make every call on an empty cache of 64 slots in pages of 4; return what the calls said.

    At the end key(8) is cached, in two nodes, and nothing is held.
    """
    said: list[Any] = []
    first = await store(cache, key(8))
    said.append((first.prefix_len, first.adopted, first.duplicate))
    again = await store(cache, key(8))
    said.append((again.prefix_len, again.adopted, again.duplicate))
    part = await match(cache, key(6))
    said.append((part.device_indices.tolist(), part.miss_reason))
    locked = await match(cache, key(8), lock=True)
    assert locked.receipt is not None
    said.append((await cache.evict(EvictParams(num_tokens=64))).num_tokens_evicted)
    said.append((await cache.dec_lock_ref(locked.receipt)).unprotected)
    receipt = await cache.inc_lock_ref(locked.last_device_node)
    said.append((await cache.device_indices(receipt.node)).tolist())
    said.append((await cache.dec_lock_ref(receipt)).unprotected)

    req = Request("r", tokens(18), req_pool_idx=cache.req_to_token_pool.alloc())
    hit = await match(cache, req.key(), req=req, lock=True)
    said.append((len(hit.device_indices), hit.miss_reason))
    await cache.allocate(AllocateParams(num_tokens=10, req=req))
    req.kv_committed_len = 14
    said.append(await cache.cache_unfinished_req(req, chunked=True))
    await cache.allocate(AllocateParams(num_tokens=1, req=req))
    req.output_ids.append(7)
    req.kv_committed_len = 19
    said.append(await cache.cache_finished_req(req))

    gone = Request("gone", tokens(6, start=300))
    await match(cache, gone.key(), req=gone, lock=True)
    await cache.allocate(AllocateParams(num_tokens=6, req=gone))
    said.append(await cache.abort_req(gone))

    kept = await cache.pin(key(8), 1000.0)
    said.append(kept)
    said.append((await cache.evict(EvictParams(num_tokens=64))).num_tokens_evicted)
    said.append((await match(cache, req.key())).miss_reason)
    said.append(await cache.unpin(key(8)))
    spare = await take(cache, 4)
    await cache.free(spare)
    said.append((await cache.pretty_print()).splitlines()[0])
    other = await take(cache, 4)
    await cache.insert(InsertParams(key=key(4, extra_key="tenant"), value=other))
    async with cache.hold(await match(cache, key(8))):
        said.append((await cache.evict(EvictParams(num_tokens=64))).num_tokens_evicted)
    said.append((await cache.audit()).violations)
    stats = await cache.stats()
    said.append((stats.pools, stats.nodes, stats.receipts, stats.requests, stats.pinned))
    return said


async def life(cache: UnifiedRadixCache, number: int) -> None:
    """One request: a prompt shared with every fifth other, chunks, decoding, an end."""
    prompt = [*tokens(24, start=1000 * (number % 5)), *tokens(20, start=10_000 * (number + 1))]
    req = Request(f"r{number}", prompt, req_pool_idx=cache.req_to_token_pool.alloc())
    hit = await match(cache, req.key(), req=req, lock=True)
    have = len(hit.device_indices)
    await cache.allocate(AllocateParams(num_tokens=len(prompt) - have, req=req))
    for done in range(have + 10, len(prompt), 10):
        req.kv_committed_len = done
        await cache.cache_unfinished_req(req, chunked=True)
    for token in range(9):
        await cache.allocate(AllocateParams(num_tokens=1, req=req))
        req.output_ids.append(token)
    req.kv_committed_len = len(prompt) + 9
    if number % 7 == 3:
        await cache.abort_req(req)
    else:
        await cache.cache_finished_req(req)
