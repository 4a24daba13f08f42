"""Who is admitted next, and where chunks end: plain functions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from radixtide.configs.errors import ConfigError
from radixtide.serving.generation import Channel
from radixtide.serving.order import in_order, note_overtaking
from radixtide.serving.params import SamplingParams
from radixtide.serving.report import Report
from radixtide.serving.sequence import Sequence
from radixtide.serving.shape import Shape, chunk_end
from support.serving_engine import ALL, WINDOWED, engine_config_of_cache


@dataclass
class One:
    arrival: int
    cached: int = 0
    priority: int = 0
    overtaken: int = 0
    returns: bool = False


def names(waiting: list[One], overtakes_max: int = 3) -> list[int]:
    return [one.arrival for one in in_order(waiting, overtakes_max)]


def test_who_has_more_cached_goes_first_and_then_who_came_first() -> None:
    assert names([One(1, 8), One(2, 64), One(3, 8), One(4, 0)]) == [2, 1, 3, 4]


def test_a_higher_priority_goes_before_any_cached_prefix() -> None:
    assert names([One(1, 640), One(2, 0, priority=1), One(3, 64)]) == [2, 1, 3]


def test_who_was_overtaken_often_enough_goes_first() -> None:
    assert names([One(1, 0, overtaken=2), One(2, 64)]) == [2, 1]
    assert names([One(1, 0, overtaken=3), One(2, 64)]) == [1, 2]


def test_who_ran_before_goes_first_as_they_came() -> None:
    assert names([One(1, 64), One(5, 0, returns=True), One(3, 0, returns=True)]) == [3, 5, 1]


def test_only_those_of_the_same_priority_that_came_earlier_are_overtaken() -> None:
    early, other, late = One(1), One(2, priority=1), One(4)
    note_overtaking([early, other, late], One(3, 64))
    assert [one.overtaken for one in (early, other, late)] == [1, 0, 0]


@given(st.integers(0, 5), st.lists(st.integers(0, 100), min_size=1, max_size=60))
def test_nobody_is_overtaken_more_often_than_the_limit(limit: int, cached: list[int]) -> None:
    """One waits with nothing cached while others keep coming, each with more than the last."""
    last = One(0)
    waiting = [last]
    went_before = 0
    for arrival, tokens in enumerate(cached, 1):
        waiting.append(One(arrival, tokens + 1))
        first = in_order(waiting, limit)[0]
        waiting.remove(first)
        note_overtaking(waiting, first)
        if first is last:
            break
        went_before += 1
    assert went_before <= limit or (went_before == len(cached) and limit >= len(cached))


# -- chunks ----------------------------------------------------------------------------------------


def test_without_states_a_chunk_is_as_long_as_it_may_be() -> None:
    assert chunk_end(0, 100, 512, 0) == 100
    assert chunk_end(0, 1000, 512, 0) == 512


def test_a_chunk_ends_where_a_state_can_be_kept() -> None:
    assert chunk_end(0, 1000, 500, 64) == 448
    assert chunk_end(448, 1000, 500, 64) == 896
    assert chunk_end(896, 1000, 500, 64) == 960
    assert chunk_end(960, 1000, 500, 64) == 1000


def test_the_same_prompt_again_finds_a_state_though_its_last_token_is_held_back() -> None:
    assert chunk_end(0, 128, 500, 64) == 64
    assert chunk_end(64, 128, 500, 64) == 128
    assert chunk_end(0, 10, 500, 1) == 9


def test_a_chunk_that_reaches_no_such_place_is_as_long_as_it_may_be() -> None:
    assert chunk_end(0, 1000, 40, 64) == 40
    assert chunk_end(40, 1000, 40, 64) == 64


def test_a_chunk_ends_at_the_first_length_worth_a_state() -> None:
    assert chunk_end(0, 1000, 500, 64, (320, 128)) == 128
    assert chunk_end(128, 1000, 500, 64, (320, 128)) == 320
    assert chunk_end(0, 1000, 500, 64, (100,)) == 448, "it is at no multiple of the grid"
    assert chunk_end(0, 50, 500, 1, (7,)) == 7


@given(
    st.integers(1, 300),
    st.integers(1, 100),
    st.sampled_from((0, 1, 4, 16, 64)),
    st.lists(st.integers(0, 320), max_size=4),
)
def test_chunks_cover_a_prompt_and_never_skip_its_last_place(
    total: int, most: int, grid: int, marks: list[int]
) -> None:
    at, ends = 0, []
    while at < total:
        end = chunk_end(at, total, most, grid, marks)
        assert at < end <= min(total, at + most)
        ends.append(end)
        at = end
    for last in (total, total - 1) if grid else ():
        if last // grid:
            assert last // grid * grid in ends or marks


# -- shapes ----------------------------------------------------------------------------------------


def test_the_shape_of_a_hybrid_cache() -> None:
    shape = Shape.of(engine_config_of_cache(ALL, pages=20, states=9))
    assert (shape.page, shape.full_size, shape.window, shape.reach) == (4, 80, 6, 8)
    assert (shape.states, shape.grid, shape.has_ring) == (3, 4, True)
    assert shape.chunk_max == 80 - 8 - 4
    assert (shape.window_start(3), shape.window_start(10)) == (0, 5)


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (engine_config_of_cache(WINDOWED, window_pages=5), "pools.swa.size"),
        (engine_config_of_cache(ALL, states=3), "pools.mamba.size"),
    ],
    ids=("window", "states"),
)
def test_a_pool_that_is_too_small_for_one_request_is_refused(config: object, path: str) -> None:
    with pytest.raises(ConfigError, match=path):
        Shape.of(config)  # type: ignore[arg-type] # it is one


def sequence(tokens: list[int], salt: str | None = None) -> Sequence:
    """Return a request that waits, with room for five tokens of an answer."""
    report = Report(rid=f"r{len(tokens)}", prompt_tokens=len(tokens))
    return Sequence(
        Shape.of(engine_config_of_cache()),
        np.array(tokens, dtype=np.int64),
        SamplingParams(),
        Channel(report, lambda: None),
        arrival=1,
        limit=len(tokens) + 5,
        stops=frozenset(),
        now=0.0,
        cache_salt=salt,
    )


async def test_what_two_requests_share_is_looked_at_anew_when_one_grows() -> None:
    one, other = sequence([1, 2, 3, 4, 5, 6]), sequence([1, 2, 3])
    for grown, shared in ((3, 3), (3, 3), (4, 4), (5, 4)):
        other.length = grown
        other.tokens[3:5] = 4, 9
        assert one.shares_with(other) == other.shares_with(one) == shared
    assert one.shares_with(sequence([9])) == 0
    assert one.shares_with(sequence([1, 2], salt="mine")) == 0
