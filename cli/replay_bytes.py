"""Bytes that tell what they belong to, for replays whose pools hold some.

Each token has a *mark*: 64 bits made of the token and of all tokens before it, so equal marks mean
equal content at an equal place, and nothing else has the same one. What is written to a slot is its
mark, mixed with the layer and the part, as often as fits. A page that comes back from wherever it
was is compared with what its tokens say: one that belongs to something else, or that was torn, ends
the replay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from radixtide.configs.errors import RadixtideError

Marks = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.int64]

_WORD: Final = 8

# The finaliser of SplitMix64: see radixtide.cli.replay_tokens.
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


class WrongBytes(RadixtideError):
    """A slot holds other bytes than were written for its token: a bug, or damaged memory."""


def _mixed(state: Marks) -> Marks:
    """Mix `state` in place, each number by itself, so that each bit in moves every bit out."""
    state ^= state >> np.uint64(30)
    state *= _MIX_1
    state ^= state >> np.uint64(27)
    state *= _MIX_2
    state ^= state >> np.uint64(31)
    return state


def marks_of(tokens: npt.NDArray[np.int64]) -> Marks:
    """Return the mark of each token: uint64, shape (N,). Cost O(N), vectorised."""
    state = tokens.astype(np.uint64)
    # The place goes in too: a sum alone would not tell the order of the tokens.
    state += np.arange(1, len(tokens) + 1, dtype=np.uint64) * _GAMMA
    return _mixed(np.cumsum(_mixed(state), dtype=np.uint64))


class PoolBytes:
    """The bytes of one pool on the CPU, as rows of its parts.

    Args:
        name: the component's, for messages.
        memory: the pool; anything with ``parts()``: per layer its tensors (slots, *row).
    """

    def __init__(self, name: str, memory: Any) -> None:
        self.name = name
        tensors = [part for layer in memory.parts() for part in layer]
        salts = _mixed(np.arange(1, len(tensors) + 1, dtype=np.uint64))
        self._parts = [
            (salt, part.view(part.shape[0], -1).view(torch.uint8).numpy())
            for salt, part in zip(salts, tensors, strict=True)
        ]

    @property
    def bytes_per_slot(self) -> int:
        """Bytes of one slot over all parts."""
        return sum(rows.shape[1] for _, rows in self._parts)

    def write(self, slots: Slots, marks: Marks) -> None:
        """Write to each of `slots` what its mark says. Cost O(bytes), vectorised."""
        if len(slots):
            for salt, rows in self._parts:
                rows[slots] = _rows(marks ^ salt, rows.shape[1])

    def check(self, slots: Slots, marks: Marks, what: str) -> None:
        """Compare `slots` with their marks. Cost O(bytes), vectorised.

        Raises:
            WrongBytes: names `what`, the first position that is wrong, and its slot.
        """
        for salt, rows in self._parts:
            wrong = (rows[slots] != _rows(marks ^ salt, rows.shape[1])).any(axis=1)
            if wrong.any():
                at = int(wrong.argmax())
                raise WrongBytes(
                    f"{what}: slot {slots[at]} of pool {self.name}, {at} of {len(slots)} that were "
                    f"handed out, holds other bytes than were written for its token "
                    f"({int(wrong.sum())} slots are wrong)"
                )


def _rows(words: Marks, size: int) -> npt.NDArray[np.uint8]:
    """Return `size` bytes for each of `words`: the word, then changed ones until it is enough."""
    count = -(-size // _WORD)
    grid = words[:, None] ^ (np.arange(count, dtype=np.uint64) * _GAMMA)[None, :]
    return grid.view(np.uint8)[:, :size]


def pool_bytes(memory: Mapping[str, Any]) -> dict[str, PoolBytes]:
    """Return the pools that hold bytes on the CPU, by component; `memory` as ``cache.memory``."""
    return {
        name: PoolBytes(name, pool)
        for name, pool in memory.items()
        if pool is not None and hasattr(pool, "parts") and pool.parts()[0][0].is_cpu
    }


__all__ = ("Marks", "PoolBytes", "WrongBytes", "marks_of", "pool_bytes")
