"""Small hybrid caches: audited after every call, and seen through the public calls.

``async with audited(delivery, page_size=4, window=6) as cache`` opens one with Full, SWA and Mamba;
``components`` picks fewer. What the helpers tell of windows and states comes from the calls that a
scheduler has; only :func:`assert_conserved` looks behind them, to know every slot by its number.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from radixtide import (
    AllocateParams,
    EvictParams,
    InsertParams,
    OutOfSlots,
    Request,
    UnifiedRadixCache,
)
from radixtide.actors.calls import AuditAll
from radixtide.components.api import InsertResult, MatchResult, NodeHandle, PoolStats
from radixtide.configs.schema import (
    FullPoolConfig,
    MambaPoolConfig,
    PoolsConfig,
    RequestPoolConfig,
    SwaPoolConfig,
)
from radixtide.tiers.slots import ANONYMOUS
from radixtide.tree.key import RadixKey
from support.caches import (
    Delivery,
    assert_nothing_held,
    key,
    make_config,
    match,
    state_of,
    system_of,
    tokens,
)

BOTH: Final = ("full", "swa")
STATES: Final = ("full", "mamba")
ALL: Final = ("full", "swa", "mamba")


def hybrid(
    components: tuple[str, ...] = ALL,
    *,
    page_size: int = 1,
    window: int = 4,
    size: int = 64,
    swa_size: int | None = None,
    states: int = 8,
    extra_buffer: bool | None = None,
    chunk: int | None = None,
    cap: int = 0,
    holds_states: bool = False,
    max_context: int = 256,
    **overrides: Any,
) -> dict[str, Any]:
    """Return what make_config needs for a hybrid cache.

    SWA has as many slots as Full unless `swa_size` says fewer. With pages of more than one token
    requests have the extra buffer, and `chunk` is one page unless it is named.
    """
    pools: dict[str, Any] = {}
    if "swa" in components:
        pools["swa"] = SwaPoolConfig(size=size if swa_size is None else swa_size, holds_bytes=False)
        overrides["window"] = window
    if "mamba" in components:
        pools["mamba"] = MambaPoolConfig(
            size=states,
            holds_bytes=holds_states,
            conv_shape=(1,),
            ssm_shape=(1,),
            conv_dtype="float32",
            extra_buffer=page_size > 1 if extra_buffer is None else extra_buffer,
            chunk=page_size if chunk is None else chunk,
            max_states_per_path=cap,
        )
    overrides["pools"] = PoolsConfig(
        full=FullPoolConfig(size=size, holds_bytes=False),
        requests=RequestPoolConfig(max_requests=16, max_context=max_context),
        **pools,
    )
    return {"components": components, "page_size": page_size, **overrides}


class AuditedCache(UnifiedRadixCache):
    """A cache that is audited after every call, whether it was answered or refused."""

    async def _take(self, message: Any, timeout: float | None) -> Any:
        try:
            return await super()._take(message, timeout)
        finally:
            await self._check(message)

    async def _give(self, message: Any, timeout: float | None) -> Any:
        try:
            return await super()._give(message, timeout)
        finally:
            if message.__class__ is not AuditAll:
                await self._check(message)

    async def _check(self, message: Any) -> None:
        report = await super()._give(AuditAll(), None)
        assert report.ok, f"after {type(message).__name__}: {report.violations}"


@contextlib.asynccontextmanager
async def audited(
    delivery: Delivery, components: tuple[str, ...] = ALL, **fields: Any
) -> AsyncGenerator[UnifiedRadixCache, None]:
    """Open a cache of ``hybrid(components, **fields)``; in the end no error was unheard."""
    config = make_config(**hybrid(components, delivery=delivery, **fields))
    async with AuditedCache(config) as cache:
        yield cache
        assert not system_of(cache).unheard_errors


class Stored(NamedTuple):
    """An insert: its result, and the slots that were given with it."""

    result: InsertResult
    slots: torch.Tensor
    swa: torch.Tensor | None
    state: int | None

    @property
    def node(self) -> NodeHandle:
        """The deepest node of the insert."""
        return self.result.last_device_node


def has(cache: UnifiedRadixCache, component: str) -> bool:
    """Return whether a cache has a component."""
    return component in cache.config.components


async def put(
    cache: UnifiedRadixCache,
    wanted: RadixKey,
    *,
    prev: int = 0,
    live: int | None = None,
    evicted: int = 0,
    state: bool = False,
) -> Stored:
    """Allocate for the whole pages of a key from `prev` on, and insert it.

    `live`: the last so many tokens get SWA slots (None: all). `evicted`: what the insert says was
    given back of SWA, though it was not. `state`: a state comes with it.
    """
    length = wanted.aligned(cache.page_size)
    given = await cache.allocate(
        AllocateParams(num_tokens=length - prev, swa_num_tokens=live, mamba_num=int(state))
    )
    value = np.concatenate((np.zeros(prev, dtype=np.int64), given.indices.numpy()))
    result = await cache.insert(
        InsertParams(
            key=wanted,
            value=value,
            mamba_value=given.mamba_indices,
            prev_prefix_len=prev,
            component_evicted_seqlens={"swa": evicted} if evicted else {},
        )
    )
    own = None if given.mamba_indices is None else int(given.mamba_indices[0])
    return Stored(result, given.indices, given.swa_indices, own)


async def build(cache: UnifiedRadixCache, pattern: str, start: int = 0) -> Stored:
    """Insert one page after the other, each a node of its own.

    "#" has SWA, "." has not; "s" has SWA and a state, ":" has a state without SWA.
    """
    page = cache.page_size
    done = None
    for at, kind in enumerate(pattern):
        end = (at + 1) * page
        done = await put(
            cache,
            key(tokens(end, start)),
            prev=at * page,
            live=None if kind in "#s" or not has(cache, "swa") else 0,
            state=kind in "s:",
        )
    assert done is not None
    return done


async def admit(
    cache: UnifiedRadixCache,
    rid: str,
    prompt: Sequence[int],
    *,
    live: int | None = None,
    row: bool = False,
) -> Request:
    """Admit a request: a match with lock and copy-on-write, then slots for the rest.

    `live`: the last so many tokens get SWA slots (None: all). It gets what it lacks of its working
    state and of the two of the extra buffer. Raises OutOfSlots; it holds nothing then.
    """
    req = Request(rid, list(prompt))
    if row:
        req.req_pool_idx = cache.req_to_token_pool.alloc()
    bigram = cache.config.bigram
    found = await match(
        cache, req.key(is_bigram=bigram), req=req, lock=True, cow_mamba=has(cache, "mamba")
    )
    pool = cache.config.pools.mamba
    states = 0
    if pool is not None:
        states = (req.mamba_pool_idx is None) + (2 if pool.extra_buffer else 0)
    wanted = AllocateParams(
        num_tokens=len(prompt) - len(found.device_indices),
        swa_num_tokens=live,
        mamba_num=states,
        req=req,
    )
    try:
        await cache.allocate(wanted)
    except OutOfSlots:
        await cache.abort_req(req)
        raise
    return req


def grid_of(cache: UnifiedRadixCache) -> int:
    """Return the unit of the lengths at which requests keep states."""
    state_pool = cache.config.pools.mamba
    assert state_pool is not None
    return math.lcm(state_pool.chunk, cache.page_size) if state_pool.extra_buffer else 1


def compute(cache: UnifiedRadixCache, req: Request, length: int) -> None:
    """Let the model compute a request up to `length`, and write its states.

    Where there is the extra buffer, it keeps its state at the last length on the grid. In pools
    with memory, what it writes into a state is the length at which that is valid.
    """
    req.kv_committed_len = length
    if req.mamba_pool_idx is None:
        return
    write_state(cache, req.mamba_pool_idx, length)
    if req.mamba_ping_pong is not None:
        tracked = length - length % grid_of(cache)
        if tracked > max(req.mamba_last_track_seqlen or 0, req.cache_protected_len):
            write_state(cache, req.mamba_ping_pong[req.mamba_next_track], tracked)
            req.note_state(tracked)


def write_state(cache: UnifiedRadixCache, slot: int, number: int) -> None:
    """Fill a state with a number; without memory behind the pool do nothing."""
    memory = cache.memory["mamba"]
    if memory is not None:
        for layer in range(memory.layers):
            for part in memory.views(layer):
                part[slot].fill_(number)


def read_state(cache: UnifiedRadixCache, slot: int | None) -> int:
    """Return the number that all of a state is filled with."""
    memory = cache.memory["mamba"]
    assert memory is not None
    assert slot is not None
    numbers = {float(part[slot]) for layer in range(memory.layers) for part in memory.views(layer)}
    assert len(numbers) == 1, numbers
    return int(numbers.pop())


async def chunk(cache: UnifiedRadixCache, req: Request, length: int) -> int:
    """Let a request compute up to `length` and be cached; return how much is inserted then."""
    compute(cache, req, length)
    compute(cache, req, length)
    return (await cache.cache_unfinished_req(req, chunked=True)).inserted_len


async def decode(cache: UnifiedRadixCache, req: Request, token: int | None = None) -> None:
    """Let a request go on by one token; None: the one that its position has in `tokens`."""
    await cache.allocate(AllocateParams(num_tokens=1, req=req))
    length = len(req.origin_input_ids) + len(req.output_ids)
    req.output_ids.append(length if token is None else token)


async def windows(cache: UnifiedRadixCache, node: NodeHandle) -> str:
    """Return one character a page of the path to `node`: "#" with SWA state, "." without."""
    slots = await cache.device_indices(node)
    paired = (await cache.component_slots("swa", slots)).numpy().reshape(-1, cache.page_size)
    assert ((paired >= 0).all(axis=1) | (paired < 0).all(axis=1)).all(), "a page is cut in two"
    return "".join("#" if page[0] >= 0 else "." for page in paired)


def to_evict(full: int = 0, swa: int = 0, mamba: int = 0) -> EvictParams:
    """Return what to evict, by pool."""
    return EvictParams(num_tokens=full, swa_num_tokens=swa, mamba_num=mamba)


async def squeeze(cache: UnifiedRadixCache) -> None:
    """Evict all that can be evicted, for one component after the other, the first one last."""
    for name in reversed(cache.config.components):
        await cache.evict(to_evict(**{name: (await pool(cache, name)).size}))


async def pool(cache: UnifiedRadixCache, component: str) -> PoolStats:
    """Return the sizes of a pool."""
    return (await cache.stats()).pools[component]["device"]


async def protected(cache: UnifiedRadixCache, *components: str) -> tuple[int, ...]:
    """Return how many slots of pools are protected (of all, unless some are named)."""
    pools = (await cache.stats()).pools
    return tuple(pools[name]["device"].protected for name in components or cache.config.components)


async def free(cache: UnifiedRadixCache) -> dict[str, int]:
    """Return how many slots of each pool are free."""
    return {name: one["device"].free for name, one in (await cache.stats()).pools.items()}


def lock_counts(cache: UnifiedRadixCache) -> dict[tuple[str, int], int]:
    """Return each component's lock count by node id."""
    return {
        (part.name, node.id): part.data(node).lock_ref
        for part in cache._components
        for node in state_of(cache).tree
    }


