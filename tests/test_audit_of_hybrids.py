"""`audit()` names every clause that an auxiliary component breaks, and a rebuild repairs it."""

from __future__ import annotations

import re

import pytest

from radixtide import UnifiedRadixCache
from radixtide.tiers.holdings import Holding
from support.broken_hybrid import HYBRID_DAMAGES
from support.caches import MakeCache
from support.hybrid_damage import HybridDamage
from support.interceptors import CrashBefore
from support.world_hybrid import HYBRID_WORLD, populate_hybrid


def _name(damage: HybridDamage) -> str:
    return f"{damage.component}-{damage.name}"


EVERY = pytest.mark.parametrize("damage", HYBRID_DAMAGES, ids=_name)
DERIVED = pytest.mark.parametrize(
    "damage", [one for one in HYBRID_DAMAGES if one.derived], ids=_name
)
EACH = pytest.mark.parametrize("component", ["full", "swa", "mamba"])


async def crash(cache: UnifiedRadixCache, component: str) -> None:
    """Let a component's actor crash once, in a call that changes nothing."""
    planted = CrashBefore("Describe", component)
    cache.add_interceptor(planted)
    await cache.pretty_print()
    cache.remove_interceptor(planted)
    assert planted.hits == 1


@EVERY
async def test_the_audit_names_what_was_broken(make_cache: MakeCache, damage: HybridDamage) -> None:
    async with make_cache(audit=False, **HYBRID_WORLD) as cache:
        world = await populate_hybrid(cache)
        assert (await cache.audit()).violations == ()
        damage.do(world)
        report = await cache.audit()
        named = [one for one in report.violations if one.clause == damage.clause]
        assert any(re.search(damage.says, one.message) for one in named), report.violations


@pytest.mark.parametrize("component", ["full", "swa"])
async def test_who_gave_back_all_may_have_nothing_in_one_book_and_not_stand_in_the_other(
    make_cache: MakeCache, component: str
) -> None:
    # As it is when a reservation is undone of one whose slots the tree has taken.
    async with make_cache(audit=False, **HYBRID_WORLD) as cache:
        world = await populate_hybrid(cache)
        entry = world.state.ledger.find(world.waiting)
        assert entry is not None
        books = (world.full if component == "full" else world.swa).holdings
        assert entry.holder not in {*world.full.holdings, *world.swa.holdings}
        books[entry.holder] = Holding(entry.holder)
        assert (await cache.audit()).violations == ()


@DERIVED
async def test_a_rebuild_after_a_crash_makes_it_good(
    make_cache: MakeCache, damage: HybridDamage
) -> None:
    async with make_cache(**HYBRID_WORLD) as cache:
        world = await populate_hybrid(cache)
        damage.do(world)
        assert not (await cache.audit()).ok
        await crash(cache, damage.component)
        assert (await cache.audit()).violations == ()
        assert (await cache.stats()).counters["repairs"] == 1


@EACH
async def test_a_rebuild_leaves_a_sound_hybrid_as_it_is(
    make_cache: MakeCache, component: str
) -> None:
    async with make_cache(**HYBRID_WORLD) as cache:
        world = await populate_hybrid(cache)
        before = (await cache.stats()).pools, await cache.pretty_print()
        orders = [[data.node for data in part.recency] for part in (world.swa, world.mamba)]
        pairs = world.swa.pairing.to_pair.copy()
        await crash(cache, component)
        assert (await cache.audit()).violations == ()
        assert ((await cache.stats()).pools, await cache.pretty_print()) == before
        assert [[data.node for data in part.recency] for part in (world.swa, world.mamba)] == orders
        assert (world.swa.pairing.to_pair == pairs).all()
