"""The blocking face between threads and processes: many callers, ends of all kinds, forks."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import radixtide
from radixtide import (
    AllocateParams,
    CacheClosed,
    ConfigError,
    MatchPrefixParams,
    OutOfSlots,
    RadixKey,
    Request,
    StorageConfig,
)
from radixtide.blocking import UnifiedRadixCache
from radixtide.configs.schema import LimitsConfig
from support.blocking import blocking_cache, found, nothing_held, put, until
from support.caches import make_config, tokens
from support.interceptors import Stall
from support.tier_config import SETS, tier_config


def loop_threads() -> int:
    return sum(one.name == "radixtide-loop" for one in threading.enumerate())


def in_threads(work: Callable[[int], None], count: int) -> None:
    """Run `work` in so many threads at once; raise what any of them raised."""
    start = threading.Barrier(count)

    def begin(number: int) -> None:
        start.wait(20.0)
        work(number)

    with ThreadPoolExecutor(count) as pool:
        for one in [pool.submit(begin, number) for number in range(count)]:
            one.result(60.0)


# -- many threads ---------------------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["direct", "queued"])
def test_many_threads_serve_requests_at_once_and_leave_nothing(
    tmp_path: Path, delivery: Any
) -> None:
    config = tier_config(SETS[0], page_size=4, pages=24, delivery=delivery, url=f"lmdb:{tmp_path}")
    served: list[str] = []

    with blocking_cache(config) as cache:

        def serve(number: int) -> None:
            dice = random.Random(number)
            for turn in range(12):
                shared = tokens(8, start=1000 * dice.randrange(3))
                own = tokens(dice.randrange(1, 9), start=100_000 * number + 100 * turn)
                req = Request(rid=f"{number}-{turn}", origin_input_ids=[*shared, *own])
                req.req_pool_idx = cache.req_to_token_pool.alloc()
                key = req.key(len(shared) + len(own) - 1)
                with cache.prefetch(key) as fetch:
                    fetch.wait()
                match = cache.match_prefix(MatchPrefixParams(key=key, req=req, lock=True))
                try:
                    if match.host_hit_length:
                        cache.load_back(match, req).wait()
                    missing = len(shared) + len(own) - req.cache_protected_len
                    cache.allocate(AllocateParams(num_tokens=missing, req=req))
                except OutOfSlots:
                    cache.abort_req(req)
                    continue
                row = cache.req_to_token_pool.array[req.req_pool_idx, : len(shared) + len(own)]
                assert len(set(row.tolist())) == len(row)
                if dice.random() < 0.2:
                    cache.abort_req(req)
                else:
                    cache.cache_finished_req(req)
                served.append(req.rid)

        in_threads(serve, 6)
        cache.drain()
        nothing_held(cache)
        assert len(served) > 40


def test_a_call_that_waits_holds_up_no_other_thread() -> None:
    with blocking_cache(tier_config(SETS[0], page_size=4)) as cache, ThreadPoolExecutor(1) as pool:
        gate: Future[None] = Future()
        put(cache, tokens(8))
        slots = cache.allocate(AllocateParams(num_tokens=8)).indices
        cache.insert(
            radixtide.InsertParams(key=RadixKey(tokens(8, start=500)), value=slots), ready=gate
        )
        drained = pool.submit(cache.drain)
        for _ in range(20):
            assert found(cache, tokens(8)) == 8
        assert not drained.done()
        gate.set_result(None)
        drained.result(20.0)


# -- the end --------------------------------------------------------------------------------


def test_a_cache_that_is_not_open_or_not_open_any_more_says_so() -> None:
    cache = UnifiedRadixCache(make_config())
    with pytest.raises(CacheClosed, match="not open"):
        cache.stats()
    with pytest.raises(CacheClosed, match="not open"):
        cache.post_release(object())  # type: ignore[arg-type]  # it comes to nobody
    cache.close()
    with cache:
        put(cache, tokens(8))
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens(8))))
    for call in (cache.stats, cache.audit, cache.now, lambda: cache.transfers):
        with pytest.raises(CacheClosed, match="the cache is closed"):
            call()
    with pytest.raises(CacheClosed), cache.hold(match):
        pytest.fail("it was closed")
    cache.close()
    with pytest.raises(CacheClosed, match="make a new one"):
        cache.start()
    assert loop_threads() == 0


def test_a_cache_that_can_not_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    def make(_: StorageConfig) -> Any:
        raise ConfigError("no such store")

    config = tier_config(SETS[0], page_size=4, url=f"lmdb:{tmp_path}")
    with pytest.raises(ConfigError, match="no such"), UnifiedRadixCache(config, make_store=make):
        pytest.fail("it was opened")
    assert loop_threads() == 0


def test_close_answers_calls_under_way_in_other_threads_and_they_do_not_hang() -> None:
    with ThreadPoolExecutor(8) as pool:
        cache = UnifiedRadixCache(make_config(limits=LimitsConfig(call_timeout_s=600.0))).start()
        put(cache, tokens(8))
        stall = Stall(actor="full")
        cache.add_interceptor(stall)
        key = RadixKey(tokens(8))
        calls = [
            pool.submit(cache.match_prefix, MatchPrefixParams(key=key, lock=True)) for _ in range(4)
        ]

        async def forever(_: radixtide.UnifiedRadixCache) -> None:
            await asyncio.Event().wait()

        calls.append(pool.submit(cache.run, forever))  # type: ignore[arg-type]  # None, here
        until(lambda: len(cache._thread.calls) == 5)
        ends = [pool.submit(cache.close, 0.1) for _ in range(3)]
        for one in calls:
            with pytest.raises(CacheClosed):
                one.result(20.0)
        for end in ends:
            end.result(20.0)
        cache.close()
    assert loop_threads() == 0


def test_calls_that_race_with_close_are_answered_or_refused() -> None:
    for _ in range(10):
        cache = UnifiedRadixCache(make_config()).start()
        put(cache, tokens(8))

        def work(number: int, cache: UnifiedRadixCache = cache) -> None:
            if number == 0:
                cache.close()
                return
            try:
                while True:
                    assert found(cache, tokens(8)) == 8
            except CacheClosed:
                pass

        in_threads(work, 4)
        assert not cache._thread.calls


def test_close_from_the_caches_own_thread_is_refused() -> None:
    refused: list[BaseException] = []

    async def close(_: radixtide.UnifiedRadixCache) -> None:
        try:
            cache.close()
        except radixtide.InvalidInput as error:
            refused.append(error)

    with blocking_cache() as cache:
        cache.run(close)
    assert refused


def test_a_cache_that_nobody_closed_is_closed_when_it_is_dropped() -> None:
    cache = UnifiedRadixCache(tier_config(SETS[0], page_size=4)).start()
    put(cache, tokens(8))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        del cache
        gc.collect()
    assert [one.category for one in seen] == [ResourceWarning]
    until(lambda: loop_threads() == 0)


# -- processes --------------------------------------------------------------------------------

PROGRAM = """
import os, sys, threading
from pathlib import Path
from radixtide import AllocateParams, CacheClosed, InsertParams, MatchPrefixParams, RadixKey
from radixtide.blocking import UnifiedRadixCache
from support.blocking import found, put
from support.caches import make_config, tokens
from support.tier_config import SETS, tier_config

