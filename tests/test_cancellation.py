"""Cancelling a caller at any turn: nothing stays locked, held or half done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.actors import system as system_module
from radixtide.actors.component_actor import ComponentActor
from radixtide.actors.envelope import PassThrough
from radixtide.components.api import (
    AllocateParams,
    AuditReport,
    EvictParams,
    InsertParams,
    MatchPrefixParams,
)
from radixtide.components.request import Request
from radixtide.configs.errors import CallTimeout
from support.actors import turns, until
from support.caches import (
    MakeCache,
    assert_nothing_held,
    assert_sound,
    key,
    match,
    open_cache,
    settled,
    state_of,
    store,
    take,
    tokens,
)
from support.interceptors import Delay, DropFirst, DropReply, Duplicate, Stall, StallReplies

TURNS = range(12)
"""More turns of the loop than any call of the small cache needs; a test checks that."""

Call = Callable[[UnifiedRadixCache, dict[str, Any]], Awaitable[Any]]


async def prepare(cache: UnifiedRadixCache) -> dict[str, Any]:
    """Fill a cache with what the calls below work on; return those things by name."""
    await store(cache, key(16))
    await store(cache, key(tokens(8, start=900)))
    held: dict[str, Any] = {}
    held["node"] = (await match(cache, key(16))).last_device_node
    held["receipt"] = (await match(cache, key(8), lock=True)).receipt
    held["slots"] = await take(cache, 8)
    held["given"] = await take(cache, 12)
    req = Request("r", tokens(24))
    await match(cache, req.key(), req=req, lock=True)
    await cache.allocate(AllocateParams(num_tokens=8, req=req))
    held["req"] = req
    await cache.pin(key(4), 1000.0)
    return held


async def let_go(cache: UnifiedRadixCache, held: dict[str, Any]) -> None:
    """Give back what `prepare` took and the cancelled call did not."""
    state = state_of(cache)
    await cache.abort_req(held["req"])
    if held["receipt"].id in state.receipts:
        await cache.dec_lock_ref(held["receipt"])
    for name in ("slots", "given"):
        if name not in held.get("gone", ()):
            await cache.free(held[name])
    await cache.unpin(key(4))
    await cache.unpin(key(8))


TAKES: dict[str, Call] = {
    "match_prefix": lambda cache, _: match(cache, key(10)),
    "match_prefix with a lock": lambda cache, _: match(cache, key(12), lock=True),
    "match_prefix for a request": lambda cache, held: match(
        cache, held["new"].key(), req=held["new"], lock=True
    ),
    "allocate": lambda cache, _: take(cache, 5),
    "allocate with eviction": lambda cache, _: take(cache, 16),
    "allocate for a request": lambda cache, held: cache.allocate(
        AllocateParams(num_tokens=6, req=held["new"])
    ),
    "allocate more for a request": lambda cache, held: cache.allocate(
        AllocateParams(num_tokens=6, req=held["req"])
    ),
    "inc_lock_ref": lambda cache, held: cache.inc_lock_ref(held["node"]),
    "device_indices": lambda cache, held: cache.device_indices(held["node"]),
    "picture": lambda cache, _: cache.picture(),
}
GIVES: dict[str, Call] = {
    "insert": lambda cache, held: cache.insert(
        InsertParams(key=key(tokens(12, start=500)), value=held["given"])
    ),
    "free": lambda cache, held: cache.free(held["slots"]),
    "dec_lock_ref": lambda cache, held: cache.dec_lock_ref(held["receipt"]),
    "cache_unfinished_req": lambda cache, held: cache.cache_unfinished_req(held["req"]),
    "cache_finished_req": lambda cache, held: cache.cache_finished_req(held["req"]),
    "cache_finished_req without insert": lambda cache, held: cache.cache_finished_req(
        held["req"], is_insert=False
    ),
    "abort_req": lambda cache, held: cache.abort_req(held["req"]),
}
OTHERS: dict[str, Call] = {
    "evict": lambda cache, _: cache.evict(EvictParams(num_tokens=8)),
    "pin": lambda cache, _: cache.pin(key(8), 1000.0),
    "unpin": lambda cache, _: cache.unpin(key(4)),
    "stats": lambda cache, _: cache.stats(),
    "audit": lambda cache, _: cache.audit(),
    "pretty_print": lambda cache, _: cache.pretty_print(),
}


def undo_what_came_through(name: str, held: dict[str, Any], result: Any) -> None:
    """Note what a call that ended before its cancellation handed to its caller."""
    if name in ("insert", "free"):
        held["gone"] = ("given",) if name == "insert" else ("slots",)
        return
    held["result"] = None if isinstance(result, asyncio.CancelledError) else result


async def give_back_result(cache: UnifiedRadixCache, name: str, held: dict[str, Any]) -> None:
    """Give back what the caller got, where the cancellation came too late."""
    result = held.get("result")
    if name.endswith("request") and name != "allocate more for a request":
        await cache.abort_req(held["new"])
    if result is None:
        return
    if name == "match_prefix with a lock":
        await cache.dec_lock_ref(result.receipt)
    elif name == "inc_lock_ref":
        await cache.dec_lock_ref(result)
    elif name in ("allocate", "allocate with eviction"):
        await cache.free(result)


@pytest.mark.parametrize("name", [*TAKES, *GIVES, *OTHERS])
async def test_a_call_cancelled_at_any_turn_leaves_nothing_behind(name: str) -> None:
    call = {**TAKES, **GIVES, **OTHERS}[name]
    result: Any = None
    for steps in TURNS:
        async with open_cache(delivery="queued", pin_budget=64) as cache:
            held = await prepare(cache)
            held["new"] = Request("new", tokens(16))
            before = await cache.stats()
            task = asyncio.ensure_future(call(cache, held))
            await turns(steps)
            began = steps > 0
            task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(result, asyncio.CancelledError) or not isinstance(result, Exception)
            await settled(cache)
            await assert_sound(cache)
            if began or not isinstance(result, asyncio.CancelledError):
                undo_what_came_through(name, held, result)
            after = await cache.stats()
            if isinstance(result, asyncio.CancelledError) and name in TAKES:
                assert after.receipts == before.receipts
                assert after.requests == before.requests
                assert after.pools["full"]["device"].held == before.pools["full"]["device"].held
            await give_back_result(cache, name, held)
            await let_go(cache, held)
            await assert_nothing_held(cache)
    assert not isinstance(result, asyncio.CancelledError), "TURNS is too short"


@pytest.mark.parametrize("name", list(GIVES))
async def test_a_call_that_gives_is_carried_out_once_it_was_made(name: str) -> None:
    async def end_state(steps: int | None) -> tuple[Any, ...]:
        async with open_cache(delivery="queued", pin_budget=64) as cache:
            held = await prepare(cache)
            task = asyncio.ensure_future(GIVES[name](cache, held))
            if steps is not None:
                await turns(steps)
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await settled(cache)
            stats = await cache.stats()
            lock = held["req"].lock
            return stats.pools, stats.nodes, stats.receipts, lock and lock.id

    wanted = await end_state(None)
    for steps in TURNS[1:]:
        assert await end_state(steps) == wanted


async def test_a_hold_whose_scope_is_cancelled_at_any_turn_is_released(
    make_cache: MakeCache,
) -> None:
    for steps in TURNS:
        async with make_cache() as cache:
            await store(cache, key(16))
            found = await match(cache, key(16))

            async def scope(cache: UnifiedRadixCache = cache, found: Any = found) -> None:
                async with cache.hold(found):
                    await asyncio.Event().wait()

            task = asyncio.ensure_future(scope())
            await turns(steps)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await settled(cache)
            await assert_nothing_held(cache)


async def test_a_hold_locks_inside_and_releases_at_the_end(
    cache: UnifiedRadixCache, loops: None
) -> None:
    await store(cache, key(16))
    found = await match(cache, key(16))
    async with cache.hold(found) as receipt:
        assert receipt.node == found.last_device_node
        assert (await cache.stats()).receipts == 1
        assert (await cache.evict(EvictParams(num_tokens=16))).num_tokens_evicted == 0
    await settled(cache)
    await assert_nothing_held(cache)


async def test_a_hold_releases_when_its_block_raises(cache: UnifiedRadixCache) -> None:
    await store(cache, key(16))
    found = await match(cache, key(16))

    async def scope() -> None:
        async with cache.hold(found):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await scope()
    await settled(cache)
    await assert_nothing_held(cache)


async def test_an_allocation_repeated_after_its_cancellation_keeps_its_slots() -> None:
    for steps in TURNS:
        async with open_cache(delivery="queued") as cache:
            req = Request("r", tokens(16))
            first = asyncio.ensure_future(cache.allocate(AllocateParams(num_tokens=8, req=req)))
            await turns(steps)
            first.cancel()
            mine = (await cache.allocate(AllocateParams(num_tokens=8, req=req))).indices
            await asyncio.gather(first, return_exceptions=True)
            await settled(cache)
            free = (await cache.stats()).pools["full"]["device"].free
            others = await take(cache, free)
            assert set(mine.tolist()).isdisjoint(others.tolist()), f"{steps} turns"
            await cache.free(others)
            await cache.abort_req(req)
            await assert_nothing_held(cache)


async def test_a_locking_match_can_be_repeated_after_its_cancellation() -> None:
    for steps in TURNS:
        async with open_cache(delivery="queued") as cache:
            await store(cache, key(16))
            req = Request("r", tokens(16))
            first = asyncio.ensure_future(match(cache, req.key(), req=req, lock=True))
            await turns(steps)
            if first.done():
                break
            first.cancel()
            again = await match(cache, req.key(), req=req, lock=True)
            assert req.lock == again.receipt
            await asyncio.gather(first, return_exceptions=True)
            await settled(cache)
            assert req.lock == again.receipt
            await cache.abort_req(req)
            await assert_nothing_held(cache)
    assert steps > 2


@pytest.mark.parametrize("lost", ["AllocateParams", "Reserve"])
async def test_an_allocation_whose_answer_was_lost_is_undone_at_its_deadline(
    make_cache: MakeCache, lost: str
) -> None:
    async with make_cache() as cache:
        drop = DropReply(lost, count=None)
        cache.add_interceptor(drop)
        with pytest.raises(CallTimeout):
            await cache.allocate(AllocateParams(num_tokens=8), timeout=0.02)
        cache.remove_interceptor(drop)
        await settled(cache)
        await assert_nothing_held(cache)


async def test_a_call_can_be_repeated_while_the_answer_to_the_first_is_on_its_way() -> None:
    async with open_cache() as cache:
        await store(cache, key(16))
        commit, answer = Stall(kind="CommitMatch"), StallReplies("coordinator")
        cache.add_interceptor(commit)
        cache.add_interceptor(answer)
        req = Request("r", tokens(16))
        first = asyncio.ensure_future(match(cache, req.key(), req=req, lock=True))
        await until(lambda: bool(commit.held))
        commit_now = StallReplies(kind="CommitMatch")
        cache.add_interceptor(commit_now)
        commit.release()
        await until(lambda: bool(commit_now.held))
        # The lock is taken, so the operation can not be given up any more.
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        second = asyncio.ensure_future(match(cache, req.key(), req=req, lock=True))
        commit_now.release()
        await turns(50)
        answer.release()
        again = await second
        assert req.lock == again.receipt
        for one in (commit, answer, commit_now):
            cache.remove_interceptor(one)
        await settled(cache)
        assert req.lock == again.receipt
        await cache.abort_req(req)
        await assert_nothing_held(cache)


@pytest.mark.parametrize("fault", [DropFirst, Delay, Duplicate])
@pytest.mark.parametrize("undo", ["UndoAllocate", "UndoMatch", "DecLockRef"])
async def test_an_undo_reaches_its_actor_whatever_intercepts(
    monkeypatch: pytest.MonkeyPatch, undo: str, fault: type[DropFirst | Delay | Duplicate]
) -> None:
    monkeypatch.setattr(system_module.ActorSystem, "resend_after_s", 0.001)
    async with open_cache() as cache:
        node = (await store(cache, key(16))).last_device_node
        calls: dict[str, Call] = {
            "UndoAllocate": lambda cache, _: take(cache, 8),
            "UndoMatch": lambda cache, _: match(cache, key(16), lock=True),
            "DecLockRef": lambda cache, _: cache.inc_lock_ref(node),
        }
        faulty = fault(undo, count=None)
        late = StallReplies("coordinator")
        cache.add_interceptor(faulty)
        cache.add_interceptor(late)
        call = asyncio.ensure_future(calls[undo](cache, {}))
        await until(lambda: bool(late.held))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        late.release()
        cache.remove_interceptor(late)
        cache.remove_interceptor(faulty)
        sizes = state_of(cache).carrier.actor
        assert isinstance(sizes, ComponentActor)
        await until(lambda: not (sizes.sizes().held or sizes.sizes().protected))
        await settled(cache)
        await assert_nothing_held(cache)


async def test_a_request_can_match_again_while_the_undo_of_its_match_waits() -> None:
    """The undo is set aside behind a silent component; a repeated match is no second lock."""
    async with open_cache() as cache:
        await store(cache, key(16))
        req = Request(rid="r", origin_input_ids=tokens(16))
        late = StallReplies("coordinator")
        cache.add_interceptor(late)
        call = asyncio.ensure_future(match(cache, req.key(), req=req, lock=True))
        await until(lambda: bool(late.held))
        silent = Stall("full", "Unlock")
        cache.add_interceptor(silent)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await until(lambda: bool(silent.held))
        await until(lambda: not state_of(cache).ledger.claims())
        late.release()
        cache.remove_interceptor(late)
        again = asyncio.ensure_future(match(cache, req.key(), req=req, lock=True))
        await turns(20)
        silent.release()
        cache.remove_interceptor(silent)
        found = await again
        assert req.lock == found.receipt
        await settled(cache)
        assert await cache.audit() == AuditReport()
        assert (await cache.stats()).receipts == 1
        await cache.abort_req(req)
        await assert_nothing_held(cache)


@pytest.mark.parametrize("lost", ["MatchPrefixParams", "CommitMatch"])
async def test_a_locking_match_whose_answer_was_lost_is_undone_after_its_deadline(
    make_cache: MakeCache, lost: str
) -> None:
    async with make_cache() as cache:
        await store(cache, key(16))
        late = StallReplies(kind=lost)
        cache.add_interceptor(late)
        with pytest.raises(CallTimeout):
            await cache.match_prefix(MatchPrefixParams(key(16), lock=True), timeout=0.02)
        late.release()
        cache.remove_interceptor(late)
        await settled(cache)
        await assert_nothing_held(cache)


async def test_a_caller_in_a_tight_loop_of_immediate_calls_does_not_starve_another(
    loops: None,
) -> None:
    async with open_cache(delivery="direct") as cache:
        await store(cache, key(16))
        heard = 0

        async def other() -> None:
            nonlocal heard
            while True:
                heard += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        await turns(1)
        limit = cache.config.limits.immediate_calls
        began = heard
        for _ in range(10 * limit):
            await match(cache, key(16))
        assert heard - began >= 9
        began = heard
        for _ in range(10 * limit):
            found = await match(cache, key(16), lock=True)
            assert found.receipt is not None
            await cache.dec_lock_ref(found.receipt)
        assert heard - began >= 18
        task.cancel()


async def test_two_callers_in_tight_loops_share_the_loop(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        await store(cache, key(16))
        order: list[str] = []

        async def caller(name: str) -> None:
            for _ in range(640):
                await match(cache, key(16))
                order.append(name)

        await asyncio.gather(caller("a"), caller("b"))
        assert order.index("b") <= cache.config.limits.immediate_calls
        assert len(order) - order[::-1].index("a") > 640


async def test_a_cancelled_call_never_wakes_others_with_an_error(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        await store(cache, key(16))
        stall = Stall("full")
        cache.add_interceptor(stall)
        tasks = [asyncio.ensure_future(match(cache, key(16))) for _ in range(6)]
        await turns(3)
        for task in tasks[::2]:
            task.cancel()
        stall.release()
        cache.remove_interceptor(stall)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = [isinstance(result, asyncio.CancelledError) for result in results]
        assert kinds == [True, False] * 3
        await assert_nothing_held(cache)


async def test_an_interceptor_that_does_nothing_changes_no_answer(make_cache: MakeCache) -> None:
    async with make_cache() as cache:
        see = PassThrough()
        cache.add_interceptor(see)
        await store(cache, key(16))
        found = await match(cache, key(20))
        cache.remove_interceptor(see)
        again = await match(cache, key(20))
        assert found.device_indices.tolist() == again.device_indices.tolist()
        assert found.miss_reason is again.miss_reason
