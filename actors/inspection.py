"""Looks at a cache from outside, past the mailboxes, at moments when nothing is being edited.

For simulation and for tests: they run on the cache's own loop and look between two of its turns. A
call of the cache (`audit`, `pretty_print`) waits in line and is answered by messages; these do not,
so that looking changes nothing in what the actors do.
"""

from __future__ import annotations

from typing import Any

from radixtide.actors.actor import Conversation
from radixtide.actors.calls import AuditAll, Print
from radixtide.actors.conversing import ConversingCell
from radixtide.actors.life import CacheLife, Killed
from radixtide.actors.op_admin import audit, pretty_print
from radixtide.actors.state import State
from radixtide.components.api import AuditReport
from radixtide.configs.errors import CacheClosed


def at_rest(cache: CacheLife) -> bool:
    """Return whether no edit is under way and nothing waits to be undone or repaired.

    Calls may wait all the same. Cost O(actors). Raises CacheClosed.
    """
    coordinator, state = _open(cache)
    return (
        not coordinator.busy and not state.repair_waits and all(cell.quiet for cell in state.cells)
    )


def audit_now(cache: CacheLife) -> AuditReport | None:
    """Return what ``cache.audit()`` would, or None while an edit is under way. O(N + pools)."""
    if not at_rest(cache):
        return None
    _, state = _open(cache)
    report: AuditReport = _straight(audit(state, AuditAll()))
    return report


def tree_now(cache: CacheLife, max_nodes: int = 200) -> str | None:
    """Return what ``cache.pretty_print()`` would, or None while an edit is under way. O(N)."""
    if not at_rest(cache):
        return None
    _, state = _open(cache)
    text: str = _straight(pretty_print(state, Print(max_nodes)))
    return text


def crashes(cache: CacheLife) -> dict[str, BaseException]:
    """Return, by actor, the last error that crashed it, but for those that were planned.

    A crash is lived with: it is repaired, and the call that met it is made again, or fails with a
    typed error. So that an actor crashes by itself may show here only.
    """
    system = cache._system  # a look from outside is what this is for
    cells = () if system is None else system._cells  # as above
    return {
        cell.name: cell.crashed_with
        for cell in cells
        if cell.crashed_with is not None and not isinstance(cell.crashed_with, Killed)
    }


def _open(cache: CacheLife) -> tuple[ConversingCell, State]:
    coordinator = cache._coordinator  # a look from outside is what this is for
    if coordinator is None or not coordinator.open:
        raise CacheClosed("the cache is not open")
    assert isinstance(coordinator, ConversingCell)
    return coordinator, cache._state  # as above


def _straight(asking: Conversation) -> Any:
    """Run a conversation whose questions change nothing, giving each to its handler at once."""
    answers: Any = None
    try:
        while True:
            asked = asking.send(answers)
            if isinstance(asked, tuple):
                cell, message = asked
                answers = cell.handlers[type(message)](message)
            else:
                answers = [cell.handlers[type(message)](message) for cell, message in asked]
    except StopIteration as end:
        return end.value
