"""Every public call, cancelled at each of its awaits: nothing leaks, and the next call works.

Each await of a call is cancelled where it begins, at every turn of the loop while it lasts, and in
the very turn in which what it waits for is there; in every set of components, with tiers and
without, delivered directly and through queues.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.actors.envelope import Envelope
from radixtide.actors.system import ActorSystem, PendingReply
from support.actors import until
from support.caches import Delivery, assert_nothing_held, system_of
from support.cancel_calls import CALLS, CallCase, settled_books
from support.cancel_scene import Scene, nothing_runs, scene, scene_config
from support.cancelling import FEW_TURNS, TURNS, Aim, Driven, driven, every_aim
from support.tier_config import DELIVERIES, SETS, Components
from support.tiered import Tiers

pytestmark = pytest.mark.slow

Where = tuple[Delivery, Components, bool]

EVERYWHERE: list[Where] = [
    (delivery, components, tiered)
    for delivery in DELIVERIES
    for components in SETS
    for tiered in (False, True)
]
ALL = SETS[-1]
CHOSEN: list[Where] = [("queued", ALL, True), ("queued", ALL, False), ("direct", ALL, False)]
"""Where calls are cancelled in each run of the tests, at a few turns; all of it nightly."""
IN_TIERS = {"tiers", "storage"}
LONG = {"attach_storage", "flush of the storage"}
"""These wait for a disk at each of their awaits, so that they take seconds: all of it nightly."""


def _is_there(case: CallCase, where: Where) -> bool:
    _, components, tiered = where
    return (tiered or case.needs not in IN_TIERS) and (
        "swa" in components or case.needs != "window"
    )


def _cases() -> list[Any]:
    few = [
        (where, name, FEW_TURNS)
        for where in CHOSEN
        for name, case in CALLS.items()
        if where[2] == (case.needs in IN_TIERS) and name not in LONG
    ]
    every = [
        (where, name, TURNS)
        for where in EVERYWHERE
        for name, case in CALLS.items()
        if _is_there(case, where)
    ]
    return [
        pytest.param(
            where,
            name,
            turns,
            marks=[pytest.mark.nightly] if turns is TURNS else [],
            id=f"{where[0]}-{'+'.join(where[1])}-{'tiers' if where[2] else 'device'}-{name}",
        )
        for where, name, turns in few + every
    ]


NO_CALLS = {"add_interceptor", "from_toml", "is_fetched", "kill", "now", "post", "post_release"}
"""Public names of a cache that nobody awaits; `close` has a test of its own below."""


def test_every_public_call_is_cancelled_here() -> None:
    public = {
        name
        for name in dir(UnifiedRadixCache)
        if not name.startswith("_") and callable(getattr(UnifiedRadixCache, name))
    }
    awaited = public - NO_CALLS - {"close", "remove_interceptor"}
    assert {case.public for case in CALLS.values()} == awaited


class Outcome:
    """What came of a call, cancelled or not."""

    driven: Driven
    result: Any
    whole: dict[str, Any]


def _scene(where: Where, case: CallCase) -> AbstractAsyncContextManager[Scene]:
    return scene(*where, stored=case.needs == "storage", holding=case.holding)


async def _run(where: Where, case: CallCase, aim: Aim | None) -> Outcome:
    """Make a call in a cache of its own, cancel it, and check all that must hold afterwards."""
    outcome = Outcome()
    async with _scene(where, case) as s:
        ready = None if case.prepare is None else await case.prepare(s)
        before = await s.held()
        outcome.driven, outcome.result = await driven(case.make(s, ready), aim)
        cancelled = isinstance(outcome.result, asyncio.CancelledError)
        assert cancelled or not isinstance(outcome.result, BaseException), outcome.result
        # Who was cancelled is told so, even if the answer was there.
        assert cancelled == outcome.driven.sent
        await s.settle()
        if cancelled and case.kind == "takes":
            assert await s.held() == before
        outcome.whole = await s.whole()
        if not cancelled:
            await case.give_back(s, outcome.result)
        await _end(s, case, ready)
        # A reset that is refused when its caller is gone has nobody to tell.
        assert case.public == "reset" or not system_of(s.cache).unheard_errors
    return outcome


async def _end(s: Scene, case: CallCase, ready: Any) -> None:
    """Let go of everything; nothing may be left of the call."""
    if hasattr(ready, "close"):
        await ready.close()
    if case.holding:
        await s.let_go()
    settled_books(s)
    await s.drain_all()


async def _before(where: Where, case: CallCase) -> dict[str, Any]:
    """Return what a cache is like where the call was not made."""
    async with _scene(where, case) as s:
        ready = None if case.prepare is None else await case.prepare(s)
        await s.settle()
        whole = await s.whole()
        await _end(s, case, ready)
    return whole


@pytest.mark.parametrize(("where", "name", "turns"), _cases())
async def test_a_call_cancelled_at_any_of_its_awaits_leaves_nothing_behind(
    where: Where, name: str, turns: Sequence[int]
) -> None:
    case = CALLS[name]
    done = await _run(where, case, None)
    allowed = {"gives": [done.whole], "takes": [], "either": [done.whole]}[case.kind]
    if case.kind == "either":
        allowed.append(await _before(where, case))
    outcomes: dict[Aim, Outcome] = {}

    async def run(aim: Aim) -> Driven:
        outcomes[aim] = outcome = await _run(where, case, aim)
        return outcome.driven

    async for aim, steps in every_aim(run, turns):
        assert steps.awaits >= aim.at
        if allowed:
            assert outcomes[aim].whole in allowed, aim
    assert done.driven.awaits == 0 or any(outcome.driven.sent for outcome in outcomes.values())


OTHER_STORES = ("memory:", "lmdb:{}")


# -- a cache's own life ---------------------------------------------------------------------------


async def _threads_end(before: set[threading.Thread]) -> None:
    """Assert that no thread of a cache is left that was not there before."""

    def left() -> set[threading.Thread]:
        alive = set(threading.enumerate()) - before
        return {thread for thread in alive if thread.name.startswith("radixtide")}

    await until(lambda: not left(), 20_000)


@pytest.mark.parametrize(
    "store", ["file:{}", *(pytest.param(url, marks=pytest.mark.nightly) for url in OTHER_STORES)]
)
async def test_a_cache_whose_opening_was_cancelled_leaves_nothing_running(
    store: str, tmp_path: Path
) -> None:
    cancelled = 0
    url = store.format(tmp_path / "store")

    async def run(aim: Aim) -> Driven:
        before = set(threading.enumerate())
        config = scene_config("queued", SETS[3], True, stored=True, url=url)
        cache = UnifiedRadixCache(config)
        steps, result = await driven(cache.__aenter__(), aim)
        assert isinstance(result, asyncio.CancelledError) == steps.sent, result
        if not steps.sent:
            await cache.close()
        await nothing_runs()
        await _threads_end(before)
        async with UnifiedRadixCache(config) as again:
            t = Tiers(again)
            await t.put(t.key(2))
            await t.settle()
        await _threads_end(before)
        return steps

    async for _ in every_aim(run, FEW_TURNS):
        cancelled += 1
    assert cancelled or store == "memory:"


@pytest.mark.parametrize("tiered", [False, True])
async def test_a_close_that_was_cancelled_can_be_made_again(tiered: bool) -> None:
    cancelled = 0

    async def run(aim: Aim) -> Driven:
        before = set(threading.enumerate())
        closed: list[str] = []
        cache = UnifiedRadixCache(scene_config("queued", SETS[3], tiered, stored=tiered))
        await cache.__aenter__()
        s = Scene(cache)
        await s.fill()
        if tiered:
            await s.put(s.new_key(2))
            _note_close(s.engine, "engine", closed)
            _note_close(s.store, "store", closed)
        # Something is queued when the close begins.
        asked = asyncio.ensure_future(s.match(s.key(2)))
        await asyncio.sleep(0)
        steps, result = await driven(cache.close(), aim)
        assert isinstance(result, asyncio.CancelledError) == steps.sent, result
        await cache.close()
        await asyncio.gather(asked, return_exceptions=True)
        assert closed == (["engine", "store"] if tiered else [])
        assert all(not cell.open for cell in system_of(cache)._cells)
        await nothing_runs()
        await _threads_end(before)
        return steps

    async for _ in every_aim(run, FEW_TURNS):
        cancelled += 1
    assert cancelled


def _note_close(owner: Any, name: str, closed: list[str]) -> None:
    inner = owner.close

    def close() -> Any:
        closed.append(name)
        return inner()

    owner.close = close


# -- the rig itself -------------------------------------------------------------------------------


async def _wait_and_forget(self: PendingReply) -> Any:
    """Wait for an answer; one that comes as the caller is cancelled is not undone."""
    try:
        return await self._future
    finally:
        self._timer.cancel()
        if not self._future.done():
            self._abandon()


def _undo_nothing(self: ActorSystem, envelope: Envelope, reply: Any) -> None:
    """Leave to nobody what an answer owns whose caller is gone."""


@pytest.mark.parametrize("name", ["allocate", "match_prefix with a lock", "inc_lock_ref"])
@pytest.mark.parametrize(
    ("owner", "method", "planted"),
    [(PendingReply, "wait", _wait_and_forget), (ActorSystem, "dropped", _undo_nothing)],
    ids=["wait", "dropped"],
)
async def test_a_call_that_leaks_when_it_is_cancelled_is_found(
    name: str, owner: type, method: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, method, planted)
    found = 0
    where: Where = ("queued", ALL, False)
    for when in (*FEW_TURNS, "answer"):
        try:
            # The first await gives up the caller's turn, the second is for the answer.
            await _run(where, CALLS[name], Aim(2, when))
        except AssertionError:
            found += 1
    assert found


async def test_a_cancellation_that_is_swallowed_is_seen() -> None:

    async def swallows() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "went on"
        return "never"

    steps, result = await driven(swallows(), Aim(1, 0))
    assert steps.sent
    assert result == "went on"
    steps, result = await driven(asyncio.wait_for(asyncio.Event().wait(), 60.0), Aim(1, 3))
    assert isinstance(result, asyncio.CancelledError)
    async with scene("queued", SETS[0], False) as s:
        steps, found = await driven(s.match(s.key(8), lock=True), None)
        assert steps.awaits > 0
        assert not steps.sent
        with pytest.raises(AssertionError):
            await assert_nothing_held(s.cache)
        await s.cache.dec_lock_ref(found.receipt)
        await s.let_go()
        await s.drain_all()
