"""Errors as the OpenAI API tells them: a status, and an object that says what to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from radixtide.configs.errors import (
    ActorError,
    InvalidInput,
    OutOfSlots,
    PinRefused,
    RadixtideError,
)
from radixtide.configs.errors import Busy as BusyError
from radixtide.serving.errors import Overloaded

log = logging.getLogger("radixtide.serving.http")

RETRY_AFTER_S: Final = 1
"""What a client is told to wait that was refused for now."""


FIELDS: Final = frozenset(
    ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop_token_ids", "logprobs", "prompt")
)
"""Fields of requests by which the engine, too, calls what it refuses."""


class ErrorBody(msgspec.Struct, frozen=True):
    """The object under ``error``. ``param``: the field that is wrong, where one is."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """What a refused request is answered with."""

    error: ErrorBody


class ApiError(RadixtideError):
    """A request that is refused: ``status`` is HTTP's, the rest goes into the error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(message, kind, param, code)
        self.headers = dict(headers or {})

    def answer(self) -> Response:
        """Return the response that tells it."""
        return json_response(ErrorAnswer(self.body), self.status, self.headers)

    def event(self) -> bytes:
        """Return the server-sent event that tells it in the middle of a stream."""
        return b"data: " + msgspec.json.encode(ErrorAnswer(self.body)) + b"\n\n"


def wrong_field(param: str, message: str, *, code: str | None = None) -> ApiError:
    """Return the refusal of one field; `message` goes on where its name ends."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def for_now(message: str, code: str) -> ApiError:
    """Return a refusal that may not last: the client is told to come again."""
    return ApiError(
        503,
        message,
        kind="server_error",
        code=code,
        headers={"retry-after": str(RETRY_AFTER_S)},
    )


def as_api_error(error: BaseException) -> ApiError:
    """Return what a client is told of any error; one that is not its fault is logged."""
    match error:
        case ApiError():
            return error
        case Overloaded():
            return for_now(str(error), "overloaded")
        case InvalidInput():
            return ApiError(400, str(error), param=_field_of(str(error)))
        case BusyError() | PinRefused():
            return ApiError(409, str(error), code="refused")
        case ActorError() | OutOfSlots():
            log.warning("a request failed: %s", error)
            return for_now(f"{error}; send the request again", "cache_unavailable")
    log.error("a request failed", exc_info=error)
    return ApiError(
        500,
        "the server failed at this request; its log says why. Other requests are not affected",
        kind="server_error",
        code="internal_error",
    )


def _field_of(message: str) -> str | None:
    """Return the field that a message begins with, as in ``temperature must be ...``."""
    head = message.partition(" ")[0].rstrip(":")
    return head if head in FIELDS else None


def json_response(body: object, status: int = 200, headers: Mapping[str, str] = {}) -> Response:
    """Return a response with `body` (Structs, or what JSON has) as JSON."""
    return Response(msgspec.json.encode(body), status, dict(headers), media_type="application/json")


async def tell_api_error(_request: Request, error: Exception) -> Response:
    """Answer a request that raised; for Starlette's table of handlers."""
    return as_api_error(error).answer()


async def tell_http_error(request: Request, error: Exception) -> Response:
    """Answer what Starlette itself refuses: unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    where = f"{request.method} {request.url.path}"
    match error.status_code:
        case 404:
            message = f"there is nothing at {where}; the API's paths begin with /v1"
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            message = f"{where}: wrong method; use {allowed}"
        case _:
            message = f"{where}: {error.detail}"
    refusal = ApiError(error.status_code, message, headers=error.headers or {})
    return refusal.answer()
