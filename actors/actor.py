"""What an actor is: state, and a handler for each kind of message."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import GeneratorType
from typing import Any

import msgspec

Conversation = Generator[Any, Any, Any]
"""A handler that asks others: it yields ``(cell, message)``, or a list of such pairs, and gets the
reply, or the list of replies; what it returns is the reply to its own message."""
Handler = Callable[[Any], Any]


class Round(msgspec.Struct, gc=False):
    """A conversation of one round, without a generator: for what is called all the time.

    ``message`` goes to each of ``cells``; ``then(state, context, answers)`` makes the reply, or the
    next round. A plain function and its two arguments: cheaper to call than a closure.
    """

    cells: list[Any]
    message: Any
    then: Callable[[Any, Any, list[Any]], Any]
    state: Any
    context: Any


def conversation(reply: Any) -> Conversation:
    """Return rounds as a generator, for where they have to wait."""
    while reply.__class__ is Round:
        message = reply.message
        answers = yield [(cell, message) for cell in reply.cells]
        reply = reply.then(reply.state, reply.context, answers)
    if reply.__class__ is GeneratorType:
        reply = yield from reply
    return reply


class Actor:
    """State and handlers; everything else is the cell's.

    ``converses``: whether a handler may be a conversation (a generator that asks others). The
    handlers of an actor that does not are plain functions that send nothing.
    """

    name: str = "actor"
    converses: bool = False

    def handlers(self) -> Mapping[type, Handler]:
        """Return the handler of each message type."""
        return {}

    def on_start(self) -> None:
        """Run before the first message."""

    def on_stop(self) -> None:
        """Run after the last message, once."""

    def on_restart(self, error: BaseException) -> None:
        """Run after a crash, before the message in hand comes again. State is kept."""

    def set_aside(self, error: BaseException) -> Mapping[type, Handler] | None:
        """Return handlers that do without this actor's state, as it crashed too often.

        None: nobody can do without, so it stays down.
        """
        return None

    def give_back(self, message: Any, reply: Any) -> Any:
        """Return the message to itself that undoes a `reply` nobody took, or None."""
        return None

    def lru_lengths(self) -> tuple[int | None, int | None]:
        """Return the lengths of device and host LRU, for statistics."""
        return None, None
