"""How a driver uses the tiers below the device: fetch, match, load back, and let copies end.

Before a request is admitted its prompt is fetched from storage to the host (``prefetch``); what its
match finds on the host is loaded to the device (``load_back``) before its prompt is computed. Where
copies are modelled, they take virtual time, and whoever waits for one lets that time pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import numpy as np

from radixtide.cli.replay_bytes import Marks, PoolBytes, Slots, WrongBytes, marks_of, pool_bytes
from radixtide.cli.replay_clock import VirtualClock
from radixtide.cli.replay_fit import Shape
from radixtide.cli.replay_metrics import CallTimes, Found
from radixtide.components.api import MatchPrefixParams, MatchResult
from radixtide.components.request import Request
from radixtide.tree.key import RadixKey

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache
    from radixtide.actors.tier_handles import LoadBack, Prefetch

Answer = TypeVar("Answer")

TURNS: Final = 16
"""Turns of the loop after which all that can happen without time passing has happened."""

SETTLE_S: Final = 600.0
"""Seconds after which transfers that do not end are an error: a slow store has its time."""


class Looked(msgspec.Struct, frozen=True):
    """What a request has after its look-up. ``row``: its slots of Full, int64, (found.length,)."""

    found: Found
    row: Slots

    @property
    def match(self) -> MatchResult:
        """The match, or the last one where there were two."""
        return self.found.match


class Tiers:
    """Access to a cache's tiers for one driver; without tiers it is a match and nothing else.

    ``clock``: what modelled copies take; None: copies are real, or take no time.
    ``content``: the pools' bytes, where they are checked. ``has_storage``: whether to fetch.
    """

    def __init__(
        self, cache: UnifiedRadixCache, calls: CallTimes, clock: VirtualClock | None = None
    ) -> None:
        config = cache.config
        self.clock = clock
        self.has_host = config.host is not None
        self.has_storage = config.storage is not None
        # Copies that are modelled end when the loop has had its turns: let it, so that a run can be
        # repeated.
        self.timeless = self.has_host and not config.pools.full.holds_bytes
        self.content = pool_bytes(cache.memory) if self.has_storage else {}
        self.shape = Shape.of(config)
        self.window = config.window or 0
        self._cache = cache
        self._calls = calls

    async def come(self, now_ns: int) -> None:
        """Let virtual time pass up to `now_ns`, where copies take any."""
        if self.timeless:
            await turns()
        if self.clock is not None:
            while self.clock.next_ns is not None and self.clock.next_ns <= now_ns:
                self.clock.jump()
                # One copy's end may begin the next.
                await turns()
            self.clock.advance(now_ns)

    async def progress(self, now_ns: int) -> int | None:
        """Wait until some transfer ends; return what the time is then, or None: there is none.

        A transfer protects what it reads and fills: slots that nobody else may have meanwhile.
        """
        if not self.has_host:
            return None
        await turns()
        if not self._cache.transfers:
            return None
        if self.clock is None:
            await self.settle()
            return now_ns
        self.clock.jump()
        await turns()
        return max(now_ns, self.clock.now_ns)

    def virtual_s(self, now_ns: int) -> float:
        """Return the seconds of virtual time so far; a driver's last step was at `now_ns`."""
        return (now_ns if self.clock is None else max(now_ns, self.clock.now_ns)) / 1e9

    async def await_event(self, now_ns: int, other_ns: int | None) -> int:
        """Let virtual time pass up to the end of a copy, or to `other_ns`; return what it is."""
        assert self.clock is not None
        await turns()
        events = [at for at in (self.clock.next_ns, other_ns) if at is not None]
        if not events:
            # Not a copy that takes time: the loop has more to do.
            await asyncio.sleep(0)
            return now_ns
        now_ns = max(now_ns, min(events))
        await self.come(now_ns)
        return now_ns

    async def fetch(self, key: RadixKey) -> int:
        """Fetch what storage has of `key` to the host; return how many units that brought."""
        if not self.has_storage:
            return 0
        async with await self.begin_fetch(key) as handle:
            return await self.fetched(handle)

    async def begin_fetch(self, key: RadixKey) -> Prefetch:
        """Begin to fetch what storage has of `key`."""
        return await self._calls.timed("prefetch", self._cache.prefetch(key))

    async def fetched(self, handle: Prefetch) -> int:
        """Wait for a fetch as the policy says; return how many units it brought."""
        return await self._calls.timed("prefetch wait", self.passing(handle.wait()))

    async def look_up(self, params: MatchPrefixParams, fetched: int = 0) -> Looked:
        """Match, and load back what the host has of it; `fetched` of that came from storage."""
        if not self.has_host:
            return self._looked(await self._match(params), 0, fetched)
        if params.req is not None and params.lock and self.shape.is_plain:
            match = await self._match(params)
            if not match.host_hit_length:
                return self._looked(match, 0, fetched)
            load = await self._load(match, params.req)
            length = await self.waited(load)
            return self._looked(match, length - match.device_indices.numel(), fetched, load)
        # The window and the state at the end of what is loaded are there only when it has arrived:
        # so the request matches again then, and finds all of it on the device.
        handle = await self.begin(params)
        if handle is None:
            return self._looked(await self._match(params), 0, fetched)
        async with handle:
            await self.waited(handle)
            return await self.taken(params, handle, fetched)

    async def begin(self, params: MatchPrefixParams) -> LoadBack | None:
        """Begin to load what the host has of a key, and lock it; None: the host has nothing."""
        first = await self._match(MatchPrefixParams(key=params.key, req=params.req))
        return await self._load(first) if first.host_hit_length else None

    async def taken(self, params: MatchPrefixParams, handle: LoadBack, fetched: int) -> Looked:
        """Match a key whose load is over."""
        match = await self._match(params)
        loaded = min(handle.loaded, match.device_indices.numel())
        return self._looked(match, 0 if handle.failed else loaded, fetched)

    async def waited(self, handle: LoadBack) -> int:
        """Wait until `handle` is over; return the length that is on the device."""
        return await self._calls.timed("load_back wait", self.passing(handle.wait()))

    async def settle(self) -> None:
        """Let all transfers end, and those that they make necessary."""
        if self.has_host:
            await self._calls.timed("drain", self.passing(self._cache.drain(SETTLE_S)))

    async def passing(self, waiting: Awaitable[Answer]) -> Answer:
        """Await `waiting`, letting virtual time pass as long as only that can end it."""
        if self.clock is None:
            return await waiting
        task = asyncio.ensure_future(waiting)
        try:
            while not task.done():
                await turns()
                if not task.done() and not self.clock.jump():
                    await asyncio.wait((task,))
        finally:
            task.cancel()
        return task.result()

    async def _match(self, params: MatchPrefixParams) -> MatchResult:
        return await self._calls.timed("match_prefix", self._cache.match_prefix(params))

    async def _load(self, match: MatchResult, req: Request | None = None) -> LoadBack:
        return await self._calls.timed("load_back", self._cache.load_back(match, req))

    def _looked(
        self,
        match: MatchResult,
        loaded: int,
        fetched: int,
        handle: LoadBack | None = None,
    ) -> Looked:
        indices = match.device_indices if handle is None else handle.device_indices
        found = Found(match, indices.numel(), loaded, min(fetched, loaded))
        return Looked(found, indices.numpy())

    # Bytes

    def marks(self, tokens: Slots) -> Marks | None:
        """Return the marks of `tokens`, or None where no bytes are kept."""
        return marks_of(tokens) if self.content else None

    async def write(self, row: Slots, marks: Marks | None, start: int, end: int) -> None:
        """Write what the tokens ``[start, end)`` of a row leave in their slots of each pool."""
        windows = None
        if marks is not None and "swa" in self.content and end > start:
            windows = await self._paired("swa", row[start:end])
        self.write_now(row, marks, start, end, windows)

    def write_now(
        self, row: Slots, marks: Marks | None, start: int, end: int, windows: Slots | None
    ) -> None:
        """Do the same without a wait.

        `windows`: slots of the last of them in the window's pool; one that is below 0 is none.
        """
        if marks is None or end <= start:
            return
        self.content["full"].write(row[start:end], marks[start:end])
        if windows is not None and "swa" in self.content:
            there = windows >= 0
            self.content["swa"].write(windows[there], marks[end - len(windows) : end][there])

    def write_state(self, slot: int | None, marks: Marks | None, length: int) -> None:
        """Write the state after `length` tokens to a slot."""
        if marks is not None and slot is not None and length and "mamba" in self.content:
            self.content["mamba"].write(np.array([slot]), marks[length - 1 : length])

    async def check(self, looked: Looked, marks: Marks | None, what: str) -> None:
        """Compare all that a look-up handed out with what its tokens say.

        Raises:
            WrongBytes: a slot holds something else; names `what`, pool and slot.
        """
        length = looked.found.length
        if marks is None or not length:
            return
        for name, pool in self.content.items():
            if name == "full":
                pool.check(looked.row, marks[:length], what)
            elif name == "swa":
                await self._check_window(pool, looked.row, marks[:length], what)

    def check_state(self, slot: int | None, marks: Marks | None, length: int, what: str) -> None:
        """Compare the state in `slot` with what it must be after `length` tokens."""
        if marks is not None and slot is not None and length and "mamba" in self.content:
            self.content["mamba"].check(np.array([slot]), marks[length - 1 : length], what)

    async def _check_window(self, pool: PoolBytes, row: Slots, marks: Marks, what: str) -> None:
        begin = max(len(row) - self.window, 0)
        slots = await self._paired(pool.name, row[begin:])
        if len(slots) and slots.min() < 0:
            at = begin + int(slots.argmin())
            raise WrongBytes(f"{what}: no slot of pool {pool.name} for token {at} of {len(row)}")
        pool.check(slots, marks[begin:], what)

    async def _paired(self, name: str, row: Slots) -> Slots:
        slots: Slots = (await self._cache.component_slots(name, row)).numpy()
        return slots


async def turns() -> None:
    """Let everything happen that waits for nothing but its turn."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


__all__ = ("Looked", "Tiers", "turns")
