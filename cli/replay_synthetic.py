"""A seeded traffic generator: what people and agents send to a serving system.

Four kinds of conversation, and a mixture of them:

* ``chat``: a system prompt that many share, then turns; each prompt holds all turns before it.
* ``shared``: one question each behind long system prompts, some far more popular than others.
* ``tools``: an agent's tree: a tool schema, a task, then steps that append a call and its result
  and now and then branch into several that share the path so far.
* ``documents``: questions about long documents, a few of which everybody reads.

Conversations begin as a Poisson process and interleave. The same arguments give the same requests.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from radixtide.cli.replay_source import TraceRequest
from radixtide.cli.replay_tokens import output_id

BLOCK: Final = 16
"""Tokens of a block in figures about synthetic traces."""

SECOND: Final = 1_000_000_000


class Kind(enum.Enum):
    """What the requests are."""

    CHAT = "chat"
    SHARED = "shared"
    TOOLS = "tools"
    DOCUMENTS = "documents"
    MIXED = "mixed"


class _Turn(msgspec.Struct, frozen=True):
    """A request to come: blocks so far, when at the earliest, and how its conversation goes on.

    ``depth``: requests of the conversation before this one; ``name`` of the one before: ``after``.
    """

    at_ns: int
    kind: Kind
    ids: tuple[int, ...]
    lengths: tuple[int, ...]
    depth: int
    after: int | None = None


class Synthetic:
    """A generated trace as a source of requests.

    Args:
        kind: which traffic.
        requests: how many.
        seed: everything random comes from it.
        longest: prompts and outputs are cut so that no request is longer, in tokens (at least 64).
        rate: conversations that begin a second of virtual time.
    """

    block = BLOCK

    def __init__(
        self, kind: Kind, requests: int, seed: int, longest: int, rate: float = 1.0
    ) -> None:
        self.kind = kind
        self.requests = requests
        self.seed = seed
        self.longest = max(longest, 64)
        self.rate = rate

    @property
    def name(self) -> str:
        """The kind and the seed."""
        return f"synthetic {self.kind.value} (seed {self.seed})"

    def __iter__(self) -> Iterator[TraceRequest]:
        """Yield the requests in order of arrival."""
        return itertools.islice(_Traffic(self).requests(), self.requests)


class _Traffic:
    """One reading of a :class:`Synthetic`: its random numbers and the conversations under way."""

    def __init__(self, source: Synthetic) -> None:
        self._source = source
        self._random = random.Random(source.seed)
        self._next_id = 1
        self._due: list[tuple[int, int, _Turn]] = []
        self._order = itertools.count()
        self._shared: dict[tuple[Kind, int], tuple[int, int]] = {}
        self._goes_on: dict[Kind, Callable[[_Turn, int, int], None]] = {
            Kind.CHAT: self._chat_goes_on,
            Kind.TOOLS: self._tools_go_on,
            Kind.DOCUMENTS: self._document_goes_on,
        }

    def requests(self) -> Iterator[TraceRequest]:
        """Yield requests without end."""
        opening = 0
        for number in itertools.count():
            while not self._due or self._due[0][0] > opening:
                self._open(opening)
                opening += round(self._random.expovariate(self._source.rate) * SECOND)
            turn = heapq.heappop(self._due)[2]
            output = self._output_length(turn)
            goes_on = self._goes_on.get(turn.kind)
            if goes_on is not None:
                goes_on(turn, number, output)
            yield TraceRequest(
                number=number,
                arrival_ns=turn.at_ns,
                ids=turn.ids,
                lengths=turn.lengths,
                stream=output_id(number),
                output_length=output,
                name=number,
                after=turn.after,
            )

    # Conversations

    def _open(self, at_ns: int) -> None:
        """Begin one conversation at `at_ns`."""
        kind = self._source.kind
        if kind is Kind.MIXED:
            kind = self._random.choices(
                (Kind.CHAT, Kind.SHARED, Kind.TOOLS, Kind.DOCUMENTS), weights=(50, 20, 20, 10)
            )[0]
        if kind is Kind.CHAT:
            head, question = self._popular(kind, among=8, low=200, high=1_200), self._length(120)
        elif kind is Kind.SHARED:
            head, question = self._popular(kind, among=32, low=1_500, high=6_000), self._length(200)
        elif kind is Kind.TOOLS:
            head, question = self._popular(kind, among=4, low=2_000, high=5_000), self._length(400)
        else:
            head, question = self._popular(kind, among=256, low=6_000, high=48_000), 64
        room = self._source.longest // 2
        head = (head[0], min(head[1], room))
        self._push(
            _Turn(at_ns, kind, (head[0], self._fresh()), (head[1], min(question, room // 2)), 0)
        )

    def _chat_goes_on(self, turn: _Turn, number: int, output: int) -> None:
        """Two of three chats go on; people read and type for some tens of seconds."""
        if self._random.random() < 2 / 3:
            self._follow(turn, number, output, self._length(120), pause_s=25.0)

    def _document_goes_on(self, turn: _Turn, _number: int, _output: int) -> None:
        """Most readers ask again, and each question starts from the bare document."""
        if turn.depth < 6 and self._random.random() < 0.7:
            pause = round(self._random.expovariate(1 / 15.0) * SECOND)
            asked = (turn.ids[0], self._fresh())
            lengths = (turn.lengths[0], min(self._length(60), self._source.longest // 4))
            self._push(_Turn(turn.at_ns + pause, turn.kind, asked, lengths, turn.depth + 1))

    def _tools_go_on(self, turn: _Turn, number: int, output: int) -> None:
        """Append the call and its result; one step in six tries two or three results."""
        if turn.depth >= 12 or self._random.random() < 0.12:
            return
        branches = self._random.choice((2, 3)) if self._random.random() < 1 / 6 else 1
        for _ in range(branches):
            self._follow(turn, number, output, self._length(500), pause_s=2.0)

    def _follow(self, turn: _Turn, number: int, output: int, added: int, pause_s: float) -> None:
        """Add the turn after `turn`: all of it, what it generates, and `added` new tokens."""
        if sum(turn.lengths) + output + added > self._source.longest // 2:
            return
        pause = round(self._random.expovariate(1 / pause_s) * SECOND)
        ids, lengths = turn.ids, turn.lengths
        if output:
            ids, lengths = (*ids, output_id(number)), (*lengths, output)
        self._push(
            _Turn(
                turn.at_ns + pause,
                turn.kind,
                (*ids, self._fresh()),
                (*lengths, added),
                turn.depth + 1,
                after=number,
            )
        )

    def _push(self, turn: _Turn) -> None:
        heapq.heappush(self._due, (turn.at_ns, next(self._order), turn))

    # Lengths and ids

    def _fresh(self) -> int:
        """Return an id that nothing else has."""
        self._next_id += 1
        return self._next_id - 1

    def _popular(self, kind: Kind, among: int, low: int, high: int) -> tuple[int, int]:
        """Return one of `among` texts, id and length; text i is picked in proportion to 1/i."""
        ranks = range(1, among + 1)
        rank = self._random.choices(ranks, weights=[1 / rank for rank in ranks])[0]
        text = self._shared.get((kind, rank))
        if text is None:
            text = self._shared[kind, rank] = (self._fresh(), self._random.randint(low, high))
        return text

    def _length(self, median: int) -> int:
        """Return a length, log-normal as measured lengths of messages are: many short, few long."""
        return max(1, min(round(self._random.lognormvariate(0.0, 0.8) * median), 16 * median))

    def _output_length(self, turn: _Turn) -> int:
        """Return how much the model answers."""
        median = 60 if turn.kind is Kind.TOOLS else 180
        return min(self._length(median), self._source.longest // 4)


__all__ = ("BLOCK", "Kind", "Synthetic")
