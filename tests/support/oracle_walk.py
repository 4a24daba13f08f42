"""Seeded random walks of a hybrid cache beside the oracle.

Every step draws from a generator of its own, made of the seed and the step's number, so any subset
of the steps of a walk is a walk too: see :mod:`support.oracle_replay`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from support.oracle import FULL, MAMBA, SWA, Namespace, Tokens
from support.oracle_driver import Held, Live
from support.oracle_serving import Serving
from support.oracle_setup import HybridSetup


class OracleWalk(Serving):
    """One cache on a random walk."""

    def __init__(self, setup: HybridSetup, seed: int, longest: int = 6) -> None:
        super().__init__(setup, seed, longest)
        # Weights as counts: matching, inserting and requests dominate.
        weighted = [
            (10, self.match),
            (4, self.match_locked),
            (13, self.insert),
            (3, self.insert_below_prefix),
            (1, self.insert_wrongly),
            (2, self.allocate),
            (2, self.free),
            (1, self.free_wrongly),
            (6, self.evict),
            (4, self.lock),
            (6, self.unlock),
            (1, self.unlock_again),
            (1, self.pin),
            (1, self.unpin),
            (8, self.start),
            (12, self.compute),
            (6, self.decode),
            (10, self.cache_chunk),
            (8, self.finish),
            (1, self.abort),
            (1, self.clean_up),
        ]
        if self.has(SWA) or self.has(MAMBA):
            weighted += [(4, self.give_up_window)]
        if self.has(SWA):
            weighted += [(7, self.release_window), (2, self.free_swa)]
        self.moves = [move for weight, move in weighted for _ in range(weight)]

    def run(self, numbers: Iterable[int]) -> None:
        """Take the steps of these numbers."""
        for number in numbers:
            self.rng = random.Random(f"{self.seed} {number}")
            self._guarded(self.moves[self.below(len(self.moves))], f"step {number}")

    def close(self) -> None:
        """Give everything back, and check that nothing is left."""
        self._guarded(self._give_back, "the end")
        self.steps.close()

    def _guarded(self, move: Callable[[], None], when: str) -> None:
        try:
            move()
        except BaseException as error:
            calls = "\n".join(self.steps.transcript[-12:])
            error.add_note(f"{self.setup}, seed {self.seed}, {when} ({move.__name__}):\n{calls}")
            self.steps.discard()
            raise

    def _give_back(self) -> None:
        steps = self.steps
        for live in list(steps.live):
            steps.abort(live)
        while steps.receipts:
            steps.unlock(0)
        for namespace, tokens in list(steps.pins):
            steps.unpin(namespace, tokens)
        steps.free(list(steps.loose))
        if steps.loose_states:
            steps.free_states(list(steps.loose_states))
        steps.evict(*(10**6 for _ in range(3)))
        for name in self.setup.components:
            sizes = steps.sizes(name)
            assert sizes["free"] == sizes["size"], f"{name}: {sizes}"

    # -- moves -----------------------------------------------------------------------

    def match(self) -> None:
        """Match."""
        self.steps.match(*self.new_key())

    def match_locked(self) -> None:
        """Match and lock, unless many are locked."""
        if len(self.steps.receipts) < 5:
            self.steps.match(*self.new_key(), lock=True)

    def insert(self, prev: int = 0, key: tuple[Namespace, Tokens] | None = None) -> None:
        """Insert a key, with a state or without, some of its first pages without SWA."""
        steps, page = self.steps, self.setup.page
        stateful = self.has(MAMBA) and self.below(4) > 0
        namespace, tokens = key or self.new_key(tail=not stateful)
        end = steps.oracle.aligned(steps.oracle.units(tokens))
        stateful = stateful and end > 0 and end == steps.oracle.units(tokens)
        without = self.below(end // page + 1) if self.has(SWA) and not self.below(3) else 0
        skip = prev // page
        count = end // page - skip
        pairs = self.loose_pairs(count, max(without - skip, 0)) if count > 0 else []
        if pairs is None:
            return
        live = max((at + 1 for at, pair in enumerate(pairs, skip) if pair.swa is None), default=0)
        evicted = max(live if self.has(SWA) else 0, without) * page
        state = self.loose_state(namespace, tokens) if stateful else None
        # The slots named are exactly those to the key's aligned end, or some more.
        more = [pair for pair in steps.loose if pair not in pairs][: self.below(2)]
        if len(steps.oracle.path(namespace, tokens)) >= skip:
            steps.insert(namespace, tokens, [*pairs, *more], prev, evicted, state)

    def insert_below_prefix(self) -> None:
        """Insert what is missing, from some page of what is cached on."""
        namespace, tokens = self.new_key()
        cached = len(self.steps.oracle.path(namespace, tokens))
        self.insert(self.below(cached + 1) * self.setup.page, (namespace, tokens))

    def insert_wrongly(self) -> None:
        """Insert a state with a key that has a tail."""
        steps, page = self.steps, self.setup.page
        if not self.has(MAMBA) or page == 1:
            return
        namespace, tokens = self.new_key(tail=False)
        pairs = self.loose_pairs(len(tokens) // page)
        state = self.loose_state(namespace, tokens)
        if pairs is not None and state is not None:
            steps.insert_with_tail_and_state(namespace, (*tokens, 1), pairs, state)

    def allocate(self) -> None:
        """Allocate for nobody; now and then more than there can be."""
        steps, setup = self.steps, self.setup
        states = self.below(3) if self.has(MAMBA) else 0
        if not self.below(6):
            most = 2 * setup.page * setup.pages
            steps.allocate(self.below(most), None, states * self.below(setup.states + 2))
        elif len(steps.loose) < setup.pages // 3 and len(steps.loose_states) < 3:
            swa = self.below(4 * setup.page) if self.has(SWA) and self.below(2) else None
            steps.allocate(self.below(3 * setup.page), swa, states)

    def free(self) -> None:
        """Free some loose pages in any order, and some states."""
        loose = list(self.steps.loose)
        self.rng.shuffle(loose)
        self.steps.free(loose[: self.below(len(loose) + 1)])
        states = list(self.steps.loose_states)
        if states and self.below(2):
            self.steps.free_states(states[: 1 + self.below(len(states))])

    def free_swa(self) -> None:
        """Free the SWA half of some loose pages, now and then one that has none."""
        loose = list(self.steps.loose)
        self.rng.shuffle(loose)
        pairs = loose[: self.below(4)]
        self.steps.free_swa(pairs, [self.below(self.setup.page) for _ in pairs])

    def free_wrongly(self) -> None:
        """Free what is free, cached or a request's."""
        steps = self.steps
        component = self.setup.components[self.below(len(self.setup.components))]
        if component == SWA:
            return
        rows = [pair for live in steps.live if live.by_row for pair in live.own]
        mine = [pair.full for pair in [*steps.loose, *rows]]
        if component == MAMBA:
            mine = steps.loose_states
        strange = sorted(set(range(self.setup.counts[component])) - set(mine))
        if strange:
            steps.free_wrongly(component, strange[self.below(len(strange))])

    def evict(self) -> None:
        """Evict a little from one pool, or from all, or much."""
        page = self.setup.page
        most = 10**6 if not self.below(12) else 1 + self.below(4 * page)
        targets = {FULL: most, SWA: most, MAMBA: 1 + self.below(3)}
        chosen = set(self.setup.components)
        if self.below(5):
            chosen = {self.setup.components[self.below(len(chosen))]}
        self.steps.evict(*(targets[one] if one in chosen else 0 for one in (FULL, SWA, MAMBA)))

    def lock(self) -> None:
        """Lock one of the last handles, stale or not."""
        handles = self.steps.handles
        if handles and len(self.steps.receipts) < 5:
            self.steps.lock(len(handles) - 1 - self.below(min(len(handles), 20)))

    def unlock(self) -> None:
        """Release any receipt."""
        if self.steps.receipts:
            self.steps.unlock(self.below(len(self.steps.receipts)))

    def unlock_again(self) -> None:
        """Release a receipt twice."""
        if self.steps.released:
            self.steps.unlock_again(self.below(len(self.steps.released)))

    def give_up_window(self) -> None:
        """Give up the window of a request's receipt, or of the driver's; perhaps once more."""
        held: list[Held | Live] = [*self.steps.receipts]
        held += [one for one in self.steps.live if one.lock is not None]
        if held:
            self.steps.give_up_window(held[self.below(len(held))])

    def pin(self) -> None:
        """Pin a key that is not pinned."""
        key = self.new_key()
        if key not in self.steps.pins:
            self.steps.pin(*key)

    def unpin(self) -> None:
        """Let a pin go."""
        pins = list(self.steps.pins)
        if pins:
            self.steps.unpin(*pins[self.below(len(pins))])

    def clean_up(self) -> None:
        """Reset after everything was given back."""
        steps = self.steps
        if self.below(3):
            return
        for live in list(steps.live):
            steps.abort(live)
        while steps.receipts:
            steps.unlock(0)
        steps.free(list(steps.loose))
        if steps.loose_states:
            steps.free_states(list(steps.loose_states))
        steps.reset()
