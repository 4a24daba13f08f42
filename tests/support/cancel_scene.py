"""A small cache in which there is something for every public call to work on.

``async with scene("queued", ("full", "swa"), tiered=True) as s`` opens one, with or without tiers.
Keys are spans of pages, as in :mod:`support.tiered`; every byte on every tier is checked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import torch

from radixtide import AllocateParams, InsertParams, Request, UnifiedRadixCache
from radixtide.components.api import LockReceipt, MatchResult
from radixtide.configs.schema import CacheConfig, LimitsConfig
from radixtide.tiers.slots import ANONYMOUS
from radixtide.tree.key import RadixKey
from support.caches import Delivery, assert_nothing_held, settled, state_of
from support.marks import Marks, key_marks
from support.tier_bytes import check_bytes, check_slots
from support.tier_config import Components, tier_config
from support.tiered import Tiers

NEW: Final = 700
"""Page at which the tokens begin that are nowhere in the cache."""


class Scene(Tiers):
    """An open cache, the things that calls work on, and how to let go of them again.

    ``found``: a match of eight pages, of which the host has the second half where there is one.
    ``taken``: a match with a lock. ``loose``: slots of nobody's request. ``running``: a request
    that has computed some. ``fresh``: one that the cache has not seen. ``insert``: what may be
    inserted.
    """

    found: MatchResult
    taken: MatchResult
    loose: torch.Tensor
    running: Request
    fresh: Request
    insert: InsertParams

    def __init__(self, cache: UnifiedRadixCache) -> None:
        if cache.config.host is not None:
            super().__init__(cache)
            return
        self.cache = cache
        self.config = cache.config
        self.page = cache.page_size
        self.marks = Marks(cache)
        self.store = None
        self.pending = []

    @property
    def tiered(self) -> bool:
        """Whether there is a host tier."""
        return self.config.host is not None

    @property
    def receipt(self) -> LockReceipt:
        """The lock of ``taken``."""
        assert self.taken.receipt is not None
        return self.taken.receipt

    def new_key(self, count: int, at: int = 0) -> RadixKey:
        """Return a key of which nothing is cached."""
        return self.key(self.span(count, NEW + at))

    async def settle(self) -> None:
        await settled(self.cache)
        if self.tiered:
            await super().settle()
        else:
            await self.sound()

    async def sound(self) -> None:
        report = await self.cache.audit()
        assert report.ok, report.violations
        check_slots(self.cache)

    # -- what there is --------------------------------------------------------------------

    async def fill(self) -> None:
        """Have prompts cached: one on both tiers in its first half, on the host in its second."""
        await self.put(self.key(4))
        await self.put(self.key(8), prev=4)
        if self.store is not None:
            await self.put(self.key(10), prev=8)
        if self.tiered:
            await self.settle()
            await self.demote()
            if self.store is not None:
                await self.cache.flush("host", 20.0)
                await self.put(self.key(4))
                await self.put(self.key(8), prev=4)
                await self.settle()
                await self.demote()
            assert await self.load(self.key(4)) == 4
        await self.put(self.key(self.span(6, 200)))
        await self.put(self.key(self.span(5, 400)))
        await self.settle()

    async def hold_things(self) -> None:
        """Have something of everything held."""
        self.found = await self.match(self.key(8))
        self.taken = await self.match(self.key(self.span(6, 200)), lock=True)
        self.loose = (await self.cache.allocate(AllocateParams(num_tokens=2 * self.page))).indices
        self.fresh = Request("fresh", self.span(5, 200))
        wanted = self.new_key(5)
        self.running = await self.admit("running", wanted, load=False)
        self.running.kv_committed_len = 4 * self.page
        self._write_states(self.running, wanted, 4 * self.page)
        self.insert = await self._to_insert(self.new_key(3, at=50))
        await self.cache.pin(self.key(4), 1000.0)
        await self.settle()

    async def _to_insert(self, wanted: RadixKey) -> InsertParams:
        given = await self.cache.allocate(
            AllocateParams(num_tokens=wanted.units, mamba_num=int(self.has("mamba")))
        )
        state = None if given.mamba_indices is None else int(given.mamba_indices[0])
        await self.write(given.indices, key_marks(wanted), state)
        return InsertParams(wanted, given.indices.numpy(), given.mamba_indices)

    # -- what it is like ------------------------------------------------------------------

    async def held(self) -> dict[str, Any]:
        """Return what callers and requests hold."""
        stats = await self.cache.stats()
        return {
            "receipts": stats.receipts,
            "requests": stats.requests,
            "held": {name: tiers["device"].held for name, tiers in stats.pools.items()},
            "running": _of(self.running) if hasattr(self, "running") else None,
        }

    async def whole(self) -> dict[str, Any]:
        """Return all that a caller could see, when nothing is under way."""
        stats = await self.cache.stats()
        return {
            "pools": await self.sizes(),
            "nodes": stats.nodes,
            "pinned": stats.pinned,
            "generation": stats.generation,
            "storage": self.cache.storage_jobs is not None if self.tiered else None,
            "picture": self.picture(),
            **await self.held(),
        }

    # -- letting go -----------------------------------------------------------------------

    async def let_go(self) -> None:
        """Give back what is still held, whatever was carried out."""
        await self.settle()
        for req in (self.running, self.fresh):
            await self.cache.abort_req(req)
        receipts = state_of(self.cache).receipts
        if self.receipt.id in receipts:
            await self.cache.dec_lock_ref(self.receipt)
        await self._free_anonymous()
        await self.cache.unpin(self.key(4))
        await self.cache.unpin(self.key(self.span(6, 200)))

    async def _free_anonymous(self) -> None:
        """Free what `hold_things` has taken without a request, where that is not the tree's now."""
        state = self.insert.mamba_value
        for component, slots in (
            ("full", self.loose.numpy()),
            ("full", np.asarray(self.insert.value)),
            ("mamba", None if state is None else np.asarray(state)),
        ):
            if slots is None:
                continue
            part = next(one for one in self.cache._components if one.name == component)
            page = part.allocator.page_size
            if part.allocator.owners()[slots[0] // page] == ANONYMOUS:
                await self.cache.free(slots, component)

    async def drain_all(self) -> None:
        """Have nothing held, every byte right, and nothing left on the loop but the actors."""
        await self.settle()
        await assert_nothing_held(self.cache, heard=False)
        await self.serve()
        check_bytes(self.cache, self.marks)
        await nothing_runs()

    async def serve(self) -> None:
        """Serve a request from its match to its end: the next calls work."""
        wanted = self.key([*self.span(4), *self.span(2, NEW + 90)])
        req = await self.admit("next", wanted)
        await self.finish(req, wanted)
        found = await self.match(wanted)
        assert len(found.device_indices) == wanted.units
        await self.settle()
        await assert_nothing_held(self.cache, heard=False)


class Fields(NamedTuple):
    """What a request has by its own account."""

    locked: bool
    protected: int
    indices: list[int] | None
    state: int | None
    row: int | None


def _of(req: Request) -> Fields:
    indices = req.prefix_indices
    return Fields(
        req.lock is not None,
        req.cache_protected_len,
        None if indices is None else indices.tolist(),
        req.mamba_pool_idx,
        req.req_pool_idx,
    )


async def nothing_runs() -> None:
    """Assert that no task is left on the loop but this one and its test's."""
    await asyncio.sleep(0)
    current = asyncio.current_task()
    left = [task for task in asyncio.all_tasks() if task is not current and not task.done()]
    assert not left, left


def scene_config(
    delivery: Delivery, components: Components, tiered: bool, stored: bool = False, **fields: Any
) -> CacheConfig:
    """Return a config in which every call gives up its turn, however soon it is answered."""
    fields = {
        "page_size": 4,
        "pages": 40,
        "states": 24,
        "pins": 16,
        "limits": LimitsConfig(call_timeout_s=20.0, immediate_calls=1),
        **fields,
    }
    if stored:
        fields.setdefault("url", "memory:")
        fields.setdefault("storage", {"prefetch_policy": "wait_complete"})
    config = tier_config(components, delivery=delivery, **fields)
    return config if tiered else msgspec.structs.replace(config, host=None, storage=None)


@contextlib.asynccontextmanager
async def scene(
    delivery: Delivery,
    components: Components,
    tiered: bool,
    *,
    stored: bool = False,
    holding: bool = True,
) -> AsyncGenerator[Scene, None]:
    """Open a cache with something for each call to work on; `holding`: and with things held.

    `stored`: with a storage, too.
    """
    config = scene_config(delivery, components, tiered, stored)
    async with UnifiedRadixCache(config) as cache:
        s = Scene(cache)
        await s.fill()
        if holding:
            await s.hold_things()
        yield s
