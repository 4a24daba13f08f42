"""Writing a config back as TOML, every default spelled out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from radixtide.configs.schema import CacheConfig


def render_config(config: CacheConfig) -> str:
    """Return `config` as TOML that reads back equal; keys without a value become comments."""
    return "\n".join(_table_lines(msgspec.to_builtins(config), "")).lstrip("\n") + "\n"


def _table_lines(table: Mapping[str, Any], path: str) -> Iterable[str]:
    """Yield a table's own values first: after a sub-table's header they would belong to that."""
    own = {name: value for name, value in table.items() if not isinstance(value, dict)}
    if path and own:
        yield ""
        yield f"[{path}]"
    for name, value in own.items():
        yield f"# {name} is not set" if value is None else f"{name} = {_value(value)}"
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _table_lines(value, f"{path}.{name}" if path else name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
