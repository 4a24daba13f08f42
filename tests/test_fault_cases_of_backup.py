"""Faults that users of other caches reported: splits in flight, and backups (kinds K2 and K9).

Which case of the kinds that need tiers is tested where (B: this file; W:
test_fault_cases_of_write_back.py; L: test_fault_cases_of_load_back.py; S:
test_fault_cases_of_storage.py; P: test_fault_cases_of_prefetch.py; R: test_fault_cases_of_ranks.py;
T: test_fault_cases_with_tiers.py; E: test_fault_cases_of_life_with_tiers.py).

| case | where |
| --- | --- |
| K1-3, K1-9, K3-9 | T, and K1-7 E |
| K2-1, K2-3, K2-5 | B, and for a split while a load or a fetch is under way L and P |
| K4-4, K4-6, K5-7, K5-8, K5-9, K7-5 | T |
| K8-4, K8-6 | sessions are not there |
| K8-7, K8-9, K8-10, K8-12 | E |
| K9-1, K9-4 | W |
| K9-5, K9-6, K9-8, K9-9 | B |
| K10-1, K10-3, K10-4, K10-5, K10-7, K10-8, K10-9, K10-10 | L |
| K11-1, K11-2, K11-4 to K11-8 | P |
| K11-9, K11-11, K11-12 | S |
| K12-1, K12-2, K12-3 | R |
| K12-4 | L and P: no wait is without an end |
| K13-2 to K13-7 | S |

What the earlier kinds are without tiers is told in test_fault_cases_of_windows.py.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from pathlib import Path
from typing import Any, Literal

import pytest

from radixtide.tiers.page_hash import page_hashes
from support.actors import turns
from support.caches import Delivery, state_of
from support.marks import key_marks
from support.tier_config import Components, everywhere, policies
from support.tiered import Tiers, tiers

Phase = Literal["queued", "backing", "storing"]
in_every_phase = pytest.mark.parametrize("phase", ["queued", "backing", "storing"])
BIG: dict[str, Any] = {"pages": 48, "states": 24}
"""Pools in which nothing is evicted."""


def address(folder: Path) -> str:
    return f"file:{folder / 'store'}"


async def bring_to(t: Tiers, phase: Phase) -> None:
    """Insert eight pages, and stop in a phase of their way to storage (``jobs_max`` is 1)."""
    assert t.store is not None
    if phase == "storing":
        t.store.hold("put_from")
    else:
        t.engine.hold("backup")
    if phase == "queued":
        await t.put(t.key(t.span(1, 500)))
        await t.engine.arrived(1)
    await t.put(t.key(8))
    if phase == "backing":
        await t.engine.arrived(1)
    elif phase == "storing":
        await t.stored(1)
    else:
        await turns(20)
        assert len(t.engine.held()) == 1


def check_stored_once(t: Tiers) -> None:
    """Each page of the eight is stored under the hash of its chain, and written once."""
    assert t.store is not None
    hashes = page_hashes(t.key(8).raw, t.page, False, None)
    for at in range(8):
        chain = hashes[32 * at : 32 * at + 32].hex()
        names = [name for name in t.store.put if name.startswith(chain)]
        assert f"{chain}" in {name.partition("-")[0] for name in names if name.endswith(".full")}
        assert all(t.store.put[name] == 1 for name in names), f"page {at}"
    names = [name for name in t.store.put if name.endswith(".full")]
    assert len(names) == len({name.partition("-")[0] for name in names})


async def check_warm(delivery: Delivery, components: Components, **fields: Any) -> None:
    """Another cache on the same store finds all eight pages, and their bytes are right."""
    async with tiers(delivery, components, **fields) as t:
        async with await t.cache.prefetch(t.key(8)) as fetch:
            assert await fetch.wait() == 8 * t.page
        assert await t.hit(t.key(8)) == (0, 8)
        assert await t.load(t.key(8)) == 8


@everywhere
@in_every_phase
@pytest.mark.parametrize(
    "cuts",
    [(3, 5, 1, 7), *(pytest.param(cuts, marks=pytest.mark.nightly) for cuts in ((7,), (1,)))],
    ids=str,
)
async def test_k2_1_a_node_that_is_split_on_its_way_reaches_storage_whole_and_once(
    delivery: Delivery,
    components: Components,
    page_size: int,
    phase: Phase,
    cuts: tuple[int, ...],
    tmp_path: Path,
) -> None:
    """Every fragment is backed up and stored, under the right chain, once, and let go once."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), **BIG}
    async with tiers(delivery, components, jobs_max=1, **fields) as t:
        await bring_to(t, phase)
        for at in cuts:
            await t.split(at)
            await t.sound()
        await t.settle()
        borders = {0, *cuts, 8}
        main = [one for one in t.picture() if one[0] in borders and one[1] in borders]
        assert {bits for _, _, bits in main} == {"DHS"}
        check_stored_once(t)
    await check_warm(delivery, components, **fields)


