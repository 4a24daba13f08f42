"""``POST /v1/chat/completions``: a conversation goes on."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from radixtide.serving.http.answers import Answer, Entry
from radixtide.serving.http.asking import (
    Bounds,
    Order,
    check_model,
    choices_of,
    encode_chat,
    refuse_unsupported,
    salt_of,
    sampling,
    stops_of,
)
from radixtide.serving.http.auth import Client, client_of
from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.errors import wrong_field
from radixtide.serving.http.limits import read_bytes
from radixtide.serving.http.protocol import ChatRequest, read_body
from radixtide.serving.http.service import Service, service_of
from radixtide.serving.http.streaming import DONE, event, respond


async def chat_completions(request: Request) -> Response:
    """Answer a chat request, whole or as a stream."""
    service, client = service_of(request), client_of(request)
    service.up()
    asked = read_body(await read_bytes(request, service.config), ChatRequest)
    orders = await orders_of(service, client, asked)
    answer = await Answer.start(service, orders)
    talk = Talk(f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), service.model_name)
    return await respond(request, service, asked, answer, talk)


async def orders_of(service: Service, client: Client, asked: ChatRequest) -> list[Order]:
    """Return what `asked` wants of the engine: one order a choice. ApiError where it is wrong."""
    engine, model = service.up()
    config = service.config
    check_model(service, asked.model)
    refuse_unsupported(asked)
    top = _top_logprobs(asked, config)
    choices, stops = choices_of(asked, config), stops_of(asked, config)
    salt = salt_of(asked, config)
    bounds = Bounds.of(engine, model, config)
    prompt = await encode_chat(service, model, asked.messages, bounds.prompt)
    bounds.check_prompt(prompt, "messages")
    named = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
    tokens = bounds.answer_tokens(
        len(prompt), getattr(asked, named), config.answer_tokens_default, named
    )
    return [
        Order(
            prompt=prompt,
            params=sampling(asked, tokens, top, choice),
            stops=stops,
            logprobs=top is not None,
            salt=salt,
            client=client,
            priority=asked.priority or 0,
        )
        for choice in range(choices)
    ]


def _top_logprobs(asked: ChatRequest, config: ServerConfig) -> int | None:
    if not asked.logprobs:
        if asked.top_logprobs:
            raise wrong_field("top_logprobs", "goes with logprobs: true only; set that too")
        return None
    top = asked.top_logprobs or 0
    if not 0 <= top <= config.top_logprobs_max:
        raise wrong_field("top_logprobs", f"{top}; 0 to {config.top_logprobs_max} are allowed")
    return top


@dataclass(frozen=True, slots=True)
class Talk:
    """How one answer is written down. ``created``: seconds since 1970."""

    id: str
    created: int
    model: str

    async def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the answer as one object, when it has ended."""
        said = await answer.gathered()
        choices = [
            {
                "index": choice.index,
                "message": {
                    "role": "assistant",
                    "content": "".join(one.texts),
                    "refusal": None,
                },
                "logprobs": logprobs(one.entries) if choice.order.logprobs else None,
                "finish_reason": one.finish,
            }
            for choice, one in zip(answer.choices, said, strict=True)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": answer.usage()}

    async def events(self, answer: Answer, usage: bool) -> AsyncGenerator[bytes]:
        """Yield the answer as events; with `usage` one more that tells the tokens it took."""
        head = self._head("chat.completion.chunk")
        opening = {"role": "assistant", "content": ""}
        for choice in answer.choices:
            yield event({**head, "choices": [_delta(choice.index, opening, None, None)]})
        async with aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                told = logprobs(piece.entries) if piece.entries else None
                delta = {"content": piece.text} if piece.text else {}
                if delta or told:
                    yield event({**head, "choices": [_delta(piece.index, delta, told, None)]})
                if piece.finish is not None:
                    last = _delta(piece.index, {}, None, piece.finish)
                    yield event({**head, "choices": [last]})
        await answer.aclose()
        if usage:
            yield event({**head, "choices": [], "usage": answer.usage()})
        yield DONE

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def _delta(
    index: int, delta: dict[str, str], told: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": told, "finish_reason": finish}


def logprobs(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the log probabilities of tokens as the chat API writes them."""
    content = [
        {
            "token": entry.text,
            "logprob": entry.logprob,
            "bytes": list(entry.raw),
            "top_logprobs": [
                {"token": one.text, "logprob": one.logprob, "bytes": list(one.raw)}
                for one in entry.top
            ],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}
