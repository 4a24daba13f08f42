"""Config of models with more than full attention, and of components of one's own."""

from __future__ import annotations

from datetime import date
from typing import Any

import msgspec
import pytest

from radixtide.configs.errors import ConfigError
from radixtide.configs.loader import parse_config, render_config, validate
from radixtide.configs.schema import (
    CacheConfig,
    FullPoolConfig,
    MambaPoolConfig,
    PoolsConfig,
    SwaPoolConfig,
)
from radixtide.configs.sections import plugin_section

FULL = "[pools.full]\nsize = 1024\n"
SWA = "components = ['full', 'swa']\nwindow = 100\n" + FULL + "[pools.swa]\nsize = 128\n"
MAMBA = "components = ['full', 'mamba']\n" + FULL + "[pools.mamba]\nsize = 8\nextra_buffer = true\n"


def refusal(text: str, **names: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "x.toml", **names)
    return str(caught.value)


def test_the_shortest_files_of_hybrid_models_take_every_default() -> None:
    full = FullPoolConfig(size=1024)
    assert parse_config(SWA) == CacheConfig(
        components=("full", "swa"),
        window=100,
        pools=PoolsConfig(full=full, swa=SwaPoolConfig(size=128)),
    )
    mamba = MambaPoolConfig(size=8, extra_buffer=True)
    assert parse_config(MAMBA) == CacheConfig(
        components=("full", "mamba"), pools=PoolsConfig(full=full, mamba=mamba)
    )


