"""The simulated store: what every store must do, and what a disk keeps of a killed process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, Literal, TypeVar

import pytest

from radixtide.configs.errors import InvalidInput
from radixtide.simulation.decisions import StorageFault
from radixtide.simulation.loop import SimulatedLoop
from radixtide.simulation.plan import Operation
from radixtide.tiers.copy_engine import CopyJob
from radixtide.tiers.storage import PageKey, StorageBackend, StorageClosed, StorageFailed
from support.simulated_stores import SimulatedRig
from support.stores import page_bytes, page_keys, targets
from support.suites import again

T = TypeVar("T")

for suite in ("test_storage_backends", "test_storage_damage", "test_storage_cancellation"):
    globals().update(again(suite, ("rig", "store")))


@pytest.fixture(params=range(3))
def rig(request: pytest.FixtureRequest) -> SimulatedRig:
    """Return a disk, whose stores take other times with each seed."""
    return SimulatedRig(request.param)


@pytest.fixture
async def store(rig: SimulatedRig) -> AsyncGenerator[StorageBackend, None]:
    opened = await rig.opened()
    yield opened
    await rig.done(opened)


class Planted:
    """Decides that one thing happens to every call of an operation."""

    def __init__(self, operation: Operation, fault: StorageFault) -> None:
        self.operation = operation
        self.fault: StorageFault | None = fault
        self.asked: list[tuple[Operation, int]] = []

    def storage(self, operation: Operation, count: int) -> StorageFault | None:
        self.asked.append((operation, count))
        return self.fault if operation == self.operation else None

    def copy(self, job: CopyJob) -> None:
        raise AssertionError("this is no engine")

    def refuses_host(self, component: str) -> bool:
        raise AssertionError("this has no host memory")

    def skew(self, rank: int) -> float:
        raise AssertionError("this is no rank")


def on_a_loop(seed: int, work: Callable[[SimulatedRig], Coroutine[Any, Any, T]]) -> T:
    """Return what `work` came to on a simulated loop."""
    return SimulatedLoop(seed).run(work(SimulatedRig(seed)))


SEEDS = range(12)
KEYS = page_keys(4)
PAGES = page_bytes(4, 100)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("done", [False, True])
def test_a_write_that_fails_has_been_done_in_part_or_all_the_same(share: float, done: bool) -> None:
    async def work(rig: SimulatedRig) -> int:
        fault = StorageFault(kind="storage_fail", share=share, done=done)
        async with rig.store(faults=Planted("put", fault)) as store:
            with pytest.raises(StorageFailed, match="as it was to"):
                await store.put_from(KEYS, PAGES)
            assert await store.exists(KEYS) == [key.name in rig.disk.frames for key in KEYS]
            assert store.stats().puts == 0
        return len(rig.disk.frames)

    written = [on_a_loop(seed, work) for seed in SEEDS]
    if done:
        assert set(written) == {4}
    else:
        # Some stores write page by page, some all of a call at once.
        assert max(written) == int(share * 4)


@pytest.mark.parametrize("operation", ["exists", "get", "delete", "clear"])
def test_a_call_that_fails_says_so_and_later_ones_work(operation: Operation) -> None:
    async def work(rig: SimulatedRig) -> None:
        faults = Planted(operation, StorageFault(kind="storage_fail"))
        async with rig.store(faults=faults) as store:
            await store.put_from(KEYS, PAGES)
            calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
                "exists": lambda: store.exists(KEYS),
                "get": lambda: store.get_into(KEYS, targets(4, 100)),
                "delete": lambda: store.delete(KEYS),
                "clear": store.clear,
            }
            with pytest.raises(StorageFailed):
                await calls[operation]()
            assert faults.asked == [("put", 4), (operation, 0 if operation == "clear" else 4)]
            faults.fault = None
            assert await store.exists(KEYS) == [True] * 4

    on_a_loop(1, work)


def test_a_call_that_is_slow_takes_that_time_and_is_right() -> None:
    async def work(rig: SimulatedRig) -> None:
        loop = asyncio.get_running_loop()
        faults = Planted("get", StorageFault(kind="storage_slow", seconds=3.0))
        async with rig.store(faults=faults) as store:
            await store.put_from(KEYS, PAGES)
            begun, out = loop.time(), targets(4, 100)
            assert await store.get_into(KEYS, out) == [True] * 4
            assert out == PAGES
            assert 3.0 < loop.time() - begun < 3.2

    on_a_loop(1, work)


@pytest.mark.parametrize("kind", ["storage_corrupt", "storage_torn"])
@pytest.mark.parametrize("operation", ["put", "get"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.4, 0.999])
def test_a_page_that_is_damaged_on_the_disk_is_found_when_it_is_read(
    kind: Literal["storage_corrupt", "storage_torn"], operation: Operation, share: float
) -> None:
    async def work(rig: SimulatedRig) -> None:
        fault = StorageFault(kind=kind, page=2, share=share)
        faults = Planted(operation, fault)
        async with rig.store(faults=faults) as store:
            # Whoever writes hears nothing of it.
            assert await store.put_from(KEYS, PAGES) == [True] * 4
            out = targets(4, 100)
            assert await store.get_into(KEYS, out) == [True, True, False, True]
            assert out[0::3] == PAGES[0::3]
            assert store.stats().bad == 1
            faults.fault = None
            assert await store.exists(KEYS) == [True, True, False, True]

    on_a_loop(1, work)


def test_of_what_a_killed_store_was_writing_there_is_all_or_nothing_or_a_beginning() -> None:
    whole = _frames()
    seen = set()
    for seed in range(200):

        async def work(rig: SimulatedRig, seed: int = seed) -> list[str]:
            store = rig.store()
            await store.open()
            call = asyncio.ensure_future(store.put_from(KEYS, PAGES))
            await asyncio.sleep(1e-4 * (seed % 20))
            finished = call.done()
            store.crash()
            there = dict(rig.disk.frames)
            with pytest.raises(StorageClosed):
                await store.exists(KEYS)
            with pytest.raises(StorageClosed):
                await store.open()
            outcome = (await asyncio.gather(call, return_exceptions=True))[0]
            await store.close()
            await asyncio.sleep(1.0)
            assert finished or isinstance(outcome, StorageClosed)
            # Nothing is written by the dead.
            assert rig.disk.frames == there
            found = ["whole" if whole[name] == one else "torn" for name, one in there.items()]
            async with rig.store() as second:
                out = targets(4, 100)
                read = await second.get_into(KEYS, out)
                assert second.stats().bad == found.count("torn")
            for page, wanted, ok in zip(out, PAGES, read, strict=True):
                assert not ok or page == wanted
            assert sum(read) == found.count("whole")
            return found + ["missing"] * (4 - len(found))

        seen.update(on_a_loop(seed, work))
    assert seen == {"whole", "torn", "missing"}


def _frames(size: int = 100) -> dict[str, bytes]:
    async def work(rig: SimulatedRig) -> dict[str, bytes]:
        async with rig.store() as store:
            await store.put_from(KEYS, page_bytes(4, size))
        return rig.disk.frames

    return on_a_loop(0, work)


def test_a_cancelled_write_may_still_come_but_not_after_what_is_asked_later() -> None:
    came = set()
    for seed in range(120):

        async def work(rig: SimulatedRig, seed: int = seed) -> tuple[bool, bool]:
            async with rig.store() as store:
                call = asyncio.ensure_future(store.put_from(KEYS[:1], PAGES[:1]))
                await asyncio.sleep(5e-5 * (seed % 40))
                call.cancel()
                await asyncio.gather(call, return_exceptions=True)
                at_once = bool(rig.disk.frames)
                if seed % 2:
                    await store.clear()
                    await asyncio.sleep(1.0)
                    assert rig.disk.frames == {}
                    return False, False
                await asyncio.sleep(1.0)
                return at_once, bool(rig.disk.frames)

        came.add(on_a_loop(seed, work))
    assert came == {(False, False), (False, True), (True, True)}


def test_calls_touch_memory_and_disk_at_moments_apart() -> None:
    async def work(rig: SimulatedRig) -> int:
        steps = set()
        async with rig.store() as store:
            call = asyncio.ensure_future(store.put_from(KEYS, PAGES))
            while not call.done():
                steps.add(len(rig.disk.frames))
                await asyncio.sleep(0)
        return len(steps)

    steps = {on_a_loop(seed, work) for seed in range(30)}
    # All of a call together, or in two or more steps.
    assert min(steps) == 2
    assert max(steps) > 2


def test_one_seed_is_one_course_of_events_and_it_is_told() -> None:
    async def work(rig: SimulatedRig) -> list[Any]:
        told: list[Any] = []
        loop = asyncio.get_running_loop()

        def note(
            operation: str, keys: Sequence[PageKey], answer: Any, error: BaseException | None
        ) -> None:
            told.append((loop.time(), operation, len(keys), answer, repr(error)))

        async with rig.store(note=note) as store:
            await asyncio.gather(
                *(store.put_from(KEYS[at : at + 1], PAGES[at : at + 1]) for at in range(4)),
                store.exists(KEYS),
                store.get_into(KEYS, targets(4, 100)),
                store.delete(KEYS[:1]),
            )
            with pytest.raises(InvalidInput):
                await store.get_into(KEYS, [])
        return told

    first = on_a_loop(1, work)
    assert first == on_a_loop(1, work)
    assert first != on_a_loop(2, work)
    assert [operation for _, operation, *_ in first].count("put") == 4
    assert first[-1][1:4] == ("get", 4, None)
    assert "InvalidInput" in first[-1][4]


def test_a_full_disk_lets_the_oldest_go_children_first() -> None:
    size = max(len(frame) for frame in _frames(5000).values())

    async def work(_: SimulatedRig) -> None:
        rig = SimulatedRig(max_bytes=6 * size)
        async with rig.store() as store:
            for line in range(2):
                assert all(await store.put_from(page_keys(3, line=line), page_bytes(3)))
            assert all(await store.get_into(page_keys(3, line=0), targets(3)))
            assert await store.put_from(page_keys(2, line=2), page_bytes(2)) == [True] * 2
            assert await store.exists(page_keys(3, line=1)) == [True, False, False]
            assert await store.exists(page_keys(3, line=0)) == [True] * 3
            stats = store.stats()
            assert (stats.evicted, stats.values, stats.max_bytes) == (2, 6, 6 * size)
            assert stats.bytes == rig.disk.size <= 6 * size
            # One call's own pages do not go for each other, and what has no room is refused.
            long = await store.put_from(page_keys(9, line=3), page_bytes(9))
            assert long == [True] * 6 + [False] * 3
            assert await store.put_from(page_keys(1, line=4), page_bytes(1, 7 * size)) == [False]
            assert store.stats().refused == 4
        async with rig.store() as second:
            assert await second.exists(page_keys(6, line=3)) == [True] * 6

    on_a_loop(1, work)
