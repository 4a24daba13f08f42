"""From parsed TOML to a :class:`CacheConfig`, with every mistake named by its key's path.

msgspec would stop at the first mistake and speak of JSON paths; a person who edits a file wants all
of them at once, each with what was found and what would be right.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from datetime import date, time
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from radixtide.configs.errors import ConfigError
from radixtide.configs.schema import CacheConfig

INTEGER_MAX = 2**48
"""Largest integer of a file. Products of two sizes that make sense stay within int64."""

TOML_SCALARS = (str, int, float, date, time)
"""Types of TOML's plain values; bool is an int, and datetime a date."""


def read_config(document: Mapping[str, Any], source: str) -> CacheConfig:
    """Return the config that `document` (parsed TOML) describes, or raise :class:`ConfigError`.

    Checks keys and types; :func:`radixtide.configs.rules.validate` checks what they mean together.
    """
    problems = find_problems(document)
    if problems:
        raise config_error(source, problems)
    return msgspec.convert(document, CacheConfig)


def find_problems(document: Mapping[str, Any] | CacheConfig) -> list[str]:
    """Return what is wrong with keys, types and ranges, one line a key; empty when nothing is.

    A Struct built in Python is checked too: msgspec checks only what it reads.
    """
    return struct_problems(document, CacheConfig)


def struct_problems(document: Any, struct: type[msgspec.Struct], prefix: str = "") -> list[str]:
    """Return what is wrong with `document` as a `struct`; `prefix`: its path and a dot."""
    return list(_problems(document, _schema(struct), prefix))


@cache
def _schema(struct: type[msgspec.Struct]) -> inspect.StructType:
    """Return a schema as data; made once, it takes milliseconds."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info


def config_error(source: str, problems: Iterable[str]) -> ConfigError:
    """Return one error that names `source` and lists `problems`."""
    lines = list(problems)
    if len(lines) == 1:
        return ConfigError(f"{source}: {lines[0]}")
    return ConfigError(f"{source}: {len(lines)} problems" + "".join(f"\n  {x}" for x in lines))


def did_you_mean(wrong: str, right: Iterable[str]) -> str:
    """Return a question about the closest of `right`, or nothing where none is close."""
    close = difflib.get_close_matches(wrong, list(right), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def _problems(table: Any, struct: inspect.StructType, prefix: str) -> Iterable[str]:
    """Yield what is wrong with `table`, which should hold `struct`, in the order of the file."""
    if isinstance(table, struct.cls):
        table = {field.encode_name: getattr(table, field.name) for field in struct.fields}
    if not isinstance(table, Mapping):
        yield f"{prefix.rstrip('.')}: {_found(table)}, but this is a table: write [{prefix[:-1]}]"
        return
    fields = {field.encode_name: field for field in struct.fields}
    for name, value in table.items():
        field = fields.get(name)
        if field is None:
            hint = did_you_mean(name, fields) or f"; known here: {', '.join(fields)}"
            yield f"{prefix}{name}: unknown key{hint}"
        elif (section := _section(field.type)) is not None:
            if value is not None or section is field.type:
                yield from _problems(value, section, f"{prefix}{name}.")
        elif isinstance(field.type, inspect.DictType):
            yield from _tables_problems(value, field.type.value_type, f"{prefix}{name}")
        else:
            yield from _value_problems(value, field.type, f"{prefix}{name}")
    for name, field in fields.items():
        if not field.required or name in table:
            continue
        if isinstance(field.type, inspect.StructType):
            yield from _problems({}, field.type, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}: missing; needs {describe(field.type)}"


def _section(kind: inspect.Type) -> inspect.StructType | None:
    """Return the Struct of a table that is required, or that may be left out."""
    options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((one for one in options if isinstance(one, inspect.StructType)), None)


def _tables_problems(value: Any, kind: inspect.Type, path: str) -> Iterable[str]:
    """Yield what is wrong with tables of any name.

    What is in them is `kind` where that is a Struct, and else a plug-in's business, as long as it
    is TOML.
    """
    if not isinstance(value, Mapping):
        yield f"{path}: {_found(value)}, but this is a table of tables: write [{path}.NAME]"
        return
    for name, table in value.items():
        if not isinstance(name, str):
            yield f"{path}: {_found(name)} as a key, but needs a string"
        elif isinstance(kind, inspect.StructType):
            yield from _problems(table, kind, f"{path}.{name}.")
        elif not isinstance(table, Mapping):
            yield f"{path}.{name}: {_found(table)}, but this is a table: write [{path}.{name}]"
        else:
            yield from _toml_problems(table, f"{path}.{name}")


def _toml_problems(value: Any, path: str) -> Iterable[str]:
    """Yield what a file could not hold; a Struct built in Python could."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(name, str):
                yield from _toml_problems(item, f"{path}.{name}")
            else:
                yield f"{path}: {_found(name)} as a key, but needs a string"
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _toml_problems(item, f"{path}[{index}]")
    elif not isinstance(value, TOML_SCALARS):
        yield f"{path}: {_found(value)}, but needs a value that TOML has"


