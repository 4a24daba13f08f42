"""The configuration of a cache as typed data.

Every limit of the library is a number here. Files in TOML are read by
:mod:`radixtide.configs.loader`; a Python caller can build these Structs directly and call
:func:`radixtide.configs.loader.validate`, as ``UnifiedRadixCache(config)`` does.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Ratio = Annotated[float, Meta(gt=0)]
Rate = Annotated[float, Meta(gt=0)]
Dtype = Literal["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: immutable, and strict about its keys."""


class KvGeometry(Section, frozen=True, kw_only=True):
    """A pool of attention state: what every such pool's table has.

    ``size``: slots (tokens); rounded down to whole pages, of which there must be one.
    ``kind``: ``mha`` (MHA, GQA and MQA: K and V per layer) or ``mla`` (one latent per layer).
    ``kv_heads``, ``head_dim``: for ``mha``. ``latent_dim``: for ``mla`` (latent and rope part).
    ``holds_bytes``: false keeps the books of the slots without memory behind them (for replays).
    """

    size: Positive
    kind: Literal["mha", "mla"] = "mha"
    layers: Positive = 1
    kv_heads: Positive = 1
    head_dim: Positive = 64
    latent_dim: Positive = 576
    dtype: Dtype = "bfloat16"
    device: str = "cpu"
    holds_bytes: bool = True


class FullPoolConfig(KvGeometry, frozen=True, kw_only=True):
    """``[pools.full]``: the device pool of full attention."""


class SwaPoolConfig(KvGeometry, frozen=True, kw_only=True):
    """``[pools.swa]``: the device pool of sliding-window attention.

    Its ``size`` must hold the window, rounded up to whole pages.
    """


class MambaPoolConfig(Section, frozen=True, kw_only=True):
    """``[pools.mamba]``: the device pool of recurrent states (Mamba, linear attention).

    ``size``: states; one is valid at one length of one sequence. ``layers``: layers that have one.
    ``conv_shape``, ``ssm_shape``: shapes of the two tensors of a state in one layer.
    ``holds_bytes``: false keeps the books of the states without memory behind them.
    ``extra_buffer``: a request has two states more, written in turn at tracking points, so that one
    at a page's end is there to keep; without it ``page_size`` must be 1.
    ``chunk``: states may be kept at multiples of it that end a page (the least common multiple).
    ``max_states_per_path``: states kept from the root to any node; 0 sets no cap.
    """

    size: Positive
    layers: Positive = 1
    conv_shape: tuple[Positive, ...] = (64, 3)
    ssm_shape: tuple[Positive, ...] = (1, 64, 16)
    conv_dtype: Dtype = "bfloat16"
    ssm_dtype: Dtype = "float32"
    device: str = "cpu"
    holds_bytes: bool = True
    extra_buffer: bool = False
    chunk: Positive = 64
    max_states_per_path: NonNegative = 0


class RequestPoolConfig(Section, frozen=True, kw_only=True):
    """``[pools.requests]``: the table of slot indices, one row a running request."""

    max_requests: Positive = 256
    max_context: Positive = 32_768


class PoolsConfig(Section, frozen=True, kw_only=True):
    """``[pools]``: one table a component that is listed, and the request table."""

    full: FullPoolConfig
    swa: SwaPoolConfig | None = None
    mamba: MambaPoolConfig | None = None
    requests: RequestPoolConfig = RequestPoolConfig()


class EvictionConfig(Section, frozen=True, kw_only=True):
    """``[eviction]``: which leaf goes first.

    ``policy``: ``lru``, ``lfu``, ``fifo``, ``mru``, ``filo``, ``priority``, ``slru``, ``tlru`` or a
    name registered with ``radixtide.components.policies.register_policy``.
    ``slru_protected_threshold``: hits from which a leaf is protected (slru).
    ``tlru_threshold``, ``tlru_next_prompt_estimate``: tokens (tlru).
    ``ghosts``: evicted pages remembered for telling "evicted" from "never stored".
    """

    policy: str = "lru"
    slru_protected_threshold: Positive = 2
    tlru_threshold: NonNegative = 0
    tlru_next_prompt_estimate: NonNegative = 0
    ghosts: NonNegative = 65_536


class PinsConfig(Section, frozen=True, kw_only=True):
    """``[pins]``: ``budget``: slots that pins may keep from eviction."""

    budget: NonNegative = 0


class LimitsConfig(Section, frozen=True, kw_only=True):
    """``[limits]``: every bound of the actor system.

    ``mailbox_capacity``: messages that wait for one actor; calls that give have room beyond it.
    ``batch``: messages an actor handles before other tasks get a turn.
    ``call_timeout_s``: deadline of a call that names none.
    ``stall_after_s``: a component silent for so long no longer holds up calls that do not need it.
    ``resend_after_s``: an answer that is missing for so long is asked for again.
    ``immediate_calls``: calls answered at once after which the caller yields to the loop.
    ``restarts_max`` in ``restart_window_s``: crashes after which an actor stays down.
    ``deliveries_max``: times a message that crashes its receiver is delivered.
    ``key_units_max``: longest key accepted.
    """

    mailbox_capacity: Positive = 4096
    batch: Positive = 64
    call_timeout_s: Seconds = 30.0
    stall_after_s: Seconds = 0.05
    resend_after_s: Seconds = 1.0
    immediate_calls: Positive = 64
    restarts_max: NonNegative = 5
    restart_window_s: Seconds = 5.0
    deliveries_max: Positive = 2
    key_units_max: Positive = 16_777_216