def test_all_three_go_together_and_shapes_are_arrays() -> None:
    text = (
        "components = ['full', 'swa', 'mamba']\nwindow = 64\npage_size = 1\n"
        + FULL
        + "[pools.swa]\nsize = 64\n[pools.mamba]\nsize = 1\nconv_shape = [3, 2]\nssm_shape = [7]\n"
    )
    pool = parse_config(text).pools.mamba
    assert pool is not None
    assert (pool.conv_shape, pool.ssm_shape) == ((3, 2), (7,))


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        (SWA.replace("'swa'", "'full', 'swa'"), 'components[1]: "full" is', "listed twice"),
        (SWA + "sise = 1", "pools.swa.sise: unknown key", "did you mean size?"),
        (SWA.replace("size = 128", ""), "pools.swa.size: missing", "an integer of at least 1"),
        (SWA + "kind = 'gqa'", "pools.swa.kind: found", 'one of "mha", "mla"'),
        ("pools.full.size = 1024\npools.swa = 3", "pools.swa: found", "write [pools.swa]"),
        (MAMBA + "chunk = 0", "pools.mamba.chunk: found the integer 0", "at least 1"),
        (MAMBA + "max_states_per_path = -1", "pools.mamba.max_states_per_path: found", "least 0"),
        (MAMBA + "conv_shape = 4", "pools.mamba.conv_shape: found the integer 4", "an array"),
        (MAMBA + "ssm_shape = [4, 0]", "pools.mamba.ssm_shape[1]: found", "at least 1"),
        (MAMBA + "ssm_dtype = 'fp32'", "pools.mamba.ssm_dtype: found", '"float32"'),
    ],
)
def test_a_wrong_key_or_value_of_a_new_section_is_named(text: str, path: str, hint: str) -> None:
    message = refusal(text)
    assert f"x.toml: {path}" in message
    assert hint in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            SWA.replace("window = 100\n", ""),
            'window: missing; the component "swa" needs the model\'s sliding window in tokens',
        ),
        pytest.param(
            "window = 100\n" + MAMBA,
            "window: no component here has a sliding window; remove it, or add one that does",
        ),
        pytest.param(
            SWA.replace("size = 128", "size = 111"),
            "pools.swa.size: 111 slots are 6 whole pages of 16, which do not hold one window of "
            "100 tokens; make the pool at least 112",
        ),
        pytest.param(
            SWA.replace("window = 100", "window = 1").replace("size = 128", "size = 15"),
            "pools.swa.size: 15 slots are 0 whole pages of 16, which do not hold one window of "
            "1 tokens; make the pool at least 16",
        ),
        pytest.param(
            FULL + "[pools.swa]\nsize = 128",
            'pools.swa: "swa" is not in components; remove this section, or add "swa" to '
            "components",
        ),
        pytest.param(
            FULL + "[pools.mamba]\nsize = 8",
            'pools.mamba: "mamba" is not in components; remove this section, or add "mamba" to '
            "components",
        ),
        pytest.param(
            SWA.replace("[pools.swa]\nsize = 128\n", ""),
            'pools.swa: missing; the component "swa" needs a pool with a size',
        ),
        pytest.param(
            "components = ['full', 'mamba']\n" + FULL,
            'pools.mamba: missing; the component "mamba" needs a pool with a size',
        ),
        pytest.param(
            MAMBA.replace("true", "false"),
            "page_size: 16 does not go with pools.mamba.extra_buffer = false: a request then has "
            "the state at its last token only, which seldom ends a page; set page_size to 1, or "
            "extra_buffer to true",
        ),
        pytest.param(
            "bigram = true\n" + MAMBA,
            "bigram: true does not go with mamba: a state belongs to a token, not to a pair; set "
            "bigram to false or remove mamba",
        ),
        pytest.param(
            MAMBA + "ssm_shape = []",
            "pools.mamba.ssm_shape: empty; name the tensor's size in each dimension",
        ),
        pytest.param(
            MAMBA + "conv_shape = []",
            "pools.mamba.conv_shape: empty; name the tensor's size in each dimension",
        ),
        pytest.param(
            SWA + "latent_dim = 512",
            'pools.swa.latent_dim: has no meaning with kind = "mha"; remove it',
        ),
        pytest.param(
            SWA + "kind = 'mla'\nkv_heads = 2",
            'pools.swa.kv_heads: has no meaning with kind = "mla"; remove it',
        ),
        (SWA + "device = 'gpu:1'", 'pools.swa.device: PyTorch knows no "gpu"; did you mean'),
        (MAMBA + "device = ''", 'pools.mamba.device: "" is no device; write a kind and'),
        pytest.param(
            SWA.replace("'full', 'swa'", "'full', 'mamba', 'swa'")
            + "[pools.mamba]\nsize = 8\nextra_buffer = true",
            "components: full comes first, then swa, then mamba, then those of plug-ins; write "
            '["full", "swa", "mamba"]',
        ),
        pytest.param(
            "components = ['full', 'mambo']\n" + FULL,
            'components[1]: no component is named "mambo"; did you mean mamba?; known: full, swa, '
            "mamba; one of your own must be registered first",
        ),
        pytest.param(
            FULL + "[plugins.sidecar]\na = 1",
            'plugins.sidecar: "sidecar" is not in components; remove this section, or add '
            '"sidecar" to components',
        ),
        pytest.param(
            SWA + "[plugins.swa]",
            'plugins.swa: "swa" is built in and no plug-in; its section is [pools.swa]',
        ),
    ],
)
def test_an_impossible_combination_is_refused_with_the_key_to_change(
    text: str, message: str
) -> None:
    assert refusal(text).startswith(f"x.toml: {message}")


@pytest.mark.parametrize(
    "text",
    [
        SWA.replace("size = 128", "size = 112"),  # one window in whole pages, exactly
        SWA.replace("window = 100", "window = 112").replace("size = 128", "size = 112"),
        SWA.replace("window = 100", "window = 1").replace("size = 128", "size = 16"),
        SWA + "kind = 'mla'\nlatent_dim = 512",
        "bigram = true\n" + SWA,
        "page_size = 1\n" + MAMBA.replace("true", "false"),
        "page_size = 1\n" + MAMBA,
    ],
)
def test_what_just_fits_is_accepted(text: str) -> None:
    assert parse_config(text).components[0] == "full"


def test_a_component_of_ones_own_comes_last_and_is_known_once_registered() -> None:
    text = SWA.replace("'swa'", "'swa', 'sidecar'") + "[plugins.sidecar]\na = {b = [1, 'c']}"
    assert 'components[2]: no component is named "sidecar"' in refusal(text)
    config = parse_config(text, components=["sidecar", "full"])
    assert config.components == ("full", "swa", "sidecar")
    assert config.plugins == {"sidecar": {"a": {"b": [1, "c"]}}}
    wrong = refusal(text.replace("'swa', 'sidecar'", "'sidecar', 'swa'"), components=["sidecar"])
    assert wrong.endswith('write ["full", "swa", "sidecar"]')


