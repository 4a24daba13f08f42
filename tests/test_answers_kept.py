"""The table of answers, which makes handlers idempotent, does not grow with what was given up."""

from __future__ import annotations

from radixtide import MatchPrefixParams, RadixKey
from support.caches import assert_nothing_remembered, settled, system_of
from support.interceptors import Late
from support.tier_config import SETS
from support.tiered import tiers


async def test_answers_to_an_operation_that_was_set_aside_are_forgotten() -> None:
    async with tiers("queued", SETS[-1], page_size=4) as t:
        await t.put(t.key(8))
        await t.settle()
        for _ in range(3):
            # One component is silent; what the others have answered by then nobody asks for again.
            late = Late("ValidateTiers", "swa")
            t.cache.add_interceptor(late)
            found = await t.cache.match_prefix(MatchPrefixParams(key=RadixKey(t.span(8))))
            assert len(found.device_indices) == len(t.span(8))
            assert late.hits == 1
            t.cache.remove_interceptor(late)
            await settled(t.cache)
        assert system_of(t.cache).quiet
        assert_nothing_remembered(t.cache)
