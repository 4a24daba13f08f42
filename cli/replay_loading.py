"""Requests whose data is on its way: fetches ahead of admission, and loads in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from radixtide.cli.replay_job import Job
from radixtide.cli.replay_tiers import Tiers, turns
from radixtide.components.api import MatchPrefixParams
from radixtide.tree.key import RadixKey

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache
    from radixtide.actors.tier_handles import LoadBack, Prefetch


class Coming(msgspec.Struct, frozen=True):
    """A request that waits for a load: how it will match, the load, and the wait for it."""

    job: Job
    params: MatchPrefixParams
    handle: LoadBack
    task: asyncio.Task[int]


FETCH_AHEAD: Final = 16
"""Waiting requests for which storage is asked, the next ones to be admitted first."""


class Loading:
    """What is on its way for requests that wait.

    A fetch from storage begins while its request is still some places from its turn. A load that
    takes virtual time keeps its request out of the batch until it is over, and others go first.
    """

    def __init__(self, cache: UnifiedRadixCache, tiers: Tiers) -> None:
        self._cache = cache
        self._tiers = tiers
        self._fetches: dict[int, Prefetch] = {}
        self._asked: set[int] = set()
        self._loads: dict[int, Coming] = {}
        """By number of the request, in the order in which they began."""

    def __len__(self) -> int:
        """Return how many requests are out of the line because of a load."""
        return len(self._loads)

    async def fetch_ahead(self, waiting: Iterable[Job]) -> None:
        """Ask storage for the first of `waiting`, each once."""
        if not self._tiers.has_storage:
            return
        for job in islice(waiting, FETCH_AHEAD):
            number = job.source.number
            if number not in self._asked:
                self._asked.add(number)
                key = RadixKey(job.source.prompt())
                self._fetches[number] = await self._tiers.begin_fetch(key)

    async def fetched(self, job: Job) -> int:
        """Wait for the fetch of `job` as the policy says; return the units that it brought."""
        handle = self._fetches.pop(job.source.number, None)
        if handle is None:
            return 0
        async with handle:
            return await self._tiers.fetched(handle)

    async def begin(self, job: Job, params: MatchPrefixParams) -> bool:
        """Begin the load of `job`, if it has one and that takes time; return whether it waits."""
        if self._tiers.clock is None:
            return False
        handle = await self._tiers.begin(params)
        if handle is None:
            return False
        task = asyncio.ensure_future(handle.wait())
        await turns()
        self._loads[job.source.number] = Coming(job, params, handle, task)
        return True

    async def arrived(self) -> Coming | None:
        """Take out the first request whose load is over; whoever gets its handle closes it."""
        if not self._loads:
            return None
        await turns()
        over = (number for number, coming in self._loads.items() if coming.task.done())
        number = next(over, None)
        return None if number is None else self._loads.pop(number)

    async def give_up_newest(self) -> Job | None:
        """Let go of the newest load, so that its slots can serve others; return its request."""
        if not self._loads:
            return None
        coming = self._loads.pop(next(reversed(self._loads)))
        coming.task.cancel()
        await coming.handle.close()
        return coming.job

    async def abandon(self) -> int:
        """Let go of everything, after a cancellation; return how many requests had a load."""
        count = len(self._loads)
        while await self.give_up_newest() is not None:
            pass
        while self._fetches:
            _, handle = self._fetches.popitem()
            await handle.close()
        return count


__all__ = ("FETCH_AHEAD", "Coming", "Loading")
