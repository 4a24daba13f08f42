"""Which loads stand on which: in what order they may end, and which are lost already.

A load may build on another that is under way: it brings a window or a state for a node whose part
of the carrier the other brings, or the node below. Questions only; nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Iterator

from radixtide.actors.jobs import LOAD, Job
from radixtide.actors.tier_state import LoadRecord, TierState
from radixtide.tree.node import ON_DEVICE


def may_end(tiers: TierState, job: Job, lost: set[int]) -> bool:
    """Return whether `job` may end before the other loads on its path, and no request needs it.

    What is kept stands on what was there before. What fails gives its slots of the carrier back,
    and nothing may be bound to these then: so the loads that build on it end first, failing too.
    `lost`: see :func:`lost_loads`.
    """
    if job.attempts:
        gone_on = any(record.gone_on for record in users_of(tiers, job))
        return not gone_on and not any(builders(tiers, job))
    older = list(_older(tiers, job))
    if not all(other.number in lost for other in older):
        return False
    if stands(job) and job.report.ok:
        return not older
    return all(other.attempts for other in builders(tiers, job))


def lost_loads(tiers: TierState) -> set[int]:
    """Return the numbers of the loads of which it is known by now that they will not be kept."""
    lost: set[int] = set()
    for job in tiers.jobs:  # as they began
        if job.kind == LOAD and job.report is not None:
            # What it stands on may still come from an older load that is not lost.
            comes = stands(job) or any(one.number not in lost for one in _older(tiers, job))
            if job.attempts or not job.report.ok or not comes:
                lost.add(job.number)
    return lost


def _older(tiers: TierState, job: Job) -> Iterator[Job]:
    """Yield the loads under way that began before `job`, at its nodes or right above them."""
    for node in job.nodes:
        for at in (node, node.parent):
            for other in () if at is None else tiers.jobs.of(at):
                if other.kind == LOAD and other.number < job.number and not other.attempts:
                    yield other


def builders(tiers: TierState, job: Job) -> Iterator[Job]:
    """Yield the loads that began after `job`, and bind to slots of the carrier that it brings."""
    carried = _carried(job)
    for node in job.nodes:
        if node.end in carried:
            for other in tiers.jobs.of(node):
                if other.kind == LOAD and other.number > job.number:
                    yield other


def _carried(job: Job) -> set[int]:
    """Return the depths of the nodes of which `job` brings the carrier's part."""
    return set(next(iter(job.depths.values()), ()))


def stands(job: Job) -> bool:
    """Return whether the nodes of a load have what they need: parents, and the carrier's part."""
    inside, carried = set(job.nodes), _carried(job)
    for node in job.nodes:
        parent = node.parent
        assert parent is not None
        above = parent in inside or parent.parent is None or parent.tiers & ON_DEVICE
        if not above or not (node.tiers & ON_DEVICE or node.end in carried):
            return False
    return True


def users_of(tiers: TierState, job: Job) -> list[LoadRecord]:
    """Return the records of all who wait for `job`, or have what it brings."""
    return [record for record in tiers.loads.values() if job.number in record.jobs]
