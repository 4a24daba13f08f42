"""``POST /v1/completions``: a text, or token ids, go on."""

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
    encode,
    refuse_unsupported,
    salt_of,
    sampling,
    stops_of,
)
from radixtide.serving.http.auth import Client, client_of
from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.errors import wrong_field
from radixtide.serving.http.limits import read_bytes
from radixtide.serving.http.protocol import CompletionRequest, read_body
from radixtide.serving.http.service import Service, service_of
from radixtide.serving.http.streaming import DONE, event, respond


async def completions(request: Request) -> Response:
    """Answer a completion request, whole or as a stream."""
    service, client = service_of(request), client_of(request)
    service.up()
    asked = read_body(await read_bytes(request, service.config), CompletionRequest)
    orders, echoes = await orders_of(service, client, asked)
    answer = await Answer.start(service, orders)
    written = Written(
        f"cmpl-{uuid.uuid4().hex}", int(time.time()), service.model_name, tuple(echoes)
    )
    return await respond(request, service, asked, answer, written)


async def orders_of(
    service: Service, client: Client, asked: CompletionRequest
) -> tuple[list[Order], list[str]]:
    """Return the orders of `asked`, prompt by prompt, and what each choice echoes.

    ApiError where the request is wrong.
    """
    engine, model = service.up()
    config = service.config
    check_model(service, asked.model)
    refuse_unsupported(asked)
    top = _refuse_own(asked, config)
    bounds, salt = Bounds.of(engine, model, config), salt_of(asked, config)
    given = prompts_of(asked, bounds, config)
    choices, stops = choices_of(asked, config, len(given)), stops_of(asked, config)
    orders, echoes = [], []
    for prompt in given:
        tokens = await _tokens(service, prompt, bounds)
        most = bounds.answer_tokens(
            len(tokens), asked.max_tokens, config.completion_tokens_default, "max_tokens"
        )
        echo = ""
        if asked.echo:
            echo = prompt if isinstance(prompt, str) else model.tokenizer.decode(tokens)
        for choice in range(choices):
            orders.append(
                Order(
                    prompt=tokens,
                    params=sampling(asked, most, top, choice),
                    stops=stops,
                    logprobs=top is not None,
                    salt=salt,
                    client=client,
                    priority=asked.priority or 0,
                )
            )
            echoes.append(echo)
    return orders, echoes


def _refuse_own(asked: CompletionRequest, config: ServerConfig) -> int | None:
    """Return how many alternatives are told, None for no logprobs; ApiError for what can not be."""
    if asked.suffix:
        raise wrong_field("suffix", "is not supported; leave it out", code="unsupported")
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise wrong_field("best_of", "is not supported; leave it out", code="unsupported")
    top = asked.logprobs
    if top is None:
        return None
    if not 0 <= top <= config.top_logprobs_max:
        raise wrong_field("logprobs", f"{top}; 0 to {config.top_logprobs_max} are allowed")
    if asked.echo:
        raise wrong_field(
            "logprobs",
            "can not go with echo: what is cached of a prompt is not computed, so it has none; "
            "leave one of the two out",
            code="unsupported",
        )
    return top


def prompts_of(
    asked: CompletionRequest, bounds: Bounds, config: ServerConfig
) -> list[str | list[int]]:
    """Return the prompts: texts, or lists of token ids; ApiError where they are mixed up."""
    prompt = asked.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise wrong_field("prompt", "is empty; send text, or token ids")
    kind = type(prompt[0])
    # Before each is looked at: a body has room for millions.
    if kind is int:
        bounds.check_prompt(prompt, "prompt")
    else:
        choices_of(asked, config, len(prompt))
    for place, item in enumerate(prompt):
        if type(item) is not kind:
            raise wrong_field(
                f"prompt[{place}]",
                "is of another kind than those before; send texts only, token ids only, or lists "
                "of token ids only",
            )
    if kind is int:
        return [[item for item in prompt if isinstance(item, int)]]
    return [item for item in prompt if not isinstance(item, int)]


async def _tokens(service: Service, prompt: str | list[int], bounds: Bounds) -> Sequence[int]:
    _, model = service.up()
    if isinstance(prompt, str):
        text = prompt
        tokens = await encode(service, lambda: model.tokenizer.encode(text), len(text))
        bounds.check_prompt(tokens, "prompt")
        return tokens
    bounds.check_prompt(prompt, "prompt")
    wrong = next((token for token in prompt if not 0 <= token < model.vocabulary), None)
    if wrong is not None:
        raise wrong_field(
            "prompt", f"token {wrong} is none of the model's; these are 0 to {model.vocabulary - 1}"
        )
    return prompt


@dataclass(frozen=True, slots=True)
class Written:
    """How one answer is written down. ``echoes``: what each choice's text begins with."""

    id: str
    created: int
    model: str
    echoes: tuple[str, ...]

    async def whole(self, answer: Answer) -> dict[str, Any]:
        """Return the answer as one object, when it has ended."""
        said = await answer.gathered()
        choices = [
            _choice(
                choice.index,
                "".join((echo, *one.texts)),
                logprobs(one.entries) if choice.order.logprobs else None,
                one.finish,
            )
            for choice, echo, one in zip(answer.choices, self.echoes, said, strict=True)
        ]
        return {**self._head(), "choices": choices, "usage": answer.usage()}

    async def events(self, answer: Answer, usage: bool) -> AsyncGenerator[bytes]:
        """Yield the answer as events; with `usage` one more that tells the tokens it took."""
        head = self._head()
        for index, echo in enumerate(self.echoes):
            if echo:
                yield event({**head, "choices": [_choice(index, echo, None, None)]})
        async with aclosing(answer.pieces()) as pieces:
            async for piece in pieces:
                told = logprobs(piece.entries) if piece.entries else None
                choice = _choice(piece.index, piece.text, told, piece.finish)
                yield event({**head, "choices": [choice]})
        await answer.aclose()
        if usage:
            yield event({**head, "choices": [], "usage": answer.usage()})
        yield DONE

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
        }


def _choice(
    index: int, text: str, told: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": told, "finish_reason": finish}


def logprobs(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the log probabilities of tokens as the completions API writes them."""
    return {
        "tokens": [entry.text for entry in entries],
        "token_logprobs": [entry.logprob for entry in entries],
        "top_logprobs": [{one.text: one.logprob for one in entry.top} for entry in entries],
        "text_offset": [entry.start for entry in entries],
    }
