"""Who is admitted next.

Who has more of its prompt in the cache costs less and is served first, and frees memory sooner; but
nobody is overtaken without end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Waiting(Protocol):
    """What the order looks at.

    ``priority``: higher ones first, always. ``arrival``: counts up. ``cached``: tokens of it that
    are cached. ``overtaken``: how often one that came later was admitted before it. ``returns``: it
    ran before, and gave its memory back.
    """

    priority: int
    arrival: int
    cached: int
    overtaken: int
    returns: bool


W = TypeVar("W", bound=Waiting)


def in_order(waiting: Iterable[W], overtakes_max: int) -> list[W]:
    """Return those who wait, the one to be admitted next first. Cost O(n log n).

    By priority. Of one priority first those who ran before, and those who were overtaken
    `overtakes_max` times, as they came; then the others, with the longest cached prefix first, and
    as they came where that is equal.
    """

    def key(one: W) -> tuple[int, bool, int, int]:
        waits = one.returns or one.overtaken >= overtakes_max
        return -one.priority, not waits, 0 if waits else -one.cached, one.arrival

    return sorted(waiting, key=key)


def note_overtaking(waiting: Iterable[W], admitted: W) -> None:
    """Count that `admitted` went before those of its priority who came earlier and still wait."""
    for one in waiting:
        if one.priority == admitted.priority and one.arrival < admitted.arrival:
            one.overtaken += 1


__all__ = ("Waiting", "in_order", "note_overtaking")
