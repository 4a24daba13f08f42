"""What ranks make of reports that differ: all act on the least of them."""

from __future__ import annotations

from typing import Any

import pytest

from radixtide.actors.jobs import STORE, Job
from radixtide.actors.op_step import _adjusted, _value
from radixtide.actors.tier_messages import StoreDone

WHOLE = StoreDone(1, 3, b"")
PART = StoreDone(1, 1, b"")
NOTHING = StoreDone(1, 0, b"")
LOST = StoreDone(1, 0, b"", orphan=True)


def agreed(*reports: Any) -> list[Any]:
    """Return what each rank acts on that has seen its one of `reports`."""
    jobs = []
    for report in reports:
        job = Job(1, STORE, [], [], 48)
        job.arrived = report
        jobs.append(job)
    least = min(_value(job) for job in jobs)
    return [_adjusted(job, least) for job in jobs]


@pytest.mark.parametrize(
    ("seen", "acted_on"),
    [
        ((WHOLE, WHOLE), WHOLE),
        ((WHOLE, PART), PART),
        ((PART, NOTHING), NOTHING),
        ((WHOLE, LOST), LOST),
        ((LOST, NOTHING), LOST),
        ((LOST, LOST), LOST),
    ],
)
def test_a_write_ends_on_all_ranks_as_on_the_one_where_least_was_written(
    seen: tuple[Any, Any], acted_on: Any
) -> None:
    assert agreed(*seen) == [acted_on, acted_on]
    assert agreed(*reversed(seen)) == [acted_on, acted_on]
