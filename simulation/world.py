"""The world of a simulated run: caches on one loop, what they stand on, and what was found wrong.

Everything that the schedulers share is here. A cache may be closed, or killed, and another take
its place on the same disk: that begins a new *era*, in which nothing of the old one is held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xxhash

from radixtide.actors.agreement import Agreement
from radixtide.actors.cache import UnifiedRadixCache
from radixtide.actors.envelope import Envelope, PassThrough
from radixtide.actors.inspection import audit_now, tree_now
from radixtide.components.api import CacheStats, Slots
from radixtide.configs.schema import HostConfig, StorageConfig
from radixtide.simulation.agreement import agreements
from radixtide.simulation.case import Case
from radixtide.simulation.dice import dice
from radixtide.simulation.engine import SimulatedEngine
from radixtide.simulation.injector import Injector
from radixtide.simulation.loop import SimulatedLoop
from radixtide.simulation.oracle import Oracle
from radixtide.simulation.sparing import Sparing
from radixtide.simulation.store import Disk, SimulatedStore
from radixtide.tiers.copy_engine import CopyJob

if TYPE_CHECKING:
    from radixtide.simulation.journal import JournalWriter
    from radixtide.simulation.plan import Fault

DEEP_EVERY: Final = 16
"""Audited steps between two looks at every byte."""
LOOK_EVERY: Final = 3
RECENT: Final = 8
PAST: Final = 32
KEPT: Final = 20
"""Violations that are told."""
CLOSE_S: Final = 5.0
SCRIBBLE: Final = -7.0


class StopRun(Exception):
    """The run ends here: something was found, or it was to go so far only."""


def stats_now(cache: UnifiedRadixCache) -> CacheStats:
    """Return what ``cache.stats()`` would: it asks no actor, so it waits for nothing."""
    asking = cache.stats()
    try:
        asking.send(None)
    except StopIteration as answered:
        stats: CacheStats = answered.value
        return stats
    raise AssertionError("stats() had to wait")


class World:
    """One run's caches, disk, oracle and faults.

    ``era``: counts the caches that took the place of others. ``violations``: what was found.
    ``recent``: prompts that were cached lately, as (namespace, tokens); ``past``: longer ago, too,
    each once. ``weights``: version of the model's weights, as stored pages are named by.
    ``chosen``: what several ranks chose from, by how often they had in this era.
    """

    def __init__(
        self,
        case: Case,
        loop: SimulatedLoop,
        journal: JournalWriter | None,
        stop_at: int | None,
        on_step: Callable[[int], None] | None,
    ) -> None:
        self.case = case
        self.setup = case.setup
        self.config = case.setup.config()
        self.loop = loop
        self.journal = journal
        self.stop_at = stop_at
        self.on_step = on_step
        self.oracle = Oracle(case.setup)
        self.injector = Injector(case.plan, dice(case.seed, "faults"), loop, self._fault)
        self.faulty = bool(case.plan.faults)
        self.disk = Disk()
        self.caches: list[UnifiedRadixCache] = []
        self.stores: list[SimulatedStore] = []
        self.era = 0
        self.steps = 0
        self.ended = 0
        self.violations: list[str] = []
        self.recent: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(self.setup.ranks)]
        self.past: list[dict[tuple[int, tuple[int, ...]], None]] = [
            {} for _ in range(self.setup.ranks)
        ]
        self.weights = 0
        self.chosen: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self.doubtful: list[list[tuple[str, Slots]]] = [[] for _ in range(self.setup.ranks)]
        self.doubts = 0
        self.calls: dict[asyncio.Task[Any], None] = {}
        self.stopping = False
        self.tree: str | None = None
        self._open = asyncio.Event()
        self._audits = 0
        self._seen: dict[int, tuple[int, int]] = {}
        self._made = 0
        self._answers = xxhash.xxh3_64()
        self._stream: list[tuple[Callable[[], None], asyncio.Future[None]]] = []

    # -- caches ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the caches, one a rank."""
        ranks = self.setup.ranks
        groups: list[Agreement | None] = [None]
        if ranks > 1:
            groups = [*agreements(self.loop, ranks, self.injector)]
        self.caches = [
            UnifiedRadixCache(
                self.config,
                agreement=group,
                make_engine=self._make_engine,
                make_store=self._make_store,
            )
            for group in groups
        ]
        await asyncio.gather(*(cache.__aenter__() for cache in self.caches))
        for rank, cache in enumerate(self.caches):
            self.oracle.bind(cache, rank)
            # Something always listens, so that a run is the same with a journal and without.
            cache.add_interceptor(PassThrough() if self.journal is None else self.journal)
            if ranks > 1:
                cache.add_interceptor(Sparing(self.injector))
            else:
                self.injector.install(cache)
        self._open.set()

    async def opened(self) -> None:
        """Wait until there is an open cache."""
        # More than once: it may be about to be replaced when who waited for it has its turn.
        while not self.is_open:
            await self._open.wait()

    @property
    def is_open(self) -> bool:
        """Whether there is an open cache, and no other is about to take its place."""
        return self._open.is_set()

    def _make_engine(self, host: HostConfig, ends: Any) -> SimulatedEngine:
        self._made += 1
        luck = dice(self.case.seed, f"copies/{self._made}")
        return SimulatedEngine(self.loop, ends, luck, self.injector, self._copied, host.verify)

    def _make_store(self, storage: StorageConfig) -> SimulatedStore:
        self._made += 1
        luck = dice(self.case.seed, f"storage/{self._made}")
        disk, version = self.disk, storage.weight_version

        def note(operation: str, keys: Any, answers: Any, error: Any) -> None:
            self._stored(operation, keys, answers, error)
            self.found(*disk.whose(operation, keys, answers, version))

        store = SimulatedStore(self.loop, disk, luck, self.injector, note)
        self.stores.append(store)
        return store

    def fresh_disk(self) -> None:
        """Let the stores that are opened from now on find nothing."""
        self.disk = Disk()

    async def restart(self, hard: bool) -> None:
        """Close the caches, or kill them, and open others on the same disk."""
        if not self.is_open:
            await self.opened()
            return
        self._open.clear()
        self.era += 1
        self.sync()
        if hard:
            for store in self.stores:
                store.crash()
        self.stores.clear()
        for cache in self.caches:
            await self.close(cache, 0.0 if hard else CLOSE_S)
        for rank in range(self.setup.ranks):
            self.doubtful[rank].clear()
        self.doubts = 0
        self.weights = 0
        self.chosen.clear()
        if self.journal is not None:
            self.journal.note_restart("killed" if hard else "closed")
        await self.start()
        for rank in range(self.setup.ranks):
            self.oracle.restarted(rank)

    async def close(self, cache: UnifiedRadixCache, seconds: float) -> None:
        """Close a cache, which must not take for ever."""
        if self.setup.ranks == 1:
            self.injector.uninstall(cache)
        closing = self.loop.create_task(cache.close(seconds))
        await asyncio.wait((closing,), timeout=CLOSE_S + 30.0)
        if not closing.done():
            self.found("close: it has not returned after 30 s more than it was given")
            closing.cancel()
            return
        closing.result()

    # -- what is noted ----------------------------------------------------------------------

    def found(self, *violations: str) -> None:
        """Note what is wrong."""
        for one in violations:
            if len(self.violations) < KEPT:
                self.violations.append(one)

    def answered(self, text: str) -> None:
        """Take an answer into the digest of the run."""
        self._answers.update(text.encode())

    @property
    def digest(self) -> str:
        """XXH3-64 of all answers."""
        return self._answers.hexdigest()

    def _fault(self, fault: Fault, subject: Envelope | CopyJob | str) -> None:
        if self.journal is not None:
            self.journal.note_fault(fault, subject)

    def _copied(self, what: str, job: CopyJob, error: str | None) -> None:
        if self.journal is not None:
            self.journal.note_copy(job.number, job.direction, what, error)

    def _stored(self, operation: str, keys: Any, answers: Any, error: Any) -> None:
        if self.journal is not None:
            said = None if error is None else f"{type(error).__name__}: {error}"
            self.journal.note_store(operation, "over", len(keys), said)

    def remember(self, rank: int, space: int, tokens: tuple[int, ...]) -> None:
        """Let a prompt that was cached be chosen again."""
        recent = self.recent[rank]
        recent.append((space, tokens))
        del recent[:-RECENT]
        past = self.past[rank]
        past.pop((space, tokens), None)
        past[space, tokens] = None
        if len(past) > PAST:
            del past[next(iter(past))]

    def share_prompts(self) -> None:
        """Let all ranks choose from what the first one knows: one may have missed an answer."""
        for rank in range(1, self.setup.ranks):
            self.recent[rank] = list(self.recent[0])
            self.past[rank] = dict(self.past[0])

    # -- the device -------------------------------------------------------------------------

    def later(self, seconds: float, work: Callable[[], None]) -> asyncio.Future[None]:
        """Let the device do `work` in `seconds`, or before anything else touches its bytes.

        Returns what becomes done then. What is computed is in order on a device, so whoever reads
        or writes there later sees it; copies go beside it, and have to wait for the future.
        """
        done: asyncio.Future[None] = self.loop.create_future()
        self._stream.append((work, done))
        self.loop.call_later(seconds, self.sync)
        return done

    def sync(self) -> None:
        """Let the device finish what it was given."""
        stream, self._stream = self._stream, []
        for work, done in stream:
            work()
            if not done.done():
                done.set_result(None)

    def scribble(self, rank: int, component: str, slots: Slots) -> None:
        """Overwrite `slots`, as a device does before it has computed what is to be there."""
        for layer in self.caches[rank].memory[component].parts():
            for part in layer:
                part.numpy()[np.asarray(slots)] = SCRIBBLE

    # -- what must hold -----------------------------------------------------------------------

    def look(self) -> None:
        """Audit each cache that is not in the middle of an edit; now and then, every byte."""
        if not self.is_open:
            return
        for rank, cache in enumerate(self.caches):
            self.found(*self.oracle.noted(rank))
            handled = self._handled(cache)
            if self._seen.get(rank) == handled:
                continue
            report = audit_now(cache)
            if report is None:
                continue
            self._seen[rank] = handled
            if not report.ok:
                self.found(*(f"audit: {one.clause}: {one.message}" for one in report.violations))
                if self.journal is not None:
                    self.journal.note_audit(report.violations)
                continue
            self._audits += 1
            if not (self.faulty or self.calls or self.doubts) and self._quiet(cache):
                self.found(*self.oracle.idle(stats_now(cache), rank))
            if not self._audits % DEEP_EVERY:
                self.sync()
                self.found(*self.oracle.deep(rank))
            if not self._audits % LOOK_EVERY:
                self.sync()
                self.found(*self.oracle.look(rank))

    @staticmethod
    def _quiet(cache: UnifiedRadixCache) -> bool:
        """Return whether no message waits, and none is being handled."""
        system = cache._system  # a look past the mailboxes
        return system is not None and system.quiet

    def _handled(self, cache: UnifiedRadixCache) -> tuple[int, int]:
        """Return what rises with every message that an actor handles."""
        system = cache._system  # a look past the mailboxes
        assert system is not None
        return self.era, sum(cell.handled + cell.failures for cell in system._cells)

    def step_over(self) -> None:
        """Count a step that is over; end the run where it is to end. Raises StopRun."""
        if self.stopping:
            raise StopRun
        self.ended += 1
        self.look()
        if self.on_step is not None:
            self.on_step(self.ended)
        reached = self.stop_at is not None and self.ended >= self.stop_at
        if self.violations or reached:
            self.stopping = True
            raise StopRun

    def show_tree(self) -> str | None:
        """Return the tree of the first cache as it is now; None where it is being edited."""
        return tree_now(self.caches[0]) if self.caches and self.is_open else None
