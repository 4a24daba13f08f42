"""A seeded random walk over all calls of a cache, each step compared with the model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from support.driver import NAMESPACES, Live, Setup
from support.driver_calls import Steps
from support.model import Namespace, Tokens

LETTERS = 4


def spell(letters: list[int], tail: list[int], page: int) -> Tokens:
    """Return the tokens of a key that is given by page: few letters, so that keys collide.

    Letters 0 and 1 differ in the last token of a page only, 2 and 3 in its first.
    """
    words = (
        (1,) * page,
        (*(1,) * (page - 1), 2),
        (2,) * page,
        (3, *(2,) * (page - 1)),
    )
    return (*(token for letter in letters for token in words[letter]), *tail)


class Walk:
    """One cache on a random walk. The choices depend on the seed and the model only."""

    def __init__(self, setup: Setup, seed: int, longest: int = 6) -> None:
        self.setup = setup
        self.seed = seed
        self.longest = longest
        self.rng = np.random.default_rng(seed)
        self.steps = Steps(setup)
        self.recent: list[tuple[Namespace, Tokens]] = []
        self.pinned: list[tuple[Namespace, Tokens]] = []
        # Weights as counts: matching, inserting and requests dominate.
        self.moves: list[Callable[[], None]] = [
            move
            for weight, move in (
                (10, self.match),
                (3, self.match_locked),
                (12, self.insert),
                (3, self.insert_below_prefix),
                (2, self.insert_wrongly),
                (4, self.allocate),
                (3, self.free),
                (1, self.free_wrongly),
                (3, self.evict),
                (3, self.lock),
                (7, self.unlock),
                (1, self.unlock_again),
                (1, self.hold),
                (1, self.burst),
                (2, self.pin),
                (1, self.unpin),
                (3, self.advance),
                (6, self.start),
                (14, self.serve),
                (5, self.finish),
                (2, self.abort),
                (1, self.misuse_request),
                (1, self.clean_up),
            )
            for _ in range(weight)
        ]

    def run(self, count: int) -> None:
        """Take `count` steps; a failure tells the seed and the step."""
        for at in range(count):
            move = self.moves[self.below(len(self.moves))]
            self._guarded(move, f"step {at}")

    def close(self) -> None:
        """Give everything back, and check that nothing is left."""
        self._guarded(self._give_back, "at the end")
        self.steps.close()

    def _guarded(self, move: Callable[[], None], when: str) -> None:
        try:
            move()
        except BaseException as error:
            calls = "\n".join(self.steps.transcript[-5:])
            error.add_note(
                f"{self.setup}, seed {self.seed}, {when} ({move.__name__}); last calls:\n{calls}"
            )
            self.steps.discard()
            raise

    def _give_back(self) -> None:
        steps = self.steps
        assert steps.run(steps.cache.pretty_print()).startswith("tree: ")
        for live in list(steps.live):
            steps.abort(live)
        while steps.receipts:
            steps.unlock(0)
        for namespace, tokens in list(steps.model.pins):
            steps.unpin(namespace, tokens)
        steps.free(list(steps.loose))
        steps.evict(steps.model.size)
        assert steps.model.sizes()["free"] == steps.model.size

    # -- choices ---------------------------------------------------------------------

    def below(self, bound: int) -> int:
        """Return a number in [0, bound)."""
        return int(self.rng.integers(bound))

    def new_key(self) -> tuple[Namespace, Tokens]:
        """Return a key: fresh, or an old one shortened, extended or moved to another namespace."""
        page = self.setup.page
        namespace = NAMESPACES[max(self.below(len(NAMESPACES) + 4) - 4, 0)]
        letters = [self.below(LETTERS) for _ in range(1 + self.below(self.longest))]
        tokens = spell(letters, [1 + self.below(2) for _ in range(self.below(page))], page)
        if self.recent and self.below(3):
            old_namespace, old = self.recent[self.below(len(self.recent))]
            kept = self.below(len(old)) + 1
            namespace = old_namespace if self.below(8) else namespace
            way = self.below(4)
            if way == 0:
                tokens = old
            elif way == 1:
                tokens = old[:kept]
            elif way == 2:
                tokens = (*old[: kept - kept % page], *tokens)
            else:
                tokens = (*old, *tokens)
            tokens = tokens[: page * (self.longest + 2)]
        self.recent = [*self.recent[-11:], (namespace, tokens)]
        return namespace, tokens

    def request(self) -> Live | None:
        """Return a running request, or None."""
        live = self.steps.live
        return live[self.below(len(live))] if live else None

    # -- moves -----------------------------------------------------------------------

    def match(self) -> None:
        """Match."""
        self.steps.match(*self.new_key())

    def match_locked(self) -> None:
        """Match and lock, unless many are locked."""
        if len(self.steps.receipts) < 6:
            self.steps.match(*self.new_key(), lock=True)

    def _loose(self, pages: int) -> bool:
        """Have `pages` loose pages; return whether there are."""
        steps = self.steps
        short = pages - len(steps.loose)
        if short > 0:
            steps.allocate(short * self.setup.page - self.below(self.setup.page))
        if self.below(2):
            self.rng.shuffle(steps.loose)
        return len(steps.loose) >= pages

    def insert(self) -> None:
        """Insert a key from the root."""
        namespace, tokens = self.new_key()
        pages = self.steps.model.units(tokens) // self.setup.page
        if self._loose(pages):
            self.steps.insert(namespace, tokens, 0, self.below(4) - 1, self.below(2))

    def insert_below_prefix(self) -> None:
        """Match, then insert what is missing, from some page of the match on."""
        namespace, tokens = self.new_key()
        model, page = self.steps.model, self.setup.page
        self.steps.match(namespace, tokens)
        if not self._loose(model.units(tokens) // page):
            return
        # Room may have been made by evicting what was matched.
        cached = len(model.path(namespace, tokens))
        self.steps.insert(namespace, tokens, self.below(cached + 1) * page, self.below(3))

    def insert_wrongly(self) -> None:
        """Insert with a previous length, or with slots, that can not be."""
        namespace, tokens = self.new_key()
        model, page = self.steps.model, self.setup.page
        pages = model.units(tokens) // page
        if not pages or not self._loose(pages):
            return
        way = self.below(3)
        if way == 0:
            self.steps.insert(namespace, tokens, (pages + 1) * page, 0)
        elif way == 1 and page > 1:
            self.steps.insert(namespace, tokens, 1, 0)
        else:
            cached = [slot for one in model.pages.values() for slot in one.slots[:1]]
            free = [number * page for number in sorted(model.free)]
            if cached + free:
                first = (cached + free)[self.below(len(cached + free))]
                self.steps.insert_strange(namespace, tokens, self.below(pages), first // page)

    def allocate(self) -> None:
        """Allocate for nobody; now and then more than there can be."""
        if not self.below(8):
            self.steps.allocate(self.below(2 * self.steps.model.size))
        elif len(self.steps.loose) < self.setup.pages // 3:
            self.steps.allocate(self.below(3 * self.setup.page))

    def free(self) -> None:
        """Free some loose pages in any order."""
        loose = self.steps.loose
        count = self.below(len(loose) + 1)
        chosen = self.rng.permutation(len(loose))[:count]
        self.steps.free([loose[at] for at in chosen])

    def free_wrongly(self) -> None:
        """Free what is free, cached or a request's, after something that is loose."""
        model = self.steps.model
        strange = sorted(set(range(self.setup.pages)) - model.loose)
        if strange:
            loose = self.steps.loose[: self.below(2)]
            self.steps.free_wrongly([*loose, strange[self.below(len(strange))]])

    def evict(self) -> None:
        """Evict a little, or much."""
        most = self.steps.model.size if not self.below(6) else 3 * self.setup.page
        self.steps.evict(self.below(most))

    def lock(self) -> None:
        """Lock one of the last handles, stale or not."""
        handles = self.steps.handles
        if handles and len(self.steps.receipts) < 6:
            self.steps.lock(len(handles) - 1 - self.below(min(len(handles), 30)))

    def unlock(self) -> None:
        """Release any receipt."""
        if self.steps.receipts:
            self.steps.unlock(self.below(len(self.steps.receipts)))

    def unlock_again(self) -> None:
        """Release a receipt twice."""
        if self.steps.released:
            self.steps.unlock_again(self.below(len(self.steps.released)))

    def hold(self) -> None:
        """Hold a match while everything else goes."""
        if not self.below(4):
            self.steps.hold_and_evict(*self.new_key())

    def burst(self) -> None:
        """Match and evict from several tasks at once."""
        keys = [self.new_key() for _ in range(1 + self.below(6))]
        self.steps.burst(keys, self.below(2 * self.setup.page))

    def pin(self) -> None:
        """Pin a key, or one that is pinned already."""
        again = bool(self.pinned) and not self.below(3)
        pinned = self.pinned[self.below(len(self.pinned))] if again else self.new_key()
        self.steps.pin(*pinned, ttl=float(self.below(8)))
        self.pinned = [*self.pinned[-7:], pinned]

    def unpin(self) -> None:
        """Let go of what may be pinned."""
        if self.pinned:
            self.steps.unpin(*self.pinned[self.below(len(self.pinned))])

    def advance(self) -> None:
        """Let time pass."""
        self.steps.advance(float(self.below(4)))

    def start(self) -> None:
        """Begin a request."""
        if len(self.steps.live) < 4:
            kind = self.below(3)
            self.steps.start(
                *self.new_key(),
                priority=self.below(3),
                row=kind == 1,
                by_row=kind == 2,
                lock=bool(self.below(6)),
            )

    def serve(self) -> None:
        """Let a request allocate, compute, or cache a chunk."""
        live = self.request()
        if live is None:
            return
        steps, page = self.steps, self.setup.page
        missing = len(live.tokens) - live.slots
        way = self.below(5)
        if way <= 1:
            if live.by_row:
                self._loose(-(-missing // page))
                steps.write_row(live)
            elif missing > 0:
                steps.allocate(1 + self.below(missing + (page if way else 0)), live)
        elif way == 2 and len(live.tokens) < 2 * page * self.longest:
            live.req.output_ids.extend(1 + self.below(2) for _ in range(1 + self.below(page)))
        else:
            steps.unfinished(live, self._committed(live), is_insert=bool(self.below(6)))

    def _committed(self, live: Live) -> int | None:
        protected = live.held.protected
        most = min(len(live.tokens), live.slots)
        if most < protected or not (live.held.used or live.by_row or self.below(2)):
            return protected
        way = self.below(6)
        unwritten = live.req.req_pool_idx is not None and not live.held.used
        if way == 0 and (len(live.row) <= protected or len(live.row) >= len(live.tokens)):
            # Not where a row that is written by the scheduler ends too early.
            return None
        if way == 1 and not unwritten:
            # One too many, or one too few: refused.
            return most + 1 if self.below(2) else protected - 1
        return protected + self.below(most - protected + 1)

    def finish(self) -> None:
        """Finish a request."""
        live = self.request()
        if live is not None:
            self.steps.finish(live, self._committed(live), is_insert=bool(self.below(5)))

    def abort(self) -> None:
        """Abort a request, now and then one that is done."""
        done = self.steps.done
        live = done[-1] if done and not self.below(4) else self.request()
        if live is not None:
            self.steps.abort(live)

    def misuse_request(self) -> None:
        """Match again while a lock is held, or finish what is done."""
        done = self.steps.done
        if done and self.below(2):
            self.steps.finish(done[-1], None)
        elif (live := self.request()) is not None:
            self.steps.rematch(live)

    def clean_up(self) -> None:
        """Reset, most often after everything was given back."""
        if self.below(3):
            return
        steps = self.steps
        if self.below(3):
            for live in list(steps.live):
                steps.abort(live)
            while steps.receipts:
                steps.unlock(0)
            steps.free(list(steps.loose))
        steps.reset()
