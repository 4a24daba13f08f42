"""Config files: what is read, what is refused, and whether the message tells what to do."""

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from radixtide.components import policies
from radixtide.configs.errors import ConfigError
from radixtide.configs.loader import load_config, parse_config, render_config, validate
from radixtide.configs.rules import COMPONENTS, POLICIES
from radixtide.configs.schema import (
    CacheConfig,
    EvictionConfig,
    FullPoolConfig,
    HostConfig,
    HostPoolConfig,
    LimitsConfig,
    MambaPoolConfig,
    PinsConfig,
    PoolsConfig,
    RequestPoolConfig,
    StorageConfig,
    SwaPoolConfig,
)
from support.rooms import ROOT

SMALL = CacheConfig(pools=PoolsConfig(full=FullPoolConfig(size=1024)))


def refusal(text: str, **names: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "x.toml", **names)
    return str(caught.value)


def test_the_shortest_file_takes_every_default() -> None:
    assert parse_config("pools.full.size = 1024") == SMALL


SMALL_TABLE = "[pools.full]\nsize = 1024\n"


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        (SMALL_TABLE + "sise = 3", "pools.full.sise: unknown key", "did you mean size?"),
        ("page = 1\n" + SMALL_TABLE, "page: unknown key", "did you mean page_size?"),
        (SMALL_TABLE + "[evicton]", "evicton: unknown key", "did you mean eviction?"),
        (SMALL_TABLE + "[limits]\nzzz = 1", "limits.zzz: unknown key", "known here: mailbox_cap"),
        (SMALL_TABLE + "[pools.zzz]\nsize=1", "pools.zzz: unknown key", "known here: full, swa, "),
        ("", "pools.full.size: missing", "needs an integer of at least 1"),
        ("page_size = 'a'\n" + SMALL_TABLE, "page_size: found the string 'a'", "an integer of at"),
        ("page_size = true\n" + SMALL_TABLE, "page_size: found the boolean true", "an integer"),
        ("page_size = 16.0\n" + SMALL_TABLE, "page_size: found the number 16.0", "an integer"),
        ("page_size = 0\n" + SMALL_TABLE, "page_size: found the integer 0", "at least 1"),
        ("window = -1\n" + SMALL_TABLE, "window: found the integer -1", "at least 1"),
        ("bigram = 1\n" + SMALL_TABLE, "bigram: found the integer 1", "true or false"),
        ("components = 'full'\n" + SMALL_TABLE, "components: found the string", "an array, each"),
        ("components = [1]\n" + SMALL_TABLE, "components[0]: found the integer 1", "a string"),
        ("delivery = 'queue'\n" + SMALL_TABLE, "delivery: found", "did you mean queued?"),
        (SMALL_TABLE + "dtype = 'bf16'", "pools.full.dtype: found", 'one of "bfloat16"'),
        (SMALL_TABLE + "layers = 281474976710657", "pools.full.layers: found", "at most 2**48"),
        ("eviction = 3\n" + SMALL_TABLE, "eviction: found the integer 3", "write [eviction]"),
        ("pools.full = []", "pools.full: found the array []", "write [pools.full]"),
        (SMALL_TABLE + "[limits]\ncall_timeout_s = inf", "limits.call_timeout_s: found", "finite"),
        (SMALL_TABLE + "[limits]\nstall_after_s = 0", "limits.stall_after_s: found", "above 0"),
        (SMALL_TABLE + "device = 1979-05-27", "pools.full.device: found a date", "a string"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_what_would_be_right(
    text: str, path: str, hint: str
) -> None:
    message = refusal(text)
    assert message.startswith(f"x.toml: {path}")
    assert hint in message


def test_a_long_value_is_cut_in_the_message() -> None:
    assert len(refusal(f"page_size = '{'a' * 5000}'\n{SMALL_TABLE}")) < 200


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file() -> None:
    lines = refusal("page_size = 'a'\n[pools.full]\nsise = 1\n[pins]\nbudget = -1").splitlines()
    assert lines[0] == "x.toml: 4 problems"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "page_size",
        "pools.full.sise",
        "pools.full.size",
        "pins.budget",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("page_size = ", 1),
        ("# fine\npage_size = 16\npage_size = 16\n", 3),
        ("[pools.full]\nsize = 10\n[pools.full]\n", 3),
        ("a = '''\n\n", 3),
        ("\n\nx", 3),
    ],
)
def test_a_syntax_error_names_file_and_line(text: str, line: int) -> None:
    message = refusal(text)
    assert message.startswith(f"x.toml:{line}: not valid TOML: ")
    assert "(at " not in message


