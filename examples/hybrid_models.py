"""Full attention, a sliding window and recurrent state in one cache: two chats share a prompt.

The model stays out of it: where one would compute, this only says so.
"""

import asyncio

from radixtide import (
    AllocateParams,
    CacheConfig,
    MatchPrefixParams,
    Request,
    UnifiedRadixCache,
)
from radixtide.configs.schema import FullPoolConfig, MambaPoolConfig, PoolsConfig, SwaPoolConfig

CONFIG = CacheConfig(
    components=("full", "swa", "mamba"),
    page_size=16,
    window=64,
    pools=PoolsConfig(
        full=FullPoolConfig(size=4096, holds_bytes=False),
        swa=SwaPoolConfig(size=1024, holds_bytes=False),
        # A request has a working state and two more, kept in turn at multiples of 32 tokens.
        mamba=MambaPoolConfig(size=16, holds_bytes=False, extra_buffer=True, chunk=32),
    ),
)
SYSTEM = list(range(320))


async def serve(cache: UnifiedRadixCache, name: str, question: list[int]) -> None:
    """Serve one chat turn: prompt and answer."""
    req = Request(rid=name, origin_input_ids=[*SYSTEM, *question])
    match = await cache.match_prefix(
        MatchPrefixParams(key=req.key(), req=req, cow_mamba=True, lock=True)
    )
    have = len(match.device_indices)
    states = 3 if req.mamba_pool_idx is None else 2
    await cache.allocate(
        AllocateParams(num_tokens=len(req.origin_input_ids) - have, mamba_num=states, req=req)
    )
    # ... compute the prompt up to here; the state at 320 tokens goes to a slot of the ring.
    req.kv_committed_len = 320
    if have < 320:
        req.note_state(320)
    await cache.cache_unfinished_req(req)
    # ... compute the rest and decode; what the window has left is given back on the way.
    req.kv_committed_len = None
    for token in range(90):
        await cache.allocate(AllocateParams(num_tokens=1, req=req))
        req.output_ids.append(1000 + token)
        await cache.release_window(req, len(req.origin_input_ids) + len(req.output_ids))
    held = (await cache.stats()).pools["swa"]["device"].held
    print(f"{name}: {have} tokens found ({match.miss_reason}), {held} window slots held")
    await cache.cache_finished_req(req)


async def main() -> None:
    """Run two chats one after the other, then look at the pools."""
    async with UnifiedRadixCache(CONFIG) as cache:
        await serve(cache, "first", [*range(500, 540)])
        await serve(cache, "second", [*range(600, 640)])
        for name, tiers in (await cache.stats()).pools.items():
            print(f"{name}: {tiers['device'].evictable} of {tiers['device'].size} slots cached")
        print("sound:", (await cache.audit()).ok)


if __name__ == "__main__":
    asyncio.run(main())
