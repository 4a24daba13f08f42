"""Writing a config back as TOML, every default spelled out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time
from typing import Any, Final

import msgspec

from radixtide.configs.schema import Section

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def render_config(config: Section) -> str:
    """Return `config` as TOML that reads back equal; keys without a value become comments."""
    document = msgspec.to_builtins(config, builtin_types=(datetime, date, time))
    return "\n".join(_table_lines(document, "")).lstrip("\n") + "\n"


def _table_lines(table: Mapping[str, Any], path: str) -> Iterable[str]:
    """Yield a table's own values first: after a sub-table's header they would belong to that."""
    # A table without keys is written as a value: its header would have nothing below it.
    own = {name: value for name, value in table.items() if not isinstance(value, dict) or not value}
    if path and own:
        yield ""
        yield f"[{path}]"
    for name, value in own.items():
        key = _key(name)
        yield f"# {key} is not set" if value is None else f"{key} = {_value(value)}"
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _table_lines(value, f"{path}.{_key(name)}" if path else _key(name))


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which TOML wants escaped too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        items = (f"{_key(name)} = {_value(item)}" for name, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, (date, time)):
        return value.isoformat()
    return repr(value)
