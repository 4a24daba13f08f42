"""One replay from options to result: config, pools, loop, driver, audit."""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import as_file, files
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Literal

import msgspec

from radixtide.cli.replay_clock import VirtualClock
from radixtide.cli.replay_costs import Limits
from radixtide.cli.replay_fit import fit_config
from radixtide.cli.replay_hybrid import HybridReplay
from radixtide.cli.replay_recording import Recording, hosts_of
from radixtide.cli.replay_scheduler import Scheduler
from radixtide.cli.replay_sequential import SequentialReplay
from radixtide.cli.replay_source import Source, Summary, summarise
from radixtide.cli.replay_synthetic import Kind, Synthetic
from radixtide.cli.replay_tiers import Tiers
from radixtide.cli.replay_trace import TraceFile
from radixtide.components.api import PoolStats
from radixtide.configs.errors import ConfigError
from radixtide.configs.loader import load_config
from radixtide.configs.scaling import scaled
from radixtide.configs.schema import CacheConfig
from radixtide.tiers.storage.base import StoreStats


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for; see ``radixtide replay --help``.

    ``scale``: what pools and their shapes are divided by.
    ``capacity_blocks``: pool size in blocks of the trace; 0: endless; None: as configured.
    ``host_blocks``: size of the host tier likewise; 0: none. ``storage``: where the storage tier
    is. ``bandwidth``: bytes a second of copies that are modelled.
    ``trace``: a file; None: generate traffic of ``synthetic``, ``requests`` of them.
    """

    trace: Path | None = None
    config: Path | None = None
    scale: int = 1
    sequential: bool = False
    capacity_blocks: int | None = None
    host_blocks: int | None = None
    storage: str | None = None
    bandwidth: float | None = None
    limit: int | None = None
    synthetic: Kind = Kind.MIXED
    requests: int = 5_000
    limits: Limits = Limits()
    holds_bytes: bool = False
    delivery: Literal["direct", "queued"] | None = None
    uvloop: bool = True


class ReplayResult(msgspec.Struct, frozen=True):
    """A replay that ended, or was interrupted: what it was, what it counted, what was left.

    ``pools``, ``hosts``: each device and host pool at the end, by component; ``held_locks``: locks
    at the end. Nothing is held then, if all is well. ``storage``, ``storage_at_start``: what the
    store held and did, where there is one. ``transfer_s``: the time in which all transfers were
    made, on the wall where bytes are real, else virtual. ``counters``: the cache's totals.
    ``violations``: what the audit found. ``wall_s``: seconds of driving the cache, without start
    and audit. ``peak_rss_bytes``: most resident memory of the process so far.
    """

    source: str
    sequential: bool
    block: int
    config: CacheConfig
    limits: Limits
    summary: Summary
    recording: Recording
    interrupted: bool
    pools: dict[str, PoolStats]
    held_locks: int
    counters: dict[str, int]
    violations: tuple[str, ...]
    wall_s: float
    peak_rss_bytes: int
    loop: str
    transfer_s: float = 0.0
    hosts: dict[str, PoolStats] = {}
    storage: StoreStats | None = None
    storage_at_start: StoreStats | None = None

    @property
    def held_slots(self) -> int:
        """Slots of Full's pool that are still held at the end."""
        return self.pools["full"].held


def load_options_config(options: ReplayOptions) -> CacheConfig:
    """Return the config to start from: the file's, or the shipped ``full.toml``.

    Raises :class:`ConfigError` for one that a replay can not drive.
    """
    from radixtide.components.policies import plugin_policies
    from radixtide.components.registry import plugin_components

    if options.config is not None:
        config = load_config(
            options.config, policies=plugin_policies(), components=plugin_components()
        )
    else:
        with as_file(files("radixtide.configs") / "full.toml") as path:
            config = load_config(path)
    if config.bigram:
        raise ConfigError("bigram: a replay drives plain token keys; set bigram = false")
    return scaled(config, options.scale)