def test_an_unreadable_file_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.toml: can not be read: No such file"):
        load_config(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="can not be read: Is a directory"):
        load_config(tmp_path)
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# caf\xe9\n")
    with pytest.raises(ConfigError, match=r"is not UTF-8 \(byte 5\)"):
        load_config(latin)


@pytest.mark.parametrize(
    ("text", "path", "hint"),
    [
        ("components = []", "components: the first must be", '"full"'),
        ("components = ['ful']", "components: the first must be", "did you mean full?"),
        ("components = ['full', 'full']", 'components[1]: "full" is listed twice', "remove one"),
        ("components = ['full', 'mambo']", "components[1]: no component", "did you mean mamba?"),
        ("window = 128", "window: no component here", "remove it"),
        ("page_size = 1025\n", "pools.full.size: 1024 is less than one page", "at least 1025"),
        ("pins.budget = 1025", "pins.budget: 1025 is more than the 1024 slots", "whole pool"),
        ("page_size = 1000\npins.budget = 1001", "pins.budget: 1001", "the 1000 slots"),
        ("pools.requests.max_context = 15", "pools.requests.max_context: 15", "one page"),
        ("limits.key_units_max = 15", "limits.key_units_max: 15", "no key could be stored"),
        ("eviction.policy = 'lur'", "eviction.policy: no policy", "did you mean lru?"),
        ("pools.full.device = 'cuda:'", 'pools.full.device: "cuda:" is no device', '"cuda:0"'),
        ("pools.full.device = 'CPU'", 'pools.full.device: "CPU" is no device', '"cpu"'),
        ("pools.full.device = ''", 'pools.full.device: "" is no device', '"cpu"'),
        ("pools.full.device = 'gpu:1'", "pools.full.device: PyTorch", 'did you mean "cuda:1"?'),
        ("pools.full.latent_dim = 512", "pools.full.latent_dim: has no", 'kind = "mha"'),
        ("pools.full = {kind = 'mla', size = 64, head_dim = 128}", "pools.full.head_dim", "mla"),
    ],
)
def test_an_impossible_combination_is_refused_with_the_key_to_change(
    text: str, path: str, hint: str
) -> None:
    size = "" if "pools.full = " in text else "pools.full.size = 1024\n"
    message = refusal(size + text)
    assert path in message
    assert hint in message


def test_what_plug_ins_registered_is_accepted_by_name() -> None:
    text = SMALL_TABLE + "[eviction]\npolicy = 'mine'"
    assert "no policy is named" in refusal(text)
    assert parse_config(text, policies=["mine"]).eviction.policy == "mine"
    text = "components = ['full', 'sidecar']\nwindow = 64\n" + SMALL_TABLE
    assert "no component is named" in refusal(text)
    assert parse_config(text, components=["sidecar"]).components == ("full", "sidecar")


def test_a_config_built_in_python_is_held_to_the_same_rules() -> None:
    assert validate(SMALL) is SMALL
    wrong = msgspec.structs.replace(
        SMALL,
        page_size=0,
        limits=LimitsConfig(call_timeout_s=float("nan"), batch=None),  # type: ignore[arg-type]  # wrong on purpose
    )
    with pytest.raises(ConfigError) as caught:
        validate(wrong)
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()] == [
        "config",
        "page_size",
        "limits.batch",
        "limits.call_timeout_s",
    ]
    with pytest.raises(ConfigError, match="pools: found None, but this is a table"):
        validate(msgspec.structs.replace(SMALL, pools=None))


def sizes(least: int = 1, most: int = 2**48) -> st.SearchStrategy[int]:
    return st.integers(least, most)


DEVICES = st.from_regex(r"[a-fh-z]{1,9}(:(0|[1-9][0-9]{0,2}))?", fullmatch=True)
SHAPE = {"layers": sizes(), "kv_heads": sizes(), "head_dim": sizes(), "latent_dim": st.just(576)}
NAMES = st.text(min_size=1).filter(lambda name: name not in COMPONENTS)
PLAIN = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.dates()
    | st.datetimes()
    | st.times()
)
"""What TOML can write of itself."""
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


