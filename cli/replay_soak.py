"""``radixtide replay --faults PLAN --minutes M``: many clients at once, under faults, for long.

The trace is served again and again by as many clients as may run, on the real loop and with real
threads, while a plan of faults loses messages, crashes actors, fails copies and cancels callers.
Every client lives with that (:mod:`radixtide.cli.replay_client`). From time to time the books are
audited and the memory is measured. In the end faults stop, all transfers end, and nothing may be
held.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final

import msgspec

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.actors.inspection import audit_now
from radixtide.actors.tier_making import open_by_url
from radixtide.cli.replay_bytes import WrongBytes, pool_bytes
from radixtide.cli.replay_client import Client, Room
from radixtide.cli.replay_costs import Limits
from radixtide.cli.replay_fit import fit_config
from radixtide.cli.replay_memory import Memory
from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_run import (
    ReplayOptions,
    load_options_config,
    loop_factory,
    one_torch_thread,
    open_source,
)
from radixtide.cli.replay_source import Source, Summary, TraceRequest, summarise
from radixtide.cli.replay_tiers import Tiers
from radixtide.configs.errors import InvalidInput, RadixtideError
from radixtide.configs.schema import CacheConfig, HostConfig, StorageConfig
from radixtide.simulation.dice import dice
from radixtide.simulation.faulty_engine import FaultyEngine
from radixtide.simulation.faulty_store import FaultyStore
from radixtide.simulation.injector import Injector
from radixtide.simulation.plan import FaultPlan
from radixtide.tiers.copy_engine import CopyEngine
from radixtide.tiers.copy_making import make_engine as copy_engine
from radixtide.tiers.storage.base import StorageBackend

RESTARTS_MAX: Final = 1_000_000_000
"""Crashes that a plan may plant in one actor: it is to live through all of them."""
TIMEOUT_MAX_S: Final = 5.0
"""Deadline of a call, unless the config's is shorter: so that calls do meet it."""
GRACE_S: Final = 30.0
"""Seconds in which requests that are under way may end when the time is over."""
QUIET_S: Final = 600.0
"""Seconds after which transfers that do not end are an error."""
SAMPLES: Final = 240
"""Looks at memory and books in a run, at most one a second."""
AUDIT_SHARE: Final = 0.05
"""Share of the time that audits may take."""


class SoakResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.

    ``passes``: times the trace was begun. ``troubles``: calls that ended in an error, by call and
    error. ``faults``: how many were injected, by kind. ``messages``: sent between actors.
    ``audits``: how often the books were audited. ``violations``: what these and the clients found.
    ``held``: what was still held at the end, in words; nothing, if all is well.
    """

    source: str
    plan: str
    clients: int
    passes: int
    interrupted: bool
    recording: Recording
    troubles: dict[str, int]
    faults: dict[str, int]
    messages: int
    audits: int
    violations: tuple[str, ...]
    held: tuple[str, ...]
    memory: Memory
    counters: dict[str, int]
    crashes: dict[str, int]
    config: CacheConfig
    wall_s: float
    loop: str


class Soak:
    """One run. ``minutes``: how long; None: the trace once."""

    def __init__(
        self,
        config: CacheConfig,
        source: Source,
        limits: Limits,
        plan: FaultPlan,
        minutes: float | None,
        recording: Recording,
        on_step: Callable[[Recording], None] | None = None,
    ) -> None:
        if config.host is not None and config.host.bandwidth is not None:
            raise InvalidInput(
                "--bandwidth and --faults: a run under faults goes by the real clock, and copies "
                "that are modelled go by a virtual one; leave out one of them"
            )
        replace = msgspec.structs.replace
        self.config = replace(
            config,
            limits=replace(
                config.limits,
                restarts_max=RESTARTS_MAX,
                call_timeout_s=min(config.limits.call_timeout_s, TIMEOUT_MAX_S),
            ),
        )
        self._source = source
        self._limits = limits
        self._plan = plan
        self._seconds = None if minutes is None else minutes * 60.0
        self._recording = recording
        self._on_step = on_step
        self._clients = min(limits.max_running, config.pools.requests.max_requests)
        self._passes = 0
        self._violations: list[str] = []
        self._troubles: Counter[str] = Counter()
        self._memory = Memory()
        self._audits = 0
        self._audit_s = 0.0
        self._stop = False
        self._began = 0.0

    async def run(self) -> SoakResult:
        """Serve until the time is over or somebody interrupts; then see what is left."""
        loop = asyncio.get_running_loop()
        # Which faults have happened is not asked here, and would fill memory.
        luck = dice(self._limits.seed, "faults")
        self._injector = injector = Injector(self._plan, luck, loop, remembers=False)
        interrupted = False
        with _quietly():
            async with self._cache() as cache:
                injector.install(cache)
                self._began = loop.time()
                started = perf_counter()
                try:
                    await self._serve(cache)
                except asyncio.CancelledError:
                    # The runner turned Ctrl-C into this.
                    interrupted = True
                injector.heal()
                injector.uninstall(cache)
                wall_s = perf_counter() - started
                held = await self._end(cache)
                stats = await cache.stats()
        return SoakResult(
            source=self._source.name,
            plan=self._plan.name,
            clients=self._clients,
            passes=self._passes,
            interrupted=interrupted,
            recording=self._recording,
            troubles=dict(sorted(self._troubles.items())),
            faults={kind: count for kind, count in sorted(injector.counts.items()) if count},
            messages=injector.messages,
            audits=self._audits,
            violations=tuple(self._violations),
            held=held,
            memory=self._memory,
            counters=stats.counters,
            crashes={name: one.failures for name, one in stats.actors.items()},
            config=self.config,
            wall_s=wall_s,
            loop=type(loop).__module__.partition(".")[0],
        )

    def _cache(self) -> UnifiedRadixCache:
        loop = asyncio.get_running_loop()

        def make_engine(host: HostConfig, ends: Any) -> CopyEngine:
            real = copy_engine(ends, host.backend, host.verify)
            return FaultyEngine(real, self._injector, loop)

        def make_store(storage: StorageConfig) -> StorageBackend:
            return FaultyStore(open_by_url(storage), self._injector)

        return UnifiedRadixCache(self.config, make_engine=make_engine, make_store=make_store)

    # Serving

    async def _serve(self, cache: UnifiedRadixCache) -> None:
        tiers = Tiers(cache, self._recording.calls)
        tiers.content = pool_bytes(cache.memory)
        requests = self._requests()
        room = Room(self._clients)
        clients = [
            asyncio.ensure_future(
                self._client(
                    Client(
                        cache,
                        self._source.block,
                        self._limits,
                        self._recording,
                        tiers,
                        room,
                        self._troubles,
                    ),
                    requests,
                )
            )
            for _ in range(self._clients)
        ]
        watch = asyncio.ensure_future(self._watch(cache))
        try:
            # Whoever fails ends the run: there is something to look at.
            pending = set(clients)
            while pending and not self._stop:
                done, pending = await asyncio.wait(
                    pending, timeout=self._left(), return_when=asyncio.FIRST_EXCEPTION
                )
                if not done or any(task.exception() is not None for task in done):
                    break
            self._stop = True
            if pending:
                await asyncio.wait(pending, timeout=GRACE_S)
        finally:
            self._stop = True
            # What is cancelled here aborts its request, which must not meet faults for ever.
            self._injector.heal()
            for task in (*clients, watch):
                task.cancel()
            ended = await asyncio.gather(*clients, watch, return_exceptions=True)
        for error in ended:
            if isinstance(error, WrongBytes):
                self._violations.append(str(error))
            elif isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error

    def _left(self) -> float | None:
        """Return how much of the time is left, in seconds; None: there is no end to it."""
        if self._seconds is None:
            return None
        return max(self._began + self._seconds - asyncio.get_running_loop().time(), 0.0)

    def _requests(self) -> Iterator[TraceRequest]:
        """Yield requests until the time is over, each with a number of its own."""
        loop = asyncio.get_running_loop()
        number = 0
        while True:
            self._passes += 1
            for request in self._source:
                late = self._seconds is not None and loop.time() - self._began > self._seconds
                if self._stop or late:
                    return
                yield msgspec.structs.replace(request, number=number)
                number += 1
            if self._seconds is None:
                return

    async def _client(self, client: Client, requests: Iterator[TraceRequest]) -> None:
        for request in requests:
            await client.serve(request)
            self._recording.now_ns = int((asyncio.get_running_loop().time() - self._began) * 1e9)
            if self._on_step is not None:
                self._on_step(self._recording)
            await asyncio.sleep(0)

    # Watching

    async def _watch(self, cache: UnifiedRadixCache) -> None:
        """Measure memory, and audit, from time to time."""
        loop = asyncio.get_running_loop()
        pause = 1.0 if self._seconds is None else max(self._seconds / SAMPLES, 1.0)
        while True:
            self._memory.sample(loop.time() - self._began)
            self._recording.calls.roll()
            if self._audit_s <= AUDIT_SHARE * (loop.time() - self._began):
                self._audit(cache)
            await asyncio.sleep(pause)

    def _audit(self, cache: UnifiedRadixCache) -> None:
        began = perf_counter()
        report = audit_now(cache)
        self._audit_s += perf_counter() - began
        if report is None:
            return  # in the middle of an edit; the next look finds another moment
        self._audits += 1
        if report.violations:
            at = asyncio.get_running_loop().time() - self._began
            found = [f"after {at:.1f} s: {v.clause}: {v.message}" for v in report.violations[:8]]
            self._violations.extend(found)
            self._stop = True

    async def _end(self, cache: UnifiedRadixCache) -> tuple[str, ...]:
        """Let all transfers end, audit, and tell what is still held."""
        held: list[str] = []
        try:
            if cache.config.host is not None:
                await cache.drain(QUIET_S)
            report = await cache.audit()
        except RadixtideError as error:
            return (f"the cache does not come to rest: {error}",)
        self._audits += 1
        self._violations.extend(f"at the end: {v.clause}: {v.message}" for v in report.violations)
        self._memory.sample(asyncio.get_running_loop().time() - self._began)
        stats = await cache.stats()
        if stats.receipts or stats.requests:
            held.append(f"{stats.receipts} locks, {stats.requests} requests")
        for name, tiers in stats.pools.items():
            for tier, pool in tiers.items():
                if pool.held or pool.protected or pool.in_flight:
                    held.append(
                        f"{name} on {tier}: {pool.held} slots held, {pool.protected} protected, "
                        f"{pool.in_flight} in flight"
                    )
        return tuple(held)


def run_soak(
    options: ReplayOptions,
    plan: FaultPlan,
    minutes: float | None,
    on_start: Callable[[Source, Summary], Callable[[Recording], None] | None],
) -> SoakResult:
    """Serve what `options` name under a plan of faults; see :class:`Soak`.

    Raises: ConfigError, TraceError, InvalidInput before anything is done.
    """
    if options.sequential:
        raise InvalidInput("--sequential: under faults many clients are served at once")
    config = load_options_config(options)
    source = open_source(options, config)
    summary = summarise(source, source.block, distinct=options.capacity_blocks == 0)
    config = fit_config(config, options, source.block, summary)
    on_step = on_start(source, summary)
    soak = Soak(config, source, options.limits, plan, minutes, Recording(), on_step)
    with asyncio.Runner(loop_factory=loop_factory(options.uvloop)) as runner, one_torch_thread():
        return runner.run(soak.run())


@contextmanager
def _quietly() -> Iterator[None]:
    """Let the library not log each crash and loss that a plan makes: they are counted."""
    log = logging.getLogger("radixtide")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


__all__ = ("Soak", "SoakResult", "run_soak")
