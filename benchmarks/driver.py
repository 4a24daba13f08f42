"""The driver: one stream of operations through the public async API, each call timed on its own.

Everything runs inside one event loop, one ``await`` a call. Building a key, allocating slots and
joining a request's row are the engine's work and are not timed; building the parameter object of a
call is part of the call and is.

With a sliding window the driver gives back, before each insert, the SWA half of the request's own
slots that no window needs any more, and with Mamba it takes one state to go with the insert; both
is the engine's work too, and is not timed.

The digest covers every matched length, every reused prefix and every evicted count in order: two
caches (or two ways of delivery) that behave alike have the same digest.
"""

from __future__ import annotations

import hashlib
from time import perf_counter_ns as now
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from benchmarks.generators import Tokens, Workload
from benchmarks.recorder import Recorder
from radixtide import UnifiedRadixCache
from radixtide.components.api import (
    AllocateParams,
    EvictParams,
    InsertParams,
    InsertResult,
    LockReceipt,
    MatchPrefixParams,
    NodeHandle,
)
from radixtide.configs.schema import (
    CacheConfig,
    FullPoolConfig,
    MambaPoolConfig,
    PoolsConfig,
    RequestPoolConfig,
    SwaPoolConfig,
)
from radixtide.tree.key import RadixKey

Delivery: TypeAlias = Literal["direct", "queued"]

COMPONENTS: dict[str, tuple[str, ...]] = {
    "full": ("full",),
    "full_swa": ("full", "swa"),
    "full_mamba": ("full", "mamba"),
    "full_swa_mamba": ("full", "swa", "mamba"),
}
"""What ``--components`` may name."""

WINDOW = 128
"""Tokens of the sliding window."""
STATE_GRID = 64
"""States are kept at multiples of this many tokens, where a page has more than one token."""


class WrongAnswerError(AssertionError):
    """The cache gave indices of other tokens, lost a slot, or failed its own audit."""


class Running(msgspec.Struct):
    """A request as the driver sees it.

    ``row``: slots of its first ``len(row)`` tokens, kept as an array, which the cache takes as
    gladly as a tensor and which is cheaper to slice; ``owned``: leading tokens whose slots are the
    cache's; ``evicted``: leading tokens whose SWA slots it has given back, as far as they were its
    own.
    """

    row: npt.NDArray[np.int64]
    owned: int
    lock: LockReceipt
    evicted: int = 0


class Totals(msgspec.Struct):
    """What a run did, apart from how long it took."""

    matches: int = 0
    matched_tokens: int = 0
    query_tokens: int = 0
    evicted: int = 0
    checked: int = 0
    digest: str = ""


def state_grid(page: int, components: str) -> int:
    """Return the tokens of which every length that is inserted is a multiple."""
    return max(page, STATE_GRID) if "mamba" in COMPONENTS[components] and page > 1 else page