def opened(folder):
    url = f"lmdb:{folder}"
    return UnifiedRadixCache(tier_config(SETS[0], page_size=4, url=url)).start()
"""


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM + program, str(folder)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_programs_that_forget_to_close_end_all_the_same(tmp_path: Path) -> None:
    # Each is a process of its own, forked before anything runs in threads.
    program = """
from concurrent.futures import Future

def forgets(cache):
    put(cache, tokens(32))

def exits(cache):
    put(cache, tokens(8))
    sys.exit(7)

def fails(cache):
    put(cache, tokens(8))
    raise SystemError("on purpose")

def leaves_a_thread_waiting(cache):
    slots = cache.allocate(AllocateParams(num_tokens=8)).indices
    cache.insert(InsertParams(key=RadixKey(tokens(8)), value=slots), ready=Future())
    def wait():
        try:
            cache.drain(600.0)
        except CacheClosed:
            os.write(2, b"told")
    threading.Thread(target=wait, daemon=True).start()
    while not cache._thread.calls:
        pass

def is_outlived(cache):
    def serve():
        try:
            while True:
                put(cache, tokens(8))
        except CacheClosed:
            os.write(2, b"outlived ")
    threading.Thread(target=serve).start()

def was_closed(cache):
    put(cache, tokens(8))
    cache.close()

codes, kept = [], []
for work in (forgets, exits, fails, is_outlived, leaves_a_thread_waiting, was_closed):
    child = os.fork()
    if not child:
        kept.append(opened(f"{sys.argv[1]}/{work.__name__}"))
        work(kept[0])
        sys.exit()
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(codes)
"""
    ended = run(program, tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "[0, 7, 1, 0, 0, 0]\n"), ended.stderr
    assert ended.stderr.count("Traceback") == 1
    assert "SystemError: on purpose\n" in ended.stderr
    assert ended.stderr.endswith("outlived told")
    # The store of the one that just ended is whole.
    config = tier_config(SETS[0], page_size=4, url=f"lmdb:{tmp_path}/forgets")
    with blocking_cache(config) as cache, cache.prefetch(RadixKey(tokens(32))) as fetch:
        assert fetch.wait() in range(33)  # it need not be all: nobody waited for the copies


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_forked_process_gets_a_clear_error_and_the_parent_serves_on(tmp_path: Path) -> None:
    program = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of fork with threads, from 3.12 on
with UnifiedRadixCache(make_config()) as cache:
    put(cache, tokens(8))
    match = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens(8))))
    child = os.fork()
    if not child:
        try:
            cache.stats()
        except CacheClosed as error:
            sys.stderr.write(str(error))
        try:
            with cache.hold(match): pass
        except CacheClosed: pass
        cache.close()
        with UnifiedRadixCache(make_config()) as own:
            put(own, tokens(8))
            code = 40 + found(own, tokens(8))
        sys.exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, found(cache, tokens(8)), cache.audit().ok)
"""
    ended = run(program, tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "48 8 True\n"), ended.stderr
    assert "make a cache after the fork" in ended.stderr
    assert "Traceback" not in ended.stderr
