"""The choices of one request while they are made: pieces of text as they come, and the usage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectSendStream

from radixtide.serving.http.asking import Order
from radixtide.serving.http.errors import for_now
from radixtide.serving.http.protocol import PromptDetails, Usage
from radixtide.serving.http.service import Service
from radixtide.serving.http.text import Detokenizer, StopFinder

if TYPE_CHECKING:
    from radixtide.serving.generation import Generation
    from radixtide.serving.models import LoadedModel
    from radixtide.serving.sampling import Token

PIECES_MAX = 32
"""Pieces that wait for a client that reads slowly, before its choices wait too."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A token that could have been, with its log probability. ``raw``: its bytes."""

    text: str
    raw: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A token with its log probability. ``start``: where its text begins in the choice's."""

    text: str
    raw: bytes
    logprob: float
    top: tuple[Alternative, ...]
    start: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What choice ``index`` has more: text, and the tokens it came from where these are wanted.

    ``finish``: why the choice ended, in its last piece: ``stop`` or ``length``.
    """

    index: int
    text: str = ""
    entries: tuple[Entry, ...] = ()
    finish: str | None = None


@dataclass(slots=True)
class Choice:
    """One continuation: what the engine makes, and where its text stands."""

    index: int
    order: Order
    generation: Generation
    model: LoadedModel
    length: int = 0
    told: int = 0
    waiting: list[Entry] = field(default_factory=list)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Yield what there is to tell, the last with the reason of the end.

        Raises ApiError where the engine failed.
        """
        reader = Detokenizer(self.model.tokenizer)
        finder = StopFinder(self.order.stops)
        async for token in self.generation:
            if self.order.logprobs:
                self.waiting.append(self._entry(token))
            fresh = reader.push(token.id)
            self.length += len(fresh)
            text = finder.push(fresh)
            self.told += len(text)
            if finder.found is not None:
                await self.generation.stop()
                yield Piece(self.index, text, self._entries(), "stop")
                return
            if text:
                yield Piece(self.index, text, self._entries())
        finish = self._finish()
        text = finder.push(reader.flush())
        if finder.found is None:
            text += finder.flush()
        else:
            finish = "stop"
        self.told += len(text)
        yield Piece(self.index, text, self._entries(last=finder.found is None), finish)

    def _finish(self) -> str:
        reason = self.generation.finish_reason
        if reason in ("stop", "length"):
            return reason
        if reason == "error" and self.generation.error is not None:
            raise self.generation.error
        raise for_now("the answer was given up; send the request again", "aborted")

    def _entries(self, last: bool = False) -> tuple[Entry, ...]:
        """Return the tokens whose text is told, or all that are left."""
        ready = [one for one in self.waiting if last or one.start < self.told]
        del self.waiting[: len(ready)]
        return tuple(ready)

    def _entry(self, token: Token) -> Entry:
        top = tuple(Alternative(*self._text(one), logprob) for one, logprob in token.top)
        logprob = token.logprob
        assert logprob is not None, "the engine was asked for it"
        return Entry(*self._text(token.id), logprob, top, self.length)

    def _text(self, token: int) -> tuple[str, bytes]:
        raw = self.model.tokenizer.token_bytes(token)
        try:
            return raw.decode(), raw
        except UnicodeDecodeError:
            # As the official API writes a part of a character.
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw


@dataclass(slots=True)
class Said:
    """All that a choice has said, when it has ended. ``finish``: why it ended."""

    texts: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    finish: str | None = None


class Answer:
    """All choices of one request. To be closed when nobody reads it any more."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        self.choices = tuple(choices)
        self._closed = False

    @classmethod
    async def start(cls, service: Service, orders: Sequence[Order]) -> Answer:
        """Ask the engine for each of `orders`; all or none.

        Raises:
            Overloaded: too many wait already.
            InvalidInput: the engine can not do that.
        """
        engine, model = service.up()
        choices: list[Choice] = []
        try:
            for index, order in enumerate(orders):
                generation = engine.generate(
                    order.prompt,
                    order.params,
                    cache_salt=order.salt,
                    extra_key=order.client.cache_salt,
                    priority=order.priority,
                )
                choices.append(Choice(index, order, generation, model))
        except BaseException:
            await cls(choices).aclose()
            raise
        return cls(choices)

    async def pieces(self) -> AsyncGenerator[Piece]:
        """Yield the pieces of all choices, as they come. Raises what one of them raised."""
        if len(self.choices) == 1:
            async with aclosing(self.choices[0].pieces()) as pieces:
                async for piece in pieces:
                    yield piece
            return
        failure: Exception | None = None
        send, receive = anyio.create_memory_object_stream[Piece | Exception](PIECES_MAX)
        async with anyio.create_task_group() as group, receive:
            with send:
                for choice in self.choices:
                    group.start_soon(_forward, choice, send.clone())
            async for found in receive:
                if isinstance(found, Exception):
                    failure = found
                    group.cancel_scope.cancel()
                    break
                yield found
        if failure is not None:
            raise failure

    async def gathered(self) -> list[Said]:
        """Return what each choice has said, in order, when all have ended; then it is closed."""
        said = [Said() for _ in self.choices]
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                one = said[piece.index]
                one.texts.append(piece.text)
                one.entries += piece.entries
                one.finish = piece.finish
        await self.aclose()
        return said

    async def aclose(self) -> None:
        """Give up what is not finished; returns when nothing is held for it any more."""
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for choice in self.choices:
                    group.start_soon(choice.generation.aclose)

    def usage(self) -> Usage:
        """Return the tokens that the choices took; to be asked when they have ended.

        Of choices that share a prompt the first one's hits count, as the prompt counts once.
        """
        reports = [choice.generation.report for choice in self.choices]
        prompt = cached = 0
        seen: set[int] = set()
        for choice, report in zip(self.choices, reports, strict=True):
            if id(choice.order.prompt) in seen:
                continue
            seen.add(id(choice.order.prompt))
            prompt += report.prompt_tokens
            cached += report.cached_device + report.cached_host + report.cached_storage
        output = sum(report.output_tokens for report in reports)
        told: list[Any] = [msgspec.to_builtins(report) for report in reports]
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=output,
            total_tokens=prompt + output,
            prompt_tokens_details=PromptDetails(cached),
            radixtide=told,
        )


async def _forward(choice: Choice, send: MemoryObjectSendStream[Piece | Exception]) -> None:
    async with send, aclosing(choice.pieces()) as pieces:
        try:
            async for piece in pieces:
                await send.send(piece)
        except Exception as error:  # noqa: BLE001 - told by whoever reads the pieces
            await send.send(error)
