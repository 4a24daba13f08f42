"""What is left in the books of a cache in which nobody holds anything and nothing moves.

The audit compares books with each other; it does not know when one should be empty. A record that
is never taken out breaks nothing for a long time: only memory shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from radixtide.actors.conversing import ConversingCell
from radixtide.actors.life import CacheLife
from radixtide.actors.state import State
from radixtide.actors.tier_state import TierState


def leftovers(cache: CacheLife) -> Iterator[str]:
    """Yield, in words, what is noted of calls, requests, transfers and nodes that are over.

    Of an open cache that was drained, a few seconds after its last call. Cost O(N + actors).
    """
    state = cache._state  # a look from outside is what this is for
    yield from _filled("requests", state.ledger._entries)  # as above
    yield from _filled("rows of requests", state.ledger._rows)  # as above
    for part in cache._components:  # as above
        yield from _filled(f"what requests hold of {part.name}", part.holdings)
    if state.tiers is not None:
        yield from _of_tiers(state, state.tiers)
        yield from _of_transfers(cache)
    yield from _of_mail(cache)


def _of_tiers(state: State, tiers: TierState) -> Iterator[str]:
    for name in ("loads", "fetches", "backlog", "to_store", "after_parent", "waiting", "orphans"):
        yield from _filled(name, getattr(tiers, name))
    yield from _filled("jobs", tiers.jobs.jobs)
    yield from _filled("jobs by node", tiers.jobs._by_node)  # as above
    yield from _gone(state, "ready", tiers.ready)
    for name in ("condemned", "again", "again_stored"):
        yield from _gone(state, name, (node.id for node in getattr(tiers, name)))


def _of_transfers(cache: CacheLife) -> Iterator[str]:
    tiering = cache._tiering  # as above
    if tiering is not None:
        yield from _filled("tasks of the tiering actor", tiering._tasks)  # as above
        yield from _filled("its copies", tiering._running)  # as above
    if cache.storage_jobs is not None:
        yield from _filled("fetches of the storage", cache.storage_jobs._chains)  # as above


def _of_mail(cache: CacheLife) -> Iterator[str]:
    system = cache._system  # as above
    for cell in () if system is None else system._cells:  # as above
        yield from _filled(f"mail of {cell.name}", cell.mailbox)
        yield from _filled(f"answers of {cell.name}", cell.answered)
        for sender, stream in cell.streams.items():
            if not stream.whole:
                yield f"{cell.name} waits for what {sender} told it before"
        if isinstance(cell, ConversingCell):
            # A queue that the last has left may stay.
            aside = [mail for queue in cell.stalled.values() for mail in queue]
            yield from _filled(f"what {cell.name} has set aside", aside)
            # What was answered meanwhile (it was sent again, and refused) is passed over there.
            lines = [mail for queue in cell.lines.values() for mail in queue if not mail.settled]
            yield from _filled(f"lines before {cell.name}", lines)


def _filled(name: str, things: Collection[Any]) -> Iterator[str]:
    if things:
        yield f"{name}: {len(things)} left, as {next(iter(things))!r}"


def _gone(state: State, name: str, nodes: Iterable[int]) -> Iterator[str]:
    left = [number for number in nodes if number not in state.tree.nodes]
    if left:
        yield f"{name}: {len(left)} nodes that are gone, as {left[0]}"
