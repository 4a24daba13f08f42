"""Calls on the tiers, with a fault at each of their messages: the cases, and how they run.

A case prepares a cache, takes some steps, and lets go of what it holds. It is run once undisturbed,
to learn its messages, and then once for each of them with a fault at that message: whose receiver
crashes, or which is lost, comes twice or late. What a step could not do is tried again. In the end
the nodes are on the tiers where they were without the fault, with the right bytes, and both tiers
can be emptied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from radixtide import UnifiedRadixCache
from radixtide.configs.errors import ActorFailed
from radixtide.configs.schema import LimitsConfig
from support.actors import until
from support.caches import Delivery, settled, system_of
from support.interceptors import Chooser, Recorder
from support.tier_config import Components, tier_config
from support.tiered import Picture, Tiers

LIMITS = LimitsConfig(restarts_max=1000, call_timeout_s=20.0)
DRAIN_S = 5.0
"""Within this all transfers are over; a machine with much else to do needs some of it."""

Step = Callable[[], Awaitable[Any]]
Plant = Callable[[str, str, int], Chooser]
"""Makes a fault at a message by type and receiver, after so many of its kind have passed."""


Concerns = Callable[[str, str, int], bool]
"""Tells by type, receiver, and how many of its kind came before, whether a message gets a fault."""


class Stage(NamedTuple):
    """A prepared cache: steps to take under a fault, and how it goes on after that.

    ``mend``: brings about, after a fault that cost something (a backup, a load), what was to be;
    it is done without a fault too, where it has nothing to do. ``let_go``: of what is held.
    """

    steps: Sequence[Step]
    mend: Step | None = None
    let_go: Step | None = None


Prepare = Callable[[Tiers], Awaitable[Stage]]


class TierCase(NamedTuple):
    """A case by name; ``messages``: those that it is about, which it must really send.

    ``config``: fields of :func:`support.tier_config.tier_config`.
    """

    name: str
    prepare: Prepare
    messages: Collection[str]
    config: Mapping[str, Any] = MappingProxyType({})


def open_stage(case: TierCase, components: Components, delivery: Delivery) -> UnifiedRadixCache:
    """Return a cache for a case."""
    fields = {"limits": LIMITS, "page_size": 4, **case.config}
    return UnifiedRadixCache(tier_config(components, delivery=delivery, **fields))


async def take(step: Step) -> bool:
    """Take a step, and once more when an actor failed it; return whether one did."""
    try:
        await step()
    except ActorFailed:
        await step()
        return True
    return False


async def finish(t: Tiers, stage: Stage) -> Picture:
    """Mend, let go, see that all can be emptied; return where everything was before that."""
    if stage.mend is not None:
        await stage.mend()
    await t.settle()
    if stage.let_go is not None:
        await stage.let_go()
        await t.settle()
    where = t.picture()
    await t.drain_and_check()
    return where


async def undisturbed(
    case: TierCase, components: Components
) -> tuple[list[tuple[str, str]], Picture]:
    """Take the steps; return all messages with their receivers, and where all is in the end."""
    async with open_stage(case, components, "direct") as cache:
        t = Tiers(cache)
        stage = await case.prepare(t)
        recorder = Recorder()
        cache.add_interceptor(recorder)
        for step in stage.steps:
            assert not await take(step)
        await cache.drain(DRAIN_S)
        await settled(cache)
        cache.remove_interceptor(recorder)
        sent = list(recorder.sent)
        await t.sound()
        where = await finish(t, stage)
        assert not system_of(cache).unheard_errors
        return sent, where


async def disturbed(case: TierCase, components: Components, fault: Chooser, costs: bool) -> Picture:
    """Take the steps with a fault at one message; return where all is in the end.

    `costs`: the fault may cost something; if not, no call and no message may fail.
    """
    async with open_stage(case, components, "direct") as cache:
        t = Tiers(cache)
        stage = await case.prepare(t)

        async def drain() -> None:
            await cache.drain(DRAIN_S)

        cache.add_interceptor(fault)
        for step in (*stage.steps, drain):
            failed = await take(step)
            assert costs or not failed, "one fault is no failure: the message comes again"
        # A message that nobody waits for (a posted release) is no reason not to be quiet.
        await until(lambda: not fault.on_the_way)
        await settled(cache)
        cache.remove_interceptor(fault)
        await settled(cache)
        assert costs or not system_of(cache).unheard_errors
        system_of(cache).unheard_errors = 0
        await t.sound()
        where = await finish(t, stage)
        assert not system_of(cache).unheard_errors
        return where


def every_one(kind: str, actor: str, before: int) -> bool:
    """Return that each message gets a fault."""
    return True


async def run(
    case: TierCase,
    components: Components,
    plant: Plant,
    *,
    costs: bool,
    concerns: Concerns = every_one,
) -> None:
    """Plant a fault at each message that `concerns` lets; report all that goes wrong in one go."""
    sent, expected = await undisturbed(case, components)
    # Other components may make it another case, or less of one: a load may have no use there.
    wanted = set(case.messages) if components == ("full",) else set()
    missing = wanted - {kind for kind, _ in sent}
    assert not missing, f"{case.name} sends no {missing}"
    wrong = []
    planted = missed = 0
    before: Counter[tuple[str, str]] = Counter()
    for at in sent:
        skip = before[at]
        before[at] += 1
        if not concerns(*at, skip):
            continue
        fault = plant(*at, skip)
        planted += 1
        try:
            where = await disturbed(case, components, fault, costs)
            assert where == expected, f"{where}, undisturbed {expected}"
        except Exception as error:  # noqa: BLE001  # every kind is a finding, and all are told
            text = str(error).strip().splitlines()
            wrong.append(
                f"{type(fault).__name__} {at} no. {skip}: "
                f"{type(error).__name__} {text[0][:300] if text else ''}"
            )
        missed += not fault.hits
    assert not wrong, "\n".join(wrong)
    # How many wait by then, and go in one copy, depends on when others end; most must be met.
    assert missed <= planted // 4, f"{missed} of {planted} faults met no message"
