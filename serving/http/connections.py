"""Bounds on connections: how many, how long a head may take, how long a reader may rest.

Uvicorn knows none of the three; without them, clients that do nothing hold what others need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.errors import ErrorAnswer, ErrorBody


def connection_class(limits: ServerConfig) -> type[H11Protocol]:
    """Return the class of a server's connections, with these limits."""

    class Connection(_Connection):
        config_of_server = limits

    return Connection


class _Connection(H11Protocol):
    """One connection of a client."""

    config_of_server: ServerConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head = _Timer(self.loop)
        self._write = _Timer(self.loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Take a new connection, if there is room for it."""
        super().connection_made(transport)
        if len(self.connections) > self.config_of_server.connections_max:
            self._refuse(503, "too many connections are open; come again later", "overloaded")
            return
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._head.stop()
        self._write.stop()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle what came; a request that has begun has had its head."""
        super().handle_events()
        if self._busy():
            self._head.stop()

    def on_response_complete(self) -> None:
        """Wait for the next request, but not for ever."""
        self._head.stop()
        super().on_response_complete()
        if self.transport.is_closing():
            self._cut_off_later()
        elif not self._busy():
            self._expect_head()

    def pause_writing(self) -> None:
        """Wait for the client to read; one that does not is cut off."""
        super().pause_writing()
        self._write.start(self.config_of_server.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client reads again."""
        self._write.stop()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that rests, also where its client never took the last answer."""
        super().timeout_keep_alive_handler()
        self._cut_off_later()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or a head that is too large."""
        most = self.config_of_server.head_bytes_max
        self._refuse(
            400, f"{msg} Send HTTP/1.1, with a head of at most {most} bytes.", "invalid_http"
        )

    def _busy(self) -> bool:
        # None until the first request, whatever its annotation says.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _expect_head(self) -> None:
        limits = self.config_of_server
        seconds = limits.head_timeout_s
        if self.cycle is not None:
            # Between two requests it may rest first.
            seconds += limits.idle_timeout_s
        self._head.start(seconds, self._no_head)

    def _no_head(self) -> None:
        if self._busy() or self.transport.is_closing():
            return
        self._refuse(408, "the request's head did not come in time; send it at once", "timeout")

    def _refuse(self, status: int, message: str, code: str) -> None:
        """Answer with an error, and close."""
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(
            ErrorAnswer(
                ErrorBody(
                    message,
                    "server_error" if status == 503 else "invalid_request_error",
                    None,
                    code,
                )
            )
        )
        try:
            parts = (
                h11.Response(
                    status_code=status,
                    headers=[
                        (b"content-type", b"application/json"),
                        (b"content-length", str(len(body)).encode()),
                        (b"connection", b"close"),
                    ],
                ),
                h11.Data(data=body),
                h11.EndOfMessage(),
            )
            for part in parts:
                self.transport.write(self.conn.send(part) or b"")
        except h11.LocalProtocolError:
            # The connection is in no state for an answer: an answer was being sent.
            pass
        self.transport.close()
        self._cut_off_later()

    def _cut_off_later(self) -> None:
        # Closing waits for the client to take what is buffered; it has so long.
        self._write.start(self.config_of_server.write_timeout_s, self.transport.abort)


class _Timer:
    """Calls something later, unless it is stopped or started anew before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float, call: Callable[[], None]) -> None:
        self.stop()
        self._handle = self._loop.call_later(seconds, call)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
