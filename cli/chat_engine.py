"""An engine in this process that answers in ``radixtide chat``, on a loop in a thread."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter

from anyio.from_thread import BlockingPortal, start_blocking_portal

from radixtide.cli.chat_talkers import Message, Taken
from radixtide.serving.engine import Engine
from radixtide.serving.generation import Generation
from radixtide.serving.http.config import ServeConfig
from radixtide.serving.http.server import make_cache_config
from radixtide.serving.http.text import Detokenizer
from radixtide.serving.models import LoadedModel, load_model
from radixtide.serving.params import SamplingParams
from radixtide.serving.sampling import Token


class EngineTalker:
    """Talks to `engine`, which runs on the loop behind `portal`."""

    def __init__(
        self, portal: BlockingPortal, engine: Engine, model: LoadedModel, params: SamplingParams
    ) -> None:
        self._portal = portal
        self._engine = engine
        self._model = model
        self._params = params
        self.name = model.name
        self.taken = Taken()

    def answer(self, messages: Sequence[Message]) -> Generator[str]:
        """Yield the next answer. Raises InvalidInput where the conversation is too long."""
        self.taken = taken = Taken()
        begun = perf_counter()
        prompt = self._model.tokenizer.chat(messages)
        generation = self._portal.call(partial(self._engine.generate, prompt, self._params))
        reader = Detokenizer(self._model.tokenizer)
        try:
            while (token := self._portal.call(_next, generation)) is not None:
                text = reader.push(token.id)
                if taken.first_s is None:
                    taken.first_s = perf_counter() - begun
                yield text
            yield reader.flush()
            if generation.error is not None:
                raise generation.error
        finally:
            self._portal.call(generation.aclose)
            taken.total_s = perf_counter() - begun
            report = generation.report
            taken.prompt, taken.output = report.prompt_tokens, report.output_tokens
            taken.cached = {
                "device": report.cached_device,
                "host": report.cached_host,
                "storage": report.cached_storage,
            }


async def _next(generation: Generation) -> Token | None:
    """Return the next token, None at the end."""
    return await anext(generation, None)


@contextmanager
def open_engine(config: ServeConfig, max_tokens: int, temperature: float) -> Iterator[EngineTalker]:
    """Load the model of `config`, and open an engine for it.

    Raises ConfigError where the model can not be loaded.
    """
    model = load_model(config.model, dtype=config.dtype, device=config.device)
    cache = make_cache_config(model, config)
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature)
    with start_blocking_portal() as portal:
        engine = Engine(model, cache, config.engine)
        with portal.wrap_async_context_manager(engine) as opened:
            yield EngineTalker(portal, opened, model, params)
