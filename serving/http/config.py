"""Configuration of the server, and of all that ``radixtide serve`` starts: one TOML file."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from radixtide.configs.errors import ConfigError
from radixtide.configs.loader import load_toml, parse_toml
from radixtide.configs.reading import config_error, struct_problems
from radixtide.configs.schema import NonNegative, Positive, Seconds, Section, StorageConfig
from radixtide.serving.config import EngineConfig

PRESET = "serve.toml"
"""The config that is taken where no file is named."""

KEY_MIN = 8
"""Characters an API key must have: a shorter one can be guessed over the network."""


class ApiKey(Section, frozen=True, kw_only=True):
    """``[server.keys.NAME]``: a client that may use the server. ``key``: its secret.

    ``cache_salt``: what this client sends is cached apart from all that other salts cached; clients
    of one salt share. None: with all others that have none. ``admin``: it may flush and pin.
    """

    key: str
    cache_salt: str | None = None
    admin: bool = False


class ServerConfig(Section, frozen=True, kw_only=True):
    """``[server]``: every limit of the server.

    ``host``, ``port``: where it listens; port 0 takes a free one.
    ``keys``: the clients; without any, everybody who reaches the port may use it, admin included.
    ``body_bytes_max``: bytes of a request's body; ``body_timeout_s``: until the whole of it is
    there. ``head_bytes_max``: bytes of a request's head; ``head_timeout_s``: until that is there.
    ``write_timeout_s``: how long a client may take nothing of what is sent before it is cut off.
    ``idle_timeout_s``: how long a connection is kept between two requests.
    ``connections_max``: connections open at once; one more is answered 503.
    ``prompt_tokens_max``: tokens of a prompt; 0: what the model's context holds.
    ``answer_tokens_default``: tokens of a chat's answer where the request names no number, as far
    as the context has room. ``completion_tokens_default``: the same for plain completions.
    ``choices_max``: choices (``n``) times prompts of one request.
    ``stops_max``: stop strings of one request; ``stop_chars_max``: length of one;
    ``stop_tokens_max``: its ``stop_token_ids``. ``salt_chars_max``: length of a ``cache_salt``.
    ``top_logprobs_max``: alternatives told for a token.
    ``heartbeat_s``: a stream without a token for so long sends a comment, so that nobody on the way
    takes it for dead. ``grace_s``: how long running answers may go on when the server ends.
    ``live_interval_s``, ``live_nodes_max``, ``live_viewers_max``, ``live_share_max``: of the page
    of the live tree: time between two pictures, nodes in one, viewers at once, and the share of the
    loop's time that pictures may take.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0)] = 8000
    keys: dict[str, ApiKey] = msgspec.field(default_factory=dict)
    body_bytes_max: Positive = 4 * 2**20
    body_timeout_s: Seconds = 30.0
    head_bytes_max: Positive = 32 * 2**10
    head_timeout_s: Seconds = 10.0
    write_timeout_s: Seconds = 30.0
    idle_timeout_s: Positive = 30
    connections_max: Positive = 512
    prompt_tokens_max: NonNegative = 0
    answer_tokens_default: Positive = 512
    completion_tokens_default: Positive = 16
    choices_max: Positive = 16
    stops_max: Positive = 8
    stop_chars_max: Positive = 256
    stop_tokens_max: Positive = 64
    salt_chars_max: Positive = 256
    top_logprobs_max: NonNegative = 20
    heartbeat_s: Seconds = 15.0
    grace_s: Seconds = 10.0
    live_interval_s: Seconds = 0.5
    live_nodes_max: Positive = 1500
    live_viewers_max: Positive = 32
    live_share_max: Seconds = 0.02


