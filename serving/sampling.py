"""From logits to a token.

What is drawn for the n-th token of an answer depends on the request's seed, on n and on the logits,
and on nothing else: not on how often the request was retracted in between, nor on what else is in
the batch, but for the last digits of the logits that the shape of a batch has a say in.
"""

from __future__ import annotations

import secrets
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from radixtide.serving.params import SamplingParams

NUCLEUS: Final = 1024
"""So many of the most likely tokens are looked at first for top_p; nearly always enough."""


class Token(NamedTuple):
    """One token of an answer.

    ``logprob``: natural logarithm of its probability by the model, before temperature, top_k and
    top_p; ``top``: the most likely tokens and theirs, most likely first. None and empty where
    ``SamplingParams.logprobs`` did not ask.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Sampler:
    """Chooses the tokens of one request. Callable from any thread; keeps no state."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self.seed = secrets.randbits(63) if params.seed is None else int(params.seed)

    def draw(self, logits: torch.Tensor, index: int) -> Token:
        """Choose token number `index` of the answer. Cost O(vocabulary).

        Args:
            logits: float, shape (vocabulary,), on any device.
            index: how many tokens the answer has already.
        """
        params = self._params
        row = logits.detach().to(device="cpu", dtype=torch.float32)
        if params.greedy:
            # Of equal ones the lowest id: argmax of torch promises none of them.
            chosen = int(np.argmax(row.numpy()))
        else:
            chosen = self._drawn(row, index)
        if params.logprobs is None:
            return Token(chosen)
        logprobs = torch.log_softmax(row.double(), dim=0)
        top: tuple[tuple[int, float], ...] = ()
        if params.logprobs:
            best = torch.topk(logprobs, min(params.logprobs, len(logprobs)))
            top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        return Token(chosen, float(logprobs[chosen]), top)

    def _drawn(self, row: torch.Tensor, index: int) -> int:
        params = self._params
        scaled = (row.double() - row.max()) / params.temperature
        weights = torch.exp(scaled)
        ids: npt.NDArray[np.int64] | None = None
        size = len(weights)
        if 0 < params.top_k < size:
            best = torch.topk(weights, params.top_k)
            weights, ids = best.values, best.indices.numpy()
        if params.top_p < 1:
            total = float(weights.sum())
            for most in (NUCLEUS, len(weights)):
                best = torch.topk(weights, min(most, len(weights)))
                summed = np.cumsum(best.values.numpy())
                if summed[-1] >= params.top_p * total or most >= len(weights):
                    break
            # Up to the first with which they have that much, itself included.
            count = int(np.searchsorted(summed, params.top_p * total)) + 1
            places = best.indices.numpy()[:count]
            ids = places if ids is None else ids[places]
            weights = best.values[:count]
        # The first of exponential clocks of these rates (the Gumbel-max trick). Each token has a
        # clock of its own: noise in the logits changes the winner only where two come in together,
        # while a point in their cumulative sum would mean another token by the noise of all before.
        clocks = np.random.default_rng((self.seed, index)).standard_exponential(size)
        with np.errstate(divide="ignore"):
            times = (clocks if ids is None else clocks[ids]) / weights.numpy()
        place = int(np.argmin(times))
        return place if ids is None else int(ids[place])


__all__ = ("Sampler", "Token")