def test_a_misspelt_section_of_a_plug_in_is_told_which_one_was_meant() -> None:
    text = "components = ['full', 'sidecar']\n" + FULL + "[plugins.sidcar]"
    assert "did you mean sidecar?" in refusal(text, components=["sidecar"])


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        (3, "plugins: found the integer 3, but this is a table of tables: write [plugins.NAME]"),
        ({"s": 3}, "plugins.s: found the integer 3, but this is a table: write [plugins.s]"),
        ({"s": {"a": None}}, "plugins.s.a: found None, but needs a value that TOML has"),
        (
            {"s": {"a": [1, {2}]}},
            "plugins.s.a[1]: found a set {2}, but needs a value that TOML has",
        ),
        ({"s": {"a": {"b": b"c"}}}, "plugins.s.a.b: found a bytes b'c', but needs a value"),
        ({"s": {1: 2}}, "plugins.s: found the integer 1 as a key, but needs a string"),
        ({1: {}}, "plugins: found the integer 1 as a key, but needs a string"),
    ],
)
def test_a_section_built_in_python_must_be_one_that_a_file_can_hold(
    plugins: Any, message: str
) -> None:
    config = CacheConfig(
        components=("full", "s"), pools=PoolsConfig(full=FullPoolConfig(size=16)), plugins=plugins
    )
    with pytest.raises(ConfigError) as caught:
        validate(config, components=["s"])
    assert str(caught.value).startswith(f"config: {message}")


def test_sections_of_plug_ins_are_written_as_they_are_read() -> None:
    text = (
        'components = ["full", "a b"]\n'
        + FULL
        + '[plugins."a b"]\n"é" = 2020-01-02\nlist = [{x = 1, y = [true, 1.5]}, {}]\nempty = {}\n'
        + '[plugins."a b".deep.er]\n"1.2" = 07:30:00\n'
    )
    config = parse_config(text, components=["a b"])
    assert config.plugins["a b"]["é"] == date(2020, 1, 2)
    written = render_config(config)
    assert '[plugins."a b".deep.er]\n"1.2" = 07:30:00\n' in written
    assert parse_config(written, components=["a b"]) == config


class Sidecar(msgspec.Struct):
    """The section of a component of one's own; strict without saying so."""

    tokens_per_entry: int = 128
    names: list[str] = []


def own(table: dict[str, Any] | None) -> CacheConfig:
    return CacheConfig(
        components=("full", "sidecar"),
        pools=PoolsConfig(full=FullPoolConfig(size=16)),
        plugins={} if table is None else {"sidecar": table},
    )


def test_a_component_reads_its_own_section() -> None:
    assert plugin_section(own(None), "sidecar", Sidecar) == Sidecar()
    section = plugin_section(own({"tokens_per_entry": 64, "names": ["a"]}), "sidecar", Sidecar)
    assert section == Sidecar(tokens_per_entry=64, names=["a"])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"token_per_entry": 1}, "plugins.sidecar.token_per_entry: unknown key; did you mean to"),
        ({"zz": 1}, "plugins.sidecar.zz: unknown key; known: names, tokens_per_entry"),
        ({"tokens_per_entry": "1"}, "plugins.sidecar.tokens_per_entry: expected `int`, got `str`"),
        ({"names": ["a", 2]}, "plugins.sidecar.names[1]: expected `str`, got `int`"),
    ],
)
def test_a_mistake_in_a_section_of_ones_own_is_named_by_its_path(
    table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        plugin_section(own(table), "sidecar", Sidecar)
    assert str(caught.value).startswith(f"config: {message}")


def test_a_missing_key_of_a_section_of_ones_own_is_named() -> None:
    class Needy(msgspec.Struct):
        size: int

    with pytest.raises(ConfigError, match=r"plugins\.sidecar\.size: missing"):
        plugin_section(own({}), "sidecar", Needy)
