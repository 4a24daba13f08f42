"""What all handlers share: the engine once it is there, the model, the limits, the counters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import anyio
from starlette.requests import Request

from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.errors import for_now
from radixtide.serving.http.metrics import Metrics

if TYPE_CHECKING:
    from radixtide.serving.engine import Engine
    from radixtide.serving.models import LoadedModel

Phase = Literal["loading", "ready", "stopping", "failed"]


class Service:
    """The server's state. ``engine`` and ``model`` are None while the model loads.

    ``stopping`` is set when the server begins to end: nothing new is taken. ``ended`` is set when
    what still runs has had its time: streams tell so, and end. ``answering``: requests that want
    something done and are not answered yet.
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.engine: Engine | None = None
        self.model: LoadedModel | None = None
        self.model_name = ""
        self.metrics = Metrics()
        self.stopping = anyio.Event()
        self.ended = anyio.Event()
        self.answering = 0
        self.started = time.time()
        self.encoding = anyio.CapacityLimiter(1)

    @property
    def phase(self) -> Phase:
        """Where the server is in its life."""
        if self.stopping.is_set():
            return "stopping"
        if self.engine is None:
            return "loading"
        return "failed" if self.engine.failed else "ready"

    def open(self, engine: Engine, model: LoadedModel, model_name: str = "") -> None:
        """Serve `model` by `engine` from now on; clients call it `model_name`, or its own name."""
        self.engine, self.model = engine, model
        self.model_name = model_name or model.name

    def close(self) -> None:
        """Take nothing new: the engine is going."""
        self.stopping.set()

    def up(self) -> tuple[Engine, LoadedModel]:
        """Return engine and model; ApiError (503) while there are none, or none any more."""
        if self.stopping.is_set():
            raise for_now("the server is ending; ask another, or this one later", "stopping")
        if self.engine is not None and self.engine.failed:
            raise for_now("the engine has failed; the server's log says why", "failed")
        if self.engine is None or self.model is None:
            raise for_now(
                "the model is loading; GET /health answers 200 when it is there", "loading"
            )
        return self.engine, self.model


def service_of(request: Request) -> Service:
    """Return the service that `request` was sent to."""
    service: Service = request.app.state.service
    return service
