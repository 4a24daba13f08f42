"""Cancels a call at each of its awaits: where it begins, while it lasts, and as the answer comes.

A call is driven step by step inside a task. Where its k-th await begins, a cancellation is aimed at
it: at once, some turns of the loop later, or in the turn in which what it waits for is there. When
the await was over before, the cancellation is not sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from typing import Any, Final, Literal, NamedTuple

When = int | Literal["answer"]

TURNS: Final = tuple(range(1, 14))
"""Turns of one await in which a call is cancelled; longer waits are for threads, and all alike."""
FEW_TURNS: Final = (1, 3, 8)
AWAITS_MAX: Final = 40
"""No call of a small cache waits more often; one that does never comes to its end."""


class Aim(NamedTuple):
    """Which await of a call is cancelled, from 1 on, and when: after turns, or at the answer."""

    at: int
    when: When


class Driven(Awaitable[Any]):
    """A call whose awaits are counted, and which is cancelled at one of them.

    ``awaits``: how many there were. ``sent``: whether the cancellation was sent.
    """

    def __init__(self, call: Awaitable[Any], aim: Aim | None) -> None:
        self._call = call
        self._aim = aim
        self.awaits = 0
        self.sent = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._call.__await__()
        thrown: BaseException | None = None
        while True:
            try:
                waits_for = steps.send(None) if thrown is None else steps.throw(thrown)
            except StopIteration as stop:
                return stop.value
            self.awaits += 1
            if self._aim is not None and self.awaits == self._aim.at:
                self._begin(self._aim.when, waits_for)
            thrown = None
            try:
                yield waits_for
            except BaseException as error:  # noqa: BLE001  # handed on to the call
                thrown = error

    def _begin(self, when: When, waits_for: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        here = self.awaits

        def cancel(_: Any = None) -> None:
            if self.awaits == here and not task.done() and not self.sent:
                self.sent = True
                task.cancel()

        def later(left: int) -> None:
            if left:
                loop.call_soon(later, left - 1)
            else:
                cancel()

        if when != "answer":
            later(when)
        elif isinstance(waits_for, asyncio.Future):
            # Its own wake-up comes behind this one, in the same turn.
            waits_for.add_done_callback(cancel)
        else:
            cancel()


async def driven(call: Awaitable[Any], aim: Aim | None) -> tuple[Driven, Any]:
    """Run a call in a task of its own; return how it went, and its result or error."""
    steps = Driven(call, aim)

    async def run() -> Any:
        return await steps

    task = asyncio.ensure_future(run())
    await asyncio.wait((task,))
    try:
        return steps, task.result()
    except BaseException as error:  # noqa: BLE001  # it is what the caller looks at
        return steps, error


async def every_aim(
    run: Callable[[Aim], Awaitable[Driven]], turns: Sequence[int] = TURNS
) -> AsyncIterator[tuple[Aim, Driven]]:
    """Call `run` for each await of a call and `turns` in it; yield those that were cancelled.

    `run` makes the call anew, with everything that it needs.
    """
    for at in range(1, AWAITS_MAX):
        first = await run(Aim(at, 0))
        if not first.sent:
            return
        yield Aim(at, 0), first
        for turn in turns:
            steps = await run(Aim(at, turn))
            if not steps.sent:
                break
            yield Aim(at, turn), steps
        steps = await run(Aim(at, "answer"))
        if steps.sent:
            yield Aim(at, "answer"), steps
    raise AssertionError(f"the call waits more than {AWAITS_MAX} times")
