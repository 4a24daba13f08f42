"""The order in which SWA and states are evicted: the least recently used first, no locked ones.

A match or an insert uses, of SWA, the nodes within one window (in whole pages) of where it ends,
the nearest most recently of all; of the states, that at its end alone. New data is used when it
comes, shallow before deep. Both parts of a node that is split were used when the whole was.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from support.oracle import MAMBA, SWA, Name, Namespace, Oracle, Tokens
from support.oracle_view import Seen


@dataclass(frozen=True, slots=True)
class Use:
    """A match or an insert that ended at ``end``; ``fresh``: ranges in which SWA came new."""

    namespace: Namespace
    tokens: Tokens
    end: int
    fresh: tuple[tuple[int, int], ...] = ()


class Recency:
    """When the data of each page was used last, by a counter of uses."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.clock = 0
        self.used: dict[str, dict[Name, int]] = {SWA: {}, MAMBA: {}}
        self.waiting: list[Use] = []

    def use(self, *use: Use) -> None:
        """Note a use; it counts once the nodes that it made are known."""
        self.waiting += use

    def catch_up(self, nodes: list[Seen]) -> None:
        """Let the uses count that were noted since the last time; `nodes`: the tree after them."""
        for use in self.waiting:
            path = [node for node in nodes if self._on_the_way(node, use)]
            path.sort(key=lambda node: node.end)
            self._use_swa(node for node in path if _overlaps(node, use.fresh))
            low = use.end - self.oracle.reach
            self._use_swa(node for node in path if node.end > low)
            if path and path[-1].end == use.end and path[-1].state is not None:
                self.clock += 1
                self.used[MAMBA][path[-1].name] = self.clock
        self.waiting.clear()

    def _on_the_way(self, node: Seen, use: Use) -> bool:
        namespace, tokens = node.name
        short = node.end <= use.end and namespace == use.namespace
        return short and use.tokens[: len(tokens)] == tokens

    def _use_swa(self, nodes: Iterable[Seen]) -> None:
        for node in nodes:
            if node.swa is not None:
                self.clock += 1
                for page in self.oracle.path(*node.name):
                    if page.depth > node.start:
                        self.used[SWA][page.name] = self.clock

    def victims(
        self, component: str, target: int, nodes: list[Seen], spared: Iterable[Name] = ()
    ) -> set[Name]:
        """Return the last pages of the nodes whose data must go for `target` slots."""
        pages = self.oracle.pages
        candidates = [
            node
            for node in nodes
            if (node.swa if component == SWA else node.state) is not None
            and not pages[node.name].locks[component]
            and node.name not in spared
        ]
        candidates.sort(key=lambda node: (self.used[component][node.name], node.end))
        chosen: set[Name] = set()
        got = 0
        for node in candidates:
            if got >= target:
                break
            chosen.add(node.name)
            got += node.end - node.start if component == SWA else 1
        return chosen


def _overlaps(node: Seen, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(node.start < end and begin < node.end for begin, end in ranges)