class HostPoolConfig(Section, frozen=True, kw_only=True):
    """``[host.pools.NAME]``: how large the host pool of one component is; one key of the three.

    ``ratio``: slots for each slot of the device pool. ``bytes``: memory. ``size``: slots (states).
    None of them: ``host.ratio``. Each is rounded down to whole pages.
    """

    ratio: Ratio | None = None
    bytes: Positive | None = None
    size: Positive | None = None


class HostConfig(Section, frozen=True, kw_only=True):
    """``[host]``: the host tier; without this table there is none.

    ``ratio``: slots of a host pool for each slot of the device pool; ``pools`` has exceptions.
    ``layout``: ``layer_first`` (a tensor a layer, as on the device) or ``page_first`` (the bytes of
    a page in one piece).
    ``write_policy``: ``write_through`` backs a node up when it is inserted,
    ``write_through_selective`` when it was hit ``write_through_threshold`` times, ``write_back``
    when it is evicted.
    ``write_through_threshold``: None is 1, and 2 with ``write_through_selective``.
    ``load_back_threshold``: units on the host below which a load is not worth while.
    ``load_back_quota``: units being loaded at once; 0 sets no limit.
    ``backend``: who copies: ``cuda`` (streams), ``threads``, or ``auto`` (by the pools' device).
    ``pinned``: page-locked memory, where CUDA is there. ``verify``: digests are checked on loads.
    ``jobs_max``: transfers under way at once. ``units_in_flight``: units of backups under way.
    ``batch_units``: units that are backed up by one transfer. ``backlog_max``: nodes that wait for
    backup; one more is not backed up.
    ``bandwidth``: bytes a second of the copies between pools without bytes, which are modelled;
    None: such copies take no time.
    """

    ratio: Ratio = 2.0
    layout: Literal["layer_first", "page_first"] = "layer_first"
    write_policy: Literal["write_through", "write_through_selective", "write_back"] = (
        "write_through"
    )
    write_through_threshold: Positive | None = None
    load_back_threshold: NonNegative = 10
    load_back_quota: NonNegative = 0
    backend: Literal["auto", "threads", "cuda"] = "auto"
    pinned: bool = True
    verify: bool = True
    jobs_max: Positive = 64
    units_in_flight: Positive = 65_536
    batch_units: Positive = 8192
    backlog_max: Positive = 65_536
    bandwidth: Rate | None = None
    pools: dict[str, HostPoolConfig] = msgspec.field(default_factory=dict)

    @property
    def backup_threshold(self) -> int:
        """Hits (an insert is one) from which a node is backed up; 0 under ``write_back``."""
        if self.write_policy == "write_back":
            return 0
        default = 2 if self.write_policy == "write_through_selective" else 1
        return default if self.write_through_threshold is None else self.write_through_threshold


class StorageConfig(Section, frozen=True, kw_only=True):
    """``[storage]``: the storage tier below the host's; without this table there is none.

    ``url``: ``lmdb:PATH``, ``file:PATH``, ``memory:``, ``s3://BUCKET/PREFIX``,
    ``redis://HOST:PORT/DB`` or ``mooncake://HOST:PORT``.
    ``max_bytes``: size from which the oldest pages go; 0 sets no limit.
    ``model``, ``weight_version``: part of every page's name, as are ``rank`` and ``ranks`` (this
    process's shard): pages of other weights are never met.
    ``prefetch_policy``: how long a prefetch is waited for: ``best_effort`` not at all,
    ``wait_complete`` to its end, ``timeout`` for ``prefetch_timeout_base_s`` and
    ``prefetch_timeout_per_page_s`` for each page.
    ``prefetch_threshold``: units below which a prefetch is not worth while.
    ``batch_pages``: pages in one request to the store. ``queue_max``: transfers that wait or run.
    ``timeout_s``: deadline of one request. ``breaker_failures``: failures in a row after which the
    store is left alone, for ``breaker_reset_s``.
    """

    url: str
    max_bytes: NonNegative = 0
    model: str = ""
    weight_version: str = ""
    rank: NonNegative = 0
    ranks: Positive = 1
    prefetch_policy: Literal["best_effort", "wait_complete", "timeout"] = "timeout"
    prefetch_threshold: NonNegative = 256
    prefetch_timeout_base_s: Seconds = 1.0
    prefetch_timeout_per_page_s: Seconds = 0.004
    batch_pages: Positive = 128
    queue_max: Positive = 256
    timeout_s: Seconds = 5.0
    breaker_failures: Positive = 5
    breaker_reset_s: Seconds = 10.0


class CacheConfig(Section, frozen=True, kw_only=True):
    """A whole cache.

    ``components``: kinds of state: ``full``, then ``swa`` and ``mamba`` where the model has them,
    then those of plug-ins. ``page_size``: units (tokens) a page.
    ``window``: sliding window in tokens, for components that have one.
    ``bigram``: keys are bigram views (EAGLE). ``delivery``: ``direct`` hands a message to an idle
    actor at once; ``queued`` sends every message through its mailbox (same answers, slower).
    ``host``, ``storage``: the tiers below the device; None: no such tier.
    ``plugins``: a table a plug-in's component, by its name; the component reads it itself.
    """

    pools: PoolsConfig
    components: tuple[str, ...] = ("full",)
    page_size: Positive = 16
    window: Positive | None = None
    bigram: bool = False
    delivery: Literal["direct", "queued"] = "direct"
    eviction: EvictionConfig = EvictionConfig()
    pins: PinsConfig = PinsConfig()
    limits: LimitsConfig = LimitsConfig()
    host: HostConfig | None = None
    storage: StorageConfig | None = None
    plugins: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
