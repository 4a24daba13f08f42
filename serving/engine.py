"""The engine: a model, a cache and a scheduler behind one call."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, Final, Protocol, Self

import anyio
import numpy as np
import numpy.typing as npt

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.components.api import AuditReport, PinResult
from radixtide.configs.errors import InvalidInput
from radixtide.configs.schema import CacheConfig
from radixtide.serving.board import Board
from radixtide.serving.config import EngineConfig
from radixtide.serving.errors import EngineFailed, Overloaded
from radixtide.serving.generation import Channel, Generation
from radixtide.serving.params import SamplingParams, is_text, is_whole
from radixtide.serving.report import Report
from radixtide.serving.scheduler import Runner, Scheduler
from radixtide.serving.sequence import Sequence
from radixtide.serving.statistics import EngineStats, Subscription
from radixtide.tree.key import RadixKey

TokenIds = Collection[int] | npt.NDArray[np.int64]


class ServedModel(Protocol):
    """What the engine asks of a model; :class:`radixtide.serving.models.LoadedModel` has it."""

    @property
    def eos_ids(self) -> Collection[int]:
        """Tokens that end an answer."""

    @property
    def vocabulary(self) -> int:
        """Ids are below it."""

    @property
    def max_context(self) -> int:
        """Most tokens of prompt and answer together."""


PRIORITY: Final = 2**31 - 1

MakeRunner = Callable[[Any, UnifiedRadixCache], Runner]


class Engine:
    """Serves requests of one model over one cache; an async context manager, of one loop.

    Args:
        model: a LoadedModel.
        cache: a config, of which a cache is opened and closed with the engine; or an open cache
            that nobody else has requests in, which stays open.
        config: limits.
        make_runner: makes what computes rows; None: a ModelRunner.

    At its end all requests that go on are aborted.
    """

    def __init__(
        self,
        model: ServedModel,
        cache: CacheConfig | UnifiedRadixCache,
        config: EngineConfig | None = None,
        *,
        make_runner: MakeRunner | None = None,
    ) -> None:
        self.model = model
        self.config = EngineConfig() if config is None else config
        self._owns = not isinstance(cache, UnifiedRadixCache)
        self.cache = cache if isinstance(cache, UnifiedRadixCache) else UnifiedRadixCache(cache)
        self._make_runner = make_runner
        self._arrivals = itertools.count(1)
        self._board: Board | None = None
        self._scheduler: Scheduler | None = None
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._eos = frozenset(model.eos_ids)

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._task is not None:
            raise EngineFailed("the engine was entered before; make a new one")
        loop = self._loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as undo:
            if self._owns:
                await undo.enter_async_context(self.cache)
            board = Board(self.cache, self.config, loop.time)
            runner = (self._make_runner or _model_runner)(self.model, self.cache)
            self._board = board
            self._scheduler = Scheduler(board, runner)
            # Not a task group: an engine may be entered and left in different tasks.
            self._task = asyncio.create_task(self._scheduler.run(), name="radixtide-scheduler")
            undo.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        closing = asyncio.ensure_future(self._close(kind, error, traceback))
        cancelled: asyncio.CancelledError | None = None
        with anyio.CancelScope(shield=True):
            while not closing.done():
                try:
                    await asyncio.wait((closing,))
                except asyncio.CancelledError as told:
                    # Its slots are being written to until the pass is over: first that.
                    cancelled = told
        closing.result()
        if cancelled is not None:
            raise cancelled

    async def _close(self, *failure: Any) -> None:
        scheduler, task, board = self._scheduler, self._task, self._board
        assert scheduler is not None and task is not None and board is not None
        scheduler.stop()
        await asyncio.wait((task,))
        board.hub.close()
        if self._owns:
            await self.cache.__aexit__(*failure)

    @property
    def failed(self) -> bool:
        """Whether the scheduler has failed: it serves nobody any more."""
        return self._task is not None and self._task.done()

    def _open(self) -> Board:
        if self._board is None or self._task is None or self._scheduler is None:
            raise EngineFailed("the engine is not open; use it with: async with Engine(...)")
        if self._task.done() or self._scheduler.stopping:
            failure = self._scheduler.failure
            why = "" if failure is None else f" ({type(failure).__name__}: {failure})"
            raise EngineFailed(f"the scheduler has ended{why}; open a new engine") from failure
        return self._board

    # -- requests ---------------------------------------------------------------------------------

    def generate(
        self,
        prompt_ids: TokenIds,
        params: SamplingParams | None = None,
        *,
        rid: str | None = None,
        cache_salt: str | None = None,
        extra_key: str | None = None,
        priority: int = 0,
    ) -> Generation:
        """Begin to answer a prompt; returns at once. Cost O(prompt).

        Args:
            prompt_ids: token ids, at least one.
            params: how tokens are chosen; None: the defaults of SamplingParams.
            rid: name of the request, unique among those that go on; None: one is made.
            cache_salt, extra_key: namespace (tenant, adapter): what is cached in another one is
                neither used nor told.
            priority: within 2**31; higher ones are admitted first, and retracted last.

        The answer is at most ``params.max_tokens``, ``max_output_tokens`` of the config, and what
        is left of the model's context and of the pools.

        Raises:
            InvalidInput: the prompt is empty, too long, or has ids that the model does not know;
                the rid is in use; a name or the priority is none; more logprobs are wanted than
                ``logprobs_max``.
            Overloaded: ``queue_max`` requests wait already.
            EngineFailed: the engine is not open, is another loop's, or its scheduler has failed.
        """
        board = self._open()
        self._check_loop()
        params = SamplingParams() if params is None else params
        prompt = self._prompt(board, prompt_ids)
        if not is_whole(priority) or abs(priority) > PRIORITY:
            raise InvalidInput(f"priority must be an integer within +-{PRIORITY}, not {priority!r}")
        for name, word in (("cache_salt", cache_salt), ("extra_key", extra_key), ("rid", rid)):
            if not is_text(word):
                raise InvalidInput(f"{name} must be a string or None, not {word!r}")
        if params.logprobs is not None and params.logprobs > self.config.logprobs_max:
            raise InvalidInput(
                f"logprobs must be at most {self.config.logprobs_max}, not {params.logprobs}"
            )
        arrival = next(self._arrivals)
        names = {one.rid for one in board.all()}
        if rid in names:
            raise InvalidInput(f"request id {rid!r} is in use; give each request one of its own")
        while rid is None and f"r{arrival}" in names:
            arrival = next(self._arrivals)
        rid = f"r{arrival}" if rid is None else rid
        if len(board.waiting) >= self.config.queue_max + _free_places(board):
            board.stats.refused += 1
            raise Overloaded(
                f"{len(board.waiting)} requests wait already (queue_max); try again later"
            )
        room = self._context(board) - len(prompt)
        wanted = room if params.max_tokens is None else params.max_tokens
        report = Report(rid=rid, prompt_tokens=len(prompt))
        channel = Channel(report, board.wake.set)
        one = Sequence(
            board.shape,
            prompt,
            params,
            channel,
            arrival=arrival,
            limit=len(prompt) + min(room, wanted, self.config.max_output_tokens),
            stops=frozenset(params.stop_token_ids)
            | (frozenset() if params.ignore_eos else self._eos),
            now=board.now(),
            priority=priority,
            cache_salt=cache_salt,
            extra_key=extra_key,
        )
        board.queue(one)
        return Generation(channel)

    def _check_loop(self) -> None:
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self._loop:
            raise EngineFailed(
                "an engine belongs to the loop that it was entered on; from another thread use "
                "asyncio.run_coroutine_threadsafe"
            )

    def _context(self, board: Board) -> int:
        """Return the most tokens of prompt and answer."""
        return min(self.model.max_context, board.shape.full_size)

    def _prompt(self, board: Board, prompt_ids: TokenIds) -> npt.NDArray[np.int64]:
        try:
            array = np.asarray(
                prompt_ids if isinstance(prompt_ids, np.ndarray) else list(prompt_ids)
            )
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"the prompt must be a sequence of token ids: {error}") from None
        if array.ndim != 1 or not len(array):
            raise InvalidInput("the prompt must be a sequence of at least one token id")
        if array.dtype.kind not in "iu":
            raise InvalidInput(f"token ids must be integers, not {array.dtype}")
        low, high = int(array.min()), int(array.max())
        if low < 0 or high >= self.model.vocabulary:
            wrong = low if low < 0 else high
            raise InvalidInput(f"token id {wrong} is not in [0, {self.model.vocabulary})")
        most = self._context(board)
        if len(array) >= most:
            raise InvalidInput(
                f"the prompt has {len(array)} tokens; with one of the answer at most {most} fit "
                "(the model's context, and the pool of full attention)"
            )
        return array.astype(np.int64)

    # -- looking ----------------------------------------------------------------------------------

    async def stats(self) -> EngineStats:
        """Return counts, times and what is held. Never waits. Cost O(requests + components)."""
        board = self._require()
        board.stats.running, board.stats.waiting = len(board.running), len(board.waiting)
        return board.stats.look(await self.cache.stats())

    def running(self) -> list[Report]:
        """Return a report of each request that has not ended, as it is now; those that run first.

        The reports are the requests' own: they go on changing.
        """
        board = self._require()
        for one in board.all():
            one.report.state = one.state()
            one.report.total_s = board.now() - one.arrived_at
        return [one.report for one in board.all()]

    @property
    def finished(self) -> deque[Report]:
        """Reports of the last ``reports_max`` requests that ended, the newest last."""
        return self._require().finished

    def watch(self) -> Subscription:
        """Return a subscription to what happens to requests from now on. Close it.

        Raises:
            Overloaded: there are ``subscribers_max`` of them.
        """
        board = self._open()
        if len(board.hub) >= self.config.subscribers_max:
            raise Overloaded(f"{len(board.hub)} subscriptions are open (subscribers_max)")
        return board.hub.watch()

    # -- the cache --------------------------------------------------------------------------------

    async def flush(self, tier: str, timeout: float = 0.0) -> int:
        """Drop what is cached on ``device``, ``host`` or ``storage`` and not in use.

        As ``UnifiedRadixCache.flush``. What waits is looked up anew.
        """
        dropped = await self.cache.flush(tier, timeout)
        self._changed()
        return dropped

    async def pin(
        self,
        tokens: TokenIds,
        ttl: float,
        *,
        cache_salt: str | None = None,
        extra_key: str | None = None,
    ) -> PinResult:
        """Keep what is cached of `tokens` from eviction for `ttl` seconds. Raises PinRefused."""
        return await self.cache.pin(RadixKey(list(tokens), extra_key, cache_salt), ttl)

    async def unpin(
        self, tokens: TokenIds, *, cache_salt: str | None = None, extra_key: str | None = None
    ) -> bool:
        """Let pinned `tokens` go; return whether they were pinned."""
        unpinned = await self.cache.unpin(RadixKey(list(tokens), extra_key, cache_salt))
        self._changed()
        return unpinned

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until no copy between tiers goes on or waits. Raises CallTimeout."""
        await self.cache.drain(timeout)

    async def audit(self) -> AuditReport:
        """Recount the cache; see ``UnifiedRadixCache.audit``."""
        return await self.cache.audit()

    def _changed(self) -> None:
        board = self._require()
        board.time += 1
        board.wake.set()

    def _require(self) -> Board:
        if self._board is None:
            raise EngineFailed("the engine is not open; use it with: async with Engine(...)")
        return self._board


def _free_places(board: Board) -> int:
    """Return how many of those that wait could run at once: they are not what is queued."""
    return max(board.config.max_running - len(board.running), 0)


def _model_runner(model: Any, cache: UnifiedRadixCache) -> Runner:
    # An engine with another runner needs no Transformers.
    from radixtide.serving.runner import ModelRunner  # noqa: PLC0415 - see above

    return ModelRunner(model, cache)


__all__ = ("Engine", "ServedModel")
