"""The presets: shapes of real models, and what becomes of them on a small machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from radixtide.configs.errors import ConfigError
from radixtide.configs.host import host_slots
from radixtide.configs.loader import load_config, parse_config, render_config, validate
from radixtide.configs.scaling import scaled
from radixtide.configs.schema import CacheConfig, KvGeometry, PinsConfig
from radixtide.tiers import StatePool, TokenToKVPool
from support.rooms import ROOT

PRESETS = sorted(set((ROOT / "configs").glob("*.toml")) - {ROOT / "configs" / "serve.toml"})

# What the models' own config files say, in their own names; nothing here is read from the presets.
QWEN = {"hidden": 2048, "key_heads": 16, "value_heads": 32, "key_dim": 128, "value_dim": 128}
NEMOTRON = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
PHI_LAYERS = ["full" if n == 17 else "swa" if n % 2 else "mamba" for n in range(32 // 2 + 2)]
GEMMA_LAYERS = ["swa" if (n + 1) % 6 else "full" for n in range(62)]
OSS_LAYERS = ["swa", "full"] * 12
QWEN_LAYERS = [*["mamba"] * 3, "full"] * 12

BYTES: dict[str, dict[str, int]] = {
    "full": {"full": 2 * 32 * 8 * (4096 // 32) * 2},
    "llama-3.1-8b": {"full": 2 * 32 * 8 * (4096 // 32) * 2},
    "deepseek-v3": {"full": 61 * (512 + 64) * 2},
    "gemma-3-27b": {name: 2 * GEMMA_LAYERS.count(name) * 16 * 128 * 2 for name in ("full", "swa")},
    "gpt-oss-20b": {name: 2 * OSS_LAYERS.count(name) * 8 * 64 * 2 for name in ("full", "swa")},
    "qwen3-next-80b": {
        "full": 2 * QWEN_LAYERS.count("full") * 2 * 256 * 2,
        "mamba": QWEN_LAYERS.count("mamba")
        * (
            (2 * QWEN["key_heads"] * QWEN["key_dim"] + QWEN["value_heads"] * QWEN["value_dim"])
            * (4 - 1)
            * 2
            + QWEN["value_heads"] * QWEN["value_dim"] * QWEN["key_dim"] * 4
        ),
    },
    "nemotron-h-8b": {
        "full": 2 * NEMOTRON.count("*") * 8 * (4096 // 32) * 2,
        "mamba": NEMOTRON.count("M")
        * ((128 * 64 + 2 * 8 * 128) * (4 - 1) * 2 + 128 * 64 * 128 * 4),
    },
    "phi-4-mini-flash": {
        "full": 2 * PHI_LAYERS.count("full") * 20 * (2560 // 40) * 2,
        "swa": 2 * PHI_LAYERS.count("swa") * 20 * (2560 // 40) * 2,
        "mamba": PHI_LAYERS.count("mamba") * (2 * 2560 * (4 - 1) * 2 + 2 * 2560 * 16 * 4),
    },
}
"""Bytes of a token, and of a state, per component."""

TIERED = {
    "hicache-host": "llama-3.1-8b",
    "hicache-lmdb": "llama-3.1-8b",
    "hicache-redis": "llama-3.1-8b",
    "hicache-write-back": "deepseek-v3",
    "hicache-gpt-oss-20b": "gpt-oss-20b",
}
"""Presets with tiers below the device, and whose shape each has."""
BYTES |= {name: BYTES[model] for name, model in TIERED.items()}

WINDOWS = {"gemma-3-27b": 1024, "gpt-oss-20b": 128, "phi-4-mini-flash": 512}
CONTEXTS = {
    "full": 131_072,
    "llama-3.1-8b": 131_072,
    "deepseek-v3": 163_840,
    "gemma-3-27b": 131_072,
    "gpt-oss-20b": 131_072,
    "qwen3-next-80b": 262_144,
    "nemotron-h-8b": 8192,
    "phi-4-mini-flash": 65_536,
}
WINDOWS |= {name: WINDOWS[model] for name, model in TIERED.items() if model in WINDOWS}
CONTEXTS |= {name: CONTEXTS[model] for name, model in TIERED.items()}


def preset(name: str) -> CacheConfig:
    return load_config(ROOT / "configs" / f"{name}.toml")


def pools(config: CacheConfig) -> dict[str, Any]:
    """Return the section of each component that has a pool."""
    named = {name: getattr(config.pools, name) for name in ("full", "swa", "mamba")}
    return {name: pool for name, pool in named.items() if pool is not None}


def bytes_of(config: CacheConfig) -> dict[str, int]:
    """Return what one slot of each pool takes, as the real pools say, without their memory."""
    found = {}
    for name, pool in pools(config).items():
        # On this device tensors have shapes and no bytes.
        section = replace(pool, device="meta")
        if isinstance(section, KvGeometry):
            found[name] = TokenToKVPool(section, 1).bytes_per_slot
        else:
            found[name] = StatePool(section, 1).bytes_per_state
    return found


def test_every_preset_is_known_here() -> None:
    assert {path.stem for path in PRESETS} == set(BYTES) == set(CONTEXTS)


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_every_preset_loads_and_names_its_source(path: Path) -> None:
    config = load_config(path)
    assert config == validate(config)
    assert parse_config(render_config(config)) == config
    assert "config.json" in path.read_text(encoding="utf-8").partition("components")[0]


@pytest.mark.parametrize("name", BYTES)
def test_a_token_and_a_state_take_what_the_shape_of_the_model_says(name: str) -> None:
    config = preset(name)
    assert config.components == tuple(BYTES[name])
    assert bytes_of(config) == BYTES[name]
    assert config.window == WINDOWS.get(name)
    assert config.pools.requests.max_context >= CONTEXTS[name]


@pytest.mark.parametrize("name", sorted(set(BYTES) - {"full"}))
def test_a_preset_holds_bytes_and_not_more_than_a_machine_of_eight_gigabytes_has(
    name: str,
) -> None:
    config = preset(name)
    assert all(pool.holds_bytes and pool.device == "cpu" for pool in pools(config).values())
    sizes = bytes_of(config)
    device = sum(pool.size * sizes[n] for n, pool in pools(config).items())
    host = sum(host_slots(config, n, sizes[n]) * sizes[n] for n in sizes)
    assert 2**30 < device <= device + host < 5 * 2**30
    assert (host > device) == (name in TIERED)


@pytest.mark.parametrize("name", TIERED)
def test_a_preset_with_tiers_has_the_pools_of_its_model(name: str) -> None:
    config, model = preset(name), preset(TIERED[name])
    for component, pool in pools(config).items():
        assert replace(pool, size=1) == replace(pools(model)[component], size=1)


def test_presets_with_tiers_show_what_there_is_to_choose() -> None:
    hosts = [config.host for config in map(preset, TIERED) if config.host is not None]
    stores = [config.storage for config in map(preset, TIERED) if config.storage is not None]
    assert {host.write_policy for host in hosts} == {
        "write_through",
        "write_through_selective",
        "write_back",
    }
    assert {host.layout for host in hosts} == {"layer_first", "page_first"}
    assert {store.url.partition(":")[0] for store in stores} == {"lmdb", "redis"}
    assert all(store.model and store.weight_version for store in stores)


def test_the_full_preset_is_for_replays_of_long_contexts() -> None:
    config = preset("full")
    assert config.page_size == 16
    assert config.pools.full.holds_bytes is False


@pytest.mark.parametrize("factor", [1, 2, 3, 8, 64, 10**6])
@pytest.mark.parametrize("name", BYTES)
def test_a_preset_stays_sound_when_it_is_scaled(name: str, factor: int) -> None:
    config = preset(name)
    small = validate(scaled(config, factor))
    assert bytes_of(small).keys() == bytes_of(config).keys()
    assert all(size <= BYTES[name][n] for n, size in bytes_of(small).items())
    assert all(pool.size <= pools(config)[n].size for n, pool in pools(small).items())
    assert (small.page_size, small.window, small.components, small.limits) == (
        config.page_size,
        config.window,
        config.components,
        config.limits,
    )


def test_scaling_divides_shapes_and_sizes() -> None:
    small = scaled(preset("phi-4-mini-flash"), 4)
    full, swa, mamba = pools(small).values()
    assert (full.size, full.layers, full.kv_heads, full.head_dim) == (131_072 // 4, 1, 5, 16)
    assert (swa.size, swa.layers, swa.kv_heads, swa.head_dim) == (16_384 // 4, 2, 5, 16)
    assert (mamba.size, mamba.layers, mamba.conv_shape, mamba.ssm_shape) == (
        16,
        2,
        (1280, 1),
        (1280, 4),
    )
    assert mamba.chunk == 256
    assert bytes_of(small) == {
        "full": 2 * 1 * 5 * 16 * 2,
        "swa": 2 * 2 * 5 * 16 * 2,
        "mamba": 2 * (1280 * 2 + 1280 * 4 * 4),
    }


def test_scaling_a_latent_divides_the_latent() -> None:
    pool = scaled(preset("deepseek-v3"), 8).pools.full
    assert (pool.size, pool.layers, pool.latent_dim) == (4096, 7, 72)
    assert (pool.kv_heads, pool.head_dim) == (1, 64)


def test_what_one_request_needs_is_left() -> None:
    small = scaled(preset("phi-4-mini-flash"), 1000)
    assert {name: pool.size for name, pool in pools(small).items()} == {
        "full": 1024,
        "swa": 1024,
        "mamba": 4,
    }
    assert pools(scaled(preset("nemotron-h-8b"), 1000))["mamba"].size == 2
    assert scaled(preset("llama-3.1-8b"), 10**6).pools.full.size == 32


def test_pools_that_were_smaller_are_not_made_larger() -> None:
    text = (
        "components = ['full', 'swa', 'mamba']\nwindow = 100\n[pools.full]\nsize = 50\n"
        "[pools.swa]\nsize = 120\n[pools.mamba]\nsize = 1\nextra_buffer = true\n"
    )
    small = validate(scaled(parse_config(text), 2))
    assert {name: pool.size for name, pool in pools(small).items()} == {
        "full": 48,
        "swa": 112,
        "mamba": 1,
    }


def test_pins_are_scaled_and_stay_within_the_pool() -> None:
    config = replace(preset("llama-3.1-8b"), pins=PinsConfig(budget=16_384))
    assert scaled(config, 4).pins.budget == 4096
    odd = replace(config, page_size=48, pins=PinsConfig(budget=16_368))
    assert validate(scaled(odd, 3)).pins.budget == 5424


def test_a_factor_of_one_changes_nothing() -> None:
    config = preset("gpt-oss-20b")
    assert scaled(config, 1) is config


@pytest.mark.parametrize("factor", [0, -2, 1.5, True, "2"])
def test_a_factor_that_divides_nothing_is_refused(factor: Any) -> None:
    with pytest.raises(ConfigError, match=r"scale: .* needs an integer of at least 1"):
        scaled(preset("llama-3.1-8b"), factor)


@pytest.mark.parametrize("factor", [64])
@pytest.mark.parametrize("name", sorted(set(BYTES) - {"full"}))
def test_scaled_presets_have_real_pools(name: str, factor: int) -> None:
    for pool in pools(scaled(preset(name), factor)).values():
        if isinstance(pool, KvGeometry):
            kv = TokenToKVPool(pool, pool.size)
            parts = [part for layer in kv.buffers for part in layer]
        else:
            states = StatePool(pool, pool.size)
            parts = [*states.conv, *states.ssm]
        assert sum(part.untyped_storage().nbytes() for part in parts) < 64 * 2**20
        assert all(not part.any() for part in parts)


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("llama-3.1-8b", "full; 1024 pages of 16; lru"),
        ("gemma-3-27b", "full, swa; 1024 pages of 16, 256 for windows of 1024; lru"),
        ("nemotron-h-8b", "full, mamba; 65536 pages of 1, 16 states; lru"),
        (
            "phi-4-mini-flash",
            "full, swa, mamba; 8192 pages of 16, 1024 for windows of 512, 64 states; lru",
        ),
        pytest.param(
            "hicache-lmdb",
            "full; 192 pages of 64; lru; host: 384 pages, write_through; storage: "
            "lmdb:radixtide-pages",
        ),
    ],
)
def test_the_command_line_checks_and_shows_presets(name: str, summary: str) -> None:
    path = ROOT / "configs" / f"{name}.toml"

    def run(command: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "radixtide.cli.main", "config", command, str(path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    assert run("check") == f"{path}: ok ({summary})\n"
    assert parse_config(run("show")) == load_config(path)


def test_the_reference_page_lists_every_preset() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    for path in PRESETS:
        assert f"| `configs/{path.name}` |" in page
