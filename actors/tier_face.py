"""The part of the cache's face that is about the tiers below the device."""

from __future__ import annotations

import asyncio
import contextlib

import anyio

from radixtide.actors.life import CacheLife
from radixtide.actors.op_fetch import PrefetchCall
from radixtide.actors.op_load import LoadBackCall
from radixtide.actors.op_step import StepApply, StepOffer
from radixtide.actors.op_tiers import TIERS, Drain, Flush, SetStorage
from radixtide.actors.tier_handles import LoadBack, Prefetch
from radixtide.components.api import MatchResult
from radixtide.components.checks import as_seconds, check_request, expect
from radixtide.components.request import Request
from radixtide.configs.errors import Busy, CallTimeout, InvalidInput, RadixtideError
from radixtide.configs.schema import StorageConfig
from radixtide.tree.key import RadixKey


class TieredCache(CacheLife):
    """Loads, fetches, and what concerns host and storage as a whole."""

    async def load_back(
        self, match: MatchResult, req: Request | None = None, *, timeout: float | None = None
    ) -> LoadBack:
        """Begin to bring what `match` found on the host to the device; lock all of it.

        Looks again, as things may have changed since the match: the handle may be shorter than the
        match, down to its device part, when there is no room, too little to gain
        (``host.load_back_threshold``), or too much on its way (``host.load_back_quota``); and two
        callers of the same nodes share one load. With `req` the request gets lock, indices and
        ``cache_protected_len`` of the whole length at once, in place of its match's. Cost O(K + D).

        Raises:
            InvalidRequest: the request has slots already, or is in another namespace.
            InvalidInput: the match is of a cache without a host tier.
        """
        expect(match, MatchResult, "match")
        if req is not None:
            check_request(req)
        if match.key is None:
            raise InvalidInput(
                "this match is of a cache without a host tier: there is nothing to load back"
            )
        return LoadBack(self, await self._take(LoadBackCall(match.key, req), timeout))

    async def prefetch(
        self, key: RadixKey, req: Request | None = None, *, timeout: float | None = None
    ) -> Prefetch:
        """Begin to fetch what storage has of `key` and the cache has not, into the host.

        Nothing is begun below ``storage.prefetch_threshold`` or without a storage; the handle then
        has 0 pages. With `req` the end of the request ends the fetch. Cost O(K).
        """
        expect(key, RadixKey, "key")
        if req is not None:
            check_request(req)
        started = await self._take(PrefetchCall(key, req), timeout)
        return Prefetch(self, started, self._storage_config(), req is not None)

    @property
    def transfers(self) -> int:
        """How many transfers are under way."""
        tiers = self._open_state().tiers
        return 0 if tiers is None else len(tiers.jobs)

    def is_fetched(self, number: int) -> bool:
        """Return whether the fetch of that number is over."""
        tiers = self._open_state().tiers
        record = None if tiers is None else tiers.fetches.get(number)
        return record is None or record.over

    async def drain(self, timeout: float | None = None) -> None:
        """Wait until no transfer is under way and none waits to begin. Raises CallTimeout."""
        await self._take(Drain(), timeout)

    async def flush(self, tier: str, timeout: float = 0.0) -> int:
        """Drop what is on `tier` and held by nobody: ``device``, ``host`` or ``storage``.

        What is dropped from the device stays on the host where it has a copy there. Waits up to
        `timeout` seconds for transfers, then refuses. Returns slots of Full, or pages of storage
        that this cache knew of. Flushing ``storage`` empties the whole store, with what other
        caches have put there.

        Raises:
            Busy: transfers are under way.
            StorageFailed: the store did not do it; what is in it may still be found.
        """
        if tier not in TIERS:
            raise InvalidInput(f"tier {tier!r} is none of {', '.join(TIERS)}")
        seconds = as_seconds(timeout, "timeout")
        if tier != "device" and seconds:
            with anyio.move_on_after(seconds):
                await self.drain(seconds + 1.0)
        dropped: int = await self._give(Flush(tier), None)
        store = self.storage_jobs
        if tier == "storage" and store is not None:
            await store.backend.backend.clear()
        return dropped

    async def attach_storage(self, config: StorageConfig, *, timeout: float | None = None) -> None:
        """Use a storage from now on, while serving goes on; what the host has is written to it.

        Raises:
            Busy: there is a storage already; detach it first.
            ConfigError: the URL names no storage, or its package is missing.
        """
        expect(config, StorageConfig, "config")
        self._open_state()
        if self._tiering is None:
            raise InvalidInput("a storage needs a host tier: give the config a [host] table")
        if self.storage_jobs is not None or self._setting:
            raise Busy("a storage is attached already; detach it first")
        self._setting = True
        try:
            await self._attach_storage(config, timeout)
        finally:
            self._setting = False

    async def _attach_storage(self, config: StorageConfig, timeout: float | None) -> None:
        storage = await self._open_storage(config)
        try:
            await self._give(SetStorage(config, storage), timeout)
        except CallTimeout:
            # It is still carried out.
            raise
        except RadixtideError:
            await storage.close()
            raise

    async def detach_storage(self, *, timeout: float | None = None) -> None:
        """Use no storage any more: what is being written is finished, what is fetched given up."""
        self._open_state()
        if self._setting:
            raise Busy("a storage is being attached or detached; wait for that")
        if self.storage_jobs is None:
            return
        self._setting = True
        seconds = self._timeout if timeout is None else as_seconds(timeout, "timeout")
        # Once begun it is carried out, whoever still waits for it.
        system = self._open_system()
        await system.attend(system.own(self._detach()), "detach_storage", seconds)

    async def _detach(self) -> None:
        storage = self.storage_jobs
        try:
            while self.storage_jobs is storage:
                with contextlib.suppress(CallTimeout):
                    await self._give(SetStorage(None, None), None)
            if storage is not None:
                await storage.close()
        finally:
            self._setting = False

    async def step(self, *, timeout: float | None = None) -> None:
        """Let take effect what all ranks have seen: transfers that are over, deadlines, pins.

        Each rank calls it at the same place among its calls, and makes no other call of this cache
        until it returns. Calls that wait for a transfer (``wait`` of a handle, ``drain``, a chunk
        or the end of a request whose load is under way, allocate and evict under write_back) are
        answered in a step: leave them pending in tasks of their own, or ask ``done`` of the handle
        first. One collective. On one rank there is nothing to agree on: things take
        effect by themselves, and this only yields to the loop. A cancelled step is made all the
        same, since the other ranks count on it.

        Raises:
            AgreementFailed: a rank is gone.
            RanksDiverged: the ranks did not make the same calls.
        """
        if not self._open_state().together:
            await asyncio.sleep(0)
            return
        seconds = self._timeout if timeout is None else as_seconds(timeout, "timeout")
        system = self._open_system()
        step = self._stepping = system.own(self._agree(self._stepping, seconds))
        await system.attend(step, "step")

    async def _agree(self, before: asyncio.Task[None] | None, seconds: float) -> None:
        if before is not None and not before.done():
            await asyncio.wait((before,))
        offer = await self._give(StepOffer(), seconds)
        agreed = await self._agreement.minimum(offer)
        await self._give(StepApply(agreed), seconds)
