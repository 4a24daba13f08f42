"""Fault plans from TOML files and back, with every mistake named by its key's path."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

from radixtide.actors import messages, tier_messages
from radixtide.actors.cell import RUNTIME
from radixtide.actors.coordinator import OPERATIONS
from radixtide.actors.system import Ping
from radixtide.components.api import BUILT_IN
from radixtide.configs.errors import ConfigError
from radixtide.configs.reading import config_error, describe, did_you_mean
from radixtide.simulation.plan import Fault, FaultPlan, problems_of

PRESETS: Final = ("light", "heavy", "none")
"""Plans that have a name instead of a file."""

ACTORS: Final = ("coordinator", "tiering")
"""Actors beside the components."""
SENDERS: Final = ("face", RUNTIME)
"""Who sends messages and gets none: the callers, and what watches over the actors."""
COMPONENTS: Final = BUILT_IN

_POSITION: Final = re.compile(
    r"^(?P<what>.*) \(at (line (?P<line>\d+), column \d+|end of document)\)$"
)


def find_plan(plan: FaultPlan | str | Path) -> FaultPlan:
    """Return the plan of that name (light, heavy, none) or in that file; a plan as it is.

    Raises ConfigError where there is none, or as :func:`read_plan`.
    """
    if isinstance(plan, FaultPlan):
        return plan
    match str(plan):
        case "none":
            return FaultPlan.none()
        case "light":
            return FaultPlan.light()
        case "heavy":
            return FaultPlan.heavy()
    if isinstance(plan, str) and not Path(plan).exists():
        raise ConfigError(
            f"{plan}: no such file, and no plan has that name"
            f"{did_you_mean(plan, PRESETS) or '; those are ' + ', '.join(PRESETS)}"
        )
    return read_plan(plan)


def read_plan(path: str | Path) -> FaultPlan:
    """Return the plan in a TOML file: its ``name``, and one ``[[fault]]`` table a fault.

    Raises ConfigError when the file can not be read, is not TOML (file and line in the message),
    or says what makes no sense (path of each key, what was found and what would be right).
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{path}: can not be read: {reason}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 (byte {error.start}); TOML must be") from None
    return parse_plan(text, str(path), name=Path(path).stem)


def parse_plan(text: str, source: str = "plan", *, name: str = "plan") -> FaultPlan:
    """Return the plan in the TOML `text`; messages call it `source`, and `name` is its own.

    Unless the text names it itself. Raises as :func:`read_plan` does.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        position = _POSITION.match(str(error))
        if position is None:
            raise ConfigError(f"{source}: not valid TOML: {error}") from None
        line = position["line"] or str(text.count("\n") + 1)
        raise ConfigError(f"{source}:{line}: not valid TOML: {position['what']}") from None
    problems = list(_plan_problems(document))
    if problems:
        raise config_error(source, problems)
    faults = msgspec.convert(document.get("fault", []), tuple[Fault, ...])
    return FaultPlan(faults, document.get("name", name))


def render_plan(plan: FaultPlan) -> str:
    """Return the plan as TOML that :func:`parse_plan` reads to the same plan."""
    lines = [f"name = {_toml(plan.name)}"]
    for fault in plan.faults:
        lines += ["", "[[fault]]"]
        lines += [f"{key} = {_toml(value)}" for key, value in msgspec.to_builtins(fault).items()]
    return "\n".join(lines) + "\n"


def message_names() -> tuple[str, ...]:
    """Return the names of all message types that the actors of a cache send, in order."""
    return tuple(sorted(_message_names()))


@cache
def _message_names() -> frozenset[str]:
    bases = (messages.Plan, messages.Apply, messages.Opening, tier_messages.Told)
    sent = [Ping, *OPERATIONS]
    for module in (messages, tier_messages):
        sent += [
            kind
            for kind in vars(module).values()
            if isinstance(kind, type) and issubclass(kind, bases) and kind not in bases
        ]
    return frozenset(kind.__name__ for kind in sent)


@cache
def _fields() -> dict[str, inspect.Field]:
    info = inspect.type_info(Fault)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field for field in info.fields}


def _plan_problems(document: Mapping[str, Any]) -> Iterator[str]:
    for key in document:
        if key not in {"name", "fault"}:
            yield f"{key}: unknown key{did_you_mean(key, ('name', 'fault')) or _HERE}"
    name = document.get("name", "plan")
    if not isinstance(name, str) or not name:
        yield f"name: {_found(name)}, but needs a string that is not empty"
    faults = document.get("fault", [])
    if not isinstance(faults, list):
        yield f"fault: {_found(faults)}, but this is an array of tables: write [[fault]]"
        return
    for place, table in enumerate(faults):
        path = f"fault[{place}]"
        if not isinstance(table, Mapping):
            yield f"{path}: {_found(table)}, but this is a table: write [[fault]]"
            continue
        problems = [*_field_problems(table)]
        if not problems:
            # Checked together only when each is what it should be.
            told = {key: tuple(one) if isinstance(one, list) else one for key, one in table.items()}
            problems = [*problems_of(told), *_name_problems(table)]
        yield from (f"{path}.{problem}" for problem in problems)


_HERE: Final = "; known here: name, fault"


def _field_problems(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with keys and types of one fault, in the order of the file."""
    fields = _fields()
    for key, value in table.items():
        field = fields.get(key)
        if field is None:
            hint = did_you_mean(key, fields) or f"; known here: {', '.join(fields)}"
            yield f"{key}: unknown key{hint}"
            continue
        try:
            msgspec.convert(value, _python_type(key))
        except msgspec.ValidationError:
            choices = _choices(field.type)
            hint = did_you_mean(value, choices) if isinstance(value, str) else ""
            yield f"{key}: {_found(value)}, but needs {describe(field.type)}{hint}"
    if "kind" not in table:
        yield f"kind: missing; needs {describe(fields['kind'].type)}"