HOST_POOLS = st.one_of(
    st.just(HostPoolConfig()),
    st.builds(HostPoolConfig, size=sizes(1024)),
    st.builds(HostPoolConfig, ratio=st.floats(1, 4)),
)
HOSTS = st.builds(
    HostConfig,
    ratio=st.floats(1, 4),
    write_policy=st.sampled_from(["write_through", "write_back"]),
    pools=st.just({}) | st.fixed_dictionaries({"full": HOST_POOLS}),
)
STORAGES = st.builds(
    StorageConfig, url=st.text().map("file:x{}".format), model=st.text(), max_bytes=st.just(0)
)


@st.composite
def configs(draw: st.DrawFn) -> CacheConfig:
    """Draw a config with any set of components, all of it sound."""
    own = draw(st.dictionaries(NAMES, st.dictionaries(st.text(), VALUES), max_size=2))
    swa = draw(
        st.none() | st.builds(SwaPoolConfig, size=sizes(2048, 2**45), device=DEVICES, **SHAPE)
    )
    state = st.lists(sizes(), min_size=1).map(tuple)
    mamba = draw(
        st.none()
        | st.builds(
            MambaPoolConfig,
            size=sizes(most=2**45),
            layers=sizes(),
            conv_shape=state,
            ssm_shape=state,
            device=DEVICES,
            extra_buffer=st.just(True),
            chunk=sizes(),
            max_states_per_path=sizes(0),
        )
    )
    parts = (("swa", swa), ("mamba", mamba))
    names = ("full", *(name for name, pool in parts if pool is not None), *own)
    host = draw(st.none() | HOSTS)
    requests = st.builds(RequestPoolConfig, max_requests=sizes(), max_context=sizes(1024))
    return CacheConfig(
        pools=PoolsConfig(
            full=draw(st.builds(FullPoolConfig, size=sizes(1024, 2**45), device=DEVICES, **SHAPE)),
            swa=swa,
            mamba=mamba,
            requests=draw(requests),
        ),
        components=names,
        page_size=draw(sizes(most=1024)),
        window=draw(sizes(most=1024)) if swa is not None else None,
        eviction=draw(st.builds(EvictionConfig, policy=st.text(min_size=1))),
        pins=draw(st.builds(PinsConfig, budget=st.integers(0, 512))),
        limits=draw(
            st.builds(LimitsConfig, stall_after_s=st.floats(1e-9, 1e9), key_units_max=sizes(1024))
        ),
        host=host,
        storage=draw(STORAGES) if host is not None else None,
        plugins=own,
    )


@given(configs())
def test_what_is_written_reads_back_equal(config: CacheConfig) -> None:
    text = render_config(config)
    policies, own = [config.eviction.policy], list(config.plugins)
    assert parse_config(text, policies=policies, components=own) == config


def test_writing_spells_out_every_default_and_says_what_is_not_set() -> None:
    text = render_config(SMALL)
    assert "# window is not set\n" in text
    assert "[pools]\n# swa is not set\n# mamba is not set\n" in text
    assert "plugins = {}\n" in text
    assert 'policy = "lru"\n' in text
    assert text.endswith("\n")
    assert not text.startswith("\n")


def test_the_policies_that_a_file_may_name_are_those_that_are_built_in() -> None:
    built_in = {
        value.name
        for value in vars(policies).values()
        if isinstance(value, type)
        and issubclass(value, policies.EvictionPolicy)
        and value is not policies.EvictionPolicy
    }
    assert set(POLICIES) == built_in
    for name in POLICIES:
        assert policies.make_policy(EvictionConfig(policy=name)).name == name


def documented() -> dict[str, str]:
    """Return key and default of each row of the reference page's tables."""
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = (line.split("|") for line in page.splitlines() if line.startswith("| `"))
    return {
        cells[1].strip().strip("`"): cells[2].strip().strip("`")
        for cells in rows
        if len(cells) == 5  # key, default and meaning, between the outer bars
    }


def defaults(table: dict[str, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            found |= defaults(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = "not set" if value is None else render_value(value)
    return found


def render_value(value: Any) -> str:
    return msgspec.json.encode(value).decode().replace(",", ", ")


def test_the_reference_page_has_every_key_with_its_default() -> None:
    pools = PoolsConfig(
        full=FullPoolConfig(size=1), swa=SwaPoolConfig(size=1), mamba=MambaPoolConfig(size=1)
    )
    host = HostConfig(pools={"NAME": HostPoolConfig()})
    config = CacheConfig(pools=pools, host=host, storage=StorageConfig(url=""))
    expected = defaults(msgspec.to_builtins(config))
    sizes = ("pools.full.size", "pools.swa.size", "pools.mamba.size")
    expected |= dict.fromkeys((*sizes, "storage.url"), "required")
    assert documented() == expected
