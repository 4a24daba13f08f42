"""What the scheduler asks of the model: rows of one forward pass, and what came of them.

A row is a piece of one request: a chunk of its prompt, or the one token that it decodes. It names
where state lies by slot index only, so that neither side knows how the other keeps its books.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from radixtide.actors.tier_handles import LoadBack

Tokens = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request's part of a forward pass. P: tokens before it; T: tokens to compute.

    ``rid``: the request's name, for messages only. ``tokens``: int64, shape (T,), T at least 1.
    ``slots``: int64, shape (P + T,): the Full slots of the whole context, in order of position; the
    last T are the request's own and are written.
    ``window_slots``: int64, shape (P + T - window_start,), where the model has sliding windows: the
    SWA slots of positions from ``window_start`` on; the last T are written. ``window_start`` is at
    most ``max(P - window + 1, 0)``.
    ``state``: slot of the recurrent state that is read and written, where the model has one; it is
    the state after P tokens; with P = 0 its content is stale and the state begins at zero.
    ``keep_state``: a slot that gets a copy of the state after P + T tokens, or None.
    ``logits``: whether those of the last token are wanted.
    ``load``: a load back that may still bring some of the first slots, layer by layer, or None.
    """

    rid: str
    tokens: Tokens
    slots: Slots
    window_slots: Slots | None = None
    window_start: int = 0
    state: int | None = None
    keep_state: int | None = None
    logits: bool = True
    load: LoadBack | None = None

    @property
    def start(self) -> int:
        """Tokens before this row: the position of its first."""
        return len(self.slots) - len(self.tokens)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a row. ``logits``: float32, shape (vocabulary,), or None where none were wanted.

    ``lost``: a load on which the row stood failed: nothing of the row counts, its state included.
    """

    logits: torch.Tensor | None = None
    lost: bool = False
