"""Random moves of a walk that serve requests as an engine does."""

from __future__ import annotations

from support.oracle import MAMBA, SWA
from support.oracle_choices import Choices
from support.oracle_driver import Live

STATES_OF_A_RING = 2


class Serving(Choices):
    """Moves that serve requests."""

    def start(self) -> None:
        """Begin a request: most often with a lock, and with a copy of the state it goes on from."""
        if len(self.steps.live) < 4:
            way = self.below(6)
            cow = self.has(MAMBA) and way > 1
            kind = self.below(4)
            self.steps.start(
                *self.new_key(), row=kind < 2, by_row=not kind, lock=way > 0, cow=cow or not way
            )

    def compute(self) -> None:
        """Let a request allocate, and the model compute."""
        live = self.request()
        if live is not None:
            self.allocate_for(live)
            self.track(live)

    def allocate_for(self, live: Live) -> None:
        """Allocate all that a request lacks, or a part of it, or more."""
        page = self.setup.page
        states = 0
        if self.has(MAMBA) and self.below(6):
            states = int(live.working is None)
            states += STATES_OF_A_RING * (self.setup.extra_buffer and not live.tracked)
        missing = max(len(live.tokens) - live.covered, 0)
        if missing and not self.below(4):
            missing = 1 + self.below(missing + page // 2)
        if live.by_row:
            fresh = missing - (len(live.own) * page - live.used)
            pairs = self.loose_pairs(-(-fresh // page)) if fresh > 0 else []
            if pairs is not None and live.protected + live.used < len(live.tokens):
                self.steps.write_row(live, pairs)
            missing = 0
        swa = self.below(missing + 1) if self.has(SWA) and not self.below(6) else None
        if missing or states:
            self.steps.extend(live, missing, swa, states)

    def track(self, live: Live) -> None:
        """Let the model note its state at one or two lengths on the grid."""
        grid = self.setup.grid
        while len(live.tracked) == STATES_OF_A_RING and self.below(3):
            lowest = max(live.last or 0, live.protected) // grid + 1
            highest = self.most(live) // grid
            if lowest > highest:
                break
            self.steps.track(live, (lowest + self.below(highest - lowest + 1)) * grid)

    def decode(self) -> None:
        """Let a request have some more tokens, and compute them."""
        live = self.request()
        page = self.setup.page
        if live is not None and len(live.tokens) < page * (self.longest + 3):
            more = 1 + self.below(2 * page)
            live.req.output_ids.extend(1 + self.below(2) for _ in range(more))
            if self.below(3):
                self.allocate_for(live)
                self.track(live)

    def most(self, live: Live) -> int:
        """Return how many tokens of a request can be computed by now."""
        return min(len(live.tokens), live.covered)

    def committed(self, live: Live) -> int | None:
        """Return how much a request has computed, or None when it holds nothing to cache."""
        most = self.most(live)
        if not live.holds or most < live.protected:
            return None
        if not live.used or not self.below(2):
            return most
        least = max(live.protected, live.last or 0) if self.below(4) else live.protected
        return least + self.below(most - least + 1) if most >= least else most

    def cache_chunk(self) -> None:
        """Cache a chunk of a request."""
        live = self.request()
        if live is not None and (committed := self.committed(live)) is not None:
            self.steps.unfinished(live, committed, is_insert=bool(self.below(12)))

    def finish(self) -> None:
        """Finish a request; its tokens may come again."""
        live = self.request()
        if live is not None and (committed := self.committed(live)) is not None:
            self.remember(live.namespace, live.tokens[: max(committed, 2)])
            self.steps.finish(live, committed, is_insert=bool(self.below(8)))

    def abort(self) -> None:
        """Abort a request."""
        live = self.request()
        if live is not None:
            self.steps.abort(live)

    def release_window(self) -> None:
        """Give back what no window of a request needs any more."""
        live = self.request()
        if live is None:
            return
        if live.holds and self.below(2):
            self.allocate_for(live)
        if live.holds and self.most(live) >= live.protected:
            self.steps.release_window(live, self.most(live))
