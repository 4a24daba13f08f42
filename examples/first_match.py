"""Cache one prompt, then ask how much of another is there already."""

import asyncio

from radixtide import AllocateParams, InsertParams, MatchPrefixParams, RadixKey, UnifiedRadixCache


async def main() -> None:
    first, second = RadixKey([*range(64)]), RadixKey([*range(48), *range(900, 948)])
    async with UnifiedRadixCache.from_toml("configs/full.toml") as cache:
        slots = await cache.allocate(AllocateParams(num_tokens=len(first)))
        await cache.insert(InsertParams(key=first, value=slots.indices))
        match = await cache.match_prefix(MatchPrefixParams(key=second))
        print(len(match.device_indices), "of", len(second), "tokens;", match.miss_reason.value)


asyncio.run(main())
