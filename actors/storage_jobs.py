"""What the tiering actor does with storage: write a node, look a key up, read its pages.

Nothing here raises but cancellation: a store that fails or is slow (it is guarded by a circuit
breaker) has stored nothing, or has nothing. Hashing and the copying of pages are done in worker
threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from radixtide.actors.tier_messages import (
    FetchDone,
    Found,
    Lookup,
    StartFetch,
    StartStore,
    StoreDone,
)
from radixtide.components.api import Slots
from radixtide.configs.schema import StorageConfig
from radixtide.tiers.host_pool import HostPool
from radixtide.tiers.page_hash import HASH_BYTES, page_hashes
from radixtide.tiers.storage.base import PageKey
from radixtide.tiers.storage.breaker import Guarded

Bytes = npt.NDArray[np.uint8]

ATTEMPTS = 2
"""Times that a node is written before it is given up."""
AT_ONCE = 8
"""Calls to the store that run beside each other."""


class StoredPool(msgspec.Struct, frozen=True):
    """One component's pages in storage.

    ``window``: how many of the last pages of a key it wants, None for all. ``exact``: whether what
    it has is good at exactly one length (a state).
    """

    name: str
    host: HostPool
    window: int | None
    exact: bool


class _Chain(msgspec.Struct):
    """A key that is looked up or fetched.

    ``hashes``: of its pages. ``skip``: pages of it that the cache has. ``fetching``: its pages are
    being read; ``got``: leading ones that are on the host by now, ``known``: digests by component;
    ``writing``: host pages are being written at this moment. ``ended``: it was ended early: what
    still arrives is not wanted.
    """

    skip: int
    hashes: bytes = b""
    pages: int = 0
    fetching: bool = False
    got: int = 0
    known: dict[str, Any] = msgspec.field(default_factory=dict)
    writing: bool = False
    stop: bool = False
    ended: bool = False


class StorageJobs:
    """Work on one store. The first of `pools` is the carrier's.

    Args:
        store: guarded; opened by whoever made it, closed here.
        identity: whose bytes these are.
        page_size: units a page.
        bigram: unit kind of the keys.
    """

    def __init__(
        self,
        store: Guarded,
        config: StorageConfig,
        pools: Sequence[StoredPool],
        identity: str,
        page_size: int,
        bigram: bool,
    ) -> None:
        self.backend = store
        self.config = config
        self.pools = list(pools)
        self.identity = identity
        self.page_size = page_size
        self.bigram = bigram
        self._chains: dict[int, _Chain] = {}
        self._stored = 0
        self._fetched = 0
        self._limit = asyncio.Semaphore(AT_ONCE)

    async def close(self) -> None:
        """Let go of the store."""
        await self.backend.close()

    def take_stored(self) -> int:
        """Return the bytes stored since the last call."""
        count, self._stored = self._stored, 0
        return count

    def take_fetched(self) -> int:
        """Return the bytes fetched since the last call."""
        count, self._fetched = self._fetched, 0
        return count

    def note_lookup(self, m: Lookup) -> None:
        """Note a lookup that is about to begin, so that it can be ended from now on."""
        self._chains.setdefault(m.job, _Chain(m.skip))

    def note_fetch(self, m: StartFetch) -> None:
        """Note a fetch that is about to begin."""
        chain = self._chains.get(m.job)
        if chain is not None:
            chain.fetching = True
            chain.pages = m.pages

    def stop(self, job: int) -> Found | FetchDone | None:
        """Have the lookup or fetch of `job` end with what it has; return its report.

        None when that comes by itself at once. A read that hangs is not waited for: what it brings
        goes to memory of its own, and no further.
        """
        chain = self._chains.get(job)
        if chain is None or chain.ended:
            return None
        chain.stop = True
        if chain.writing:
            return None
        chain.ended = True
        self._chains.pop(job)
        if not chain.fetching:
            return Found(job, chain.skip, {})
        return self._done(job, chain)

    def _done(self, job: int, chain: _Chain) -> FetchDone:
        """Return the report of a fetch as far as it came: where the end matters, all or nothing."""
        pages = chain.got
        if len(self.pools) > 1 and pages < chain.pages - chain.skip:
            pages = 0
        return FetchDone(job, pages, chain.known, chain.hashes[: chain.pages * HASH_BYTES])

    # -- store ----------------------------------------------------------------------

    async def store(self, m: StartStore) -> StoreDone:
        """Write the pages of a node, all components' together. Reports how many are stored."""
        async with self._limit:
            hashes = await asyncio.to_thread(
                page_hashes, m.raw, self.page_size, self.bigram, m.previous
            )
            keys, sources, digests, owner = await asyncio.to_thread(self._gather, m, hashes)
            pages = len(hashes) // HASH_BYTES
            stored = 0
            if not m.first and not await self._has(m.previous):
                return StoreDone(m.job, 0, hashes, orphan=True)
            for _ in range(ATTEMPTS):
                done = await self.backend.put_from(keys, sources, digests)
                stored = _leading(done, owner, pages)
                self._stored += sum(
                    source.nbytes for source, there in zip(sources, done, strict=True) if there
                )
                if stored == pages:
                    break
        return StoreDone(m.job, stored, hashes)

    async def _has(self, previous: bytes | None) -> bool:
        """Return whether the page that a node comes after is stored."""
        assert previous is not None
        key = PageKey(f"{previous.hex()}-{self.identity}", None, self.pools[0].name)
        return (await self.backend.exists([key]))[0]

    def _gather(
        self, m: StartStore, hashes: bytes
    ) -> tuple[list[PageKey], list[memoryview], Any, list[int]]:
        """Read a node's pages from the host. Returns names, bytes, digests, and page numbers."""
        pages = len(hashes) // HASH_BYTES
        keys: list[PageKey] = []
        sources: list[memoryview] = []
        owner: list[int] = []
        known: list[Any] = []
        names = self._names(hashes, m.previous)
        for pool in self.pools:
            if pool.name not in m.items:
                continue
            slots, digests = m.items[pool.name]
            host = slots[:: pool.host.page_size] // pool.host.page_size
            data = np.empty((len(host), pool.host.page_bytes), dtype=np.uint8)
            pool.host.read_pages(host, data)
            first = pages - len(host)
            for at in range(len(host)):
                chain, parent = names[first + at]
                keys.append(PageKey(chain, parent, pool.name))
                sources.append(memoryview(data[at]))
                owner.append(first + at)
            known.append(digests if digests is not None else pool.host.digests(host))
        order = sorted(range(len(keys)), key=owner.__getitem__)
        digests = np.concatenate(known) if known else np.empty(0, dtype=np.uint64)
        return (
            [keys[at] for at in order],
            [sources[at] for at in order],
            digests[order],
            [owner[at] for at in order],
        )

    def _names(self, hashes: bytes, previous: bytes | None) -> list[tuple[str, str | None]]:
        """Return (chain, parent's chain) of each page."""
        found: list[tuple[str, str | None]] = []
        last = None if previous is None else f"{previous.hex()}-{self.identity}"
        for at in range(0, len(hashes), HASH_BYTES):
            chain = f"{hashes[at : at + HASH_BYTES].hex()}-{self.identity}"
            found.append((chain, last))
            last = chain
        return found

    # -- fetch ----------------------------------------------------------------------

    async def lookup(self, m: Lookup) -> Found | None:
        """Say how long a prefix of a key is stored, with all that its end needs.

        None: it was ended early, and reported then.
        """
        chain = self._chains.get(m.job)
        if chain is None:
            return None
        try:
            async with self._limit:
                pages = await self._look_up(m, chain)
        finally:
            if not chain.pages:
                self._chains.pop(m.job, None)
        if chain.ended:
            return None
        return Found(m.job, pages, self._parts(pages, m.skip) if pages > m.skip else {})

    async def _look_up(self, m: Lookup, chain: _Chain) -> int:
        chain.hashes = await asyncio.to_thread(
            page_hashes, m.raw, self.page_size, self.bigram, m.seed
        )
        names = self._names(chain.hashes, m.seed)
        there = await self._exist(names, self.pools[0].name, m.skip)
        pages = m.skip + (there.index(False) if False in there else len(there))
        others: dict[str, list[bool]] = {}
        for pool in self.pools[1:]:
            others[pool.name] = await self._exist(names[:pages], pool.name, m.skip)
        pages = self._longest(pages, m.skip, others)
        chain.pages = pages if pages > m.skip else 0
        return pages

    async def _exist(self, names: list[tuple[str, str | None]], pool: str, skip: int) -> list[bool]:
        found: list[bool] = []
        batch = self.config.batch_pages
        for at in range(skip, len(names), batch):
            keys = [PageKey(chain, parent, pool) for chain, parent in names[at : at + batch]]
            found.extend(await self.backend.exists(keys))
            if not found[-1] and pool == self.pools[0].name:
                break
        return found

    def _longest(self, pages: int, skip: int, others: dict[str, list[bool]]) -> int:
        """Return the longest length up to `pages` whose end every component can go on from."""
        for length in range(pages, skip, -1):
            fits = True
            for pool in self.pools[1:]:
                there = others[pool.name]
                wanted = self._wanted(pool, length, skip)
                fits = fits and all(there[length - skip - wanted : length - skip])
            if fits:
                return length
        return skip

    def _wanted(self, pool: StoredPool, length: int, skip: int) -> int:
        """Return how many of the last fetched pages `pool` has to have."""
        if pool.exact:
            return 1
        return length - skip if pool.window is None else min(pool.window, length - skip)

    def _parts(self, pages: int, skip: int) -> dict[str, int]:
        return {pool.name: self._wanted(pool, pages, skip) for pool in self.pools}

    async def fetch(self, m: StartFetch) -> FetchDone | None:
        """Read pages into host slots, what every component needs of the end first.

        None: it was ended early, and reported then.
        """
        chain = self._chains.get(m.job)
        if chain is None:
            return None
        try:
            async with self._limit:
                if not chain.stop:
                    await self._fetch(m, chain)
        finally:
            self._chains.pop(m.job, None)
        return None if chain.ended else self._done(m.job, chain)

    async def _fetch(self, m: StartFetch, chain: _Chain) -> None:
        names = self._names(chain.hashes, None)
        for pool in reversed(self.pools):
            slots = m.slots.get(pool.name)
            if slots is None:
                continue
            if chain.stop:
                return
            first = m.pages - len(slots) // pool.host.page_size
            got = await self._read(pool, slots, names[first : m.pages], chain)
            if pool is not self.pools[0] and got < m.pages - first:
                return

    async def _read(
        self, pool: StoredPool, slots: Slots, names: list[tuple[str, str | None]], chain: _Chain
    ) -> int:
        """Read pages in order; return how many leading ones came."""
        host = slots[:: pool.host.page_size] // pool.host.page_size
        known = chain.known[pool.name] = np.zeros(len(names), dtype=np.uint64)
        batch = self.config.batch_pages
        got = 0
        for at in range(0, len(names), batch):
            part = names[at : at + batch]
            keys = [PageKey(name, parent, pool.name) for name, parent in part]
            data = np.empty((len(part), pool.host.page_bytes), dtype=np.uint8)
            views = [data[place].data for place in range(len(part))]
            digests = np.zeros(len(part), dtype=np.uint64)
            there = await self.backend.get_into(keys, views, digests)
            if chain.stop:
                break
            good = there.index(False) if False in there else len(there)
            if good:
                chain.writing = True
                await asyncio.to_thread(pool.host.write_pages, host[at : at + good], data[:good])
                chain.writing = False
                known[at : at + good] = digests[:good]
            got += good
            self._fetched += good * pool.host.page_bytes
            if pool is self.pools[0]:
                chain.got = got
            if good < len(part) or chain.stop:
                break
        return got


def _leading(done: Sequence[bool], owner: Sequence[int], pages: int) -> int:
    """Return how many leading pages are stored with all that belongs to them."""
    failed = [page for page, there in zip(owner, done, strict=True) if not there]
    return min(failed, default=pages)