@everywhere
@pytest.mark.parametrize("phase", ["queued", "backing"])
async def test_k2_1_when_the_copy_of_a_split_node_fails_nothing_is_left_half_done(
    delivery: Delivery, components: Components, page_size: int, phase: Phase, tmp_path: Path
) -> None:
    """No fragment counts as backed up, none stays locked, and the next use backs all up."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), **BIG}
    async with tiers(delivery, components, jobs_max=1, **fields) as t:
        await bring_to(t, phase)
        if phase == "queued":
            t.engine.release()
            await t.engine.arrived(1)
        await t.split(3)
        await t.split(6)
        t.engine.fail(t.engine.held()[:1])
        await t.copied()
        t.engine.hold_no_more()
        await t.settle()
        await t.match(t.key(8))
        await t.settle()
        assert {bits for begin, end, bits in t.picture() if end <= 8 and begin < 8} == {"DHS"}
        await t.demote()
        assert await t.hit(t.key(8)) == (0, 8)
        assert await t.load(t.key(8)) == 8
    await check_warm(delivery, components, **fields)


@everywhere
@pytest.mark.parametrize("demoted", [True, False], ids=["host only", "mirrors"])
async def test_k2_3_fragments_of_a_node_that_is_being_stored_keep_their_host_pages(
    delivery: Delivery, components: Components, page_size: int, demoted: bool, tmp_path: Path
) -> None:
    """While a store reads host pages, a split and a crowd that wants them change nothing."""
    fields: dict[str, Any] = {"page_size": page_size, "url": address(tmp_path), "window": 8}
    small: dict[str, Any] = {"host_pages": 16, "host_swa_pages": 16, "host_states": 4, **BIG}
    async with tiers(delivery, components, **fields, **small) as t:
        await bring_to(t, "storing")
        await t.split(3)
        await t.split(6)
        if demoted:
            await t.demote()
        for crowd in (2000, 3000, 4000):
            await t.put(t.key(t.span(8, crowd)))
            await t.copied()
            await t.sound()
        if demoted:
            assert await t.hit(t.key(8)) == (0, 8)
        await t.settle()
        check_stored_once(t)
        # What was protected for the store is room again.
        before = await t.count("host_evicted_nodes")
        for crowd in (5000, 6000, 7000):
            await t.put(t.key(t.span(8, crowd)))
            await t.settle()
        assert await t.count("host_evicted_nodes") > before
    await check_warm(delivery, components, **fields, **BIG)


@everywhere
@pytest.mark.parametrize("moving", [False, True], ids=["at rest", "in flight"])
async def test_k2_5_every_node_is_found_under_its_own_first_page_after_any_split(
    delivery: Delivery, components: Components, page_size: int, moving: bool
) -> None:
    """Divergence at a page's border and inside a page; then all goes, leaf by leaf."""
    async with tiers(delivery, components, page_size=page_size, **BIG) as t:
        if moving:
            t.engine.hold("backup", how="copied")
        await t.put(t.key(8))
        for at in (5, 2, 7):
            # Inside a page: the last page that is the same whole decides.
            inside = [*t.span(at), *t.span(1, at)[: t.page - 1], 99_000 + at]
            assert (await t.put(t.key([*inside, *t.span(1, 700 + at)]))).result.prefix_len == (
                at * t.page
            )
            await t.split(at)
            await t.sound()
        for _ in range(40):
            await t.evict(full=1)
            await t.sound()
        await t.settle()
        for _ in range(40):
            await t.evict(full=1)
            await t.sound()
        assert (await t.pool(tier="device")).evictable == 0


