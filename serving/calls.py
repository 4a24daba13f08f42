"""Calls of the cache as the scheduler makes them: a failure costs an attempt, never the engine.

What a caller has to do after each error is in docs/guarantees.md and docs/faults.md. The scheduler
makes it simple: after any error but OutOfSlots the request that it concerns is aborted in the
cache, which is safe at any stage, and served anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import anyio

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.actors.tier_handles import Handle
from radixtide.components.request import Request
from radixtide.configs.errors import CacheClosed, CallTimeout, InvalidInput, RadixtideError
from radixtide.serving.config import EngineConfig

T = TypeVar("T")

logger = logging.getLogger(__name__)


async def made(call: Coroutine[Any, Any, T]) -> T:
    """Make a call in a task of its own, so that who cancels that one does not end the scheduler.

    Raises:
        CallTimeout: the call was cancelled, by somebody else than who awaits this.
        RadixtideError: as the call.
    """
    task = asyncio.ensure_future(call)
    try:
        return await task
    except asyncio.CancelledError:
        mine = asyncio.current_task()
        if not task.cancelled() or (mine is not None and mine.cancelling()):
            raise
        raise CallTimeout("a call of the cache was cancelled before it was answered") from None


class Letting:
    """Gives back what requests and handles hold, however often it takes."""

    def __init__(self, cache: UnifiedRadixCache, config: EngineConfig) -> None:
        self._cache = cache
        self._config = config

    async def let_go(self, req: Request, *, keep: bool) -> None:
        """Let `req` hold nothing any more; with `keep` what it has computed stays cached.

        Returns when that is so. Raises as :meth:`_until_heard`.
        """
        if keep:
            try:
                await made(self._cache.cache_finished_req(req))
                return
            except CacheClosed:
                return
            except RadixtideError as error:
                # A load failed under it, or how far the call came is open: nothing is kept then.
                logger.debug("request %s could not be cached: %s", req.rid, error)
        await self._until_heard(req.rid, lambda: self._cache.abort_req(req))

    async def close(self, handle: Handle) -> None:
        """Close a handle. Raises as :meth:`_until_heard`."""
        await self._until_heard("a handle", handle.close)

    async def _until_heard(self, what: str, call: Callable[[], Awaitable[Any]]) -> None:
        """Make a call that gives until it is answered.

        Raises:
            RadixtideError: it was made ``release_tries_max`` times: the cache is lost.
        """
        config = self._config
        for left in reversed(range(config.release_tries_max)):
            try:
                await made(_as_coroutine(call))
                return
            except CacheClosed:
                return
            except InvalidInput as error:
                # The cache refuses even its name: it never took it, so there is nothing to free.
                logger.warning("%s is refused by the cache: %s", what, error)
                return
            except RadixtideError as error:
                if not left:
                    raise
                logger.warning("the end of %s was not heard: %s", what, error)
            await anyio.sleep(config.release_pause_s)


async def _as_coroutine(call: Callable[[], Awaitable[Any]]) -> None:
    await call()


__all__ = ("Letting", "made")
