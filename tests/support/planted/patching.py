"""Planted bugs: one small change in the text of one function of the product, made in memory.

A bug is told as a patch would tell it: the function, the piece of its text that is changed, and
what it is changed into. The function's code is replaced in place, so that everybody who has the
function (a table of handlers, a module that imported it) runs the broken one, and is put back
afterwards. A piece that is not there exactly once is an error: the bug has to follow the product.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from radixtide.simulation.setup import Tiers


class Planted(NamedTuple):
    """One bug.

    ``name``: what it is called. ``kind``: the kind of fault that users of such caches reported, a
    section of the list that docs/mutations.md explains. ``says``: what is wrong, in one sentence.
    ``where``: the function. ``old``, ``new``: the piece of its text and what takes its place.
    ``components``, ``tiers``: where it can show; None: anywhere.
    """

    name: str
    kind: str
    says: str
    where: Callable[..., Any]
    old: str
    new: str
    components: tuple[str, ...] | None = None
    tiers: Tiers | None = None

    def __str__(self) -> str:
        return self.name


def function_of(bug: Planted) -> FunctionType:
    """Return the function that a bug is in."""
    found = inspect.unwrap(bug.where)
    assert isinstance(found, FunctionType), f"{bug.name}: {found!r} is no plain function"
    return found


def broken_code(bug: Planted) -> CodeType:
    """Return the code of the function with the bug in it."""
    function = function_of(bug)
    text = textwrap.dedent(inspect.getsource(function))
    count = text.count(bug.old)
    assert count == 1, f"{bug.name}: {bug.old!r} is {count} times in {function.__qualname__}"
    text = textwrap.indent(text.replace(bug.old, bug.new), "    ")
    # The cell of its class, for those that say `super()`.
    source = (
        "from __future__ import annotations\n"
        f"def _made(__class__):\n{text}\n    return {function.__name__}\n"
    )
    names: dict[str, Any] = {}
    exec(compile(source, f"<planted {bug.name}>", "exec"), function.__globals__, names)
    made: FunctionType = names["_made"](None)
    code = made.__code__
    assert code.co_freevars == function.__code__.co_freevars, bug.name
    return code


@contextmanager
def planted(bug: Planted) -> Iterator[None]:
    """Let the product have the bug inside the block."""
    function = function_of(bug)
    sound = function.__code__
    function.__code__ = broken_code(bug)
    try:
        yield
    finally:
        function.__code__ = sound