@everywhere
@pytest.mark.parametrize("stored", [True, False], ids=["stored", "not stored"])
async def test_k9_5_mirrors_on_a_host_smaller_than_the_device_make_room(
    delivery: Delivery, components: Components, page_size: int, stored: bool, tmp_path: Path
) -> None:
    """Every host page mirrors the device, and yet new backups and a prefetch find room."""
    warm: dict[str, Any] = {"page_size": page_size, "window": 2, "url": address(tmp_path)}
    async with tiers(delivery, components, **warm) as t:
        await t.put(t.key(t.span(4, 5000)))
        await t.settle()
    fields: dict[str, Any] = warm if stored else {**warm, "url": None}
    small: dict[str, Any] = {
        "pages": 16,
        "host_pages": 8,
        "host_swa_pages": 8,
        "states": 8,
        "host_states": 4,
    }
    async with tiers(delivery, components, **fields, **small) as t:
        for at in range(4):
            await t.put(t.key(t.span(4, 100 * at)))
            await t.settle()
        assert (await t.pool(tier="device")).free == 0
        assert await t.free_pages() == 0
        assert await t.count("backups_refused") == 0
        await t.sound()
        wanted = t.key(t.span(4, 5000))
        if stored:
            async with await t.cache.prefetch(wanted) as fetch:
                assert await fetch.wait() == 4 * t.page
            assert await t.hit(wanted) == (0, 4)
        assert (await t.pool(tier="device")).free == 0, "the device copies are still there"
        if stored:
            assert await t.load(wanted) == 4


