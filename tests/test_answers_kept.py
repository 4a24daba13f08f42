"""What makes lost messages harmless (tables of answers, sending again) does not pile up."""

from __future__ import annotations

import asyncio

from radixtide import MatchPrefixParams, RadixKey
from radixtide.configs.schema import LimitsConfig
from support.caches import assert_nothing_remembered, coordinator_of, settled, system_of
from support.interceptors import Late, Stall
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
        await assert_nothing_remembered(t.cache)


async def test_a_message_that_has_arrived_and_waits_is_not_sent_again() -> None:
    limits = LimitsConfig(resend_after_s=0.01, stall_after_s=10.0)
    async with tiers("queued", ("full",), page_size=4, limits=limits) as t:
        await t.put(t.key(2))
        await t.settle()
        stall = Stall("full")
        t.cache.add_interceptor(stall)
        calls = [
            asyncio.ensure_future(t.cache.match_prefix(MatchPrefixParams(key=RadixKey(t.span(2)))))
            for _ in range(5)
        ]
        # Long enough for each to be sent again many times.
        passed = asyncio.Event()
        system_of(t.cache).loop.call_later(0.2, passed.set)
        await passed.wait()
        # The one in hand was sent again, the others wait once.
        assert len(calls) - 1 <= coordinator_of(t.cache).waiting <= len(calls)
        t.cache.remove_interceptor(stall)
        stall.release()
        found = await asyncio.gather(*calls)
        assert {len(one.device_indices) for one in found} == {len(t.span(2))}
