"""The cache for an engine without an event loop: the same names, as plain functions.

    from radixtide import MatchPrefixParams
    from radixtide.blocking import UnifiedRadixCache

    with UnifiedRadixCache.from_toml("cache.toml") as cache:
        match = cache.match_prefix(MatchPrefixParams(key=key))

The cache runs on a loop in a thread of its own, and a call waits there for its answer. What each
call does is told where it is defined, in :class:`radixtide.UnifiedRadixCache`; what differs, in
docs/blocking.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import torch

from radixtide.actors import cache as actors
from radixtide.actors.agreement import Agreement
from radixtide.actors.calls import IncLockRef
from radixtide.actors.envelope import Interceptor
from radixtide.actors.life import RefuseHost
from radixtide.actors.storage_jobs import StorageJobs
from radixtide.actors.tier_making import MakeEngine, MakeStore
from radixtide.blocking_handles import Hold, LoadBack, Prefetch
from radixtide.blocking_loop import LoopThread, TaskCall
from radixtide.components.api import (
    CARRIER,
    AllocateParams,
    AllocateResult,
    AuditReport,
    CacheReqResult,
    CacheStats,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    InsertParams,
    InsertResult,
    LockReceipt,
    MatchPrefixParams,
    MatchResult,
    NodeHandle,
    PinResult,
    SlotInput,
)
from radixtide.components.checks import expect
from radixtide.components.picture import TreePicture
from radixtide.components.policies import plugin_policies
from radixtide.components.registry import plugin_components
from radixtide.components.request import Request
from radixtide.configs.errors import CacheClosed
from radixtide.configs.loader import load_config
from radixtide.configs.schema import CacheConfig, StorageConfig
from radixtide.tiers.copy_modelled import Clock
from radixtide.tree.key import RadixKey

P = ParamSpec("P")
T = TypeVar("T")


def _lost(_: object) -> None:
    """Give nothing back: what a function of the caller's returned is its own."""


def _quiet(core: actors.UnifiedRadixCache) -> bool:
    return core._system is None or core._system.quiet


