"""From a model to the configuration of its cache: which pools, with which shapes.

==========================  =========  ==========================================================
layers                      pool       a row of it
==========================  =========  ==========================================================
full attention              ``full``   K and V of a token, after the rotary embedding
sliding window              ``swa``    the same, for as long as a window sees the token
linear attention            ``mamba``  last inputs of the short convolution, and the recurrence
short convolution           ``mamba``  last inputs; the recurrence is one number that is not used
==========================  =========  ==========================================================
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import torch

from radixtide.configs.errors import InvalidInput
from radixtide.configs.loader import validate
from radixtide.configs.schema import (
    CacheConfig,
    FullPoolConfig,
    HostConfig,
    MambaPoolConfig,
    PoolsConfig,
    RequestPoolConfig,
    StorageConfig,
    SwaPoolConfig,
)
from radixtide.serving.models import Kind, LoadedModel
from radixtide.tiers.kv_pool import DTYPES

UNUSED: Final = (1,)
"""Shape of the recurrence of layers that have none; a pool of states has one all the same."""


def cache_config(
    model: LoadedModel,
    *,
    tokens: int,
    page_size: int = 16,
    window_tokens: int | None = None,
    states: int | None = None,
    state_chunk: int = 64,
    host_ratio: float | None = 2.0,
    storage: StorageConfig | None = None,
    max_requests: int = 64,
) -> CacheConfig:
    """Return the configuration of a cache for `model` with room for `tokens` tokens on its device.

    `window_tokens`: slots of the window's pool, where the model has one; None: half of `tokens`,
    and two windows at least. `states`: recurrent states, where it has such; None: three for each
    running request and as many to keep as there are requests. `state_chunk`: tokens between two
    lengths at which a state may be kept, rounded up to whole pages. `host_ratio`: slots of host
    memory for each on the device; None: no host tier. `storage`: its ``model`` and
    ``weight_version`` are filled in where they are empty. `max_requests`: that run at once.

    Raises:
        InvalidInput: a number is below one. ConfigError: what results can not be.
    """
    numbers = {"tokens": tokens, "page_size": page_size, "max_requests": max_requests}
    numbers |= {"state_chunk": state_chunk}
    given = {"window_tokens": window_tokens, "states": states}
    numbers |= {name: number for name, number in given.items() if number is not None}
    for name, number in numbers.items():
        if number < 1:
            raise InvalidInput(f"{name} must be at least 1, not {number}")
    kinds = set(model.kinds)
    size = _whole(tokens, page_size)
    pools = PoolsConfig(
        full=FullPoolConfig(size=size, **pool_shape(model, "full")),
        swa=_windows(model, size, page_size, window_tokens) if "swa" in kinds else None,
        mamba=_states(model, page_size, states, state_chunk, max_requests)
        if "mamba" in kinds
        else None,
        requests=RequestPoolConfig(
            max_requests=max_requests, max_context=min(_whole(model.max_context, page_size), size)
        ),
    )
    return validate(
        CacheConfig(
            components=tuple(name for name in ("full", "swa", "mamba") if name in kinds),
            page_size=page_size,
            window=model.window,
            pools=pools,
            host=None if host_ratio is None else HostConfig(ratio=host_ratio),
            storage=None if storage is None else named(storage, model),
        )
    )


def named(storage: StorageConfig, model: LoadedModel) -> StorageConfig:
    """Return `storage` with the model and version of its weights, where they are left empty."""
    return msgspec.structs.replace(
        storage,
        model=storage.model or model.name,
        weight_version=storage.weight_version or model.version,
    )


def pool_shape(model: LoadedModel, kind: Kind) -> dict[str, Any]:
    """Return what a pool must be for the layers of `kind`: keys of its section, without sizes."""
    fields = {"layers": model.kinds.count(kind), "device": str(model.device)}
    if kind == "mamba":
        conv, ssm = state_shapes(model)
        dtypes = {"conv_dtype": _dtype_name(model.dtype), "ssm_dtype": "float32"}
        return {**fields, "conv_shape": conv, "ssm_shape": ssm, **dtypes}
    config = model.model.config
    heads = config.num_attention_heads
    return {
        **fields,
        "kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "dtype": _dtype_name(model.dtype),
    }


def state_shapes(model: LoadedModel) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of conv and ssm of a state in one layer of `model`."""
    config = model.model.config
    if "linear_attention" in config.layer_types:
        heads, key = config.linear_num_value_heads, config.linear_key_head_dim
        value = config.linear_value_head_dim
        channels = 2 * config.linear_num_key_heads * key + heads * value
        return (channels, config.linear_conv_kernel_dim - 1), (heads, key, value)
    return (config.hidden_size, config.conv_L_cache - 1), UNUSED


def pool_layers(model: LoadedModel) -> tuple[tuple[Kind, int], ...]:
    """Return for each layer of `model` its pool, and its place among the layers of that pool."""
    counts: dict[Kind, int] = {}
    places = []
    for kind in model.kinds:
        places.append((kind, counts.get(kind, 0)))
        counts[kind] = places[-1][1] + 1
    return tuple(places)


def _whole(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size) * page_size


def _windows(
    model: LoadedModel, size: int, page_size: int, window_tokens: int | None
) -> SwaPoolConfig:
    assert model.window is not None
    # The locked window of a prompt, and that of its answer, each with the page it begins in.
    two = 2 * (_whole(model.window, page_size) + page_size)
    slots = max(size // 2, two) if window_tokens is None else window_tokens
    return SwaPoolConfig(size=_whole(slots, page_size), **pool_shape(model, "swa"))


def _states(
    model: LoadedModel, page_size: int, states: int | None, chunk: int, max_requests: int
) -> MambaPoolConfig:
    each = 3 if page_size > 1 else 1
    return MambaPoolConfig(
        size=(each + 1) * max_requests if states is None else states,
        extra_buffer=page_size > 1,
        chunk=_whole(chunk, page_size),
        **pool_shape(model, "mamba"),
    )


def _dtype_name(dtype: torch.dtype) -> Any:
    return next(name for name, one in DTYPES.items() if one == dtype)
