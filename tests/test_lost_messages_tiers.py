"""Messages to and from the tiering actor are lost, late, or come twice: nothing is lost by it."""

from __future__ import annotations

import pytest

from radixtide.actors import system as system_module
from radixtide.actors.tier_messages import CopyDone
from support.caches import Delivery, coordinator_of, settled, system_of
from support.interceptors import (
    Delay,
    DropFirst,
    DropReply,
    Duplicate,
    DuplicateReply,
    Late,
)
from support.tier_cases import CASES
from support.tier_config import SETS, Components
from support.tier_crashes import Plant, TierCase, run
from support.tiered import tiers

REPORTS = {"CopyDone", "StoreDone", "Found", "FetchDone", "Pump"}
Faults = (
    type[Late]
    | type[DropFirst]
    | type[DropReply]
    | type[Duplicate]
    | type[DuplicateReply]
    | type[Delay]
)

faults = pytest.mark.parametrize("plant", [DropFirst, DropReply, Duplicate, DuplicateReply, Delay])
every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send again what was not answered after a moment, not after a second."""
    monkeypatch.setattr(system_module.ActorSystem, "resend_after_s", 0.01)


def of_tiering(kind: str, actor: str, _: int) -> bool:
    """Return whether a message is to or from the tiering actor, or wakes the coordinator."""
    return actor == "tiering" or kind in REPORTS


def first_of_tiering(kind: str, actor: str, before: int) -> bool:
    """Return the same, for the first of each kind."""
    return not before and of_tiering(kind, actor, before)


def first_of_a_kind(_: str, __: str, before: int) -> bool:
    """Return whether a message is the first of its kind."""
    return not before


def once(plant: Faults) -> Plant:
    """Return what makes one fault."""
    return lambda kind, actor, skip: plant(kind, actor, skip=skip)


@every
@pytest.mark.parametrize("plant", [DropFirst, Duplicate, Delay])
async def test_a_message_of_a_transfer_acts_once_whatever_becomes_of_it(
    case: TierCase, plant: Faults
) -> None:
    await run(case, SETS[0], once(plant), costs=False, concerns=first_of_tiering)


@pytest.mark.nightly
@pytest.mark.parametrize("components", SETS, ids="+".join)
@every
@faults
async def test_any_message_of_a_transfer_in_all_caches(
    components: Components, case: TierCase, plant: Faults
) -> None:
    await run(case, components, once(plant), costs=False, concerns=of_tiering)


@every
async def test_an_operation_done_anew_after_a_silence_finds_its_books_whole(
    case: TierCase,
) -> None:
    # What is late by then is withdrawn, and the operation stands in line to be done anew.
    await run(case, SETS[0], once(Late), costs=False, concerns=first_of_a_kind)


@pytest.mark.nightly
@pytest.mark.parametrize("components", SETS, ids="+".join)
@every
async def test_any_operation_done_anew_after_a_silence_in_all_caches(
    components: Components, case: TierCase
) -> None:
    await run(case, components, once(Late), costs=False, concerns=lambda *_: True)


async def test_a_report_that_is_made_twice_acts_once(delivery: Delivery) -> None:
    async with tiers(delivery) as t:
        t.engine.hold("backup", how="copied")
        await t.put(t.key(4))
        (job,) = await t.engine.arrived(1)
        t.engine.release()
        await t.cache.drain()
        before = await t.sizes()
        for ok in (True, False):
            report = CopyDone(job.number, ok)
            system_of(t.cache).tell(coordinator_of(t.cache), report, "tiering")
        await settled(t.cache)
        assert await t.sizes() == before
        assert t.picture() == [(0, 4, "DH")]
        assert (await t.count("backed_nodes"), await t.count("backups_failed")) == (1, 0)


async def test_a_report_on_a_job_that_never_was_changes_nothing(delivery: Delivery) -> None:
    async with tiers(delivery) as t:
        await t.put(t.key(4))
        await t.settle()
        before = await t.sizes(), t.picture()
        system_of(t.cache).tell(coordinator_of(t.cache), CopyDone(10**6, True), "tiering")
        await settled(t.cache)
        assert (await t.sizes(), t.picture()) == before