class UnifiedRadixCache:
    """A prefix cache whose calls block: :class:`radixtide.UnifiedRadixCache` in plain functions.

    Use it as a context manager, or call ``start`` and ``close``. It may be used from any number of
    threads at once. Every call takes ``timeout`` in seconds and raises what the coroutine of its
    name raises. A call that is interrupted (KeyboardInterrupt, or what another signal's handler
    raises) is a cancelled one: calls that take are undone, calls that give are carried out.

    A call costs its way to the loop and back, some tens of microseconds; :meth:`run` makes several
    calls for the price of one way.

    ``config``, ``page_size``, ``req_to_token_pool``, ``kv_pool``, ``memory`` and ``host_pools`` are
    those of the cache itself.
    """

    def __init__(
        self,
        config: CacheConfig,
        *,
        agreement: Agreement | None = None,
        clock: Clock | None = None,
        make_engine: MakeEngine | None = None,
        make_store: MakeStore | None = None,
    ) -> None:
        self._core = core = actors.UnifiedRadixCache(
            config,
            agreement=agreement,
            clock=clock,
            make_engine=make_engine,
            make_store=make_store,
        )
        self._thread = LoopThread(core.close, partial(_quiet, core))
        self._entered = False
        self.config = core.config
        self.page_size = core.page_size
        self.req_to_token_pool = core.req_to_token_pool
        self.kv_pool = core.kv_pool
        self.memory = core.memory
        self.host_pools = core.host_pools

    @classmethod
    def from_toml(
        cls,
        path: str | PathLike[str],
        *,
        agreement: Agreement | None = None,
        clock: Clock | None = None,
        make_engine: MakeEngine | None = None,
        make_store: MakeStore | None = None,
    ) -> Self:
        """Return a cache configured by a TOML file. Raises ConfigError."""
        config = load_config(Path(path), policies=plugin_policies(), components=plugin_components())
        return cls(
            config,
            agreement=agreement,
            clock=clock,
            make_engine=make_engine,
            make_store=make_store,
        )

    # -- life -------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the thread and the actors: what ``with`` does. Returns the cache.

        Raises:
            CacheClosed: the cache was started before; make a new one.
            ConfigError: the storage can not be opened.
        """
        if self._entered:
            raise CacheClosed("the cache was entered before; make a new one")
        self._entered = True
        thread = self._thread
        try:
            thread.start()
            thread.call(self._core.__aenter__, kind=TaskCall)
        except BaseException:
            thread.close(0.0)
            raise
        return self

    def __enter__(self) -> Self:
        """Start the cache; see :meth:`start`."""
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the cache; see :meth:`close`."""
        self.close()

    def close(self, timeout: float = 5.0) -> None:
        """Carry out what was given, then stop the actors and end the thread. Idempotent.

        Waits at most `timeout` seconds for queued calls; then those who wait for them, in whatever
        thread, get CacheClosed.
        """
        if self._entered:
            self._thread.close(timeout)

    def __del__(self, warn: Any = warnings.warn) -> None:
        thread: LoopThread | None = getattr(self, "_thread", None)
        if thread is not None and thread.running:
            thread.close_soon()
            warn("a blocking cache was never closed", ResourceWarning, source=self)

    # -- several calls in one -----------------------------------------------------------

    def run(
        self,
        function: Callable[Concatenate[actors.UnifiedRadixCache, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return what ``await function(cache, ...)`` returns, run where the cache runs.

        `function` gets the cache whose calls are awaited, and makes as many as it likes for the
        price of one way to the loop and back; it must not block. It is cancelled when its caller is
        interrupted; what it returns may then be lost, so it should note what it takes where the
        caller finds it.
        """
        work = partial(function, self._core, *args, **kwargs)
        return self._thread.call(work, kind=TaskCall, undo=_lost)

    # -- match ------------------------------------------------------------------------

    def match_prefix(
        self, params: MatchPrefixParams, *, timeout: float | None = None
    ) -> MatchResult:
        """Find the longest cached prefix of a key, and say why it is not longer."""
        call = partial(self._core.match_prefix, params, timeout=timeout)
        return self._thread.call(call, undo=lambda found: self._undo(params, found))

    def device_indices(
        self, node: NodeHandle, component: str = CARRIER, *, timeout: float | None = None
    ) -> torch.Tensor:
        """Return the device slots from the root to the end of `node`, a fresh int64 tensor."""
        call = partial(self._core.device_indices, node, component, timeout=timeout)
        return self._thread.call(call)

    # -- insert -----------------------------------------------------------------------

    def insert(
        self, params: InsertParams, *, ready: Any = None, timeout: float | None = None
    ) -> InsertResult:
        """Give the slots of a key to the tree; what was cached already is freed."""
        call = partial(self._core.insert, params, ready=ready, timeout=timeout)
        return self._thread.call(call)

    # -- slots ------------------------------------------------------------------------

    def allocate(self, params: AllocateParams, *, timeout: float | None = None) -> AllocateResult:
        """Take slots, in whole pages, evicting as needed; all or nothing."""
        call = partial(self._core.allocate, params, timeout=timeout)
        return self._thread.call(call, undo=lambda room: self._undo(params, room))

    def free(
        self,
        indices: SlotInput,
        component: str = CARRIER,
        *,
        after: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Give back slots that were allocated without a request, in whole pages."""
        call = partial(self._core.free, indices, component, after=after, timeout=timeout)
        self._thread.call(call)

    def evict(self, params: EvictParams, *, timeout: float | None = None) -> EvictResult:
        """Free at least that many slots, in policy order, where they are evictable."""
        return self._thread.call(partial(self._core.evict, params, timeout=timeout))

    # -- locks ------------------------------------------------------------------------

    def inc_lock_ref(self, node: NodeHandle, *, timeout: float | None = None) -> LockReceipt:
        """Protect the path to `node` from eviction."""
        call = partial(self._core.inc_lock_ref, node, timeout=timeout)
        return self._thread.call(call, undo=lambda receipt: self._undo(IncLockRef(node), receipt))

    def dec_lock_ref(
        self, receipt: LockReceipt, *, timeout: float | None = None
    ) -> DecLockRefResult:
        """Undo one lock."""
        call = partial(self._core.dec_lock_ref, receipt, timeout=timeout)
        return self._thread.call(call)

    def dec_swa_lock_only(
        self, receipt: LockReceipt, *, timeout: float | None = None
    ) -> DecLockRefResult:
        """Give up the window of a lock, and its lock on a state: decoding has moved past them."""
        call = partial(self._core.dec_swa_lock_only, receipt, timeout=timeout)
        return self._thread.call(call)

    def hold(self, match: MatchResult) -> Hold:
        """Lock a match for the length of a ``with`` block; yields the receipt.

        The release at the block's end is posted without waiting.
        """
        expect(match, MatchResult, "match")
        return Hold(self, self._thread, match.last_device_node)

    def post_release(self, receipt: LockReceipt) -> None:
        """Release a receipt without waiting; an error is logged."""
        self._post(self._core.post_release, receipt)

    # -- requests ---------------------------------------------------------------------

    def cache_unfinished_req(
        self,
        req: Request,
        chunked: bool = False,
        is_insert: bool = True,
        *,
        ready: Any = None,
        timeout: float | None = None,
    ) -> CacheReqResult:
        """Cache what a running request has computed so far, and go on."""
        call = partial(
            self._core.cache_unfinished_req, req, chunked, is_insert, ready=ready, timeout=timeout
        )
        return self._thread.call(call)

    def cache_finished_req(
        self,
        req: Request,
        is_insert: bool = True,
        *,
        ready: Any = None,
        timeout: float | None = None,
    ) -> CacheReqResult:
        """Cache what a finished request has computed, and free the rest of what it holds."""
        call = partial(self._core.cache_finished_req, req, is_insert, ready=ready, timeout=timeout)
        return self._thread.call(call)

    def abort_req(
        self, req: Request, *, after: Any = None, timeout: float | None = None
    ) -> CacheReqResult:
        """Give up a request at any stage: free all it owns, once. Idempotent."""
        call = partial(self._core.abort_req, req, after=after, timeout=timeout)
        return self._thread.call(call)

    def release_window(self, req: Request, length: int, *, timeout: float | None = None) -> int:
        """Give back the sliding-window slots that a running request of `length` tokens has left."""
        call = partial(self._core.release_window, req, length, timeout=timeout)
        return self._thread.call(call)

    def component_slots(
        self, component: str, indices: SlotInput, *, timeout: float | None = None
    ) -> torch.Tensor:
        """Return the slots that `component` has for the tokens of Full slots `indices`."""
        call = partial(self._core.component_slots, component, indices, timeout=timeout)
        return self._thread.call(call)

    # -- tiers ------------------------------------------------------------------------

    def load_back(
        self, match: MatchResult, req: Request | None = None, *, timeout: float | None = None
    ) -> LoadBack:
        """Begin to bring what `match` found on the host to the device; lock all of it."""
        call = partial(self._load_back, match, req, timeout)
        return self._thread.call(call, undo=lambda load: self._undo_load(req, load))

    def prefetch(
        self, key: RadixKey, req: Request | None = None, *, timeout: float | None = None
    ) -> Prefetch:
        """Begin to fetch what storage has of `key` and the cache has not, into the host."""
        call = partial(self._prefetch, key, req, timeout)
        return self._thread.call(call, undo=Prefetch.release)

    @property
    def transfers(self) -> int:
        """How many transfers are under way. Costs no way to the loop."""
        self._check()
        return self._core.transfers

    def is_fetched(self, number: int) -> bool:
        """Return whether the fetch of that number is over. Costs no way to the loop."""
        self._check()
        return self._core.is_fetched(number)

    def drain(self, timeout: float | None = None) -> None:
        """Wait until no transfer is under way and none waits to begin. Raises CallTimeout."""
        self._thread.call(partial(self._core.drain, timeout))

    def flush(self, tier: str, timeout: float = 0.0) -> int:
        """Drop what is on `tier` and held by nobody: ``device``, ``host`` or ``storage``."""
        return self._thread.call(partial(self._core.flush, tier, timeout), kind=TaskCall)

    def attach_storage(self, config: StorageConfig, *, timeout: float | None = None) -> None:
        """Use a storage from now on, while serving goes on; what the host has is written to it."""
        call = partial(self._core.attach_storage, config, timeout=timeout)
        self._thread.call(call, kind=TaskCall)

    def detach_storage(self, *, timeout: float | None = None) -> None:
        """Use no storage any more: what is being written is finished, what is fetched given up."""
        self._thread.call(partial(self._core.detach_storage, timeout=timeout), kind=TaskCall)

    def step(self, *, timeout: float | None = None) -> None:
        """Let take effect what all ranks have seen: transfers that are over, deadlines, pins."""
        self._thread.call(partial(self._core.step, timeout=timeout), kind=TaskCall)

    @property
    def storage_jobs(self) -> StorageJobs | None:
        """What works on the storage in use; None where there is none."""
        return self._core.storage_jobs

    # -- pins -------------------------------------------------------------------------

    def pin(self, key: RadixKey, ttl: float, *, timeout: float | None = None) -> PinResult:
        """Keep the cached part of `key` from eviction for `ttl` seconds, within ``pins.budget``."""
        return self._thread.call(partial(self._core.pin, key, ttl, timeout=timeout))

    def unpin(self, key: RadixKey, *, timeout: float | None = None) -> bool:
        """Let a pinned key go; return whether it was pinned."""
        return self._thread.call(partial(self._core.unpin, key, timeout=timeout))

    # -- the whole cache --------------------------------------------------------------

    def reset(self, timeout: float = 0.0) -> None:
        """Drop all that is cached, and start a new generation of handles.

        Waits up to `timeout` seconds until nothing is held, then raises Busy.
        """
        self._thread.call(partial(self._core.reset, timeout), kind=TaskCall)

    def stats(self) -> CacheStats:
        """Return sizes, actors and counters."""
        return self._thread.call(self._core.stats)

    def audit(self, *, timeout: float | None = None) -> AuditReport:
        """Recount everything and report what does not hold."""
        return self._thread.call(partial(self._core.audit, timeout=timeout))

    def pretty_print(self, max_nodes: int = 200, *, timeout: float | None = None) -> str:
        """Return the tree as text, at most `max_nodes` nodes."""
        call = partial(self._core.pretty_print, max_nodes, timeout=timeout)
        return self._thread.call(call)

    def picture(self, nodes_max: int = 1000, *, timeout: float | None = None) -> TreePicture:
        """Return the `nodes_max` most recently used nodes of the tree, for drawing."""
        call = partial(self._core.picture, nodes_max, timeout=timeout)
        return self._thread.call(call)

    # -- the seam ---------------------------------------------------------------------

    def post(self, message: Any) -> None:
        """Send a call that gives, and wait for nothing; an error is logged."""
        self._post(self._core.post, message)

    def now(self) -> float:
        """Return the time of the loop, in seconds."""
        return self._thread.ask(self._core.now)

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """Let `interceptor` see every message, in the cache's thread; it must not block."""
        self._thread.ask(partial(self._core.add_interceptor, interceptor))

    def remove_interceptor(self, interceptor: Interceptor) -> None:
        """Take an interceptor out again."""
        self._thread.ask(partial(self._core.remove_interceptor, interceptor))

    def kill(self, actor: str) -> bool:
        """Crash an actor now, to see that the cache lives with it; False: it is down already."""
        return self._thread.ask(partial(self._core.kill, actor))

    @property
    def refuse_host(self) -> RefuseHost | None:
        """Asked, with a component's name, when host memory is looked for; True: there is none."""
        return self._core.refuse_host

    @refuse_host.setter
    def refuse_host(self, decide: RefuseHost | None) -> None:
        self._core.refuse_host = decide

    # -- on the loop --------------------------------------------------------------------

    async def _load_back(
        self, match: MatchResult, req: Request | None, timeout: float | None
    ) -> LoadBack:
        # The handle is made here, so that nothing is left to do where an interrupt may come.
        return LoadBack(self._thread, await self._core.load_back(match, req, timeout=timeout))

    async def _prefetch(
        self, key: RadixKey, req: Request | None, timeout: float | None
    ) -> Prefetch:
        return Prefetch(self._thread, await self._core.prefetch(key, req, timeout=timeout))

    def _undo(self, message: Any, reply: object) -> None:
        """Give back what a call took whose caller is gone."""
        cell = self._core._coordinator
        if cell is not None and cell.open:
            undo = cell.actor.give_back(message, reply)
            if undo is not None:
                cell.system.notify(cell, undo)

    def _undo_load(self, req: Request | None, load: LoadBack) -> None:
        cell = self._core._coordinator
        if cell is not None and cell.open:
            cell.system.notify(cell, load.undoing(req))

    # -- in any thread --------------------------------------------------------------------

    def _check(self) -> None:
        self._thread.check()

    def _post(self, function: Callable[[Any], None], message: Any) -> None:
        if not self._entered:
            self._thread.check()
        self._thread.post(function, message)
