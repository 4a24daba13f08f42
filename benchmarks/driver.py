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
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from benchmarks.generators import Tokens, Workload
from benchmarks.recorder import Recorder
from benchmarks.sets import WINDOW, state_grid
from benchmarks.verifier import Verifier, WrongAnswerError
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
from radixtide.tree.key import RadixKey


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


class Driver:
    """Runs one workload against one open cache.

    Args:
        workload: the stream.
        cache: an open cache, empty, with a pool of ``workload.pool_tokens``.
        recorder: takes the durations.
        verify: track what each slot and each state holds, compare with it whatever the cache hands
            out, and audit the cache at the end (slow; durations then mean nothing). The cache must
            be one of ``config_for(..., verify=True)``.
    """

    def __init__(
        self, workload: Workload, cache: UnifiedRadixCache, recorder: Recorder, verify: bool = False
    ) -> None:
        self.workload = workload
        self.cache = cache
        self.recorder = recorder
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
        self._verifier = Verifier(workload.name, cache) if verify else None

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
        if self._verifier is not None:
            await self._verifier.check_match(tokens, indices)
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
        state = await self._prepare(request, tokens, length)
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
        if self._verifier is not None:
            await self._verifier.check(tokens, indices)
        old = request.lock
        request.lock = await self._lock(result.last_device_node, tag, length)
        await self._unlock(old, tag, length)
        request.row, request.owned = indices.numpy(), length

    async def _finish(self, request: Running, tokens: Tokens, tag: str | None) -> None:
        result = await self._insert(request, tokens, tag)
        await self._unlock(request.lock, tag, result.inserted_len)

    async def _prepare(
        self, request: Running, tokens: Tokens, length: int
    ) -> npt.NDArray[np.int64] | None:
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
        state = allocated.mamba_indices.numpy()
        if self._verifier is not None:
            self._verifier.wrote_state(int(state[0]), tokens[:length])
        return state

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
        if self._verifier is not None:
            self._verifier.computed(allocated, tokens[have:length])
        request.row = np.concatenate((request.row, fresh)) if have else fresh

    def _aligned(self, length: int) -> int:
        return length - length % self.grid

    async def _check_slots(self) -> None:
        free = (await self.cache.stats()).pools["full"]["device"].free
        if free != self.free:
            raise WrongAnswerError(
                f"{self.workload.name}: the cache says {free} slots are free; "
                f"by its answers it must be {self.free}"
            )
        if self._verifier is not None:
            self.totals.checked = self._verifier.checked
            await self._verifier.finish()


def summary(totals: Totals) -> dict[str, Any]:
    """Return `totals` as the fields of a ``_summary`` line."""
    return msgspec.structs.asdict(totals)


__all__ = ("Driver", "Totals", "summary")
