"""Cancelling a caller of the tiers at any turn: nothing stays locked, held or in flight."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from radixtide import CacheClosed, EvictParams, Request, UnifiedRadixCache
from radixtide.components.api import AllocateParams
from radixtide.configs.schema import LimitsConfig, StorageConfig
from support.actors import turns, until
from support.caches import settled, state_of, system_of
from support.held_engine import TURNS_MAX
from support.interceptors import DropFirst, StallReplies
from support.marks import key_marks
from support.tier_cases import in_storage, on_host
from support.tier_config import SETS, Components, tier_config
from support.tiered import Tiers, soon

sets = pytest.mark.parametrize("components", [SETS[0], SETS[-1]], ids="+".join)

TURNS: Final = (*range(5), 6, 9, 14, 30, None)
"""After so many turns of the loop the caller is cancelled; None: when its call is over."""
FEW_TURNS: Final = (1, 2, 4, 7, 12, 25, None)

Things = dict[str, Any]
Call = Callable[[Tiers, Things], Awaitable[Any]]


@asynccontextmanager
async def opened(components: Components, **fields: Any) -> AsyncGenerator[Tiers, None]:
    """Open a cache that queues all messages; in the end nothing is held and both tiers empty."""
    config = tier_config(components, delivery="queued", page_size=4, **fields)
    async with UnifiedRadixCache(config) as cache:
        t = Tiers(cache)
        yield t
        await t.drain_and_check()
        assert not system_of(cache).unheard_errors


async def half_on_device(t: Tiers) -> None:
    """Have the first four pages on both tiers, four more on the host; two are to be fetched."""
    if t.store is not None:
        await in_storage(t, 8, 10)
        await t.put(t.key(4))
        await t.put(t.key(8), prev=4)
        await t.settle()
        await t.demote()
    else:
        await on_host(t, 4, 8)
    assert await t.load(t.key(4)) == 4


async def prepare(t: Tiers) -> Things:
    """Prepare what the calls work on."""
    await half_on_device(t)
    req = Request("r", t.span(10))
    await t.match(t.key(10), req=req, lock=True)
    return {"found": await t.match(t.key(10)), "req": req, "fork": [*t.span(6), *t.span(2, 600)]}


async def load_inside(t: Tiers, at: Things) -> Any:
    return await t.cache.load_back(await t.match(t.key(at["fork"])))


async def load_and_wait(t: Tiers, at: Things) -> Any:
    handle = await t.cache.load_back(at["found"])
    try:
        await handle.wait()
    except asyncio.CancelledError:
        await handle.close()
        raise
    return handle


async def load_in_a_block(t: Tiers, at: Things) -> None:
    async with await t.cache.load_back(at["found"]) as handle:
        await handle.wait()


async def fetch_in_a_block(t: Tiers, at: Things) -> None:
    async with await t.cache.prefetch(t.key(10)) as handle:
        await handle.wait()


LOADS: dict[str, Call] = {
    "load_back": lambda t, at: t.cache.load_back(at["found"]),
    "load_back of a part of a node": load_inside,
    "load_back for a request": lambda t, at: t.cache.load_back(at["found"], at["req"]),
    "load_back and wait": load_and_wait,
    "load_back in a block": load_in_a_block,
}
FETCHES: dict[str, Call] = {
    "prefetch": lambda t, _: t.cache.prefetch(t.key(10)),
    "prefetch for a request": lambda t, at: t.cache.prefetch(t.key(10), at["req"]),
    "prefetch in a block": fetch_in_a_block,
}
WHOLE: dict[str, Call] = {
    "drain": lambda t, _: t.cache.drain(),
    "flush of the host": lambda t, _: t.cache.flush("host", 5.0),
    "flush of the storage": lambda t, _: t.cache.flush("storage", 5.0),
    "step": lambda t, _: t.cache.step(),
    "detach_storage": lambda t, _: t.cache.detach_storage(),
}


async def cancel(task: asyncio.Task[Any], steps: int | None) -> None:
    """Cancel a task after some turns of the loop; None: when it is done."""
    if steps is None:
        await until(task.done, TURNS_MAX)
    else:
        await turns(steps)
    task.cancel()


def what_it_has(req: Request) -> tuple[Any, ...]:
    """Return what a request holds by its own account."""
    indices = None if req.prefix_indices is None else req.prefix_indices.tolist()
    return req.lock, req.last_node, req.cache_protected_len, indices


@pytest.mark.parametrize(
    ("components", "name"),
    [
        *((SETS[0], name) for name in (*LOADS, *FETCHES, *WHOLE)),
        *((SETS[-1], name) for name in ("load_back for a request", "prefetch in a block")),
    ],
)
async def test_a_call_cancelled_at_any_turn_leaves_nothing_behind(
    components: Components, name: str
) -> None:
    call = {**LOADS, **FETCHES, **WHOLE}[name]
    stored: dict[str, Any] = {}
    if name not in LOADS:
        stored = {"url": "memory:", "storage": {"prefetch_policy": "wait_complete"}}
    for steps in TURNS if components == SETS[0] else FEW_TURNS:
        async with opened(components, **stored) as t:
            at = await prepare(t)
            before, had = await t.cache.stats(), what_it_has(at["req"])
            task = asyncio.ensure_future(call(t, at))
            await cancel(task, steps)
            result: Any = (await asyncio.gather(task, return_exceptions=True))[0]
            cancelled = isinstance(result, asyncio.CancelledError)
            assert steps is not None or not cancelled
            assert cancelled or not isinstance(result, Exception)
            await settled(t.cache)
            await t.settle()
            after = await t.cache.stats()
            if cancelled:
                assert after.receipts == before.receipts
                assert what_it_has(at["req"])[1:] == had[1:]
                assert not state_of(t.cache).tiers.loads  # type: ignore[union-attr]  # there are
                assert after.pools["full"]["device"].held == before.pools["full"]["device"].held
            elif result is not None and hasattr(result, "close"):
                await result.close()
            await t.cache.abort_req(at["req"])
            assert not state_of(t.cache).tiers.loads  # type: ignore[union-attr]  # there are tiers
            assert t.cache.transfers == 0


async def test_a_request_whose_load_was_cancelled_can_load_again() -> None:
    for steps in range(9):
        async with opened(SETS[-1]) as t:
            at = await prepare(t)
            first = asyncio.ensure_future(t.cache.load_back(at["found"], at["req"]))
            await cancel(first, steps)
            again = await t.cache.load_back(at["found"], at["req"])
            await asyncio.gather(first, return_exceptions=True)
            assert await again.wait() == 8 * t.page
            await settled(t.cache)
            assert at["req"].lock == again.receipt
            assert len(at["req"].prefix_indices) == 8 * t.page
            t.marks.check("full", at["req"].prefix_indices, key_marks(t.key(8)))
            await t.cache.abort_req(at["req"])


@sets
@pytest.mark.parametrize("lost", ["LoadBackCall", "LockSplit", "BeginLoad", "PinHost", "PathSlots"])
async def test_a_load_whose_answer_was_late_is_undone(components: Components, lost: str) -> None:
    async with opened(components) as t:
        at = await prepare(t)
        await t.cache.abort_req(at["req"])
        late = StallReplies(kind=lost)
        t.cache.add_interceptor(late)
        call = asyncio.ensure_future(t.cache.load_back(at["found"]))
        await until(lambda: bool(late.held))
        await cancel(call, 3)
        await asyncio.gather(call, return_exceptions=True)
        assert call.cancelled()
        late.release()
        t.cache.remove_interceptor(late)
        await settled(t.cache)
        assert (await t.cache.stats()).receipts == 0


async def test_who_waits_for_room_and_leaves_leaves_nothing() -> None:
    """Two wait for a write-back, in line; both callers are cancelled."""
    small: dict[str, Any] = {"pages": 4, "policy": "write_back"}
    async with opened(("full",), **small) as t:
        await on_host(t, 2)
        await t.put(t.key(t.span(4, 100)))
        t.engine.hold("backup")
        waiting: list[asyncio.Task[Any]] = [
            await soon(t.cache.allocate(AllocateParams(num_tokens=8))),
            await soon(t.cache.evict(EvictParams(num_tokens=8))),
        ]
        assert not any(task.done() for task in waiting)
        # A load waits for nobody: it is the device part.
        async with await t.cache.load_back(await t.match(t.key(2))) as handle:
            assert handle.length == 0
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        t.engine.hold_no_more()
        t.engine.release()
        await settled(t.cache)
        await t.settle()
        # What gives is carried out: the eviction.
        assert (await t.pool(tier="device")).evictable == 0


@sets
@pytest.mark.parametrize("held", ["exists", "get_into"])
async def test_a_fetch_whose_waiter_was_cancelled_goes_on_until_it_is_closed(
    components: Components, held: str
) -> None:
    stored: dict[str, Any] = {"url": "memory:", "storage": {"prefetch_policy": "wait_complete"}}
    async with opened(components, **stored) as t:
        await in_storage(t, 8)
        assert t.store is not None
        store = t.store
        store.hold(held)
        fetch = await t.cache.prefetch(t.key(8))
        await until(lambda: store.waiting(held) > 0, TURNS_MAX)
        waiting = await soon(fetch.wait())
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert t.cache.transfers == 1
        store.release()
        assert await fetch.wait() == 8 * t.page
        await fetch.close()
        assert await t.hit(t.key(8)) == (0, 8)


@pytest.mark.nightly
async def test_an_attach_cancelled_at_any_turn_is_made_or_not() -> None:
    config = StorageConfig(url="memory:")
    made = 0
    for steps in TURNS:
        async with opened(("full",)) as t:
            await t.put(t.key(4))
            await t.settle()
            task = asyncio.ensure_future(t.cache.attach_storage(config))
            await cancel(task, steps)
            await asyncio.gather(task, return_exceptions=True)
            await settled(t.cache)
            await t.settle()
            attached = t.picture() == [(0, 4, "DHS")]
            made += attached
            if not attached:
                assert t.picture() == [(0, 4, "DH")]
                await t.cache.attach_storage(config)
                await t.settle()
                assert t.picture() == [(0, 4, "DHS")]
            await t.cache.detach_storage()
            assert t.picture() == [(0, 4, "DH")]
    assert made


@pytest.mark.parametrize("steps", range(8))
async def test_a_detach_that_is_cancelled_while_it_waits_is_carried_out(steps: int) -> None:
    async with opened(("full",), url="memory:") as t:
        assert t.store is not None
        t.store.hold("put_from")
        await t.put(t.key(4))
        await t.stored(1)
        task = asyncio.ensure_future(t.cache.detach_storage())
        await turns(steps)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        t.store.release()
        await settled(t.cache)
        await t.cache.drain()
        await until(lambda: not steps or (t.cache.storage_jobs is None and not t.cache._setting))
        if steps:
            await t.cache.attach_storage(StorageConfig(url="memory:"))
            await t.settle()
            assert t.picture() == [(0, 4, "DHS")]


@pytest.mark.parametrize("leave", [False, True], ids=["stays", "leaves"])
async def test_a_detach_that_is_lost_while_the_cache_closes_is_refused(
    leave: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Seed 120047: nobody was there to hear it, and who stayed was told that it is carried out."""
    limits = LimitsConfig(resend_after_s=0.01)
    config = tier_config(("full",), delivery="queued", url="memory:", limits=limits)
    async with UnifiedRadixCache(config) as cache:
        system = system_of(cache)
        drop = DropFirst("SetStorage")
        cache.add_interceptor(drop)
        task = asyncio.ensure_future(cache.detach_storage())
        await until(lambda: drop.hits == 1)
        if leave:
            task.cancel()
        await cache.close()
        with pytest.raises(asyncio.CancelledError if leave else CacheClosed):
            await task
        await until(lambda: system.unheard_errors == int(leave))
        gc.collect()
    assert system.unheard_errors == int(leave)
    assert ("detach_storage failed unheard" in caplog.text) == leave
    assert "never retrieved" not in caplog.text