def _value_problems(value: Any, kind: inspect.Type, path: str) -> Iterable[str]:
    if isinstance(kind, inspect.VarTupleType) and isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _value_problems(item, kind.item_type, f"{path}[{index}]")
    elif type(value) is int and isinstance(kind, inspect.IntType) and value > INTEGER_MAX:
        yield f"{path}: {_found(value)}, but needs an integer of at most 2**48"
    elif not _fits(value, kind):
        wrong = value if isinstance(value, str) else ""
        choices = kind.values if isinstance(kind, inspect.LiteralType) else ()
        hint = did_you_mean(wrong, map(str, choices))
        yield f"{path}: {_found(value)}, but needs {describe(kind)}{hint}"


def _fits(value: Any, kind: inspect.Type) -> bool:
    """Return whether a TOML value is right for `kind`. TOML integers pass for floats."""
    match kind:
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.IntType():
            return type(value) is int and _in_range(value, kind) and value <= INTEGER_MAX
        case inspect.FloatType():
            # inf and nan are TOML, but no timer can be set to them.
            number = type(value) in (int, float) and math.isfinite(value)
            return number and _in_range(value, kind)
        case inspect.StrType():
            return isinstance(value, str)
        case inspect.LiteralType():
            return value in kind.values
        case inspect.UnionType():
            return any(_fits(value, option) for option in kind.types)
        case inspect.NoneType():
            return value is None
        case _:
            return False


def _in_range(value: float, kind: inspect.IntType | inspect.FloatType) -> bool:
    return (kind.ge is None or value >= kind.ge) and (kind.gt is None or value > kind.gt)


def describe(kind: inspect.Type) -> str:
    """Return in words what values `kind` takes."""
    match kind:
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            low = "" if kind.ge is None else f" of at least {kind.ge}"
            return f"an integer{low}"
        case inspect.FloatType():
            return "a finite number" + ("" if kind.gt is None else f" above {kind.gt:g}")
        case inspect.StrType():
            return "a string"
        case inspect.LiteralType():
            return "one of " + ", ".join(f'"{value}"' for value in kind.values)
        case inspect.VarTupleType():
            return f"an array, each item {describe(kind.item_type)}"
        case inspect.UnionType():
            kinds = (option for option in kind.types if not isinstance(option, inspect.NoneType))
            return " or ".join(map(describe, kinds))
        case _:
            return type(kind).__name__


def _found(value: Any) -> str:
    """Return in words what a value is, its text cut to a readable length."""
    if value is None:
        return "found None"
    names: dict[type, str] = {
        bool: "the boolean",
        int: "the integer",
        float: "the number",
        str: "the string",
        list: "the array",
        tuple: "the array",
        dict: "a table",
    }
    name = names.get(type(value), f"a {type(value).__name__}")
    if isinstance(value, dict):
        return f"found {name}"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"found {name} {text if len(text) <= 40 else text[:37] + '...'}"
