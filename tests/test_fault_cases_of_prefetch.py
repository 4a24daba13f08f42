"""Faults that users of other caches reported: fetching from storage (kinds K11-1 to K11-8).

The table in test_fault_cases_of_backup.py says which case is where.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from radixtide import CallTimeout, Request
from radixtide.tiers.page_hash import page_hashes
from radixtide.tiers.storage.base import PageKey
from support.actors import turns, until
from support.caches import Delivery
from support.held_engine import TURNS_MAX
from support.tier_config import Components, everywhere, with_another, with_window
from support.tiered import Tiers, soon, tiers
from support.troubled_store import TroubledStore

PATIENT: dict[str, Any] = {"prefetch_policy": "wait_complete", "timeout_s": 60.0}


def address(folder: Path) -> str:
    return f"file:{folder / 'store'}"


async def fill(delivery: Delivery, components: Components, *ends: int, **fields: Any) -> None:
    """Have the pages of ``t.key(...)`` in storage, each of `ends` the end of a node."""
    async with tiers(delivery, components, **fields) as t:
        begin = 0
        for end in ends:
            await t.put(t.key(end), prev=begin)
            begin = end
        await t.settle()
        assert {bits for _, _, bits in t.picture()} == {"DHS"}


def page_number(t: Tiers, key: PageKey, of: int = 16) -> int:
    """Return which page of ``t.key(...)`` a stored page belongs to."""
    hashes = page_hashes(t.key(of).raw, t.page, False, None)
    chains = [hashes[at : at + 32].hex() for at in range(0, len(hashes), 32)]
    return chains.index(key.chain.partition("-")[0])


async def began(store: TroubledStore | None, operation: str, count: int = 1) -> None:
    """Wait until calls of an operation have begun."""
    assert store is not None
    await until(lambda: store.waiting(operation) >= count, TURNS_MAX)


@everywhere
@pytest.mark.parametrize("held", ["get_into", pytest.param("exists", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("end", ["close", "block", "abort", "cancel"])
async def test_k11_1_a_prefetch_that_is_given_up_gives_all_its_host_slots_back(
    delivery: Delivery, components: Components, page_size: int, held: str, end: str, tmp_path: Path
) -> None:
    """However it is given up, as often as the host has room: nothing leaks, the next one works."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    await fill(delivery, components, 8, **fields)
    small: dict[str, Any] = {"host_pages": 16, "host_swa_pages": 16, "host_states": 4}
    async with tiers(delivery, components, **fields, **small) as t:
        assert t.store is not None
        before = await t.sizes()
        for turn in range(6):
            t.store.hold(held)
            req = Request(f"r{turn}", t.span(8))
            fetch = await t.cache.prefetch(t.key(8), req)
            await began(t.store, held)
            waiting = await soon(fetch.wait())
            assert not waiting.done()
            await t.sound()
            if end == "close":
                await fetch.close()
            elif end == "block":
                async with fetch:
                    pass
            elif end == "abort":
                await t.cache.abort_req(req)
                await fetch.close()
            else:
                waiting.cancel()
                await turns(3)
                await fetch.close()
            await t.sound()
            t.store.release()
            await t.cache.drain()
            if end == "cancel":
                assert waiting.cancelled()
            else:
                assert await waiting == 0
            await t.sound()
            assert await t.sizes() == before
            assert await t.hit(t.key(8)) == (0, 0)
        async with await t.cache.prefetch(t.key(8)) as fetch:
            assert await fetch.wait() == 8 * page_size
        assert await t.load(t.key(8)) == 8


