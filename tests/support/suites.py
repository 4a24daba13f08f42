"""Suites that are asked of more than one thing: a test module runs those of another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from importlib import import_module
from typing import Any


def again(name: str, fixtures: Collection[str], without: Collection[str] = ()) -> dict[str, Any]:
    """Return the tests of module `name` that take one of `fixtures`, by their names.

    The module that puts them among its own gives them fixtures of its own. `without`: names of
    tests that are not for it; each must be there.
    """
    found: dict[str, Callable[..., Any]] = {
        test: function
        for test, function in vars(import_module(name)).items()
        if test.startswith("test_") and set(inspect.signature(function).parameters) & set(fixtures)
    }
    for test in without:
        del found[test]
    assert found
    return found
