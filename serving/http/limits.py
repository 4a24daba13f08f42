"""Bounds on what one request may take: bytes of its body, and time until they are there."""

from __future__ import annotations

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.errors import ApiError

Gone = ClientDisconnect
"""The client closed its connection; nobody is left to answer."""


def head_fits(scope: Scope, config: ServerConfig) -> bool:
    """Return whether the headers of a request are within the limit, as one read may bring more."""
    size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return size + len(scope["path"]) <= config.head_bytes_max


def head_too_large(config: ServerConfig) -> ApiError:
    """Return the refusal of a head beyond the limit."""
    return ApiError(
        431,
        f"the head is larger than {config.head_bytes_max} bytes; send fewer headers",
        code="head_too_large",
        headers={"connection": "close"},
    )


async def read_bytes(request: Request, config: ServerConfig) -> bytes:
    """Return the body of `request`. Cost O(bytes), never more than the limit in memory.

    Raises:
        ApiError: 413 where it is too large, 408 where it does not come in time.
        Gone: the client went away before its end.
    """
    limit = config.body_bytes_max
    told = request.headers.get("content-length", "")
    # Digits of other scripts are no length; what is told wrongly is found when it is counted.
    if told.isascii() and told.isdigit() and (len(told) > 18 or int(told) > limit):
        raise too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        with anyio.fail_after(config.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    raise too_large(limit)
                parts.append(part)
    except TimeoutError:
        raise ApiError(
            408,
            f"the body was not there within {config.body_timeout_s:g} s; send it at once",
            headers={"connection": "close"},
        ) from None
    return b"".join(parts)


def too_large(limit: int) -> ApiError:
    """Return the refusal of a body beyond `limit` bytes."""
    return ApiError(
        413,
        f"the body is larger than {limit} bytes; send a shorter prompt, or have "
        "server.body_bytes_max raised",
        code="body_too_large",
        headers={"connection": "close"},
    )