@everywhere
async def test_k11_2_of_eight_asked_for_four_are_there_and_the_rest_is_given_back_once(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """The part that storage does not have takes no host slot in the end."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    await fill(delivery, components, 4, **fields)
    async with tiers(delivery, components, **fields) as t:
        async with await t.cache.prefetch(t.key(8)) as fetch:
            assert fetch.pages == 8
            assert await fetch.wait() == 4 * page_size
            assert await fetch.wait() == 4 * page_size
        pool = await t.pool()
        assert pool.size - pool.free == 4 * page_size
        await t.sound()
        assert await t.hit(t.key(8)) == (0, 4)
        assert await t.load(t.key(8)) == 4


@everywhere
@pytest.mark.parametrize("policy", ["best_effort", "timeout"])
@pytest.mark.parametrize("lost", [False, True], ids=["late", "lost"])
async def test_k11_2_what_arrives_after_the_end_changes_nothing(
    delivery: Delivery,
    components: Components,
    page_size: int,
    policy: str,
    lost: bool,
    tmp_path: Path,
) -> None:
    """Stopped after a part: that part is kept where it can be used; the late rest is let go."""
    early: dict[str, Any] = {"prefetch_policy": policy, "batch_pages": 2, "timeout_s": 60.0}
    if policy == "timeout":
        early |= {"prefetch_timeout_base_s": 0.05, "prefetch_timeout_per_page_s": 1e-6}
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path)}
    await fill(delivery, components, 8, **fields, storage=PATIENT)
    async with tiers(delivery, components, **fields, storage=early) as t:
        assert t.store is not None
        fetch = await t.cache.prefetch(t.key(8))
        await began(t.store, "get_into")
        t.store.hold("get_into")
        await until(lambda: t.store is not None and t.store.calls["get_into"] > 1, TURNS_MAX)
        brought = await asyncio.wait_for(fetch.wait(), 30)
        await t.sound()
        assert brought in range(0, 8 * page_size, page_size)
        if components != ("full",):
            assert brought == 0, "a window or a state that is not whole is of no use"
        if lost:
            t.store.loses = lambda _: True
        t.store.release()
        await t.cache.drain()
        await t.sound()
        assert (await t.hit(t.key(8)))[1] * page_size == brought
        await fetch.close()
        t.store.loses = lambda _: False
        async with await t.cache.prefetch(t.key(8)) as again:
            await again.wait()


@with_another
@pytest.mark.parametrize("when", ["absent", "lost"])
async def test_k11_4_only_as_much_is_published_as_all_components_have(
    delivery: Delivery, components: Components, page_size: int, when: str, tmp_path: Path
) -> None:
    """Full is stored to four, its windows or states only to two: two are good, four are not."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "window": 2}
    fields["storage"] = PATIENT
    await fill(delivery, components, 2, 4, **fields)
    side = components[-1]
    async with tiers(delivery, components, **fields) as t:
        assert t.store is not None

        def gone(key: PageKey) -> bool:
            return key.pool == side and page_number(t, key) >= 2

        if when == "lost":
            t.store.loses = gone
        else:
            named = t.store.inner.exists

            async def exists(keys: Any) -> list[bool]:
                answers = await named(keys)
                return [there and not gone(key) for key, there in zip(keys, answers, strict=True)]

            t.store.inner.exists = exists  # type: ignore[method-assign]  # pages that are deleted
        async with await t.cache.prefetch(t.key(4)) as fetch:
            brought = await fetch.wait() // page_size
        assert brought in ((2,) if when == "absent" else (0, 2))
        assert await t.hit(t.key(4)) == (0, brought)
        await t.sound()
        assert await t.load(t.key(4)) == brought


@everywhere
async def test_k11_5_with_little_room_on_the_host_key_and_slots_get_shorter_together(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """Eight are there, four fit: four are fetched, named and found; or none, if no use."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "window": 2}
    fields["storage"] = PATIENT
    await fill(delivery, components, 4, 8, **fields)
    small: dict[str, Any] = {"host_pages": 16, "host_swa_pages": 16, "host_states": 4}
    async with tiers(delivery, components, **fields, **small) as t:
        # What is being loaded is protected, and so leaves four pages of the host.
        await t.put(t.key(t.span(12, 500)))
        await t.settle()
        await t.demote()
        t.engine.hold("load")
        handle = await t.cache.load_back(await t.match(t.key(t.span(12, 500))))
        assert await t.free_pages() == 4
        async with await t.cache.prefetch(t.key(8)) as fetch:
            brought = await fetch.wait() // page_size
        assert brought == 4 if components == ("full",) else brought in (0, 4)
        await t.sound()
        assert await t.free_pages() == 4 - brought
        assert await t.hit(t.key(8)) == (0, brought)
        t.engine.release()
        assert await handle.wait() == 12 * page_size
        await handle.close()
        t.engine.hold_no_more()
        await t.settle()
        assert await t.load(t.key(8)) == brought


@everywhere
async def test_k11_6_waiting_for_all_waits_before_anything_is_known_too(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """While storage has not said what it has, nothing planned and nothing done is not the end."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    await fill(delivery, components, 8, **fields)
    async with tiers(delivery, components, **fields) as t:
        assert t.store is not None
        t.store.hold("exists", "get_into")
        async with await t.cache.prefetch(t.key(8)) as fetch:
            waiting = await soon(fetch.wait())
            assert not waiting.done()
            await began(t.store, "exists")
            t.store.release("exists")
            await began(t.store, "get_into")
            await turns(50)
            assert not waiting.done()
            t.store.release()
            assert await waiting == 8 * page_size


@everywhere
@pytest.mark.parametrize("policy", ["best_effort", "timeout"])
@pytest.mark.parametrize("held", ["exists", "get_into"])
async def test_k11_7_the_deadline_ends_the_wait_whatever_is_still_pending(
    delivery: Delivery,
    components: Components,
    page_size: int,
    policy: str,
    held: str,
    tmp_path: Path,
) -> None:
    """A store that does not answer costs the time that the policy allows, and no more."""
    early: dict[str, Any] = {"prefetch_policy": policy, "timeout_s": 60.0}
    if policy == "timeout":
        early |= {"prefetch_timeout_base_s": 0.05, "prefetch_timeout_per_page_s": 1e-6}
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path)}
    await fill(delivery, components, 8, **fields, storage=PATIENT)
    async with tiers(delivery, components, **fields, storage=early) as t:
        assert t.store is not None
        t.store.hold(held)
        fetch = await t.cache.prefetch(t.key(8))
        await began(t.store, held)
        # The slots are not free before the store has let go of them; the caller does not wait.
        assert await asyncio.wait_for(fetch.wait(), 5) == 0
        await t.sound()
        assert await t.hit(t.key(8)) == (0, 0)
        t.store.release()
        await t.cache.drain()
        await t.sound()
        await fetch.close()


