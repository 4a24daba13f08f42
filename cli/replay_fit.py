"""Making a config fit a replay: pages, pool sizes, and whether this machine has the memory."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import msgspec

from radixtide.cli.replay_fit_tiers import fit_tiers, has_storage, marked
from radixtide.cli.replay_source import Summary
from radixtide.configs.errors import ConfigError
from radixtide.configs.host import bytes_per_slot, host_slots
from radixtide.configs.schema import CacheConfig
from radixtide.configs.tier_rules import device_pools

if TYPE_CHECKING:
    from radixtide.cli.replay_run import ReplayOptions


class Shape(msgspec.Struct, frozen=True):
    """What a config makes of windows and states.

    ``window``: the sliding window in whole pages, in tokens; 0: there is none. ``states``: how many
    a request holds; 0: there are none. ``grid``: states may be kept at multiples of this length (a
    page where there are none). ``tracks``: a request writes states as it goes on; false: it has
    only the one at its end.
    """

    page: int
    window: int = 0
    states: int = 0
    grid: int = 1
    tracks: bool = False

    @classmethod
    def of(cls, config: CacheConfig) -> Shape:
        """Return the shape of `config`."""
        page, pool = config.page_size, config.pools.mamba
        window = _up(config.window or 0, page) if "swa" in config.components else 0
        if pool is None:
            return cls(page, window, grid=page)
        if not pool.extra_buffer:
            return cls(page, window, states=1, grid=page)
        return cls(page, window, states=3, grid=math.lcm(pool.chunk, page), tracks=True)

    @property
    def is_plain(self) -> bool:
        """Whether there are neither windows nor states."""
        return not self.window and not self.states

    def frontier(self, length: int) -> int:
        """Return below which position no window of `length` tokens or more needs any slot."""
        return max(length - self.window, 0) // self.page * self.page

    @property
    def window_slack(self) -> int:
        """Slots of the window's pool that a request may hold beyond its windows.

        Two pages half used, and what lies behind the newest state, as far as it can be cached.
        """
        return 2 * self.page + (self.grid if self.tracks else 0)

    def least_window_slots(self, step: int) -> int:
        """Return the slots with which one request that gains `step` tokens at a time gets on.

        The window under its lock, its own, the tokens of a step, and the slack.
        """
        return 2 * self.window + _up(step, self.page) + self.window_slack if self.window else 0

    def least_states(self) -> int:
        """Return the states with which one request gets on.

        Its own, the one that it went on from, and one to keep.
        """
        return self.states + 2 if self.states else 0


def fit_config(
    config: CacheConfig, options: ReplayOptions, block: int, summary: Summary
) -> CacheConfig:
    """Return `config` with what the replay's options change in it.

    Raises ConfigError where ``--bytes`` asks for more memory than this machine has, and where the
    options for tiers contradict each other.
    """
    replace = msgspec.structs.replace
    was, pools = config, config.pools
    holds_bytes = options.holds_bytes or has_storage(config, options)
    page = block if options.sequential else config.page_size
    if pools.mamba is not None and not pools.mamba.extra_buffer:
        page = 1  # the state at a prompt's end is all there is, and no page need end there
    config = replace(config, page_size=page, delivery=options.delivery or config.delivery)
    shape = Shape.of(config)
    size = pools.full.size
    if options.capacity_blocks:
        size = max(options.capacity_blocks * block, page)
    elif options.capacity_blocks == 0:
        size = _endless(options, page, block, summary)
    elif options.sequential:
        size = max(size, page)
    share = size / pools.full.size if options.capacity_blocks else 1.0
    swa, mamba = pools.swa, pools.mamba
    if swa is not None:
        swa_size = size if options.capacity_blocks == 0 else math.ceil(swa.size * share)
        least = shape.least_window_slots(options.limits.decode_quantum)
        swa_size = _up(max(swa_size, least), page)
        swa = replace(swa, size=swa_size, holds_bytes=holds_bytes)
    if mamba is not None:
        endless = options.capacity_blocks == 0
        states = _endless_states(options, shape, summary) if endless else mamba.size * share
        states = max(math.ceil(states), shape.least_states())
        mamba = replace(mamba, size=states, holds_bytes=holds_bytes)
    full = replace(pools.full, size=size, holds_bytes=holds_bytes)
    pools = replace(pools, full=full, swa=swa, mamba=mamba)
    if holds_bytes and not options.holds_bytes:
        pools = marked(pools, page)
    config = fit_tiers(replace(config, pools=pools), was, options, block)
    if holds_bytes:
        _check_memory(config)
    return config


def _up(tokens: int, page: int) -> int:
    """Return `tokens` rounded up to whole pages."""
    return -(-tokens // page) * page


def _endless(options: ReplayOptions, page: int, block: int, summary: Summary) -> int:
    """Return a size at which nothing of the trace is ever evicted."""
    size = summary.distinct_tokens + summary.longest + block
    if not options.sequential:
        # What is generated stays too, every request may leave a page half used, and prompts that
        # run side by side are computed twice before the tree has them.
        size += summary.output_tokens + summary.requests * (page + block)
        size += options.limits.max_running * summary.longest
    return _up(size, page)


def _endless_states(options: ReplayOptions, shape: Shape, summary: Summary) -> int:
    """Return how many states are enough that none is ever evicted."""
    # A request keeps one at its end, one where it branches off, and one at the end of each chunk.
    kept = 2 * summary.requests
    if not options.sequential:
        kept += summary.input_tokens // options.limits.chunk + summary.requests
        kept += options.limits.max_running * shape.states
    return kept


def _check_memory(config: CacheConfig) -> None:
    """Raise :class:`ConfigError` if the pools on the CPU are larger than this machine's memory.

    Asking for it all the same would end in the system killing the process, without a message.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    told: list[str] = []
    wanted = 0
    for name, pool in device_pools(config):
        each = bytes_per_slot(pool)
        sizes = {"pools": pool.size if pool.device == "cpu" else 0}
        sizes["host.pools"] = host_slots(config, name, each)
        for table, size in sizes.items():
            if size:
                told.append(f"{table}.{name} {size:,} of {each:,} bytes")
                wanted += size * each
    if wanted > memory * 0.8:
        raise ConfigError(
            f"--bytes and --storage give all slots and states their memory ({', '.join(told)}), "
            f"{wanted / 2**30:,.1f} GiB, and this machine has {memory / 2**30:,.1f} GiB; set "
            "smaller pools with --scale, --capacity-blocks, --host-blocks or --config, or leave "
            "out --bytes"
        )


__all__ = ("Shape", "fit_config")
