"""The pytest plugin: as a user's tests see it, with other plugins for async tests and without."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from radixtide import (
    AllocateParams,
    InsertParams,
    MatchPrefixParams,
    RadixKey,
    Request,
    UnifiedRadixCache,
)
from radixtide.components.full import FullComponent
from radixtide.configs.errors import ConfigError
from radixtide.simulation.injector import CANCELLED
from radixtide.simulation.journal_reading import read_journal
from radixtide.simulation.loop import SimulatedLoop
from radixtide.simulation.plan import Fault
from radixtide.testing.caches import FaultyCaches, Unclean, was_injected
from support.caches import make_config
from support.tier_config import SETS, tier_config

if TYPE_CHECKING:
    from radixtide.simulation.oracle import Oracle
    from radixtide.testing.plugin import Journal, VirtualClock

SEEN: list[int] = []
ORDERS: dict[int, list[int]] = {}


# -- the marker ----------------------------------------------------------------------------------


@pytest.mark.simulated(seeds=3)
async def test_a_marked_test_runs_on_a_simulated_loop_once_for_each_seed(
    simulated_seed: int,
) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    assert loop.seed == simulated_seed
    SEEN.append(simulated_seed)


def test_each_seed_had_its_run() -> None:
    assert SEEN in ([0, 1, 2], [])  # [] where only this test was chosen


@pytest.mark.simulated(seed=11)
async def test_one_seed_may_be_named(simulated_seed: int) -> None:
    assert simulated_seed == 11


class TestInAClass:
    @pytest.mark.simulated(seeds=[4, 9])
    async def test_methods_are_marked_too(
        self, simulated_seed: int, virtual_clock: VirtualClock
    ) -> None:
        assert simulated_seed in {4, 9}
        await asyncio.sleep(5.0)
        assert virtual_clock.elapsed >= 5.0


@pytest.mark.simulated(seed=1)
@pytest.mark.parametrize("number", [3, 5])
async def test_a_marked_test_may_be_parametrized(number: int, simulated_seed: int) -> None:
    assert number in {3, 5}
    assert simulated_seed == 1


async def _order() -> list[int]:
    seen: list[int] = []

    async def one(number: int) -> None:
        await asyncio.sleep(0)
        seen.append(number)

    await asyncio.gather(*(one(number) for number in range(8)))
    return seen


@pytest.mark.simulated(seeds=6)
async def test_the_order_is_drawn_by_the_seed(simulated_seed: int) -> None:
    ORDERS[simulated_seed] = await _order()
    if len(ORDERS) == 6:
        assert len({tuple(order) for order in ORDERS.values()}) > 3


@pytest.mark.simulated(seed=5, order="fifo")
async def test_the_order_may_be_that_of_asyncio() -> None:
    assert await _order() == list(range(8))


@pytest.mark.simulated(seed=0)
async def test_an_hour_passes_at_once(virtual_clock: VirtualClock) -> None:
    began = virtual_clock.time()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 3600.0)
    assert virtual_clock.time() - began == pytest.approx(3600.0, abs=0.1)
    assert virtual_clock.elapsed == pytest.approx(3600.0, abs=0.1)
    assert virtual_clock.turns > 1


# -- caches under faults -------------------------------------------------------------------------


async def fill(cache: UnifiedRadixCache, length: int = 16) -> None:
    """Store the first tokens of a prompt, whatever happens to the calls."""
    req = Request("fill", list(range(length)))
    await cache.match_prefix(MatchPrefixParams(req.key(), req=req, lock=True))
    have = req.cache_protected_len
    wants = int("mamba" in cache.config.components and req.mamba_pool_idx is None)
    ring = 2 * wants * int(cache.page_size > 1)
    await cache.allocate(AllocateParams(num_tokens=length - have, mamba_num=wants + ring, req=req))
    req.kv_committed_len = length
    if wants:
        req.note_state(length)
    await cache.cache_finished_req(req)


LOSSES = Fault(kind="drop", where="both", probability=0.05)


@pytest.mark.simulated(seeds=2, faults=LOSSES)
@pytest.mark.parametrize("components", SETS, ids="+".join)
async def test_a_cache_with_tiers_is_simulated_whole(
    components: tuple[str, ...], faulty_cache: FaultyCaches, virtual_clock: VirtualClock
) -> None:
    config = tier_config(components, page_size=4, delivery="direct", url="memory:")
    async with faulty_cache(config) as cache:
        for length in (16, 32, 48):
            await fill(cache, length)
        await cache.drain()
        stored = (await cache.stats()).counters["stored_pages"]
    assert stored
    assert faulty_cache.disk.frames
    assert faulty_cache.injected["drop"]
    # Another cache of the same test finds what that one has stored.
    async with faulty_cache(config, "none") as later:
        handle = await later.prefetch(RadixKey(list(range(48))))
        await handle.wait()
        await handle.close()
        assert (await later.stats()).counters["prefetched_units"] >= 16
    assert virtual_clock.elapsed < 300.0


async def test_without_the_marker_copies_and_stores_are_real(faulty_cache: FaultyCaches) -> None:
    config = tier_config(("full",), page_size=4, delivery="direct", url="memory:")
    fails = Fault(kind="copy_fail", count=1)
    async with faulty_cache(config, fails) as cache:
        await fill(cache)
        await cache.drain()
        assert (await cache.stats()).counters["backups_failed"] == 1
    assert faulty_cache.injected == {"copy_fail": 1}
    assert not faulty_cache.disk.frames


async def hold_slots(cache: UnifiedRadixCache) -> None:
    await cache.allocate(AllocateParams(num_tokens=8))


async def hold_a_request(cache: UnifiedRadixCache) -> None:
    req = Request("r", [1, 2, 3])
    await cache.match_prefix(MatchPrefixParams(req.key(), req=req, lock=True))


async def break_books(cache: UnifiedRadixCache) -> None:
    await fill(cache)
    full = cache._components[0]
    assert isinstance(full, FullComponent)
    full.evictable += 4


async def fail(cache: UnifiedRadixCache) -> None:
    await hold_slots(cache)
    raise Unclean("its own error is what a test fails with")


@pytest.mark.simulated(seed=0)
@pytest.mark.parametrize(
    ("leave", "says"),
    [
        (hold_slots, "8 slots are held"),
        (
            hold_a_request,
            r"1 locks and 1 requests are still held: lock 1 of request 'r' on .*; request 'r'",
        ),
        (break_books, "sizes"),
        (fail, "its own error"),
    ],
)
async def test_what_a_test_leaves_behind_fails_it(
    leave: Callable[[UnifiedRadixCache], Any], says: str, faulty_cache: FaultyCaches
) -> None:
    async def whole() -> None:
        async with faulty_cache(make_config()) as cache:
            await leave(cache)

    with pytest.raises(Unclean, match=says):
        await whole()


@pytest.mark.simulated(seed=0)
async def test_a_fault_that_names_nobody_is_refused(faulty_cache: FaultyCaches) -> None:
    for fault in (Fault(kind="drop", message="Nope"), Fault(kind="kill", receiver="nobody")):
        with pytest.raises(ConfigError, match="is called"):
            async with faulty_cache(make_config(), fault):
                raise AssertionError("the cache was opened")
    assert faulty_cache.injected == {}


@pytest.mark.simulated(seed=0)
async def test_something_may_stay_held_where_that_is_said(faulty_cache: FaultyCaches) -> None:
    async with faulty_cache(make_config(), empty=False) as cache:
        await hold_slots(cache)


@pytest.mark.simulated(seed=0)
async def test_a_planted_cancellation_is_told_from_others(faulty_cache: FaultyCaches) -> None:
    cancel = Fault(kind="cancel_caller", message="AllocateParams", where="reply", count=1)
    async with faulty_cache(make_config(), cancel) as cache:
        with pytest.raises(asyncio.CancelledError) as caught:
            await cache.allocate(AllocateParams(num_tokens=8))
        task = asyncio.current_task()
        assert task is not None
        assert task.uncancel() == 0
    assert was_injected(caught.value)
    assert caught.value.args == (CANCELLED,)
    assert not was_injected(asyncio.CancelledError())


@pytest.mark.simulated(seed=3)
async def test_an_actor_is_restarted_as_often_as_it_is_crashed(faulty_cache: FaultyCaches) -> None:
    often = Fault(kind="crash_before", message="CommitInsert", probability=0.7)
    async with faulty_cache(make_config(), often) as cache:
        for length in range(4, 40, 4):
            await fill(cache, length)
        assert (await cache.stats()).actors["full"].restarts > 5


# -- journal and oracle --------------------------------------------------------------------------


@pytest.mark.simulated(seed=6, faults=LOSSES)
async def test_the_journal_has_messages_and_faults(
    faulty_cache: FaultyCaches, journal: Journal
) -> None:
    async with faulty_cache(make_config()) as cache:
        for length in (8, 16, 24):
            await fill(cache, length)
    journal.writer.flush()
    kinds = {type(record).__name__ for record in read_journal(journal.path)}
    assert {"Header", "Sent", "Handled", "Answered", "Fault"} <= kinds


@pytest.mark.simulated(seeds=2)
async def test_the_oracle_compares_answers(
    faulty_cache: FaultyCaches, oracle: Callable[[UnifiedRadixCache], Oracle]
) -> None:
    config = tier_config(("full",), page_size=4)
    async with faulty_cache(config) as cache:
        knows = oracle(cache)
        key = RadixKey(list(range(16)))
        slots = (await cache.allocate(AllocateParams(num_tokens=16))).indices
        knows.asked(key, 16)
        knows.wrote(key, 0, slots.numpy())
        await cache.insert(InsertParams(key, slots))
        wanted = MatchPrefixParams(RadixKey(list(range(20))))
        before = knows.snapshot()
        found = await cache.match_prefix(wanted)
        assert knows.matched(wanted, found, before) == []
        # Bytes of something else are found.
        for layer in cache.memory["full"].parts():
            for part in layer:
                part[slots[5]] = -1.0
        assert knows.matched(wanted, found, before) != []


# -- as a user's pytest sees it ------------------------------------------------------------------

USERS = """
import asyncio
import pytest
from radixtide import AllocateParams, CacheConfig
from radixtide.configs.schema import FullPoolConfig, PoolsConfig, RequestPoolConfig

