"""Caches under faults, for a test of a scheduler: opened, watched, and audited at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.actors.tier_making import open_by_url
from radixtide.components.policies import plugin_policies
from radixtide.components.registry import plugin_components
from radixtide.configs.loader import load_config
from radixtide.configs.schema import CacheConfig, HostConfig, StorageConfig
from radixtide.simulation.dice import dice
from radixtide.simulation.engine import SimulatedEngine
from radixtide.simulation.faulty_engine import FaultyEngine
from radixtide.simulation.faulty_store import FaultyStore
from radixtide.simulation.injector import CANCELLED, Injector
from radixtide.simulation.journal import JournalWriter
from radixtide.simulation.loop import SimulatedLoop
from radixtide.simulation.plan import Fault, FaultPlan
from radixtide.simulation.plan_reading import find_plan
from radixtide.simulation.store import Disk, SimulatedStore
from radixtide.testing.watching import Watch, own_crashes
from radixtide.tiers.copy_engine import CopyEngine
from radixtide.tiers.copy_making import make_engine as real_engine
from radixtide.tiers.storage.base import StorageBackend

QUIET_S: Final = 60.0
"""Seconds after which transfers that do not end, when faults have, are an error."""
TOLD: Final = 8
"""Locks and requests that are told of those that are still held."""

Plan = FaultPlan | Fault | str | Path
"""A plan, a single fault, the name of a plan that comes along, or a TOML file."""


class Unclean(AssertionError):
    """What a test left behind: what the audit found, or what is still held."""


def was_injected(error: asyncio.CancelledError) -> bool:
    """Return whether a plan's ``cancel_caller`` did this, and no one wants the task to end.

    A test's scheduler calls ``asyncio.current_task().uncancel()`` then, and goes on.
    """
    return error.args == (CANCELLED,)


class FaultyCaches:
    """Opens caches under a plan of faults, as ``async with faulty_cache(config) as cache``.

    On a :class:`SimulatedLoop` copies and stores are simulated, in virtual time; on any other loop
    they are the real ones, which fail where the plan says so.

    Args:
        plan: which faults, unless a call names others.
        seed: of all that is drawn.
        journal: written to, where there is one.

    ``injected``: faults so far, by kind, over all caches.
    """

    def __init__(
        self, plan: Plan = "none", seed: int = 0, journal: JournalWriter | None = None
    ) -> None:
        self.plan = _plan(plan)
        self.seed = seed
        self.journal = journal
        self.disk = Disk()
        self._injectors: list[Injector] = []
        self._made = 0

    @property
    def injected(self) -> dict[str, int]:
        """Faults that happened, by kind."""
        total: dict[str, int] = {}
        for one in self._injectors:
            for kind, count in one.counts.items():
                total[kind] = total.get(kind, 0) + count
        return total

    def __call__(
        self,
        config: CacheConfig | str | Path,
        plan: Plan | None = None,
        *,
        empty: bool = True,
        disk: Disk | None = None,
    ) -> AbstractAsyncContextManager[UnifiedRadixCache]:
        """Return an open cache under faults, for ``async with``.

        The cache is audited after every operation. When the block ends well faults stop, all
        transfers end, and it is audited once more. Crashes that the plan makes do not count against
        ``limits.restarts_max``; all others do, and fail the test.

        Args:
            config: a config, or the path of a TOML file.
            plan: which faults; None: those of this factory.
            empty: also see that no lock, request or slot is held.
            disk: what simulated stores keep their pages on; None: one for all of this factory.

        Raises:
            Unclean: what the audit found, or what is held.
            ConfigError: as the cache, and as :func:`find_plan`.
        """
        if not isinstance(config, CacheConfig):
            config = load_config(
                Path(config), policies=plugin_policies(), components=plugin_components()
            )
        return self._open(config, self.plan if plan is None else _plan(plan), empty, disk)

    @contextlib.asynccontextmanager
    async def _open(
        self, config: CacheConfig, plan: FaultPlan, empty: bool, disk: Disk | None
    ) -> AsyncGenerator[UnifiedRadixCache, None]:
        loop = asyncio.get_running_loop()
        self._made += 1
        note = None if self.journal is None else self.journal.note_fault
        luck = dice(self.seed, f"faults/{self._made}")
        injector = Injector(plan, luck, loop, note)
        self._injectors.append(injector)

        def make_engine(host: HostConfig, ends: Any) -> CopyEngine:
            if isinstance(loop, SimulatedLoop):
                copies = dice(self.seed, f"copies/{self._made}")
                return SimulatedEngine(loop, ends, copies, injector, verify=host.verify)
            return FaultyEngine(real_engine(ends, host.backend, host.verify), injector, loop)

        def make_store(storage: StorageConfig) -> StorageBackend:
            if isinstance(loop, SimulatedLoop):
                stores = dice(self.seed, f"storage/{self._made}")
                return SimulatedStore(loop, disk or self.disk, stores, injector)
            return FaultyStore(open_by_url(storage), injector)

        cache = UnifiedRadixCache(config, make_engine=make_engine, make_store=make_store)
        async with cache:
            if self.journal is not None:
                # First, so that it sees what faults do.
                cache.add_interceptor(self.journal)
            watch = Watch(cache)
            cache.add_interceptor(watch)
            injector.install(cache)
            try:
                yield cache
            except BaseException as error:
                for text in (*watch.found, *own_crashes(cache)):
                    error.add_note(text)
                raise
            finally:
                injector.heal()
                injector.uninstall(cache)
            await check_clean(cache, empty=empty, before=watch.found)


def _plan(plan: Plan) -> FaultPlan:
    return FaultPlan((plan,), "one fault") if isinstance(plan, Fault) else find_plan(plan)


async def check_clean(cache: UnifiedRadixCache, *, empty: bool, before: Sequence[str] = ()) -> None:
    """Let transfers end, audit, and, with `empty`, see that nothing is held. Raises Unclean.

    `before`: what was found on the way.
    """
    __tracebackhide__ = True
    await cache.drain(QUIET_S)
    report = await cache.audit()
    wrong = list(before) + [f"{one.clause}: {one.message}" for one in report.violations]
    stats = await cache.stats()
    if empty and (stats.receipts or stats.requests):
        wrong.append(
            f"{stats.receipts} locks and {stats.requests} requests are still held: {_whose(cache)}"
        )
    for name, tiers in stats.pools.items():
        for tier, pool in tiers.items():
            if empty and (pool.held or pool.in_flight):
                wrong.append(
                    f"{name} on {tier}: {pool.held} slots are held, {pool.in_flight} in flight"
                )
    wrong += own_crashes(cache)
    if wrong:
        raise Unclean("the cache is not clean at the end of the test:\n  " + "\n  ".join(wrong))


def _whose(cache: UnifiedRadixCache) -> str:
    """Return who holds what, in words: each lock with its request and its node, each request."""
    state = cache._state  # whoever asks by a call would wait behind what is wrong
    told = [
        f"lock {number} of "
        f"{'nobody in particular' if one.rid is None else f'request {one.rid!r}'} on {one.node}"
        for number, one in state.receipts.items()
    ]
    told += [
        f"request {entry.req.rid!r} ({entry.req.cache_protected_len} tokens cached)"
        for entry in state.ledger.entries()
    ]
    rest = f"; and {len(told) - TOLD} more" if len(told) > TOLD else ""
    return "; ".join(told[:TOLD]) + rest


__all__ = ("FaultyCaches", "Plan", "Unclean", "check_clean", "was_injected")
