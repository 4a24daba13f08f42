"""A cache with tiers on a walk: how it comes to rest, and what must hold then.

Everything that takes part is made to wait: copies are held until the walk lets them go, calls to
the storage too, and the loop's clock is moved by hand. So a walk can be repeated step by step.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from radixtide import UnifiedRadixCache
from radixtide.actors.jobs import BACKUP, FETCH, LOAD
from radixtide.actors.tier_state import TierState
from radixtide.configs.errors import CallTimeout, LoadFailed
from radixtide.tiers.copy_engine import CopyJob
from radixtide.tree.key import RadixKey
from support.caches import state_of, system_of
from support.driver import NAMESPACES, SteppedLoop
from support.held_engine import How
from support.marks import MarkArray, key_marks
from support.seams import host_pools
from support.tier_bytes import check_slots, expected, places
from support.tier_walk_crash import OnceInAWhile
from support.tier_walk_setup import TierSetup
from support.tiered import Tiers
from support.troubled_store import TroubledStore
from support.walk import LETTERS, spell

LEFT: Final = object()
"""What a call answers whose caller has left."""
CALM: Final = 24
"""Turns of the loop without anything going on after which nothing will by itself."""
REST_S: Final = 20.0
AT_ONCE: Final = 8
"""Calls to the storage that run at once; the others wait for these."""


@dataclass(eq=False)
class Going:
    """A step that is not over: it waits for a transfer, or for room."""

    name: str
    task: asyncio.Task[None]
    leaves: bool = False


class Ground:
    """An open cache, what goes on in it, and what is known of it."""

    def __init__(self, setup: TierSetup, seed: int) -> None:
        self.setup = setup
        self.seed = seed
        self.page = setup.page
        self.loop = SteppedLoop()
        self.cache = UnifiedRadixCache(setup.config())
        self.loop.run_until_complete(self.cache.__aenter__())
        self.t = Tiers(self.cache)
        self.engine = self.t.engine
        self.engine.choose = self._held
        self.stores: list[TroubledStore] = []
        self.take_store()
        self.crashes: OnceInAWhile | None = None
        if setup.crashes:
            self.crashes = OnceInAWhile()
            self.cache.add_interceptor(self.crashes)
        self.going: list[Going] = []
        self.inside = 0
        self.known: set[int] = set()
        self.recent: list[tuple[tuple[str | None, str | None], tuple[int, ...]]] = []
        self.bad: dict[int, set[tuple[str, int]]] = {}
        self.told: set[tuple[str, int]] = set()
        self.wrong: list[str] = []
        self.transcript: list[str] = []
        self.met: Counter[str] = Counter()

    # -- parts -----------------------------------------------------------------------------

    def has(self, component: str) -> bool:
        """Return whether the cache has a component."""
        return component in self.setup.components

    @property
    def tiers(self) -> TierState:
        """The coordinator's books of the tiers."""
        books = state_of(self.cache).tiers
        assert books is not None
        return books

    @property
    def store(self) -> TroubledStore | None:
        """The storage that is attached."""
        return self.t.store

    def take_store(self) -> None:
        """Hold every call to the storage that is attached by now."""
        store = self.t.store
        if store is not None:
            store.hold("exists", "get_into", "put_from")
            self.stores.append(store)

    def say(self, line: str) -> None:
        """Write down what was done."""
        self.transcript.append(line)

    # -- coming to rest --------------------------------------------------------------------

    def _busy(self) -> bool:
        actor = self.cache._tiering
        assert actor is not None
        # What stands in a line waits for something that the walk lets go.
        if not all(cell.quiet for cell in system_of(self.cache)._cells if cell.open):
            return True
        if self.engine.moving():
            return True
        # A copy that waits for the end of work on the device is moving only after that.
        held = {job.number for job in self.engine.held()}
        blocked = any(not fence.done() for fence in self.engine.fences)
        if actor._running - held and not blocked:
            return True
        gated = sum(store.gated for store in self.stores)
        return gated < min(len(actor._tasks), AT_ONCE)

    def _why(self) -> str:
        actor = self.cache._tiering
        assert actor is not None
        cells = [cell.name for cell in system_of(self.cache)._cells if not cell.quiet]
        tasks = {number: str(task)[:200] for number, task in actor._tasks.items()}
        gated = [store.gated for store in self.stores]
        return f"actors {cells}, copies {actor._running}, storage {tasks}, of which wait {gated}"

    def _pause(self, turns: int) -> None:
        if turns > CALM:
            # Lets the engine's threads have the interpreter; nothing waits for a time to pass.
            os.sched_yield()

    async def rest(self, inside: bool = False) -> None:
        """Let the loop run until nothing goes on by itself. `inside`: of a move."""
        calm = turns = 0
        deadline = time.perf_counter() + REST_S
        while calm < CALM:
            await asyncio.sleep(0)
            turns += 1
            if self._busy() or (self.inside and not inside):
                calm = 0
                self._pause(turns)
                assert time.perf_counter() < deadline, f"no rest: {self._why()}"
            else:
                calm += 1
        over = [one for one in self.going if one.task.done()]
        self.going = [one for one in self.going if not one.task.done()]
        for one in over:
            one.task.result()
        assert not self.wrong, self.wrong

    async def rest_inside(self) -> None:
        """Let what a move has set going come to rest before the move goes on."""
        me = asyncio.current_task()
        mine = [one for one in self.going if one.task is me]
        self.going = [one for one in self.going if one.task is not me]
        self.inside += 1
        try:
            await self.rest(inside=True)
        finally:
            self.inside -= 1
            self.going += mine

    def begin(self, name: str, work: Coroutine[Any, Any, None]) -> Going:
        """Begin something that may have to wait."""
        one = Going(name, self.loop.create_task(work))
        self.going.append(one)
        return one

    @property
    def alone(self) -> bool:
        """Whether nobody else waits for something that changes what is cached."""
        me = asyncio.current_task()
        return all(one.task is me or one.name.startswith("watch") for one in self.going)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Let the current step be left while it waits in the block."""
        me = asyncio.current_task()
        mine = [one for one in self.going if one.task is me]
        for one in mine:
            one.leaves = True
        try:
            yield
        finally:
            for one in mine:
                one.leaves = False

    async def taken(self, dice: random.Random, call: Coroutine[Any, Any, Any]) -> Any:
        """Make a call that takes; now and then its caller leaves, soon or when the walk says so."""
        task = asyncio.ensure_future(call)
        if not dice.randrange(9):
            self.inside += 1
            for _ in range(dice.randrange(9)):
                await asyncio.sleep(0)
            self.inside -= 1
            if task.cancel():
                self.met["left"] += 1
        try:
            with self.leaving():
                return await task
        except asyncio.CancelledError:
            return LEFT

    # -- keys --------------------------------------------------------------------------------

    def new_key(self, dice: random.Random, *, whole: bool = False, longest: int = 7) -> RadixKey:
        """Return a key: fresh, or an old one shortened, extended or moved to another namespace."""
        page = self.page
        namespace = NAMESPACES[max(dice.randrange(len(NAMESPACES) + 9) - 9, 0)]
        letters = [dice.randrange(LETTERS) for _ in range(1 + dice.randrange(longest))]
        tokens = spell(letters, [1 + dice.randrange(2) for _ in range(dice.randrange(page))], page)
        if self.recent and dice.randrange(9):
            old_namespace, old = dice.choice(self.recent)
            kept = dice.randrange(len(old)) + 1
            namespace = old_namespace if dice.randrange(16) else namespace
            way = dice.randrange(9)
            if way <= 5:
                tokens = old
            elif way == 6:
                tokens = old[: max(kept - kept % page, 1)]
            else:
                tokens = (*old[: (kept if way == 7 else len(old)) // page * page], *tokens)
        extra = int(self.setup.bigram)
        tokens = tokens[: page * (longest + 1) + extra]
        if whole:
            tokens = tokens[: max((len(tokens) - extra) // page, 1) * page + extra]
            # A short one is filled up.
            tokens = (*tokens, *(1 for _ in range(-(len(tokens) - extra) % page)))
        if extra and len(tokens) < 2:
            tokens = (*tokens, 1, 1)
        return self.key(namespace, tokens)

    def key(self, namespace: tuple[str | None, str | None], tokens: tuple[int, ...]) -> RadixKey:
        """Return a key of these tokens."""
        return RadixKey(list(tokens), *namespace, self.setup.bigram)

    def remember(self, namespace: tuple[str | None, str | None], tokens: tuple[int, ...]) -> None:
        """Let a key that is cached be chosen again."""
        self.recent = [*self.recent[-6:], (namespace, tokens)]

    def learn(self, key: RadixKey, length: int) -> None:
        """Note that the first `length` units of a key were given to the cache."""
        marks = key_marks(key)[:length]
        self.known.update(marks[self.page - 1 :: self.page].tolist())

    def check_known(self, marks: MarkArray, length: int, what: str) -> None:
        """Assert that a prefix was given to the cache in this namespace before."""
        assert length % self.page == 0, f"{what}: {length} is not whole pages"
        if length:
            assert length <= len(marks), f"{what}: {length} of a key of {len(marks)}"
            mark = int(marks[length - 1])
            assert mark in self.known, f"{what}: {length} units, never inserted here"

    # -- copies ------------------------------------------------------------------------------

    def _held(self, job: CopyJob) -> How:
        """Hold every copy; look whether a load reads what was found to be damaged before."""
        if job.direction == "load":
            self._note_bad(job)
        return random.Random(f"{self.seed} {job.number}").choice(("copied", "late"))

    def _note_bad(self, job: CopyJob) -> None:
        actor = self.cache._tiering
        assert actor is not None
        for number in [one for one in self.bad if one not in actor._running]:
            self.told |= self.bad.pop(number)
        bad: set[tuple[str, int]] = set()
        read: set[tuple[str, int]] = set()
        for one in job.transfers:
            wanted = (job.digests or {}).get(one.pool)
            if wanted is None:
                continue
            pool = host_pools(self.cache)[one.pool]
            pages = one.host[:: pool.page_size] // pool.page_size
            found = pages[pool.digests(pages) != wanted]
            read |= {(one.pool, int(page)) for page in pages}
            bad |= {(one.pool, int(page)) for page in found}
        # What was found and is good now has been written anew.
        self.told -= read - bad
        if bad & self.told:
            self.wrong.append(f"found to be damaged, and loaded again: {sorted(bad & self.told)}")
        if bad:
            self.bad[job.number] = bad

    def peek(self, handle: Any, key: RadixKey, length: int) -> None:
        """Read the layers of a load that may be read by now, as a model would."""
        layers = len(self.t.marks.parts["full"])
        if handle.failed:
            return
        with suppress(CallTimeout, LoadFailed):
            # With its last layer the whole of it is known to be right.
            first = layers - 1 if self.setup.damage else 0
            for layer in range(first, layers):
                handle.wait_layer(layer, 0)
                self.t.marks.check(
                    "full",
                    handle.device_indices[:length],
                    key_marks(key)[:length],
                    range(0 if self.setup.damage else layer, layer + 1),
                )
                self.met["layer read"] += 1

    # -- what must hold ------------------------------------------------------------------------

    async def check_books(self) -> None:
        """Audit; pools add up; no job is left without a transfer."""
        report = await self.cache.audit()
        assert report.ok, report.violations
        for name, tiers in (await self.cache.stats()).pools.items():
            for tier, one in tiers.items():
                parts = (one.free, one.evictable, one.protected, one.held, one.in_flight)
                assert min(parts) >= 0, (name, tier, one)
                assert sum(parts) == one.size, (name, tier, one)
        actor = self.cache._tiering
        assert actor is not None
        for job in self.tiers.jobs:
            if job.report is not None or job.attempts:
                continue
            if job.kind in (BACKUP, LOAD):
                assert job.number in actor._running, f"nobody does {job.kind} {job.number}"
            else:
                tasks = {job.number, -job.number} if job.kind == FETCH else {job.number}
                assert tasks & actor._tasks.keys(), f"nobody does {job.kind} {job.number}"

    def check_nodes(self) -> None:
        """Check every slot and every byte on device and host."""
        check_slots(self.cache)
        pools = host_pools(self.cache)
        marks = self.t.marks
        for place in places(self.cache):
            for part in self.cache._components:
                data = part.data(place.node)
                wanted = expected(place, part.name, self.setup.bigram)
                if data.value is not None:
                    wrong = marks.wrong(part.name, data.value.astype(np.int64), wanted)
                    assert not wrong, f"{place.node}, {part.name} on the device: wrong at {wrong}"
                if data.host_value is None:
                    continue
                pool = pools[part.name]
                pages = data.host_value[:: pool.page_size].astype(np.int64) // pool.page_size
                found = np.empty((len(pages), pool.page_bytes), dtype=np.uint8)
                pool.read_pages(pages, found)
                good = (found == marks.page_bytes(part.name, wanted)).all(axis=1)
                if not good.all() and self.setup.damage:
                    link = data.host_link
                    assert link is not None
                    assert link.digests is not None
                    good |= pool.digests(pages) != link.digests
                assert good.all(), f"{place.node}, {part.name} on the host: wrong pages {~good}"
