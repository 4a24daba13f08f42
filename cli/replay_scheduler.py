"""The default mode: a scheduler with continuous batching, in virtual time.

Virtual time is a whole number of nanoseconds. It jumps to the next arrival when there is nothing to
do, and passes by the cost of a step otherwise. A step is what an engine does between two decisions:

1. every decoding request grows by up to ``decode_quantum`` tokens (``allocate``); when the pool has
   no slot left, the youngest running request is retracted: what it computed goes to the tree
   (``cache_finished_req``), and it queues again, in front;
2. waiting requests are admitted while a slot in the batch, the token budget and the pool allow:
   ``match_prefix`` with a lock, then ``allocate`` for the rest of the prompt;
3. prompts are computed in chunks within the token budget;
4. virtual time passes;
5. chunks are handed to the tree (``cache_unfinished_req``), clients that leave are let go
   (``abort_req``), requests that are complete end (``cache_finished_req``).

Where there are tiers below the device, what storage has of a request that waits is fetched, and
what its match finds on the host is loaded before it is admitted; see
:mod:`radixtide.cli.replay_loading`.

With a sliding window, slots are taken for one chunk at a time: a window's pool is much smaller than
a long prompt, and a chunk's slots go back when the next one has a window of its own. What else
windows and states ask for is told in :mod:`radixtide.cli.replay_engine`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from radixtide.cli.replay_costs import Limits, step_ns
from radixtide.cli.replay_engine import Engine, branch_point, states_to_take
from radixtide.cli.replay_job import Arrivals, Job, abort_point
from radixtide.cli.replay_loading import Loading
from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_source import TraceRequest
from radixtide.cli.replay_tiers import Looked, Tiers
from radixtide.components.api import AllocateParams, MatchPrefixParams
from radixtide.components.request import Request
from radixtide.configs.errors import OutOfSlots

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache
    from radixtide.actors.tier_handles import LoadBack


class Scheduler:
    """Serve a trace with many requests under way at once; see the module's docstring."""

    def __init__(
        self,
        cache: UnifiedRadixCache,
        block: int,
        limits: Limits,
        recording: Recording,
        tiers: Tiers,
    ) -> None:
        pools = cache.config.pools
        self._cache = cache
        self._block = block
        self._limits = limits
        self._recording = recording
        self._tally = recording.tally
        self._page = cache.page_size
        self._fits = min(
            pools.full.size // self._page * self._page, cache.config.limits.key_units_max
        )
        self._max_running = min(limits.max_running, pools.requests.max_requests)
        self._row_len = pools.requests.max_context
        self._tiers = tiers
        self._loading = Loading(cache, tiers)
        self._engine = Engine(cache, recording.calls, tiers)
        shape = self._engine.shape
        self._chunk = limits.chunk
        if shape.window and pools.swa is not None:
            # The window under the lock stays.
            room = pools.swa.size - shape.window - shape.window_slack
            self._chunk = max(min(limits.chunk, room), 1)
        self._waiting: deque[Job] = deque()
        self._running: dict[int, Job] = {}
        """By number, in the order of admission."""
        self._entering: Job | None = None
        self._gate_open = True
        """False after the pool ran out, until something ends: trying again would only churn."""
        self._now_ns = 0
        self._arrivals = Arrivals(())
        self._released: deque[TraceRequest] = deque()
        """Requests whose predecessor ended; they are queued before the next step."""

    async def run(self, requests: Iterable[TraceRequest]) -> None:
        """Serve all of `requests`, given in order of arrival."""
        self._arrivals = Arrivals(requests)
        while True:
            for request in self._arrivals.due(self._now_ns):
                self._queue(request)
            while self._released:
                self._queue(self._released.popleft())
            if self._running or self._waiting or self._loading:
                await self._step()
                waiting = len(self._waiting) + len(self._loading)
                await self._recording.step(self._cache, self._now_ns, len(self._running), waiting)
            elif self._arrivals.next_ns is not None:
                self._now_ns = max(self._now_ns, self._arrivals.next_ns)
            else:
                return

    async def abandon(self) -> None:
        """Give back what all requests under way hold, after a cancellation."""
        under_way = [*self._running.values(), *([self._entering] if self._entering else [])]
        self._running.clear()
        self._tally.aborted += await self._loading.abandon()
        for job in under_way:
            self._tally.aborted += 1
            if job.req is not None:
                await self._cache.abort_req(job.req)

    # Arrival and end

    def _queue(self, request: TraceRequest) -> None:
        """Put a request that arrived in line, or refuse it if it could never be served."""
        length = request.input_length
        self._tally.count_prompt(-(-length // self._block), length)
        if -(-(length + request.output_length) // self._page) * self._page > self._fits:
            self._refuse(request)
            return
        limits = self._limits
        self._waiting.append(Job(request, abort_point(request, limits.abort_ratio, limits.seed)))

    def _refuse(self, request: TraceRequest) -> None:
        self._tally.refused += 1
        self._ended(request)

    def _ended(self, request: TraceRequest) -> None:
        """Open the gate and release those that waited for `request`."""
        self._gate_open = True
        self._released.extend(self._arrivals.ended(request))

    def _leave(self, job: Job) -> Request:
        """Take `job` out of the batch; the caller tells the cache, which frees the row too."""
        del self._running[job.source.number]
        req = job.req
        assert req is not None
        job.leave()
        return req

    # One step

    async def _step(self) -> None:
        await self._tiers.come(self._now_ns)
        grown = await self._grow()
        budget = self._limits.token_budget - sum(tokens for _, tokens in grown)
        await self._admit(budget)
        chunks = await self._provided(self._chunks(budget))
        # Whoever was retracted for the sake of an older prompt's chunk has not grown.
        grown = [(job, tokens) for job, tokens in grown if job.req is not None]
        if not self._running and self._loading:
            self._now_ns = await self._tiers.await_event(self._now_ns, self._arrivals.next_ns)
            return
        self._now_ns += step_ns(
            sum(tokens for _, tokens in chunks),
            len(grown),
            max((tokens for _, tokens in grown), default=0),
        )
        for job, tokens in chunks:
            await self._commit_chunk(job, tokens)
        for job, tokens in grown:
            await self._commit_growth(job, tokens)
        for job in list(self._running.values()):
            if not job.to_prefill:
                self._note_first_token(job)
                if not job.left:
                    await self._finish(job)

    async def _grow(self) -> list[tuple[Job, int]]:
        """Take slots for the next tokens of every decoding request, oldest first."""
        grown: list[tuple[Job, int]] = []
        for job in list(self._running.values()):
            tokens = min(self._limits.decode_quantum, job.left)
            # A job that was retracted to make room for an older one has no request any more.
            while job.req is not None and not job.to_prefill and tokens:
                if await self._take(job, tokens):
                    grown.append((job, tokens))
                    break
        return grown

    async def _provided(self, chunks: list[tuple[Job, int]]) -> list[tuple[Job, int]]:
        """Take the slots of chunks that have none yet; return the chunks that can be computed."""
        provided: list[tuple[Job, int]] = []
        for job, tokens in chunks:
            while job.req is not None:
                missing = job.committed + tokens - job.provided
                if missing <= 0 or await self._take(job, missing):
                    provided.append((job, tokens))
                    break
        # One that was taken may have been retracted for the sake of an older one since.
        return [(job, tokens) for job, tokens in provided if job.req is not None]

    async def _take(self, job: Job, tokens: int) -> bool:
        """Take slots for `job`; if there are none, retract the youngest and return False."""
        try:
            await self._allocate(job, tokens)
        except OutOfSlots:
            if await self._gets_room():
                return False
            if len(self._running) == 1:
                raise  # it fits in an empty pool: somebody else holds slots
            await self._retract()
            return False
        return True

    async def _gets_room(self) -> bool:
        """Wait for a copy that keeps slots, or let go of a load; return whether there was one."""
        later = await self._tiers.progress(self._now_ns)
        if later is not None:
            self._now_ns = later
            return True
        given_up = await self._loading.give_up_newest()
        if given_up is None:
            return False
        self._waiting.appendleft(given_up)
        self._gate_open = False
        return True

    async def _admit(self, budget: int) -> None:
        """Admit waiting requests, first come first served."""
        await self._loading.fetch_ahead(self._waiting)
        while (coming := await self._loading.arrived()) is not None:
            async with coming.handle:
                entered = await self._enter(coming.job, coming.params, coming.handle)
            if not await self._admitted(coming.job, entered):
                break
        pending = sum(job.to_prefill for job in self._running.values())
        while (
            self._waiting
            and len(self._running) + len(self._loading) < self._max_running
            and pending < budget
            and (self._gate_open or not (self._running or self._loading))
        ):
            job = self._waiting.popleft()
            params = await self._look_up(job)
            if await self._loading.begin(job, params):
                continue
            entered = await self._enter(job, params)
            if not await self._admitted(job, entered):
                break
            pending += job.to_prefill

    async def _admitted(self, job: Job, entered: bool) -> bool:
        """Put `job` back in line unless it has entered; return whether others may try."""
        if entered:
            return True
        if not self._running and not self._loading and not await self._gets_room():
            self._refuse(job.source)
            return True
        self._waiting.appendleft(job)
        self._gate_open = False
        return False

    async def _look_up(self, job: Job) -> MatchPrefixParams:
        """Return how `job` will match, when storage has given what it could."""
        req = job.enter()
        job.fetched += await self._loading.fetched(job)
        return MatchPrefixParams(
            key=req.key(), req=req, lock=True, cow_mamba=self._engine.shape.states > 0
        )

    async def _enter(
        self, job: Job, params: MatchPrefixParams, handle: LoadBack | None = None
    ) -> bool:
        """Match `job` and take its slots; return False, holding nothing, if there are too few.

        `handle`: a load of it that is over.
        """
        cache, calls, shape = self._cache, self._recording.calls, self._engine.shape
        job.req = req = params.req
        assert req is not None
        self._entering = job
        if job.total <= self._row_len:
            req.req_pool_idx = cache.req_to_token_pool.alloc()
        if handle is None:
            looked = await self._tiers.look_up(params, job.fetched)
        else:
            looked = await self._tiers.taken(params, handle, job.fetched)
        await self._check(job, req, looked)
        job.committed = job.provided = looked.found.length
        job.border = branch_point(shape, looked.match)
        tokens = job.next_chunk(self._chunk) if shape.window else job.to_prefill
        states = states_to_take(shape, req)
        try:
            if tokens or states:
                await self._allocate(job, tokens, states)
        except OutOfSlots:
            await calls.timed("abort_req", cache.abort_req(req))
            self._entering = job.req = None
            self._tally.deferred += 1
            return False
        self._entering = None
        self._running[job.source.number] = job
        if not job.counted:
            job.counted = True
            length = job.source.input_length
            self._tally.count_found(looked.found, length, self._block, self._page)
        return True

    async def _check(self, job: Job, req: Request, looked: Looked) -> None:
        """Check the bytes of what was found, where there are any, and begin the job's row."""
        marks = self._tiers.marks(job.all_tokens()) if self._tiers.content else None
        what, length = f"request {job.source.number}", looked.found.length
        await self._tiers.check(looked, marks, what)
        self._tiers.check_state(req.mamba_pool_idx, marks, length, what)
        job.keep_row(marks, looked.row)

    def _chunks(self, budget: int) -> list[tuple[Job, int]]:
        """Share `budget` among the prompts to compute, first come first served."""
        chunks: list[tuple[Job, int]] = []
        for job in self._running.values():
            tokens = job.next_chunk(min(self._chunk, budget))
            if tokens > 0:
                chunks.append((job, tokens))
                budget -= tokens
        return chunks

    async def _commit_chunk(self, job: Job, tokens: int) -> None:
        """Show a computed chunk of the prompt to the tree, or let the client go."""
        req = job.req
        assert req is not None
        if job.abort_at is not None and job.committed + tokens > job.abort_at:
            await self._abort(job)
            return
        start, job.committed = job.committed, job.committed + tokens
        req.kv_committed_len = job.committed
        self._tally.prefilled_tokens += tokens
        await self._tiers.write(job.row, job.marks, start, job.committed)
        await self._engine.computed(req, start, job.committed, job.marks)
        if job.to_prefill or job.left:
            await self._recording.calls.timed(
                "cache_unfinished_req",
                self._cache.cache_unfinished_req(req, chunked=job.to_prefill > 0),
            )
            if req.prefix_indices is not None:
                job.write_row(0, req.prefix_indices.numpy())

    async def _commit_growth(self, job: Job, tokens: int) -> None:
        """Note generated tokens, or let the client go."""
        req = job.req
        assert req is not None
        if job.abort_at is not None and job.committed + tokens > job.abort_at:
            await self._abort(job)
            return
        start = job.committed
        job.grow(req, tokens)
        self._tally.output_tokens += tokens
        req.kv_committed_len = job.committed
        await self._tiers.write(job.row, job.marks, start, job.committed)
        await self._engine.computed(req, start, job.committed, job.marks)
        if not job.let_go:
            job.let_go = await self._engine.passed(req)

    async def _allocate(self, job: Job, tokens: int, states: int = 0) -> None:
        taken = await self._recording.calls.timed(
            "allocate",
            self._cache.allocate(AllocateParams(num_tokens=tokens, mamba_num=states, req=job.req)),
        )
        job.write_row(job.provided, taken.indices.numpy())
        job.provided += tokens
        self._tally.count_evicted(taken.evicted)

    # Three ways to leave

    async def _finish(self, job: Job) -> None:
        req = self._leave(job)
        req.kv_committed_len = job.committed
        self._tally.completed += 1
        self._recording.whole.add(self._now_ns - job.source.arrival_ns)
        await self._recording.calls.timed("cache_finished_req", self._cache.cache_finished_req(req))
        self._ended(job.source)

    async def _abort(self, job: Job) -> None:
        req = self._leave(job)
        self._tally.aborted += 1
        await self._recording.calls.timed("abort_req", self._cache.abort_req(req))
        self._ended(job.source)

    async def _retract(self) -> None:
        """Take the youngest request out of the batch; the tree keeps what it computed."""
        job = next(reversed(self._running.values()))
        req = self._leave(job)
        req.kv_committed_len = job.committed
        self._tally.retracted += 1
        self._waiting.appendleft(job)
        await self._recording.calls.timed("cache_finished_req", self._cache.cache_finished_req(req))
        self._gate_open = False

    def _note_first_token(self, job: Job) -> None:
        if not job.has_answered:
            job.has_answered = True
            self._recording.first_token.add(self._now_ns - job.source.arrival_ns)


__all__ = ("Limits", "Scheduler", "step_ns")
