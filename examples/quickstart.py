"""The calls a scheduler makes for one request after another: match, allocate, decode, finish."""

import asyncio

from radixtide import (
    AllocateParams,
    CacheConfig,
    MatchPrefixParams,
    Request,
    UnifiedRadixCache,
)
from radixtide.configs.schema import FullPoolConfig, PoolsConfig

CONFIG = CacheConfig(pools=PoolsConfig(full=FullPoolConfig(size=256)), page_size=16)
SYSTEM = list(range(48))


async def answer(cache: UnifiedRadixCache, rid: str, question: list[int]) -> None:
    req = Request(rid=rid, origin_input_ids=[*SYSTEM, *question])
    match = await cache.match_prefix(MatchPrefixParams(key=req.key(), req=req, lock=True))
    hit, prompt = len(match.device_indices), len(req.origin_input_ids)
    await cache.allocate(AllocateParams(num_tokens=prompt - hit, req=req))
    for token in range(5):  # decoding: room in the last page is used first
        await cache.allocate(AllocateParams(num_tokens=1, req=req))
        req.output_ids.append(1000 + token)
    done = await cache.cache_finished_req(req)
    print(f"{rid}: {hit} of {prompt} tokens cached, {done.inserted_len} now, {done.freed} freed")


async def main() -> None:
    async with UnifiedRadixCache(CONFIG) as cache:
        await answer(cache, "first", list(range(100, 120)))
        await answer(cache, "second", list(range(200, 230)))
        await answer(cache, "first again", list(range(100, 120)))
        print("sound:", (await cache.audit()).ok)


asyncio.run(main())
