"""Audits a cache while a test runs: what a later repair would heal is found all the same."""

from __future__ import annotations

import traceback

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.actors.conversing import ConversingCell
from radixtide.actors.envelope import Envelope, PassThrough
from radixtide.actors.inspection import audit_now, crashes


class Watch(PassThrough):
    """Audits past the mailboxes after each operation, as soon as nothing is being edited.

    ``found``: the first audit that found something, in words; it is not looked further then. Costs
    an audit, O(tree + pools), an operation.
    """

    def __init__(self, cache: UnifiedRadixCache) -> None:
        self._cache = cache
        self._waits = False
        self.found: list[str] = []

    def after_handle(self, envelope: Envelope) -> None:
        """Look soon."""
        if isinstance(envelope.receiver, ConversingCell) and not self._waits and not self.found:
            self._waits = True
            what = type(envelope.message).__name__
            envelope.receiver.system.loop.call_soon(self._look, envelope.receiver, what)

    def _look(self, coordinator: ConversingCell, what: str) -> None:
        self._waits = False
        report = audit_now(self._cache) if coordinator.open else None
        if report is not None:
            self.found = [f"after {what}: {one.clause}: {one.message}" for one in report.violations]


def own_crashes(cache: UnifiedRadixCache) -> list[str]:
    """Say which actors crashed though no plan said so, and where."""
    found = []
    for name, error in crashes(cache).items():
        at = traceback.extract_tb(error.__traceback__)
        place = f", in {at[-1].filename}:{at[-1].lineno}" if at else ""
        found.append(f"actor {name} crashed by itself: {error!r}{place}")
    return found
