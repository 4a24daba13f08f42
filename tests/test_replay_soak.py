"""``radixtide replay --faults --minutes``: many clients, faults, memory, and nothing lost."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from radixtide import UnifiedRadixCache
from radixtide.cli.main import app
from radixtide.cli.replay_bytes import PoolBytes
from radixtide.cli.replay_client import Client, Room
from radixtide.cli.replay_costs import Limits
from radixtide.cli.replay_memory import SAMPLES_MAX, Memory
from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_soak import Soak
from radixtide.cli.replay_source import TraceRequest
from radixtide.cli.replay_tiers import Tiers
from radixtide.cli.replay_trace import TraceFile
from radixtide.configs.errors import CacheClosed
from radixtide.configs.loader import load_config
from radixtide.simulation.dice import dice
from radixtide.simulation.injector import Injector
from radixtide.simulation.plan import Fault, FaultPlan
from support.actors import until
from support.caches import assert_nothing_held, make_config
from support.tier_config import SETS, tier_config
from support.traces import conversations, write_trace

CONFIG = (
    "page_size = 16\n[pools.full]\nsize = 8_000\nlayers = 1\nkv_heads = 1\nhead_dim = 4\n"
    "[pools.requests]\nmax_requests = 12\nmax_context = 8_000\n"
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    config = tmp_path / "cache.toml"
    config.write_text(CONFIG)
    return write_trace(tmp_path / "trace.jsonl", conversations(40, seed=7)), config


def call(files: tuple[Path, Path], *arguments: str) -> Result:
    trace, config = files
    return CliRunner().invoke(app, ["replay", str(trace), "--config", str(config), *arguments])


# -- memory --------------------------------------------------------------------------------------


def test_the_slope_is_that_of_a_line_and_of_none_for_a_level() -> None:
    rising, level = Memory(), Memory()
    for at in range(120):
        rising.sample(at, 10**6 + 50 * at)
        level.sample(at, 10**6)
    assert rising.slope == pytest.approx(50 * 60)
    assert level.slope == 0.0
    assert Memory().slope == 0.0


def test_growth_during_the_warm_up_is_no_slope() -> None:
    memory = Memory()
    for at in range(100):
        memory.sample(at, 10**6 * min(at, 20))
    assert memory.slope == 0.0


def test_samples_are_thinned_and_keep_the_slope() -> None:
    memory = Memory()
    for at in range(5 * SAMPLES_MAX):
        memory.sample(at, 7 * at)
    assert len(memory.samples) <= SAMPLES_MAX
    assert memory.slope == pytest.approx(7 * 60)
    assert memory.samples[-1].at_s > 4 * SAMPLES_MAX


# -- clients -------------------------------------------------------------------------------------


async def test_fewer_clients_run_where_the_pools_are_short_and_more_come_back() -> None:
    room = Room(3)
    for _ in range(3):
        await room.enter()
    waiting = asyncio.ensure_future(room.enter())
    await asyncio.sleep(0)
    assert not waiting.done()
    room.leave(short=True)
    await asyncio.sleep(0)
    assert not waiting.done()
    room.leave()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert waiting.done()


REQUEST = TraceRequest(0, 0, (1, 2), (24, 10), stream=2**61, output_length=12)


async def serve_under(*faults: Fault, tiered: bool = False) -> tuple[Counter[str], Recording]:
    """Serve one request twice under faults; at the end nothing is held."""
    components = SETS[3]
    config = (
        tier_config(components, page_size=4, delivery="queued", url="memory:")
        if tiered
        else make_config(delivery="queued", max_context=64)
    )
    injector = Injector(FaultPlan(faults), dice(1, "faults"), asyncio.get_running_loop())
    troubles: Counter[str] = Counter()
    recording = Recording()
    async with UnifiedRadixCache(config) as cache:
        injector.install(cache)
        tiers = Tiers(cache, recording.calls)
        limits = Limits(chunk=8, decode_quantum=4, abort_ratio=0.0)
        client = Client(cache, 16, limits, recording, tiers, Room(1), troubles)
        await client.serve(REQUEST)
        await client.serve(REQUEST)
        injector.heal()
        injector.uninstall(cache)
        await cache.drain()
        await assert_nothing_held(cache, heard=False)
    assert injector.fired
    return troubles, recording


@pytest.mark.parametrize("tiered", [False, True])
@pytest.mark.parametrize(
    "call",
    ["MatchPrefixParams", "AllocateParams", "CacheUnfinishedReq", "CacheFinishedReq"],
)
async def test_a_client_that_is_cancelled_in_any_call_serves_its_request(
    call: str, tiered: bool
) -> None:
    fault = Fault(kind="cancel_caller", message=call, count=2, skip=1)
    troubles, recording = await serve_under(fault, tiered=tiered)
    assert sum(troubles.values()) == 2
    assert all(name.endswith("Cancelled") for name in troubles)
    assert recording.tally.completed == 2


@pytest.mark.parametrize("kind", ["handler_error", "mailbox_full"])
async def test_what_is_refused_is_asked_again(kind: Any) -> None:
    seconds = 0.0 if kind == "mailbox_full" else None
    fault = Fault(kind=kind, message="AllocateParams", count=2, seconds=seconds)
    troubles, recording = await serve_under(fault)
    assert sum(troubles.values()) == 2
    assert recording.tally.completed == 2


async def test_a_cancellation_of_anybody_else_ends_the_client() -> None:
    async with UnifiedRadixCache(make_config(delivery="queued", max_context=64)) as cache:
        recording = Recording()
        tiers = Tiers(cache, recording.calls)
        client = Client(cache, 16, Limits(chunk=8), recording, tiers, Room(1), Counter())
        task = asyncio.ensure_future(client.serve(REQUEST))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        await assert_nothing_held(cache)


async def test_a_client_of_a_closed_cache_is_told() -> None:
    async with UnifiedRadixCache(make_config(max_context=64)) as cache:
        recording = Recording()
        tiers = Tiers(cache, recording.calls)
        client = Client(cache, 16, Limits(), recording, tiers, Room(1), Counter())
    with pytest.raises(CacheClosed):
        await client.serve(REQUEST)


async def test_an_interrupted_run_gives_everything_back(files: tuple[Path, Path]) -> None:
    trace, path = files
    soak = Soak(
        load_config(path),
        TraceFile(trace),
        Limits(max_running=6),
        FaultPlan.light(),
        None,
        recording := Recording(),
    )
    run = asyncio.ensure_future(soak.run())
    await until(lambda: recording.tally.requests > 3, 10**7)
    run.cancel()
    result = await run
    assert result.interrupted
    assert result.held == ()
    assert result.violations == ()
    assert 3 < recording.tally.requests < 40


# -- the command ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_under_faults_ends_clean_and_tells_what_it_did(files: tuple[Path, Path]) -> None:
    result = call(files, "--faults", "light", "--json", "--seed", "3")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["requests"] == 40 == data["completed"] + data["aborted"] + data["refused"]
    assert data["plan"] == "light"
    assert data["faults"]["injected"] == sum(data["faults"]["by_kind"].values()) > 0
    assert data["audit"]["violations"] == 0 < data["audit"]["times"]
    assert data["held"] == []
    assert data["memory"]["samples"] > 1
    assert data["memory"]["last_bytes"] > 10**7


@pytest.mark.slow
def test_a_run_by_time_serves_the_trace_again_and_again(files: tuple[Path, Path]) -> None:
    result = call(files, "--minutes", "0.05")
    assert result.exit_code == 0, result.output
    assert "under none" in result.stdout
    passes = int(result.stdout.split(" passes")[0].split()[-1].replace(",", ""))
    assert passes > 1


@pytest.mark.slow
def test_a_client_that_forgets_its_request_fails_the_run(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forget(self: Client, job: Any) -> None:
        job.req = None

    monkeypatch.setattr(Client, "_abort", forget)
    result = call(files, "--faults", "none", "--json", "--abort-ratio", "0.5")
    assert result.exit_code == 1
    assert any("requests" in line for line in json.loads(result.stdout)["held"])
    assert "still held" in result.stderr


@pytest.mark.slow
def test_wrong_bytes_fail_the_run(
    files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = PoolBytes.write

    def other(self: PoolBytes, slots: Any, marks: Any) -> None:
        write(self, slots, marks ^ (marks.dtype.type(1) * (slots % 97 == 0)))

    monkeypatch.setattr(PoolBytes, "write", other)
    result = call(files, "--faults", "none", "--json", "--bytes")
    assert result.exit_code == 1
    assert "holds other bytes" in json.loads(result.stdout)["audit"]["messages"][0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--faults", "haevy"), "no plan has that name"),
        (("--faults", "light", "--sequential"), "many clients"),
        (("--faults", "light", "--bandwidth", "1GB", "--host-blocks", "9"), "virtual one"),
        (("--minutes", "1", "--report", "x.html"), "has no page"),
    ],
)
def test_what_can_not_be_done_is_said(
    files: tuple[Path, Path], arguments: tuple[str, ...], says: str
) -> None:
    result = call(files, *arguments)
    assert result.exit_code in {1, 2}
    told = f"{result.stderr} {result.exception}".replace("│", "")
    assert says in " ".join(told.split())
