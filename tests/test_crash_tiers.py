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
from support.tier_crashes import Concerns, TierCase, run

Crashes = type[CrashBefore] | type[CrashAfter]

sets = pytest.mark.parametrize("components", [SETS[0], SETS[-1]], ids="+".join)
crashes = pytest.mark.parametrize("plant", [CrashBefore, CrashAfter])
every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def in_addition(components: Components) -> Concerns:
    """Return which messages a quick run looks at: in a hybrid, one a kind to the others."""
    if components == ("full",):
        return lambda *_: True
    return lambda _, actor, before: actor in ("swa", "mamba") and not before


@sets
@every
@crashes
async def test_a_crash_at_any_message_costs_nothing(
    components: Components, case: TierCase, plant: Crashes
) -> None:
    def once(kind: str, actor: str, skip: int) -> Chooser:
        return plant(kind, actor, skip=skip)

    await run(case, components, once, costs=False, concerns=in_addition(components))


def often(kind: str, actor: str, skip: int) -> Chooser:
    """Plant a crash that comes again with the message, until that is given up."""
    return CrashBefore(kind, actor, skip=skip, count=3)


@sets
@every
async def test_a_message_that_always_crashes_its_receiver_costs_a_transfer_at_most(
    components: Components, case: TierCase
) -> None:
    await run(case, components, often, costs=True, concerns=in_addition(components))


@pytest.mark.nightly
@pytest.mark.parametrize("components", SETS[1:], ids="+".join)
@every
@crashes
@pytest.mark.parametrize("times", [1, 3])
async def test_a_crash_at_any_message_of_all_hybrids(
    components: Components, case: TierCase, plant: Crashes, times: int
) -> None:
    def some(kind: str, actor: str, skip: int) -> Chooser:
        return plant(kind, actor, skip=skip, count=times)

    await run(case, components, some, costs=times > 1)