async def assert_window_whole(cache: UnifiedRadixCache, found: MatchResult) -> None:
    """Assert that a match can be used: the last window of it has SWA state, without a hole."""
    window = cache.config.window
    assert window is not None
    paired = await cache.component_slots("swa", found.device_indices[-window:])
    assert (paired >= 0).all(), paired


def assert_conserved(cache: UnifiedRadixCache) -> None:
    """Assert that each slot of each pool is free, the tree's or a holder's, and only one of these.

    By number, not by count. The pairs that a request holds are those of its Full slots.
    """
    for part in cache._components:
        page = part.allocator.page_size
        free_pages = part.allocator.free_pages()
        parts = [(free_pages[:, None] * page + np.arange(page)).ravel()]
        for node in state_of(cache).tree:
            value = part.data(node).value
            if value is not None:
                parts.append(value)
        pages = [held for held in part.held_pages().values() if len(held)]
        parts += [(held[:, None] * page + np.arange(page)).ravel() for held in pages]
        loose = np.flatnonzero(part.allocator.owners() == ANONYMOUS)
        parts.append((loose[:, None] * page + np.arange(page)).ravel())
        slots = np.sort(np.concatenate(parts))
        assert np.array_equal(slots, np.arange(part.allocator.size)), part.name


async def drain(cache: UnifiedRadixCache) -> None:
    """Assert that nothing is held, evict all there is, and assert that every pool is whole."""
    await assert_nothing_held(cache)
    assert_conserved(cache)
    await cache.evict(EvictParams(num_tokens=(await pool(cache, "full")).size))
    stats = await cache.stats()
    assert stats.nodes == 0
    for name, tiers in stats.pools.items():
        assert tiers["device"].free == tiers["device"].size, name
    assert_conserved(cache)
    await assert_nothing_held(cache)
