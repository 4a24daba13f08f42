"""Requests whose scheduler allocates for nobody and writes their row itself.

The cache knows of their slots only what the row says when a call names the request: what is
committed is given then, and the pages behind stay the scheduler's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from radixtide.components.api import AllocateParams
from radixtide.simulation.scheduler_base import Live
from radixtide.simulation.scheduler_tiers import BetweenTiers


class WithRows(BetweenTiers):
    """What is done for requests that are served by their row."""

    def whole(self, slots: Any) -> Any:
        """Return all slots of the pages in which `slots` lie."""
        pages = np.unique(self.slots_of(slots) // self.page)
        return (pages[:, None] * self.page + np.arange(self.page)).ravel()

    async def extend_row(self, live: Live, wanted: int, patience: int) -> int:
        """Have slots for `wanted` tokens more; return for how many there are some."""
        missing = wanted - len(live.spare)
        if missing > 0:
            given = await self.take(AllocateParams(missing), patience)
            if given is None:
                return 0
            # They are for tokens, not for nobody: in the order of their positions.
            live.spare.extend(self.slots_of(given.indices).tolist())
        taken = live.spare[:wanted]
        del live.spare[:wanted]
        begin = live.covered
        row = live.req.req_pool_idx
        assert row is not None
        self.cache.req_to_token_pool.array[row, begin : begin + wanted] = taken
        live.own.extend(taken)
        return wanted

    def row_rest(self, live: Live, given: int) -> Any:
        """Return the pages that stay the scheduler's when the first `given` own slots go."""
        mine = self.slots_of([*live.own, *live.spare])
        gone = self.whole(live.own[:given])
        return mine[~np.isin(mine, gone)]

    def keep_rest(self, live: Live, given: int) -> None:
        """Hold for nobody what was a request's, but for its first `given` own slots."""
        rest = self.row_rest(live, given)
        if len(rest):
            rest = self.whole(rest)
            self.oracle.gone(rest, "full", self.rank)
            self.check(self.oracle.granted(rest, "full", self.name, self.rank))
            self.keep_slots(rest)
        live.own.clear()
        live.spare.clear()

    def doubt_rest(self, live: Live) -> None:
        """Note that nobody knows which slots of a request are held."""
        rest = self.whole([*live.own, *live.spare])
        if len(rest):
            self.oracle.gone(rest, "full", self.rank)
            self.in_doubt(rest)
        live.own.clear()
        live.spare.clear()


__all__ = ("WithRows",)
