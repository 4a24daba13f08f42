"""`audit()` names what the coordinator has wrong of the tiers; a repair follows what there is."""

from __future__ import annotations

import re

import pytest

from radixtide import UnifiedRadixCache
from support.broken_tiers import TIER_DAMAGES, WORLD, TierDamage, populate_tiers
from support.caches import Delivery, state_of
from support.interceptors import CrashBefore
from support.tier_config import SETS, tier_config
from support.tiered import Tiers

EVERY = pytest.mark.parametrize("damage", TIER_DAMAGES, ids=lambda damage: damage.name)
DERIVED = pytest.mark.parametrize(
    "damage", [one for one in TIER_DAMAGES if one.derived], ids=lambda damage: damage.name
)


@EVERY
@pytest.mark.parametrize("components", [SETS[0], SETS[-1]], ids="+".join)
async def test_the_audit_names_what_was_broken(
    delivery: Delivery, components: tuple[str, ...], damage: TierDamage
) -> None:
    config = tier_config(components, delivery=delivery, **WORLD)
    async with UnifiedRadixCache(config) as cache:
        world = await populate_tiers(Tiers(cache))
        assert (await cache.audit()).violations == ()
        damage.do(world)
        report = await cache.audit()
        named = [one for one in report.violations if one.clause == damage.clause]
        assert any(re.search(damage.says, one.message) for one in named), report.violations


@DERIVED
async def test_a_repair_makes_it_good(delivery: Delivery, damage: TierDamage) -> None:
    async with UnifiedRadixCache(tier_config(delivery=delivery, **WORLD)) as cache:
        t = Tiers(cache)
        world = await populate_tiers(t)
        damage.do(world)
        assert not (await cache.audit()).ok
        crash = CrashBefore("Describe", "full")
        cache.add_interceptor(crash)
        await cache.pretty_print()
        cache.remove_interceptor(crash)
        assert (await cache.audit()).violations == ()
        await t.drain_and_check()


@pytest.mark.parametrize("actor", ["full", "swa", "mamba"])
async def test_a_repair_leaves_sound_tiers_as_they_are(delivery: Delivery, actor: str) -> None:
    async with UnifiedRadixCache(tier_config(delivery=delivery, **WORLD)) as cache:
        t = Tiers(cache)
        await populate_tiers(t)
        before = await t.sizes(), t.picture(), await cache.pretty_print()
        crash = CrashBefore("Describe", actor)
        cache.add_interceptor(crash)
        await cache.pretty_print()
        cache.remove_interceptor(crash)
        assert crash.hits == 1
        assert (await t.sizes(), t.picture(), await cache.pretty_print()) == before
        await t.drain_and_check()
        assert state_of(cache).counters.repairs == 1
