"""A tiny model for tests of the scheduler, which answers by all that it reads.

Its next token is a checksum of every token of the context, of the window's tokens, and of the
state: each as it lies in the pools, read by slot. A slot that is another's, stale, not yet loaded
or out of order makes another answer than :func:`answer_to`, which looks at no pool. It costs
microseconds, so that hundreds of requests may be served in a test.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import torch

from radixtide import UnifiedRadixCache
from radixtide.configs.errors import CallTimeout, LoadFailed
from radixtide.configs.schema import (
    CacheConfig,
    FullPoolConfig,
    HostConfig,
    LimitsConfig,
    MambaPoolConfig,
    PinsConfig,
    PoolsConfig,
    StorageConfig,
    SwaPoolConfig,
)
from radixtide.serving.config import EngineConfig
from radixtide.serving.engine import Engine
from radixtide.serving.generation import Generation
from radixtide.serving.params import SamplingParams
from radixtide.serving.rows import Outcome, Row
from support.actors import until

VOCABULARY: Final = 1000
EOS: Final = 999
WINDOW: Final = 6
MODULUS: Final = 65_521
FULL: Final = ("full",)
WINDOWED: Final = ("full", "swa")
STATEFUL: Final = ("full", "mamba")
ALL: Final = ("full", "swa", "mamba")
GREEDY: Final = SamplingParams(temperature=0.0, max_tokens=8)

Tokens = npt.NDArray[np.int64]


class TallyModel:
    """What the engine asks of a model."""

    def __init__(self, max_context: int = 4096) -> None:
        self.max_context = max_context

    @property
    def eos_ids(self) -> Collection[int]:
        """The token that ends an answer."""
        return (EOS,)

    @property
    def vocabulary(self) -> int:
        """Ids are below it."""
        return VOCABULARY


def folded(state: int, tokens: Sequence[int] | Tokens) -> int:
    """Return the state after `tokens`."""
    for token in tokens:
        state = (state * 31 + int(token) + 1) % MODULUS
    return state


def said(context: Tokens, window: Tokens | None, state: int | None) -> int:
    """Return the next token."""
    total = zlib.crc32(context.astype(np.int64).tobytes())
    if window is not None:
        total += 7 * zlib.crc32(window.astype(np.int64).tobytes())
    if state is not None:
        total += 13 * state
    # Never the token that ends an answer: a test sets how long it gets.
    return total % EOS


def answer_to(prompt: Sequence[int], count: int, components: Sequence[str] = FULL) -> list[int]:
    """Return what the model says to `prompt`, without any cache."""
    tokens = [int(token) for token in prompt]
    state = folded(0, tokens)
    for _ in range(count):
        context = np.array(tokens, dtype=np.int64)
        window = context[-WINDOW:] if "swa" in components else None
        token = said(context, window, state if "mamba" in components else None)
        tokens.append(token)
        state = folded(state, (token,))
    return tokens[len(prompt) :]


class TallyRunner:
    """Computes rows on the pools of a cache.

    ``passes``: the rows of each pass. ``fails``: called with the rows of a pass before they are
    computed; what it raises is the pass's failure. While it is *held* a pass does not end.
    """

    def __init__(self, model: TallyModel, cache: UnifiedRadixCache) -> None:
        self.model = model
        self.cache = cache
        self.passes: list[tuple[Row, ...]] = []
        self.fails: Callable[[Sequence[Row]], None] | None = None
        self.patient = True
        self.inside = False
        self._free = threading.Event()
        self._free.set()

    def hold(self) -> None:
        """Let the next pass not end."""
        self._free.clear()

    def let_on(self) -> None:
        """Let passes end again."""
        self._free.set()

    def forward(self, rows: Sequence[Row]) -> list[Outcome]:
        """Compute rows, as the scheduler asks."""
        self.passes.append(tuple(rows))
        self.inside = True
        try:
            if not self._free.wait(60):
                raise AssertionError("a test held a pass and forgot it")
            if self.fails is not None:
                self.fails(rows)
            return [self._computed(row) for row in rows]
        finally:
            self.inside = False

    def _computed(self, row: Row) -> Outcome:
        full = self.cache.memory["full"].buffers[0][0]
        places = torch.from_numpy(row.slots)
        count = len(row.tokens)
        self._write(full, places[-count:], row.tokens, row.start)
        if row.load is not None:
            try:
                row.load.wait_layer(0, 60 if self.patient else 0)
            except (LoadFailed, CallTimeout):
                return Outcome(lost=True)
        context = self._read(full, places, 0)
        window = state = None
        if row.window_slots is not None:
            swa = self.cache.memory["swa"].buffers[0][0]
            slots = torch.from_numpy(row.window_slots)
            self._write(swa, slots[-count:], row.tokens, row.start)
            window = self._read(swa, slots, row.window_start)[-WINDOW:]
            assert len(window) == min(WINDOW, len(row.slots))
        if row.state is not None:
            states = self.cache.memory["mamba"].ssm[0]
            before = int(states[row.state, 0]) if row.start else 0
            state = folded(before, row.tokens)
            for slot in (row.state, row.keep_state):
                if slot is not None:
                    states[slot, 0] = state
        if not row.logits:
            return Outcome()
        logits = torch.zeros(VOCABULARY)
        logits[said(context, window, state)] = 10.0
        return Outcome(logits)

    @staticmethod
    def _write(keys: torch.Tensor, slots: torch.Tensor, tokens: Tokens, start: int) -> None:
        keys[slots, 0, 0] = torch.from_numpy(tokens).float()
        keys[slots, 0, 1] = torch.arange(start, start + len(tokens)).float()

    @staticmethod
    def _read(keys: torch.Tensor, slots: torch.Tensor, start: int) -> Tokens:
        tokens: Tokens = keys[slots, 0, 0].long().numpy().copy()
        places = keys[slots, 0, 1].long().numpy()
        # A token of another position is another token.
        tokens[places != np.arange(start, start + len(places))] += 100_000
        return tokens


def engine_config_of_cache(
    components: Sequence[str] = FULL,
    *,
    pages: int = 64,
    window_pages: int | None = None,
    states: int = 40,
    page_size: int = 4,
    host: HostConfig | None = None,
    storage: StorageConfig | None = None,
    pin_budget: int = 0,
    limits: LimitsConfig | None = None,
) -> CacheConfig:
    """Return a cache for the tally model."""
    shape: dict[str, Any] = {"layers": 1, "kv_heads": 1, "head_dim": 2, "dtype": "float32"}
    swa = SwaPoolConfig(size=(window_pages or pages) * page_size, **shape)
    mamba = MambaPoolConfig(
        size=states,
        layers=1,
        conv_shape=(1,),
        ssm_shape=(1,),
        conv_dtype="float32",
        ssm_dtype="float32",
        extra_buffer=page_size > 1,
        chunk=page_size,
    )
    return CacheConfig(
        components=tuple(components),
        page_size=page_size,
        window=WINDOW if "swa" in components else None,
        pools=PoolsConfig(
            full=FullPoolConfig(size=pages * page_size, **shape),
            swa=swa if "swa" in components else None,
            mamba=mamba if "mamba" in components else None,
        ),
        host=host,
        storage=storage,
        pins=PinsConfig(budget=pin_budget),
        limits=LimitsConfig(call_timeout_s=20.0) if limits is None else limits,
    )


class Bench:
    """An engine with the tally model, and its runner.

    ``others``: answers that nobody reads. ``troubled``: the test lets something fail; in all others
    no pass fails and no request has to be served anew.
    """

    def __init__(
        self,
        cache: CacheConfig | UnifiedRadixCache | None = None,
        config: EngineConfig | None = None,
        *,
        components: Sequence[str] = FULL,
        max_context: int = 4096,
    ) -> None:
        self.components = components
        self.others: list[Generation] = []
        self.troubled = False
        self.runner: TallyRunner
        self.engine = Engine(
            TallyModel(max_context),
            engine_config_of_cache(components) if cache is None else cache,
            config,
            make_runner=self._make_runner,
        )

    def _make_runner(self, model: TallyModel, cache: UnifiedRadixCache) -> TallyRunner:
        self.runner = TallyRunner(model, cache)
        return self.runner

    async def __aenter__(self) -> Self:
        await self.engine.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.runner.let_on()
        if error is None:
            await nothing_is_held(self.engine)
            stats = await self.engine.stats()
            assert self.troubled or (stats.failed_steps, stats.retries) == (0, 0)
        await self.engine.__aexit__(kind, error, traceback)

    def ask(self, prompt: Sequence[int], count: int = 8, **options: Any) -> Generation:
        """Begin a greedy answer of `count` tokens."""
        params = SamplingParams(temperature=0.0, max_tokens=count)
        return self.engine.generate(list(prompt), params, **options)

    async def check(self, prompt: Sequence[int], count: int = 8, **options: Any) -> Generation:
        """Ask, and fail unless the answer is right; return what was asked."""
        generation = self.ask(prompt, count, **options)
        assert await heard(generation) == answer_to(prompt, count, self.components)
        assert generation.finish_reason == "length"
        return generation

    async def computing(self) -> None:
        """Wait until a pass goes on."""
        await until(lambda: self.runner.inside)


def numbers(seed: int, length: int) -> list[int]:
    """Return a prompt; those of two seeds have nothing in common but by chance."""
    return [int(one) for one in np.random.default_rng(seed).integers(0, 900, length)]


async def heard(generation: Generation) -> list[int]:
    """Return the ids of an answer, when it has ended."""
    return [token.id for token in await generation.tokens()]


async def nothing_is_held(engine: Engine) -> None:
    """Fail unless nothing is held, nobody waits or runs, and the audit finds nothing."""
    stats = await engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    held = stats.held
    assert (held.slots, held.receipts, held.requests) == (0, 0, 0)
    assert (await engine.audit()).violations == ()
