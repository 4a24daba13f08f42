"""A request on its way through the scheduler, and the queue in which requests arrive."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import numpy as np

from radixtide.cli.replay_bytes import Marks, Slots
from radixtide.cli.replay_source import Name, TraceRequest
from radixtide.components.request import Request

_NONE: Slots = np.empty(0, dtype=np.int64)


class Job:
    """One request of the trace and how far it is.

    ``committed``: leading tokens whose KV is computed. ``generated``: output tokens so far; they
    outlive a retraction. ``target``: tokens to compute before the next one can be generated.
    ``provided``: leading tokens that have slots. ``row``, ``marks``: where bytes are kept, its
    slots of Full, and what its tokens leave in them. ``fetched``: units that storage gave.
    ``border``: length at which the prompt should be cached on its way. ``abort_at``: the client
    leaves when ``committed`` would pass this; None: it stays. ``req``: the cache's view while the
    job is admitted, else None. ``let_go``: its lock keeps no window and no state any more.
    """

    __slots__ = (
        "_outputs",
        "_tokens",
        "abort_at",
        "border",
        "committed",
        "counted",
        "fetched",
        "generated",
        "has_answered",
        "let_go",
        "marks",
        "provided",
        "req",
        "row",
        "source",
        "target",
    )

    def __init__(self, source: TraceRequest, abort_at: int | None = None) -> None:
        self.source = source
        self.abort_at = abort_at
        self.req: Request | None = None
        self.committed = 0
        self.provided = 0
        self.border: int | None = None
        self.let_go = False
        self.generated = 0
        self.target = source.input_length
        self.counted = False
        self.has_answered = False
        self.fetched = 0
        self.row = _NONE
        self.marks: Marks | None = None
        self._tokens = _NONE
        self._outputs: list[int] = []

    @property
    def left(self) -> int:
        """Output tokens still to generate."""
        return self.source.output_length - self.generated

    @property
    def to_prefill(self) -> int:
        """Tokens still to compute before the next can be generated."""
        return max(self.target - self.committed, 0)

    @property
    def total(self) -> int:
        """Tokens at the end: prompt and output."""
        return self.source.input_length + self.source.output_length

    def enter(self) -> Request:
        """Return a new request for the cache: the prompt and what was generated so far."""
        if not self._tokens.size:
            self._tokens = self.source.prompt()
            self._outputs = self.source.output().tolist()
        self.target = self.source.input_length + self.generated
        self.committed = self.provided = 0
        self.border = None
        self.let_go = False
        return Request(
            str(self.source.number),
            self._tokens,
            output_ids=self._outputs[: self.generated],
        )

    def keep_row(self, marks: Marks | None, slots: Slots) -> None:
        """Begin a row with the slots of what was found, where bytes are kept."""
        self.marks = marks
        if marks is not None:
            self.row = np.full(self.total, -1, dtype=np.int64)
            self.write_row(0, slots)

    def write_row(self, start: int, slots: Slots) -> None:
        """Note the slots of the tokens from `start` on; those past the end are room."""
        if self.marks is not None:
            end = min(start + len(slots), len(self.row))
            self.row[start:end] = slots[: end - start]

    def all_tokens(self) -> Slots:
        """Return prompt and all that will be generated, int64."""
        return np.concatenate((self._tokens, np.asarray(self._outputs, dtype=np.int64)))

    def next_chunk(self, limit: int) -> int:
        """Return how many tokens to compute next, at most `limit`: up to the border, if any."""
        tokens = min(self.to_prefill, limit)
        border = self.border
        if border is not None and self.committed < border < self.committed + tokens:
            return border - self.committed
        return tokens

    def grow(self, req: Request, tokens: int) -> None:
        """Note that `tokens` more were generated and their KV written."""
        req.output_ids.extend(self._outputs[self.generated : self.generated + tokens])
        self.generated += tokens
        self.committed += tokens
        self.target = self.committed

    def leave(self) -> None:
        """Forget the request and the tokens, after the cache was told."""
        self.req = None
        self.row = _NONE
        self.marks = None
        self._tokens = _NONE
        self._outputs = []


class Arrivals:
    """Requests of a trace as virtual time passes.

    One whose ``after`` names a request under way is held back until that one ends.
    """

    def __init__(self, requests: Iterable[TraceRequest]) -> None:
        self._requests = iter(requests)
        self._next = next(self._requests, None)
        self._live: set[Name] = set()
        self._held: dict[Name, list[TraceRequest]] = {}

    @property
    def next_ns(self) -> int | None:
        """When the next request arrives; None: there are no more."""
        return None if self._next is None else self._next.arrival_ns

    def due(self, now_ns: int) -> Iterator[TraceRequest]:
        """Yield the requests that have arrived by `now_ns` and may start."""
        while self._next is not None and self._next.arrival_ns <= now_ns:
            request, self._next = self._next, next(self._requests, None)
            if self._starts(request):
                yield request

    def ended(self, request: TraceRequest) -> list[TraceRequest]:
        """Note the end of `request`; return those that may start because of it."""
        if request.name is None:
            return []
        self._live.discard(request.name)
        return [held for held in self._held.pop(request.name, ()) if self._starts(held)]

    def _starts(self, request: TraceRequest) -> bool:
        if request.after is not None and request.after in self._live:
            self._held.setdefault(request.after, []).append(request)
            return False
        if request.name is not None:
            self._live.add(request.name)
        return True


def abort_point(request: TraceRequest, ratio: float, seed: int) -> int | None:
    """Return after how many tokens the client of `request` leaves, or None if it stays.

    Depends on the seed and the request's number alone, not on what happens in between.
    """
    dice = random.Random(f"{seed}/{request.number}")
    if dice.random() >= ratio:
        return None
    return int(dice.random() * (request.input_length + request.output_length))


__all__ = ("Arrivals", "Job", "abort_point")
