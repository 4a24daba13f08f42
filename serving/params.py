"""What a client may ask of one answer."""

from __future__ import annotations

import math
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

import msgspec

from radixtide.configs.errors import InvalidInput

SEED_MAX = 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen, and when the answer ends. Checked when it is made.

    ``max_tokens``: longest answer; None: as long as model, cache and engine allow.
    ``temperature``: 0 takes the most likely token (of several, the lowest id). ``top_p``: only the
    most likely tokens that together have this probability; ``top_k``: only so many; 0 sets no
    limit. ``seed``: two requests with the same seed, prompt and parameters draw alike, whatever
    else is served beside them; None: a new one for each request.
    ``stop_token_ids``: tokens that end the answer, beside the model's own; they are no part of it.
    ``ignore_eos``: the model's own do not end it.
    ``logprobs``: None: no probabilities; N: that of each token, and those of the N most likely.

    Strings that end an answer are the business of whoever makes text of tokens, who then calls
    ``Generation.stop``.

    Raises:
        InvalidInput: a value is out of its range; names it.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _whole("max_tokens", self.max_tokens, 1)
        _real("temperature", self.temperature)
        _real("top_p", self.top_p)
        _whole("top_k", self.top_k, 0)
        _whole("seed", self.seed, 0)
        _whole("logprobs", self.logprobs, 0)
        if self.top_k is None:
            raise InvalidInput("top_k must be an integer of at least 0 (0 sets no limit), not None")
        if self.temperature < 0:
            raise InvalidInput(f"temperature must be at least 0, not {self.temperature:g}")
        if not 0 < self.top_p <= 1:
            raise InvalidInput(f"top_p must be above 0 and at most 1, not {self.top_p:g}")
        if self.ignore_eos.__class__ is not bool:
            raise InvalidInput(f"ignore_eos must be True or False, not {self.ignore_eos!r}")
        if not isinstance(self.stop_token_ids, Collection):
            raise InvalidInput(f"stop_token_ids must be token ids, not {self.stop_token_ids!r}")
        for token in self.stop_token_ids:
            if token is None:
                raise InvalidInput("stop_token_ids must be token ids, and has None")
            _whole("stop_token_ids", token, 0)

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn: the most likely token is taken."""
        return self.temperature == 0 or self.top_k == 1


def _whole(name: str, value: Any, least: int) -> None:
    if value is None:
        return
    if not is_whole(value) or not least <= value <= SEED_MAX:
        raise InvalidInput(f"{name} must be an integer of at least {least}, not {value!r}")


def _real(name: str, value: Any) -> None:
    try:
        fine = value.__class__ is not bool and isinstance(value, Real) and math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        fine = False
    if not fine:
        raise InvalidInput(f"{name} must be a finite number, not {value!r:.40}")


def is_whole(value: Any) -> bool:
    """Return whether a value that a client gave is an integer, and no truth value."""
    return value.__class__ is not bool and isinstance(value, Integral)


def is_text(value: Any) -> bool:
    """Return whether a value that a client gave is None or text that can be written down."""
    if value is None:
        return True
    # A lone half of a surrogate pair is in no encoding.
    return isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)
