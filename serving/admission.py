"""Who waits, and how one is admitted: fetch, look, match, load, room.

All of this goes on while a forward pass runs. Nothing here waits for a transfer: a fetch from
storage, and a load that has to be over first, each have a waiter of their own, which wakes the
scheduler. So who waits for storage holds up nobody else.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from radixtide.components.api import ComponentType, MatchPrefixParams, MatchResult
from radixtide.configs.errors import CacheClosed, RadixtideError
from radixtide.serving.board import Board
from radixtide.serving.calls import made
from radixtide.serving.order import in_order, note_overtaking
from radixtide.serving.sequence import Sequence, Stage

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from radixtide.actors.tier_handles import LoadBack, Prefetch

logger = logging.getLogger(__name__)


class Admission:
    """Takes requests from those who wait to those who run."""

    def __init__(self, board: Board, waiters: TaskGroup) -> None:
        self._board = board
        self._waiters = waiters
        self._full_at = -1

    async def look(self) -> None:
        """Look once at all who wait, and admit whom there is room for."""
        board = self._board
        for one in [one for one in board.waiting if one.stage is Stage.NEW]:
            await self._greet(one)
        while len(board.running) < board.config.max_running and self._full_at != board.time:
            chosen = await self._next()
            if chosen is None:
                return
            try:
                admitted = await self._admit(chosen)
            except CacheClosed:
                raise
            except RadixtideError as error:
                await board.fail(chosen, error)
                continue
            if admitted:
                self._note_admitted(chosen)

    def look_anew(self) -> None:
        """Look for room at the next opportunity, though nobody told of any."""
        self._full_at = -1

    # -- storage --------------------------------------------------------------------------------

    async def _greet(self, one: Sequence) -> None:
        """Begin to fetch what storage has of a request that has just come."""
        board = self._board
        one.stage = Stage.WAITING
        key = one.key
        if not board.shape.fetches or key is None:
            return
        try:
            # What will be matched, and no more: only the needs of its end are fetched.
            fetch = await made(board.cache.prefetch(key, one.req))
        except CacheClosed:
            raise
        except RadixtideError as error:
            # Storage is worth no attempt: what it has can be computed.
            logger.debug("no fetch for request %s: %s", one.rid, error)
            return
        if fetch.pages and one.stage is Stage.WAITING:
            one.fetch, one.fetch_began = fetch, board.now()
            one.stage = Stage.FETCHING
            board.tell("fetching", one)
            self._waiters.start_soon(self._await_fetch, one, fetch)

    async def _await_fetch(self, one: Sequence, fetch: Prefetch) -> None:
        """Let a request wait for its fetch, as long as ``prefetch_policy`` says."""
        board = self._board
        brought = 0
        try:
            brought = await made(fetch.wait())
        except RadixtideError as error:
            logger.debug("the fetch for request %s was given up: %s", one.rid, error)
        if one.fetch is not fetch:
            return
        one.fetch = None
        one.fetched = brought
        one.report.fetch_s = board.now() - one.fetch_began
        if one.stage is Stage.FETCHING:
            one.stage = Stage.WAITING
        self.look_anew()
        board.wake.set()

    # -- order ----------------------------------------------------------------------------------

    async def _next(self) -> Sequence | None:
        """Return who is to be admitted next, None where nobody can be."""
        board = self._board
        config = board.config
        now = board.now()
        ready = [
            one
            for one in board.waiting
            if one.stage is Stage.WAITING and not one.channel.wish and one.not_before <= now
        ]
        if not ready:
            return None
        prefilling = [one for one in board.running if one.prefills]
        if len(ready) > 1 or prefilling:
            for one in in_order(ready, config.overtakes_max)[: config.look_max]:
                await self._look_up(one)
        for one in in_order(ready, config.overtakes_max):
            if not self._is_being_computed(one, prefilling):
                return one
        return None

    async def _look_up(self, one: Sequence) -> None:
        """See how much of a request is cached by now."""
        board = self._board
        key = one.key
        if one.looked == board.time or key is None:
            return
        at = board.time
        try:
            found = await made(board.cache.match_prefix(MatchPrefixParams(key)))
        except CacheClosed:
            raise
        except RadixtideError:
            return
        one.cached = len(found.device_indices) + found.host_hit_length
        one.looked = at

    def _is_being_computed(self, one: Sequence, prefilling: list[Sequence]) -> bool:
        """Return whether another request is about to cache more of this one than there is.

        Then it waits: what both have in common is computed once. It is admitted when the other has
        come that far, or is gone.
        """
        if one.overtaken >= self._board.config.overtakes_max:
            return False
        page, grid = self._board.shape.page, self._board.shape.grid
        for other in prefilling:
            common = min(one.shares_with(other), one.length - 1) // page * page
            if common <= max(one.cached, other.protected):
                continue
            if grid:
                common = common // grid * grid
                if common <= max(one.cached, other.computed):
                    continue
                # A prefix can be used where a state was kept.
                other.marks.add(common)
            return True
        return False

    def _note_admitted(self, one: Sequence) -> None:
        board = self._board
        board.admit(one)
        ready = [other for other in board.waiting if other.stage is Stage.WAITING]
        note_overtaking(ready, one)

    # -- admission ------------------------------------------------------------------------------

    async def _admit(self, one: Sequence) -> bool:
        """Match and lock what is cached of a request, and begin to load; return whether it may run.

        If not, it waits for a load, or there is no room: then it holds nothing afterwards, and
        nobody is admitted until there may be.
        """
        board = self._board
        key = one.key
        if key is None:
            return True
        states = bool(board.shape.states)
        if states and one.load is None and one.may_load and await self._begin_load(one):
            return False
        found = await made(
            board.cache.match_prefix(MatchPrefixParams(key, one.req, cow_mamba=states, lock=True))
        )
        one.take_prefix(found.device_indices)
        if one.load is not None:
            await board.letting.close(one.load)
            one.load = None
        if not await self._has_room(one):
            await board.back(one)
            # What it gave back just now it had found as free.
            self._full_at = board.time
            return False
        self._report(one, found)
        if found.mamba_branching_seqlen is not None:
            one.marks.add(found.mamba_branching_seqlen)
        if found.host_hit_length and not states and one.may_load:
            await self._load(one, found)
        return True

    async def _load(self, one: Sequence, found: MatchResult) -> None:
        """Begin to load what the host has more of a request; its slots are known at once."""
        board = self._board
        load = await made(board.cache.load_back(found, one.req))
        one.take_prefix(load.device_indices)
        if not load.loaded:
            return
        one.load, one.load_began, one.loaded = load, board.now(), load.loaded
        report = one.report
        report.cached_device = load.length - load.loaded
        report.cached_storage = min(one.fetched, load.loaded)
        report.cached_host = load.loaded - report.cached_storage
        if found.full_miss_reason is not None:
            report.miss_reason = found.full_miss_reason.value
        board.tell("loading", one)

    async def _begin_load(self, one: Sequence) -> bool:
        """Begin to load for a request whose match will copy a state; return whether it waits."""
        board = self._board
        key = one.key
        assert key is not None
        found = await made(board.cache.match_prefix(MatchPrefixParams(key)))
        if not found.host_hit_length or not await self._has_room(one):
            return False
        load = await made(board.cache.load_back(found))
        one.load, one.load_began = load, board.now()
        if not load.loaded:
            return False
        one.stage = Stage.LOADING
        board.tell("loading", one)
        self._waiters.start_soon(self._await_load, one, load)
        return True

    async def _await_load(self, one: Sequence, load: LoadBack) -> None:
        board = self._board
        try:
            await made(load.wait())
            failed = load.failed
        except RadixtideError as error:
            logger.debug("a load for request %s was not answered: %s", one.rid, error)
            failed = True
        if one.load is not load:
            return
        one.report.load_s = board.now() - one.load_began
        if failed:
            board.stats.lost_loads += 1
            one.may_load = False
        else:
            one.loaded = load.loaded
        if one.stage is Stage.LOADING:
            one.stage = Stage.WAITING
        self.look_anew()
        board.wake.set()

    def _report(self, one: Sequence, found: MatchResult) -> None:
        report = one.report
        if report.ttft_s is not None:
            return
        cached = len(found.device_indices)
        loaded = min(one.loaded, cached)
        report.cached_storage = min(one.fetched, loaded)
        report.cached_host = loaded - report.cached_storage
        report.cached_device = cached - loaded
        report.miss_reason = found.miss_reason.value
        report.full_miss_reason = (
            None if found.full_miss_reason is None else found.full_miss_reason.value
        )

    async def _has_room(self, one: Sequence) -> bool:
        """Return whether there is room for a request beside those that run.

        For all of its prompt, for what is missing of the prompts of the others, and for some tokens
        more of each. With nobody else, who runs or has loaded something, there is. Where nobody
        runs, those behind it in the order give up what was loaded for them, the last one first.
        """
        board = self._board
        while not await self._fits(one):
            if board.running or not await board.let_go_of_load(behind=one):
                return False
        return True

    async def _fits(self, one: Sequence) -> bool:
        board = self._board
        shape, running = board.shape, board.running
        if not running and all(other is one or other.load is None for other in board.waiting):
            return True
        pools = (await board.cache.stats()).pools
        reserve = (len(running) + 1) * board.config.reserve_tokens
        everyone = [*running, one]
        wanted = {ComponentType.FULL: reserve + sum(_missing(each) for each in everyone)}
        if shape.window is not None:
            most = min(shape.chunk_max, board.config.chunk_tokens)
            parts = (min(_missing(each), most) for each in everyone)
            wanted[ComponentType.SWA] = reserve + sum(parts)
        if shape.states:
            # One more: what a request leaves in the tree has to be replaced.
            wanted[ComponentType.MAMBA] = 1 + sum(each.missing_states for each in everyone)
        for name, slots in wanted.items():
            pool = pools[name]["device"]
            if pool.free + pool.evictable < slots:
                return False
        return True


def _missing(one: Sequence) -> int:
    return one.missing_slots(one.length + 1)


__all__ = ("Admission",)
