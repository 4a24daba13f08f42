"""Steps between the tiers: loads, fetches, flushes, and the storage coming and going."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from radixtide.actors.tier_handles import LoadBack
from radixtide.components.api import EvictParams, MatchResult
from radixtide.configs.errors import (
    Busy,
    CallTimeout,
    LoadFailed,
)
from radixtide.simulation import script as s
from radixtide.simulation.checks import is_stored_only
from radixtide.simulation.scheduler_base import MS, Answer, Fetch, Live, Load, pick
from radixtide.simulation.scheduler_device import ALL, OnDevice
from radixtide.tiers.storage.base import StorageFailed
from radixtide.tree.key import RadixKey

LOADS: Final = 3
FETCHES: Final = 3
PEEKS: Final = 30
LATELY: Final = 4
TIERS: Final = ("device", "host", "storage")
SINK_S: Final = 2.0
EARLY_S: Final = 0.05
LONG_S: Final = 20.0
"""Seconds that a transfer may take which is waited for without a timeout of its own."""


class BetweenTiers(OnDevice):
    """Steps between the tiers."""

    # -- loads --------------------------------------------------------------------------------

    async def load_back(self, step: s.LoadBack) -> None:
        """Load what the host has of a prompt."""
        if len(self.loads) >= LOADS or not self.setup.host:
            return
        key = self.key(step.prompt)
        found = await self.look_up(key)
        for key in self.lately() if step.prompt.again else ():
            # One of which the host has something, if there is one soon.
            if found is None or found.host_hit_length:
                break
            found = await self.look_up(key)
        if found is None:
            return
        key = found.key or key
        loads = []
        for _ in range(1 + step.twice % 2):
            answer = await self._begin(key, found, step.patience)
            if answer.ok:
                self.loads.append(answer.value)
                loads.append(answer.value)
        way = step.way % 5
        for load in loads:
            if way == 1:
                await self.peek(load)
            if way in (0, 1, 4):
                await self.await_load(load)
            if way in (0, 1, 2) and load in self.loads:
                await self.close_load_of(load)

    async def _begin(
        self, key: RadixKey, found: MatchResult, patience: int = 0, live: Live | None = None
    ) -> Answer:
        """Begin a load; where there is no answer, nothing is held for it."""
        req = None if live is None else live.req
        if req is not None:
            self.oracle.leaving(req, self.rank)
        before = self.oracle.snapshot(self.rank)
        answer = await self.call(
            "load",
            lambda: self.cache.load_back(found, req, timeout=self.timeout(patience)),
            patience=patience,
        )
        if not answer.ok:
            return answer
        handle: LoadBack = answer.value
        self.check(self.oracle.loading(key, handle, before, self.rank))
        return Answer(Load(handle, key, over=not handle.loaded))

    async def load_for(self, live: Live, found: MatchResult, patience: int, waits: bool) -> Answer:
        """Load for a request; return how the call ended."""
        answer = await self._begin(live.key(), found, patience, live)
        live.unsettled = live.unsettled or answer.doubt
        if answer.ok:
            live.loads.append(answer.value)
            if waits:
                await self.await_load(answer.value)
        return answer

    async def await_load(self, load: Load) -> None:
        """Wait for a load and read what it brought."""
        handle = load.handle
        answer = await self.call("wait load", handle.wait, waits=True, longer=LONG_S)
        if not answer.ok:
            return
        load.over = True
        if answer.value != handle.length:
            self.wrong(f"wait load: {answer.value}, and its handle has {handle.length}")
        self.check(self.oracle.loaded(load.key, handle, handle.length, self.rank))

    async def peek(self, load: Load) -> None:
        """Read the layers of a load as they come, as a model would."""
        handle = load.handle
        for layer in range(self.setup.layers):
            for _ in range(PEEKS):
                try:
                    handle.wait_layer(layer, 0)
                except CallTimeout:
                    await asyncio.sleep(MS / 10)
                    await self.current()
                    continue
                except LoadFailed:
                    return
                # A page that is found to be damaged is known with the last layer only.
                if not handle.failed and layer == self.setup.layers - 1:
                    for at in range(layer + 1):
                        self.check(self.oracle.layer(load.key, handle, at, self.rank))
                break
            else:
                return

    async def close_load(self, step: s.CloseLoad) -> None:
        """Close a load that was kept."""
        load = pick(self.loads, step.which)
        if load is None:
            return
        if step.wait % 2 and not load.over:
            await self.await_load(load)
        if load in self.loads:
            await self.close_load_of(load)

    async def close_load_of(self, load: Load) -> None:
        """Close a load."""
        self.loads.remove(load)
        self.oracle.load_closed(load.handle, self.rank)
        await self.close_handle("close load", load.handle)

    async def close_handle(self, what: str, handle: Any) -> None:
        """Close a handle, as often as it takes."""
        await self.persist(what, handle.close)

    # -- fetches ------------------------------------------------------------------------------

    async def prefetch(self, step: s.Prefetch) -> None:
        """Fetch for nobody."""
        if not self.setup.host or len(self.fetches) >= FETCHES:
            return
        if step.deep % 2 and not self.sunk():
            await self.sink(s.Sink(deep=1))
        space, tokens = self.prompt(step.prompt, self.sunk())
        got = await self.begin_fetch(self.key_of(space, tokens), step.way % 3, step.patience)
        if got and step.way % 3 == 0:
            # It is on the host now: what is loaded next is likely to be this.
            self.world.remember(self.rank, space, tokens)

    def lately(self) -> list[RadixKey]:
        """Return some prompts that were cached lately, the newest first."""
        recent = self.world.recent[self.rank][-1 : -1 - LATELY : -1]
        return [self.key_of(space, tokens) for space, tokens in recent]

    def sunk(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return prompts that were cached once of which only the storage has the rest, if any.

        All ranks are told the same, though each has pages of its own.
        """
        if not self.setup.storage:
            return []
        world = self.world
        self.chosen += 1
        found = world.chosen.get(self.chosen)
        if found is None:
            past = [(one, self.key_of(*one)) for one in world.past[self.rank]]
            found = [
                one for one, key in past if all(is_stored_only(at, key) for at in world.caches)
            ]
            if self.setup.ranks > 1:
                world.chosen[self.chosen] = found
        return found

    async def begin_fetch(
        self, key: RadixKey, way: int, patience: int = 0, live: Live | None = None
    ) -> int:
        """Begin to fetch a key; wait for it (0), close at once (1), or go on (2).

        Returns how many units it brought, where it is waited for; else, how many pages it asks for.
        """
        req = None if live is None else live.req
        answer = await self.call(
            "fetch",
            lambda: self.cache.prefetch(key, req, timeout=self.timeout(patience)),
            patience=patience,
        )
        if not answer.ok:
            return 0
        fetch = Fetch(answer.value, key)
        if not 0 <= fetch.handle.pages <= key.units // self.page:
            self.wrong(f"fetch: {fetch.handle.pages} pages of {key.units} units")
        self.fetches.append(fetch)
        if live is not None:
            live.fetches.append(fetch)
        got = int(fetch.handle.pages)
        if way == 0 and self.step % 2 and self.setup.prefetch_policy != "wait_complete":
            # As long as a request might wait for its turn.
            await asyncio.sleep(EARLY_S)
            await self.current()
        if way == 0 and fetch in self.fetches:
            got = await self.await_fetch(fetch)
        if way < 2 and live is None and fetch in self.fetches:
            self.fetches.remove(fetch)
            await self.close_handle("close fetch", fetch.handle)
        return got

    async def await_fetch(self, fetch: Fetch) -> int:
        """Wait for a fetch as long as the policy says; return the units that it brought."""
        answer = await self.call("wait fetch", fetch.handle.wait, waits=True, longer=LONG_S)
        if answer.ok:
            self.check(self.oracle.fetched(fetch.key, fetch.handle, answer.value, self.rank))
        return int(answer.value) if answer.ok else 0

    async def close_fetch(self, step: s.CloseFetch) -> None:
        """Close a fetch that was kept."""
        fetch = pick(self.fetches, step.which)
        if fetch is None:
            return
        if step.wait % 2:
            await self.await_fetch(fetch)
        if fetch in self.fetches:
            self.fetches.remove(fetch)
            await self.close_handle("close fetch", fetch.handle)

    # -- whole tiers ----------------------------------------------------------------------------

    async def drain(self, step: s.Drain) -> None:
        """Wait until nothing moves."""
        await self.call(
            "drain",
            lambda: self.cache.drain(self.timeout(step.patience)),
            waits=True,
            patience=step.patience,
        )

    async def flush(self, step: s.Flush) -> None:
        """Drop what is on a tier."""
        tier = TIERS[step.tier % 3]
        if (tier != "device" and not self.setup.host) or (
            tier == "storage" and not self.setup.storage
        ):
            return
        answer = await self.call(
            f"flush {tier}",
            lambda: self.cache.flush(tier, self.waiting_s(step.wait)),
            may=(Busy, StorageFailed),
            waits=True,
            longer=self.setup.call_timeout_s + LONG_S,
        )
        if answer.ok:
            self.oracle.flushed(tier, self.rank)
        if tier == "storage" and self.setup.ranks > 1:
            # Whether a rank's own store could be cleared is not agreed on.
            self.say[-1] = "flush storage"

    async def sink(self, step: s.Sink) -> None:
        """Let what is cached go down a tier, or two, for later steps to bring back."""
        if not self.setup.host:
            return
        if self.setup.ranks == 1:
            await self.call("drain", lambda: self.cache.drain(SINK_S), waits=True, longer=SINK_S)
        everything = EvictParams(
            ALL, ALL if self.has("swa") else 0, ALL if self.has("mamba") else 0
        )
        await self.call(
            "evict",
            lambda: self.cache.evict(everything),
            waits=self.setup.write_policy == "write_back",
        )
        if step.deep % 2 and self.setup.storage:
            if self.setup.ranks == 1:
                await self.call(
                    "drain", lambda: self.cache.drain(SINK_S), waits=True, longer=SINK_S
                )
            await self.call(
                "flush host",
                lambda: self.cache.flush("host"),
                may=(Busy,),
                waits=True,
                longer=self.setup.call_timeout_s,
            )

    async def detach(self, _: s.Detach) -> None:
        """Use no storage any more."""
        if self.setup.storage:
            await self.call(
                "detach", self.cache.detach_storage, may=(Busy,), waits=True, longer=LONG_S
            )

    async def attach(self, step: s.Attach) -> None:
        """Use a storage."""
        if not self.setup.storage:
            return
        if step.fresh % 2:
            self.world.fresh_disk()
        self.world.weights = (self.world.weights + step.weights % 2) % 2
        if step.weights % 2:
            # What was computed by the old ones is of no use any more.
            await self.detach(s.Detach())
            await self.sink(s.Sink())
            await self.flush(s.Flush(tier=1))
        await self.call(
            "attach",
            lambda: self.cache.attach_storage(self.setup.storage_config(self.world.weights)),
            may=(Busy, StorageFailed),
            waits=True,
            longer=LONG_S,
        )


__all__ = ("BetweenTiers",)
