"""From a request of the API to what the engine is asked: checked, and with defaults filled in."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import anyio.to_thread

from radixtide.serving.http.auth import Client
from radixtide.serving.http.config import ServerConfig
from radixtide.serving.http.errors import ApiError, wrong_field
from radixtide.serving.http.protocol import UNSUPPORTED, Asked, ChatMessage, PinRequest
from radixtide.serving.http.service import Service
from radixtide.serving.params import SamplingParams

if TYPE_CHECKING:
    from radixtide.serving.engine import Engine
    from radixtide.serving.models import LoadedModel

Result = TypeVar("Result")

ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Roles a message may have, and what the model's template calls them."""

INLINE_CHARS: Final = 2048
"""Text up to which encoding on the loop is cheaper than a thread's turn."""
TURN_CHARS: Final = 32
"""What a chat template makes of an empty message, about: it costs as much as its text."""


@dataclass(frozen=True, slots=True)
class Order:
    """One choice that the engine is asked for. ``salt``: of the request; the client's is apart.

    ``logprobs``: whether the client wants them told.
    """

    prompt: Sequence[int]
    params: SamplingParams
    stops: tuple[str, ...]
    logprobs: bool
    salt: str | None
    client: Client
    priority: int


def check_model(service: Service, name: str) -> None:
    """Raise ApiError (404) where `name` is not the model that is served."""
    if name != service.model_name:
        raise ApiError(
            404,
            f"the model {name[:100]!r} is not served here; this server has {service.model_name!r}",
            param="model",
            code="model_not_found",
        )


async def encode(service: Service, work: Callable[[], Result], chars: int) -> Result:
    """Return what `work`, which encodes `chars` characters, returns; long work runs in a thread.

    One at a time: tokenizers are not made for several threads.
    """
    if chars <= INLINE_CHARS and not service.encoding.borrowed_tokens:
        return work()
    return await anyio.to_thread.run_sync(work, limiter=service.encoding, abandon_on_cancel=False)


async def encode_chat(
    service: Service, model: LoadedModel, messages: Sequence[ChatMessage], most: int
) -> Sequence[int]:
    """Return `messages` as tokens, in the model's template; ApiError where that can not be.

    `most`: tokens that a prompt may have, and so messages, and parts of one.
    """
    if not messages:
        raise wrong_field("messages", "is empty; send at least one message")
    if len(messages) > most:
        raise wrong_field(
            "messages",
            f"{len(messages)} messages, but this server takes at most {most} tokens; shorten it",
            code="context_length_exceeded",
        )
    turns = chat_turns(messages, most)
    chars = sum(TURN_CHARS + len(turn["content"]) for turn in turns)
    return await encode(service, lambda: model.tokenizer.chat(turns), chars)


def chat_turns(messages: Sequence[ChatMessage], parts_max: int) -> list[dict[str, str]]:
    """Return `messages` as the model's template takes them; ApiError where it can not."""
    turns = []
    for place, message in enumerate(messages):
        role = ROLES.get(message.role)
        if role is None:
            raise wrong_field(
                f"messages[{place}].role",
                f"{message.role[:40]!r} is not supported; use one of {', '.join(ROLES)}",
            )
        turns.append({"role": role, "content": _content(message, place, parts_max)})
    return turns


def _content(message: ChatMessage, place: int, parts_max: int) -> str:
    if message.content is None:
        if message.role == "assistant":
            return ""
        raise wrong_field(f"messages[{place}].content", "is missing; write text")
    if isinstance(message.content, str):
        return message.content
    if len(message.content) > parts_max:
        raise wrong_field(
            f"messages[{place}].content",
            f"{len(message.content)} parts; at most {parts_max} are allowed",
        )
    texts = []
    for number, part in enumerate(message.content):
        where = f"messages[{place}].content[{number}]"
        if part.type != "text":
            raise wrong_field(
                where,
                f"parts of type {part.type[:40]!r} are not supported; send parts of type 'text'",
            )
        if part.text is None:
            raise wrong_field(f"{where}.text", "is missing; write text")
        texts.append(part.text)
    return "".join(texts)


def refuse_unsupported(asked: Asked) -> None:
    """Raise ApiError (400) for fields that would change the answer, and are not supported."""
    if asked.response_format is not None and asked.response_format.type != "text":
        raise wrong_field(
            "response_format",
            f"{asked.response_format.type[:40]!r} is not supported; use 'text', or leave it out",
            code="unsupported",
        )
    for name, neutral in UNSUPPORTED.items():
        value = getattr(asked, name)
        if value is not None and value != neutral:
            raise wrong_field(name, "is not supported; leave it out", code="unsupported")
    if asked.stream_options is not None and not asked.stream:
        raise wrong_field("stream_options", "goes with stream: true only; leave it out")


