"""Forward passes without a scheduler: rows over slots that a test deals out itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from radixtide import UnifiedRadixCache
from radixtide.serving.geometry import cache_config
from radixtide.serving.models import LoadedModel, load_model
from radixtide.serving.rows import Outcome, Row
from radixtide.serving.runner import ModelRunner

TOKENS = 512
"""Slots of each pool of keys and values."""
STATES = 8


@cache
def loaded(spec: str) -> LoadedModel:
    """Load a model once a run of the tests."""
    return load_model(spec)


@cache
def plain_logits(model: LoadedModel, tokens: tuple[int, ...]) -> torch.Tensor:
    """Return what `model` says after each token, without any cache, (T, vocabulary)."""
    with torch.inference_mode():
        answer = model.model(torch.tensor([tokens], device=model.device), use_cache=False)
    logits: torch.Tensor = answer.logits[0].float().cpu()
    return logits


@dataclass
class Text:
    """A text that is computed piece by piece, and where its state lies."""

    rid: str
    tokens: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int64]
    window_slots: npt.NDArray[np.int64]
    state: int
    computed: int = 0


class Table:
    """A runner over pools of nothing but NaN, so that reading what was not written shows.

    ``deal`` gives slots to a text, in no order; ``row`` makes the row of its next tokens.
    """

    def __init__(self, model: LoadedModel, **options: Any) -> None:
        config = cache_config(
            model, tokens=TOKENS, window_tokens=TOKENS, states=STATES, host_ratio=None
        )
        self.model = model
        self.cache = UnifiedRadixCache(config)
        self.runner = ModelRunner(model, self.cache, **options)
        for part in self.parts():
            part.fill_(float("nan"))
        draw = np.random.default_rng(7)
        self._full, self._window = draw.permutation(TOKENS), draw.permutation(TOKENS)
        self._texts = 0

    def parts(self) -> list[torch.Tensor]:
        """Return the tensors of all pools."""
        pools = self.cache.memory.values()
        return [part for pool in pools for layer in pool.parts() for part in layer]

    def deal(self, tokens: Sequence[int]) -> Text:
        """Return a text with slots of its own."""
        number, length = self._texts, len(tokens)
        self._texts += 1
        slots, self._full = self._full[:length], self._full[length:]
        window, self._window = self._window[:length], self._window[length:]
        return Text(f"text-{number}", np.array(tokens, dtype=np.int64), slots, window, number)

    def row(self, text: Text, count: int, **others: Any) -> Row:
        """Return the row of the next `count` tokens of a text, which then count as computed."""
        start, end = text.computed, text.computed + count
        fields: dict[str, Any] = {}
        if self.model.window is not None:
            # Some more than the window has: whole pages are kept.
            begin = max(start - self.model.window - 4, 0)
            fields |= {"window_slots": text.window_slots[begin:end], "window_start": begin}
        if "mamba" in self.model.kinds:
            fields["state"] = text.state
        text.computed = end
        fields |= {"tokens": text.tokens[start:end], "slots": text.slots[:end]}
        return Row(rid=text.rid, **(fields | others))

    def forward(self, *rows: Row) -> list[Outcome]:
        """Run a pass."""
        return self.runner.forward(rows)

    def difference(self, text: Text, outcome: Outcome) -> float:
        """Return how far `outcome` is from what the model says of the whole text, at most."""
        assert outcome.logits is not None
        said = plain_logits(self.model, tuple(text.tokens.tolist()))[text.computed - 1]
        return float((outcome.logits - said).abs().max())


def random_tokens(seed: int, count: int) -> list[int]:
    """Return `count` tokens that any model has."""
    return [int(one) for one in np.random.default_rng(seed).integers(0, 250, count)]


__all__ = ("STATES", "TOKENS", "Table", "Text", "loaded", "plain_logits", "random_tokens")