def open_source(options: ReplayOptions, config: CacheConfig) -> Source:
    """Return the trace file or the generator that `options` name.

    Generated requests are cut so that eight of the longest fit in the configured pool.
    """
    if options.trace is not None:
        return TraceFile(options.trace, options.limit)
    requests = options.requests if options.limit is None else min(options.requests, options.limit)
    longest = min(config.pools.full.size // 8, config.pools.requests.max_context)
    return Synthetic(options.synthetic, requests, options.limits.seed, longest)


def run_replay(
    options: ReplayOptions,
    on_start: Callable[[Source, Summary], Callable[[Recording], None] | None],
    on_open: Callable[[StoreStats], None] = lambda _: None,
) -> ReplayResult:
    """Check the trace, replay it, audit the cache, and return what was measured.

    `on_start` is called once the trace is known to be sound, and returns what is to be called after
    each step; `on_open` is called with what the storage holds, where there is one. An interrupt
    (Ctrl-C) ends the replay early: the result tells so.

    Raises: ConfigError, TraceError before anything is done; errors of the cache as they come.
    """
    config = load_options_config(options)
    source = open_source(options, config)
    summary = summarise(source, source.block, distinct=options.capacity_blocks == 0)
    config = fit_config(config, options, source.block, summary)
    recording = Recording(on_start(source, summary))
    with asyncio.Runner(loop_factory=loop_factory(options.uvloop)) as runner:
        return runner.run(_replay(options, config, source, summary, recording, on_open))


def loop_factory(uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory where it is wanted and installed, else None (asyncio's own)."""
    if not uvloop or find_spec("uvloop") is None:
        return None
    from uvloop import new_event_loop

    return new_event_loop


async def _replay(
    options: ReplayOptions,
    config: CacheConfig,
    source: Source,
    summary: Summary,
    recording: Recording,
    on_open: Callable[[StoreStats], None],
) -> ReplayResult:
    from radixtide.actors.cache import UnifiedRadixCache

    interrupted = False
    modelled = config.host is not None and config.host.bandwidth is not None
    clock = VirtualClock() if modelled else None
    async with UnifiedRadixCache(config, clock=clock) as cache:
        tiers = Tiers(cache, recording.calls, clock)
        started = await cache.stats()
        if started.storage is not None:
            on_open(started.storage)
        driver: HybridReplay | SequentialReplay | Scheduler
        if not options.sequential:
            driver = Scheduler(cache, source.block, options.limits, recording, tiers)
        elif tiers.shape.is_plain:
            driver = SequentialReplay(cache, source.block, recording, tiers)
        else:
            driver = HybridReplay(cache, source.block, recording, tiers)
        start = perf_counter()
        try:
            with one_torch_thread():
                await driver.run(source)
        except asyncio.CancelledError:
            # The runner turned Ctrl-C into this; what was done so far is still worth a report.
            interrupted = True
            await driver.abandon()
        await tiers.settle()
        wall_s = perf_counter() - start
        await recording.sample(cache)
        stats = await recording.calls.timed("stats", cache.stats())
        report = await recording.calls.timed("audit", cache.audit())
        recording.calls.roll()
    return ReplayResult(
        source=source.name,
        sequential=options.sequential,
        block=source.block,
        config=config,
        limits=options.limits,
        summary=summary,
        recording=recording,
        interrupted=interrupted,
        pools={name: tiers["device"] for name, tiers in stats.pools.items()},
        held_locks=stats.receipts,
        counters=stats.counters,
        violations=tuple(f"{v.clause}: {v.message}" for v in report.violations),
        wall_s=wall_s,
        peak_rss_bytes=peak_rss_bytes(),
        loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
        transfer_s=wall_s if config.pools.full.holds_bytes else tiers.virtual_s(recording.now_ns),
        hosts=hosts_of(stats),
        storage=stats.storage,
        storage_at_start=started.storage,
    )


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Keep PyTorch from sharing small copies among threads.

    A copy of some hundred KiB gains nothing from a second core, and on a busy machine each one
    waits until that core has time: runs took twice the processor time and more.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def peak_rss_bytes() -> int:
    """Return the most resident memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


__all__ = (
    "ReplayOptions",
    "ReplayResult",
    "load_options_config",
    "loop_factory",
    "one_torch_thread",
    "open_source",
    "run_replay",
)