def salt_of(asked: Asked | PinRequest, config: ServerConfig) -> str | None:
    """Return the salt of a request, bounded in length: it is kept with what is cached."""
    salt = asked.cache_salt
    if salt == "":
        raise wrong_field("cache_salt", "is empty; leave it out to share with all")
    if salt is not None and len(salt) > config.salt_chars_max:
        raise wrong_field(
            "cache_salt",
            f"{len(salt)} characters; at most {config.salt_chars_max} are allowed",
        )
    return salt


def stops_of(asked: Asked, config: ServerConfig) -> tuple[str, ...]:
    """Return the stop strings, bounded in number and length as stop tokens are in number."""
    tokens = len(asked.stop_token_ids or ())
    if tokens > config.stop_tokens_max:
        raise wrong_field(
            "stop_token_ids", f"{tokens} tokens; at most {config.stop_tokens_max} are allowed"
        )
    stops = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    if len(stops) > config.stops_max:
        raise wrong_field("stop", f"{len(stops)} strings; at most {config.stops_max} are allowed")
    for stop in stops:
        if not 0 < len(stop) <= config.stop_chars_max:
            raise wrong_field(
                "stop",
                f"a string of {len(stop)} characters; 1 to {config.stop_chars_max} are allowed",
            )
    return stops


def choices_of(asked: Asked, config: ServerConfig, prompts: int = 1) -> int:
    """Return ``n``, bounded together with the number of prompts."""
    wanted = 1 if asked.n is None else asked.n
    if wanted < 1:
        raise wrong_field("n", f"{wanted}, but needs at least 1")
    if wanted * prompts > config.choices_max:
        each = f" for each of {prompts} prompts" if prompts > 1 else ""
        raise wrong_field("n", f"{wanted}{each}; at most {config.choices_max} answers in a request")
    return wanted


@dataclass(frozen=True, slots=True)
class Bounds:
    """Most tokens of a request: ``context``: prompt and answer together; ``prompt``; ``answer``.

    The context is the model's, or what the pool of full attention holds where that is less.
    """

    context: int
    prompt: int
    answer: int

    @classmethod
    def of(cls, engine: Engine, model: LoadedModel, config: ServerConfig) -> Bounds:
        """Return the bounds of a running server."""
        # A prompt that fills the pool leaves no slot for its answer.
        context = min(model.max_context, engine.cache.config.pools.full.size)
        own = config.prompt_tokens_max or context
        return cls(context, min(own, context - 1), engine.config.max_output_tokens)

    def check_prompt(self, prompt: Sized, param: str) -> None:
        """Raise ApiError (400) where a prompt is empty or too long."""
        if not prompt:
            raise wrong_field(param, "is empty; send at least one token")
        if len(prompt) > self.prompt:
            raise wrong_field(
                param,
                f"{len(prompt)} tokens, but this server takes at most {self.prompt} (prompt and "
                f"answer together {self.context}); shorten it",
                code="context_length_exceeded",
            )

    def answer_tokens(self, prompt: int, wanted: int | None, default: int, param: str) -> int:
        """Return how many tokens may be made after `prompt` tokens; ApiError where too many."""
        room = self.context - prompt
        if wanted is None:
            return min(default, room, self.answer)
        if wanted < 1:
            raise wrong_field(param, f"{wanted}, but needs at least 1")
        if wanted > self.answer:
            raise wrong_field(
                param, f"{wanted}, but this server makes at most {self.answer} tokens"
            )
        if wanted > room:
            raise wrong_field(
                param,
                f"{wanted} after a prompt of {prompt} tokens; the two may have {self.context} "
                f"together: ask for at most {room}, or shorten the prompt",
                code="context_length_exceeded",
            )
        return wanted


def sampling(asked: Asked, max_tokens: int, top: int | None, choice: int) -> SamplingParams:
    """Return how choice number `choice` is drawn: each has a seed of its own.

    `top`: alternatives wanted for each token; None: no logprobs.
    """
    given = {
        name: value
        for name in ("temperature", "top_p", "top_k", "ignore_eos")
        if (value := getattr(asked, name)) is not None
    }
    if asked.stop_token_ids is not None:
        given["stop_token_ids"] = tuple(asked.stop_token_ids)
    if asked.top_k == -1:
        given["top_k"] = 0  # other servers' word for no limit
    if asked.seed is not None:
        # The official API takes any 64-bit seed, also negative ones.
        given["seed"] = (asked.seed + choice) % 2**63
    return SamplingParams(max_tokens=max_tokens, logprobs=top, **given)
