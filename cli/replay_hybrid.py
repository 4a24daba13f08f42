"""``--sequential`` for models with sliding windows or states: one request at a time.

Each request is one match and one insert of whole blocks. Where the match says that a branch point
is worth keeping, the prompt is inserted up to there first: an engine computes it in two chunks.

* Windows: only the tokens of the last window before each insert's end take SWA slots; the insert is
  told that those before are gone already.
* States: one goes with each insert, as the state at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from radixtide.cli.replay_bytes import Marks
from radixtide.cli.replay_engine import branch_point
from radixtide.cli.replay_fit import Shape
from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_source import TraceRequest
from radixtide.cli.replay_tiers import Looked, Tiers
from radixtide.cli.replay_tokens import expand
from radixtide.components.api import (
    AllocateParams,
    AllocateResult,
    InsertParams,
    LockReceipt,
    MatchPrefixParams,
    MatchResult,
    NodeHandle,
)
from radixtide.tree.key import RadixKey

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache

Slots = npt.NDArray[np.int64]


class HybridReplay:
    """Serve a trace one request after the other, with windows and states.

    A prompt longer than the pool is served as far as the pool reaches, in multiples of the lengths
    at which states are kept; all of its blocks are counted.
    """

    def __init__(
        self, cache: UnifiedRadixCache, block: int, recording: Recording, tiers: Tiers
    ) -> None:
        self._cache = cache
        self._tiers = tiers
        self._marks: Marks | None = None
        self._block = block
        self._recording = recording
        self._calls = recording.calls
        self._shape = Shape.of(cache.config)
        self._room = cache.config.pools.full.size // cache.page_size * cache.page_size
        self._locks: list[LockReceipt] = []

    async def run(self, requests: Iterable[TraceRequest]) -> None:
        """Serve all of `requests`."""
        for request in requests:
            await self._tiers.come(request.arrival_ns)
            await self._serve(request)
            await self._tiers.settle()
            await self._recording.step(self._cache, request.arrival_ns)

    async def abandon(self) -> None:
        """Give back what the request at hand holds, after a cancellation."""
        if self._locks:
            self._recording.tally.aborted += 1
        while self._locks:
            await self._cache.dec_lock_ref(self._locks.pop())

    async def _serve(self, request: TraceRequest) -> None:
        tally, shape = self._recording.tally, self._shape
        tokens = expand(request.ids, request.whole_blocks(self._block))
        tally.count_prompt(len(tokens) // self._block, len(tokens))
        prompt = min(len(tokens), self._room)
        length = prompt // shape.grid * shape.grid
        if not length:
            tally.count_unaligned(prompt)
            tally.completed += 1
            return
        key = RadixKey(tokens[:length])
        fetched = await self._tiers.fetch(key)
        looked = await self._tiers.look_up(MatchPrefixParams(key=key, lock=True), fetched)
        match = looked.match
        assert match.receipt is not None
        self._locks.append(match.receipt)
        self._marks = self._tiers.marks(tokens)
        await self._check(looked, f"request {request.number}")
        hits = tally.count_found(looked.found, prompt, self._block, shape.grid)
        tally.prefilled_tokens += prompt - hits
        await self._compute(tokens, match, hits, length)
        tally.completed += 1
        await self._unlock()

    async def _check(self, looked: Looked, what: str) -> None:
        """Compare what was found with what its tokens say, where there are bytes."""
        await self._tiers.check(looked, self._marks, what)
        length = looked.found.length
        if self._marks is not None and self._shape.states and length:
            states = await self._cache.device_indices(looked.match.last_device_node, "mamba")
            self._tiers.check_state(int(states[-1]), self._marks, length, what)

    async def _compute(
        self, tokens: npt.NDArray[np.int64], match: MatchResult, hits: int, length: int
    ) -> None:
        """Insert what was not cached, by way of the branch point if there is one."""
        row: Slots = match.device_indices.numpy()
        branch = branch_point(self._shape, match)
        stops = [length] if length > hits else []
        if branch is not None and hits < branch < length:
            stops.insert(0, branch)
        start = hits
        for stop in stops:
            node = await self._insert(tokens[:stop], row, start)
            if stop != length:
                receipt = await self._calls.timed("inc_lock_ref", self._cache.inc_lock_ref(node))
                self._locks.append(receipt)
                await self._unlock()
                slots = await self._calls.timed("device_indices", self._cache.device_indices(node))
                row = slots.numpy()
            start = stop

    async def _insert(self, tokens: npt.NDArray[np.int64], row: Slots, start: int) -> NodeHandle:
        """Insert `tokens`, of which `row` holds the first `start`; return the node at their end."""
        shape, end = self._shape, len(tokens)
        frontier = shape.frontier(end)
        taken = await self._calls.timed(
            "allocate",
            self._cache.allocate(
                AllocateParams(
                    num_tokens=end - start,
                    swa_num_tokens=end - max(start, frontier) if shape.window else None,
                    mamba_num=1 if shape.states else 0,
                )
            ),
        )
        self._recording.tally.count_evicted(taken.evicted)
        row = np.concatenate((row, taken.indices.numpy()))
        # Nothing is awaited between the two calls, and an insert is carried out once made: an
        # interruption can not leave slots behind.
        self._write(row, taken, start, end)
        result = await self._calls.timed(
            "insert",
            self._cache.insert(
                InsertParams(
                    key=RadixKey(tokens),
                    value=row,
                    mamba_value=taken.mamba_indices if shape.states else None,
                    prev_prefix_len=start,
                    component_evicted_seqlens={"swa": frontier} if shape.window else {},
                )
            ),
        )
        return result.last_device_node

    def _write(self, row: Slots, taken: AllocateResult, start: int, end: int) -> None:
        """Write what the tokens ``[start, end)`` leave, and the state after them."""
        windows = None if taken.swa_indices is None else taken.swa_indices.numpy()
        self._tiers.write_now(row, self._marks, start, end, windows)
        if taken.mamba_indices is not None and len(taken.mamba_indices):
            self._tiers.write_state(int(taken.mamba_indices[0]), self._marks, end)

    async def _unlock(self) -> None:
        """Release the oldest lock."""
        receipt = self._locks.pop(0)
        await self._calls.timed("dec_lock_ref", self._cache.dec_lock_ref(receipt))


__all__ = ("HybridReplay",)
