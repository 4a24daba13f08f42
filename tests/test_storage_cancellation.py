"""A cancelled call leaves the caller's memory alone, and the store in order."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from radixtide.tiers.storage import StorageClosed
from radixtide.tiers.storage.threads import Permit, Withdrawn, Workers
from support.stores import Rig, page_bytes, page_keys, targets
from support.stores import rig as rig

SIZE = 200_000
ROUNDS = 30


async def cancelled_somewhere(call: asyncio.Task[list[bool]], dice: random.Random) -> bool:
    """Let the loop turn a few times, cancel the call, and say whether it was cancelled in time."""
    for _ in range(dice.choice((0, 1, 2, 3, 5, 20, 100, 400))):
        await asyncio.sleep(0)
    call.cancel()
    try:
        await call
    except asyncio.CancelledError:
        return True
    return False


@pytest.mark.usefixtures("no_blocking")
async def test_targets_of_a_cancelled_read_are_the_callers_again(rig: Rig) -> None:
    dice = random.Random(1)
    keys, pages = page_keys(6), page_bytes(6, SIZE)
    store = await rig.opened()
    await store.put_from(keys, pages)
    ours = [memoryview(bytearray(SIZE)) for _ in range(6)]
    cancelled = 0
    for turn in range(ROUNDS):
        call = asyncio.ensure_future(store.get_into(keys, ours))
        if not await cancelled_somewhere(call, dice):
            assert ours == pages
        cancelled += call.cancelled()
        # From here on it is other data; nothing may write over it.
        stamp = bytes([turn + 1]) * SIZE
        for target in ours:
            target[:] = stamp
        await asyncio.gather(*(store.get_into(keys[:1], targets(1, SIZE)) for _ in range(2)))
        assert all(target == stamp for target in ours)
    assert cancelled > ROUNDS // 3
    out = targets(6, SIZE)
    assert await store.get_into(keys, out) == [True] * 6
    assert out == pages
    await rig.done(store)


@pytest.mark.usefixtures("no_blocking")
async def test_sources_of_a_cancelled_write_are_the_callers_again(rig: Rig) -> None:
    dice = random.Random(2)
    store = await rig.opened()
    bad = store.stats().bad
    cancelled = 0
    written = {}
    for turn in range(ROUNDS):
        keys, pages = page_keys(4, line=turn), page_bytes(4, SIZE, seed=turn)
        written[turn] = [bytes(page) for page in pages]
        call = asyncio.ensure_future(store.put_from(keys, pages))
        cancelled += await cancelled_somewhere(call, dice)
        for page in pages:
            page[:] = bytes(SIZE)
    assert cancelled > ROUNDS // 3
    for turn, expected in written.items():
        out = targets(4, SIZE)
        found = await store.get_into(page_keys(4, line=turn), out)
        assert [bytes(page) for page, there in zip(out, found, strict=True) if there] == [
            page for page, there in zip(expected, found, strict=True) if there
        ]
        if rig.kind in ("lmdb", "redis"):
            assert len(set(found)) == 1
    assert store.stats().bad == bad
    await rig.done(store)


async def test_other_calls_go_on_when_one_is_cancelled(rig: Rig) -> None:
    store = await rig.opened()
    keys, pages = page_keys(8, line=50), page_bytes(8, SIZE)
    calls = [
        asyncio.ensure_future(store.put_from([k], [p])) for k, p in zip(keys, pages, strict=True)
    ]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    done = await asyncio.gather(*calls, return_exceptions=True)
    assert done[1::2] == [[True]] * 4
    assert await store.exists(keys[1::2]) == [True] * 4
    await rig.done(store)


async def test_closing_waits_for_what_runs_and_refuses_what_waits(rig: Rig) -> None:
    store = rig.store()
    await store.open()
    keys, pages = page_keys(4, line=60), page_bytes(4, SIZE)
    calls = [
        asyncio.ensure_future(store.put_from(keys[:2], pages[:2])),
        asyncio.ensure_future(store.get_into(keys[2:], targets(2, SIZE))),
    ]
    await asyncio.sleep(0)
    await store.close()
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(outcome, list | StorageClosed), outcome


@pytest.fixture
def workers() -> Workers:
    made = Workers("test", {"lane": 1})
    made.start()
    return made


@pytest.mark.usefixtures("no_blocking")
async def test_a_cancellation_comes_out_only_when_the_memory_is_left_alone(
    workers: Workers,
) -> None:
    inside, leave, left = asyncio.Event(), threading.Event(), []
    loop = asyncio.get_running_loop()

    def work(permit: Permit) -> None:
        with permit.touching():
            loop.call_soon_threadsafe(inside.set)
            leave.wait(10)
            left.append(True)
        with pytest.raises(Withdrawn), permit.touching():
            left.append(False)

    call = asyncio.ensure_future(workers.run("lane", work))
    await inside.wait()
    for _ in range(3):
        call.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not call.done()
    leave.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert left == [True]
    await workers.close(lambda: None)
    assert left == [True]


async def test_work_that_waits_when_it_is_cancelled_never_begins(workers: Workers) -> None:
    leave, begun = threading.Event(), []
    first = asyncio.ensure_future(workers.run("lane", lambda _: leave.wait(10)))
    second = asyncio.ensure_future(workers.run("lane", lambda _: begun.append(True)))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    leave.set()
    assert await first is True
    assert await workers.run("lane", lambda _: 5) == 5
    assert begun == []
    await workers.close(lambda: None)


async def test_a_thread_that_hangs_away_from_the_memory_holds_nobody(workers: Workers) -> None:
    leave = threading.Event()
    call = asyncio.ensure_future(workers.run("lane", lambda _: leave.wait(10)))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    closing = asyncio.ensure_future(workers.close(lambda: None))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(StorageClosed):
        await workers.run("lane", lambda _: None)
    leave.set()
    await workers.close(lambda: None)


async def test_an_error_of_the_work_is_the_callers_and_the_thread_lives(workers: Workers) -> None:
    def fail(_: Permit) -> None:
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        await workers.run("lane", fail)
    assert await workers.run("lane", lambda _: 1) == 1
    await workers.close(lambda: None)