@everywhere
async def test_k9_5_a_mirror_that_is_stored_goes_before_a_copy_that_is_the_only_one(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """Of a host-only leaf and a younger mirror that storage has too, the mirror makes room."""
    fields: dict[str, Any] = {"page_size": page_size, "window": 2, "url": address(tmp_path)}
    small: dict[str, Any] = {
        "pages": 16,
        "host_pages": 8,
        "host_swa_pages": 8,
        "states": 8,
        "host_states": 4,
    }
    async with tiers(delivery, components, **fields, **small) as t:
        await t.put(t.key(t.span(4, 100)))
        await t.settle()
        await t.demote()
        await t.put(t.key(t.span(4, 200)))
        await t.settle()
        await t.put(t.key(t.span(4, 300)))
        await t.settle()
        assert await t.hit(t.key(t.span(4, 100))) == (0, 4)
        assert (4, "D") not in [(end, bits) for _, end, bits in t.picture()]
        assert await t.load(t.key(t.span(4, 100))) == 4


@everywhere
@policies
async def test_k9_6_a_prompt_that_is_prefilled_in_chunks_reaches_the_host_whole(
    delivery: Delivery, components: Components, page_size: int, policy: str
) -> None:
    """Its own chunks are no hits, and it is backed up all the same, once the policy says so."""
    async with tiers(delivery, components, page_size=page_size, policy=policy) as t:
        wanted = t.key(12)
        for rid in ("first", "second"):
            req = await t.admit(rid, wanted)
            for done in (4, 8, 12):
                if done * t.page > req.cache_protected_len:
                    assert await t.compute(req, wanted, done) == done
            await t.finish(req, wanted)
            await t.copied()
            hits = {node.hits for node in state_of(t.cache).tree}
            assert hits == ({0} if rid == "first" else {1})
            has_copy = policy == "write_through" or (
                policy == "write_through_selective" and rid == "second"
            )
            assert {"H" in bits for _, _, bits in t.picture()} == {has_copy}
        await t.settle()
        await t.demote()
        assert await t.hit(wanted) == (0, 12)
        assert await t.load(wanted) == 12


@everywhere
async def test_k9_8_what_finds_the_queue_full_is_not_marked_and_comes_with_its_next_use(
    delivery: Delivery, components: Components, page_size: int, tmp_path: Path
) -> None:
    """Marks move when the transfer is done, whatever did not fit into a queue."""
    fields: dict[str, Any] = {"page_size": page_size, "jobs_max": 1, "backlog_max": 1, **BIG}
    async with tiers(
        delivery, components, url=address(tmp_path), storage={"queue_max": 1}, **fields
    ) as t:
        assert t.store is not None
        t.engine.hold("backup")
        t.store.hold("put_from")
        prompts = [t.key(t.span(2, 100 * at)) for at in range(5)]
        for at, prompt in enumerate(prompts):
            await t.put(prompt)
            if not at:
                await t.engine.arrived(1)
        assert {bits for _, _, bits in t.picture()} == {"D"}
        assert await t.count("backups_skipped") > 0
        t.engine.hold_no_more()
        t.engine.release()
        await t.stored(1)
        await t.copied()
        assert "S" not in "".join(bits for _, _, bits in t.picture())
        await t.settle()
        assert {"DHS", "D"} == {bits for _, _, bits in t.picture()}
        for prompt in prompts:
            await t.match(prompt)
            await t.settle()
        assert {bits for _, _, bits in t.picture()} == {"DHS"}


@everywhere
@pytest.mark.parametrize("kind", [asyncio.Future, concurrent.futures.Future])
@pytest.mark.parametrize("fails", [False, True], ids=["written", "never written"])
async def test_k9_8_a_page_is_not_backed_up_before_its_content_is_complete(
    delivery: Delivery, components: Components, page_size: int, kind: Any, fails: bool
) -> None:
    """A backup waits for the work that makes the data; of work that failed there is no backup."""
    async with tiers(delivery, components, page_size=page_size) as t:
        ready = kind()
        wanted = t.key(8)
        done = await t.put(wanted, written=False, ready=ready)
        await turns(200)
        assert "H" not in "".join(bits for _, _, bits in t.picture())
        t.pending.clear()
        await t.write(done.slots, key_marks(wanted), done.state)
        if fails:
            ready.set_exception(RuntimeError("the kernel failed"))
            await t.settle()
            assert {bits for _, _, bits in t.picture()} == {"D"}
            assert await t.count("backups_failed") > 0
            return
        ready.set_result(None)
        await t.settle()
        assert {bits for _, _, bits in t.picture()} == {"DH"}
        await t.demote()
        assert await t.load(wanted) == 8


@everywhere
async def test_k9_9_a_burst_of_inserts_keeps_what_is_in_flight_within_its_limit(
    delivery: Delivery, components: Components, page_size: int
) -> None:
    """Beyond the limit backups wait, and beyond the length of the queue they are skipped."""
    limits: dict[str, Any] = {
        "units_in_flight": 8 * page_size,
        "batch_units": 4 * page_size,
        "backlog_max": 5,
    }
    async with tiers(delivery, components, page_size=page_size, **limits, **BIG) as t:
        t.engine.hold("backup")
        for at in range(10):
            await t.put(t.key(t.span(4, 100 * at)))
            await turns(5)
            await t.sound()
        skipped = await t.count("backups_skipped")
        assert skipped > 0
        most = 0
        while t.engine.held():
            jobs = [one for job in t.engine.held() for one in job.transfers if one.pool == "full"]
            most = max(most, sum(len(one.host) for one in jobs))
            assert (await t.pool()).in_flight == sum(len(one.host) for one in jobs)
            t.engine.release(t.engine.held()[:1])
            await t.copied()
            await t.sound()
        assert 0 < most <= 8 * page_size
        on_host = [bits for _, _, bits in t.picture() if "H" in bits]
        assert len(on_host) == len(t.picture()) - skipped
