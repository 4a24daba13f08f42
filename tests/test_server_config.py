"""The config of ``radixtide serve``: every mistake is named, with what would be right."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from radixtide.configs.errors import ConfigError
from radixtide.serving.http.auth import find_client
from radixtide.serving.http.config import (
    ApiKey,
    ServeConfig,
    ServerConfig,
    load_serve_config,
    open_to_others,
    parse_serve_config,
)
from radixtide.serving.http.errors import ApiError
from radixtide.serving.http.server import make_cache_config
from radixtide.serving.models import load_model

KEY = 'key = "long enough"'


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse_serve_config(text, "x.toml")
    return str(refused.value)


def test_the_shipped_config_is_the_default_one() -> None:
    assert load_serve_config() == ServeConfig()


def test_all_of_it_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "serve.toml"
    path.write_text(
        f"""
model = "random:lfm2"
model_name = "mine"
dtype = "bfloat16"
[server]
port = 9
grace_s = 3
[server.keys.alice]
{KEY}
cache_salt = "a"
admin = true
[engine]
max_running = 3
[cache]
tokens = 320
page_size = 32
states = 9
host_ratio = 0.5
[cache.storage]
url = "file:/pages"
"""
    )
    config = load_serve_config(path)
    assert config.model_name == "mine"
    assert config.server.keys == {"alice": ApiKey(key="long enough", cache_salt="a", admin=True)}
    assert config.server.grace_s == 3.0
    assert config.engine.max_running == 3
    assert config.cache.storage is not None
    assert config.cache.storage.url == "file:/pages"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle = 'x'", "x.toml: modle: unknown key; did you mean model?"),
        ("dtype = 'int8'", "x.toml: dtype: found the string 'int8', but needs one of \"bfloat16\""),
        ("[server]\nport = 'x'", "x.toml: server.port: found the string 'x', but needs an integer"),
        ("[server]\nport = 70000", "x.toml: server.port: 70000, but ports end at 65535"),
        ("[server]\nhots = 'x'", "x.toml: server.hots: unknown key; did you mean host?"),
        ("[server]\nbody_bytes_max = 0", "x.toml: server.body_bytes_max: found the integer 0"),
        (
            "[server]\ngrace_s = 0",
            "x.toml: server.grace_s: found the integer 0, but needs a finite",
        ),
        ("[server.keys]\nalice = 1", "x.toml: server.keys.alice: found the integer 1"),
        ("[server.keys.alice]\nkye = 'x'", "x.toml: 2 problems\n  server.keys.alice.kye: unknown"),
        ("[server.keys.a]\nkey = 'short'", "x.toml: server.keys.a.key: needs at least 8 printable"),
        ("[server.keys.a]\nkey = 'gr\u00fc\u00dfe und mehr'", "x.toml: server.keys.a.key: needs"),
        (
            f"[server.keys.a]\n{KEY}\n[server.keys.b]\n{KEY}",
            "x.toml: server.keys.b.key: the same key as that of a; give each client its own",
        ),
        (f"[server.keys.a]\n{KEY}\ncache_salt = ''", "x.toml: server.keys.a.cache_salt: is empty"),
        ("[engine]\nmax_running = 0", "x.toml: engine.max_running: found the integer 0"),
        ("[cache]\ntokens = 100", "x.toml: cache.tokens: 100 is no multiple of cache.page_size 16"),
        (
            "[cache]\nhost_ratio = 0\n[cache.storage]\nurl = 'memory:'",
            "x.toml: cache.storage: needs a host tier: set cache.host_ratio above 0",
        ),
        ("[cache.storage]\n", "x.toml: cache.storage.url: missing"),
        ("a = ", "x.toml:1: not valid TOML"),
    ],
)
def test_a_mistake_is_named(text: str, message: str) -> None:
    assert refusal(text).startswith(message)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: can not be read"):
        load_serve_config(tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("host", "open_"),
    [
        ("127.0.0.1", False),
        ("127.5.5.5", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("10.0.0.1", True),
        ("example.org", True),
    ],
)
def test_which_hosts_can_be_reached_by_others(host: str, open_: bool) -> None:
    assert open_to_others(host) is open_


def test_the_sizes_reach_the_cache() -> None:
    model = load_model("random:gemma3")
    config = parse_serve_config(
        "[cache]\ntokens = 640\npage_size = 8\nwindow_tokens = 320\nhost_ratio = 0\n"
        "pin_tokens = 80\n[engine]\nmax_running = 5"
    )
    cache = make_cache_config(model, config)
    assert cache.pools.full.size == 640
    assert cache.pools.swa is not None
    assert cache.pools.swa.size == 320
    assert cache.page_size == 8
    assert cache.host is None
    assert cache.pins.budget == 80
    assert cache.pools.requests.max_requests >= 5
    tiered = make_cache_config(model, replace(config, cache=replace(config.cache, host_ratio=2.0)))
    assert tiered.host is not None
    assert tiered.host.ratio == 2.0


KEYS = ServerConfig(
    keys={
        "alice": ApiKey(key="alice-secret", cache_salt="a"),
        "op": ApiKey(key="operator-secret", admin=True),
    }
)


def test_without_keys_everybody_is_welcome() -> None:
    assert find_client(ServerConfig(), "").admin
    assert find_client(ServerConfig(), "Bearer whatever").cache_salt is None


def test_a_key_says_who_it_is() -> None:
    assert find_client(KEYS, "Bearer alice-secret").name == "alice"
    assert find_client(KEYS, "bearer  alice-secret ").cache_salt == "a"
    assert not find_client(KEYS, "Bearer alice-secret").admin
    assert find_client(KEYS, "Bearer operator-secret").admin


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ("", "is missing"),
        ("Bearer", "is missing"),
        ("Bearer ", "is missing"),
        ("alice-secret", "is missing"),
        ("Basic alice-secret", "is not known"),
        ("Bearer alice-secre", "is not known"),
        ("Bearer alice-secret2", "is not known"),
        ("Bearer \udcff\ud800", "is not known"),
        ("Bearer " + "x" * 100_000, "is not known"),
    ],
)
def test_any_other_header_is_refused(header: str, told: str) -> None:
    with pytest.raises(ApiError) as refused:
        find_client(KEYS, header)
    assert refused.value.status == 401
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)
