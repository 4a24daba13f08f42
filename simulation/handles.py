"""Callbacks that a simulated loop has yet to run, and what a task waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from pathlib import Path
from typing import Any


class _Shown:
    """What calls and timers have in common."""

    __slots__ = ()
    callback: Callable[..., object]

    def __repr__(self) -> str:
        name = getattr(self.callback, "__qualname__", None) or type(self.callback).__name__
        return f"<{type(self).__name__} of {name}>"


class Call(_Shown, asyncio.Handle):
    """A callback to come."""

    __slots__ = ("arguments", "callback", "context", "dropped")

    def __init__(
        self, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context
    ) -> None:
        # The base class keeps the same, in slots that are its own business.
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.dropped = False

    def cancel(self) -> None:  # noqa: D102  # as in asyncio.Handle
        self.dropped = True

    def cancelled(self) -> bool:  # noqa: D102  # as in asyncio.Handle
        return self.dropped

    def get_context(self) -> Context:  # noqa: D102  # as in asyncio.Handle
        return self.context


class Timer(_Shown, asyncio.TimerHandle):
    """A callback to come at a time."""

    __slots__ = ("arguments", "at", "callback", "context", "dropped", "in_heap", "on_cancel")

    def __init__(
        self,
        callback: Callable[..., object],
        arguments: tuple[Any, ...],
        context: Context,
        at: float,
        on_cancel: Callable[[], None],
    ) -> None:
        self.callback = callback
        self.arguments = arguments
        self.context = context
        self.at = at
        self.on_cancel = on_cancel
        self.dropped = False
        self.in_heap = True

    def when(self) -> float:  # noqa: D102  # as in asyncio.TimerHandle
        return self.at

    def cancel(self) -> None:  # noqa: D102  # as in asyncio.Handle
        if not self.dropped:
            self.dropped = True
            if self.in_heap:
                self.on_cancel()

    def cancelled(self) -> bool:  # noqa: D102  # as in asyncio.Handle
        return self.dropped

    def get_context(self) -> Context:  # noqa: D102  # as in asyncio.Handle
        return self.context

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def where(task: asyncio.Task[Any]) -> str:
    """Return which coroutine a task runs, and where the innermost of it waits."""
    inner: Any = task.get_coro()
    name = getattr(inner, "__qualname__", type(inner).__name__)
    place = ""
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
        if frame is not None:
            file = Path(frame.f_code.co_filename).name
            place = f", in {frame.f_code.co_qualname} ({file}:{frame.f_lineno})"
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
    return f"{name}{place}"
