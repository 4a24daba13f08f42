"""Small caches with tiers: bytes in all pools, transfers under a test's control, audited.

``async with tiers(delivery, ("full", "swa"), page_size=4) as t`` opens one. Lengths in the tests
are in pages: ``t.span(8)`` are the tokens of eight pages, ``t.span(2, 100)`` two that no other span
shares. What is read is compared with what must have been written for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from radixtide import AllocateParams, EvictParams, InsertParams, Request, UnifiedRadixCache
from radixtide.components.api import InsertResult, MatchResult, NodeHandle, PoolStats
from radixtide.tree.key import RadixKey
from support.actors import turns, until
from support.caches import Delivery, assert_nothing_held, state_of, system_of
from support.held_engine import TURNS_MAX
from support.hybrids import AuditedCache
from support.marks import MarkArray, Marks, key_marks
from support.seams import hold_engine, resting, trouble_store
from support.tier_bytes import check_bytes, check_slots, picture
from support.tier_config import SETS, Components, tier_config

Picture = list[tuple[int, int, str]]


class Put(NamedTuple):
    """An insert: its result, and the Full slots and the state that were given with it."""

    result: InsertResult
    slots: torch.Tensor
    state: int | None

    @property
    def node(self) -> NodeHandle:
        """The deepest node of the insert."""
        return self.result.last_device_node


class Tiers:
    """An open cache, what is in its bytes, and its transfers under a test's control."""

    def __init__(self, cache: UnifiedRadixCache) -> None:
        self.cache = cache
        self.config = cache.config
        self.page = cache.page_size
        self.marks = Marks(cache)
        self.engine = hold_engine(cache)
        self.store = trouble_store(cache)
        self.pending: list[MarkArray] = []

    # -- names ----------------------------------------------------------------------------

    def has(self, component: str) -> bool:
        """Return whether the cache has a component."""
        return component in self.config.components

    def span(self, count: int, at: int = 0) -> list[int]:
        """Return the tokens of `count` pages, from the `at`-th on."""
        return list(range(at * self.page, (at + count) * self.page))

    def key(self, wanted: Sequence[int] | int, **namespace: Any) -> RadixKey:
        """Return a key of tokens, or of so many first pages."""
        given = self.span(wanted) if isinstance(wanted, int) else list(wanted)
        if self.config.bigram:
            given = [*given, (given[-1] + 1) if given else 0]
        return RadixKey(given, is_bigram=self.config.bigram, **namespace)

    # -- calls ----------------------------------------------------------------------------

    async def put(
        self,
        wanted: RadixKey,
        *,
        prev: int = 0,
        live: int | None = None,
        state: bool | None = None,
        written: bool = True,
        **fields: Any,
    ) -> Put:
        """Allocate for the whole pages of a key from page `prev` on, write, and insert.

        `live`: the last so many pages get SWA slots (None: all). `state`: whether a state comes
        with it (None: where there are states). `written` false: the caller writes later.
        """
        page = self.page
        begin, end = prev * page, wanted.aligned(page)
        with_state = self.has("mamba") and state is not False
        given = await self.cache.allocate(
            AllocateParams(
                num_tokens=end - begin,
                swa_num_tokens=None if live is None else live * page,
                mamba_num=int(with_state),
            )
        )
        own = None if given.mamba_indices is None else int(given.mamba_indices[0])
        marks = key_marks(wanted)
        if written:
            await self.write(given.indices, marks[begin:end], own)
        else:
            self.pending.append(marks[begin:end])
        value = np.concatenate((np.zeros(begin, dtype=np.int64), given.indices.numpy()))
        state_value = None if own is None else torch.tensor([own])
        params = InsertParams(wanted, value, state_value, begin)
        return Put(await self.cache.insert(params, **fields), given.indices, own)

    async def write(self, slots: torch.Tensor, marks: MarkArray, state: int | None = None) -> None:
        """Write what units must have, to their Full slots and to the SWA slots behind these.

        `state`: slot of the state at the end of them.
        """
        if state is not None:
            self.marks.write("mamba", torch.tensor([state]), marks[-1:])
        self.marks.write("full", slots, marks)
        if self.has("swa"):
            paired = (await self.cache.component_slots("swa", slots)).numpy()
            there = paired >= 0
            self.marks.write("swa", paired[there], marks[there])

    async def match(self, wanted: RadixKey, **fields: Any) -> MatchResult:
        """Match a key, and check every byte that the match hands out."""
        from radixtide import MatchPrefixParams

        found = await self.cache.match_prefix(MatchPrefixParams(key=wanted, **fields))
        await self.check(wanted, found.device_indices, found.last_device_node)
        return found

    async def check(self, wanted: RadixKey, slots: torch.Tensor, node: NodeHandle) -> None:
        """Check all that a model reads which goes on from `slots`, the first units of a key."""
        length = len(slots)
        marks = key_marks(wanted)[:length]
        self.marks.check("full", slots, marks)
        if self.has("swa") and length:
            window = self.config.window
            assert window is not None
            paired = await self.cache.component_slots("swa", slots[-window:])
            assert (paired >= 0).all(), f"a hole in the window: {paired.tolist()}"
            self.marks.check("swa", paired, marks[-window:])
        if self.has("mamba") and length:
            states = await self.cache.device_indices(node, "mamba")
            assert len(states), "a match without a state"
            self.marks.check("mamba", states[-1:], marks[-1:])

    async def hit(self, wanted: RadixKey) -> tuple[int, int]:
        """Return how many pages a match has on the device, and how many more on the host."""
        found = await self.match(wanted)
        return len(found.device_indices) // self.page, found.host_hit_length // self.page

    async def load(self, wanted: RadixKey, req: Request | None = None) -> int:
        """Load back all there is of a key, check its bytes, and return its pages on the device."""
        found = await self.match(wanted)
        async with await self.cache.load_back(found, req) as handle:
            length = await handle.wait()
            slots = handle.device_indices[:length]
            self.marks.check("full", slots, key_marks(wanted)[:length])
        again = await self.match(wanted)
        assert len(again.device_indices) >= length or not length
        return len(again.device_indices) // self.page

    async def admit(
        self, rid: str, wanted: RadixKey, *, load: bool = True, row: bool = True
    ) -> Request:
        """Admit a request: match, load back, slots and states for the rest, all written."""
        tokens = wanted.token_ids.tolist()
        req = Request(rid, tokens, extra_key=wanted.extra_key, cache_salt=wanted.cache_salt)
        if row:
            req.req_pool_idx = self.cache.req_to_token_pool.alloc()
        found = await self.match(wanted, req=req, lock=True, cow_mamba=self.has("mamba"))
        if load and found.host_hit_length:
            handle = await self.cache.load_back(found, req)
            await handle.wait()
        have = req.cache_protected_len
        pool = self.config.pools.mamba
        wants = 0 if pool is None else (req.mamba_pool_idx is None) + 2 * pool.extra_buffer
        given = await self.cache.allocate(
            AllocateParams(num_tokens=wanted.units - have, mamba_num=wants, req=req)
        )
        marks = key_marks(wanted)
        await self.write(given.indices[: wanted.units - have], marks[have:])
        return req

    async def compute(self, req: Request, wanted: RadixKey, length: int) -> int:
        """Let a request compute up to page `length` and be cached; return the pages inserted."""
        units = length * self.page
        req.kv_committed_len = units
        self._write_states(req, wanted, units)
        result = await self.cache.cache_unfinished_req(req, chunked=True)
        return result.inserted_len // self.page

    async def finish(self, req: Request, wanted: RadixKey) -> int:
        """Let a request compute all of a key and end; return the pages inserted."""
        req.kv_committed_len = wanted.units
        self._write_states(req, wanted, wanted.aligned(self.page))
        return (await self.cache.cache_finished_req(req)).inserted_len // self.page

    def _write_states(self, req: Request, wanted: RadixKey, units: int) -> None:
        if not self.has("mamba") or req.mamba_pool_idx is None or not units:
            return
        mark = key_marks(wanted)[units - 1 : units]
        self.marks.write("mamba", torch.tensor([req.mamba_pool_idx]), mark)
        ring = req.mamba_ping_pong
        last = max(req.mamba_last_track_seqlen or 0, req.cache_protected_len)
        if ring is not None and units > last:
            self.marks.write("mamba", torch.tensor([ring[req.mamba_next_track]]), mark)
            req.note_state(units)

    async def split(self, at: int, length: int = 1, **namespace: Any) -> None:
        """Cut the node that `at` pages from the start of ``key(...)`` lie inside of.

        A key that leaves it there is matched, and inserted where a match may not split.
        """
        other = self.key([*self.span(at), *self.span(length, 1000 + 10 * at)], **namespace)
        await self.match(other)
        if self.has("mamba"):
            await self.put(other, state=False)

    async def evict(self, full: int = 0, swa: int = 0, mamba: int = 0) -> None:
        """Evict pages (of states: states) from the device."""
        await self.cache.evict(
            EvictParams(
                num_tokens=full * self.page, swa_num_tokens=swa * self.page, mamba_num=mamba
            )
        )

    async def demote(self) -> None:
        """Evict from the device all that can be."""
        await self.evict(full=10**6)

    # -- transfers ------------------------------------------------------------------------

    async def settle(self) -> None:
        """Let every transfer come to its end, and check every byte on every tier."""
        self.engine.hold_no_more()
        self.engine.release()
        if self.store is not None:
            self.store.release()
        await self.cache.drain()
        await self.sound()

    async def sound(self) -> None:
        """Audit, and check every slot and every byte of device and host."""
        report = await self.cache.audit()
        assert report.ok, report.violations
        check_slots(self.cache)
        pending = np.concatenate(self.pending) if self.pending else None
        check_bytes(self.cache, self.marks, pending)

    async def copied(self) -> None:
        """Wait until no copy is under way or waits to begin, but for those that are held."""
        books = state_of(self.cache).tiers
        assert books is not None

        def quiet() -> bool:
            moving = self.engine.under_way - {job.number for job in self.engine.held()}
            return (
                resting(self.cache)
                and not moving
                and not (books.backlog and not self.engine.waiting)
            )

        # What a copy's end begins shows a turn later.
        for _ in range(5):
            await until(quiet, TURNS_MAX)
            await turns(3)

    async def stored(self, count: int) -> None:
        """Wait until `count` writes to the store have begun."""
        store = self.store
        assert store is not None
        await until(lambda: store.waiting("put_from") >= count, TURNS_MAX)

    # -- looks ----------------------------------------------------------------------------

    def picture(self) -> Picture:
        """Return (first page, last page, tiers as letters) of every node, sorted by key."""
        return [(a // self.page, b // self.page, bits) for a, b, bits in picture(self.cache)]

    async def pool(self, component: str = "full", tier: str = "host") -> PoolStats:
        """Return the sizes of a pool on a tier."""
        return (await self.cache.stats()).pools[component][tier]

    async def free_pages(self, component: str = "full", tier: str = "host") -> int:
        """Return how many pages of a pool are free."""
        return (await self.pool(component, tier)).free // self.marks.page_of(component)

    async def count(self, name: str) -> int:
        """Return a counter."""
        return (await self.cache.stats()).counters[name]

    async def sizes(self) -> dict[str, Any]:
        """Return all sizes of all pools."""
        stats = await self.cache.stats()
        return {
            f"{name} {tier}": msgspec.structs.asdict(one)
            for name, tiers_of in stats.pools.items()
            for tier, one in tiers_of.items()
        }

    async def drain_and_check(self) -> None:
        """Settle; then nothing is held, and flushing both tiers leaves whole pools."""
        await self.settle()
        await assert_nothing_held(self.cache)
        await self.cache.flush("device", timeout=20.0)
        await self._whole("device")
        await self.cache.flush("host", timeout=20.0)
        await self._whole("host")
        assert (await self.cache.stats()).nodes == 0
        await self.sound()

    async def _whole(self, tier: str) -> None:
        for name in self.config.components:
            pool = await self.pool(name, tier)
            assert pool.free == pool.size, (name, tier, pool)


@contextlib.asynccontextmanager
async def tiers(
    delivery: Delivery,
    components: Components = SETS[-1],
    *,
    drain: bool = True,
    **fields: Any,
) -> AsyncGenerator[Tiers, None]:
    """Open a cache of ``tier_config``, audited after every call.

    At the end of a block that did not raise everything is drained, unless `drain` is false.
    """
    cache = AuditedCache(tier_config(components, delivery=delivery, **fields))
    async with cache:
        opened = Tiers(cache)
        yield opened
        if drain:
            await opened.drain_and_check()
        assert not system_of(cache).unheard_errors


async def soon(call: Any, turns_max: int = 200) -> asyncio.Task[Any]:
    """Begin a call in a task, and let the loop run until nothing more happens by itself."""
    task: asyncio.Task[Any] = asyncio.ensure_future(call)
    for _ in range(turns_max):
        await asyncio.sleep(0)
    return task


def units(array: npt.NDArray[Any] | torch.Tensor) -> list[int]:
    """Return slots as a list."""
    found: list[int] = array.tolist()
    return found
