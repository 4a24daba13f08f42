"""What the next forward pass computes, and slots for it; who gives memory back when there is none.

Nobody is part of a pass while this runs, so that anybody can be retracted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radixtide.components.api import AllocateParams, ComponentType
from radixtide.configs.errors import CacheClosed, LoadFailed, OutOfSlots, RadixtideError
from radixtide.serving.board import Board
from radixtide.serving.calls import made
from radixtide.serving.rows import Row, Slots
from radixtide.serving.sequence import Sequence, youngest
from radixtide.serving.shape import chunk_end


@dataclass(slots=True, eq=False)
class Work:
    """One request's part of a pass: its tokens ``[start, end)``.

    ``samples``: the last of them is the newest, so that the next one is drawn. ``prefill``: it is a
    chunk of a prompt, or of what was lost. ``keeps``: the state at its end goes to the ring.
    """

    one: Sequence
    row: Row
    start: int
    end: int
    samples: bool
    prefill: bool
    keeps: bool


class Planner:
    """Makes the rows of a forward pass."""

    def __init__(self, board: Board) -> None:
        self._board = board

    async def plan(self) -> list[Work]:
        """Return what is computed next; empty when there is nothing, or no memory for it."""
        ready, loading = await self._by_load()
        # Who waits for a load would hold up all others in the pass; alone it starts layer by layer.
        planned = await self._plan(ready)
        if planned or not self._board.config.layerwise_loads:
            return planned
        if not any(one in self._board.running for one in ready):
            planned = await self._plan(loading)
        return planned

    async def _by_load(self) -> tuple[list[Sequence], list[Sequence]]:
        """Return who can be computed, and whose load is not over yet."""
        board = self._board
        loading = []
        for one in [one for one in board.running if one.load is not None]:
            load = one.load
            assert load is not None
            if not load.done:
                loading.append(one)
                continue
            try:
                await made(load.wait())
            except CacheClosed:
                raise
            except RadixtideError as error:
                await board.fail(one, error)
                continue
            one.load = None
            one.report.load_s = board.now() - one.load_began
            if load.failed:
                await self.lost(one)
        return [one for one in board.running if one not in loading], loading

    async def lost(self, one: Sequence) -> None:
        """Serve a request anew under which a load has failed; what it lacks is computed then."""
        board = self._board
        board.stats.lost_loads += 1
        one.may_load = False
        await board.fail(one, LoadFailed("a load from the host failed"))

    async def _plan(self, able: list[Sequence]) -> list[Work]:
        board = self._board
        config = board.config
        able = [one for one in able if one in board.running and not one.channel.wish]
        # Who was part of a pass that failed goes alone: so it is known whose fault it was.
        suspects = [one for one in able if one.suspect]
        decoding = [one for one in able if not one.prefills]
        prefilling = [one for one in able if one.prefills]
        planned: dict[Sequence, Work] = {}
        budget = config.step_tokens
        for one in suspects[:1] or [*decoding, *prefilling]:
            if budget <= 0:
                break
            if one not in board.running:
                # It was retracted for one before it.
                continue
            most = min(budget, config.chunk_tokens, board.shape.chunk_max)
            end = chunk_end(one.computed, one.length, most, board.shape.grid, one.marks)
            must = not one.prefills or not planned
            try:
                if not await self._grow(one, end, planned, must):
                    continue
                work = await self._work(one, end)
            except CacheClosed:
                raise
            except RadixtideError as error:
                await board.fail(one, error)
                continue
            planned[one] = work
            budget -= end - one.computed
        return list(planned.values())

    async def _grow(
        self, one: Sequence, end: int, planned: dict[Sequence, Work], must: bool
    ) -> bool:
        """Get slots for the tokens of a request up to `end`; return whether it has them.

        Where there are none, what was loaded for those who wait is let go; then the youngest
        request is retracted, again and again, if `must`. Else, and when it runs alone, the request
        waits for its next turn.

        Raises:
            OutOfSlots: it has waited like that for ``starve_max_s``, alone.
            LoadFailed: a load failed on the way, and took from what it had.
            RadixtideError: as ``allocate``.
        """
        board = self._board
        while True:
            slots, states = one.missing_slots(end), one.missing_states
            if not slots and not states:
                return True
            params = AllocateParams(num_tokens=slots, mamba_num=states, req=one.req)
            try:
                given = await made(board.cache.allocate(params))
            except OutOfSlots:
                if await board.let_go_of_load():
                    continue
                if len(board.running) == 1:
                    # What holds them is no request: a copy that goes on, or a pin.
                    if one.has_starved(board.now(), board.config.starve_max_s):
                        raise
                    return False
                if not must:
                    return False
                victim = youngest(board.running)
                planned.pop(victim, None)
                await board.retract(victim)
                if victim is one:
                    return False
                continue
            if one.req.cache_protected_len != one.protected:
                raise LoadFailed("a load from the host failed while slots were allocated")
            if slots:
                one.take_slots(given.indices[:slots])

    async def _work(self, one: Sequence, end: int) -> Work:
        shape = self._board.shape
        start = one.computed
        req = one.req
        samples = end == one.length
        ring = req.mamba_ping_pong
        keeps = shape.has_ring and ring is not None and end % shape.grid == 0
        last = req.mamba_last_track_seqlen
        keeps = keeps and (last is None or end > last)
        keep_state = ring[req.mamba_next_track] if keeps and ring is not None else None
        windows, first = None, 0
        if shape.window is not None:
            first = shape.window_start(start)
            windows = await self._windows(one, first, end)
        row = Row(
            rid=one.rid,
            tokens=one.tokens[start:end].copy(),
            slots=one.slots[:end].copy(),
            window_slots=windows,
            window_start=first,
            state=req.mamba_pool_idx if shape.states else None,
            keep_state=keep_state,
            logits=samples,
            load=one.load,
        )
        return Work(one, row, start, end, samples, one.prefills, keep_state is not None)

    async def _windows(self, one: Sequence, first: int, end: int) -> Slots:
        """Return the window slots of positions `first` to `end`; asked for once a page or so."""
        known = one.windows
        if known is None or first < one.windows_from:
            slots = one.slots[first : one.covered]
            found = await made(
                self._board.cache.component_slots(ComponentType.SWA, torch.from_numpy(slots.copy()))
            )
            known = one.windows = found.numpy()
            one.windows_from = first
        part = known[first - one.windows_from : end - one.windows_from]
        if (part < 0).any():
            raise LoadFailed(f"request {one.rid!r} lacks some of its window")
        return part.copy()
