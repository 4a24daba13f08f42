"""The blocking face: the same names and signatures, the same answers, the same errors."""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import radixtide
from radixtide import (
    AllocateParams,
    Busy,
    CacheClosed,
    CallTimeout,
    ConfigError,
    DoubleFree,
    EvictParams,
    InsertParams,
    InvalidInput,
    InvalidKey,
    MatchPrefixParams,
    MissReason,
    OutOfSlots,
    RadixKey,
    ReceiptReleased,
    Request,
    StaleNode,
)
from radixtide.actors import tier_handles
from radixtide.actors.hold import Hold as AwaitedHold
from radixtide.blocking import UnifiedRadixCache
from radixtide.blocking_handles import Hold, LoadBack, Prefetch
from radixtide.configs.schema import LimitsConfig, StorageConfig
from support.blocking import blocking_cache, found, nothing_held, put, until
from support.caches import make_config, tokens
from support.interceptors import Recorder, Stall
from support.programs import run_benchmark
from support.tier_config import SETS, tier_config

OWN = {"run", "start"}
"""Public names that only the blocking face has."""
FACES: list[tuple[type[Any], type[Any]]] = [
    (radixtide.UnifiedRadixCache, UnifiedRadixCache),
    (tier_handles.LoadBack, LoadBack),
    (tier_handles.Prefetch, Prefetch),
    (AwaitedHold, Hold),
]


def public(face: type[Any]) -> set[str]:
    return {name for name in dir(face) if not name.startswith("_")}


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any, Any]]:
    return [
        (one.name, one.kind, one.default, one.annotation)
        for one in inspect.signature(function).parameters.values()
    ]


def answer_of(function: Callable[..., Any]) -> str:
    """Return the annotation of what a caller gets in the end."""
    said = str(inspect.signature(function).return_annotation)
    return said.removeprefix("Coroutine[Any, Any, ").removesuffix("]") if "Corou" in said else said


# -- parity ---------------------------------------------------------------------------------


def test_the_blocking_face_has_every_public_name_and_few_of_its_own() -> None:
    awaited, blocking = public(FACES[0][0]), public(FACES[0][1])
    assert len(awaited) > 35
    assert awaited - blocking == set()
    assert blocking - awaited == OWN


@pytest.mark.parametrize(("awaited", "blocking"), FACES[1:])
def test_the_handles_have_every_public_name(awaited: type[Any], blocking: type[Any]) -> None:
    # What a handle keeps in attributes is a property here.
    attributes = {"LoadBack": {"receipt", "loaded", "length", "device_indices"}}
    attributes["Prefetch"] = {"pages"}
    more = {"release", "undoing"} & public(blocking)  # for the cache itself
    assert public(blocking) - more == public(awaited) | attributes.get(awaited.__name__, set())


@pytest.mark.parametrize(("awaited", "blocking"), FACES)
def test_every_public_name_is_the_same_kind_of_thing_with_the_same_parameters(
    awaited: type[Any], blocking: type[Any]
) -> None:
    for name in public(awaited):
        theirs, ours = (inspect.getattr_static(face, name) for face in (awaited, blocking))
        assert type(theirs) is type(ours), name
        if isinstance(theirs, property):
            assert (theirs.fset is None) == (ours.fset is None), name
            theirs, ours = theirs.fget, ours.fget
        elif isinstance(theirs, classmethod):
            theirs, ours = theirs.__func__, ours.__func__
        assert parameters(theirs) == parameters(ours), name
        assert answer_of(theirs) == answer_of(ours), name
        assert not inspect.iscoroutinefunction(ours), name


def test_both_faces_are_made_with_the_same_arguments() -> None:
    assert parameters(radixtide.UnifiedRadixCache) == parameters(UnifiedRadixCache)


# -- calls ------------------------------------------------------------------------------------


def test_a_prompt_is_cached_and_found_again() -> None:
    with blocking_cache() as cache:
        put(cache, tokens(16))
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens(20))))
        assert len(match.device_indices) == 16
        assert match.miss_reason is MissReason.NEVER_STORED
        assert torch.equal(cache.device_indices(match.last_device_node), match.device_indices)


