"""An actor crashes at any message of a transfer, before or after it handles it.

Each component, the coordinator or the tiering actor; once, or so often that the message is given
up. The audit is clean after the repair, nothing moves or waits for ever, what was not done is done
when it is tried again, and in the end all bytes are right and both tiers can be emptied.
"""

from __future__ import annotations

from typing import Any

import pytest

from support.interceptors import Chooser, CrashAfter, CrashBefore
from support.tier_cases import CASES
from support.tier_config import SETS, Components
from support.tier_crashes import TierCase, run

sets = pytest.mark.parametrize("components", (SETS[0], SETS[-1]), ids="+".join)
every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@sets
@every
@pytest.mark.parametrize("plant", [CrashBefore, CrashAfter])
async def test_a_crash_at_any_message_costs_nothing(
    components: Components, case: TierCase, plant: type[CrashBefore | CrashAfter]
) -> None:
    def once(kind: str, actor: str, skip: int) -> Chooser:
        return plant(kind, actor, skip=skip)

    await run(case, components, once, costs=False)


@sets
@every
async def test_a_message_that_always_crashes_its_receiver_costs_a_transfer_at_most(
    components: Components, case: TierCase
) -> None:
    def often(kind: str, actor: str, skip: int) -> Chooser:
        return CrashBefore(kind, actor, skip=skip, count=3)

    await run(case, components, often, costs=True)