def _name_problems(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with names of messages: a wrong one would silently choose nothing."""
    named = table.get("message")
    known = message_names()
    for name in [named] if isinstance(named, str) else named or ():
        if name not in known:
            hint = did_you_mean(name, known) or "; docs/messages.md lists them"
            yield f"message: no message is called {name!r}{hint}"


def check_names(plan: FaultPlan, components: Iterable[str] = ()) -> None:
    """Raise ConfigError where a plan names a message, or an actor, that no cache has.

    `components`: that there are besides those that come along. A file of faults may be meant for
    several caches, so a component that this one lacks is no mistake.
    """
    actors = dict.fromkeys((*ACTORS, *COMPONENTS, *components))
    problems = []
    for number, fault in enumerate(plan.faults, 1):
        table = {"message": fault.messages}
        found = [*_name_problems(table)]
        for key, name, known in (
            ("sender", fault.sender, (*SENDERS, *actors)),
            ("receiver", fault.receiver, tuple(actors)),
        ):
            if name is not None and name not in known:
                hint = did_you_mean(name, known) or f"; those are {', '.join(known)}"
                found.append(f"{key}: no actor is called {name!r}{hint}")
        problems += [f"fault {number} ({fault.kind}): {one}" for one in found]
    if problems:
        raise config_error(f"plan {plan.name!r}", problems)


@cache
def _python_type(key: str) -> Any:
    return next(field.type for field in msgspec.structs.fields(Fault) if field.name == key)


def _choices(kind: inspect.Type) -> list[str]:
    """Return the words that a value of this type may be."""
    if isinstance(kind, inspect.UnionType):
        return [word for option in kind.types for word in _choices(option)]
    return [str(word) for word in kind.values] if isinstance(kind, inspect.LiteralType) else []


def _found(value: Any) -> str:
    text = _toml(value) if isinstance(value, (str, bool, int, float)) else ""
    if not text:
        return f"found {'a table' if isinstance(value, Mapping) else 'an array'}"
    return f"found {text if len(text) <= 40 else text[:37] + '...'}"


def _toml(value: Any) -> str:
    """Return a value as TOML; strings and arrays are written as JSON writes them."""
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, float) else repr(value)


__all__ = (
    "PRESETS",
    "check_names",
    "find_plan",
    "message_names",
    "parse_plan",
    "read_plan",
    "render_plan",
)
