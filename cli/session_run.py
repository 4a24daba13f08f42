"""The session itself: who asks when, on which engine, and what is taken away in between."""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import Final

import anyio
import torch

from radixtide.cli.session_record import Ask, Case, SessionResult
from radixtide.cli.session_script import (
    Message,
    follow_up,
    name_of,
    question,
    system_prompt,
)
from radixtide.configs.schema import StorageConfig
from radixtide.serving.config import EngineConfig
from radixtide.serving.engine import Engine
from radixtide.serving.geometry import cache_config
from radixtide.serving.models import LoadedModel, load_model
from radixtide.serving.params import SamplingParams

WARM_UP_TOKENS: Final = 64
"""Length of the first prompt, which is not measured: it makes threads and buffers."""

Tell = Callable[[str], None]
"""Takes what is being done now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What the command line asks for.

    ``model``: as ``load_model`` takes it. ``prompt_tokens``: about so many has the shared system
    prompt. ``samples``: questions of each case; the table has their median. ``answer_tokens``: most
    tokens of an answer.
    """

    model: str
    prompt_tokens: int
    samples: int
    answer_tokens: int

    @property
    def steps(self) -> int:
        """How often :func:`run_session` tells what it does."""
        return 4 + 4 * self.samples - 1


def run_session(
    options: SessionOptions, tell: Tell, model: LoadedModel | None = None
) -> SessionResult:
    """Load the model, serve the session, and return what was measured.

    Storage is LMDB in a folder of its own, which goes at the end. `model`: one that is loaded.

    Raises: ConfigError where the model can not be loaded; errors of the cache as they come.
    """
    start = perf_counter()
    tell("loading the model")
    model = model or load_model(options.model)
    loaded_s = perf_counter() - start
    with tempfile.TemporaryDirectory(prefix="radixtide-session-") as folder:
        session = _Session(options, model, Path(folder), tell)
        asyncio.run(session.run())
    return SessionResult(
        model=model.name,
        device=str(model.device),
        threads=torch.get_num_threads(),
        users=session.users,
        shared_tokens=session.shared_tokens,
        asks=tuple(session.asks),
        held=dict(session.held),
        violations=tuple(session.violations),
        load_model_s=loaded_s,
        wall_s=perf_counter() - start,
    )


