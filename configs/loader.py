"""Reading config files: TOML in, a checked :class:`CacheConfig` out."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from radixtide.configs.errors import ConfigError
from radixtide.configs.reading import read_config
from radixtide.configs.rules import validate as validate
from radixtide.configs.schema import CacheConfig
from radixtide.configs.writing import render_config as render_config

__all__ = ("load_config", "load_toml", "parse_config", "parse_toml", "render_config", "validate")

_POSITION = re.compile(r"^(?P<what>.*) \(at (line (?P<line>\d+), column \d+|end of document)\)$")


def load_config(
    path: str | Path, *, policies: Collection[str] = (), components: Collection[str] = ()
) -> CacheConfig:
    """Return the checked config in the TOML file at `path`.

    `policies` and `components` are names that plug-ins registered. Raises :class:`ConfigError`
    when the file can not be read, is not TOML (file and line in the message), has unknown keys or
    wrong types, or describes something impossible (path of each key in the message).
    """
    return parse_config(read_text(path), str(path), policies=policies, components=components)


def parse_config(
    text: str,
    source: str = "config",
    *,
    policies: Collection[str] = (),
    components: Collection[str] = (),
) -> CacheConfig:
    """Return the checked config in the TOML `text`; messages call it `source`.

    Raises as :func:`load_config` does.
    """
    config = read_config(parse_toml(text, source), source)
    return validate(config, policies=policies, components=components, source=source)


def load_toml(path: str | Path) -> dict[str, Any]:
    """Return the tables of the TOML file at `path`, unchecked. Raises ConfigError."""
    return parse_toml(read_text(path), str(path))


def parse_toml(text: str, source: str = "config") -> dict[str, Any]:
    """Return the tables of TOML `text`. Raises ConfigError, which names `source` and line."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.match(str(error))
        if position is None:
            raise ConfigError(f"{source}: not valid TOML: {error}") from None
        line = position["line"] or str(text.count("\n") + 1)
        raise ConfigError(f"{source}:{line}: not valid TOML: {position['what']}") from None


def read_text(path: str | Path) -> str:
    """Return the text of a config file. Raises ConfigError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{path}: can not be read: {reason}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 (byte {error.start}); TOML must be") from None
