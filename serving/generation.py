"""What a client holds of a request: its tokens as they come, and the handle to end it.

A :class:`Channel` is the other half, which the scheduler holds. Nothing here waits for the
scheduler but the reading of tokens, so that a client that is slow, or gone, holds up nobody. At
most as many tokens wait as the answer may have.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Self

from radixtide.configs.errors import RadixtideError
from radixtide.serving.report import Report
from radixtide.serving.sampling import Token

FinishReason = Literal["stop", "length", "abort", "error"]
"""``stop``: by a token of the model, or by ``Generation.stop``; ``length``: as long as it may be;
``abort``: given up by its client or by the engine's end; ``error``: see ``Generation.error``."""


class Channel:
    """Carries the tokens of one request from the scheduler to its client.

    ``wish``: how the client wants it to end, None while it does not. ``over``: set when it has
    ended and holds nothing any more.
    """

    def __init__(self, report: Report, wake: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.report = report
        self.tokens: deque[Token] = deque()
        self.changed = asyncio.Event()
        self.over = asyncio.Event()
        self.wish: Literal["stop", "abort"] | None = None
        self.finish_reason: FinishReason | None = None
        self.error: RadixtideError | None = None
        self._wake = wake

    def put(self, token: Token) -> None:
        """Hand the client a token."""
        self.tokens.append(token)
        self.changed.set()

    def end(self, reason: FinishReason, error: RadixtideError | None = None) -> None:
        """Tell the client that nothing more comes, and that nothing is held for it."""
        self.finish_reason = reason
        self.error = error
        self.over.set()
        self.changed.set()

    def ask(self, wish: Literal["stop", "abort"]) -> None:
        """Ask the scheduler to end the request; the first wish counts."""
        if self.wish is None and not self.over.is_set():
            self.wish = wish
            self._wake()


class Generation:
    """One answer as it comes: ``async for token in generation``, by one reader.

    Use it with ``async with``, or close it: at the end of the block, and when its reader is
    cancelled, the request is aborted, unless it has ended. What a client does not read waits, up to
    the whole answer. Dropping a generation that has not ended aborts it, with a ResourceWarning.

    The loop ends when the request has; then ``finish_reason`` says how, and nothing is held for it.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def rid(self) -> str:
        """Name of the request."""
        return self._channel.report.rid

    @property
    def finish_reason(self) -> FinishReason | None:
        """How it ended; None while it has not."""
        return self._channel.finish_reason

    @property
    def error(self) -> RadixtideError | None:
        """What went wrong, where ``finish_reason`` is ``error``."""
        return self._channel.error

    @property
    def report(self) -> Report:
        """What is known of the request; complete when it has ended."""
        return self._channel.report

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Token:
        channel = self._channel
        while not channel.tokens:
            if channel.over.is_set():
                raise StopAsyncIteration
            channel.changed.clear()
            try:
                await channel.changed.wait()
            except asyncio.CancelledError:
                channel.ask("abort")
                raise
        return channel.tokens.popleft()

    async def tokens(self) -> list[Token]:
        """Return all tokens that were not read yet, when it has ended."""
        return [token async for token in self]

    async def aclose(self) -> None:
        """Abort the request, at whatever stage; returns when nothing is held for it any more.

        During a forward pass that it is part of, that is after the pass. Does nothing when it has
        ended. A close that is cancelled aborts all the same.
        """
        self._channel.ask("abort")
        await self._channel.over.wait()

    async def stop(self) -> None:
        """End the answer here, with ``finish_reason`` "stop"; what was computed stays cached.

        Tokens that come meanwhile are dropped with it. Returns as :meth:`aclose` does.
        """
        self._channel.ask("stop")
        await self._channel.over.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __del__(self, warn: Any = warnings.warn) -> None:
        channel = getattr(self, "_channel", None)
        if channel is None or channel.over.is_set() or channel.wish is not None:
            return
        warn(f"generation {channel.report.rid!r} was never closed", ResourceWarning, source=self)
        if not channel.loop.is_closed():
            # Garbage may be collected in any thread.
            channel.loop.call_soon_threadsafe(channel.ask, "abort")


__all__ = ("Channel", "FinishReason", "Generation")