class _Session:
    """One run: the users' chats so far, and what was measured."""

    def __init__(
        self, options: SessionOptions, model: LoadedModel, folder: Path, tell: Tell
    ) -> None:
        self.options = options
        self.asks: list[Ask] = []
        self.held: Counter[str] = Counter(slots=0, locks=0, requests=0)
        self.violations: list[str] = []
        self.users = 0
        self._model = model
        self._tell = tell
        self._chats: list[tuple[str, list[Message], str]] = []
        self.shared = self._system(0)
        # All prompts of the session fit side by side: long ones, and what users add to them.
        users, tail = 3 * options.samples + 1, 256 + 2 * options.answer_tokens
        self._config = cache_config(
            model,
            tokens=(options.samples + 2) * options.prompt_tokens + users * tail,
            host_ratio=1.0,
            storage=StorageConfig(url=f"lmdb:{folder}", prefetch_policy="wait_complete"),
        )

    async def run(self) -> None:
        """Serve all cases.

        Cold prompts come between the others: where the machine is slower for a while, it is so for
        all of them.
        """
        samples = self.options.samples
        async with self._engine() as engine:
            self._tell("warming up")
            await self._ask(engine, None, "", question(self._system(1, WARM_UP_TOKENS), 0))
            await self._ask_shared(engine, Case.COLD)
            for _ in range(samples):
                await self._ask_shared(engine, Case.DEVICE)
            await self._ask_again(engine)
            for number in range(1, samples):
                await self._ask_cold(engine, number)
                await engine.drain()
                await engine.flush("device")
                await self._ask_shared(engine, Case.HOST)
            await engine.drain()
            await engine.flush("device")
            await self._ask_shared(engine, Case.HOST)
        for _ in range(samples):
            async with self._engine() as engine:
                await self._ask_shared(engine, Case.STORAGE)

    @asynccontextmanager
    async def _engine(self) -> AsyncIterator[Engine]:
        """Open an engine with a cache of its own; at the end look for what is held, and audit."""
        async with Engine(self._model, self._config, EngineConfig()) as engine:
            yield engine
            await engine.drain()
            held = (await engine.stats()).held
            self.held.update(slots=held.slots, locks=held.receipts, requests=held.requests)
            report = await engine.audit()
            self.violations += [f"{found.clause}: {found.message}" for found in report.violations]

    @property
    def shared_tokens(self) -> int:
        """Tokens that the prompts of any two users begin with."""
        chat = self._model.tokenizer.chat
        pairs = zip(chat(question(self.shared, 0)), chat(question(self.shared, 1)), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _system(self, first: int, tokens: int | None = None) -> str:
        encode = self._model.tokenizer.encode
        length = self.options.prompt_tokens if tokens is None else tokens
        return system_prompt(lambda text: len(encode(text)), length, first)

    async def _ask_cold(self, engine: Engine, number: int) -> None:
        """Ask under a prompt as long as the shared one that has other words from its begin on."""
        self._tell("somebody asks under a prompt that nobody has sent before")
        messages = question(self._system(10 * number), number)
        await self._ask(engine, Case.COLD, name_of(number), messages)

    async def _ask_shared(self, engine: Engine, case: Case) -> None:
        """Let the next user ask under the shared prompt."""
        name, messages = name_of(self.users), question(self.shared, self.users)
        self.users += 1
        self._tell(f"{name} asks; the shared prompt is {_PLACES[case]}")
        answer = await self._ask(engine, case, name, messages)
        self._chats.append((name, messages, answer))

    async def _ask_again(self, engine: Engine) -> None:
        """Let all who have asked so far ask again, at the same moment."""
        self._tell("all of them ask again, at the same moment")
        async with anyio.create_task_group() as group:
            for name, messages, answer in self._chats:
                more = follow_up(messages, answer)
                group.start_soon(self._ask, engine, Case.TOGETHER, name, more)

    async def _ask(
        self, engine: Engine, case: Case | None, user: str, messages: list[Message]
    ) -> str:
        """Ask and return the whole answer; keep what was measured, unless `case` is None."""
        tokenizer = self._model.tokenizer
        prompt = tokenizer.chat(messages)
        asked = perf_counter()
        first = None
        tokens: list[int] = []
        async with engine.generate(prompt, self._params) as generation:
            async for token in generation:
                first = first or perf_counter()
                tokens.append(token.id)
        ended = perf_counter()
        answer = tokenizer.decode(tokens)
        if case is None:
            return answer
        report = generation.report
        self.asks.append(
            Ask(
                case=case,
                user=user,
                question=messages[-1]["content"],
                answer=answer,
                finish_reason=str(generation.finish_reason),
                prompt_tokens=len(prompt),
                output_tokens=len(tokens),
                cached_device=report.cached_device,
                cached_host=report.cached_host,
                cached_storage=report.cached_storage,
                computed_tokens=report.computed_tokens,
                miss_reason=str(report.miss_reason),
                ttft_s=(first or ended) - asked,
                total_s=ended - asked,
                queue_s=report.queue_s,
                fetch_s=report.fetch_s,
                load_s=report.load_s,
            )
        )
        return answer

    @property
    def _params(self) -> SamplingParams:
        return SamplingParams(max_tokens=self.options.answer_tokens, temperature=0.0)


_PLACES = {
    Case.COLD: "new to all",
    Case.DEVICE: "on the device",
    Case.HOST: "in host memory",
    Case.STORAGE: "in storage",
}


__all__ = ("SessionOptions", "run_session")
