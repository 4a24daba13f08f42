"""Answers that go on for long: server-sent events, and work that ends when its client is gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from radixtide.serving.http.errors import ApiError, as_api_error, for_now, json_response
from radixtide.serving.http.limits import Gone
from radixtide.serving.http.service import Service

if TYPE_CHECKING:
    from radixtide.serving.http.answers import Answer
    from radixtide.serving.http.protocol import Asked

Result = TypeVar("Result")

DONE: Final = b"data: [DONE]\n\n"
"""The last event of a stream of the OpenAI API."""

BEAT: Final = b": still at it\n\n"
"""A comment; readers of events pass over it."""

HEADERS: Final = {
    "cache-control": "no-store",
    # Proxies that would gather the events are told not to.
    "x-accel-buffering": "no",
}


def event(body: object) -> bytes:
    """Return `body` (Structs, or what JSON has) as a server-sent event."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def ending() -> ApiError:
    """Return what is told to those whose answer the server's end cuts short."""
    return for_now("the server is ending before the answer is whole; ask another", "stopping")


class EventStream(Response):
    """Server-sent events from a generator, until it ends, the client is gone or the server ends.

    An error that the generator raises is told as the last event. The generator is closed, and
    `close` is awaited, whatever happens. `answer`: it is an answer, whose client counts as gone
    where it leaves before the end.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        service: Service,
        events: AsyncGenerator[bytes],
        close: Callable[[], Awaitable[None]] | None = None,
        *,
        answer: bool = True,
    ) -> None:
        super().__init__(None, 200, HEADERS)
        del self.headers["content-length"]
        self._service = service
        self._events = events
        self._close = close
        self._quiet = True
        # Whether a disconnect is no news any more.
        self._over = not answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, receive, group.cancel_scope)
                await send(
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                )
                await self._send_all(send)
                # From here on a disconnect is only the answer's end.
                self._over = True
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                group.cancel_scope.cancel()
        finally:
            if self._close is not None:
                with anyio.CancelScope(shield=True):
                    await self._close()

    async def _send_all(self, send: Send) -> None:
        """Send all but the end; nothing is under way any more when it returns."""

        async def tell(part: bytes) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": True})

        async with anyio.create_task_group() as group:
            group.start_soon(self._beat, tell)
            with anyio.CancelScope() as work:
                group.start_soon(self._end, work)
                try:
                    async with aclosing(self._events) as events:
                        async for part in events:
                            self._quiet = False
                            await tell(part)
                except Exception as error:  # noqa: BLE001 - the client is told, and the log
                    await tell(as_api_error(error).event())
            if work.cancelled_caught:
                await tell(ending().event())
            group.cancel_scope.cancel()

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        """Cancel `scope` when the client is gone."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._over:
            self._service.metrics.gone.inc()
        scope.cancel()

    async def _end(self, work: anyio.CancelScope) -> None:
        await self._service.ended.wait()
        work.cancel()

    async def _beat(self, tell: Callable[[bytes], Awaitable[None]]) -> None:
        """Send a comment where nothing else was sent for long: events are whole, so it may."""
        while True:
            self._quiet = True
            await anyio.sleep(self._service.config.heartbeat_s)
            if self._quiet:
                await tell(BEAT)


class Writer(Protocol):
    """How an answer is written down: as one object, or as events."""

    async def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the answer as one object, when it has ended."""

    def events(self, answer: Answer, usage: bool) -> AsyncGenerator[bytes]:
        """Yield the answer as events; with `usage` one more that tells the tokens it took."""


async def respond(
    request: Request, service: Service, asked: Asked, answer: Answer, writer: Writer
) -> Response:
    """Return the response that `asked` wants: a stream, or the whole; the answer is closed."""
    if asked.stream:
        usage = asked.stream_options is not None and bool(asked.stream_options.include_usage)
        return EventStream(service, writer.events(answer, usage), answer.aclose)
    try:
        return json_response(await unless_gone(request, service, lambda: writer.whole(answer)))
    finally:
        await answer.aclose()


async def unless_gone(
    request: Request, service: Service, work: Callable[[], Awaitable[Result]]
) -> Result:
    """Return what `work` returns; cancel it when the client is gone, or the server's time is over.

    Raises:
        Gone: nobody is left to answer.
        ApiError: the server ends.
    """
    results: list[Result] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async def end() -> None:
            await service.ended.wait()
            group.cancel_scope.cancel()

        group.start_soon(watch)
        group.start_soon(end)
        try:
            results.append(await work())
        except Exception as error:  # noqa: BLE001 - raised below, outside the group
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if results:
        return results[0]
    if service.ended.is_set():
        raise ending()
    service.metrics.gone.inc()
    raise Gone