def config_for(
    workload: Workload, page: int, components: str = "full", delivery: Delivery = "direct"
) -> CacheConfig:
    """Return the config of a cache for `workload`: slots are counted, no bytes lie behind them.

    The SWA pool is as large as Full's, and there is a state for every insert: what is measured is
    the price of the components, not the luck of their evictions.
    """
    names = COMPONENTS[components]
    size = -(-workload.pool_tokens // page) * page
    swa = max(size, -(-WINDOW // page) * page)
    return CacheConfig(
        components=names,
        page_size=page,
        window=WINDOW if "swa" in names else None,
        pools=PoolsConfig(
            full=FullPoolConfig(size=size, holds_bytes=False),
            swa=SwaPoolConfig(size=swa, holds_bytes=False) if "swa" in names else None,
            mamba=MambaPoolConfig(
                size=workload.max_inserts,
                holds_bytes=False,
                extra_buffer=page > 1,
                chunk=STATE_GRID if page > 1 else 1,
            )
            if "mamba" in names
            else None,
            requests=RequestPoolConfig(max_requests=1, max_context=page),
        ),
        delivery=delivery,
    )


class Driver:
    """Runs one workload against one open cache.

    Args:
        workload: the stream.
        cache: an open cache, empty, with a pool of ``workload.pool_tokens``.
        recorder: takes the durations.
        verify: track which token each slot holds, compare every list of indices with it, the SWA
            slots bound to them too, and audit the cache at the end (slow; durations then mean
            nothing).
    """

    def __init__(
        self, workload: Workload, cache: UnifiedRadixCache, recorder: Recorder, verify: bool = False
    ) -> None:
        self.workload = workload
        self.cache = cache
        self.recorder = recorder
        self.verify = verify
        self.totals = Totals()
        self.page = cache.page_size
        names = cache.config.components
        self.components = "_".join(names)
        self.has_window = "swa" in names
        self.has_states = "mamba" in names
        self.grid = state_grid(self.page, self.components)
        self.size = -(-workload.pool_tokens // self.page) * self.page
        # The driver keeps its own count of free slots, so that asking costs the cache nothing; it
        # is compared with the cache's at the end.
        self.free = self.size
        self._digest = hashlib.blake2b(digest_size=8)
        self._running: dict[int | None, Running] = {}
        # Slot numbers may start past a reserved page.
        room = self.size + self.page if verify else 0
        self._content = np.full(room, -1, dtype=np.int64)
        swa = cache.config.pools.swa
        room = swa.size + self.page if verify and swa is not None else 0
        self._swa_content = np.full(room, -1, dtype=np.int64)

    async def run(self) -> Totals:
        """Run the whole stream; raise :class:`WrongAnswerError` where the cache is wrong."""
        for kind, rid, argument, tag in self.workload.ops():
            if kind == "match":
                await self._match(argument, tag)
            elif kind == "match_lock":
                node, indices = await self._match(argument, None)
                receipt = await self._lock(node, tag, len(indices))
                await self._unlock(receipt, tag, len(indices))
            elif kind == "start":
                self._running[rid] = await self._start(argument, tag)
            elif kind == "extend":
                await self._extend(self._running[rid], argument, tag)
            elif kind == "finish":
                await self._finish(self._running.pop(rid), argument, tag)
            elif kind == "request":
                await self._finish(await self._start(argument, tag), argument, tag)
            elif kind == "evict":
                wanted = int(argument) or self.page
                await self._evict("evict", wanted, tag)
            else:
                raise ValueError(f"{self.workload.name}: no operation is called {kind!r}")
        await self._check_slots()
        self.totals.digest = self._digest.hexdigest()
        return self.totals

    def note(self, value: int) -> None:
        """Take one observed value into the digest."""
        self._digest.update(value.to_bytes(8, "little", signed=True))

    # -- timed calls ---------------------------------------------------------------------------

    async def _match(self, tokens: Tokens, tag: str | None) -> tuple[NodeHandle, torch.Tensor]:
        key = RadixKey(tokens)
        cache = self.cache
        t0 = now()
        result = await cache.match_prefix(MatchPrefixParams(key=key))
        t1 = now()
        indices = result.device_indices
        t2 = now()
        length = len(indices)
        whole = self._aligned(len(tokens))
        kind = "miss" if length == 0 else ("hit" if length >= whole else "partial")
        add = self.recorder.add
        add(f"match_{kind}", tag, t1 - t0, len(tokens))
        add(f"indices_{kind}", tag, t2 - t1, length)
        add(f"match+indices_{kind}", tag, t2 - t0, len(tokens))
        totals = self.totals
        totals.matches += 1
        totals.matched_tokens += length
        totals.query_tokens += len(tokens)
        self.note(length)
        if self.verify:
            await self._check_content(tokens, indices)
        return result.last_device_node, indices

    async def _lock(self, node: NodeHandle, tag: str | None, tokens: int) -> LockReceipt:
        cache = self.cache
        t0 = now()
        receipt = await cache.inc_lock_ref(node)
        self.recorder.add("lock", tag, now() - t0, tokens)
        return receipt

    async def _unlock(self, receipt: LockReceipt, tag: str | None, tokens: int) -> None:
        cache = self.cache
        t0 = now()
        await cache.dec_lock_ref(receipt)
        self.recorder.add("unlock", tag, now() - t0, tokens)

    async def _insert(self, request: Running, tokens: Tokens, tag: str | None) -> InsertResult:
        length = self._aligned(len(tokens))
        await self._grow(request, tokens, length, tag)
        key = RadixKey(tokens[:length])
        state = await self._prepare(request, length)
        row, owned, cache = request.row, request.owned, self.cache
        t0 = now()
        if self.components == "full":
            params = InsertParams(key=key, value=row[:length], prev_prefix_len=owned)
        elif not self.has_window:
            params = InsertParams(
                key=key, value=row[:length], prev_prefix_len=owned, mamba_value=state
            )
        else:
            params = InsertParams(
                key=key,
                value=row[:length],
                prev_prefix_len=owned,
                mamba_value=state,
                component_evicted_seqlens={"swa": request.evicted},
            )
        result = await cache.insert(params)
        self.recorder.add("insert", tag, now() - t0, length)
        self.note(result.prefix_len)
        self.free += sum(end - start for start, end in result.duplicate)
        return result

    async def _evict(self, name: str, wanted: int, tag: str | None) -> None:
        cache = self.cache
        t0 = now()
        result = await cache.evict(EvictParams(num_tokens=wanted))
        t1 = now()
        evicted = result.num_tokens_evicted
        self.recorder.add(name, tag, t1 - t0, evicted)
        self.totals.evicted += evicted
        self.free += evicted
        self.note(-evicted)

    # -- requests ------------------------------------------------------------------------------

    async def _start(self, tokens: Tokens, tag: str | None) -> Running:
        node, indices = await self._match(tokens, tag)
        receipt = await self._lock(node, tag, len(indices))
        return Running(row=indices.numpy(), owned=len(indices), lock=receipt)

    async def _extend(self, request: Running, tokens: Tokens, tag: str | None) -> None:
        result = await self._insert(request, tokens, tag)
        length = result.inserted_len
        cache = self.cache
        t0 = now()
        indices = await cache.device_indices(result.last_device_node)
        self.recorder.add("indices_after_insert", tag, now() - t0, length)
        if self.verify:
            await self._check_content(tokens, indices)
        old = request.lock
        request.lock = await self._lock(result.last_device_node, tag, length)
        await self._unlock(old, tag, length)
        request.row, request.owned = indices.numpy(), length

    async def _finish(self, request: Running, tokens: Tokens, tag: str | None) -> None:
        result = await self._insert(request, tokens, tag)
        await self._unlock(request.lock, tag, result.inserted_len)

    async def _prepare(self, request: Running, length: int) -> npt.NDArray[np.int64] | None:
        """Do what an engine does before it inserts `length` tokens; return the state to insert.

        SWA slots more than a window and a page away from the end go back, in whole pages.
        """
        if self.has_window:
            frontier = (length - WINDOW - self.page) // self.page * self.page
            start = max(request.evicted, request.owned)
            if frontier > start:
                await self.cache.free(request.row[start:frontier], component="swa")
                request.evicted = frontier
        if not self.has_states:
            return None
        allocated = await self.cache.allocate(AllocateParams(mamba_num=1))
        assert allocated.mamba_indices is not None
        return allocated.mamba_indices.numpy()

    async def _grow(self, request: Running, tokens: Tokens, length: int, tag: str | None) -> None:
        have = len(request.row)
        need = length - have
        if need <= 0:
            return
        short = need - self.free
        if short > 0:
            await self._evict("evict_for_alloc", short, tag)
        allocated = await self.cache.allocate(AllocateParams(num_tokens=need))
        fresh = allocated.indices.numpy()
        # Lengths are whole pages here, so there is no rest of a last page to give back.
        self.free -= len(fresh)
        if self.verify:
            self._content[fresh] = tokens[have:length]
            if self.has_window:
                assert allocated.swa_indices is not None
                self._swa_content[allocated.swa_indices.numpy()] = tokens[have:length]
        request.row = np.concatenate((request.row, fresh)) if have else fresh

    def _aligned(self, length: int) -> int:
        return length - length % self.grid

    # -- checks --------------------------------------------------------------------------------

    async def _check_content(self, tokens: Tokens, indices: torch.Tensor) -> None:
        if not np.array_equal(self._content[indices.numpy()], tokens[: len(indices)]):
            raise WrongAnswerError(
                f"{self.workload.name}: a list of {len(indices)} indices is not that of its tokens"
            )
        if self.has_window:
            await self._check_window(tokens, indices)
        self.totals.checked += 1

    async def _check_window(self, tokens: Tokens, indices: torch.Tensor) -> None:
        """Check the SWA slots of a prefix: its last window is there, and all are its tokens'."""
        slots = (await self.cache.component_slots("swa", indices)).numpy()
        if (slots[-WINDOW:] < 0).any():
            raise WrongAnswerError(
                f"{self.workload.name}: {len(indices)} tokens are cached, but not the SWA slots of "
                "all of their last window"
            )
        kept = slots >= 0
        if not np.array_equal(self._swa_content[slots[kept]], tokens[: len(slots)][kept]):
            raise WrongAnswerError(
                f"{self.workload.name}: SWA slots of {len(indices)} tokens are not those tokens'"
            )

    async def _check_slots(self) -> None:
        free = (await self.cache.stats()).pools["full"]["device"].free
        if free != self.free:
            raise WrongAnswerError(
                f"{self.workload.name}: the cache says {free} slots are free; "
                f"by its answers it must be {self.free}"
            )
        if self.verify:
            report = await self.cache.audit()
            if not report.ok:
                raise WrongAnswerError(f"{self.workload.name}: {report.violations}")


def summary(totals: Totals) -> dict[str, Any]:
    """Return `totals` as the fields of a ``_summary`` line."""
    return msgspec.structs.asdict(totals)


__all__ = (
    "COMPONENTS",
    "Delivery",
    "Driver",
    "Totals",
    "WrongAnswerError",
    "config_for",
    "state_grid",
    "summary",
)
