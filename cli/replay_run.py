"""One replay from options to result: config, pool, loop, driver, audit."""

from __future__ import annotations

import asyncio
import os
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

from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_scheduler import Limits, Scheduler
from radixtide.cli.replay_sequential import SequentialReplay
from radixtide.cli.replay_source import Source, Summary, summarise
from radixtide.cli.replay_synthetic import Kind, Synthetic
from radixtide.cli.replay_trace import TraceFile
from radixtide.configs.errors import ConfigError
from radixtide.configs.loader import load_config
from radixtide.configs.schema import CacheConfig, FullPoolConfig


class ReplayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asks for; see ``radixtide replay --help``.

    ``capacity_blocks``: pool size in blocks of the trace; 0: endless; None: as configured.
    ``trace``: a file; None: generate traffic of ``synthetic``, ``requests`` of them.
    """

    trace: Path | None = None
    config: Path | None = None
    sequential: bool = False
    capacity_blocks: int | None = None
    limit: int | None = None
    synthetic: Kind = Kind.MIXED
    requests: int = 5_000
    limits: Limits = Limits()
    holds_bytes: bool = False
    delivery: Literal["direct", "queued"] | None = None
    uvloop: bool = True


class ReplayResult(msgspec.Struct, frozen=True):
    """A replay that ended, or was interrupted: what it was, what it counted, what was left.

    ``held_slots``, ``held_locks``: what is still held at the end (nothing, if all is well).
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
    held_slots: int
    held_locks: int
    violations: tuple[str, ...]
    wall_s: float
    peak_rss_bytes: int
    loop: str


def load_options_config(options: ReplayOptions) -> CacheConfig:
    """Return the config to start from: the file's, or the shipped ``full.toml``.

    Raises :class:`ConfigError` for one that a replay can not drive.
    """
    from radixtide.components.policies import plugin_policies

    if options.config is not None:
        config = load_config(options.config, policies=plugin_policies())
    else:
        with as_file(files("radixtide.configs") / "full.toml") as path:
            config = load_config(path)
    if config.bigram:
        raise ConfigError("bigram: a replay drives plain token keys; set bigram = false")
    return config


def open_source(options: ReplayOptions, config: CacheConfig) -> Source:
    """Return the trace file or the generator that `options` name.

    Generated requests are cut so that eight of the longest fit in the configured pool.
    """
    if options.trace is not None:
        return TraceFile(options.trace, options.limit)
    requests = options.requests if options.limit is None else min(options.requests, options.limit)
    longest = min(config.pools.full.size // 8, config.pools.requests.max_context)
    return Synthetic(options.synthetic, requests, options.limits.seed, longest)


def fit_config(
    config: CacheConfig, options: ReplayOptions, block: int, summary: Summary
) -> CacheConfig:
    """Return `config` with what the replay's options change in it."""
    replace = msgspec.structs.replace
    page = block if options.sequential else config.page_size
    size = config.pools.full.size
    if options.capacity_blocks:
        size = max(options.capacity_blocks * block, page)
    elif options.capacity_blocks == 0:
        size = _endless(options, page, block, summary)
    elif options.sequential:
        size = max(size, page)
    full = replace(config.pools.full, size=size, holds_bytes=options.holds_bytes)
    if options.holds_bytes:
        _check_memory(full)
    return replace(
        config,
        page_size=page,
        pools=replace(config.pools, full=full),
        delivery=options.delivery or config.delivery,
    )


def _endless(options: ReplayOptions, page: int, block: int, summary: Summary) -> int:
    """Return a size at which nothing of the trace is ever evicted."""
    size = summary.distinct_tokens + summary.longest + block
    if not options.sequential:
        # What is generated stays too, every request may leave a page half used, and prompts that
        # run side by side are computed twice before the tree has them.
        size += summary.output_tokens + summary.requests * (page + block)
        size += options.limits.max_running * summary.longest
    return -(-size // page) * page


def _check_memory(pool: FullPoolConfig) -> None:
    """Raise :class:`ConfigError` if a pool on the CPU is larger than this machine's memory.

    Asking for it all the same would end in the system killing the process, without a message.
    """
    from radixtide.tiers.kv_pool import TokenToKVPool

    if pool.device != "cpu":
        return
    one = TokenToKVPool(pool, 1)
    wanted = one.bytes_per_slot * pool.size
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > memory * 0.8:
        raise ConfigError(
            f"pools.full: --bytes gives {pool.size:,} slots of {one.bytes_per_slot:,} bytes their "
            f"memory, {wanted / 2**30:,.1f} GiB, and this machine has {memory / 2**30:,.1f} GiB; "
            "set a smaller pool with --capacity-blocks or --config, or leave out --bytes"
        )


def run_replay(
    options: ReplayOptions,
    on_start: Callable[[Source, Summary], Callable[[Recording], None] | None],
) -> ReplayResult:
    """Check the trace, replay it, audit the cache, and return what was measured.

    `on_start` is called once the trace is known to be sound, and returns what is to be called after
    each step. An interrupt (Ctrl-C) ends the replay early: the result tells so.

    Raises: ConfigError, TraceError before anything is done; errors of the cache as they come.
    """
    config = load_options_config(options)
    source = open_source(options, config)
    summary = summarise(source, source.block, distinct=options.capacity_blocks == 0)
    config = fit_config(config, options, source.block, summary)
    recording = Recording(on_start(source, summary))
    with asyncio.Runner(loop_factory=_loop_factory(options.uvloop)) as runner:
        return runner.run(_replay(options, config, source, summary, recording))


def _loop_factory(uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop] | None:
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
) -> ReplayResult:
    from radixtide.actors.cache import UnifiedRadixCache

    interrupted = False
    async with UnifiedRadixCache(config) as cache:
        driver = (
            SequentialReplay(cache, source.block, recording)
            if options.sequential
            else Scheduler(cache, source.block, options.limits, recording)
        )
        start = perf_counter()
        try:
            with _one_torch_thread():
                await driver.run(source)
        except asyncio.CancelledError:
            # The runner turned Ctrl-C into this; what was done so far is still worth a report.
            interrupted = True
            await driver.abandon()
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
        held_slots=stats.pools["full"]["device"].held,
        held_locks=stats.receipts,
        violations=tuple(f"{v.clause}: {v.message}" for v in report.violations),
        wall_s=wall_s,
        peak_rss_bytes=peak_rss_bytes(),
        loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
    )


@contextmanager
def _one_torch_thread() -> Iterator[None]:
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


__all__ = ("ReplayOptions", "ReplayResult", "run_replay")
