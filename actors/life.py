"""The life of a cache, and how a call of its face becomes a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec

from radixtide.actors import calls
from radixtide.actors.agreement import Agreement, Alone
from radixtide.actors.cell import RUNTIME, Cell
from radixtide.actors.component_actor import ComponentActor
from radixtide.actors.conversing import ConversingCell
from radixtide.actors.coordinator import Coordinator
from radixtide.actors.envelope import QUEUE, Interceptor, Sentinel
from radixtide.actors.op_tiers import Pump
from radixtide.actors.state import State
from radixtide.actors.storage_jobs import StorageJobs
from radixtide.actors.system import ActorSystem
from radixtide.actors.tier_making import (
    MakeEngine,
    MakeStore,
    make_copy_engine,
    make_host_pools,
    open_by_url,
    open_storage_jobs,
)
from radixtide.actors.tier_state import TierState
from radixtide.actors.tiering import TieringActor, report_of_failure
from radixtide.components.base import TreeComponent
from radixtide.components.checks import as_seconds
from radixtide.components.policies import plugin_policies
from radixtide.components.registry import make_components, plugin_components
from radixtide.configs.errors import ActorFailed, CacheClosed, ConfigError
from radixtide.configs.loader import load_config, validate
from radixtide.configs.schema import CacheConfig, HostConfig, StorageConfig
from radixtide.tiers.copy_modelled import Clock
from radixtide.tiers.host_pool import HostPool
from radixtide.tiers.kv_pool import TokenToKVPool
from radixtide.tiers.request_pool import ReqToTokenPool
from radixtide.tiers.slots import SlotAllocator
from radixtide.tree.radix_tree import RadixTree

RefuseHost = Callable[[str], bool]


class Killed(Exception):
    """What an actor dies of that is killed."""


class CacheLife:
    """Makes, starts and closes a cache's actors, and brings calls to the coordinator."""

    def __init__(
        self,
        config: CacheConfig,
        *,
        agreement: Agreement | None = None,
        clock: Clock | None = None,
        make_engine: MakeEngine | None = None,
        make_store: MakeStore | None = None,
    ) -> None:
        self._make_engine = make_engine
        self._make_store = make_store
        self._refuse_host: RefuseHost | None = None
        self._agreement = agreement if agreement is not None else Alone()
        self._clock = clock
        self._stepping: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._setting = False
        self.config = validate(config, policies=plugin_policies(), components=plugin_components())
        self.page_size = config.page_size
        requests = config.pools.requests
        self.req_to_token_pool = ReqToTokenPool(requests.max_requests, requests.max_context)
        self._components: list[TreeComponent] = []
        self._actors: list[ComponentActor] = []
        self._system: ActorSystem | None = None
        self._coordinator: Cell | None = None
        self._state: State
        self._tree: RadixTree
        self._timeout = config.limits.call_timeout_s
        self._turns = config.limits.immediate_calls
        self._turn_limit = config.limits.immediate_calls
        self._resetting = False
        self._given: anyio.Event | None = None
        self._tiering: TieringActor | None = None
        self._tiering_cell: Cell | None = None
        self.kv_pool: TokenToKVPool | None = None
        self.memory: dict[str, Any] = {}
        self.host_pools: dict[str, HostPool] = {}
        self._build()

    @classmethod
    def from_toml(
        cls,
        path: str | PathLike[str],
        *,
        agreement: Agreement | None = None,
        clock: Clock | None = None,
        make_engine: MakeEngine | None = None,
        make_store: MakeStore | None = None,
    ) -> Self:
        """Return a cache configured by a TOML file. Raises ConfigError."""
        config = load_config(Path(path), policies=plugin_policies(), components=plugin_components())
        return cls(
            config,
            agreement=agreement,
            clock=clock,
            make_engine=make_engine,
            make_store=make_store,
        )

    def _build(self) -> None:
        config = self.config
        components, self._tree = make_components(config)
        self._components = components
        self.memory = {one.name: one.make_memory() for one in components}
        self.kv_pool = self.memory[components[0].name]
        if config.host is not None:
            self.host_pools = make_host_pools(config.host, components, self.memory)

    # -- life ---------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Start the actors: components first, then the tiering actor, then the coordinator."""
        if self._system is not None:
            raise CacheClosed("the cache was entered before; make a new one")
        loop = asyncio.get_running_loop()
        system = ActorSystem(loop, self.config.limits, self.config.delivery == "direct")
        self._state = state = State(self.config, self._tree, self.req_to_token_pool, loop.time)
        self._actors = [ComponentActor(component) for component in self._components]
        self.refuse_host = self._refuse_host
        cells = [system.spawn(actor) for actor in self._actors]
        state.attach(cells, [one.traits() for one in self._components])
        state.together = self._agreement.ranks > 1
        # On several ranks it would be done anew on one of them only, and touch its path once more.
        system.sets_aside = not state.together
        if state.together:
            await self._agree_on_sizes()
        if self.config.host is not None:
            await self._add_tiers(system, state, self.config.host)
        coordinator = system.spawn(Coordinator(state))
        self._coordinator = coordinator
        if self._tiering is not None and state.tiers is not None:
            self._join(system, coordinator, self._tiering, state.tiers)
        system.on_restarted = self._on_restarted
        self._system = system
        return self

    async def _agree_on_sizes(self) -> None:
        """Use as much host memory on each rank as the one with least has."""
        sizes = []
        for one in self._components:
            sizes.append(0 if one.host_allocator is None else one.host_allocator.size)
        for one, size in zip(self._components, await self._agreement.minimum(sizes), strict=True):
            if one.host_allocator is not None:
                one.host_allocator = SlotAllocator(
                    size, one.host_allocator.page_size, one.host_allocator.name
                )

    async def _add_tiers(self, system: ActorSystem, state: State, host: HostConfig) -> None:
        """Start the tiering actor, with a storage where the config has one."""
        config = self.config
        engine = make_copy_engine(
            host,
            self._components,
            self.memory,
            self.host_pools,
            self._clock or system.loop,
            self._make_engine,
        )
        storage = None
        try:
            if config.storage is not None:
                storage = await self._open_storage(config.storage)
        except BaseException:
            engine.close()
            raise
        self._tiering = tiering = TieringActor(
            engine, {one.name: one.bytes_per_slot() for one in self._components}
        )
        tiers = TierState(host, config.storage)
        tiers.store = storage
        tiers.storing = storage is not None
        tiers.layers = max((pool.layers for pool in self.host_pools.values()), default=1)
        state.tiers = tiers
        self._tiering_cell = system.spawn(tiering)

    def _join(
        self,
        system: ActorSystem,
        coordinator: Cell,
        tiering: TieringActor,
        tiers: TierState,
    ) -> None:
        """Connect coordinator and tiering actor."""
        assert isinstance(coordinator, ConversingCell) and self._tiering_cell is not None
        cell = self._tiering_cell

        def report(message: Any) -> None:
            if coordinator.open:
                system.tell(coordinator, message, tiering.name)

        def failed(message: Any, error: BaseException) -> None:
            tiers.down = not cell.open
            answer = None if tiering.has_begun(message) else report_of_failure(message)
            if answer is not None:
                system.loop.call_soon(report, answer)

        tiering.attach(system, report)
        tiers.tell = lambda message: system.tell(cell, message, "coordinator", failed)
        tiers.let_in = coordinator.let_in
        tiers.in_line = lambda line: bool(coordinator.lines.get(line))

        def pump() -> None:
            if coordinator.open:
                system.tell(coordinator, Pump(), RUNTIME)

        def wake() -> None:
            tiers.waking = True
            system.loop.call_soon(pump)

        tiers.wake = wake

    async def _open_storage(self, config: StorageConfig) -> StorageJobs:
        """Open a storage for the pools of this cache: each rank's pages have names of their own.

        Raises ConfigError where the config says another rank than the agreement.
        """
        ranks, rank = self._agreement.ranks, self._agreement.rank
        if config.ranks == 1 and ranks > 1:
            config = msgspec.structs.replace(config, rank=rank, ranks=ranks)
        elif ranks > 1 and (config.rank, config.ranks) != (rank, ranks):
            raise ConfigError(
                f"storage.rank: this is rank {rank} of {ranks} by its agreement, and rank "
                f"{config.rank} of {config.ranks} by the config; leave storage.rank and "
                "storage.ranks out, or make them the same"
            )
        return await open_storage_jobs(
            self.config,
            config,
            self._components,
            self.memory,
            self.host_pools,
            self._make_store or open_by_url,
        )

    @property
    def storage_jobs(self) -> StorageJobs | None:
        """What works on the storage in use; None where there is none."""
        tiers = self._state.tiers
        jobs: StorageJobs | None = None if tiers is None else tiers.store
        return jobs

    def _storage_config(self) -> StorageConfig | None:
        tiers = self._state.tiers
        return None if tiers is None else tiers.storage

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the cache; see :meth:`close`."""
        await self.close()

    async def close(self, timeout: float = 5.0) -> None:
        """Carry out what was given, then stop the actors. Idempotent.

        Waits at most `timeout` seconds for queued calls; then they are answered with CacheClosed.
        Once begun it is carried out, whoever still waits for it.
        """
        system = self._system
        if system is None or self._coordinator is None:
            return
        if self._closing is None:
            self._closing = system.own(self._close(system, self._coordinator, timeout))
        await system.attend(self._closing, "close")

    async def _close(self, system: ActorSystem, coordinator: Cell, timeout: float) -> None:
        deadline = system.loop.time() + timeout
        # Each turn of the loop drains a batch; there is no other event to wait for. What is not
        # done after many turns waits for a time, or for a transfer.
        turns = self.config.limits.mailbox_capacity
        while coordinator.open and not system.quiet and system.loop.time() < deadline:
            turns -= 1
            await asyncio.sleep(0 if turns > 0 else 0.001)
        system.stop()
        if self._tiering is None:
            return
        await self._tiering.close()
        assert self._state.tiers is not None
        for job in self._state.tiers.jobs:
            if job.gate is not None and not job.gate.settled:
                # Its copy was never begun: nobody else would tell who waits for a layer.
                job.gate.fail("the cache was closed")
        if (storage := self.storage_jobs) is not None:
            await storage.close()

    def _on_restarted(self, cell: Cell) -> None:
        # One repair that waits is enough, however many crashes there are.
        if self._coordinator is None or not self._coordinator.open or self._state.repair_waits:
            return
        self._state.repair_waits = True
        cell.system.notify(self._coordinator, calls.Repair(cell.name))

    # -- how a call runs ------------------------------------------------------------

    def post(self, message: Any) -> None:
        """Send a call that gives, and wait for nothing; an error is logged.

        Nobody can make it again, so it comes until it is handled.
        """
        cell = self._coordinator or self._closed()

        def again(failed: Any, error: BaseException) -> None:
            if isinstance(error, ActorFailed) and cell.open:
                cell.system.loop.call_soon(self.post, failed)

        if cell.open:
            cell.system.tell(cell, message, on_error=again)
            if self._given is not None:
                self._given.set()

    def now(self) -> float:
        """Return the time of the loop, in seconds."""
        return self._open_system().loop.time()

    async def _take(self, message: Any, timeout: float | None) -> Any:
        """Run a call that takes: the turn is given up before, when nothing can be lost."""
        seconds = self._timeout if timeout is None else as_seconds(timeout, "timeout")
        self._turns = turns = self._turns - 1
        if turns <= 0:
            self._turns = self._turn_limit
            await asyncio.sleep(0)
        cell = self._coordinator
        if cell is None:
            cell = self._closed()
        reply = cell.handle_now(message) if cell.idle else QUEUE
        if reply.__class__ is Sentinel:
            reply = await cell.system.pending(cell, message, reply, seconds, False).wait()
        return reply

    async def _give(self, message: Any, timeout: float | None) -> Any:
        """Run a call that gives: the turn is given up after, when it is carried out."""
        seconds = self._timeout if timeout is None else as_seconds(timeout, "timeout")
        cell = self._coordinator
        if cell is None:
            cell = self._closed()
        reply = cell.handle_now(message) if cell.idle else QUEUE
        if reply.__class__ is Sentinel:
            reply = await cell.system.pending(cell, message, reply, seconds, True).wait()
        if self._given is not None:
            self._given.set()
        self._turns = turns = self._turns - 1
        if turns <= 0:
            self._turns = self._turn_limit
            await asyncio.sleep(0)
        return reply

    def _closed(self) -> Cell:
        raise CacheClosed("the cache is not open; use `async with UnifiedRadixCache(...)`")

    def _open_system(self) -> ActorSystem:
        cell = self._coordinator or self._closed()
        if not cell.open:
            raise cell.refusal()
        return cell.system

    def _open_state(self) -> State:
        self._open_system()
        return self._state

    # -- the seam -------------------------------------------------------------------

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """Let `interceptor` see every message; delivery is queued while one is installed."""
        self._open_system().add_interceptor(interceptor)

    def remove_interceptor(self, interceptor: Interceptor) -> None:
        """Take an interceptor out again."""
        self._open_system().remove_interceptor(interceptor)

    def kill(self, actor: str) -> bool:
        """Crash an actor now, to see that the cache lives with it; False: it is down already.

        Between two messages, or while it waits for answers. Counts against the restart limit.
        """
        return self._open_system().kill(actor, Killed(f"actor {actor} was killed"))

    @property
    def refuse_host(self) -> RefuseHost | None:
        """Asked, with a component's name, when host memory is looked for; True: there is none."""
        return self._refuse_host

    @refuse_host.setter
    def refuse_host(self, decide: RefuseHost | None) -> None:
        self._refuse_host = decide
        for actor in self._actors:
            actor.refuse_host = decide
