"""A client that lives with faults: it serves requests one after the other, and never loses one.

What it does when a call fails is what docs/guarantees.md asks of a scheduler. A call that takes has
no effect when it failed, so the client makes it again, a few times. After a call that gives, or
when that does not help, it aborts the request until it hears that this is done, and begins anew or
goes on to the next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeVar

from radixtide.cli.replay_bytes import WrongBytes
from radixtide.cli.replay_costs import Limits
from radixtide.cli.replay_engine import Engine, branch_point, states_to_take
from radixtide.cli.replay_job import Job, abort_point
from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_source import TraceRequest
from radixtide.cli.replay_tiers import Looked, Tiers
from radixtide.components.api import AllocateParams, AllocateResult, MatchPrefixParams
from radixtide.components.request import Request
from radixtide.configs.errors import CacheClosed, OutOfSlots, RadixtideError
from radixtide.simulation.injector import CANCELLED

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache

Answer = TypeVar("Answer")

TRIES: Final = 3
"""Times a call that takes is made before its request is given up."""
LIVES: Final = 50
"""Times a request begins anew before it is refused."""
PAUSE_S: Final = 0.005
"""Seconds after which what was refused is tried again."""


class Trouble(Exception):
    """A fault that the request at hand does not survive. ``name``: what it was."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class Room:
    """How many clients have a request under way: fewer where the pools run short.

    ``places``: at most so many.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._limit = places
        self._running = 0
        self._changed = asyncio.Event()

    async def enter(self) -> None:
        """Wait for a place."""
        while self._running >= self._limit:
            self._changed.clear()
            await self._changed.wait()
        self._running += 1

    def leave(self, *, short: bool = False) -> None:
        """Give a place back; `short`: because the pools had no room for one more."""
        self._running -= 1
        if short:
            self._limit = max(self._running, 1)
        else:
            self._limit = min(self._limit + 1, self._places)
        self._changed.set()


class Client:
    """One of many that share a cache.

    ``room``: theirs together. ``troubles``: counts, by name, the errors that calls ended with.
    """

    def __init__(
        self,
        cache: UnifiedRadixCache,
        block: int,
        limits: Limits,
        recording: Recording,
        tiers: Tiers,
        room: Room,
        troubles: Counter[str],
    ) -> None:
        pools = cache.config.pools
        self._cache = cache
        self._block = block
        self._limits = limits
        self._calls = recording.calls
        self._tally = recording.tally
        self._tiers = tiers
        self._engine = Engine(cache, recording.calls, tiers)
        self._room = room
        self._troubles = troubles
        self._page = cache.page_size
        self._row_len = pools.requests.max_context
        self._fits = min(
            pools.full.size // self._page * self._page, cache.config.limits.key_units_max
        )
        self._chunk = limits.chunk
        if self._engine.shape.window and pools.swa is not None:
            slots = pools.swa.size - self._engine.shape.window - self._engine.shape.window_slack
            self._chunk = max(min(limits.chunk, slots), 1)

    async def serve(self, request: TraceRequest) -> None:
        """Serve a request to its end: completed, aborted by its client, or refused.

        Raises:
            WrongBytes: what the cache handed out is not what was written.
            CacheClosed: the cache was closed.
            asyncio.CancelledError: the caller's own; the request is aborted before.
        """
        length = request.input_length
        self._tally.count_prompt(-(-length // self._block), length)
        if -(-(length + request.output_length) // self._page) * self._page > self._fits:
            self._tally.refused += 1
            return
        job = Job(request, abort_point(request, self._limits.abort_ratio, self._limits.seed))
        for _ in range(LIVES):
            await self._room.enter()
            short = False
            try:
                await self._live(job)
            except Trouble:
                await self._abort(job)
            except OutOfSlots:
                # Others hold them: it goes back in line, as a scheduler would have it.
                short = True
                self._tally.retracted += 1
                await self._abort(job)
            except BaseException:
                await self._abort(job)
                raise
            else:
                return
            finally:
                self._room.leave(short=short)
        self._tally.refused += 1

    # A request's life

    async def _live(self, job: Job) -> None:
        shape = self._engine.shape
        req = job.req = job.enter()
        if job.total <= self._row_len:
            req.req_pool_idx = self._cache.req_to_token_pool.alloc()
        await self._enter(job, req)
        states = states_to_take(shape, req)
        while job.to_prefill or states:
            tokens = job.next_chunk(self._chunk)
            await self._allocate(job, req, job.committed + tokens - job.provided, states)
            states = 0
            if self._leaves(job, tokens):
                await self._leave(job)
                return
            if tokens:
                await self._compute(job, req, tokens)
        while job.left:
            tokens = min(self._limits.decode_quantum, job.left)
            await self._allocate(job, req, tokens)
            if self._leaves(job, tokens):
                await self._leave(job)
                return
            await self._decode(job, req, tokens)
            await asyncio.sleep(0)
        req.kv_committed_len = job.committed
        await self._made("cache_finished_req", lambda: self._cache.cache_finished_req(req))
        self._tally.completed += 1
        job.leave()

    async def _enter(self, job: Job, req: Request) -> None:
        """Find what is cached of a prompt, on whichever tier, and check it."""
        shape, tiers = self._engine.shape, self._tiers
        key = req.key()
        if tiers.has_storage:
            job.fetched += await self._taken("prefetch", lambda: tiers.fetch(key))
        params = MatchPrefixParams(key=key, req=req, lock=True, cow_mamba=shape.states > 0)
        # A look-up is several calls, some of which have been answered: it is not made again.
        looked = await self._made("look_up", lambda: tiers.look_up(params, job.fetched))
        await self._check(job, req, looked)
        job.committed = job.provided = looked.found.length
        job.border = branch_point(shape, looked.match)
        if not job.counted:
            job.counted = True
            length = job.source.input_length
            self._tally.count_found(looked.found, length, self._block, self._page)

    async def _check(self, job: Job, req: Request, looked: Looked) -> None:
        tiers = self._tiers
        marks = tiers.marks(job.all_tokens()) if tiers.content else None
        what, length = f"request {job.source.number}", looked.found.length
        await self._taken("component_slots", lambda: tiers.check(looked, marks, what))
        tiers.check_state(req.mamba_pool_idx, marks, length, what)
        job.keep_row(marks, looked.row)

    async def _allocate(self, job: Job, req: Request, tokens: int, states: int = 0) -> None:
        if tokens <= 0 and not states:
            return
        params = AllocateParams(num_tokens=max(tokens, 0), mamba_num=states, req=req)

        async def take() -> AllocateResult:
            return await self._calls.timed("allocate", self._cache.allocate(params))

        taken = await self._taken("allocate", take)
        job.write_row(job.provided, taken.indices.numpy())
        job.provided += max(tokens, 0)
        self._tally.count_evicted(taken.evicted)

    async def _compute(self, job: Job, req: Request, tokens: int) -> None:
        start, job.committed = job.committed, job.committed + tokens
        req.kv_committed_len = job.committed
        self._tally.prefilled_tokens += tokens
        await self._written(job, req, start)
        if job.to_prefill or job.left:
            more = job.to_prefill > 0
            await self._made(
                "cache_unfinished_req",
                lambda: self._calls.timed(
                    "cache_unfinished_req", self._cache.cache_unfinished_req(req, chunked=more)
                ),
            )
            if req.prefix_indices is not None:
                job.write_row(0, req.prefix_indices.numpy())

    async def _decode(self, job: Job, req: Request, tokens: int) -> None:
        start = job.committed
        job.grow(req, tokens)
        self._tally.output_tokens += tokens
        req.kv_committed_len = job.committed
        await self._written(job, req, start)
        if not job.let_go:
            job.let_go = await self._made("dec_swa_lock_only", lambda: self._engine.passed(req))

    async def _written(self, job: Job, req: Request, start: int) -> None:
        """Write what was computed from `start` on, and do an engine's duties."""
        tiers = self._tiers
        await self._taken(
            "component_slots", lambda: tiers.write(job.row, job.marks, start, job.committed)
        )
        await self._made(
            "release_window",
            lambda: self._engine.computed(req, start, job.committed, job.marks),
        )

    def _leaves(self, job: Job, tokens: int) -> bool:
        """Return whether the client is gone before so many more tokens are there."""
        return job.abort_at is not None and job.committed + tokens > job.abort_at

    async def _leave(self, job: Job) -> None:
        self._tally.aborted += 1
        await self._abort(job)

    async def _abort(self, job: Job) -> None:
        """Abort a request until it is heard that it is done; that is safe at any stage."""
        req = job.req
        if req is None:
            return
        job.leave()
        while True:
            try:
                await self._made("abort_req", lambda: self._cache.abort_req(req))
            except Trouble:
                await asyncio.sleep(PAUSE_S)
            except CacheClosed:
                return
            else:
                return

    # Calls

    async def _taken(self, name: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Make a call that takes; again, if a fault ended it without effect."""
        for _ in range(TRIES - 1):
            try:
                return await self._made(name, call)
            except Trouble:
                await asyncio.sleep(PAUSE_S)
        return await self._made(name, call)

    async def _made(self, name: str, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Make a call once. Raises Trouble where a fault ended it, else what it raises."""
        try:
            return await call()
        except (OutOfSlots, WrongBytes, CacheClosed):
            raise
        except RadixtideError as error:
            trouble = type(error).__name__
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if error.args != (CANCELLED,) or task is None:
                raise
            # A plan of faults did it: no one wants this task to end.
            task.uncancel()
            trouble = "Cancelled"
        self._troubles[f"{name}: {trouble}"] += 1
        raise Trouble(trouble)


__all__ = ("Client", "Room")
