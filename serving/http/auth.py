"""Who asks: API keys, and the part of the cache that each may see."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from starlette.requests import Request

from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.errors import ApiError
from radixtide.serving.http.service import service_of


@dataclass(frozen=True, slots=True)
class Client:
    """Who sent a request. ``name``: as in the config; empty where there are no keys.

    ``cache_salt``: the namespace that all its requests are cached in. ``admin``: may flush and pin.
    """

    name: str = ""
    cache_salt: str | None = None
    admin: bool = True


ANYBODY = Client()


def client_of(request: Request) -> Client:
    """Return who sent `request`, by its ``Authorization: Bearer KEY``; ApiError (401) if unknown.

    Where no keys are configured, everybody is welcome. Cost O(keys), and the same for every key.
    """
    return find_client(service_of(request).config, request.headers.get("authorization", ""))


def watcher_of(request: Request) -> Client:
    """Return who sent `request`; ApiError (403) where that client is no admin.

    For what tells of all clients together: one client must not learn what others have cached.
    """
    client = client_of(request)
    if not client.admin:
        raise ApiError(
            403,
            f"the key of {client.name} is no admin's; set server.keys.{client.name}.admin",
            code="not_admin",
        )
    return client


def admin_of(request: Request) -> Client:
    """Return who sent `request`, which changes something; ApiError (403) for who is no admin.

    Another web page can have a browser send a form to this server, but not JSON: so only that is
    taken here.
    """
    client = watcher_of(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "send JSON, with the header content-type: application/json")
    return client


def find_client(config: ServerConfig, header: str) -> Client:
    """Return whose key is in `header`, the value of ``Authorization``."""
    if not config.keys:
        return ANYBODY
    scheme, _, given = header.partition(" ")
    found: Client | None = None
    # All keys are compared, whole, so that the time taken tells nothing about any.
    secret = given.strip().encode("utf-8", "replace")
    for name, entry in config.keys.items():
        if hmac.compare_digest(secret, entry.key.encode()):
            found = Client(name, entry.cache_salt, entry.admin)
    if found is None or scheme.lower() != "bearer":
        told = "is not known here" if given else "is missing"
        raise ApiError(
            401,
            f"the API key {told}; send a key of this server as Authorization: Bearer KEY",
            code="invalid_api_key",
            headers={"www-authenticate": "Bearer"},
        )
    return found
