"""The loop: admit, compute, cache, again.

One task runs it, and makes all calls of the cache that concern requests; so there is nothing for
them to race with. A *step* is:

1. Requests whose clients want them to end are ended.
2. A plan is made: which request computes which tokens next. Those that decode come first, one token
   each; what is left of ``step_tokens`` goes to chunks of prompts, in order of admission. Slots are
   allocated for just these tokens. Where there are none, the youngest request is retracted: what it
   has computed stays in the tree, where it can be evicted now, and it waits to be admitted again.
3. The forward pass runs in a worker thread, and draws the next token of each request that has one.
   Meanwhile the loop is free: clients read and leave, and requests that wait are fetched from
   storage, matched, loaded from the host and admitted, as if nothing else went on. What is part of
   the pass (``computing``) is left alone.
4. The pass is over. Tokens go to their clients at once. Then what was computed goes to the tree:
   a chunk with ``cache_unfinished_req``, so that others can use it from now on, all of a request
   that is done with ``cache_finished_req``. Whoever was to end meanwhile is ended now.

What may happen, and what it costs:

* **A client leaves** (``aclose``, a cancelled reader). The request is noted, and the scheduler is
  woken. If it waits or runs outside the pass it is aborted in the cache at once; if the pass
  computes it, right after that, as its slots are being written until then. A fetch ends with its
  request; a load goes on for others.
* **No slots**. Whoever decodes retracts the youngest, even itself. A chunk of a prompt waits for
  its next turn as long as anything else can be computed. A request that is alone and still finds
  none fails, and is tried again ``retries_max`` times: pins and copies may hold what it lacks.
* **A load fails** (``Outcome.lost``, or seen at its end). What was computed on it counts for
  nothing: the request is aborted in the cache and served anew, and does not load again.
* **The pass fails**. Nobody knows which row it was: all its requests are served anew, one at a time
  until each has got through; so only the one that fails again and again ends with an error.
* **A call of the cache fails** or is not answered: the request is aborted in the cache, until that
  is answered, and served anew.
* **Anything else**: a fault in this program. All requests end with an error, what they hold is
  given back, and the engine refuses new ones. Nobody hangs.

A request that fails more than ``retries_max`` times without progress in between ends with an error.
What it has said so far is kept through all of this, and never said twice.

Chunks end where states are worth keeping: at multiples of the state pool's grid, and before the
last few tokens of a prompt, so that its longest cacheable prefix has a state. While it decodes, a
request gives back the slots of windows that it has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import anyio

from radixtide.configs.errors import CacheClosed, RadixtideError
from radixtide.serving.admission import Admission
from radixtide.serving.board import Board
from radixtide.serving.calls import made
from radixtide.serving.errors import EngineFailed
from radixtide.serving.planning import Planner, Work
from radixtide.serving.rows import Outcome, Row
from radixtide.serving.sampling import Token
from radixtide.serving.sequence import Sequence

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Computes rows: :class:`radixtide.serving.runner.ModelRunner`."""

    def forward(self, rows: Seq[Row]) -> list[Outcome]:
        """Compute rows, in a worker thread; return their outcomes in the same order."""


class Pass:
    """A forward pass that goes on: its outcomes and tokens, or its error, when it is over."""

    def __init__(self, works: list[Work]) -> None:
        self.works = works
        self.outcomes: list[Outcome] = []
        self.drawn: list[Token | None] = []
        self.error: BaseException | None = None
        self.over = False

    def run(self, runner: Runner) -> None:
        """Run in the worker thread; whatever the model raises there is the failure of this pass."""
        try:
            self._compute(runner)
        except BaseException as error:  # noqa: BLE001 - nobody interrupts this thread
            self.error = error

    def _compute(self, runner: Runner) -> None:
        self.outcomes = runner.forward([work.row for work in self.works])
        for work, outcome in zip(self.works, self.outcomes, strict=True):
            drawn = None
            if work.samples and not outcome.lost:
                assert outcome.logits is not None
                one = work.one
                drawn = one.sampler.draw(outcome.logits, one.length - one.prompt_len)
            self.drawn.append(drawn)


