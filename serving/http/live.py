"""The live page: ``GET /`` shows the tree of cached prefixes, ``GET /live`` is its feed.

The page is complete in itself: no other host is asked for anything. It holds nothing but itself, so
anybody may load it. The feed shows what all clients together have in the cache, which tells each of
them about the others; where API keys are configured, it is for the keys of admins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from radixtide.serving.http.auth import client_of
from radixtide.serving.http.errors import ApiError, for_now
from radixtide.serving.http.live_feed import Feed
from radixtide.serving.http.service import Service
from radixtide.serving.http.streaming import EventStream

KINDS: Final = {
    "page.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "page_feed.js": "text/javascript",
    "page_tree.js": "text/javascript",
    "page_layout.js": "text/javascript",
    "page_panels.js": "text/javascript",
}
"""The page's files; the first one is served at ``/``."""

CONTENT: Final = {name: (files("radixtide.serving.http") / name).read_bytes() for name in KINDS}

HEADERS: Final = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

Endpoint = Callable[[Request], Awaitable[Response]]


def routes(service: Service) -> list[BaseRoute]:
    """Return the routes of the page and of its feed. Nothing is looked at while nobody watches."""
    feed = Feed(
        service.config,
        lambda: service.engine,
        lambda: service.phase,
        lambda: service.model_name,
    )

    async def live(request: Request) -> Response:
        if not client_of(request).admin:
            raise ApiError(
                403,
                "the live page shows what all clients have in the cache: it is for admins' keys",
                code="not_admin",
            )
        if not feed.join():
            raise for_now(
                f"{feed.viewers} pages are open already (server.live_viewers_max)", "viewers"
            )
        return EventStream(service, feed.frames(), feed.leave, answer=False)

    pages = [Route(f"/{name}", _file(name)) for name in KINDS if name != "page.html"]
    return [Route("/", _file("page.html")), *pages, Route("/live", live)]


def _file(name: str) -> Endpoint:
    async def answer(_: Request) -> Response:
        return Response(CONTENT[name], headers=HEADERS, media_type=KINDS[name])

    return answer


__all__ = ("routes",)
