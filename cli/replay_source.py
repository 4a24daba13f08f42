"""What a replay reads: requests in order of arrival, from a file or from a generator.

A source can be read more than once. A replay reads it twice: once to check and to measure it, so
that a bad line is told before anything is done, and once to drive the cache. It is read as a
stream; no source is held in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from radixtide.cli.replay_tokens import expand

Name = int | str
"""What links the requests of one conversation."""


class TraceRequest(msgspec.Struct, frozen=True):
    """One request of a trace.

    ``number``: its place in the trace, from 0. ``arrival_ns``: virtual time of its arrival.
    ``ids``, ``lengths``: the blocks of its prompt, lengths in tokens. ``stream``: id of the tokens
    that it generates (see :mod:`radixtide.cli.replay_tokens`), ``output_length`` of them.
    ``name``: what others wait for. ``after``: it does not start while a request of that name is
    under way, because its prompt holds what that one generates.
    """

    number: int
    arrival_ns: int
    ids: tuple[int, ...]
    lengths: tuple[int, ...]
    stream: int
    output_length: int
    name: Name | None = None
    after: Name | None = None

    @property
    def input_length(self) -> int:
        """Tokens of the prompt."""
        return sum(self.lengths)

    def prompt(self) -> npt.NDArray[np.int64]:
        """Return the prompt's tokens, int64, shape (input_length,). Cost O(tokens)."""
        return expand(self.ids, self.lengths)

    def whole_blocks(self, block: int) -> tuple[int, ...]:
        """Return the lengths with each rounded up to a multiple of `block`."""
        return tuple(-(-length // block) * block for length in self.lengths)

    def output(self) -> npt.NDArray[np.int64]:
        """Return the tokens that the request generates, int64, shape (output_length,)."""
        if not self.output_length:
            return np.empty(0, dtype=np.int64)
        return expand((self.stream,), (self.output_length,))


class Source(Protocol):
    """Requests that can be read again and again; ``block`` is the trace's block in tokens."""

    @property
    def name(self) -> str:
        """What the source is called in messages and reports."""

    @property
    def block(self) -> int:
        """Tokens of a block."""

    def __iter__(self) -> Iterator[TraceRequest]:
        """Read it from the start."""


class Summary(msgspec.Struct, frozen=True):
    """The size of a trace.

    ``distinct_tokens``: tokens of all different whole-block prefixes, that is what an endless cache
    keeps of the prompts (0 where it was not asked for). ``longest``: most tokens of one request,
    prompt and output.
    """

    requests: int = 0
    blocks: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    longest: int = 0
    span_ns: int = 0
    distinct_tokens: int = 0


def summarise(requests: Iterable[TraceRequest], block: int, distinct: bool) -> Summary:
    """Read `requests` to the end and return their totals.

    With `distinct` it keeps one 64-bit hash a different block prefix; without, nothing.
    Raises what reading raises (:class:`~radixtide.configs.errors.TraceError`).
    """
    count = blocks = inputs = outputs = longest = last = unique = 0
    seen: set[int] = set()
    for request in requests:
        size = request.input_length
        count += 1
        blocks += -(-size // block)
        inputs += size
        outputs += request.output_length
        longest = max(longest, size + request.output_length)
        last = request.arrival_ns
        if distinct:
            chain = 0
            for one, length in zip(request.ids, request.lengths, strict=True):
                # An id may name a block's content alone: a block is known by what precedes it too.
                chain = hash((chain, one, length))
                if chain not in seen:
                    seen.add(chain)
                    unique += -(-length // block) * block
    return Summary(count, blocks, inputs, outputs, longest, last, unique)


__all__ = ("Name", "Source", "Summary", "TraceRequest", "summarise")