class CacheSizes(Section, frozen=True, kw_only=True):
    """``[cache]``: how much the cache holds; the rest follows from the model.

    ``tokens``: slots of the device pool of full attention. ``page_size``: tokens a page.
    ``window_tokens``: slots of the pool of sliding windows, ``states``: recurrent states, for
    models that have these; None: in proportion. ``host_ratio``: slots of the host for each slot of
    the device; 0: no host tier. ``pin_tokens``: slots that pins may keep.
    ``storage``: the tier below the host, as in a cache's own config; None: there is none.
    """

    tokens: Positive = 16_384
    page_size: Positive = 16
    window_tokens: Positive | None = None
    states: Positive | None = None
    host_ratio: Annotated[float, Meta(ge=0)] = 2.0
    pin_tokens: NonNegative = 4096
    storage: StorageConfig | None = None


class ServeConfig(Section, frozen=True, kw_only=True):
    """All that ``radixtide serve`` starts.

    ``model``: ``smollm2``, a Hugging Face folder, a .gguf file, or ``random:llama`` and its like.
    ``model_name``: what clients call it; empty: the model's own name.
    ``dtype``: of weights and cached state. ``device``: ``auto``, ``cpu`` or ``cuda``.
    """

    model: str = "smollm2"
    model_name: str = ""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "auto"
    server: ServerConfig = ServerConfig()
    engine: EngineConfig = EngineConfig()
    cache: CacheSizes = CacheSizes()


def load_serve_config(path: str | Path | None = None) -> ServeConfig:
    """Return the checked config in the TOML file at `path`, or the shipped one.

    Raises ConfigError when the file can not be read, is not TOML (file and line in the message),
    has unknown keys or wrong types, or describes something impossible (path of each key).
    """
    if path is None:
        text = (files("radixtide.configs") / PRESET).read_text(encoding="utf-8")
        return parse_serve_config(text, PRESET)
    return _checked(load_toml(path), str(path))


def parse_serve_config(text: str, source: str = "config") -> ServeConfig:
    """Return the checked config in the TOML `text`; messages call it `source`."""
    return _checked(parse_toml(text, source), source)


def _checked(document: Mapping[str, Any], source: str) -> ServeConfig:
    if "pools" in document:
        raise ConfigError(
            f"{source}: is the config of a cache; a server makes one that fits its model, sized by "
            "the table [cache] of its own config (configs/serve.toml is an example)"
        )
    problems = struct_problems(document, ServeConfig)
    if problems:
        raise config_error(source, problems)
    config = msgspec.convert(document, ServeConfig)
    return check_serve_config(config, source)


def check_serve_config(config: ServeConfig, source: str = "config") -> ServeConfig:
    """Return `config`, or raise ConfigError where its values make no sense together."""
    problems = [*_server_problems(config.server), *_cache_problems(config.cache)]
    if problems:
        raise config_error(source, problems)
    return config


def _server_problems(server: ServerConfig) -> Iterator[str]:
    if server.port > 65_535:
        yield f"server.port: {server.port}, but ports end at 65535"
    seen: dict[str, str] = {}
    for name, client in server.keys.items():
        path = f"server.keys.{name}.key"
        if len(client.key) < KEY_MIN or not client.key.isascii() or not client.key.isprintable():
            yield f"{path}: needs at least {KEY_MIN} printable ASCII characters"
        elif client.key in seen:
            yield f"{path}: the same key as that of {seen[client.key]}; give each client its own"
        seen.setdefault(client.key, name)
        if client.cache_salt == "":
            yield f"server.keys.{name}.cache_salt: is empty; leave it out to share with all"


def _cache_problems(cache: CacheSizes) -> Iterator[str]:
    for name in ("tokens", "window_tokens", "pin_tokens"):
        size = getattr(cache, name)
        if size is not None and size % cache.page_size:
            yield f"cache.{name}: {size} is no multiple of cache.page_size {cache.page_size}"
    if cache.storage is not None and cache.host_ratio == 0:
        yield "cache.storage: needs a host tier: set cache.host_ratio above 0"


def open_to_others(host: str) -> bool:
    """Return whether a server that listens on `host` can be reached from other machines."""
    if host == "localhost":
        return False
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return True
