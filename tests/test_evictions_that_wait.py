"""An eviction that waits remembers what it freed; that of a caller who left is forgotten."""

from __future__ import annotations

import pytest

from radixtide import CallTimeout, EvictParams
from radixtide.configs.schema import LimitsConfig
from support.caches import state_of
from support.tiered import tiers


async def test_evictions_that_nobody_waits_for_any_more_do_not_pile_up() -> None:
    limits = LimitsConfig(mailbox_capacity=3)
    async with tiers(
        "direct", ("full",), page_size=4, policy="write_back", pages=16, limits=limits
    ) as t:
        await t.put(t.key(8))
        t.engine.hold("backup")
        for _ in range(8):
            with pytest.raises(CallTimeout):
                await t.cache.evict(EvictParams(num_tokens=16), timeout=0.02)
        assert 0 < len(state_of(t.cache).evicted_before) <= 3
        t.engine.release()
        await t.settle()
        await t.cache.evict(EvictParams(num_tokens=8))
        assert t.picture() == [(0, 8, "H")]