def test_a_request_goes_from_its_match_to_its_end() -> None:
    with blocking_cache() as cache:
        put(cache, tokens(8))
        req = Request(rid="r", origin_input_ids=tokens(14))
        req.req_pool_idx = cache.req_to_token_pool.alloc()
        match = cache.match_prefix(MatchPrefixParams(key=req.key(13), req=req, lock=True))
        assert len(match.device_indices) == 8
        cache.allocate(AllocateParams(num_tokens=6, req=req))
        req.kv_committed_len = 12
        assert cache.cache_unfinished_req(req, chunked=True).inserted_len == 12
        assert cache.release_window(req, 12) == 0
        req.kv_committed_len = 14
        assert cache.cache_finished_req(req).inserted_len == 12
        assert cache.abort_req(req).freed == 0
        nothing_held(cache)
        assert found(cache, tokens(14)) == 12


def test_locks_pins_and_the_whole_cache() -> None:
    with blocking_cache(pin_budget=16) as cache:
        put(cache, tokens(8))
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens(8))))
        receipt = cache.inc_lock_ref(match.last_device_node)
        assert cache.evict(EvictParams(num_tokens=8)).num_tokens_evicted == 0
        with pytest.raises(Busy, match="receipt"):
            cache.reset()
        assert cache.dec_swa_lock_only(receipt).unprotected["full"] == 0
        assert cache.dec_lock_ref(receipt).unprotected["full"] == 8
        assert cache.pin(RadixKey(tokens(8)), 60.0).pinned_len == 8
        assert cache.unpin(RadixKey(tokens(8)))
        assert "8 slots" in cache.pretty_print()
        assert len(cache.picture(10).nodes) == 1
        assert cache.stats().nodes == 1
        cache.reset()
        assert cache.stats().nodes == 0
        assert cache.now() > 0


def test_hold_locks_inside_its_block_and_releases_behind_an_error_too() -> None:
    with blocking_cache() as cache:
        put(cache, tokens(8))
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens(8))))
        with cache.hold(match) as receipt:
            assert receipt.node == match.last_device_node
            assert cache.stats().receipts == 1
        with pytest.raises(ZeroDivisionError), cache.hold(match):
            _ = 1 // 0
        nothing_held(cache)
        cache.evict(EvictParams(num_tokens=8))
        with pytest.raises(StaleNode), cache.hold(match):
            pytest.fail("there was nothing to lock")


def test_a_release_can_be_posted_without_waiting() -> None:
    with blocking_cache() as cache:
        put(cache, tokens(8))
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens(8)), lock=True))
        assert match.receipt is not None
        cache.post_release(match.receipt)
        nothing_held(cache)


def test_the_pools_are_the_caches_own() -> None:
    with UnifiedRadixCache(make_config(holds_bytes=True)) as cache:
        core = cache._core
        assert cache.kv_pool is core.kv_pool
        assert cache.kv_pool is not None
        for name in ("config", "page_size", "req_to_token_pool", "memory", "host_pools"):
            assert getattr(cache, name) is getattr(core, name)


def test_a_file_of_configuration_is_read(tmp_path: Path) -> None:
    file = tmp_path / "cache.toml"
    file.write_text("page_size = 4\n[pools.full]\nsize = 64\nholds_bytes = false\n")
    with UnifiedRadixCache.from_toml(file) as cache:
        put(cache, tokens(8))
        assert cache.page_size == 4
    file.write_text("page_size = 4\n[pools.full]\nsise = 64\n")
    with pytest.raises(ConfigError, match="did you mean size"):
        UnifiedRadixCache.from_toml(file)


def test_several_calls_run_in_one() -> None:
    async def chunks(cache: radixtide.UnifiedRadixCache, count: int, *, size: int) -> list[int]:
        lengths = []
        for at in range(count):
            key = RadixKey(tokens(size, start=1000 * at))
            slots = await cache.allocate(AllocateParams(num_tokens=size))
            lengths.append(
                (await cache.insert(InsertParams(key=key, value=slots.indices))).inserted_len
            )
        return lengths

    async def wrong(cache: radixtide.UnifiedRadixCache) -> None:
        await cache.allocate(AllocateParams(num_tokens=1_000_000))

    with blocking_cache() as cache:
        assert cache.run(chunks, 3, size=8) == [8, 8, 8]
        assert cache.stats().nodes == 3
        with pytest.raises(OutOfSlots):
            cache.run(wrong)


