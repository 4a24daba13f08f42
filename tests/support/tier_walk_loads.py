"""Moves of a walk between the tiers: loads, fetches, flushes, and what goes wrong there."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from radixtide import EvictParams, Request
from radixtide.actors.tier_handles import LoadBack, Prefetch
from radixtide.components.api import MatchResult
from radixtide.configs.errors import Busy
from radixtide.configs.schema import StorageConfig
from radixtide.tiers.storage.base import PageKey
from radixtide.tree.key import RadixKey
from radixtide.tree.node import HASH_BYTES, IN_STORAGE
from support.caches import state_of
from support.marks import key_marks
from support.seams import host_pools, trouble_store
from support.tier_walk_base import CALM, LEFT
from support.tier_walk_device import OnDevice
from support.tier_walk_setup import TierSetup

LOADS = 5
FETCHES = 5


@dataclass(eq=False)
class Load:
    """A load that was begun. ``req``: who has taken it. ``over``: its end is known."""

    handle: LoadBack
    key: RadixKey
    asked: int
    req: Request | None = None
    over: bool = False
    closed: bool = False


@dataclass(eq=False)
class Fetch:
    """A fetch that was begun."""

    handle: Prefetch
    key: RadixKey
    req: Request | None = None


class BetweenTiers(OnDevice):
    """Moves between the tiers."""

    def __init__(self, setup: TierSetup, seed: int) -> None:
        super().__init__(setup, seed)
        self.loads: list[Load] = []
        self.fetches: list[Fetch] = []

    # -- loads ---------------------------------------------------------------------------------

    async def begin_load(
        self, dice: random.Random, found: MatchResult, req: Request | None = None
    ) -> Load | None:
        """Begin to load what a match has found; None when the caller left."""
        key = found.key
        assert key is not None
        handle: Any = await self.taken(dice, self.cache.load_back(found, req))
        if handle is LEFT:
            return None
        load = Load(handle, key, handle.length, req)
        self.loads.append(load)
        marks = key_marks(key)
        self.check_known(marks, handle.length, "load")
        assert len(handle.device_indices) == handle.length
        assert 0 <= handle.loaded <= handle.length
        self.met["load"] += bool(handle.loaded)
        self.peek(handle, key, handle.length)
        return load

    async def load(self, dice: random.Random) -> None:
        """Load what the host has of a key, for nobody: wait, or not, or close early."""
        if len(self.loads) >= LOADS:
            return
        for _ in range(3):
            # One of which the host has something, if there is one soon.
            key = self.new_key(dice)
            found = await self.look(dice, key)
            if found is None:
                return
            if found.host_hit_length:
                break
        assert found is not None
        if not found.host_hit_length and dice.randrange(4):
            return
        count = 1 if dice.randrange(4) else 3
        self.say(f"load {key.token_ids.tolist()} x{count} host={found.host_hit_length}")
        begun = [await self.begin_load(dice, found) for _ in range(count)]
        for load in begun:
            way = dice.randrange(6)
            if load is None or way == 0:
                # Nobody waits for it; it is closed some time.
                continue
            if way == 1:
                await self.close_load(load)
            else:
                self.begin("watch", self.watch(load, closes=way < 5))

    async def watch(self, load: Load, closes: bool = False) -> None:
        """Wait for a load, and read all that it brought; close it, if it `closes`."""
        handle = load.handle
        length = await handle.wait()
        if load.closed or load.over:
            load.over = True
            return
        load.over = True
        assert length == handle.length <= load.asked
        self.met["load failed"] += handle.failed
        assert handle.failed or length == load.asked
        if load.req is None:
            await self.check_load(load)
        if closes:
            await self.close_load(load)

    async def check_load(self, load: Load) -> None:
        """Read what a load that is over has on the device: it is locked."""
        length = load.handle.length
        slots = load.handle.device_indices[:length]
        prefix = load.key.prefix(length)
        self.t.marks.check("full", slots, key_marks(prefix))
        if not length:
            return
        found = await self.look(random.Random(1), prefix)
        assert found is None or len(found.device_indices) == length, "a load is not whole"

    async def close_load(self, load: Load) -> None:
        """Close a load of nobody."""
        if load.closed:
            return
        load.closed = True
        self.loads.remove(load)
        if load.over:
            await self.check_load(load)
        await load.handle.close()

    async def end_load(self, dice: random.Random) -> None:
        """Close some load, whatever has become of it; or look at its layers."""
        mine = [load for load in self.loads if load.req is None]
        if not mine:
            return
        load = dice.choice(mine)
        if not load.over and dice.randrange(2):
            self.peek(load.handle, load.key, load.handle.length)
            return
        self.say(f"close load of {load.key.token_ids.tolist()} over={load.over}")
        await self.close_load(load)

    # -- fetches ---------------------------------------------------------------------------------

    async def begin_fetch(
        self, dice: random.Random, key: RadixKey, req: Request | None = None
    ) -> bool:
        """Begin to fetch a key from storage; wait for it, or not, or close at once.

        Returns whether there is something to fetch.
        """
        handle: Any = await self.taken(dice, self.cache.prefetch(key, req))
        if handle is LEFT:
            return True
        assert 0 <= handle.pages <= key.units // self.page
        fetch = Fetch(handle, key, req)
        self.fetches.append(fetch)
        way = dice.randrange(4)
        if way == 1:
            self.fetches.remove(fetch)
            await handle.close()
        elif way > 1:
            self.begin("watch fetch", self.watch_fetch(dice, fetch))
        return bool(handle.pages)

    async def fetch(self, dice: random.Random) -> None:
        """Fetch for nobody."""
        for _ in range(3):
            if len(self.fetches) < FETCHES:
                key = self.new_key(dice)
                self.say(f"fetch {key.token_ids.tolist()}")
                if await self.begin_fetch(dice, key):
                    return

    async def watch_fetch(self, dice: random.Random, fetch: Fetch) -> None:
        """Wait for a fetch, or leave it."""
        brought = await self.taken(dice, fetch.handle.wait())
        if brought is LEFT:
            return
        assert 0 <= brought <= fetch.handle.pages * self.page
        self.met["fetched"] += bool(brought)

    async def end_fetch(self, dice: random.Random) -> None:
        """Close some fetch."""
        if self.fetches:
            fetch = self.fetches.pop(dice.randrange(len(self.fetches)))
            self.say(f"close fetch of {fetch.key.token_ids.tolist()}")
            await fetch.handle.close()

    # -- transfers ---------------------------------------------------------------------------------

    async def release(self, dice: random.Random) -> None:
        """Let some copies come to their end, in any order; one in a few fails."""
        jobs = self.engine.held()
        dice.shuffle(jobs)
        for job in jobs[: 1 + dice.randrange(3)]:
            if not dice.randrange(6):
                self.say(f"fail {job.direction} {job.number}")
                self.bad.pop(job.number, None)
                self.engine.fail([job])
            else:
                self.say(f"release {job.direction} {job.number}")
                self.engine.release([job])
            await self.rest_inside()

    async def serve_storage(self, dice: random.Random) -> None:
        """Let waiting calls to the storage go on; now and then one fails."""
        store = self.store
        if store is None:
            return
        waiting = [one for one in ("exists", "get_into", "put_from") if store.waiting(one)]
        if not waiting:
            return
        operation = dice.choice(waiting)
        if not dice.randrange(12):
            store.fails[operation] += 1 + dice.randrange(3)
        self.say(f"let {operation} go on, {store.waiting(operation)} wait")
        store.release(operation)
        store.hold(operation)

    async def finish_all(self, dice: random.Random) -> None:
        """Let everything come to its end."""
        self.say("finish all")
        for _ in range(3000):
            for job in self.engine.held():
                self.engine.release([job])
                await self.rest_inside()
            for store in self.stores:
                store.fails.clear()
                store.release()
            await self.rest_inside()
            # A storage is closed in a thread of its own.
            detaching = any(one.name == "switch_storage" for one in self.going)
            if detaching and not self.engine.waiting:
                self._pause(CALM + 1)
            busy = self.engine.waiting or any(store.gated for store in self.stores)
            if not busy and not detaching:
                break
        else:
            raise AssertionError("there is no end of transfers")
        if self.store is not None:
            self.store.hold("exists", "get_into", "put_from")
        me = asyncio.current_task()
        stuck = [one.name for one in self.going if one.task is not me]
        left = [job for job in self.tiers.jobs if not job.attempts]
        assert not left, f"transfers that nobody ends: {left}"
        if not len(self.tiers.jobs):
            assert not stuck, f"they wait for nothing: {stuck}"
            assert self.tiers.idle, "something waits that nobody begins"

    async def sink(self, dice: random.Random) -> None:
        """Let all that can go down a tier go there, or two tiers where there is a storage."""
        await self.finish_all(dice)
        deep = self.store is not None and bool(dice.randrange(2))
        self.say(f"sink {deep}")
        await self.cache.evict(EvictParams(10**6))
        if deep and self.tiers.idle:
            await self.cache.flush("host")

    async def leave(self, dice: random.Random) -> None:
        """Let the caller of something that waits go away."""
        leaving = [one for one in self.going if one.leaves]
        if leaving:
            one = dice.choice(leaving)
            self.say(f"leave {one.name}")
            one.task.cancel()

    async def drain(self, dice: random.Random) -> None:
        """Wait until nothing moves."""
        if not any(one.name == "drain" for one in self.going[:-1]):
            self.say("drain")
            await self.taken(dice, self.cache.drain())

    async def advance(self, dice: random.Random) -> None:
        """Let time pass: pins and fetches have deadlines, an open circuit closes."""
        seconds = dice.choice((0.1, 1.0, 3.0))
        self.say(f"advance {seconds}")
        self.loop.now += seconds

    async def check_stored(self) -> None:
        """Assert that what is said to be in storage is there; a damaged page is not kept there."""
        jobs, store = self.cache.storage_jobs, self.store
        if jobs is None or store is None or self.setup.damage or self.inside:
            return
        nodes = [node for node in state_of(self.cache).tree if node.tiers & IN_STORAGE]
        keys = [
            PageKey(f"{node.hashes[at : at + HASH_BYTES].hex()}-{jobs.identity}", None, "full")
            for node in nodes
            for at in range(0, len(node.hashes), HASH_BYTES)
        ]
        there = await store.inner.exists(keys)
        assert all(there), f"said to be in storage, and are not: {there.count(False)} pages"

    # -- whole tiers ---------------------------------------------------------------------------

    async def flush(self, dice: random.Random) -> None:
        """Drop what is on a tier."""
        tier = "storage" if not dice.randrange(8) else dice.choice(("device", "host"))
        self.say(f"flush {tier}")
        # The storage is emptied in a thread; nothing here waits for what the walk holds.
        self.inside += 1
        try:
            await self.cache.flush(tier)
        except Busy:
            assert tier != "device"
            self.met["busy"] += 1
        finally:
            self.inside -= 1

    async def switch_storage(self, dice: random.Random) -> None:
        """Detach the storage, or attach an empty one."""
        if not self.setup.storage or any(one.name == "switch_storage" for one in self.going[:-1]):
            return
        if self.cache.storage_jobs is None:
            self.say("attach")
            fields = self.setup.storage_fields()
            self.inside += 1
            try:
                await self.cache.attach_storage(StorageConfig(url="memory:", **fields))
            finally:
                self.inside -= 1
            self.t.store = trouble_store(self.cache)
            self.take_store()
        elif not dice.randrange(5):
            self.say("detach")
            await self.cache.detach_storage()
            self.t.store = None

    async def damage(self, dice: random.Random) -> None:
        """Spoil a page on the host, or let the storage lie for a while."""
        if not self.setup.damage:
            return
        store = self.store
        if store is not None and not dice.randrange(3):
            share = dice.choice((0, 0, 3))
            salt = dice.randrange(1000)
            which = dice.choice(("refuses", "loses", "lies"))
            self.say(f"storage {which} {share}")
            setattr(store, which, lambda key: hash((key.name, salt)) % 10 < share)
            return
        victims = [
            (part.name, int(slot))
            for node in state_of(self.cache).tree
            for part in self.cache._components
            for data in (part.data(node),)
            if data.host_value is not None and data.host_link is not None
            if data.host_link.digests is not None
            for slot in data.host_value[:: host_pools(self.cache)[part.name].page_size]
        ]
        if not victims:
            return
        name, slot = dice.choice(victims)
        pool = host_pools(self.cache)[name]
        pages = np.array([slot // pool.page_size], dtype=np.int64)
        data = np.empty((1, pool.page_bytes), dtype=np.uint8)
        pool.read_pages(pages, data)
        data[0, dice.randrange(pool.page_bytes)] ^= 1 << dice.randrange(8)
        self.say(f"damage {name} {pages}")
        pool.write_pages(pages, data)
        self.met["damage"] += 1


__all__ = ("BetweenTiers", "Fetch", "Load")
