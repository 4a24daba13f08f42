"""What an engine does for a running request beside computing: its window and its states.

Slots of the sliding window go back as soon as no window needs them (``release_window``), also those
that the request's lock protects, once the request has a window of its own behind it
(``dec_swa_lock_only``). States are written at multiples of the grid (``Request.note_state``), and
prompts are computed up to where the match asked for a branch point before they go on, so that what
branches off there the next time finds its window and its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from radixtide.cli.replay_bytes import Marks
from radixtide.cli.replay_fit import Shape
from radixtide.cli.replay_metrics import CallTimes
from radixtide.cli.replay_tiers import Tiers
from radixtide.components.api import MatchResult
from radixtide.components.request import Request

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache


def branch_point(shape: Shape, match: MatchResult) -> int | None:
    """Return the length at which a prompt should be cached on its way, or None.

    With states it is theirs: a window alone is of no use where no state is.
    """
    return match.mamba_branching_seqlen if shape.states else match.swa_branching_seqlen


def states_to_take(shape: Shape, req: Request) -> int:
    """Return how many states `req`, which has matched, must still allocate."""
    if not shape.states:
        return 0
    has = (req.mamba_pool_idx is not None) + len(req.mamba_ping_pong or ())
    return shape.states - has


class Engine:
    """The duties towards running requests, for one cache. Without windows and states: none."""

    def __init__(self, cache: UnifiedRadixCache, calls: CallTimes, tiers: Tiers) -> None:
        self.shape = tiers.shape
        self._cache = cache
        self._tiers = tiers
        self._calls = calls

    async def computed(self, req: Request, start: int, end: int, marks: Marks | None) -> None:
        """Tokens ``[start, end)`` of `req` were computed: note states, give slots back."""
        shape = self.shape
        if shape.is_plain:
            return
        tracked = end // shape.grid * shape.grid
        if shape.tracks and tracked > start:
            if req.mamba_ping_pong is not None:
                slot = req.mamba_ping_pong[req.mamba_next_track]
                self._tiers.write_state(slot, marks, tracked)
            req.note_state(tracked)
        elif shape.states and not shape.tracks:
            self._tiers.write_state(req.mamba_pool_idx, marks, end)
        if not shape.window:
            return
        length = end
        if shape.tracks:
            # What is cached will end at the newest state, so the window before that one stays.
            length = max(req.mamba_last_track_seqlen or 0, req.cache_protected_len)
        if shape.frontier(length) > max(req.swa_evicted_seqlen, req.cache_protected_len):
            await self._calls.timed("release_window", self._cache.release_window(req, length))

    async def passed(self, req: Request) -> bool:
        """Give up what `req`'s lock protects for the window and the state, if that can go by now.

        Return whether it could. The state under the lock was copied at the match; its window is
        done with once the request has one of its own.
        """
        own = (req.kv_committed_len or 0) - req.cache_protected_len
        if self.shape.is_plain or req.lock is None or own < self.shape.window:
            return False
        await self._calls.timed("dec_swa_lock_only", self._cache.dec_swa_lock_only(req.lock))
        return True


__all__ = ("Engine", "branch_point", "states_to_take")
