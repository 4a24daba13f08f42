"""One request's life in the scheduler.

A request is served in *attempts*. One begins with a match and ends when the request gives back what
it holds: because it is done, was retracted, or something failed. What it has said so far stays, and
is part of the prompt of the next attempt.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from radixtide.components.request import Request
from radixtide.serving.generation import Channel
from radixtide.serving.params import SamplingParams
from radixtide.serving.sampling import Sampler
from radixtide.serving.shape import Shape
from radixtide.tree.key import RadixKey

if TYPE_CHECKING:
    from radixtide.actors.tier_handles import LoadBack, Prefetch

Tokens = npt.NDArray[np.int64]
Slots = npt.NDArray[np.int64]


class Stage(enum.Enum):
    """Where a request is.

    ``NEW``: nobody has looked at it. ``FETCHING``: it waits for storage. ``LOADING``: it waits for
    the host (only where states are loaded, of which its match takes a copy). ``WAITING``: it can be
    admitted. ``RUNNING``: it holds memory. ``ENDED``: it holds nothing any more, for good.
    """

    NEW = "new"
    FETCHING = "fetching"
    LOADING = "loading"
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


class Sequence:
    """A request: its tokens, what it holds now, and its client's channel.

    ``tokens``: int64, prompt and answer, of which the first ``length`` count. ``stops``: ids that
    end the answer. ``limit``: longest length.

    Of the present attempt: ``req``: what the cache knows it by. ``computed``: tokens of which state
    was computed or found. ``slots``: int64, Full slots of the first ``covered`` positions.
    ``protected``: how many of these are the tree's, under the request's lock. ``windows``: window
    slots of positions from ``windows_from`` on, None when they have to be asked for anew.
    ``load``: a load back whose end was not seen. ``marks``: lengths at which a state is worth
    keeping. ``left``: the window before this length is not locked any more.

    ``cached``: tokens in the cache at the last look, which was at time ``looked`` of the board.
    ``suspect``: it was part of a batch that failed, and is tried alone. ``may_load``: no load has
    failed under it. ``not_before``: when it may be admitted again after a failure.
    """

    def __init__(
        self,
        shape: Shape,
        prompt: Tokens,
        params: SamplingParams,
        channel: Channel,
        *,
        arrival: int,
        limit: int,
        stops: frozenset[int],
        now: float,
        priority: int = 0,
        cache_salt: str | None = None,
        extra_key: str | None = None,
    ) -> None:
        self._shape = shape
        self.rid = channel.report.rid
        self.report = channel.report
        self.channel = channel
        self.params = params
        self.sampler = Sampler(params)
        self.arrival = arrival
        self.arrived_at = now
        self.priority = priority
        self.cache_salt = cache_salt
        self.extra_key = extra_key
        self.prompt_len = len(prompt)
        self.limit = limit
        self.stops = stops
        self.length = len(prompt)
        self.tokens: Tokens = np.empty(limit, dtype=np.int64)
        self.tokens[: self.length] = prompt
        self.stage = Stage.NEW
        self.attempt = 0
        self.retries = 0
        self.suspect = False
        self.may_load = True
        self.not_before = now
        # For the order of those who wait.
        self.cached = 0
        self.looked = -1
        self.overtaken = 0
        self.returns = False
        self._shared: WeakKeyDictionary[Sequence, tuple[int, int]] = WeakKeyDictionary()
        # Of what was begun while it waited.
        self.fetch: Prefetch | None = None
        self.fetch_began = 0.0
        self.fetched = 0
        self.load: LoadBack | None = None
        self.load_began = 0.0
        self.loaded = 0
        self.begin()

    def begin(self) -> None:
        """Begin a new attempt, which holds nothing yet.

        Its request has a name of its own: what the cache still does for the one before must not
        meet it.
        """
        self.attempt += 1
        self.req = Request(
            f"{self.rid}#{self.attempt}",
            self.tokens[: self.length].copy(),
            [],
            self.extra_key,
            self.cache_salt,
            self.priority,
        )
        self.computed = 0
        self.protected = 0
        self.covered = 0
        self.slots: Slots = np.empty(0, dtype=np.int64)
        self.windows: Slots | None = None
        self.windows_from = 0
        self.marks: set[int] = set()
        self.left = 0
        self.load = None
        self.loaded = 0
        self.starves_since: float | None = None

    # -- what the cache is asked ----------------------------------------------------------

    @property
    def key(self) -> RadixKey | None:
        """The key to match: all but the last token, which is always computed. None: too short."""
        return self.req.key(self.length - 1) if self.length > 1 else None

    @property
    def prefills(self) -> bool:
        """Whether more than its newest token is still to be computed."""
        return self.computed < self.length - 1 or self.length == self.prompt_len

    @property
    def missing_states(self) -> int:
        """Slots of states that it has not got yet."""
        shape, req = self._shape, self.req
        if not shape.states:
            return 0
        ring = 2 if shape.has_ring and req.mamba_ping_pong is None else 0
        return ring + (req.mamba_pool_idx is None)

    def missing_slots(self, end: int) -> int:
        """Return how many slots are missing for tokens up to `end`, in whole pages."""
        return max(self._shape.pages_up(end) - self.covered, 0)

    # -- what it got ------------------------------------------------------------------------

    def take_prefix(self, indices: Any) -> None:
        """Note the slots of a prefix that was found; `indices`: int64 tensor."""
        count = len(indices)
        self._reserve(count)
        self.slots[:count] = indices.numpy()
        self.computed = self.covered = self.protected = count
        self.windows = None

    def take_slots(self, indices: Any) -> None:
        """Note slots that follow; `indices`: int64 tensor."""
        count = len(indices)
        self._reserve(self.covered + count)
        self.slots[self.covered : self.covered + count] = indices.numpy()
        self.covered += count
        self.windows = None

    def see_cached(self) -> None:
        """Note which slots the tree has for what was cached just now: some may be others."""
        req = self.req
        count = req.cache_protected_len
        if req.prefix_indices is not None:
            self.slots[:count] = req.prefix_indices[:count].numpy()
        self.protected = count
        self.windows = None

    def _reserve(self, count: int) -> None:
        if count > len(self.slots):
            grown = np.empty(max(count, 2 * len(self.slots), 64), dtype=np.int64)
            grown[: self.covered] = self.slots[: self.covered]
            self.slots = grown

    def has_starved(self, now: float, most: float) -> bool:
        """Return whether it has found no slots for `most` seconds, this time included."""
        if self.starves_since is None:
            self.starves_since = now
        return now - self.starves_since > most

    def say(self, token: int) -> None:
        """Note a token of the answer."""
        self.tokens[self.length] = token
        self.length += 1
        self.req.output_ids.append(token)
        self.report.output_tokens += 1

    # -- for people ---------------------------------------------------------------------------

    def state(self) -> str:
        """Return a word for where it is."""
        if self.stage is Stage.ENDED:
            return "ended"
        if self.stage is not Stage.RUNNING:
            return "waiting"
        return "prefill" if self.prefills else "decode"

    def shares_with(self, other: Sequence) -> int:
        """Return how many leading tokens both have, in one namespace.

        Cost O(length), once for each other one and length: who waits asks at every look.
        """
        if (self.extra_key, self.cache_salt) != (other.extra_key, other.cache_salt):
            return 0
        most = min(self.length, other.length)
        compared, common = self._shared.get(other, (0, 0))
        if compared != most:
            differ = self.tokens[:most] != other.tokens[:most]
            first = int(np.argmax(differ)) if most else 0
            common = first if most and differ[first] else most
            self._shared[other] = (most, common)
        return common


def youngest(running: Seq[Sequence]) -> Sequence:
    """Return who gives its memory back first: of the lowest priority the one that came last."""
    return min(running, key=lambda one: (one.priority, -one.arrival))


__all__ = ("Sequence", "Stage", "youngest")