@with_window
async def test_k11_7_a_window_that_is_late_shortens_the_hit_and_not_the_patience(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """Full has arrived, its window has not: the deadline counts all the same."""
    early: dict[str, Any] = {"prefetch_policy": "timeout", "prefetch_timeout_base_s": 0.05}
    early |= {"prefetch_timeout_per_page_s": 1e-6, "timeout_s": 60.0}
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path)}
    await fill(delivery, components, 8, **fields, storage=PATIENT)
    async with tiers(delivery, components, **fields, storage=early) as t:
        store = t.store
        assert store is not None
        gate = asyncio.Event()
        read = store.inner.get_into

        async def get_into(keys: Any, targets: Any, digests: Any = None) -> list[bool]:
            if keys[0].pool == "swa":
                await gate.wait()
            return await read(keys, targets, digests)

        store.inner.get_into = get_into  # type: ignore[method-assign]  # one pool is slow
        fetch = await t.cache.prefetch(t.key(8))
        assert await asyncio.wait_for(fetch.wait(), 5) == 0
        assert await t.hit(t.key(8)) == (0, 0)
        gate.set()
        await t.cache.drain()
        await t.sound()
        await fetch.close()


@everywhere
async def test_k11_8_the_end_of_a_prefetch_is_noticed_without_another_call(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """Who waits goes on as soon as the bytes are there; nobody has to come and look."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    await fill(delivery, components, 8, **fields)
    async with tiers(delivery, components, **fields) as t:
        assert t.store is not None
        fetches = [await t.cache.prefetch(t.key(8)) for _ in range(3)]
        got = await asyncio.wait_for(asyncio.gather(*(one.wait() for one in fetches)), 30)
        assert sum(got) == 8 * page_size, "it is brought once, whoever asks"
        assert await t.hit(t.key(8)) == (0, 8)
        for one in fetches:
            await one.close()
        pool = await t.pool()
        assert pool.size - pool.free == 8 * page_size


@everywhere
async def test_k2_a_node_that_is_split_while_a_fetch_hangs_on_to_it(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """What arrives is put below the right fragment, and the rest of the fragments is let go."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    await fill(delivery, components, 4, 8, **fields)
    async with tiers(delivery, components, **fields) as t:
        assert t.store is not None
        async with await t.cache.prefetch(t.key(4)) as fetch:
            assert await fetch.wait() == 4 * page_size
        t.store.hold("get_into")
        async with await t.cache.prefetch(t.key(8)) as fetch:
            await began(t.store, "get_into")
            for at in (2, 3, 1):
                await t.match(t.key([*t.span(at), *t.span(1, 400)]))
                await t.put(t.key([*t.span(at), *t.span(2, 400 + at)]))
                await t.sound()
            await t.copied()
            t.store.release()
            assert await fetch.wait() == 4 * page_size
        await t.settle()
        device, host = await t.hit(t.key(8))
        assert device + host == 8
        assert await t.load(t.key(8)) == 8


@everywhere
@pytest.mark.parametrize("longer", [False, True], ids=["the same", "more"])
async def test_k11_what_is_inserted_while_it_is_fetched_is_not_there_twice(
    delivery: Delivery, components: Components, page_size: int, longer: bool, tmp_path: Path
) -> None:
    """A request computes what storage is about to bring: one copy stays, the other is let go."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "storage": PATIENT}
    await fill(delivery, components, 8, **fields)
    async with tiers(delivery, components, **fields) as t:
        assert t.store is not None
        t.store.hold("get_into")
        async with await t.cache.prefetch(t.key(8)) as fetch:
            await began(t.store, "get_into")
            await t.put(t.key(12 if longer else 5))
            await t.sound()
            t.store.release()
            assert await fetch.wait() in range(0, 8 * page_size + 1, page_size)
        await t.settle()
        assert (await t.hit(t.key(8)))[0] == (8 if longer and components[-1] != "mamba" else 5) or (
            t.has("mamba")
        )
        pool = await t.pool()
        assert pool.size - pool.free <= 12 * page_size


@everywhere
async def test_k12_4_nobody_waits_for_a_store_that_never_answers(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """The guard gives the store so long and no longer; other calls do not wait at all."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path)}
    await fill(delivery, components, 8, **fields)
    deaf: dict[str, Any] = {"prefetch_policy": "wait_complete", "timeout_s": 0.1}
    async with tiers(delivery, components, **fields, storage=deaf) as t:
        assert t.store is not None
        t.store.hold("exists", "get_into", "put_from")
        fetch = await t.cache.prefetch(t.key(8))
        with pytest.raises(CallTimeout):
            await fetch.wait(timeout=0.01)
        await t.put(t.key(t.span(8, 300)))
        assert await t.hit(t.key(t.span(8, 300))) == (8, 0)
        assert await asyncio.wait_for(fetch.wait(), 30) == 0
        await fetch.close()
        await asyncio.wait_for(t.cache.drain(), 30)
        await t.sound()