class Scheduler:
    """Serves the requests of a board with a runner, until it is told to stop."""

    def __init__(self, board: Board, runner: Runner) -> None:
        self._board = board
        self._runner = runner
        self._planner = Planner(board)
        # One thread, always the same; it starts with the first pass.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="radixtide-model")
        self.stopping = False
        self.failure: BaseException | None = None

    def stop(self) -> None:
        """Let :meth:`run` end after the pass that goes on."""
        self.stopping = True
        self._board.wake.set()

    async def run(self) -> None:
        """Serve until :meth:`stop`; then, or after a failure, end all requests."""
        try:
            async with anyio.create_task_group() as waiters:
                self._admission = Admission(self._board, waiters)
                while not self.stopping:
                    await self._step()
                waiters.cancel_scope.cancel()
        except Exception as error:
            self.failure = _plain(error)
            logger.exception("the scheduler failed", exc_info=self.failure)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await self._end_all()
            self._thread.shutdown(wait=False)

    async def _end_all(self) -> None:
        board = self._board
        board.computing.clear()
        failed = self.failure is not None and isinstance(self.failure, Exception)
        for one in board.all():
            reason = None
            if failed:
                reason = EngineFailed(
                    f"the scheduler failed ({type(self.failure).__name__}: {self.failure}); "
                    "open a new engine"
                )
                reason.__cause__ = self.failure
            try:
                await board.end(one, "error" if failed else "abort", reason)
            except Exception:
                logger.exception("request %s could not be given back", one.rid)
                board.forget(one, "error", reason)

    # -- a step -----------------------------------------------------------------------------------

    async def _step(self) -> None:
        board = self._board
        await self._end_asked()
        works = await self._planner.plan()
        if works:
            await self._settle(await self._compute(works))
            return
        board.wake.clear()
        time, running = board.time, len(board.running)
        await self._end_asked()
        await self._admission.look()
        if board.running and (len(board.running) > running or board.time > time):
            return
        if board.idle:
            await board.wake.wait()
            return
        # Somebody waits for what nobody may tell of.
        with anyio.move_on_after(board.config.poll_s):
            await board.wake.wait()
        self._admission.look_anew()

    async def _end_asked(self) -> None:
        """End the requests whose clients want that, but for those that are being computed."""
        board = self._board
        for one in board.all():
            if one.channel.wish is not None and one not in board.computing:
                await board.end(one, one.channel.wish)

    async def _compute(self, works: list[Work]) -> Pass:
        """Run a forward pass, and all else beside it."""
        board = self._board
        current = Pass(works)
        board.computing = {work.one for work in works}
        began = board.now()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._forward, current)
                while not current.over:
                    board.wake.clear()
                    await self._end_asked()
                    await self._admission.look()
                    if not current.over:
                        await board.wake.wait()
        finally:
            board.computing = set()
        board.stats.steps += 1
        board.stats.rows += len(works)
        board.stats.step_s.add(board.now() - began)
        return current

    async def _forward(self, current: Pass) -> None:
        try:
            loop = asyncio.get_running_loop()
            future = loop.run_in_executor(self._thread, current.run, self._runner)
            # Its slots are being written to until it is over, whatever becomes of the scheduler.
            with anyio.CancelScope(shield=True):
                await future
        finally:
            current.over = True
            self._board.wake.set()

    # -- after a pass -----------------------------------------------------------------------------

    async def _settle(self, current: Pass) -> None:
        """Hand out tokens, then let the cache have what was computed."""
        board = self._board
        if current.error is not None:
            await self._failed(current)
            return
        counted: list[tuple[Work, str | None]] = []
        for work, outcome, drawn in zip(
            current.works, current.outcomes, current.drawn, strict=True
        ):
            if outcome.lost or not await self._load_held(work.one):
                await self._planner.lost(work.one)
                continue
            counted.append((work, self._count(work, drawn)))
        for work, reason in counted:
            one = work.one
            if one.channel.wish is not None:
                await board.end(one, one.channel.wish)
            elif reason == "stop":
                await board.end(one, "stop")
            elif reason == "length":
                await board.end(one, "length")
            else:
                await self._keep(work)

    async def _failed(self, current: Pass) -> None:
        board = self._board
        error = current.error
        assert error is not None
        board.stats.failed_steps += 1
        logger.warning("a forward pass of %d rows failed", len(current.works), exc_info=error)
        for work in current.works:
            work.one.suspect = True
            if work.one.channel.wish is not None:
                await board.end(work.one, work.one.channel.wish)
            else:
                await board.fail(work.one, error)

    async def _load_held(self, one: Sequence) -> bool:
        """Return whether the load that a row stood on, where it did, brought what it should."""
        board = self._board
        load = one.load
        if load is None:
            return True
        try:
            await made(load.wait())
        except CacheClosed:
            raise
        except RadixtideError:
            return False
        one.load = None
        one.report.load_s = board.now() - one.load_began
        return not load.failed

    def _count(self, work: Work, drawn: Token | None) -> str | None:
        """Note what a row has computed, and give its client the token; return how that ends it."""
        board = self._board
        one, report, stats = work.one, work.one.report, board.stats
        one.computed = work.end
        one.retries = 0
        one.starves_since = None
        one.suspect = False
        if work.keeps:
            one.req.note_state(work.end)
        if report.ttft_s is None:
            report.computed_tokens += work.end - work.start
            stats.computed_tokens += work.end - work.start
        elif work.prefill:
            report.recomputed_tokens += work.end - work.start
            stats.computed_tokens += work.end - work.start
        if drawn is None or one.channel.wish is not None:
            return None
        if report.ttft_s is None:
            report.ttft_s = board.now() - one.arrived_at
            stats.ttft_s.add(report.ttft_s)
            stats.prompt_tokens += report.prompt_tokens
            stats.cached_device += report.cached_device
            stats.cached_host += report.cached_host
            stats.cached_storage += report.cached_storage
            board.tell("first_token", one)
        if drawn.id in one.stops:
            return "stop"
        one.say(drawn.id)
        stats.output_tokens += 1
        one.channel.put(drawn)
        return "length" if one.length >= one.limit else None

    async def _keep(self, work: Work) -> None:
        """Let the cache have a chunk; of a request that decodes, give back what it has left."""
        board = self._board
        one = work.one
        req, shape = one.req, board.shape
        req.kv_committed_len = one.computed
        try:
            if work.prefill:
                await made(board.cache.cache_unfinished_req(req, chunked=True))
                one.see_cached()
                board.time += 1
            elif shape.window is not None and one.computed % shape.page == 0:
                await self._leave_window(one)
        except CacheClosed:
            raise
        except RadixtideError as error:
            await board.fail(one, error)

    async def _leave_window(self, one: Sequence) -> None:
        """Give back the window slots that no token to come sees."""
        board = self._board
        shape, req = board.shape, one.req
        await made(board.cache.release_window(req, one.computed))
        if req.lock is not None and one.computed - shape.reach >= one.protected > one.left:
            await made(board.cache.dec_swa_lock_only(req.lock))
            one.left = one.protected


def _plain(error: Exception) -> Exception:
    """Return the one error of a group of one, as a task group raises it."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


__all__ = ("Pass", "Runner", "Scheduler")
