"""What came of many seeds together."""

from __future__ import annotations

from collections import Counter

import xxhash

from radixtide.cli.simulate_tasks import Ran


class Totals:
    """Sums over seeds; the order in which these end makes no difference.

    ``seeds_with[kind]`` and ``survived[kind]``: seeds in which that fault happened, and those of
    them without a violation. ``drawn[components, tiers]``: seeds run with them. ``failed``: seeds,
    ascending.
    """

    def __init__(self) -> None:
        self.seeds = 0
        self.steps = 0
        self.messages = 0
        self.faults_injected = 0
        self.answers_compared = 0
        self.violations = 0
        self.virtual_s = 0.0
        self.faults_by_kind: Counter[str] = Counter()
        self.seeds_with: Counter[str] = Counter()
        self.survived: Counter[str] = Counter()
        self.drawn: Counter[tuple[str, str]] = Counter()
        self.failed_of: Counter[tuple[str, str]] = Counter()
        self._failed: list[int] = []
        self._digest = 0

    def add(self, ran: Ran) -> None:
        """Count what came of one more seed."""
        self.seeds += 1
        self.steps += ran.steps
        self.messages += ran.messages
        self.faults_injected += ran.faults_injected
        self.answers_compared += ran.answers_compared
        self.violations += ran.found
        self.virtual_s += ran.virtual_s
        self.faults_by_kind.update(ran.faults_by_kind)
        kinds = [kind for kind, count in ran.faults_by_kind.items() if count]
        self.seeds_with.update(kinds)
        if ran.found:
            self._failed.append(ran.seed)
        else:
            self.survived.update(kinds)
        if ran.setup is not None:
            drawn = ", ".join(ran.setup.components), ran.setup.tiers
            self.drawn[drawn] += 1
            self.failed_of[drawn] += bool(ran.found)
        # Exclusive or: seeds end in any order.
        self._digest ^= xxhash.xxh3_64_intdigest(f"{ran.seed} {ran.digest}".encode())

    @property
    def failed(self) -> list[int]:
        """The seeds with a violation, ascending."""
        return sorted(self._failed)

    @property
    def digest(self) -> str:
        """One digest of all that happened in all seeds."""
        return f"{self._digest:016x}"


__all__ = ("Totals",)
