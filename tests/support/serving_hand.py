"""A scheduler made by hand: it builds the rows of forward passes from a real cache.

As small as it can be, and nothing of it is the product's: it is there to ask the runner for exactly
the pass that a test is about. Everything happens in the order in which the test says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import numpy as np
import numpy.typing as npt

from radixtide import AllocateParams, MatchPrefixParams, Request, UnifiedRadixCache
from radixtide.actors.tier_handles import LoadBack
from radixtide.serving.rows import Outcome, Row
from support.serving_records import Records

Forward = Callable[[Sequence[Row]], list[Outcome]]


@dataclass
class Live:
    """A request that is served.

    ``slots``: Full slots of its context, as far as it has any. ``computed``: tokens whose state is
    there. ``found``: how many of them the cache had. ``loaded``: how many of those the host.
    """

    rid: str
    prompt: list[int]
    req: Request
    slots: npt.NDArray[np.int64]
    computed: int
    found: int
    loaded: int = 0
    load: LoadBack | None = None
    output: list[int] = field(default_factory=list)

    @property
    def text(self) -> list[int]:
        """All its tokens: those of the answer too."""
        return [*self.prompt, *self.output]


class Hand:
    """Serves requests over one cache and one runner.

    Args:
        cache: open.
        forward: what a runner does.
        chunk: tokens of a prompt that are computed at once.

    ``records``: what was asked and said. ``prompts``, ``outputs``: by request.
    """

    def __init__(self, cache: UnifiedRadixCache, forward: Forward, chunk: int = 32) -> None:
        self.cache = cache
        self.forward = forward
        self.chunk = chunk
        self.records = Records()
        self.prompts: dict[str, list[int]] = {}
        self.outputs: dict[str, list[int]] = {}
        pools = cache.config.pools
        self.states = "mamba" in cache.config.components
        self.ring = pools.mamba is not None and pools.mamba.extra_buffer
        self.grid = 1 if pools.mamba is None else math.lcm(pools.mamba.chunk, cache.page_size)
        self.window = cache.config.window if "swa" in cache.config.components else None

    # -- a request's life -----------------------------------------------------------------------

    async def begin(self, rid: str, prompt: Sequence[int], salt: str | None = None) -> Live:
        """Admit a request: look up, load what the host has, take slots for the rest."""
        tokens = [int(token) for token in prompt]
        req = Request(rid=rid, origin_input_ids=tokens, cache_salt=salt)
        key = req.key(len(tokens) - 1)
        load: LoadBack | None = None
        loaded = 0
        if self.states:
            # A state is copied for the request by the match, so it has to be there before.
            found = await self.cache.match_prefix(MatchPrefixParams(key=key))
            if found.host_hit_length:
                async with await self.cache.load_back(found) as handle:
                    await handle.wait()
                    loaded = handle.loaded
        found = await self.cache.match_prefix(
            MatchPrefixParams(key=key, req=req, lock=True, cow_mamba=self.states)
        )
        slots = found.device_indices
        if found.host_hit_length and not self.states:
            load = await self.cache.load_back(found, req)
            loaded, slots = load.loaded, load.device_indices
        states = 0
        if self.states:
            states = (3 if self.ring else 1) - (req.mamba_pool_idx is not None)
        room = await self.cache.allocate(
            AllocateParams(num_tokens=len(tokens) - len(slots), mamba_num=states, req=req)
        )
        own = room.indices[: len(tokens) - len(slots)]
        self.prompts.setdefault(rid, tokens)
        live = Live(
            rid,
            tokens,
            req,
            np.concatenate((slots.numpy(), own.numpy())),
            len(slots),
            len(slots),
            loaded,
            load,
        )
        # One that was retracted has its answer so far as a part of its prompt.
        self.outputs.setdefault(rid, [])
        return live

    async def step(self, *lives: Live) -> None:
        """Compute the next chunk, or the next token, of each: in one pass."""
        rows = [await self.row(live) for live in lives]
        outcomes = await anyio.to_thread.run_sync(self.forward, rows)
        self.records.note(rows, outcomes)
        for live, row, outcome in zip(lives, rows, outcomes, strict=True):
            assert not outcome.lost
            await self.commit(live, row, outcome)

    async def row(self, live: Live) -> Row:
        """Build the row of a request's next chunk, or of its next token."""
        text = live.text
        start = live.computed
        end = min(start + self.chunk, len(text))
        if self.ring and start < len(live.prompt):
            # A state is kept at a multiple of the grid, so a chunk ends there.
            border = (start // self.grid + 1) * self.grid
            end = min(end, border) if border <= len(text) else end
        if end > len(live.slots):
            room = await self.cache.allocate(
                AllocateParams(num_tokens=end - len(live.slots), req=live.req)
            )
            live.slots = np.concatenate((live.slots, room.indices.numpy()[: end - len(live.slots)]))
        window_slots, window_start = None, 0
        if self.window is not None:
            window_start = max(start - self.window + 1, 0)
            own = await self.cache.component_slots("swa", live.slots[window_start:end])
            assert int(own.min()) >= 0, "a window slot is missing"
            window_slots = own.numpy()
        keep = None
        if self.ring and not end % self.grid:
            assert live.req.mamba_ping_pong is not None
            keep = live.req.mamba_ping_pong[live.req.mamba_next_track]
        return Row(
            rid=live.rid,
            tokens=np.array(text[start:end], dtype=np.int64),
            slots=live.slots[:end].copy(),
            window_slots=window_slots,
            window_start=window_start,
            state=live.req.mamba_pool_idx,
            keep_state=keep,
            logits=end == len(text),
            load=live.load,
        )

    async def commit(self, live: Live, row: Row, outcome: Outcome) -> None:
        """Take what a pass made of a row: its state, and a token where it was the last."""
        end = live.computed = len(row.slots)
        if row.keep_state is not None:
            live.req.note_state(end)
        if live.load is not None and live.load.done:
            await live.load.wait()
            live.load = None
        live.req.kv_committed_len = end
        live.req.output_ids = live.output[: end - len(live.prompt)]
        if end <= len(live.prompt):
            await self.cache.cache_unfinished_req(live.req, chunked=end < len(live.prompt))
            prefix = live.req.prefix_indices
            if prefix is not None:
                live.slots[: len(prefix)] = prefix.numpy()
        if self.window is not None and end >= len(live.prompt):
            await self.cache.release_window(live.req, end)
        if outcome.logits is not None:
            token = int(outcome.logits.argmax())
            live.output.append(token)
            self.outputs[live.rid].append(token)

    async def finish(self, live: Live) -> None:
        """End a request; what was computed stays cached."""
        if live.load is not None:
            await live.load.wait()
        await self.cache.cache_finished_req(live.req)

    async def abort(self, live: Live) -> None:
        """Give a request up."""
        await self.cache.abort_req(live.req)

    # -- whole lives ---------------------------------------------------------------------------

    async def serve(
        self, rid: str, prompt: Sequence[int], tokens: int = 4, salt: str | None = None
    ) -> Live:
        """Serve one request alone, to `tokens` tokens of answer."""
        live = await self.begin(rid, prompt, salt)
        await self.together([live], tokens)
        return live

    async def together(self, lives: Sequence[Live], tokens: int) -> None:
        """Serve requests side by side, to `tokens` tokens of answer each."""
        running = list(lives)
        while running:
            await self.step(*running)
            for live in list(running):
                if len(self.outputs[live.rid]) >= tokens:
                    await self.finish(live)
                    running.remove(live)


async def drop_from_device(cache: UnifiedRadixCache) -> None:
    """Let all go from the device that may; what has a copy stays on the host."""
    await cache.drain()
    await cache.flush("device")


async def scribble(cache: UnifiedRadixCache, number: float = 40.0) -> dict[str, int]:
    """Overwrite every free slot of the device pools, as their next owner would.

    What was evicted is then no longer there by accident. Returns how many of each pool.
    """
    stats = await cache.stats()
    free = {name: tiers["device"].free for name, tiers in stats.pools.items()}
    page = cache.page_size
    swa = free.get("swa")
    room = await cache.allocate(
        AllocateParams(
            num_tokens=free["full"],
            swa_num_tokens=None if swa is None else min(swa, free["full"]),
            mamba_num=free.get("mamba", 0),
        )
    )
    assert not free["full"] % page
    taken: dict[str, Any] = {"full": room.indices, **room.granted()}
    for name, slots in taken.items():
        memory: Any = cache.memory[name]
        for layer in memory.parts():
            for part in layer:
                part[np.asarray(slots)] = number
    if len(taken.get("mamba", ())):
        await cache.free(taken["mamba"], "mamba")
    if len(room.indices):
        await cache.free(room.indices)
    return {name: len(slots) for name, slots in taken.items()}


__all__ = ("Forward", "Hand", "Live", "drop_from_device", "scribble")
