"""A prompt leaves the device, comes back from host memory, and after a restart from storage.

Real memory throughout: the state is written, moved, and read again at the end of each trip.
"""

import asyncio
import tempfile

import torch

from radixtide import (
    AllocateParams,
    CacheConfig,
    HostConfig,
    InsertParams,
    MatchPrefixParams,
    RadixKey,
    StorageConfig,
    UnifiedRadixCache,
)
from radixtide.configs.schema import FullPoolConfig, PoolsConfig

PROMPT = [*range(1000, 1512)]


def config(directory: str) -> CacheConfig:
    """Return a small cache: 1,024 tokens on the device, twice as many on the host, then files."""
    return CacheConfig(
        page_size=16,
        pools=PoolsConfig(full=FullPoolConfig(size=1024, layers=2, kv_heads=1, head_dim=8)),
        host=HostConfig(ratio=2.0, layout="page_first"),
        storage=StorageConfig(url=f"file:{directory}", model="example", prefetch_threshold=16),
    )


async def reuse(cache: UnifiedRadixCache, key: RadixKey) -> str:
    """Match, load what the host has, and compare what is read with what was written."""
    found = await cache.match_prefix(MatchPrefixParams(key=key))
    words = f"device {len(found.device_indices)}, host {found.host_hit_length} tokens"
    async with await cache.load_back(found) as load:
        length = await load.wait()
        assert cache.kv_pool is not None
        keys, _ = cache.kv_pool.read(1, load.device_indices[:length])
    right = torch.equal(keys[:, 0, 0].float(), torch.tensor(PROMPT[:length]).bfloat16().float())
    return f"{words}; loaded {length}, {'the same' if right else 'WRONG'} state"


async def main() -> None:
    """Serve a prompt, lose the device, lose the process."""
    key = RadixKey(PROMPT, cache_salt="tenant-7")
    with tempfile.TemporaryDirectory() as directory:
        async with UnifiedRadixCache(config(directory)) as cache:
            slots = await cache.allocate(AllocateParams(num_tokens=len(PROMPT)))
            state = torch.tensor(PROMPT, dtype=torch.bfloat16).view(-1, 1, 1).expand(-1, 1, 8)
            assert cache.kv_pool is not None
            for layer in range(2):
                cache.kv_pool.write(layer, slots.indices, state, state)
            await cache.insert(InsertParams(key=key, value=slots.indices))
            await cache.drain()
            await cache.flush("device")
            print("without the device:", await reuse(cache, key))
        async with UnifiedRadixCache(config(directory)) as cache:
            async with await cache.prefetch(key) as fetch:
                brought = await fetch.wait()
            print("after a restart:   ", await reuse(cache, key), f"({brought} from storage)")
            other = RadixKey(PROMPT, cache_salt="tenant-8")
            async with await cache.prefetch(other) as fetch:
                print("another tenant:    ", await fetch.wait(), "from storage")


asyncio.run(main())