def test_start_and_close_do_what_with_does() -> None:
    cache = UnifiedRadixCache(make_config()).start()
    put(cache, tokens(8))
    cache.close()
    with pytest.raises(CacheClosed, match="closed"):
        cache.stats()


# -- errors and deadlines -----------------------------------------------------------------------


def test_errors_keep_their_type_and_change_nothing() -> None:
    with blocking_cache() as cache:
        with pytest.raises(OutOfSlots) as caught:
            cache.allocate(AllocateParams(num_tokens=1000))
        assert "1000" in str(caught.value)
        with pytest.raises(InvalidKey):
            cache.match_prefix(MatchPrefixParams(key=RadixKey([])))
        with pytest.raises(InvalidInput):
            cache.match_prefix("a key")  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(InvalidInput):
            cache.load_back(cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens(4)))))
        slots = cache.allocate(AllocateParams(num_tokens=4)).indices
        cache.free(slots)
        with pytest.raises(DoubleFree):
            cache.free(slots)
        put(cache, tokens(8))
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens(8)), lock=True))
        assert match.receipt is not None
        cache.dec_lock_ref(match.receipt)
        with pytest.raises(ReceiptReleased):
            cache.dec_lock_ref(match.receipt)
        nothing_held(cache)


def test_an_error_keeps_no_frame_alive_once_it_is_forgotten() -> None:
    class Big:
        pass

    async def fail(_: radixtide.UnifiedRadixCache, big: Big) -> None:
        raise ValueError(str(big))

    with blocking_cache() as cache:
        big = Big()
        seen = weakref.ref(big)
        with pytest.raises(ValueError, match="Big"):
            cache.run(fail, big)
        del big
        # No collection is needed: nothing goes round in a circle.
        gc.disable()
        try:
            until(lambda: seen() is None)
        finally:
            gc.enable()


def test_a_call_that_is_not_answered_raises_at_its_deadline_and_takes_nothing() -> None:
    config = make_config(limits=LimitsConfig(call_timeout_s=20.0))
    with blocking_cache(config) as cache:
        put(cache, tokens(8))
        stall = Stall(kind="CommitMatch")
        cache.add_interceptor(stall)
        with pytest.raises(CallTimeout):
            cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens(8)), lock=True), timeout=0.05)
        with pytest.raises(InvalidInput):
            cache.audit(timeout=-1.0)
        cache._thread.ask(stall.release)
        cache.remove_interceptor(stall)
        nothing_held(cache)


def test_an_interceptor_sees_the_messages_of_a_call() -> None:
    with blocking_cache() as cache:
        recorder = Recorder()
        cache.add_interceptor(recorder)
        put(cache, tokens(8))
        cache.remove_interceptor(recorder)
        assert ("InsertParams", "coordinator") in recorder.sent


def test_a_call_in_the_caches_own_thread_is_refused_instead_of_waiting_for_itself() -> None:
    refused: list[Exception] = []

    class Asks(Recorder):
        def before_handle(self, envelope: Any) -> None:
            if not refused:
                try:
                    cache.stats()
                except InvalidInput as error:
                    refused.append(error)

    with blocking_cache() as cache:
        asks = Asks()
        cache.add_interceptor(asks)
        put(cache, tokens(8))
        cache.remove_interceptor(asks)
    assert "wait for itself" in str(refused[0])


def test_an_actor_that_is_killed_goes_on() -> None:
    with blocking_cache() as cache:
        put(cache, tokens(8))
        assert cache.kill("full")
        assert found(cache, tokens(8)) == 8
        assert not cache.kill("nobody")


def test_the_loop_is_uvloop_where_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def kind(_: radixtide.UnifiedRadixCache) -> str:
        return type(asyncio.get_running_loop()).__module__

    uvloop = pytest.importorskip("uvloop")
    with blocking_cache() as cache:
        assert cache.run(kind) == uvloop.__name__
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    with blocking_cache() as cache:
        assert cache.run(kind).startswith("asyncio")
        put(cache, tokens(8))
        assert found(cache, tokens(8)) == 8


