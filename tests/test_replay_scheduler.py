"""The scheduler of a replay, driving a small cache: order, chunks, rows, virtual time."""

from collections.abc import Iterable
from typing import Any

from radixtide.actors.cache import UnifiedRadixCache
from radixtide.cli.replay_costs import (
    DECODE_SEQUENCE_NS,
    ITERATION_NS,
    PREFILL_TOKEN_NS,
    Limits,
    step_ns,
)
from radixtide.cli.replay_job import abort_point
from radixtide.cli.replay_recording import Recording
from radixtide.cli.replay_scheduler import Scheduler
from radixtide.cli.replay_source import TraceRequest
from radixtide.cli.replay_tiers import Tiers
from radixtide.cli.replay_tokens import output_id
from radixtide.configs.loader import parse_config


async def serve(requests: Iterable[TraceRequest], **limits: Any) -> tuple[Recording, int]:
    """Drive a small cache; return the record and how many rows are free in the end."""
    config = parse_config(
        "page_size = 16\n[pools.full]\nsize = 4096\nholds_bytes = false\n"
        "[pools.requests]\nmax_requests = 4\nmax_context = 600\n"
    )
    recording = Recording()
    async with UnifiedRadixCache(config) as cache:
        limit = Limits(abort_ratio=0.0, **limits)
        await Scheduler(cache, 16, limit, recording, Tiers(cache, recording.calls)).run(requests)
        assert (await cache.audit()).ok
        recording.calls.roll()
        return recording, cache.req_to_token_pool.available


def request(number: int, arrival_ms: int, *blocks: int, output: int = 40, **more: Any) -> Any:
    lengths = (100,) * len(blocks)
    return TraceRequest(
        number, arrival_ms * 1_000_000, blocks, lengths, output_id(number), output, **more
    )


async def test_a_follow_up_waits_for_the_answer_that_its_prompt_holds() -> None:
    first = request(0, 0, 1, 2, name="turn 1")
    # It arrives while the first is under way, and holds its prompt and its answer.
    ids, lengths = (1, 2, first.stream, 7), (100, 100, 40, 100)
    second = TraceRequest(1, 1, ids, lengths, output_id(1), 5, after="turn 1")
    recording, _ = await serve([first, second])
    assert recording.tally.completed == 2
    assert recording.tally.token_hits == 240  # 200 + 40: fifteen whole pages


async def test_requests_of_one_session_run_one_by_one_in_order() -> None:
    session = [request(n, 0, *range(n + 1), name="s", after="s") for n in range(4)]
    recording, _ = await serve(session)
    # Each prompt is the one before and 100 tokens more: all of that one's whole pages are found.
    assert recording.tally.token_hits == 96 + 192 + 288
    assert recording.tally.completed == 4


async def test_a_prompt_is_computed_in_chunks_that_others_find_at_once() -> None:
    long, same = request(0, 0, *range(9)), request(1, 9, *range(9))
    # The first step takes 5 ms for one pass and 3.2 ms for 320 tokens; the other arrives in it.
    recording, _ = await serve([long, same], chunk=320, token_budget=320)
    assert recording.calls.total["cache_unfinished_req"].count > 3
    assert recording.tally.token_hits == 640  # two chunks were done when it was admitted


async def test_more_requests_than_rows_take_turns_and_all_rows_come_back() -> None:
    recording, rows = await serve(request(n, 0, n, 99) for n in range(20))
    assert recording.tally.completed == 20
    assert rows == 4


async def test_a_request_longer_than_a_row_is_served_without_one() -> None:
    recording, rows = await serve([request(0, 0, *range(9))])
    assert (recording.tally.completed, rows) == (1, 4)


async def test_a_prompt_that_is_cached_whole_or_generates_nothing_still_ends() -> None:
    again = TraceRequest(1, 10**10, (5,), (96,), output_id(1), 0)
    once = TraceRequest(0, 0, (5,), (96,), output_id(0), 0)
    recording, _ = await serve([once, again])
    assert recording.tally.completed == 2
    assert recording.tally.token_hits == 96


def test_a_step_costs_its_passes_and_its_tokens() -> None:
    assert step_ns(0, 0, 0) == ITERATION_NS
    assert step_ns(1000, 0, 0) == ITERATION_NS + 1000 * PREFILL_TOKEN_NS
    assert step_ns(10, 3, 16) == (
        16 * (ITERATION_NS + 3 * DECODE_SEQUENCE_NS) + 10 * PREFILL_TOKEN_NS
    )


def test_who_leaves_and_when_depends_on_seed_and_number_alone() -> None:
    some = [request(n, 0, n) for n in range(2000)]
    points = [abort_point(one, 0.25, seed=3) for one in some]
    assert points == [abort_point(one, 0.25, seed=3) for one in some]
    assert points != [abort_point(one, 0.25, seed=4) for one in some]
    leaving = [point for point in points if point is not None]
    assert 400 < len(leaving) < 600
    assert min(leaving) < 10
    assert 130 < max(leaving) < 140
    assert abort_point(some[0], 0.0, seed=3) is None


async def test_time_jumps_to_the_next_arrival_when_nothing_is_to_do() -> None:
    recording, _ = await serve([request(0, 0, 1, output=1), request(1, 60_000, 2, output=1)])
    step = step_ns(100, 0, 0) + step_ns(0, 1, 1)
    assert recording.now_ns == 60_000_000_000 + step
    assert recording.whole.count == 2
