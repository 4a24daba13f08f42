"""The application: its paths, and what stands around all of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from radixtide.configs.errors import RadixtideError
from radixtide.serving.http import admin, live
from radixtide.serving.http.asking import check_model
from radixtide.serving.http.auth import client_of, watcher_of
from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.errors import json_response, tell_api_error, tell_http_error
from radixtide.serving.http.limits import Gone, head_fits, head_too_large
from radixtide.serving.http.metrics import CONTENT_TYPE
from radixtide.serving.http.openai_chat import chat_completions
from radixtide.serving.http.openai_completions import completions
from radixtide.serving.http.protocol import ModelCard, ModelList
from radixtide.serving.http.service import Service, service_of

if TYPE_CHECKING:
    from radixtide.serving.engine import Engine
    from radixtide.serving.models import LoadedModel


def make_app(
    engine: Engine | None = None,
    model: LoadedModel | None = None,
    config: ServerConfig | None = None,
) -> Starlette:
    """Return the server of `engine` and `model` as an ASGI application.

    Without an engine it answers ``/health`` with 503, and all that needs a model too, until
    ``app.state.service.open(engine, model)``. The engine stays the caller's to close, after the
    application has ended.
    """
    service = Service(config or ServerConfig())
    if engine is not None and model is not None:
        service.open(engine, model)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{name:path}", one_model, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/stats", stats, methods=["GET"]),
            Route("/admin/flush", admin.flush, methods=["POST"]),
            Route("/admin/pin", admin.pin, methods=["POST"]),
            Route("/admin/unpin", admin.unpin, methods=["POST"]),
            Route("/admin/audit", admin.audit, methods=["POST"]),
            *live.routes(service),
        ],
        exception_handlers={
            HTTPException: tell_http_error,
            RadixtideError: tell_api_error,
            Gone: _nobody_left,
            Exception: tell_api_error,
        },
    )
    app.state.service = service
    app.add_middleware(_Counted, service=service)
    return app


async def health(request: Request) -> Response:
    """``GET /health``: 200 when requests are answered, 503 before and after."""
    service = service_of(request)
    phase = service.phase
    return json_response({"status": phase}, 200 if phase == "ready" else 503)


async def models(request: Request) -> Response:
    """``GET /v1/models``: what is served."""
    client_of(request)
    return json_response(ModelList([_card(service_of(request))]))


async def one_model(request: Request) -> Response:
    """``GET /v1/models/NAME``."""
    client_of(request)
    service = service_of(request)
    card = _card(service)
    check_model(service, request.path_params["name"])
    return json_response(card)


def _card(service: Service) -> ModelCard:
    _, model = service.up()
    return ModelCard(
        id=service.model_name, created=int(service.started), max_model_len=model.max_context
    )


async def metrics(request: Request) -> Response:
    """``GET /metrics``: for Prometheus."""
    watcher_of(request)
    service = service_of(request)
    engine = service.engine
    page = service.metrics.page(None if engine is None else await engine.stats())
    return Response(page, media_type=CONTENT_TYPE)


async def stats(request: Request) -> Response:
    """``GET /stats``: what the engine and its cache hold, as JSON."""
    watcher_of(request)
    service = service_of(request)
    engine, _ = service.up()
    found: dict[str, Any] = msgspec.to_builtins(await engine.stats())
    return json_response(
        {"model": service.model_name, "uptime_s": time.time() - service.started, **found}
    )


async def _nobody_left(_request: Request, _error: Exception) -> Response:
    """Answer a client that is gone: nobody reads it."""
    return Response(status_code=499)


class _Counted:
    """Counts answers by path and status, and says in the log what failed."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0
        app = (
            self._app
            if head_fits(scope, self._service.config)
            else head_too_large(self._service.config).answer()
        )

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        answers = scope["method"] == "POST"
        self._service.answering += answers
        try:
            await app(scope, receive, watched)
        finally:
            self._service.answering -= answers
            # The route's own path, not the client's: it could make up endlessly many.
            route = scope.get("route")
            path = getattr(route, "path", "other")
            self._service.metrics.requests.labels(path, status or "none").inc()