# -- tiers ----------------------------------------------------------------------------------------


def test_a_prompt_leaves_the_device_and_comes_back_and_after_a_restart_from_lmdb(
    tmp_path: Path,
) -> None:
    config = tier_config(SETS[0], page_size=4, url=f"lmdb:{tmp_path}", storage={"model": "m"})
    key = RadixKey(tokens(32))
    with blocking_cache(config) as cache:
        slots = cache.allocate(AllocateParams(num_tokens=32)).indices
        assert cache.kv_pool is not None
        state = torch.arange(32, dtype=torch.float32).view(-1, 1, 1).expand(-1, 1, 4)
        for layer in range(2):
            cache.kv_pool.write(layer, slots, state, state + 1)
        cache.insert(InsertParams(key=key, value=slots))
        cache.drain()
        assert cache.flush("device") == 32
        match = cache.match_prefix(MatchPrefixParams(key=key))
        assert match.host_hit_length == 32
        with cache.load_back(match) as load:
            load.wait_layer(1, timeout=20.0)
            assert load.wait() == load.length == load.loaded == 32
            assert load.done
            assert not load.failed
            keys, values = cache.kv_pool.read(1, load.device_indices)
            assert torch.equal(keys, state)
            assert torch.equal(values, state + 1)
            assert cache.stats().receipts == 1
        nothing_held(cache)
        assert cache.transfers == 0
        assert cache.storage_jobs is not None
    with blocking_cache(config) as cache:
        assert found(cache, tokens(32)) == 0
        with cache.prefetch(key) as fetch:
            assert fetch.pages == 8
            assert fetch.wait() == 32
            assert fetch.done
            assert cache.is_fetched(12345)
        req = Request(rid="r", origin_input_ids=tokens(33))
        match = cache.match_prefix(MatchPrefixParams(key=key, req=req, lock=True))
        load = cache.load_back(match, req)
        assert load.wait() == 32
        cache.abort_req(req)
        load.close()
        nothing_held(cache)
        assert cache.flush("storage") > 0


def test_a_storage_is_attached_and_detached_while_the_cache_is_open(tmp_path: Path) -> None:
    with blocking_cache(tier_config(SETS[0], page_size=4)) as cache:
        put(cache, tokens(8))
        cache.attach_storage(StorageConfig(url=f"lmdb:{tmp_path}", model="m", prefetch_threshold=0))
        with pytest.raises(Busy):
            cache.attach_storage(StorageConfig(url=f"lmdb:{tmp_path}", model="m"))
        cache.drain()
        cache.detach_storage()
        assert cache.storage_jobs is None
        cache.step()


def test_a_handle_that_nobody_closed_warns_and_lets_go() -> None:
    with blocking_cache(tier_config(SETS[0], page_size=4)) as cache:
        put(cache, tokens(8))
        cache.drain()
        cache.flush("device")
        match = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens(8))))
        load = cache.load_back(match)
        load.wait()
        assert cache.stats().receipts == 1
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            del load
        assert [one.category for one in seen] == [ResourceWarning]
        nothing_held(cache)


def test_a_plan_that_refuses_host_memory_is_asked() -> None:
    asked: list[str] = []

    def refuse(component: str) -> bool:
        asked.append(threading.current_thread().name)
        return True

    with UnifiedRadixCache(tier_config(SETS[0], page_size=4)) as cache:
        cache.refuse_host = refuse
        assert cache.refuse_host is refuse
        put(cache, tokens(8))
        cache.drain()
        assert set(asked) == {"radixtide-loop"}
        assert cache.stats().pools["full"]["host"].evictable == 0


def test_the_benchmark_measures_every_way() -> None:
    result = run_benchmark("blocking", "--calls", "5", "--rounds", "1", "--json")
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert {row["way"] for row in rows} == {"awaited", "blocking", "portal", "run of 16"}
    assert all(0 < row["p50_us"] <= row["p90_us"] for row in rows)
