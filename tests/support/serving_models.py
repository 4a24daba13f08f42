"""The models that serving is compared on, each loaded and measured once a run of the tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from radixtide.configs.schema import CacheConfig, LimitsConfig
from radixtide.serving.geometry import cache_config
from radixtide.serving.models import LoadedModel, load_model
from support.serving_reference import Reference, Spread

RANDOM: Final = ("random:llama", "random:gemma3", "random:qwen3_next", "random:lfm2")
"""Full attention, with sliding windows, with linear attention, with short convolutions."""
REAL: Final = "smollm2"
SOME: Final = (
    "random:gemma3",
    "random:lfm2",
    pytest.param("random:llama", marks=pytest.mark.nightly),
    pytest.param("random:qwen3_next", marks=pytest.mark.nightly),
)
"""Parameters of tests that cost more: two kinds each time, all of them every night."""

PATIENT: Final = LimitsConfig(call_timeout_s=60.0)
"""Long enough that no call of a healthy cache meets its deadline on a slow machine."""


@dataclass(frozen=True)
class Served:
    """A model, what it says without a cache, and how much shapes alone change that."""

    model: LoadedModel
    reference: Reference
    spread: Spread

    def config(self, tokens: int = 4096, page_size: int = 16, **options: Any) -> CacheConfig:
        """Return a cache's configuration for it; `options` as those of ``cache_config``."""
        config = cache_config(self.model, tokens=tokens, page_size=page_size, **options)
        return msgspec.structs.replace(config, limits=PATIENT)


@cache
def served(spec: str) -> Served:
    """Load a model and measure it."""
    model = load_model(spec)
    reference = Reference(model.model)
    if spec == REAL:
        # Each of its passes takes a tenth of a second and more.
        return Served(model, reference, reference.spread(prompt(0, 40), (7, 16)))
    return Served(model, reference, reference.spread(prompt(0, 170)))


def prompt(seed: int, length: int) -> list[int]:
    """Return `length` tokens; those of two seeds have nothing in common but by chance."""
    return [int(one) for one in np.random.default_rng(seed).integers(0, 256, length)]


__all__ = ("PATIENT", "RANDOM", "REAL", "SOME", "Served", "prompt", "served")
