"""One call after the other, with a crash at each of its messages: the cases, and how they run.

A case prepares a cache, makes one call, and lets go of what it holds in the end. :func:`run` makes
the call once undisturbed, to learn its messages, and then once for each of them in a fresh cache
whose receiver crashes at that message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from radixtide import UnifiedRadixCache
from radixtide.configs.errors import ActorFailed
from radixtide.configs.schema import LimitsConfig
from support.caches import assert_sound, make_config, settled
from support.hybrids import drain, hybrid
from support.interceptors import CrashAfter, CrashBefore, Recorder

LIMITS = LimitsConfig(restarts_max=1000, call_timeout_s=20.0)
Plant = type[CrashBefore] | type[CrashAfter]


class Stage(NamedTuple):
    """A prepared cache: the call to make, and what to let go of when it was made."""

    call: Callable[[], Awaitable[Any]]
    let_go: Callable[[Any], Awaitable[Any]] | None = None


Prepare = Callable[[UnifiedRadixCache], Awaitable[Stage]]


class Case(NamedTuple):
    """A call by name; ``messages``: those that it is about, which it must really send.

    ``config``: fields of :func:`support.hybrids.hybrid`. ``partial``: when it failed, a part of it
    may have been done for good (evictions), so that trying again does more than doing it once.
    """

    name: str
    prepare: Prepare
    messages: Collection[str]
    config: Mapping[str, Any] = MappingProxyType({})
    partial: bool = False


def open_stage(case: Case, page_size: int) -> UnifiedRadixCache:
    """Return a cache for a case."""
    fields = hybrid(page_size=page_size, limits=LIMITS, **case.config)
    return UnifiedRadixCache(make_config(**fields))


async def end(cache: UnifiedRadixCache, stage: Stage, answer: Any) -> dict[str, Any]:
    """Let go of all that is held, see that it can all be evicted, and return the sizes before."""
    if stage.let_go is not None:
        await stage.let_go(answer)
    pools = {name: tiers["device"] for name, tiers in (await cache.stats()).pools.items()}
    await drain(cache)
    assert cache.req_to_token_pool.available == cache.config.pools.requests.max_requests
    return pools


async def undisturbed(case: Case, page_size: int) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """Make the call; return its messages with their receivers, and the sizes in the end."""
    async with open_stage(case, page_size) as cache:
        stage = await case.prepare(cache)
        recorder = Recorder()
        cache.add_interceptor(recorder)
        answer = await stage.call()
        await settled(cache)
        cache.remove_interceptor(recorder)
        sent = list(recorder.sent)
        await assert_sound(cache)
        return sent, await end(cache, stage, answer)


async def disturbed(
    case: Case,
    page_size: int,
    crash: CrashBefore | CrashAfter,
    and_then: CrashBefore | CrashAfter | None = None,
) -> dict[str, Any] | None:
    """Make the call with a crash at one message; audit, try again if it failed, drain.

    `and_then`: another crash, which the first one leads to. Returns the sizes before the drain, or
    None where they may differ from those of an undisturbed call.
    """
    async with open_stage(case, page_size) as cache:
        stage = await case.prepare(cache)
        crashes = [crash] if and_then is None else [crash, and_then]
        for one in crashes:
            cache.add_interceptor(one)
        answer: Any = None
        failed = False
        try:
            answer = await stage.call()
        except ActorFailed:
            failed = True
        await settled(cache)
        for one in crashes:
            cache.remove_interceptor(one)
            assert one.hits, one
        await settled(cache)
        await assert_sound(cache)
        if failed:
            assert crash.hits > 1, "one crash is no failure: the message comes again"
            answer = await stage.call()
            await assert_sound(cache)
        pools = await end(cache, stage, answer)
        return None if failed and case.partial else pools


async def run(case: Case, page_size: int, plant: Plant, times: int) -> None:
    """Crash the receiver at each message of a case; report all that goes wrong in one go."""
    sent, expected = await undisturbed(case, page_size)
    missing = set(case.messages) - {kind for kind, _ in sent}
    assert not missing, f"{case.name} sends no {missing}"
    wrong = []
    before: Counter[tuple[str, str]] = Counter()
    for at in sent:
        skip = before[at]
        before[at] += 1
        try:
            pools = await disturbed(case, page_size, plant(*at, skip=skip, count=times))
            assert pools in (None, expected), f"{pools}, undisturbed {expected}"
        except Exception as error:  # noqa: BLE001  # every kind is a finding, and all are told
            text = str(error).strip().splitlines()
            wrong.append(
                f"{plant.__name__} {at} no. {skip}, {times} times: "
                f"{type(error).__name__} {text[0][:300] if text else ''}"
            )
    assert not wrong, "\n".join(wrong)
