"""The benchmark of the seam: it takes out what it says, and puts it back."""

from __future__ import annotations

import importlib
import json
from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.actors.cell import Cell
from support.caches import assert_sound, key, make_config, match, store
from support.interceptors import Recorder
from support.programs import load_benchmarks, run_benchmark


@pytest.fixture
def seam() -> Any:
    load_benchmarks()
    return importlib.import_module("benchmarks.seam")


async def test_no_interceptor_hears_anything_once_the_seam_is_out(seam: Any) -> None:
    handle = vars(Cell)["_handle"]
    with seam.taken_out() as changed:
        assert {"Cell._handle", "Cell.note_answer", "ActorSystem.send"} <= set(changed)
        assert vars(Cell)["_handle"] is not handle
        async with UnifiedRadixCache(make_config()) as cache:
            deaf = Recorder()
            cache.add_interceptor(deaf)
            await store(cache, key(8))
            assert len((await match(cache, key(8))).device_indices) == 8
            assert not deaf.sent
            assert not deaf.handled
            await assert_sound(cache)
    assert vars(Cell)["_handle"] is handle
    async with UnifiedRadixCache(make_config()) as cache:
        hears = Recorder()
        cache.add_interceptor(hears)
        await store(cache, key(8))
        assert hears.sent


def test_what_has_no_hook_is_left_alone(seam: Any) -> None:
    assert seam.without_hooks(Cell.enqueue) is None
    assert seam.without_hooks(Cell.note_answer) is not None


@pytest.mark.nightly
@pytest.mark.slow
def test_the_command_prints_both_ways_of_delivery() -> None:
    result = run_benchmark("seam", "--own", "--small", "--rounds", "1", "--json")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {row["delivery"] for row in rows} == {"direct", "queued"}
    assert all(row["low"] <= row["ratio"] <= row["high"] for row in rows)
    calls = [row for row in rows if row["op"] != "_all"]
    assert len(rows) == len(calls) + 2
    assert all(row["with_us"] > 1 < row["without_us"] for row in calls)
    assert {"lock", "insert[finish]"} <= {row["op"] for row in rows}
