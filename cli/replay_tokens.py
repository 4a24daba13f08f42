"""Pseudo-tokens: a trace tells which blocks are equal, a cache wants tokens.

Every id stands for one endless stream of tokens; a block is the head of its id's stream. Equal ids
give equal tokens, and different ids differ in the first two tokens for certain, because those spell
the id; the rest is a hash of id and position, so that nothing else of two blocks agrees either.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

ID_LIMIT: Final = 2**61
"""Ids of a trace are below this; the ids from here to ``2**62`` name what requests generate."""

TOKEN_BITS: Final = 31
"""Tokens are below ``2**31``: real vocabularies fit 32-bit integers, and two tokens hold an id."""

# The finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
# generators", OOPSLA 2014): a bijection of 64 bits in which each input bit moves every output bit.
_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


def output_id(number: int) -> int:
    """Return the id of the tokens that request `number` generates: no trace block has it."""
    return ID_LIMIT + number


def expand(ids: npt.ArrayLike, lengths: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """Return the first ``lengths[i]`` tokens of each id's stream, one after the other.

    Args:
        ids: integers in ``[0, 2**62)``, shape (B,).
        lengths: tokens of each block, at least 1, shape (B,).

    Returns: int64 tokens in ``[0, 2**31)``, shape (sum of lengths,). Cost O(tokens), vectorised.
    """
    names = np.asarray(ids, dtype=np.uint64)
    sizes = np.asarray(lengths, dtype=np.int64)
    if names.size == 0:
        return np.empty(0, dtype=np.int64)
    starts = np.cumsum(sizes) - sizes
    total = int(starts[-1] + sizes[-1])
    # Position in the block, from 1; the multiplication spreads neighbouring ids far apart.
    state = np.arange(1, total + 1, dtype=np.uint64)
    state -= np.repeat(starts.astype(np.uint64), sizes)
    state *= _GAMMA
    state += np.repeat(names * _MIX_2, sizes)
    state ^= state >> np.uint64(30)
    state *= _MIX_1
    state ^= state >> np.uint64(27)
    state *= _MIX_2
    state >>= np.uint64(64 - TOKEN_BITS)
    tokens = state.view(np.int64)
    tokens[starts] = (names & np.uint64(2**TOKEN_BITS - 1)).astype(np.int64)
    long = sizes > 1
    tokens[starts[long] + 1] = (names[long] >> np.uint64(TOKEN_BITS)).astype(np.int64)
    return tokens


__all__ = ("ID_LIMIT", "TOKEN_BITS", "expand", "output_id")
