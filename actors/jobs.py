"""Jobs: what moves between the tiers, as the coordinator knows it.

A job has a number, which is also the owner of the slots that it fills. It belongs to nodes, never
to a request. When one of its nodes is split, the new prefix joins the job in front of it, so every
fragment is protected, ends where the whole would have ended, and is let go once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from radixtide.components.api import Slots
from radixtide.tree.node import BACKING, LOADING, STORING, Node

BACKUP: Final = "backup"
LOAD: Final = "load"
STORE = "store"
FETCH = "fetch"

BIT_OF = {BACKUP: BACKING, LOAD: LOADING, STORE: STORING, FETCH: 0}
"""What a job of each kind sets in ``Node.job`` of its nodes."""


class Job(msgspec.Struct, eq=False):
    """One transfer.

    ``nodes``: what is moved, parents first. ``pinned``: nodes whose host copies are protected for
    it. ``units``: how much of the carrier. ``lock``: node that it keeps on the device, and each
    component's record of that lock (a fetch: the carrier's only). ``report``: its end, once known;
    ``arrived``: that, where the other ranks have not agreed to it yet. ``attempts``: it failed, and
    a request stands on it.
    Of a load: ``gate``; ``depths``: by component, where each page ends that is loaded.
    Of a fetch: ``store``: from which; ``key``; ``begin``: where the fetched units begin;
    ``page``: units a page; ``pages``: how many are read; ``slots``: host slots by component;
    ``wants_end``: it is waited for no longer here; ``stop``: nobody wants more; ``dropped``: nobody
    wants it at all.
    """

    number: int
    kind: str
    nodes: list[Node]
    pinned: list[Node]
    units: int
    lock: tuple[Node, list[Any]] | None = None
    report: Any = None
    arrived: Any = None
    gate: Any = None
    store: Any = None
    key: Any = None
    begin: int = 0
    page: int = 1
    pages: int = 0
    wants_end: bool = False
    slots: dict[str, Slots] = {}
    stop: bool = False
    dropped: bool = False
    depths: dict[str, list[int]] = {}
    attempts: int = 0


class JobBoard:
    """All jobs that are not over, by number, in the order in which they began."""

    __slots__ = ("_by_node", "_counts", "jobs", "units")

    def __init__(self) -> None:
        self.jobs: dict[int, Job] = {}
        self._by_node: dict[int, list[Job]] = {}
        self.units = dict.fromkeys(BIT_OF, 0)
        self._counts = dict.fromkeys(BIT_OF, 0)

    def __len__(self) -> int:
        return len(self.jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self.jobs.values())

    def get(self, number: int) -> Job | None:
        """Return a job, or None when it is over."""
        return self.jobs.get(number)

    def of(self, node: Node) -> list[Job]:
        """Return the jobs that use `node`."""
        return self._by_node.get(node.id, [])

    def count(self, kind: str) -> int:
        """Return how many jobs of a kind there are."""
        return self._counts[kind]

    def add(self, job: Job) -> None:
        """Note a job that begins."""
        self.jobs[job.number] = job
        self.units[job.kind] += job.units
        self._counts[job.kind] += 1
        bit = BIT_OF[job.kind]
        for node in job.nodes:
            node.job |= bit
        for node in _distinct(job):
            self._by_node.setdefault(node.id, []).append(job)

    def remove(self, job: Job) -> None:
        """Forget a job that is over."""
        if self.jobs.pop(job.number, None) is None:
            return
        self.units[job.kind] -= job.units
        self._counts[job.kind] -= 1
        for node in _distinct(job):
            mine = self._by_node[node.id]
            mine.remove(job)
            if not mine:
                del self._by_node[node.id]
        bit = BIT_OF[job.kind]
        for node in job.nodes:
            if not any(other.kind == job.kind and node in other.nodes for other in self.of(node)):
                node.job &= ~bit

    def split(self, prefix: Node, suffix: Node) -> None:
        """Let `prefix`, cut from `suffix`, join the jobs of that one."""
        jobs = self._by_node.get(suffix.id)
        if jobs is None:
            return
        self._by_node[prefix.id] = list(jobs)
        for job in jobs:
            for nodes in (job.nodes, job.pinned):
                if suffix in nodes:
                    nodes.insert(nodes.index(suffix), prefix)

    def pins(self) -> dict[int, tuple[int, int]]:
        """Return how often the jobs protect each node, on device and host: for audits."""
        counts: dict[int, tuple[int, int]] = {}
        for job in self.jobs.values():
            if job.kind == BACKUP:
                for node in job.nodes:
                    device, host = counts.get(node.id, (0, 0))
                    counts[node.id] = device + 1, host
            for node in job.pinned:
                device, host = counts.get(node.id, (0, 0))
                counts[node.id] = device, host + 1
        return counts

    def locks(self, index: int) -> Iterator[Node]:
        """Yield the nodes that jobs keep locked on the device, in the component of that index."""
        for job in self.jobs.values():
            if job.lock is not None and index < len(job.lock[1]):
                yield job.lock[0]


def _distinct(job: Job) -> Iterable[Node]:
    """Return the nodes of `job`, each once."""
    return {node.id: node for node in (*job.nodes, *job.pinned)}.values()


Backlog = deque[Node]
"""Nodes that wait, oldest first."""