CONFIG = CacheConfig(
    page_size=4,
    pools=PoolsConfig(
        full=FullPoolConfig(size=64, holds_bytes=False),
        requests=RequestPoolConfig(max_requests=4, max_context=64),
    ),
)

@pytest.mark.simulated(seeds=2)
async def test_passes(faulty_cache):
    async with faulty_cache(CONFIG):
        await asyncio.sleep(1000.0)

@pytest.mark.simulated(seeds=4)
async def test_fails_for_a_seed(simulated_seed, faulty_cache, journal):
    async with faulty_cache(CONFIG) as cache:
        await cache.allocate(AllocateParams(num_tokens=4 * (simulated_seed == 2)))

@pytest.mark.simulated(seed=0)
async def test_hangs():
    await asyncio.Event().wait()

@pytest.mark.simulated(seed=0)
async def test_forgets_an_error():
    async def fails():
        raise ValueError("nobody awaits this")
    asyncio.ensure_future(fails())
    await asyncio.sleep(1)

def test_of_another_kind():
    pass
"""


def users_pytest(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a user's tests in a process of their own."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_users.py").write_text(textwrap.dedent(source))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [
        ("-p", "no:asyncio", "-p", "no:anyio"),
        ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
    ],
    ids=["alone", "beside others"],
)
def test_the_plugin_works_alone_and_beside_others(tmp_path: Path, others: tuple[str, ...]) -> None:
    ran = users_pytest(tmp_path, USERS, *others)
    lines = re.findall(r"^(PASSED|FAILED) test_users.py::(\S+)", ran.stdout, re.MULTILINE)
    outcomes = {name: word for word, name in lines}
    assert outcomes == {
        "test_passes[seed0]": "PASSED",
        "test_passes[seed1]": "PASSED",
        "test_fails_for_a_seed[seed0]": "PASSED",
        "test_fails_for_a_seed[seed1]": "PASSED",
        "test_fails_for_a_seed[seed2]": "FAILED",
        "test_fails_for_a_seed[seed3]": "PASSED",
        "test_hangs[seed0]": "FAILED",
        "test_forgets_an_error[seed0]": "FAILED",
        "test_of_another_kind": "PASSED",
    }, ran.stdout
    assert "seed 2: again with pytest 'test_users.py::test_fails_for_a_seed[seed2]'" in ran.stdout
    assert "Deadlock: nothing is ready" in ran.stdout
    assert "nobody awaits this" in ran.stdout
    path = re.search(r"^journal: (.+)$", ran.stdout, re.MULTILINE)
    assert path is not None
    assert Path(path[1]).stat().st_size > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mark", "function", "says"),
    [
        ("seed=1, seeds=2", "async def", "takes seed or seeds, not both"),
        ("sed=1", "async def", "not sed"),
        ("7", "async def", "not values without a name"),
        ("seed=1", "def", "is for async def tests"),
    ],
)
def test_a_marker_that_makes_no_sense_is_refused(
    tmp_path: Path, mark: str, function: str, says: str
) -> None:
    source = f"import pytest\n@pytest.mark.simulated({mark})\n{function} test_it(): pass\n"
    ran = users_pytest(tmp_path, source)
    assert ran.returncode != 0
    assert says in ran.stdout + ran.stderr


def test_the_plugin_loads_next_to_nothing() -> None:
    program = (
        "import sys, radixtide.testing.plugin, radixtide.testing\n"
        "sys.exit(bool({'torch', 'numpy', 'msgspec'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_public_name_of_testing_loads() -> None:
    from radixtide import testing

    assert sorted(testing.__all__) == sorted(set(testing.__all__))
    for name in testing.__all__:
        loaded: Any = getattr(testing, name)
        assert loaded is not None
    with pytest.raises(AttributeError, match="no attribute 'Falt'"):
        testing.Falt  # type: ignore[attr-defined]  # noqa: B018 - the name is wrong on purpose
