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
Dtype = Literal["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"]


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: immutable, and strict about its keys."""


class KvGeometry(_Section, frozen=True, kw_only=True):
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


class MambaPoolConfig(_Section, frozen=True, kw_only=True):
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


class RequestPoolConfig(_Section, frozen=True, kw_only=True):
    """``[pools.requests]``: the table of slot indices, one row a running request."""

    max_requests: Positive = 256
    max_context: Positive = 32_768


class PoolsConfig(_Section, frozen=True, kw_only=True):
    """``[pools]``: one table a component that is listed, and the request table."""

    full: FullPoolConfig
    swa: SwaPoolConfig | None = None
    mamba: MambaPoolConfig | None = None
    requests: RequestPoolConfig = RequestPoolConfig()


class EvictionConfig(_Section, frozen=True, kw_only=True):
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


class PinsConfig(_Section, frozen=True, kw_only=True):
    """``[pins]``: ``budget``: slots that pins may keep from eviction."""

    budget: NonNegative = 0


class LimitsConfig(_Section, frozen=True, kw_only=True):
    """``[limits]``: every bound of the actor system.

    ``mailbox_capacity``: messages that wait for one actor; calls that give have room beyond it.
    ``batch``: messages an actor handles before other tasks get a turn.
    ``call_timeout_s``: deadline of a call that names none.
    ``stall_after_s``: a component silent for so long no longer holds up calls that do not need it.
    ``immediate_calls``: calls answered at once after which the caller yields to the loop.
    ``restarts_max`` in ``restart_window_s``: crashes after which an actor stays down.
    ``deliveries_max``: times a message that crashes its receiver is delivered.
    ``key_units_max``: longest key accepted.
    """

    mailbox_capacity: Positive = 4096
    batch: Positive = 64
    call_timeout_s: Seconds = 30.0
    stall_after_s: Seconds = 0.05
    immediate_calls: Positive = 64
    restarts_max: NonNegative = 5
    restart_window_s: Seconds = 5.0
    deliveries_max: Positive = 2
    key_units_max: Positive = 16_777_216


class CacheConfig(_Section, frozen=True, kw_only=True):
    """A whole cache.

    ``components``: kinds of state: ``full``, then ``swa`` and ``mamba`` where the model has them,
    then those of plug-ins. ``page_size``: units (tokens) a page.
    ``window``: sliding window in tokens, for components that have one.
    ``bigram``: keys are bigram views (EAGLE). ``delivery``: ``direct`` hands a message to an idle
    actor at once; ``queued`` sends every message through its mailbox (same answers, slower).
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
    plugins: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
