"""The audit names what is wrong with the host tier, and a repair makes good what was derived."""

from __future__ import annotations

import re

import pytest

from support.broken_host import HOST_DAMAGES, HostDamage, Scene

DERIVED = [damage for damage in HOST_DAMAGES if damage.derived]


@pytest.mark.parametrize("damage", HOST_DAMAGES, ids=lambda damage: damage.name)
def test_the_audit_names_what_was_broken(damage: HostDamage) -> None:
    scene = Scene()
    damage.do(scene)
    found = scene.world.audit()
    named = [one for one in found if one.clause == damage.clause]
    assert any(re.search(damage.says, one.message) for one in named), found


@pytest.mark.parametrize("damage", DERIVED, ids=lambda damage: damage.name)
def test_a_repair_makes_derived_state_true_again(damage: HostDamage) -> None:
    scene = Scene()
    damage.do(scene)
    assert scene.world.audit() != []
    assert scene.world.rebuild() == []
    scene.world.check()
    for number in list(scene.world.jobs):
        if scene.world.jobs[number].kind == "load":
            scene.world.end_load(number)
        else:
            scene.world.end_backup(number)
    scene.world.check()
