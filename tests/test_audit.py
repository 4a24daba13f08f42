"""`audit()` names every clause that does not hold, and a rebuild makes derived state true again."""

from __future__ import annotations

import re

import pytest

from radixtide import Violation
from support.broken import DAMAGES, Damage
from support.broken_host import HOST_DAMAGES
from support.broken_hybrid import HYBRID_DAMAGES
from support.caches import MakeCache, key, match, store
from support.interceptors import CrashBefore
from support.rooms import ROOT, sources
from support.world import PIN_BUDGET, populate

EVERY = pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
DERIVED = pytest.mark.parametrize(
    "damage", [one for one in DAMAGES if one.derived], ids=lambda damage: damage.name
)


@EVERY
async def test_the_audit_names_what_was_broken(make_cache: MakeCache, damage: Damage) -> None:
    async with make_cache(pin_budget=PIN_BUDGET, audit=False) as cache:
        world = await populate(cache)
        assert (await cache.audit()).violations == ()
        damage.do(world)
        report = await cache.audit()
        assert not report.ok
        named = [one for one in report.violations if one.clause == damage.clause]
        assert any(re.search(damage.says, one.message) for one in named), report.violations


def test_every_clause_that_the_audit_knows_is_broken_by_some_test() -> None:
    known: set[str] = set()
    for room in ("actors", "components"):
        for path in sources(ROOT, room):
            text = path.read_text(encoding="utf-8")
            known.update(re.findall(r'Violation\(\s*"(\w+)"', text))
            known.update(re.findall(r'report\(\s*"(\w+)"', text))
    assert {"sizes", "slots", "lost"} <= known
    broken = {damage.clause for damage in DAMAGES}
    broken |= {damage.clause for damage in HYBRID_DAMAGES}
    broken |= {damage.clause for damage in HOST_DAMAGES}
    assert known == broken


@DERIVED
async def test_a_rebuild_after_a_crash_makes_derived_state_true_again(
    make_cache: MakeCache, damage: Damage
) -> None:
    async with make_cache(pin_budget=PIN_BUDGET) as cache:
        world = await populate(cache)
        damage.do(world)
        assert not (await cache.audit()).ok
        crash = CrashBefore("Describe", "full")
        cache.add_interceptor(crash)
        await cache.pretty_print()
        cache.remove_interceptor(crash)
        assert crash.hits == 1
        report = await cache.audit()
        assert report.violations == ()
        assert (await cache.stats()).counters["repairs"] == 1


async def test_a_rebuild_leaves_a_sound_cache_as_it_is(make_cache: MakeCache) -> None:
    async with make_cache(pin_budget=PIN_BUDGET) as cache:
        await populate(cache)
        before = (await cache.stats()).pools, await cache.pretty_print()
        crash = CrashBefore("Describe", "full")
        cache.add_interceptor(crash)
        await cache.pretty_print()
        cache.remove_interceptor(crash)
        assert (await cache.audit()).ok
        assert ((await cache.stats()).pools, await cache.pretty_print()) == before


async def test_a_rebuild_drops_a_node_without_data_and_all_below_it(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        stored = await store(cache, key(8))
        await store(cache, key(16), prev=8)
        stem = cache._state.tree.nodes[stored.last_device_node.id]
        cache._components[0].data(stem).value = None
        crash = CrashBefore("Describe", "full")
        cache.add_interceptor(crash)
        await cache.pretty_print()
        cache.remove_interceptor(crash)
        assert (await cache.audit()).ok
        stats = await cache.stats()
        assert stats.nodes == 0
        assert stats.pools["full"]["device"].free == 64
        assert len((await match(cache, key(16))).device_indices) == 0


async def test_the_report_of_a_sound_cache_is_empty(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        report = await cache.audit()
        assert report.ok
        assert report.violations == ()


async def test_a_report_with_a_violation_is_not_ok(make_cache: MakeCache) -> None:
    async with make_cache(audit=False) as cache:
        await store(cache, key(8))
        cache._components[0].evictable = 0
        report = await cache.audit()
        assert not report.ok
        expected = Violation("sizes", "full: evictable size is 0, nodes make 8")
        assert expected in report.violations
