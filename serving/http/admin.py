"""What an operator does: drop what is cached on a tier, keep a prefix, and let it go again."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from radixtide.serving.http.asking import Bounds, encode, encode_chat, salt_of
from radixtide.serving.http.auth import admin_of
from radixtide.serving.http.errors import ApiError, json_response, wrong_field
from radixtide.serving.http.limits import read_bytes
from radixtide.serving.http.protocol import FlushRequest, PinRequest, read_body
from radixtide.serving.http.service import Service, service_of


async def flush(request: Request) -> Response:
    """``POST /admin/flush``: drop what is on a tier and in nobody's use."""
    admin_of(request)
    service = service_of(request)
    engine, _ = service.up()
    asked = read_body(await read_bytes(request, service.config), FlushRequest)
    dropped = await engine.flush(asked.tier, asked.timeout_s)
    return json_response({"tier": asked.tier, "dropped": dropped})


async def pin(request: Request) -> Response:
    """``POST /admin/pin``: keep the cached part of a prefix from eviction for a while."""
    client = admin_of(request)
    service = service_of(request)
    engine, _ = service.up()
    asked = read_body(await read_bytes(request, service.config), PinRequest)
    tokens = await _tokens(service, asked)
    salt = salt_of(asked, service.config)
    result = await engine.pin(tokens, asked.ttl_s, cache_salt=salt, extra_key=client.cache_salt)
    return json_response(
        {
            "tokens": len(tokens),
            "pinned": result.pinned_len,
            "budget_left": result.budget_left,
            "ttl_s": asked.ttl_s,
        }
    )


async def unpin(request: Request) -> Response:
    """``POST /admin/unpin``: let a pinned prefix go."""
    client = admin_of(request)
    service = service_of(request)
    engine, _ = service.up()
    asked = read_body(await read_bytes(request, service.config), PinRequest)
    tokens = await _tokens(service, asked)
    salt = salt_of(asked, service.config)
    was = await engine.unpin(tokens, cache_salt=salt, extra_key=client.cache_salt)
    return json_response({"tokens": len(tokens), "was_pinned": was})


async def audit(request: Request) -> Response:
    """``POST /admin/audit``: recount everything; what does not hold is a bug."""
    admin_of(request)
    engine, _ = service_of(request).up()
    report = await engine.audit()
    found = [f"{one.clause}: {one.message}" for one in report.violations]
    return json_response({"ok": report.ok, "violations": found})


async def _tokens(service: Service, asked: PinRequest) -> Sequence[int]:
    """Return the one prefix that `asked` names, as tokens."""
    engine, model = service.up()
    bounds = Bounds.of(engine, model, service.config)
    given = [name for name in ("text", "tokens", "messages") if getattr(asked, name) is not None]
    if len(given) != 1:
        told = " and ".join(given) if given else "none of them"
        raise ApiError(400, f"found {told}; send one of text, tokens and messages")
    if asked.tokens is not None:
        tokens: Sequence[int] = asked.tokens
    elif asked.text is not None:
        text = asked.text
        tokens = await encode(service, lambda: model.tokenizer.encode(text), len(text))
    else:
        tokens = await encode_chat(service, model, asked.messages or (), bounds.prompt)
    if not tokens:
        raise wrong_field(given[0], "is empty; a prefix has at least one token")
    bounds.check_prompt(tokens, given[0])
    return tokens
