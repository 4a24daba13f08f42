"""An actor crashes at any message of a transfer, before or after it handles it.

Each component, the coordinator or the tiering actor; once, or so often that the message is given
up. The audit is clean after the repair, nothing moves or waits for ever, what was not done is done
when it is tried again, and in the end all bytes are right and both tiers can be emptied.
"""

from __future__ import annotations

import pytest

from support.interceptors import Chooser, CrashAfter, CrashBefore
from support.tier_cases import CASES
from support.tier_config import SETS, Components
from support.tier_crashes import Plant, TierCase, run

Crashes = type[CrashBefore] | type[CrashAfter]

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
SOME = [case for case in CASES if case.name in ("backup", "failed load", "fetch")]
HARD = [case for case in CASES if case.name in ("write back", "load", "fetch", "exchange")]
some = pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
crashes = pytest.mark.parametrize("plant", [CrashBefore, CrashAfter])
ALONE, ALL = SETS[0], SETS[-1]


def first_of_each(kind: str, actor: str, before: int) -> bool:
    """Return whether a message is the first of its kind to its receiver."""
    return not before


def first_to_others(kind: str, actor: str, before: int) -> bool:
    """Return whether it is that, and to a component beside Full."""
    return not before and actor in ("swa", "mamba")


def once(plant: Crashes) -> Plant:
    """Return what makes one crash."""
    return lambda kind, actor, skip: plant(kind, actor, skip=skip)


def often(kind: str, actor: str, skip: int) -> Chooser:
    """Make a crash that comes again with the message, until that is given up."""
    return CrashBefore(kind, actor, skip=skip, count=3)


@every
async def test_a_crash_before_any_kind_of_message_costs_nothing(case: TierCase) -> None:
    await run(case, ALONE, once(CrashBefore), costs=False, concerns=first_of_each)


@some
async def test_a_crash_after_any_kind_of_message_costs_nothing(case: TierCase) -> None:
    await run(case, ALONE, once(CrashAfter), costs=False, concerns=first_of_each)


@pytest.mark.parametrize("case", HARD, ids=lambda case: case.name)
async def test_a_message_that_always_crashes_its_receiver_costs_a_transfer_at_most(
    case: TierCase,
) -> None:
    await run(case, ALONE, often, costs=True, concerns=first_of_each)


@some
async def test_a_crash_of_another_component_costs_nothing(case: TierCase) -> None:
    await run(case, ALL, once(CrashBefore), costs=False, concerns=first_to_others)


@pytest.mark.nightly
@pytest.mark.parametrize("components", SETS, ids="+".join)
@every
@crashes
async def test_a_crash_at_any_message_of_all_caches(
    components: Components, case: TierCase, plant: Crashes
) -> None:
    await run(case, components, once(plant), costs=False)


@pytest.mark.nightly
@pytest.mark.parametrize("components", SETS, ids="+".join)
@every
async def test_any_message_that_always_crashes_its_receiver_in_all_caches(
    components: Components, case: TierCase
) -> None:
    await run(case, components, often, costs=True)
