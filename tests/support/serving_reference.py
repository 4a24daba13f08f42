"""What a model says without any cache of ours, and how near to it an answer must come.

A :class:`Reference` makes plain forward passes of a ``transformers`` model: all tokens at once, no
state kept. Floating point sums depend on the shapes of the tensors, so the same model says slightly
different things when it is asked in chunks or in a batch. :meth:`Reference.spread` measures by how
much, with the cache that comes with ``transformers``; what serving says may differ from the
reference by ``TIMES`` times that, and no more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from transformers import DynamicCache

TIMES: Final = 8
"""How many times the spread of shapes alone a difference may be.

The spread is the largest over a few hundred positions and four shapes; a run compares thousands, in
shapes that are mixed as they come.
"""

CHUNKS: Final = (1, 7, 16, 64)

Key = tuple[int, ...]


class Tap(DynamicCache):
    """The cache of ``transformers``, which notes K and V as they come in, for all positions."""

    def __init__(self, config: Any) -> None:
        super().__init__(config=config)
        self.taken: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kw: Any,
    ) -> Any:
        self.taken[layer_idx] = (key_states[0].transpose(0, 1), value_states[0].transpose(0, 1))
        return super().update(key_states, value_states, layer_idx, *args, **kw)


@dataclass
class Kept:
    """State after some tokens: per layer K and V, (T, heads, dim) each, or conv and ssm."""

    attention: dict[int, tuple[torch.Tensor, torch.Tensor]]
    conv: dict[int, torch.Tensor]
    ssm: dict[int, torch.Tensor]


@dataclass
class Spread:
    """The largest difference that shapes alone make: of logits, and of the state that is kept."""

    logits: float
    state: float

    @property
    def logits_max(self) -> float:
        """How far logits may be from the reference."""
        return TIMES * self.logits

    @property
    def state_max(self) -> float:
        """How far numbers in a pool may be from the reference's."""
        return TIMES * self.state


class Reference:
    """Plain forward passes of one model; each is made once.

    ``bound``: set by :meth:`measure`. ``forwards``: passes made.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.forwards = 0
        self._logits: dict[Key, torch.Tensor] = {}
        self._kept: dict[Key, Kept] = {}

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        """Return the logits of every position, float32, shape (T, vocabulary)."""
        key = tuple(int(token) for token in tokens)
        for known, found in self._logits.items():
            # What comes later changes nothing of what was said before it.
            if known[: len(key)] == key:
                return found[: len(key)]
        self.forwards += 1
        out = self.model(input_ids=torch.tensor([key]), use_cache=False)
        self._logits[key] = out.logits[0].float()
        return self._logits[key]

    @torch.no_grad()
    def kept(self, tokens: Sequence[int]) -> Kept:
        """Return the state after `tokens`, of one pass over all of them."""
        key = tuple(int(token) for token in tokens)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._pieces(key, [len(key)])[1]
        return found

    # -- shapes alone ---------------------------------------------------------------------------

    def spread(self, tokens: Sequence[int], chunks: Sequence[int] = CHUNKS) -> Spread:
        """Measure how far chunks and batches alone take the model from its plain passes."""
        key = tuple(int(token) for token in tokens)
        plain, kept = self.logits(key), self.kept(key)
        logits = state = 0.0
        for size in chunks:
            said, left = self._pieces(key, self._cuts(len(key), size))
            logits = max(logits, largest(said, plain))
            state = max(state, apart(left, kept))
        for row, length in self._batch(key):
            logits = max(logits, largest(row, self.logits(key[:length])[-1]))
        return Spread(logits, state)

    @staticmethod
    def _cuts(length: int, size: int) -> list[int]:
        """Return where pieces end: of one size, and those of one token only at the end."""
        if size == 1:
            return list(range(max(length - 24, 1), length + 1))
        return [*range(size, length, size), length]

    def _pieces(self, key: Key, ends: list[int]) -> tuple[torch.Tensor, Kept]:
        cache = Tap(self.model.config)
        said, start = [], 0
        attention: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        with torch.no_grad():
            for end in ends:
                part = torch.tensor([key[start:end]])
                said.append(self.model(input_ids=part, cache=cache, use_cache=True).logits[0])
                for layer, pair in cache.taken.items():
                    attention.setdefault(layer, []).append(pair)
                start = end
        states: list[tuple[int, Any]] = [
            one for one in enumerate(cache.layers) if hasattr(one[1], "conv_states")
        ]
        return torch.cat(said).float(), Kept(
            {
                layer: (torch.cat([k for k, _ in parts]), torch.cat([v for _, v in parts]))
                for layer, parts in attention.items()
            },
            {
                at: one.conv_states[0][0].clone()
                for at, one in states
                if one.conv_states[0] is not None
            },
            {
                at: one.recurrent_states[0][0].clone()
                for at, one in states
                if one.recurrent_states[0] is not None
            },
        )

    @torch.no_grad()
    def _batch(self, key: Key) -> list[tuple[torch.Tensor, int]]:
        """Return the last logits of several lengths of one prompt, computed side by side."""
        lengths = [len(key), max(len(key) // 2, 1), max(len(key) - 5, 1), max(len(key) // 3, 1)]
        width = max(lengths)
        ids = torch.tensor([[0] * (width - one) + list(key[:one]) for one in lengths])
        mask = torch.tensor([[0] * (width - one) + [1] * one for one in lengths])
        places = (mask.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self.model.config)
        self.model(
            input_ids=ids[:, :-1],
            attention_mask=mask[:, :-1],
            position_ids=places[:, :-1],
            cache=cache,
            use_cache=True,
        )
        out = self.model(
            input_ids=ids[:, -1:],
            attention_mask=mask,
            position_ids=places[:, -1:],
            cache=cache,
            use_cache=True,
        )
        return [(row.float(), one) for row, one in zip(out.logits[:, -1], lengths, strict=True)]


def largest(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference; infinite where a number is none."""
    worst = (one - other).abs().max().item()
    return float("inf") if math.isnan(worst) else worst


def apart(one: Kept, other: Kept) -> float:
    """Return the largest difference between two states of the same length."""
    worst = 0.0
    for layer, pair in one.attention.items():
        for mine, theirs in zip(pair, other.attention[layer], strict=True):
            worst = max(worst, largest(mine, theirs))
    for ours, others in ((one.conv, other.conv), (one.ssm, other.ssm)):
        for layer, tensor in ours.items():
            worst = max(worst, largest(tensor, others[layer]))
    return worst


@dataclass
class Verdict:
    """What a comparison found.

    ``compared``: rows of logits. ``worst``: the largest difference. ``undecided``: tokens of which
    the reference itself has two so near to each other that either may come. ``wrong``: what must
    not be, in words.
    """

    compared: int = 0
    worst: float = 0.0
    undecided: int = 0
    wrong: list[str] = field(default_factory=list)


__all__ = ("TIMES", "Kept", "Reference", "Spread", "Verdict", "apart", "largest")
