"""Long random walks over a cache with a component of one's own, audited after every call.

``RADIXTIDE_WALK_SEED`` and ``RADIXTIDE_WALK_STEPS`` repeat or lengthen a walk.
"""

from __future__ import annotations

import os
import random

import pytest

from support.plugin import SETS, registered
from support.plugin_walk import MET, PluginSetup, both_deliveries_agree, walk

STEPS = int(os.environ.get("RADIXTIDE_WALK_STEPS", "80"))
NIGHTLY_STEPS = int(os.environ.get("RADIXTIDE_WALK_STEPS", "4000"))
SEED = os.environ.get("RADIXTIDE_WALK_SEED")

SETUPS = [
    PluginSetup(components, page, group)
    for components in SETS
    for page, group in ((16, 128), (64, 128), (128, 128), (4, 12))
]


def name(setup: PluginSetup) -> str:
    """Return the setup as a test's id."""
    return f"{'+'.join(setup.components)}-page{setup.page}-group{setup.group}"


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS, ids=name)
async def test_copies_stay_true_on_a_walk_and_do_not_depend_on_delivery(setup: PluginSetup) -> None:
    with registered():
        taken = await both_deliveries_agree(setup, int(SEED or 1), STEPS)
    # A walk that meets nothing proves nothing; pages of a group's length split no group.
    missed = [what for what in MET if not taken.met[what]]
    assert missed == (["split inside a group"] if setup.page == setup.group else [])


@pytest.mark.slow
@pytest.mark.parametrize("components", SETS, ids="+".join)
async def test_copies_survive_crashes_of_their_actor(components: tuple[str, ...]) -> None:
    with registered():
        taken = await walk(PluginSetup(components, crashes=True), int(SEED or 1), STEPS)
    assert taken.met["crashes"] > STEPS // 10


@pytest.mark.nightly
@pytest.mark.parametrize("setup", SETUPS, ids=name)
async def test_copies_stay_true_on_a_long_walk(setup: PluginSetup) -> None:
    seed = int(SEED) if SEED else random.SystemRandom().randrange(2**32)
    with registered():
        await both_deliveries_agree(setup, seed, NIGHTLY_STEPS)
