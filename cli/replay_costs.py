"""What a scheduler takes on at once, and what its steps cost in virtual time."""

from __future__ import annotations

from typing import Final

import msgspec

ITERATION_NS: Final = 5_000_000
"""Virtual cost of one pass of the model, whatever is in it (5 ms)."""
PREFILL_TOKEN_NS: Final = 10_000
"""Virtual cost of one prompt token (10 us: 100,000 tokens a second, a few large accelerators)."""
DECODE_SEQUENCE_NS: Final = 50_000
"""Virtual cost of one more sequence in a decode pass (50 us)."""


class Limits(msgspec.Struct, frozen=True):
    """How much the scheduler takes on.

    ``token_budget``: tokens computed in a step, decoding included. ``chunk``: most prompt tokens of
    one request in a step. ``max_running``: requests in the batch. ``decode_quantum``: tokens that
    each decoding request may gain in a step, as so many passes of the model. ``abort_ratio``: share
    of clients that leave before the end, chosen by ``seed``.
    """

    token_budget: int = 16_384
    chunk: int = 8_192
    max_running: int = 128
    decode_quantum: int = 16
    abort_ratio: float = 0.01
    seed: int = 0


def step_ns(prefill_tokens: int, sequences: int, passes: int) -> int:
    """Return what a step costs: `passes` over `sequences` decoding requests, and the prefill."""
    decode = passes * (ITERATION_NS + sequences * DECODE_SEQUENCE_NS)
    return max(decode, ITERATION_NS) + prefill_tokens * PREFILL_TOKEN_NS


__all__ = ("Limits", "step_ns")
