"""An oracle for a cache of a test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from radixtide.simulation.oracle import Oracle

if TYPE_CHECKING:
    from radixtide.actors.cache import UnifiedRadixCache
    from radixtide.simulation.setup import Setup


class _Shape(NamedTuple):
    """What an oracle asks of a setup."""

    components: tuple[str, ...]
    page_size: int
    bigram: bool
    storage: bool


def oracle_for(cache: UnifiedRadixCache) -> Oracle:
    """Return an oracle that is bound to an open cache whose pools hold float32 on the CPU.

    It compares the answers that it is given; see docs/faults.md for what to tell it.
    """
    config = cache.config
    shape = _Shape(config.components, config.page_size, config.bigram, config.storage is not None)
    oracle = Oracle(cast("Setup", shape))
    oracle.bind(cache)
    return oracle


__all__ = ("oracle_for",)
