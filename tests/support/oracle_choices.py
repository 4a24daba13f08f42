"""What a random walk over hybrid caches chooses from: numbers, keys, loose slots, requests."""

from __future__ import annotations

import random

from support.driver import NAMESPACES
from support.oracle import SWA, Namespace, Pair, Tokens
from support.oracle_driver import Live
from support.oracle_requests import OracleRequests
from support.oracle_setup import HybridSetup
from support.walk import LETTERS, spell


class Choices:
    """One cache, and choices that depend on the seed and on what the oracle has."""

    def __init__(self, setup: HybridSetup, seed: int, longest: int) -> None:
        self.setup = setup
        self.seed = seed
        self.longest = longest
        self.rng = random.Random(seed)
        self.steps = OracleRequests(setup)
        self.recent: list[tuple[Namespace, Tokens]] = []

    def below(self, bound: int) -> int:
        """Return a number in [0, bound)."""
        return self.rng.randrange(bound)

    def has(self, component: str) -> bool:
        """Return whether the cache has a component."""
        return component in self.setup.components

    def new_key(self, tail: bool = True) -> tuple[Namespace, Tokens]:
        """Return a key: fresh, or an old one shortened, extended or moved to another namespace."""
        page = self.setup.page
        namespace = NAMESPACES[max(self.below(len(NAMESPACES) + 9) - 9, 0)]
        letters = [self.below(LETTERS) for _ in range(1 + self.below(self.longest))]
        rest = [1 + self.below(2) for _ in range(self.below(page))]
        tokens = spell(letters, rest if self.below(2) else [], page)
        if self.recent and self.below(8):
            old_namespace, old = self.recent[self.below(len(self.recent))]
            kept = self.below(len(old)) + 1
            namespace = old_namespace if self.below(16) else namespace
            way = self.below(6)
            if way <= 2:
                tokens = old
            elif way == 3:
                tokens = old[: max(kept - kept % page, 1)]
            elif way == 4:
                tokens = (*old[: kept - kept % page], *tokens)
            else:
                tokens = (*old[: len(old) - len(old) % page], *tokens)
            tokens = tokens[: page * (self.longest + 2)]
        if not tail:
            # One token more than whole pages where keys are pairs.
            extra = int(self.setup.bigram)
            tokens = tokens[: max(len(tokens) - extra, page) // page * page]
            tokens = (*tokens, *(1 for _ in range(extra)))
        if self.setup.bigram and len(tokens) < 2:
            tokens = (*tokens, 1, 1)
        self.remember(namespace, tokens)
        return namespace, tokens

    def remember(self, namespace: Namespace, tokens: Tokens) -> None:
        """Let a key be chosen again."""
        self.recent = [*self.recent[-7:], (namespace, tokens)]

    def request(self) -> Live | None:
        """Return a running request, or None."""
        live = self.steps.live
        return live[self.below(len(live))] if live else None

    def loose_pairs(self, count: int, without: int = 0) -> list[Pair] | None:
        """Return `count` loose pages, the first `without` preferably without SWA, or None."""
        steps, page = self.steps, self.setup.page
        if (short := count - len(steps.loose)) > 0:
            swa = None
            if self.has(SWA):
                swa = max(count - without, 0) * page if self.below(3) else None
            if not steps.allocate(short * page, swa) and self.has(SWA):
                steps.allocate(short * page, self.below(2) * page)
        if len(steps.loose) < count:
            return None
        pairs = list(steps.loose)
        self.rng.shuffle(pairs)
        bare = [pair for pair in pairs if pair.swa is None][:without]
        rest = [pair for pair in pairs if pair not in bare]
        rest.sort(key=lambda pair: pair.swa is None)
        return [*bare, *rest][:count]

    def loose_state(self, namespace: Namespace, tokens: Tokens) -> int | None:
        """Return a loose state that is the one after `tokens`, or None."""
        steps = self.steps
        if not steps.loose_states and not steps.allocate(0, states=1 + self.below(2)):
            return None
        state = steps.loose_states[self.below(len(steps.loose_states))]
        steps.contents.write(state, (namespace, tokens))
        return state
