"""A model's configuration becomes that of its cache."""

from __future__ import annotations

from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.configs.errors import ConfigError, InvalidInput
from radixtide.configs.loader import parse_config, render_config
from radixtide.configs.schema import StorageConfig
from radixtide.serving.geometry import cache_config, pool_layers
from radixtide.serving.models import load_model
from support.serving_models import RANDOM
from support.serving_rows import loaded


def test_a_model_of_full_attention_has_one_pool() -> None:
    config = cache_config(loaded("random:llama"), tokens=1000)
    assert config.components == ("full",)
    full = config.pools.full
    assert (full.size, full.layers, full.kv_heads, full.head_dim) == (1008, 4, 2, 16)
    assert (full.dtype, full.device, full.holds_bytes) == ("float32", "cpu", True)
    assert config.pools.requests.max_context == 1008
    assert config.window is None


def test_layers_with_a_window_have_a_pool_of_their_own() -> None:
    config = cache_config(loaded("random:gemma3"), tokens=4096)
    assert config.components == ("full", "swa")
    assert config.window == 24
    assert config.pools.full.layers == 1
    assert config.pools.swa is not None
    assert (config.pools.swa.layers, config.pools.swa.size) == (3, 2048)


def test_the_pool_of_windows_holds_that_of_a_prompt_and_that_of_its_answer() -> None:
    config = cache_config(loaded("random:gemma3"), tokens=64)
    assert config.pools.swa is not None
    assert config.pools.swa.size == 2 * (32 + 16)


@pytest.mark.parametrize(
    ("spec", "conv", "ssm"),
    [("random:qwen3_next", (128, 3), (4, 16, 16)), ("random:lfm2", (64, 2), (1,))],
)
def test_layers_with_a_recurrence_have_states(spec: str, conv: Any, ssm: Any) -> None:
    config = cache_config(loaded(spec), tokens=4096, max_requests=5)
    pool = config.pools.mamba
    assert config.components == ("full", "mamba")
    assert pool is not None
    assert (pool.layers, pool.conv_shape, pool.ssm_shape) == (3, conv, ssm)
    assert (pool.size, pool.extra_buffer, pool.chunk) == (20, True, 64)
    alone = cache_config(loaded(spec), tokens=4096, page_size=1, max_requests=5, state_chunk=10)
    assert alone.pools.mamba is not None
    assert (alone.pools.mamba.size, alone.pools.mamba.extra_buffer) == (10, False)


def test_states_are_kept_at_whole_pages() -> None:
    pool = cache_config(loaded("random:lfm2"), tokens=64, state_chunk=17).pools.mamba
    assert pool is not None
    assert pool.chunk == 32


@pytest.mark.parametrize("spec", RANDOM)
def test_each_layer_has_its_place_in_its_pool(spec: str) -> None:
    model = loaded(spec)
    places = pool_layers(model)
    memory = UnifiedRadixCache(cache_config(model, tokens=64)).memory
    assert len(places) == len(set(places)) == model.model.config.num_hidden_layers
    assert {name: pool.layers for name, pool in memory.items()} == {
        name: sum(kind == name for kind, _ in places) for name in memory
    }
    assert all(at < memory[kind].layers for kind, at in places)


@pytest.mark.parametrize("spec", RANDOM)
def test_it_can_be_written_to_a_file_and_read_again(spec: str) -> None:
    config = cache_config(loaded(spec), tokens=512, storage=StorageConfig(url="memory:"))
    assert parse_config(render_config(config)) == config


def test_half_precision_halves_the_pools() -> None:
    pool = cache_config(load_model("random:qwen3_next", dtype="bfloat16"), tokens=64).pools
    assert pool.full.dtype == "bfloat16"
    assert pool.mamba is not None
    # What adds up over the whole text stays as it is computed.
    assert (pool.mamba.conv_dtype, pool.mamba.ssm_dtype) == ("bfloat16", "float32")


def test_pages_in_storage_have_the_name_of_the_weights() -> None:
    model = loaded("random:llama")
    config = cache_config(model, tokens=512, storage=StorageConfig(url="memory:"))
    assert config.storage is not None
    assert (config.storage.model, config.storage.weight_version) == (model.name, model.version)
    given = StorageConfig(url="memory:", model="mine", weight_version="7")
    config = cache_config(model, tokens=512, storage=given)
    assert config.storage == given


def test_without_a_ratio_there_is_no_host_tier() -> None:
    assert cache_config(loaded("random:llama"), tokens=64, host_ratio=None).host is None
    host = cache_config(loaded("random:llama"), tokens=64, host_ratio=0.5).host
    assert host is not None
    assert host.ratio == 0.5


@pytest.mark.parametrize(
    "name", ["tokens", "page_size", "window_tokens", "states", "state_chunk", "max_requests"]
)
def test_numbers_below_one_are_refused(name: str) -> None:
    numbers: dict[str, Any] = {"tokens": 64, name: 0}
    with pytest.raises(InvalidInput, match=f"{name} must be at least 1, not 0"):
        cache_config(loaded("random:llama"), **numbers)


def test_a_window_that_does_not_fit_its_pool_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pools\.swa\.size"):
        cache_config(loaded("random:gemma3"), tokens=64, window_tokens=16)
