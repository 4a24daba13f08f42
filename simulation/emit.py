"""Write a case as the source of a pytest test that a person can read, keep and step through."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import Any, Final

import msgspec

from radixtide.simulation.case import Case
from radixtide.simulation.plan import FaultPlan

WIDTH: Final = 100
"""Columns of the source, as everywhere in this project."""

_PUBLIC: Final = "radixtide.testing"
_SHOWN: Final = ("Case", "Fault", "FaultPlan", "Setup", "draw_case", "run_case")
"""What a user's test takes from the public module; all else from where it is defined."""


def write_test(case: Case, violations: Sequence[str], name: str | None = None) -> str:
    """Return the source of a test that runs `case` and fails while `violations` are there.

    `name` is what follows ``test_``; by default the seed. The source is laid out as the project's
    formatter does, so that it can be kept as it is.
    """
    made = _Source()
    text = made.of(case, 4, "case = ")
    return _file(name or f"seed_{case.seed}", case.seed, violations, text, made.names)


def write_drawn_test(
    seed: int,
    steps: int,
    plan: FaultPlan,
    violations: Sequence[str],
    components: Sequence[str] | None = None,
    tiers: str | None = None,
) -> str:
    """Return the source of a test that draws its case from `seed`: short, however many steps."""
    made = _Source()
    parts = [str(seed), f"steps={steps}", f"plan={made.of(plan, 8, 'plan=')}"]
    if components is not None:
        parts.append(f"components={made.of(tuple(components), 8)}")
    if tiers is not None:
        parts.append(f"tiers={made.of(tiers, 8)}")
    call = _call("draw_case", parts, 4, "case = ")
    return _file(f"seed_{seed}", seed, violations, call, {"draw_case": _PUBLIC, **made.names})


def _file(name: str, seed: int, violations: Sequence[str], case: str, names: dict[str, str]) -> str:
    return (
        f"{_head(seed, violations)}\n\n{_imports({'run_case': _PUBLIC, **names})}\n\n\n"
        f"def test_{name}() -> None:\n"
        f"    case = {case}\n"
        "    assert run_case(case).violations == []\n"
    )


class _Source:
    """Python source of plain data, and the names that it needs."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def of(self, value: Any, indent: int, before: str = "") -> str:
        """Return `value` as source that begins behind `before` in a line indented by `indent`."""
        if isinstance(value, FaultPlan) and (known := _known_plan(value)) is not None:
            self._use(FaultPlan)
            return known
        if isinstance(value, msgspec.Struct):
            kind = type(value)
            self._use(kind)
            parts = [
                f"{field}={self.of(getattr(value, field), indent + 4, f'{field}=')}"
                for field in _said(value)
            ]
            return _call(kind.__name__, parts, indent, before)
        if isinstance(value, (tuple, list)):
            left, right = ("(", ")") if isinstance(value, tuple) else ("[", "]")
            parts = [self.of(part, indent + 4) for part in value]
            single = "," if isinstance(value, tuple) and len(value) == 1 else ""
            return _bracketed(left, parts, right, indent, before, single)
        if isinstance(value, str):
            return _quoted(value)
        return repr(value)

    def _use(self, kind: type) -> None:
        name = kind.__name__
        self.names[name] = _PUBLIC if name in _SHOWN else kind.__module__


def _known_plan(plan: FaultPlan) -> str | None:
    """Return the call that makes a plan which comes with the package."""
    for name in ("none", "light", "heavy"):
        if plan == getattr(FaultPlan, name)():
            return f"FaultPlan.{name}()"
    return None


def _said(struct: msgspec.Struct) -> Iterator[str]:
    """Yield the fields of a struct whose values are not their defaults."""
    for field in msgspec.structs.fields(struct):
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        else:
            default = field.default
        if getattr(struct, field.name) != default:
            yield field.name


def _call(name: str, parts: Sequence[str], indent: int, before: str) -> str:
    return name + _bracketed("(", parts, ")", indent, before + name, "")


def _bracketed(
    left: str, parts: Sequence[str], right: str, indent: int, before: str, single: str
) -> str:
    """Return all parts in one line where they fit, else each in its own, two levels deeper."""
    line = f"{left}{', '.join(parts)}{single}{right}"
    # One column for the comma that may follow.
    if indent + len(before) + len(line) < WIDTH and "\n" not in line:
        return line
    pad = " " * (indent + 4)
    lines = "".join(f"{pad}{part},\n" for part in parts)
    return f"{left}\n{lines}{' ' * indent}{right}"


def _quoted(text: str) -> str:
    """Return a string as the formatter writes it: in double quotes where that needs no escape."""
    shown = repr(text)
    return f'"{shown[1:-1]}"' if shown[0] == "'" and '"' not in text else shown


def _head(seed: int, violations: Sequence[str]) -> str:
    """Return the docstring of the file: the first violation, in lines that are not too long."""
    told = violations[0].strip().partition("\n")[0] if violations else "no violation was seen"
    told = told.replace("\\", "\\\\").replace('"""', "'''")
    told = told.rstrip('."')  # neither a second full stop nor a quote at the end of a docstring
    lines = wrap(f"Seed {seed}: {told}.", WIDTH - 6)
    text = "\n".join(lines)
    return f'"""{text}"""' if len(lines) == 1 else f'"""{text}\n"""'


def _imports(names: dict[str, str]) -> str:
    modules: defaultdict[str, list[str]] = defaultdict(list)
    for name, module in names.items():
        modules[module].append(name)
    return "\n".join(_import(module, sorted(modules[module])) for module in sorted(modules))


def _import(module: str, names: Iterable[str]) -> str:
    line = f"from {module} import {', '.join(names)}"
    if len(line) <= WIDTH:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in names) + ")"


__all__ = ("write_drawn_test", "write_test")
