"""The audit of the tiers: what the coordinator notes of them, against what the carrier has."""

from __future__ import annotations

from collections.abc import Iterator

from radixtide.actors.jobs import BIT_OF
from radixtide.actors.state import State
from radixtide.actors.tier_state import TierState
from radixtide.components.api import Violation
from radixtide.components.outcomes import Census
from radixtide.tree.node import HASH_BYTES, IN_STORAGE, ON_DEVICE, ON_HOST


def audit_tiers(state: State, tiers: TierState, carrier: Census) -> Iterator[Violation]:
    """Yield where a node's tiers are not what the carrier has, or not closed upward. O(N)."""
    for node in state.tree:
        here = node.id in carrier.nodes
        there = node.id in carrier.host_nodes
        if bool(node.tiers & ON_DEVICE) != here or bool(node.tiers & ON_HOST) != there:
            yield Violation("tiers", f"{node} is noted as on tiers {node.tiers}, which is not so")
        if not here and not there:
            yield Violation("tiers", f"{node} has data on no tier")
        parent = node.parent
        if parent is not None and parent.parent is not None:
            for bit, name in ((ON_DEVICE, "device"), (ON_HOST, "host")):
                if node.tiers & bit and not parent.tiers & bit:
                    yield Violation("tiers", f"{node} is on the {name}, its parent is not")
        if node.tiers & IN_STORAGE and len(node.hashes) != (
            node.length // state.page_size * HASH_BYTES
        ):
            yield Violation("tiers", f"{node} is in storage, with hashes of another length")
    yield from _audit_jobs(state, tiers)


def _audit_jobs(state: State, tiers: TierState) -> Iterator[Violation]:
    """Yield where jobs and nodes do not agree."""
    expected: dict[int, int] = {}
    units: dict[str, int] = dict.fromkeys(BIT_OF, 0)
    for job in tiers.jobs:
        units[job.kind] += job.units
        for node in job.nodes:
            expected[node.id] = expected.get(node.id, 0) | BIT_OF[job.kind]
        for node in (*job.nodes, *job.pinned):
            if state.tree.nodes.get(node.id) is not node:
                yield Violation("transfers", f"{job.kind} {job.number} uses {node}, which is gone")
    mask = 0
    for bit in BIT_OF.values():
        mask |= bit
    for node in state.tree:
        if node.job & mask != expected.get(node.id, 0):
            yield Violation("transfers", f"{node} is noted as moved by {node.job}, which is not so")
    if units != tiers.jobs.units:
        yield Violation("transfers", f"units on their way: {tiers.jobs.units}, really {units}")
