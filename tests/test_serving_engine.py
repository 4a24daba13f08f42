"""The engine as its users see it: answers, reports, refusals, and what it shares."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from radixtide import UnifiedRadixCache
from radixtide.configs.errors import InvalidInput, PinRefused
from radixtide.configs.schema import HostConfig, StorageConfig
from radixtide.serving.config import EngineConfig
from radixtide.serving.errors import EngineFailed, Overloaded
from radixtide.serving.params import SamplingParams
from radixtide.serving.statistics import Event, Histogram
from support.actors import until
from support.serving_engine import (
    ALL,
    EOS,
    FULL,
    STATEFUL,
    WINDOWED,
    Bench,
    answer_to,
    engine_config_of_cache,
    heard,
    nothing_is_held,
    numbers,
)

KINDS = pytest.mark.parametrize("components", [FULL, WINDOWED, STATEFUL, ALL], ids="+".join)
HOST = HostConfig(ratio=2.0, load_back_threshold=4)


@KINDS
async def test_answers_are_those_of_the_model_without_a_cache(components: tuple[str, ...]) -> None:
    config = EngineConfig(chunk_tokens=12, step_tokens=30)
    async with Bench(config=config, components=components) as bench:
        prompts = [numbers(seed, 3 + 9 * seed) for seed in range(5)]
        prompts += [[*prompts[4][:20], *numbers(9, 5)], prompts[3], [7]]
        await asyncio.gather(*(bench.check(prompt, 10) for prompt in prompts))


@KINDS
async def test_a_prompt_that_came_before_is_computed_from_its_last_page_on(
    components: tuple[str, ...],
) -> None:
    async with Bench(components=components) as bench:
        whole = numbers(3, 48)
        await bench.check(whole)
        assert (await bench.check(whole)).report.cached_device == 44
        prompt = numbers(1, 50)
        cold = await bench.check(prompt)
        warm = await bench.check([*prompt, *numbers(2, 6)])
        assert (cold.report.cached_tokens, cold.report.computed_tokens) == (0, 50)
        assert (warm.report.cached_device, warm.report.computed_tokens) == (48, 8)
        assert warm.report.miss_reason == "never_stored"
        again = await bench.check(prompt)
        assert again.report.cached_device == 48


@KINDS
async def test_a_conversation_finds_its_earlier_turns(components: tuple[str, ...]) -> None:
    async with Bench(components=components) as bench:
        text, known = numbers(1, 30), 0
        for turn in range(4):
            report = (await bench.check(text, 10)).report
            assert report.cached_device == known // 4 * 4
            text = [*text, *answer_to(text, 10, components)]
            # The last token of an answer is never computed.
            known = len(text) - 1
            text += numbers(10 + turn, 7)


@KINDS
async def test_what_left_the_device_is_loaded_from_the_host(components: tuple[str, ...]) -> None:
    cache = engine_config_of_cache(components, host=HOST)
    async with Bench(cache, components=components) as bench:
        prompt = numbers(1, 60)
        await bench.check(prompt)
        await bench.engine.drain()
        assert await bench.engine.flush("device") > 0
        loaded = await bench.check([*prompt, *numbers(2, 6)])
        report = loaded.report
        assert (report.cached_device, report.cached_host, report.cached_storage) == (0, 60, 0)
        assert report.computed_tokens == 6
        assert report.load_s is not None
        assert (await bench.engine.stats()).cached_host == 60


@KINDS
async def test_what_an_engine_has_stored_another_one_finds(
    components: tuple[str, ...], tmp_path: Path
) -> None:
    storage = StorageConfig(
        url=f"file:{tmp_path}", prefetch_policy="wait_complete", prefetch_threshold=8
    )
    cache = engine_config_of_cache(components, host=HOST, storage=storage)
    prompt = numbers(1, 60)
    async with Bench(cache, components=components) as bench:
        await bench.check(prompt)
        await bench.engine.drain()
    async with Bench(cache, components=components) as bench:
        assert (await bench.check(prompt)).report.cached_storage == 56
    async with Bench(cache, components=components) as bench:
        report = (await bench.check([*prompt, *numbers(2, 6)])).report
        assert (report.cached_device, report.cached_host, report.cached_storage) == (0, 0, 60)
        assert report.computed_tokens == 6
        assert report.fetch_s is not None


async def test_another_namespace_finds_nothing() -> None:
    async with Bench() as bench:
        prompt = numbers(1, 40)
        await bench.check(prompt, cache_salt="a")
        others: list[dict[str, Any]] = [{"cache_salt": "b"}, {"extra_key": "a"}, {}]
        for names in others:
            assert (await bench.check(prompt, **names)).report.cached_tokens == 0
        assert (await bench.check(prompt, cache_salt="a")).report.cached_tokens == 36


@KINDS
async def test_what_requests_share_is_computed_once_though_they_come_together(
    components: tuple[str, ...],
) -> None:
    async with Bench(config=EngineConfig(chunk_tokens=16), components=components) as bench:
        shared = numbers(1, 60)
        asked = [[*shared, *numbers(2 + n, 5)] for n in range(6)]
        generations = await asyncio.gather(*(bench.check(prompt, 4) for prompt in asked))
        computed = sum(one.report.computed_tokens for one in generations)
        # The first one computes all of its own, the others what is theirs alone.
        assert computed <= 65 + 5 * 9
        assert (await bench.engine.stats()).retractions == 0


@KINDS
async def test_what_two_have_computed_at_once_is_kept_once(components: tuple[str, ...]) -> None:
    # Nobody waits for what another one computes where nobody may be overtaken.
    config = EngineConfig(overtakes_max=0, chunk_tokens=8, reserve_tokens=0)
    cache = engine_config_of_cache(components, pages=60)
    async with Bench(cache, config, components=components) as bench:
        twins = [bench.check(numbers(1, 50), 20) for _ in range(4)]
        # These take what the twins give back, and write to it.
        others = [bench.check(numbers(2 + n, 30), 9) for n in range(3)]
        reports = [one.report for one in await asyncio.gather(*twins, *others)]
        assert [one.computed_tokens for one in reports[:4]] == [50] * 4
        await bench.engine.flush("device")


async def test_a_pass_computes_no_more_than_it_may_and_decodes_first() -> None:
    config = EngineConfig(step_tokens=20, chunk_tokens=12)
    async with Bench(config=config) as bench:
        first = bench.ask(numbers(1, 30), 40)
        await anext(first)
        later = [bench.check(numbers(2 + n, 40), 4) for n in range(3)]
        await asyncio.gather(*later, heard(first))
        for rows in bench.runner.passes:
            lengths = [len(row.tokens) for row in rows]
            assert sum(lengths) <= 20
            assert max(lengths) <= 12
            assert lengths == sorted(lengths, key=lambda one: one > 1), "who decodes comes first"
        assert any(len(rows) > 2 for rows in bench.runner.passes)


async def test_tokens_come_one_by_one_while_others_are_computed() -> None:
    async with Bench() as bench:
        prompt = numbers(1, 10)
        generation = bench.ask(prompt, 5)
        bench.runner.hold()
        await bench.computing()
        bench.runner.let_on()
        got = [(await anext(generation)).id]
        # The next one can not come before the next pass ends.
        bench.runner.hold()
        assert generation.finish_reason is None
        bench.runner.let_on()
        got += await heard(generation)
        assert got == answer_to(prompt, 5)


@pytest.mark.parametrize("components", [WINDOWED, ALL], ids="+".join)
async def test_a_long_answer_holds_two_windows_at_most(components: tuple[str, ...]) -> None:
    cache = engine_config_of_cache(components, window_pages=6)
    async with Bench(cache, components=components) as bench:
        generation = bench.ask(numbers(1, 20), 200)
        said = [(await anext(generation)).id for _ in range(150)]
        pool = (await bench.engine.cache.stats()).pools["swa"]["device"]
        assert pool.protected == 0, "the window of the prompt is seen by no token to come"
        assert 0 < pool.held <= 12
        said += await heard(generation)
        assert said == answer_to(numbers(1, 20), 200, components)


# -- how an answer ends ----------------------------------------------------------------------------


async def test_a_stop_token_ends_the_answer_and_is_no_part_of_it() -> None:
    async with Bench() as bench:
        prompt = numbers(1, 12)
        right = answer_to(prompt, 6)
        params = SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=(right[3],))
        generation = bench.engine.generate(prompt, params)
        assert await heard(generation) == right[:3]
        assert generation.finish_reason == "stop"
        assert generation.report.output_tokens == 3


async def test_the_models_own_end_counts_unless_it_is_ignored() -> None:
    async with Bench() as bench:
        # This one never says its own end: so one of its words is made that.
        prompt = numbers(1, 12)
        right = answer_to(prompt, 6)
        bench.engine._eos = frozenset((right[2],))
        params = SamplingParams(temperature=0.0, max_tokens=6)
        assert await heard(bench.engine.generate(prompt, params)) == right[:2]
        ignoring = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        assert await heard(bench.engine.generate(prompt, ignoring)) == right


async def test_stop_ends_an_answer_and_keeps_what_was_computed() -> None:
    async with Bench() as bench:
        prompt = numbers(1, 20)
        generation = bench.ask(prompt, 100)
        said = [(await anext(generation)).id for _ in range(9)]
        await generation.stop()
        assert generation.finish_reason == "stop"
        more = await bench.check([*prompt, *said[:8], 5])
        assert more.report.cached_device == 28


async def test_an_answer_is_no_longer_than_context_pool_and_engine_allow() -> None:
    async with Bench(engine_config_of_cache(pages=8), max_context=4096) as bench:
        generation = bench.engine.generate(numbers(1, 20), SamplingParams(temperature=0.0))
        assert len(await heard(generation)) == 12, "the pool has 32 slots"
    async with Bench(config=EngineConfig(max_output_tokens=3), max_context=30) as bench:
        generation = bench.engine.generate(numbers(1, 20), SamplingParams(temperature=0.0))
        assert len(await heard(generation)) == 3
        generation = bench.engine.generate(numbers(1, 28), SamplingParams(temperature=0.0))
        assert len(await heard(generation)) == 2
        assert generation.finish_reason == "length"


async def test_sampled_answers_of_one_seed_are_equal_whatever_runs_beside() -> None:
    params = SamplingParams(temperature=1e6, seed=11, max_tokens=12)
    async with Bench(config=EngineConfig(step_tokens=8)) as bench:
        alone = await heard(bench.engine.generate(numbers(1, 20), params))
        others = [bench.ask(numbers(2 + n, 25), 9) for n in range(4)]
        assert await heard(bench.engine.generate(numbers(1, 20), params)) == alone
        await asyncio.gather(*map(heard, others))
        assert len(set(alone)) > 8, "so hot that all tokens are as likely: each place draws anew"


async def test_logprobs_come_with_each_token_when_they_are_asked_for() -> None:
    async with Bench() as bench:
        params = SamplingParams(temperature=0.0, max_tokens=2, logprobs=2)
        for token in await bench.engine.generate([1, 2, 3], params).tokens():
            assert token.logprob is not None
            assert token.top[0] == (token.id, token.logprob)
            assert len(token.top) == 2
        assert (await bench.ask([1, 2, 3]).tokens())[0].logprob is None


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ([], "at least one"),
        ([[1, 2]], "at least one"),
        ([1, -1], "token id -1"),
        ([1, EOS + 1], "token id 1000"),
        ([1.5], "integers"),
        ([True, "a"], "integers"),
        (numbers(1, 256), "at most 256"),
    ],
    ids=("empty", "nested", "negative", "unknown", "float", "text", "long"),
)
async def test_a_prompt_that_can_not_be_served_is_refused(prompt: Any, why: str) -> None:
    async with Bench() as bench:
        with pytest.raises(InvalidInput, match=why):
            bench.engine.generate(prompt)


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 2**70},
        {"priority": True},
        {"priority": None},
        {"cache_salt": 3},
        {"extra_key": b"x"},
        {"rid": 7},
        {"cache_salt": "\ud800"},
        {"extra_key": "a\udfff"},
        {"params": SamplingParams(logprobs=21)},
    ],
    ids=str,
)
async def test_what_the_cache_would_refuse_is_refused_at_once(wrong: dict[str, Any]) -> None:
    async with Bench() as bench:
        with pytest.raises(InvalidInput):
            bench.engine.generate([1, 2, 3], **wrong)
        await bench.check([1, 2, 3])


async def test_a_name_that_is_in_use_is_refused_until_its_request_has_ended() -> None:
    async with Bench() as bench:
        first = bench.ask([1, 2, 3], rid="mine")
        with pytest.raises(InvalidInput, match="'mine' is in use"):
            bench.ask([4, 5], rid="mine")
        await heard(first)
        assert (await bench.check([4, 5], rid="mine")).rid == "mine"
        # A caller who names nothing meets nobody's name.
        named = [bench.ask([1, 2, 3], rid=f"r{number}") for number in range(10)]
        await bench.check([4, 5])
        await asyncio.gather(*map(heard, named))


async def test_a_full_queue_refuses_and_takes_again_when_there_is_room() -> None:
    config = EngineConfig(max_running=2, queue_max=3)
    async with Bench(config=config) as bench:
        bench.runner.hold()
        asked = [bench.ask(numbers(n, 9), 3) for n in range(5)]
        with pytest.raises(Overloaded, match="requests wait already"):
            bench.ask([1, 2])
        await bench.computing()
        with pytest.raises(Overloaded):
            bench.ask([1, 2])
        stats = await bench.engine.stats()
        assert (stats.running, stats.waiting, stats.refused) == (2, 3, 2)
        bench.runner.let_on()
        for n, generation in enumerate(asked):
            assert await heard(generation) == answer_to(numbers(n, 9), 3)
        await bench.check([1, 2])


async def test_an_engine_that_is_not_open_says_so() -> None:
    bench = Bench()
    with pytest.raises(EngineFailed, match="not open"):
        bench.ask([1, 2])
    async with bench:
        await bench.check([1, 2])
    with pytest.raises(EngineFailed, match="has ended"):
        bench.ask([1, 2])
    with pytest.raises(EngineFailed, match="entered before"):
        await bench.engine.__aenter__()


# -- the engine and its cache ----------------------------------------------------------------------


async def test_a_cache_that_was_given_stays_open() -> None:
    async with UnifiedRadixCache(engine_config_of_cache()) as cache:
        async with Bench(cache) as bench:
            await bench.check(numbers(1, 40))
        async with Bench(cache) as bench:
            assert (await bench.check(numbers(1, 40))).report.cached_tokens == 36
        assert (await cache.audit()).ok


async def test_pins_keep_a_prompt_while_others_need_its_room() -> None:
    cache = engine_config_of_cache(pages=20, pin_budget=40)
    async with Bench(cache) as bench:
        engine, prompt = bench.engine, numbers(1, 30)
        with pytest.raises(PinRefused):
            await engine.pin(prompt, 60.0)
        await bench.check(prompt)
        assert (await engine.pin(prompt, 60.0)).pinned_len == 28
        for n in range(4):
            await bench.check(numbers(2 + n, 40))
        assert (await bench.check(prompt)).report.cached_device == 28
        assert await engine.unpin(prompt)
        assert not await engine.unpin(prompt)


async def test_flushing_the_device_makes_the_next_one_compute_all() -> None:
    async with Bench() as bench:
        await bench.check(numbers(1, 40))
        assert await bench.engine.flush("device") > 0
        report = (await bench.check(numbers(1, 40))).report
        assert (report.cached_tokens, report.miss_reason) == (0, "evicted")


async def test_what_happens_to_requests_is_told_to_those_who_watch() -> None:
    async with Bench() as bench:
        async with bench.engine.watch() as events:
            await bench.check(numbers(1, 20), 3, rid="a")
            seen: list[Event] = []
            async for event in events:
                seen.append(event)
                if event.kind == "ended":
                    break
        assert [event.kind for event in seen] == ["queued", "admitted", "first_token", "ended"]
        assert {event.rid for event in seen} == {"a"}
        assert (seen[-1].why, seen[-1].prompt) == ("length", 20)


async def test_who_watches_slowly_loses_the_oldest_and_holds_up_nobody() -> None:
    config = EngineConfig(events_max=4, subscribers_max=1)
    async with Bench(config=config) as bench:
        events = bench.engine.watch()
        with pytest.raises(Overloaded):
            bench.engine.watch()
        for n in range(3):
            await bench.check(numbers(n, 9), 2)
        assert events.dropped == 12 - 4
        assert (await anext(events)).kind == "queued"
        events.close()
        assert len([event async for event in events]) == 3
        bench.engine.watch().close()


async def test_reports_say_where_a_request_is_and_the_last_ones_are_kept() -> None:
    async with Bench(config=EngineConfig(reports_max=2, max_running=1)) as bench:
        bench.runner.hold()
        first, second = bench.ask(numbers(1, 20), 3), bench.ask(numbers(2, 9), 3)
        await bench.computing()
        states = {one.rid: one.state for one in bench.engine.running()}
        assert states == {first.rid: "prefill", second.rid: "waiting"}
        bench.runner.let_on()
        await anext(first)
        assert first.report.state == "prefill", "it is as it was when somebody last looked"
        assert {one.rid: one.state for one in bench.engine.running()}[first.rid] == "decode"
        await heard(first)
        await heard(second)
        await bench.check([1, 2], 1)
        kept = list(bench.engine.finished)
        assert [one.number for one in kept] == [2, 3]
        assert [one.state for one in kept] == ["ended", "ended"]
        report = first.report
        assert report.queue_s is not None
        assert report.ttft_s is not None
        assert 0 <= report.queue_s <= report.ttft_s <= report.total_s


async def test_counts_add_up() -> None:
    async with Bench() as bench:
        for _ in range(2):
            await bench.check(numbers(1, 30), 5)
        stats = await bench.engine.stats()
        assert stats.finished == {"stop": 0, "length": 2, "abort": 0, "error": 0}
        assert (stats.prompt_tokens, stats.output_tokens) == (60, 10)
        assert stats.cached_device + stats.computed_tokens == 60
        assert stats.steps == len(bench.runner.passes) == stats.step_s.total
        assert stats.rows == sum(map(len, bench.runner.passes))
        assert stats.ttft_s.total == stats.total_s.total == stats.queue_s.total == 2
        assert sum(stats.misses.values()) == 2
        before = stats.steps
        await bench.check([1, 2, 3])
        assert stats.steps == before, "a look does not change any more"


def test_a_histogram_counts_by_size() -> None:
    histogram = Histogram((1.0, 2.0), [0, 0, 0])
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    assert (histogram.counts, histogram.total, histogram.sum) == ([2, 1, 1], 4, 12.0)


async def test_a_generation_that_is_dropped_is_aborted_and_says_so() -> None:
    async with Bench() as bench:
        bench.runner.hold()
        generation = bench.ask(numbers(1, 20), 50)
        await bench.computing()
        held = [generation]
        del generation
        with pytest.warns(ResourceWarning, match="never closed"):
            held.clear()
        bench.runner.let_on()
        await until(lambda: len(bench.engine.finished) == 1)
        assert bench.engine.finished[0].finish_reason == "abort"
        await nothing_is_held(bench.engine)
