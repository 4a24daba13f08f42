"""``--sequential``: one request at a time, prompts only, every block whole.

This is the setting in which a cache's hits compare with those of a plain LRU over blocks: the page
is the trace's block, nothing else is alive while a request is served, and what a request generates
is not kept. All transfers of a request end before the next one comes, so that what is found does
not depend on how fast they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_source import TraceRequest
from radixtide.cli.replay_tiers import Tiers
from radixtide.cli.replay_tokens import expand
from radixtide.components.api import AllocateParams, MatchPrefixParams
from radixtide.components.request import Request

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache


class SequentialReplay:
    """Serve a trace one request after the other.

    A prompt longer than the pool is served as far as the pool reaches: its leading blocks are
    looked up and kept, all of its blocks are counted.
    """

    def __init__(
        self, cache: UnifiedRadixCache, block: int, recording: Recording, tiers: Tiers
    ) -> None:
        self._cache = cache
        self._tiers = tiers
        self._block = block
        self._recording = recording
        self._room = cache.config.pools.full.size // block * block
        self._current: Request | None = None

    async def run(self, requests: Iterable[TraceRequest]) -> None:
        """Serve all of `requests`."""
        for request in requests:
            await self._tiers.come(request.arrival_ns)
            await self._serve(request)
            await self._tiers.settle()
            await self._recording.step(self._cache, request.arrival_ns)

    async def abandon(self) -> None:
        """Give back what the request at hand holds, after a cancellation."""
        if self._current is not None:
            self._recording.tally.aborted += 1
            await self._cache.abort_req(self._current)

    async def _serve(self, request: TraceRequest) -> None:
        cache, calls, tally = self._cache, self._recording.calls, self._recording.tally
        tokens = expand(request.ids, request.whole_blocks(self._block))
        tally.count_prompt(len(tokens) // self._block, len(tokens))
        req = Request(str(request.number), tokens[: self._room])
        length = min(len(tokens), self._room)
        self._current = req
        key, marks = req.key(), self._tiers.marks(tokens)
        fetched = await self._tiers.fetch(key)
        # The match touches the whole path, hits first; the insert below touches the rest.
        looked = await self._tiers.look_up(MatchPrefixParams(key=key, req=req, lock=True), fetched)
        await self._tiers.check(looked, marks, f"request {request.number}")
        hits = tally.count_found(looked.found, length, self._block, self._block)
        if length > hits:
            taken = await calls.timed(
                "allocate", cache.allocate(AllocateParams(num_tokens=length - hits, req=req))
            )
            tally.count_evicted(taken.evicted)
            tally.prefilled_tokens += length - hits
            row = np.concatenate((looked.row, taken.indices.numpy()))
            await self._tiers.write(row, marks, hits, length)
        req.kv_committed_len = length
        # From here on the request counts as done: the cache carries the call out, come what may.
        self._current = None
        tally.completed += 1
        await calls.timed("cache_finished_req", cache.cache_finished_req(req))


__all__ = ("SequentialReplay",)
